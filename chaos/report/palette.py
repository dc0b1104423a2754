"""The colours of outcomes: told apart by people who do not see some of them, on light and dark.

Mostly those of Okabe and Ito, 2008. No colour is the only sign of anything: hovering says it, and
the tables do.
"""

from __future__ import annotations

COLOURS = {
    "completed": "#3a8bc8",
    "failed": "#e69f00",
    "reclaimed": "#d55e00",
    "snoozed": "#009e73",
    "released": "#8a8f98",
    "cancelled": "#a58fd8",
    "taken": "#e6007e",
    "undone": "#8c6d4f",
    "held": "#b8a800",
    "other": "#5f7f7f",
}
MEANINGS = {
    "completed": "completed by its holder",
    "failed": "failed",
    "reclaimed": "lease ran out, taken back",
    "snoozed": "snoozed",
    "released": "given back",
    "cancelled": "cancelled",
    "taken": "ended by somebody who had no right to",
    "undone": "lost in a failover",
    "held": "not over when the run was",
    "other": "ended in a way of the system's own",
}
BAND = "#8a8f98"  # faults
INK = "#57606a"  # what the page repaints for a dark background
P50, P99 = "#3a8bc8", "#d55e00"
CLAIMS, DONE = "#8a8f98", "#009e73"
GUILTY = COLOURS["taken"]
