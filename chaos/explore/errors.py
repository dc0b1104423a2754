"""What can go wrong with an exploration itself, as opposed to the code it explores."""


class ExplorerError(Exception):
    """The exploration cannot go on; the message says why and what to do."""


class ScheduleError(ExplorerError):
    """A schedule cannot be read, or cannot be followed by this program."""
