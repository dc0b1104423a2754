"""A saved history comes back as it was, or not at all."""

from __future__ import annotations

import gc
import gzip
import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.history.events import (
    Change,
    Commit,
    Effect,
    Ended,
    Failover,
    Fault,
    Final,
    History,
    Key,
    Note,
    Occurrence,
    Phases,
    Policy,
    Recurrence,
    Row,
    Rules,
    Step,
)
from chaos.history.store import HistoryError, load, save

UTF8 = ("utf-8", "surrogatepass")
# Any text, unlike Hypothesis's default: NUL and lone surrogates too.
text = st.text(st.characters(exclude_categories=()), max_size=20)
whole = st.integers(-(2**63), 2**63 - 1)
policies = st.builds(Policy, *[st.floats(allow_nan=False)] * 4)
rows = st.builds(
    Row,
    task=whole,
    kind=text,
    state=text,
    due=whole,
    attempts=whole,
    max_attempts=whole,
    token=whole,
    owner=st.none() | text,
    expires=st.none() | whole,
    claimed_at=st.none() | whole,
    policy=st.none() | policies,
    error=st.none() | text,
    source=st.none() | text,
    counted=st.booleans(),
    key=st.none() | st.builds(Key, text, text),
    occurrence=st.none() | st.builds(Occurrence, text, whole),
    priority=whole,
)
ended = st.builds(Ended, whole, whole, text, whole, whole, whole, text, st.none() | text)
commits = st.builds(
    Commit,
    whole,
    whole,
    whole,
    st.lists(st.builds(Change, whole, st.none() | rows), max_size=3).map(tuple),
    st.lists(ended, max_size=3).map(tuple),
    st.lists(st.builds(Effect, whole, whole), max_size=3).map(tuple),
)
json_data = st.recursive(
    st.none() | st.booleans() | whole | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)


