"""The page: everything is in it, and it loads nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest

from chaos.bench.page import page
from chaos.bench.result import Key, as_json
from chaos.bench.table import sentences, table
from tests.chaos.bench.made_up import LIMIT, ONE_COMMIT, OURS, result

MORE = {OURS._replace(at=8): [150.0, 160.0], LIMIT._replace(at=8): [300.0, 310.0]}
RESULT = result({OURS: [100, 110], LIMIT: [200, 190], **MORE})
COMBINED: dict[Key, Sequence[float]] = {
    ONE_COMMIT: [500, 500],
    ONE_COMMIT._replace(at=8): [250.0, 250.0],
}
BOTH = result({OURS: [100, 110], LIMIT: [200, 190], **MORE, **COMBINED})


@pytest.fixture(scope="module")
def html() -> str:
    """The page of that result: its pictures take a while to draw."""
    return page(RESULT)


def test_the_page_contains_the_data(html: str) -> None:
    found = re.search(r'<script type="application/json" id="result">(.*)</script>', html, re.DOTALL)
    assert found is not None
    assert json.loads(found[1]) == json.loads(as_json(RESULT))
    assert html.count("<svg ") == 2  # speed and latency of the one batch
    assert "200 to 190" not in html
    assert "190 to 200" in html


def test_the_page_loads_nothing(html: str) -> None:
    names = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # nobody fetches those
    assert set(re.findall(r"\w+://[^\s\"'<)]+", html)) <= names
    assert not re.search(r"@import|url\((?!#)|\bsrc=|<link|<img", html)


def test_the_page_shows_text_as_text(html: str) -> None:
    assert "a note &lt;of&gt; mine" in html
    hostile = result({OURS._replace(setting="</script><b>"): [1.0]})
    assert "</script><b>" not in page(hostile)


def test_the_page_is_well_formed_and_its_ids_are_unique(html: str) -> None:
    ids: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            ids.extend(value for name, value in attrs if name == "id" and value)

    Reader().feed(html)
    assert len(ids) == len(set(ids))


def test_pictures_take_the_colours_of_the_page(html: str) -> None:
    assert "var(--line-0)" in html
    assert "#a1b2" not in html


def test_the_sentences_put_default_beside_best() -> None:
    default = Key("leaseproof", "default", 10, 4)
    said = list(sentences(result({OURS: [200.0], default: [150.0]})))
    assert "best: 200 tasks/s with 1+99 at 4 workers" in said
    assert "default settings: 150 tasks/s at 4 workers, 0.75 of the best" in said


def test_the_sentences_tell_what_is_left_with_more_workers() -> None:
    assert "1+99: at 8 workers 1.00 of its own best, pgbench's 1.00" in list(sentences(RESULT))


def test_the_two_limits_are_told_apart(html: str) -> None:
    assert "Dashed: pgbench.</p>" in html
    assert "one-commit" not in html.partition("<h2>How it was measured</h2>")[0]
    both = page(BOTH).partition("<h2>How it was measured</h2>")[0]
    assert "Dashed: pgbench. Dotted: pgbench-one-commit.</p>" in both
    assert "<th>of pgbench</th><th>of pgbench-one-commit</th>" in both
    assert "<td>0.54</td><td>0.21</td>" in both  # 105 of 195, and of 500
    assert both.count('<tr class="limit">') == 4
    for picture in re.findall("<svg .*?</svg>", both, re.DOTALL):
        assert "pgbench-one-commit" in picture
        assert {"var(--line-1)", "var(--line-7)"} <= set(re.findall(r"var\(--line-\d\)", picture))
    said = "1+99: at 8 workers 1.00 of its own best, pgbench's 1.00, pgbench-one-commit's 0.50"
    assert said in list(sentences(BOTH))


def test_the_table_has_a_share_of_each_limit_and_both_below_ours() -> None:
    default = {OURS._replace(setting="default"): [120.0, 120.0]}
    shown = table(result({LIMIT: [200, 190], ONE_COMMIT: [500, 500], OURS: [100, 110], **default}))
    cells = {str(column.header): list(column.cells) for column in shown.columns}
    assert cells["system"] == ["leaseproof", "leaseproof", "pgbench", "pgbench-one-commit"]
    assert cells["of pgbench"] == ["0.54", "0.62", "", ""]
    assert cells["of pgbench\none-commit"] == ["0.21", "0.24", "", ""]
    assert "of pgbench\none-commit" not in {column.header for column in table(RESULT).columns}
