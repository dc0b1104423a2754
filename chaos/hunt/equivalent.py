"""Generated mutants that nothing can catch, each with the reason why.

Not an excuse for what nobody has looked for: a mutant belongs here only if no caller can tell it
from the statement as it is. The programs for single clauses and the lives still hunt them, and one
that is caught is an error (`stale`); the wide programs and the state machine leave them out.
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

_SCOPES = (
    "a key has one of three scopes, and under each of them a task that waits and was never claimed"
    " has it"
)
_RIVALS = (
    "a look finds the key taken unless that task is over again by then, within the microseconds"
    " since it made the update fail; that ten rivals in a row are that quick nobody can bring"
    " about, the bound only makes it an error and no wait without end"
)
_FIRST = "the first of a kind is the first of one of its levels, and what is returned is a minimum"

_COUNTED = "so many are counted, whichever they are; the order lets an index find them"
_OUTER = "of both halves together as many are returned; this bounds how many are read"
_MINUTES = (
    "attempts of other minutes than those asked for are joined to none; this leaves them unread"
)
_NO_WAIT = "a minute in which nothing was completed has no waits to take the median of"
_MAPPING = "what is returned is kept as a mapping, which nobody asks for its order"
_ANY = "it is asked whether there is any; the clause lets an index find the first of a level"

EQUIVALENT: dict[str, str] = {
    "claim: without LIMIT LEAST(level.room, %(limit)s)": _COST,
    "claim: LEAST(level.room, %(limit)s) is its first": _COST,
    "claim: LEAST(level.room, %(limit)s) is its last": _COST,
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
    "next_due: without LIMIT 1": _FIRST,
    "next_due: without priority = level.priority": _FIRST,
    "next_due: id descending": _FIRST,
    "due_schedules: without ORDER BY due.next_at, due.name": (
        "they come sorted from the page, and it is joined to one row"
    ),
    "at_limit: without LIMIT 1": _ANY,
    "at_limit: without priority = level.priority": _ANY,
    "enqueue(): without ORDER BY new.position": "unnest returns the payloads in their order",
    "enqueue(): without created.id ORDER BY created.id": (
        "an INSERT returns its rows in the order in which it made them, and so with growing ids"
    ),
    "live_counts: without ORDER BY task.priority, task.next_run_at, task.id": _COUNTED,
    "live_counts: without ORDER BY task.next_run_at, task.id": _COUNTED,
    "live_counts: without ORDER BY task.finished_at, task.id": _COUNTED,
    "live_counts: without LIMIT share.most + 1 (3)": (
        "of all levels together no more are counted, and the reading ends with that"
    ),
    "list_tasks: without LIMIT %(limit)s (3)": _OUTER,
    "throughput: without where finished_at >= GREATEST(CAST(%(after)s AS TIMESTAMPTZ),"
    " DATE_BIN('1...": _MINUTES,
    "throughput: GREATEST(CAST(%(after)s AS TIMESTAMPTZ), DATE_BIN('1 minute', sched..."
    " is its last (2)": _MINUTES,
    "throughput: without on ended.completed > 0": _NO_WAIT,
    "throughput: ended.completed >= 0": _NO_WAIT,
    "throughput: wait descending": "half of the waits are shorter, from whichever end one counts",
    "throughput: without LIMIT 100": (
        "which hundred of a minute's waits are looked at is left open; this bounds what they cost"
    ),
    "throughput: without ORDER BY minute.at": (
        "the minutes are made in this order, and what is joined to them, at most once to each,"
        " leaves it: their number is not known to the planner, which reads them first"
    ),
    "restrictions: without ORDER BY kind": (
        "rows are sorted to be grouped, since an aggregate that has an order cannot be hashed"
    ),
    "hook_counts: without ORDER BY delivery.next_at, delivery.id": _COUNTED,
    "hook_counts: without ORDER BY delivery.next_at, delivery.id (2)": _COUNTED,
    "new_letters: GREATEST(CAST(%(after_in)s AS xid8), PG_SNAPSHOT_XMIN(CAST(%(seen)s..."
    " is its first": (
        "what began before the snapshot is seen by it, and left out by that; this says to the index"
        " where to begin"
    ),
    "standing_letters: without task.finished_at = death.died_at": (
        "no two deaths of a task have one token: each takes a claim since the one before"
    ),
    "kind_limits: without ORDER BY kind": _MAPPING,
    "kind_limits: kind descending": _MAPPING,
    "serves_others: COALESCE(PG_HAS_ROLE(SESSION_USER, (SELECT oid FROM pg_roles WHERE ..."
    " is its first": "null is as little leave as false is, to who asks",
    "resume_schedules(): without for update": (
        "resumptions take place one after the other; beside a pause that is not committed one does"
        " what it would have done before that pause"
    ),
    "cancel(): id descending": (
        "only cancellations wait for the rows of tasks that wait or run, each in the same order"
    ),
    "retry_delay(): (attempts - 1) * LN(factor) > LN(cap / base)": (
        "where both sides are equal base * factor^(attempts-1) is the cap"
    ),
    "enqueue_unique(): without standing.unique_until = 'started'": _SCOPES,
    "requeue(): without live.unique_until = 'started'": _SCOPES,
    "requeue(): if look = 10: never": _RIVALS,
    "declare_schedules(): without LIMIT 1": "INTO takes the first row, however many there are",
    "declare_schedules(): compared without standing.application": (
        "only a schedule that is declared no more goes to another application, and that it is"
        " declared is compared, too"
    ),
}
