"""What is left open is found, and says where it comes from."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.looping import run_async


def left_open(dsn: str) -> None:
    psycopg.connect(dsn)


async def left_open_async(dsn: str) -> None:
    await psycopg.AsyncConnection.connect(dsn)


def run_async_and_leave_open(dsn: str) -> None:
    run_async(left_open_async(dsn))


@pytest.mark.parametrize(
    ("opens", "line"),
    [(left_open, "in left_open\n"), (run_async_and_leave_open, "in left_open_async\n")],
    ids=["sync", "async"],
)
def test_a_connection_that_nobody_closes_is_told_with_the_lines_that_opened_it(
    empty_dsn: str, opens: Callable[[str], None], line: str
) -> None:
    with pytest.warns(ResourceWarning) as caught:
        opens(empty_dsn)
    assert any(line in str(warning.message) for warning in caught)
