"""What is left open is found, and says where it comes from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest


def left_open(dsn: str) -> None:
    psycopg.connect(dsn)


def left_open_async(dsn: str) -> None:
    asyncio.run(psycopg.AsyncConnection.connect(dsn))


@pytest.mark.parametrize("opens", [left_open, left_open_async])
def test_a_connection_that_nobody_closes_is_told_with_the_lines_that_opened_it(
    empty_dsn: str, opens: Callable[[str], None]
) -> None:
    with pytest.warns(ResourceWarning) as caught:
        opens(empty_dsn)
    [warning] = caught
    assert f"in {opens.__name__}\n" in str(warning.message)
