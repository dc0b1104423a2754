"""A small queue of its own, and what it takes to have it broken and judged by `chaos`."""
