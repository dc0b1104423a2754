"""Generated mutants that nothing can catch, each with the reason why.

Not an excuse for what nobody has looked for: a mutant belongs here only if no caller can tell it
from the statement as it is. The hunt still hunts them, and one that is caught is told.
"""

from __future__ import annotations

_COST = (
    "a level never has more among the best than the room of its kind and the limit, which `place <="
    " room` and the limit of all see to; this only bounds how many rows a claim reads"
)
_ATTEMPT_LEFT = (
    "the constraint pending_has_an_attempt_left keeps every such row out of `status = 'pending'`;"
    " the clause repeats it, so that a row from before the constraint could not abort a claim"
)
_ORDER = (
    "rows are locked with SKIP LOCKED: no order in which two statements lock them makes either"
    " wait, so none can make them deadlock, and what is returned is a set"
)
_LEASED = (
    "the constraint running_iff_leased gives owner and expiry to running rows alone, and a null"
    " compares as neither; the clause lets a partial index serve the statement"
)

EQUIVALENT: dict[str, str] = {
    "claim: without LIMIT LEAST(served.room, %(limit)s)": _COST,
    "claim: LEAST(served.room, %(limit)s) is its first": _COST,
    "claim: LEAST(served.room, %(limit)s) is its last": _COST,
    "claim: without attempts < max_attempts": _ATTEMPT_LEFT,
    "claim: without attempts < max_attempts (2)": _ATTEMPT_LEFT,
    "claim: attempts <= max_attempts": _ATTEMPT_LEFT,
    "claim: attempts <= max_attempts (2)": _ATTEMPT_LEFT,
    "lock_limits: COALESCE(ARRAY_AGG(kind), '{}') is its first": (
        "set_config makes a null the empty text, and claim.sql reads the empty text as no kinds"
    ),
    "lock_limits: without ORDER BY kind": _ORDER,
    "lock_limits: kind descending": _ORDER,
    "complete: without EXISTS(SELECT FROM scheduler.sources)": (
        "where there are no sources none is found either; the clause saves the join"
    ),
    "complete: without ORDER BY name": _ORDER,
    "complete: name descending": _ORDER,
    **{
        f"{end}: {change}": _ORDER
        for end in ("renew", "complete", "fail", "snooze", "release", "release_claim")
        for change in ("without ORDER BY task.id", "task.id descending")
    },
    "release_claim: without task.status = 'running'": _LEASED,
    "reclaim: without status = 'running'": _LEASED,
}
