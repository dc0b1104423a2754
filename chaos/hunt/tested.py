"""Which statements the explorer's programs do not run, and which tests hunt their mutants instead.

What people, metrics and whoever is told of deaths read. A statement of the core whose mutants
nobody hunts would be overlooked; that each stands in one list, here or in `generated`, is tested.
"""

from __future__ import annotations

_DOCTOR = ("scheduler/test_doctor.py",)
_LETTERS = ("scheduler/test_dead_letter.py", "service/test_dead_letters.py")
_HOOKS = ("scheduler/test_hooks.py",)
_FOLLOW = ("scheduler/test_follow.py",)
_STATUS = ("service/test_status.py",)
_TASKS = ("scheduler/test_cancel.py", "scheduler/test_claim.py", "service/test_tasks.py")

# By statement the files below `tests` that run it.
TESTED: dict[str, tuple[str, ...]] = {
    "at_limit": ("scheduler/test_limits.py", "service/test_worker_metrics.py"),
    "audit": ("scheduler/test_access.py",),
    "dead_letter_ids": ("scheduler/test_dead_letter.py",),
    "dead_letter_summaries": ("scheduler/test_dead_letter.py",),
    "dead_letters": _LETTERS,
    "delivery_failed": _HOOKS,
    "find_floors": ("scheduler/test_floors.py",),
    "hook_counts": _HOOKS,
    "kind_limits": _STATUS,
    "list_dead_letters": _LETTERS,
    "list_tasks": _TASKS,
    "live_counts": ("service/test_counts.py", *_STATUS),
    "new_letters": _FOLLOW,
    "of_kinds": _LETTERS,
    "restrictions": ("scheduler/test_access.py",),
    "retry_deliveries": _HOOKS,
    "sampled_counts": ("service/test_counts.py",),
    "schedules": ("scheduler/test_schedules.py", "service/test_schedules.py"),
    "serves_others": ("service/test_tokens.py",),
    "sources": ("scheduler/test_access.py",),
    "standing_letters": _FOLLOW,
    "status": ("service/test_counts.py",),
    "take_delivery": _HOOKS,
    "task": _TASKS,
    "task_runs": _TASKS,
    "throughput": ("service/test_throughput.py",),
    "tokens": ("service/test_tokens.py",),
}
_ABOUT_THE_SERVER = (
    "what `scheduler doctor` asks of the server's own catalogues; tests/scheduler/test_doctor.py"
    " runs them all"
)
# Why nobody hunts the mutants of a statement yet.
NOT_YET: dict[str, str] = {
    "roles": "grants and a DO block, which are no statement that the parser reads",
    **{
        f"doctor/{name}": _ABOUT_THE_SERVER
        for name in (
            "autovacuum",
            "clock",
            "connections",
            "definers",
            "expired_leases",
            "grants",
            "old_transactions",
            "prepared_transactions",
            "role_powers",
            "run_times",
            "stored_settings",
            "unknown_kinds",
        )
    },
}
