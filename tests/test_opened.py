"""What is left open is found, and says where it comes from."""

from __future__ import annotations

import psycopg
import pytest


def left_open(dsn: str) -> None:
    psycopg.connect(dsn)


def test_a_connection_that_nobody_closes_is_told_with_the_lines_that_opened_it(
    empty_dsn: str,
) -> None:
    with pytest.warns(ResourceWarning) as caught:
        left_open(empty_dsn)
    [warning] = caught
    assert "in left_open" in str(warning.message)
