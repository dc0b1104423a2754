"""What must hold of every history: pure functions from a history to a verdict.

One module a family. Nothing here reads a clock, a database or a file, so a saved history can be
judged again anywhere and gives the same verdicts. `judge` runs them all.
"""
