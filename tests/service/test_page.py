"""The web page in a real browser: what it shows, what it lets a viewer do, and for whom it is.

What it must do is in the fast tests, the rest in the long ones: a browser takes its time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from threading import Thread
from typing import TYPE_CHECKING

import pytest
import uvicorn
from psycopg import Connection

from chaos.cluster.ports import Reservation
from scheduler import declare_schedules
from scheduler.dispatch import claim, new_owner
from scheduler.finish import complete, fail
from scheduler.service import tokens
from scheduler.service.app import create_app
from scheduler.service.tokens import Scope
from tests.scheduler.working import LEASE, statuses
from tests.service.conftest import REGISTRY, SCHEDULED, put_dead
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route


HOSTILE = (
    "<img src=x onerror=\"document.title='taken'\"></pre><script>document.title='taken'</script>"
)
EVERYTHING = tuple(Scope)
Enter = Callable[..., "Page"]


@pytest.fixture
def address(http_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The service on a real port; its numbers are always fresh."""
    monkeypatch.setattr("scheduler.service.kept.KEPT_SECONDS", 0.0)
    monkeypatch.setattr("scheduler.service.kept.LARGEST_SHARE", float("inf"))
    reserved = Reservation()
    port = reserved.port
    reserved.close()
    app = create_app(REGISTRY, http_dsn, rate=1000, connections=4)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None))
    thread = Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started, "the server to listen")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def enter(page: Page, address: str, db: Connection) -> Iterator[Enter]:
    """Opens the page as somebody with these scopes, by a link with a token."""

    def entered(
        *scopes: Scope, source: str | None = "shop", kinds: list[str] | None = None
    ) -> Page:
        secret = tokens.create(db, f"viewer{len(scopes)}", source, scopes or EVERYTHING, kinds)
        page.goto(f"{address}/#token={secret}")
        page.wait_for_selector("#board[aria-busy=false]")
        return page

    yield entered
    page.goto("about:blank")  # or it would miss the server, which ends first


@pytest.fixture
def busy(db: Connection) -> None:
    """Tasks in every state, of two kinds, and schedules."""
    declare_schedules(db, SCHEDULED)
    put_dead(db, "any", "ValueError: no")
    put_dead(db, "any", HOSTILE)
    queue(db, "work", 5)
    queue(db, "any", 2)
    leases = [attempt.lease for attempt in claim(db, new_owner("host:1"), {"work": LEASE}, 4, 0.0)]
    complete(db, leases[:1])
    fail(db, leases[1:2], ["ValueError: still no"])


def queue(db: Connection, kind: str, count: int) -> None:
    """Tasks that are due now."""
    db.execute(
        "select scheduler.enqueue(%s, 'default', 1::smallint, array_fill('1'::text, array[%s]),"
        " null, '0', 1, 1, 1, 1, 0)",
        [kind, count],
    )


def total(page: Page, name: str) -> str:
    """What one of the tiles at the top says."""
    tile = page.locator("#totals > div", has=page.get_by_text(name, exact=True))
    return tile.locator("dd").inner_text()


def cells(row: Locator) -> list[str]:
    """The texts of a table's row."""
    return [text.strip() for text in row.locator("th, td").all_inner_texts()]


