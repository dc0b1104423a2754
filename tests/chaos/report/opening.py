"""How large a report is, and how long a browser takes to show it.

    python -m tests.chaos.report.opening [ATTEMPTS...]      # by default 100 and 10,000

prints both for made-up runs. A report is shown when Bokeh says that all its figures are drawn; the
page notes when that was. The time that the page's main thread worked is what a report costs; the
time that passed has in it whatever else the machine was doing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from chaos.report import write
from tests.browser import find_chromium
from tests.chaos.report.made_up import busy
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

_DRAWN = "document.documentElement.dataset.drawn"


class Opened(NamedTuple):
    """Seconds from the start of the navigation until all was drawn, and those worked in them."""

    passed: float
    worked: float


def opened(page: Page, report: Path) -> Opened:
    """Open a report from its file, and wait until it is drawn."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(report.as_uri(), timeout=60_000)
    # Not `wait_for_function`: it polls by eval, which the page's policy does not let anybody do.
    passed = wait_for(lambda: page.evaluate(_DRAWN), "all figures", seconds=60)
    figures = session.send("Performance.getMetrics")["metrics"]
    worked = next(one["value"] for one in figures if one["name"] == "TaskDuration")
    return Opened(float(passed) / 1000, worked)


def main() -> None:
    """Print one line a size: the least of five, since nothing makes a machine faster than it is."""
    from playwright.sync_api import sync_playwright

    counts = [int(one.replace(",", "")) for one in sys.argv[1:]] or [100, 10_000]
    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with TemporaryDirectory() as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=flags)
        for count in counts:
            report = write(busy(count), (), Path(place))
            told = [opened(browser.new_page(), report) for _ in range(5)]
            sys.stdout.write(
                f"{count:,} attempts: {report.stat().st_size / 1e6:.1f} MB, shown after"
                f" {min(one.passed for one in told):.2f} s,"
                f" {min(one.worked for one in told):.2f} s of work\n"
            )
        browser.close()


if __name__ == "__main__":
    main()
