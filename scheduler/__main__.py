"""`python -m scheduler` is the command `scheduler`."""

from scheduler.cli import main

main()
