"""How urgent a task is."""

from datetime import timedelta
from enum import IntEnum

CREDIT = timedelta(minutes=1)  # of each level, as scheduler.priority_credit() has it


class Priority(IntEnum):
    """How urgent a task is. A level counts as due one minute earlier than the level below: so a due
    task is passed over only for tasks that became due at most a minute later for each level between
    them, three minutes at most, however many there are."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    URGENT = 3