def tab_to(page: Page, name: str) -> None:
    """Press Tab until the control of this name has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('aria-label')") == name:
            return
    raise AssertionError(f"no {name!r} within sixty presses of Tab")


@pytest.mark.usefixtures("busy")
def test_it_shows_what_the_database_has(enter: Enter, db: Connection) -> None:
    page = enter()
    assert statuses(db) == {"pending": 3, "running": 2, "completed": 1, "dead": 3}
    assert [total(page, name) for name in ("Waiting", "Due now", "Running", "Dead letters")] == [
        *("3", "3", "2", "3")
    ]
    assert re.fullmatch(r"[0-9.]+ m?s", total(page, "Oldest due"))
    kinds = [cells(row)[:-1] for row in page.locator("#kinds tbody tr").all()]
    assert kinds == [["any", "2", "2", "0", "0", "2"], ["work", "1", "1", "2", "0", "1"]]
    owners = db.execute(
        "select id::text, lease_owner from scheduler.tasks where status = 'running' order by 1 desc"
    ).fetchall()
    running = [cells(row) for row in page.locator("#running tbody tr").all()]
    assert [(row[0], row[2]) for row in running] == owners
    assert all(re.fullmatch(r"(4 min [0-9]+|5 min 0) s", row[-1]) for row in running)
    picture = page.get_by_role("img", name="Attempts a minute")
    assert "1 completed, 1 failed, 0 lost their lease" in (
        picture.get_attribute("aria-label") or ""
    )
    schedules = [cells(row) for row in page.locator("#schedules tbody tr").all()]
    assert [(row[0], row[2], row[5]) for row in schedules] == [
        ("daily", "cron 0 3 * * * (Europe/Berlin)", "active"),
        ("hourly", "every 3600s", "active"),
    ]


@pytest.mark.chaos_long
def test_the_numbers_follow_the_database(enter: Enter, page: Page, db: Connection) -> None:
    page.clock.install()
    enter()
    assert total(page, "Waiting") == "0"
    assert page.get_by_text("Nothing waits, runs or is dead.").is_visible()
    queue(db, "work", 1234)
    page.clock.run_for(5_000)
    page.locator("#totals").get_by_text("1,234").first.wait_for()


@pytest.mark.usefixtures("busy")
def test_a_dead_letter_is_requeued_by_the_keyboard(enter: Enter, db: Connection) -> None:
    page = enter()
    first, second = page.locator("#letters li").all()[:2]
    ids = [letter.locator("a").inner_text() for letter in (first, second)]
    tab_to(page, f"Requeue task {ids[0]}")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.get_by_role("status").get_by_text(f"Task {ids[0]} is back in the queue.").wait_for()
    [(status,)] = db.execute(
        "select status from scheduler.tasks where id = %s", [ids[0]]
    ).fetchall()
    assert status == "pending"
    audit = "select source, role, first_task from scheduler.audit where action = 'requeue'"
    assert db.execute(audit).fetchall() == [("shop", "http_server", int(ids[0]))]
    # The focus is on the next letter's button, not lost with the one that is gone.
    page.wait_for_function(
        "label => document.activeElement.getAttribute('aria-label') === label",
        arg=f"Requeue task {ids[1]}",
    )


@pytest.mark.chaos_long
@pytest.mark.usefixtures("busy")
def test_all_letters_of_a_kind_are_requeued(enter: Enter, db: Connection) -> None:
    page = enter()
    assert not page.get_by_role("button", name="Requeue all of this kind").is_visible()
    page.get_by_role("combobox", name="Kind").select_option("any")
    page.get_by_role("button", name="Requeue all of this kind").click()
    page.get_by_role("status").get_by_text("Requeued 2 of kind any.").wait_for()
    assert statuses(db)["dead"] == 1


@pytest.mark.chaos_long
def test_of_many_letters_the_oldest_are_shown_until_more_are_asked_for(
    enter: Enter, db: Connection
) -> None:
    ids = [put_dead(db, "any", "no") for _ in range(12)]
    page = enter()
    letters = page.locator("#letters li")
    assert letters.count() == 10
    page.get_by_role("button", name="Show more").click()
    page.wait_for_function("() => document.querySelectorAll('#letters li').length === 12")
    page.wait_for_function("id => document.activeElement.textContent === id", arg=str(ids[10]))
    assert not page.get_by_role("button", name="Show more").is_visible()


@pytest.mark.usefixtures("busy")
def test_a_task_shows_what_happened_to_it_and_is_discarded_at_the_second_press(
    enter: Enter, db: Connection
) -> None:
    page = enter()
    [(task,)] = db.execute(
        "select id from scheduler.tasks where status = 'dead' and kind = 'work'"
    ).fetchall()
    page.get_by_role("textbox", name="Task").fill(str(task))
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name=f"Task {task}: work")
    dialog.wait_for()
    steps = [step.partition(" ")[0] for step in dialog.locator("ol strong").all_inner_texts()]
    assert steps == ["enqueued", "attempt", "dead"]
    assert "ValueError: still no" in dialog.inner_text()
    dialog.get_by_role("button", name=f"Discard task {task}").click()
    assert statuses(db)["dead"] == 3
    dialog.get_by_role("button", name=f"Discard task {task}: press once more").click()
    dialog.get_by_text("discarded", exact=True).first.wait_for()
    assert statuses(db)["discarded"] == 1
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")


@pytest.mark.chaos_long
@pytest.mark.usefixtures("busy")
def test_a_schedule_is_paused_resumed_and_run(enter: Enter, db: Connection) -> None:
    page = enter()
    page.get_by_role("button", name="Pause hourly").click()
    page.get_by_role("button", name="Resume hourly").click()
    page.get_by_role("button", name="Pause hourly").wait_for()
    page.get_by_role("button", name="Run hourly now").click()
    page.get_by_role("status").get_by_text("hourly runs now, as task").wait_for()
    page.locator("#schedules").get_by_text("under way").wait_for()
    audit = db.execute(
        "select action from scheduler.audit where schedule = 'hourly' order by id offset 1"
    )
    assert [action for (action,) in audit.fetchall()] == ["pause", "resume", "run-now"]


@pytest.mark.usefixtures("busy")
def test_a_viewer_without_the_scopes_sees_no_buttons(enter: Enter, db: Connection) -> None:
    db.execute(
        "update scheduler.tasks set source = 'other' where status = 'dead' and kind = 'work'"
    )
    page = enter(Scope.READ, Scope.METRICS, source=None)
    assert len(page.locator("#letters li").all()) == 3
    assert len(page.locator("#schedules tbody tr").all()) == 2
    assert page.locator("main button:visible").all_inner_texts() == []
    page.locator("#letters a").first.click()
    page.locator("dialog[open]").wait_for()
    assert page.locator("dialog button").all_inner_texts() == ["Close"]
    page.locator("dialog button").click()
    assert not page.locator("dialog").is_visible()


@pytest.mark.chaos_long
def test_what_a_token_may_not_see_is_not_there(enter: Enter) -> None:
    page = enter(Scope.OPERATE)
    assert page.locator("section:visible h2").all_inner_texts() == ["Dead letters"]
    assert not page.locator("#find").is_visible()


@pytest.mark.chaos_long
def test_a_token_for_one_kind_sees_that_kind(enter: Enter, db: Connection) -> None:
    queue(db, "work", 3)
    queue(db, "any", 4)
    page = enter(kinds=["any"])
    assert total(page, "Waiting") == "4"
    assert page.locator("#charts").inner_text() == ""


@pytest.mark.usefixtures("busy")
def test_a_hostile_error_is_text_and_a_large_number_not_rounded(
    enter: Enter, db: Connection
) -> None:
    db.execute("update scheduler.tasks set payload = '[12345678901234567890]' where id > 0")
    page = enter()
    letter = page.locator("#letters li").nth(1)
    assert letter.locator("pre").inner_text() == HOSTILE
    letter.locator("a").click()
    page.locator("dialog[open]").wait_for()
    assert page.locator("main img, dialog img, main script, dialog script").count() == 0
    assert page.title() == "Leaseproof"
    assert page.get_by_label("Payload").inner_text() == "[\n  12345678901234567890\n]"


@pytest.mark.chaos_long
def test_an_answer_that_comes_after_signing_out_is_not_shown(enter: Enter) -> None:
    page = enter()
    page.wait_for_selector("#totals > div")
    held: list[Route] = []
    page.route("**/api/v1/status", lambda route: held.append(route))
    with page.expect_request("**/api/v1/status"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.get_by_role("button", name="Sign out").click()
    with page.expect_response("**/api/v1/status") as late:
        held[0].continue_()
    late.value.finished()
    page.evaluate("fetch('/health/live').then((answer) => answer.text())")  # and is read after it
    assert page.locator("#totals").inner_text() == ""


@pytest.mark.chaos_long
def test_a_token_is_kept_in_this_tab_and_nowhere_else(enter: Enter, db: Connection) -> None:
    page = enter()
    assert "#" not in page.url
    stored = page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]")
    assert stored == [1, 0, ""]
    page.reload()
    page.wait_for_selector("#board:not([hidden])")
    page.get_by_role("button", name="Sign out").click()
    assert page.evaluate("sessionStorage.length") == 0
    assert page.locator("#totals").inner_text() == ""
    page.goto(f"{page.url}#token=%zz")
    assert page.evaluate("sessionStorage.length") == 0
    page.get_by_label("Token").fill(tokens.create(db, "typed", "shop", [Scope.METRICS]))
    page.keyboard.press("Enter")
    page.wait_for_selector("#queue:not([hidden])")


@pytest.mark.chaos_long
def test_a_revoked_token_ends_the_look(address: str, browser: Browser, db: Connection) -> None:
    page = browser.new_page()  # its console tells of the refusal
    page.clock.install()
    secret = tokens.create(db, "brief", "shop", [Scope.METRICS])
    page.goto(f"{address}/#token={secret}")
    page.wait_for_selector("#board[aria-busy=false]")
    tokens.revoke(db, "brief")
    page.clock.run_for(5_000)
    page.get_by_role("status").get_by_text("The token is not valid any more.").wait_for()
    assert page.get_by_role("heading", name="Sign in").is_visible()
    assert not page.locator("#board").is_visible()
    assert page.evaluate("sessionStorage.length") == 0
    page.close()


@pytest.mark.usefixtures("busy")
def test_a_phone_needs_no_scrolling_sideways(enter: Enter, page: Page) -> None:
    page.set_viewport_size({"width": 375, "height": 700})
    enter()
    width = "document.documentElement.scrollWidth"
    assert page.evaluate(width) == 375
    page.locator("#charts summary").first.click()
    assert page.evaluate(width) == 375
    page.locator("#letters a").nth(1).click()
    page.locator("dialog[open]").wait_for()
    dialog = page.locator("dialog")
    assert page.evaluate(width) == 375
    assert dialog.evaluate("it => it.scrollWidth <= it.clientWidth")


@pytest.mark.usefixtures("busy")
def test_texts_and_edges_have_the_contrast_that_they_need_in_both_schemes(
    enter: Enter, page: Page
) -> None:
    page.emulate_media(reduced_motion="reduce")  # no colour is on its way to another
    enter()
    page.locator("#letters a").first.click()
    page.locator("dialog[open]").wait_for()
    grounds = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(CONTRASTS)
        assert len({pair for pair, _, _ in found}) > 5
        assert [it for it in found if it[1] < it[2]] == []
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2


# Of every element with a text of its own, in the main part and in the dialog: its colour on the
# nearest ground that is not transparent; and of each control's edge.
CONTRASTS = """
() => {
  const channels = (color) => color.match(/[0-9.]+/g).map(Number);
  const linear = (it) => (it <= 0.03928 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => [r, g, b].map((it) => linear(it / 255))
    .reduce((sum, it, n) => sum + it * [0.2126, 0.7152, 0.0722][n], 0);
  const ratio = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = (element) => {
    for (let it = element; it; it = it.parentElement) {
      const color = channels(getComputedStyle(it).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  const judge = (color, under, least) =>
    found.push([`${color} on ${under}`, ratio(channels(color), under), least]);
  for (const element of document.querySelectorAll("body *")) {
    const style = getComputedStyle(element);
    if ([...element.childNodes].some((it) => it.nodeType === 3 && it.data.trim())) {
      judge(style.color, ground(element), 4.5);
    }
    if (element.matches("button, input, select")) {
      judge(style.borderTopColor, ground(element.parentElement), 3);
    }
    if (element.matches("rect:not(.hit, .faint)")) {
      judge(style.fill, ground(element.closest("figure")), 3);
    }
  }
  return found;
}
"""


@pytest.mark.usefixtures("busy")
def test_the_policy_lets_nothing_in_from_elsewhere_and_nothing_inline(
    enter: Enter, page: Page, address: str
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    enter()
    assert len(asked) > 10
    assert all(url.startswith(f"{address}/") for url in asked)
    policy = page.request.get(address).headers["content-security-policy"]
    assert "unsafe" not in policy
    assert page.locator("[style], style, script:not([src])").count() == 0


@pytest.mark.chaos_long
@pytest.mark.usefixtures("busy")
def test_every_control_and_region_has_a_name_and_nothing_moves_unasked(
    enter: Enter, page: Page
) -> None:
    page.emulate_media(reduced_motion="reduce")
    enter()
    assert page.evaluate(UNNAMED) == []
    assert page.evaluate(MOVING) == []
    assert page.get_by_role("region", name="Dead letters").is_visible()
    assert page.get_by_role("table", name="Running").is_visible()


UNNAMED = """
[...document.querySelectorAll("button, input, select, section, table, svg, dialog")]
  .filter((it) => !(it.labels?.length || it.ariaLabel || it.textContent.trim()
    || it.getAttribute("aria-labelledby")))
  .map((it) => it.outerHTML)
"""
MOVING = """
[...document.querySelectorAll("*")].map((it) => [it, getComputedStyle(it)])
  .filter(([, style]) => style.transitionDuration !== "0s" || style.animationName !== "none")
  .map(([it]) => it.outerHTML)
"""
