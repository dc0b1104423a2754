"""Reports in a real browser: nothing is loaded, nothing is injected, everything is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chaos.invariants.judge import judge
from chaos.report import write
from tests.chaos.report.made_up import busy, hostile, overwritten
from tests.chaos.report.opening import opened
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow
FIGURES = "Bokeh.documents[0].roots()"


@pytest.fixture
def asked(page: Page) -> Iterator[list[str]]:
    """What the page asked for, beyond its own file. All of it is refused."""
    urls: list[str] = []
    first: list[str] = []

    def refuse(route: object, request: object) -> None:
        url = request.url  # type: ignore[attr-defined] # typed by Playwright, not imported here
        if not first and url.startswith("file:"):
            first.append(url)
            route.continue_()  # type: ignore[attr-defined] # as above
        else:
            urls.append(url)
            route.abort()  # type: ignore[attr-defined] # as above

    page.route("**/*", refuse)
    yield urls
    assert urls == []


def test_a_report_is_drawn_from_its_file_and_loads_nothing(
    page: Page, asked: list[str], tmp_path: Path
) -> None:
    history = overwritten()
    opened(page, write(history, judge(history), tmp_path))
    names = page.evaluate(f"{FIGURES}.map((one) => one.name)")
    assert set(names) >= {"story-0", "lanes", "waits", "throughput", "spread-0", "spread-2"}
    for name in names:
        box = page.locator(f"#{name} canvas").first.bounding_box()
        assert box is not None, name
        assert box["height"] > 50, name

    page.get_by_role("link", name="Show it among all attempts").click()
    shown = page.locator("#shown")
    wait_for(lambda: shown.text_content() == "2 of 2 attempts", "the filter")
    assert page.get_by_label("Task", exact=True).input_value() == "7"

    ink = f"{FIGURES}[0].below[0].major_label_text_color"
    assert page.evaluate(ink) == "#24292f"
    page.emulate_media(color_scheme="dark")
    wait_for(lambda: page.evaluate(ink) == "#e6edf3", "the dark page")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(ink) == "#24292f"
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 375, "height": 800})
    width = "document.documentElement.scrollWidth"
    wait_for(lambda: page.evaluate(width) == 375, "the narrow page")


def test_hostile_text_is_shown_and_does_nothing(
    page: Page, asked: list[str], tmp_path: Path
) -> None:
    page.add_init_script("window.hostile = () => { window.struck = true; }")
    history = hostile()
    opened(page, write(history, judge(history), tmp_path))
    page.locator("#lanes").scroll_into_view_if_needed()
    box = page.locator("#lanes canvas").first.bounding_box()
    assert box is not None
    # Its one attempt fills the lane: whoever hovers over the middle is told all of it.
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2)
    page.get_by_text("its holder wrote failed").first.wait_for()
    assert page.get_by_text("hostile()").count() > 5
    assert page.evaluate("window.struck") is None
    assert page.locator("script").count() == 3
    assert page.locator("img").count() == 0


def test_attempts_are_filtered_by_task_and_worker_and_zoomed_to(
    page: Page, asked: list[str], tmp_path: Path
) -> None:
    opened(page, write(busy(200), (), tmp_path))
    width = "(() => { const range = Bokeh.documents[0].get_model_by_name('time');"
    width += " return range.end - range.start; })()"
    whole = page.evaluate(width)
    page.get_by_label("Task", exact=True).fill("42")
    assert page.locator("#shown").text_content() == "1 of 200 attempts"
    page.get_by_role("button", name="Zoom to these").click()
    assert page.evaluate(width) < whole / 2
    page.get_by_role("button", name="Whole run").click()
    assert page.evaluate(width) == whole
    page.get_by_label("Task", exact=True).fill("")
    page.get_by_label("Worker", exact=True).select_option("w3")
    assert page.locator("#shown").text_content() == "25 of 200 attempts"
    page.get_by_label("Worker", exact=True).select_option("w3.1")
    assert page.locator("#shown").text_content() == "6 of 200 attempts"
    shown = f"{FIGURES}.flatMap((one) => one.renderers).filter((one) => one.name === 'faults')"
    page.get_by_label("faults").uncheck()
    assert page.evaluate(f"{shown}.every((one) => !one.visible)")


@pytest.mark.chaos_long
def test_ten_thousand_attempts_cost_little_more_to_open_than_a_hundred(
    page: Page, tmp_path: Path
) -> None:
    (tmp_path / "few").mkdir()
    few = opened(page, write(busy(100), (), tmp_path / "few"))
    many = opened(page, write(busy(10_000), (), tmp_path))
    # Both in work done, which other processes do not add to. Half as much again was measured.
    assert many.worked < few.worked * 4
