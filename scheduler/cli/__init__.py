"""The command line, `scheduler`. The rest of the package does not know it."""

from scheduler.cli.main import app, main

__all__ = ["app", "main"]
