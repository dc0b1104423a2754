"""Correct variants by name, in files by what they change.

docs/how-the-harness-is-tested.md tells what they are for.
"""

from chaos.variants import running, sessions, statements
from chaos.variants.variant import Variant

UNMODIFIED = Variant(
    name="unmodified",
    differs="nothing",
    right="it is the scheduler as it is",
    scenarios=(
        *("kill-mid-run", "graceful-shutdown", "operators", "recurring"),
        *("unique-keys", "capped-source", "limited-kind", "wrong-clocks"),
    ),
)

VARIANTS = {
    variant.name: variant for variant in (UNMODIFIED, *statements.ALL, *sessions.ALL, *running.ALL)
}

__all__ = ["UNMODIFIED", "VARIANTS", "Variant"]
