"""Dead letters of all sources, for operators: listed, exported, requeued, discarded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from psycopg import Connection

from scheduler import dead_letter
from scheduler.documents import json_text, raw_payload
from scheduler.service import models
from scheduler.service.auth import Operator, TokenRoute, refuse_kind
from scheduler.service.listing import CURSOR, cursor_of, letter_page, of_kinds
from scheduler.service.problems import described
from scheduler.service.state import Service, Shared
from scheduler.service.tokens import Caller

router = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"], route_class=TokenRoute)

EXPORT_PAGE = 20  # each may have a payload of a megabyte
MOST_PAGES = 10  # of dead letters that one request tries
JSON_LINES = "application/jsonl"

After = Annotated[str | None, Query(pattern=CURSOR, description="The `next` of the page before.")]


@router.get("", responses=described(401, 403, 422, 429, 500, 503))
def list_dead_letters(
    caller: Operator,
    service: Shared,
    kind: models.KindFilter = None,
    after: After = None,
    limit: models.PageSize = 50,
) -> models.LetterPage:
    """Dead letters, oldest first, a page at a time."""
    with service.database.connection() as connection:
        found = letter_page(
            connection, kind=kind, kinds=caller.kind_list(), after=after, limit=limit + 1
        )
    shown = found[:limit]
    following = cursor_of(shown[-1]) if len(found) > limit else None
    return models.LetterPage(dead_letters=shown, next=following)


@router.get(
    "/export",
    response_class=StreamingResponse,
    responses={
        **described(401, 403, 422, 429, 500, 503),
        200: {
            "description": "One JSON document a line: a dead letter with its payload.",
            "content": {JSON_LINES: {"schema": {"type": "string"}}},
        },
    },
)
def export_dead_letters(
    caller: Operator, service: Shared, kind: models.KindFilter = None
) -> StreamingResponse:
    """All dead letters, oldest first, with their payloads, as JSON lines."""
    kinds = caller.kind_list() if kind is None else [kind] if caller.has_kind(kind) else []
    pages = _pages(service, kinds)
    first = next(pages)  # so that a database that is away is a proper answer

    def lines() -> Iterator[str]:
        yield first
        yield from pages

    return StreamingResponse(lines(), media_type=JSON_LINES)


@router.post("/requeue", responses=described(400, 401, 403, 408, 413, 422, 429, 500, 503))
def requeue(
    request: Request, letters: models.Letters, caller: Operator, service: Shared
) -> models.Settled:
    """Make dead letters due now, with all their attempts again: those with these ids, or the oldest
    thousand or so of a kind. Those whose unique key another task has by now stay."""
    return _settle(dead_letter.requeue, request, letters, caller, service)


@router.post("/discard", responses=described(400, 401, 403, 408, 413, 422, 429, 500, 503))
def discard(
    request: Request, letters: models.Letters, caller: Operator, service: Shared
) -> models.Settled:
    """Give dead letters up for good: those with these ids, or the oldest thousand of a kind."""
    return _settle(dead_letter.discard, request, letters, caller, service)


def _pages(service: Service, kinds: list[str] | None) -> Iterator[str]:
    """The export, a page's lines at a time, at least one. No connection is held while a client, who
    may be slow, takes a page in."""
    after = None
    while True:
        with service.database.connection() as connection:
            found = dead_letter.page(connection, kinds, after, EXPORT_PAGE)
        yield "".join(f"{json_text(raw_payload(letter))}\n" for letter in found)
        if len(found) < EXPORT_PAGE:
            return
        after = found[-1]


def _settle(
    act: Callable[..., list[int]],
    request: Request,
    letters: models.Letters,
    caller: Caller,
    service: Service,
) -> models.Settled:
    if letters.kind is not None:
        refuse_kind(request, caller, letters.kind)
    with service.database.connection() as connection:
        if letters.kind is not None:
            done, more = _settle_oldest(act, connection, letters.kind, caller.source)
            return models.Settled(ids=done, left_alone=[], more=more)
        asked = sorted(set(letters.ids or []))
        allowed = of_kinds(connection, asked, caller.kind_list())
        done = act(connection, allowed, source=caller.source)
    left = [task for task in asked if task not in set(done)]
    return models.Settled(ids=done, left_alone=left, more=False)


def _settle_oldest(
    act: Callable[..., list[int]], connection: Connection, kind: str, source: str | None
) -> tuple[list[int], bool]:
    """Settle the oldest dead letters of a kind, a page at a time, until so many are settled as a
    request may change, or so many pages were tried: a thousand that cannot be requeued keep nobody
    from the others. The ids of those settled, and whether there are more to try."""
    done: list[int] = []
    after: str | None = None
    more = True
    for _ in range(MOST_PAGES):
        found = letter_page(
            connection, kind=kind, kinds=None, after=after, limit=models.LARGEST_BATCH + 1
        )
        page = found[: models.LARGEST_BATCH]
        done += act(connection, [letter.id for letter in page], source=source)
        more = len(found) > len(page)
        if not more or len(done) >= models.LARGEST_BATCH:
            break
        after = cursor_of(page[-1])
    return done, more