def several(one: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(one, max_size=4).map(tuple)


histories = st.builds(
    History,
    about=st.dictionaries(text, json_data, max_size=3),
    rules=st.builds(
        Rules,
        st.frozensets(st.builds(Step, text, text, st.none() | text), max_size=4),
        st.frozensets(text, max_size=4),
        whole,
        st.none() | whole,
        st.dictionaries(text, whole, max_size=2),
        st.dictionaries(text, whole, max_size=2),
        st.dictionaries(text, st.builds(Recurrence, whole, text), max_size=2),
        st.none() | whole,
    ),
    phases=st.builds(Phases, *[whole] * 6),
    commits=several(commits),
    notes=several(st.builds(Note, whole, text, text, whole, whole, text, text)),
    faults=several(st.builds(Fault, whole, text, text, text, text)),
    finals=several(st.builds(Final, whole, text, whole, whole, st.none() | text, text, text)),
    failovers=several(st.builds(Failover, whole, whole, st.booleans(), several(commits))),
    unknown=whole,
    named=st.frozensets(text, max_size=4),
)

ROW = Row(1, "mail", "dead", 5, 2, 3, 7, "w1/a", 8, 6, Policy(1.0, 2.0, 60.0, 0.5), "b\0\ud800")
KEYED = ROW._replace(source="shop", counted=True, key=Key("k", "started"))
DAILY = ROW._replace(occurrence=Occurrence("daily", 5), priority=3)
HISTORY = History(
    about={"scenario": "kill-mid-run", "seed": 7},
    rules=Rules(
        frozenset({Step("running", "dead", "failed")}),
        frozenset({"released"}),
        1,
        200_000,
        {"mail": 2},
        {"shop": 3},
        {"daily": Recurrence(86_400_000_000, "skip")},
        1_100_000,
    ),
    phases=Phases(1, 2, 3, 4, 5, 6),
    commits=(
        Commit(0, 1, 700, (Change(1, ROW), Change(2, None)), (), (Effect(1, 7),)),
        Commit(1, 2, 701, (Change(1, KEYED), Change(2, DAILY)), (), ()),
        Commit(2, 2, 702, (), (Ended(1, 7, "w1/a", 2, 6, 9, "failed", None),), ()),
    ),
    notes=(Note(3, "w1", "started", 1, 7, "w1/a", ""),),
    faults=(Fault(4, "kill", "inject", "w1", ""),),
    finals=(Final(1, "dead", 7, 2, None, "d1", "d1"),),
    failovers=(
        Failover(5, 6, False, (Commit(3, 4, 703, (Change(3, KEYED),), (), (Effect(3, 1),)),)),
    ),
    unknown=1,
    named=frozenset({"fenced"}),
)


@given(histories)
def test_any_history_comes_back_equal(
    tmp_path_factory: pytest.TempPathFactory, history: History
) -> None:
    directory = tmp_path_factory.mktemp("store", numbered=True)
    for name in ("history.jsonl", "history.jsonl.gz"):
        save(history, directory / name)
        assert load(directory / name) == history


def test_records_come_back_as_their_own_types(tmp_path: Path) -> None:
    save(HISTORY, tmp_path / "h")
    loaded = load(tmp_path / "h")
    # A NamedTuple equals the tuple of its fields, so equality does not show this.
    assert repr(loaded) == repr(HISTORY)


def test_side_by_side_surrogates_stay_two(tmp_path: Path) -> None:
    history = replace(HISTORY, notes=(Note(1, "w", "effect", 1, 1, "o", "\ud83d\ude00"),))
    save(history, tmp_path / "h")
    assert load(tmp_path / "h").notes == history.notes


def test_equal_histories_are_equal_files(tmp_path: Path) -> None:
    save(HISTORY, tmp_path / "a.gz")
    save(load(tmp_path / "a.gz"), tmp_path / "b.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert (tmp_path / "a.gz").read_bytes().startswith(b"\x1f\x8b")


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h"
    save(HISTORY, path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        lines = data[:length].splitlines()
        with pytest.raises(HistoryError, match=rf"^{path}, line {len(lines)}: "):
            load(path)


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "h"
    save(HISTORY, path)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(HistoryError, match=r", line \d+: "):
            load(path)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "h"
    save(HISTORY, path)
    lines = path.read_bytes().splitlines(keepends=True)
    for damage in (
        b"\n",
        b"[]\n",
        b"7\n",
        b'{"a":1}\n',
        b'["commit",1]\n',
        b'["else",1]\n',
        b"\xff\n",
    ):
        path.write_bytes(b"".join([*lines[:3], damage, *lines[4:]]))
        with pytest.raises(HistoryError, match=rf"{path}, line 4: "):
            load(path)


@pytest.mark.parametrize("length", [0, 5, 20, -9, -1])
def test_a_cut_gzip_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "h.gz"
    save(HISTORY, path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(HistoryError, match=str(path)):
        load(path)


def test_a_plain_file_named_gz_is_refused(tmp_path: Path) -> None:
    save(HISTORY, tmp_path / "h")
    (tmp_path / "h").rename(tmp_path / "h.gz")
    with pytest.raises(HistoryError, match="bad gzip data"):
        load(tmp_path / "h.gz")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"format": "leaseproof-history", "version": 7}, "version 7 is newer"),
        ({"format": "leaseproof-history", "version": 4}, "version 4 .* run the scenario again"),
        ({"format": "leaseproof-history", "version": 1}, "version 1 .* run the scenario again"),
        ({"format": "leaseproof-history", "version": 0}, "no format version 0"),
        ({"format": "leaseproof-history"}, "version"),
        ({"format": "other", "version": 1}, "not a saved history"),
        (["commit"], "not a saved history"),
    ],
)
def test_other_formats_and_versions_are_refused(
    tmp_path: Path, header: object, reason: str
) -> None:
    path = tmp_path / "h"
    save(HISTORY, path)
    _, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(json.dumps(header).encode() + b"\n" + rest)
    with pytest.raises(HistoryError, match=rf"{path}, line 1: .*{reason}"):
        load(path)


def test_a_history_of_format_5_comes_back_without_priorities_and_promises_no_order(
    tmp_path: Path,
) -> None:
    path = tmp_path / "h"
    save(HISTORY, path)
    records = [json.loads(line) for line in path.read_bytes().decode(*UTF8).splitlines()]
    records[0]["version"] = 5
    records[1]["rules"].pop()
    for kind, *fields in records[2:]:
        if kind == "commit":
            for _, row in fields[3]:
                if row is not None:
                    row.pop()
        elif kind == "failover":
            for commit in fields[3]:
                for _, row in commit[3]:
                    row.pop()
    lines = [json.dumps(one, ensure_ascii=False).encode(*UTF8) + b"\n" for one in records[:-1]]
    end = json.dumps(["end", zlib.crc32(b"".join(lines))]).encode() + b"\n"
    path.write_bytes(b"".join([*lines, end]))
    older = load(path)
    assert older.rules == replace(HISTORY.rules, passed_over=None)
    rows = [change.row for commit in older.commits for change in commit.changes]
    assert [row and row.priority for row in rows] == [0, None, 0, 0]
    assert rows[0] == ROW
    assert older.failovers == HISTORY.failovers


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    for name in ("h", "h.gz"):
        path = tmp_path / name
        save(HISTORY, path)
        with pytest.raises(TypeError):
            save(replace(HISTORY, about={"not JSON": object()}), path)
        assert load(path) == HISTORY
    assert sorted(child.name for child in tmp_path.iterdir()) == ["h", "h.gz"]


def test_loading_leaves_the_collector_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "h.gz"
    path.write_bytes(gzip.compress(b"nothing\n"))
    assert gc.isenabled()
    with pytest.raises(HistoryError):
        load(path)
    assert gc.isenabled()
