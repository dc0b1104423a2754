"""Programs for single clauses of the scheduler's statements, and what they are made of.

`programs.CLAUSES` has all of them.
"""
