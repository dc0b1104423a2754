"""The whole life of tasks as a Hypothesis state machine: real statements against a small model."""
