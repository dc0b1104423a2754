"""The runs of a directory, newest first, each with its verdict and a link to its report."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from chaos.report.html import text
from chaos.report.text import plain
from chaos.saved import SCENARIO, VERDICTS

REPORT = "report.html"


class Run(NamedTuple):
    """A run as far as its verdicts tell of it; `outcome` is `broken` if it has none."""

    name: str
    scenario: str
    system: str
    seed: str
    began: str
    outcome: str
    why: str
    report: bool


def runs(directory: Path) -> list[Run]:
    """The runs kept in a directory; what is no run is passed over. Raises OSError."""
    found = [
        _run(one)
        for one in sorted(directory.iterdir())
        if one.is_dir() and (one / SCENARIO).exists()
    ]
    return sorted(found, key=lambda run: (run.began, run.name), reverse=True)


def write_index(directory: Path) -> list[Run]:
    """Write `index.html` into the directory and return the runs in it. Raises OSError."""
    found = runs(directory)
    style = files("chaos.report").joinpath("page.css").read_text(encoding="utf-8")
    rows = "".join(_row(run) for run in found)
    counts = ", ".join(
        f"{sum(run.outcome == outcome for run in found)} {outcome}"
        for outcome in dict.fromkeys(run.outcome for run in found)
    )
    (directory / "index.html").write_text(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
        " style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Runs</title>\n<style>{style}</style>\n</head>\n<body>\n<h1>Runs</h1>\n"
        f'<p class="dim">{len(found)} in {text(directory.resolve().name)}'
        f"{': ' if counts else ''}{counts}</p>\n"
        '<div class="wide"><table class="cards"><thead><tr><th scope="col">began</th>'
        '<th scope="col">scenario</th><th scope="col">verdict</th><th scope="col">why</th>'
        '<th scope="col">system</th><th scope="col">seed</th></tr></thead>\n'
        f"<tbody>\n{rows}</tbody></table></div>\n</body>\n</html>\n",
        encoding="utf-8",
    )
    return found


def _run(directory: Path) -> Run:
    try:
        whole = json.loads((directory / VERDICTS).read_text(encoding="utf-8"))
        about, outcome = whole["about"], whole["outcome"]
        told = {key: plain(about.get(key, "")) for key in ("scenario", "system", "seed", "began")}
        why = plain(whole.get("why", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # A run that broke, or was ended before it was judged, is not one to be silent about.
        told = {"scenario": directory.name, "system": "", "seed": "", "began": ""}
        outcome, why = (
            "broken",
            "it has no verdicts that can be read: perhaps it did not come to its end",
        )
    return Run(
        name=directory.name,
        outcome=plain(outcome, 40),
        why=why,
        report=(directory / REPORT).exists(),
        **told,
    )


def _row(run: Run) -> str:
    style = {"broken": "fail"}.get(run.outcome, run.outcome)
    scenario = text(run.scenario)
    if run.report:
        scenario = f'<a href="{quote(run.name)}/{REPORT}">{scenario}</a>'
    return (
        f'<tr><td class="time">{text(run.began)}</td><td>{scenario}</td>'
        f'<td class="{text(style)}">{text(run.outcome)}</td><td>{text(run.why)}</td>'
        f"<td>{text(run.system)}</td><td>{text(run.seed)}</td></tr>\n"
    )
