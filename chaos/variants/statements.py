"""Variants of the statements: other locks, other forms of the same condition, other choices."""

from __future__ import annotations

from chaos.mutants import Edit
from chaos.variants.variant import Variant

_ENDS = ("renew", "complete", "fail", "snooze", "release")  # those that name leases by batch
_LOGGED = ("complete", "fail", "snooze", "release")
_BY_ARRAY = (
    "where task.id = any(array(select id from due))"
    " -- an array: a join would scan the primary key\n"
)
_FENCE = (
    "task.id = held.id and task.lease_token = held.token and task.lease_owner = held.owner",
    "task.id = %(task)s and task.lease_token = %(token)s and task.lease_owner = %(owner)s",
)
_DUE, _LEFT = "next_run_at <= scheduler.now()", "attempts < max_attempts"
_EXPIRED, _LAST = "lease_expires_at < scheduler.now()", "task.attempts >= task.max_attempts"

ALL = (
    Variant(
        name="no-key-update",
        differs="rows are locked FOR NO KEY UPDATE instead of FOR UPDATE",
        right="nobody changes a key, and of two such locks on a row one waits or is passed over",
        edits=tuple(
            Edit(file, "for update", "for no key update")
            for file in (
                *("claim", "lock_limits", *_ENDS),
                *("release_claim", "reclaim", "complete_in_transaction"),
            )
        ),
        scenarios=("kill-mid-run", "limited-kind", "operators", "reply-lost", "pause-past-lease"),
    ),
    Variant(
        name="one-claim-at-a-time",
        differs="a claim first waits for an advisory lock that all claims share",
        right=(
            "the lock only keeps claims apart; a row is still locked before it is changed, and"
            " looked at again in its newest version, so an old snapshot does no harm"
        ),
        edits=(
            Edit(
                "claim",
                "with served as materialized (",
                "with turn as materialized (select pg_advisory_xact_lock(20021)),\n"
                "served as materialized (",
            ),
            Edit("claim", "    from unnest(%(kinds)s", "    from turn cross join unnest(%(kinds)s"),
        ),
    ),
    Variant(
        name="locks-from-the-back",
        differs="a batch locks its rows in the opposite order",
        right="locked rows are skipped, so no order makes two statements wait for each other",
        edits=tuple(
            Edit(file, "order by task.id\n", "order by task.id desc\n")
            for file in (*_ENDS, "release_claim")
        ),
        scenarios=("kill-mid-run", "graceful-shutdown", "slow-task-renewal", "reply-lost"),
    ),
    Variant(
        name="claims-by-join",
        differs="a claim's UPDATE joins the locked rows instead of naming them in an array",
        right="the rows were locked by a CTE that runs once; how they are found again is a plan",
        edits=(Edit("claim", _BY_ARRAY, "from due\nwhere task.id = due.id\n"),),
        scenarios=("stale-statistics", "kill-mid-run", "limited-kind", "thundering-start"),
    ),
    Variant(
        name="claims-what-exists",
        differs="a claim's UPDATE asks for each row with a correlated EXISTS",
        right="the rows were locked by a CTE that runs once; EXISTS only looks at what it made",
        edits=(
            Edit("claim", _BY_ARRAY, "where exists (select from due where due.id = task.id)\n"),
        ),
        scenarios=("stale-statistics", "kill-mid-run", "priorities"),
    ),
    Variant(
        name="fence-as-a-row",
        differs="fences compare id, token and owner as one row, or in the opposite order",
        right="two rows are equal if all that is in them is; the order of conditions means nothing",
        edits=(
            *(
                Edit(
                    file,
                    _FENCE[0],
                    "(task.id, task.lease_token, task.lease_owner)"
                    " = (held.id, held.token, held.owner)",
                )
                for file in (*_ENDS, "second_look")
            ),
            Edit(
                "complete_in_transaction",
                _FENCE[1],
                "task.lease_owner = %(owner)s and task.lease_token = %(token)s"
                " and task.id = %(task)s",
            ),
        ),
        scenarios=("kill-mid-run", "pause-past-lease", "operators", "reply-lost"),
    ),
    Variant(
        name="fenced-twice",
        differs="an UPDATE repeats the fence under which its rows were locked",
        right="what holds of a row that this statement has locked holds a moment later, too",
        edits=tuple(
            Edit(
                file,
                "where task.id = mine.id\n",
                "where task.lease_owner = mine.owner and task.id = mine.id"
                " and task.lease_token = mine.token\n",
            )
            for file in (*_LOGGED, "complete_in_transaction")
        ),
        scenarios=("kill-mid-run", "pause-past-lease", "operators", "capped-source"),
    ),
    Variant(
        name="said-the-other-way-round",
        differs="`a <= b` is written `not a > b`, and each other comparison likewise",
        right="none of what is compared is null where it counts, so both say the same",
        edits=(
            Edit("claim", f"and {_DUE}", "and not next_run_at > scheduler.now()"),
            Edit("claim", f"and {_LEFT}", "and not attempts >= max_attempts"),
            Edit("reclaim", f"and {_EXPIRED}", "and not lease_expires_at >= scheduler.now()"),
            *(
                Edit(file, f"when {_LAST}", "when not task.attempts < task.max_attempts")
                for file in ("fail", "reclaim")
            ),
        ),
        scenarios=("retry-storm", "poison-pill", "kill-mid-run", "wrong-clocks"),
    ),
    Variant(
        name="reclaims-a-moment-later",
        differs="a lease is taken back a tenth of a second after its end",
        right="a lease must not end early; how long after it is taken back is a matter of speed",
        edits=(Edit("reclaim", _EXPIRED, f"{_EXPIRED} - interval '100 milliseconds'"),),
    ),
    Variant(
        name="reclaims-the-youngest-of-equals",
        differs="of leases that end at the same instant the highest id is taken back first",
        right="those that ended first still go first, and all of them go",
        edits=(Edit("reclaim", "by lease_expires_at\n", "by lease_expires_at, id desc\n"),),
        scenarios=("kill-mid-run", "pause-past-lease", "thundering-start", "database-stall"),
    ),
    Variant(
        name="leases-longer-than-told",
        differs="a lease lasts a fifth of a second longer in the database than its worker believes",
        right="a worker may give up before its lease is over, only not after",
        edits=(
            Edit(
                "claim",
                "[array_position(%(kinds)s::text[], task.kind)]",
                "[array_position(%(kinds)s::text[], task.kind)] + interval '200 milliseconds'",
            ),
            Edit("renew", "+ mine.lease\n", "+ mine.lease + interval '200 milliseconds'\n"),
        ),
        scenarios=(
            "kill-mid-run",
            "slow-task-renewal",
            "pause-past-lease",
            "stopped-in-transaction",
        ),
    ),
)
