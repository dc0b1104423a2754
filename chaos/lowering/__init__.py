"""Lowers a failure of real processes: finds it again as a minimal schedule of a small program.

`deeds` tells from a saved history who did what to a task, `projection` makes a `Script` of that, a
program in words, with the order in which things happened, and `lower` looks for the failure there
and around it. docs/explorer.md tells how.
"""
