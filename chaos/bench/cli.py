"""`chaos bench`: measure claim contention beside the limit; compare two results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import psycopg
import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.table import Table

from chaos.bench import (
    BenchError,
    WrongDrainError,
    contention,
    enqueue,
    growth,
    latency,
    markdown,
    profile,
    schedules,
    startup,
    sustained,
    targets,
    transactional,
)
from chaos.bench.compare import Compared, cautions, compare
from chaos.bench.peers import run as peers
from chaos.bench.peers.installed import MissingError
from chaos.bench.peers.known import KNOWN
from chaos.bench.peers.peer import Peer
from chaos.bench.result import FIGURES, Key, Measurement, Result, ResultError, as_json, load, save
from chaos.bench.setting import DEFAULT, Setting, parse_setting
from chaos.bench.table import number, sentences, table
from chaos.bench.tell import Tell
from chaos.cluster import ClusterError
from chaos.directories import new_directory
from chaos.forkserver import ForkServerError
from chaos.terminal import BROKEN, EXIT_CODES, USAGE, WRONG, end, interrupted, messages, results

MOST_WORKERS = 128  # each has two sessions, and the server has room for 300
MOST_SESSIONS = 280  # of workers whose slots have sessions of their own
WIDE = 200  # how wide a row of the table is

app = typer.Typer(
    no_args_is_help=True,
    help="Measures claiming and finishing tasks, beside what pgbench does with the same SQL.",
)

Workers = Annotated[str, typer.Option(help="Numbers of worker processes, with commas.")]
Batches = Annotated[
    str,
    typer.Option(help="Workers' settings, with commas: SLOTS, SLOTS+PREFETCH, or `default`."),
]
OneSetting = Annotated[str, typer.Option(help="SLOTS, SLOTS+PREFETCH, or `default`.")]
Repeats = Annotated[int, typer.Option(min=1, max=100, help="How often each cell is measured.")]
Only = Annotated[
    list[str] | None, typer.Option(help="Measure this system; may be given again for more.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Out = Annotated[
    Path | None, typer.Option(help="Where the result's directory is made; reports by default.")
]


@app.command("contention")
def contention_command(
    workers: Workers = "1,2,4,8,16,32,64",
    tasks: Annotated[
        int | None,
        typer.Option(
            min=1, help="For every drain; by default 5,000 a claim's size, at most 100,000."
        ),
    ] = None,
    batches: Batches = f"{DEFAULT},1,10,10+90,1+99,1+999",
    repeats: Repeats = 3,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Drain no-op tasks with more and more workers, and with pgbench running the same SQL, with one
    commit a cycle, as a worker has, and with two."""
    plan = contention.Plan(
        _settings(batches), _numbers("--workers", workers, MOST_WORKERS), repeats, tasks
    )
    _measure(lambda tell: contention.run(plan, _command(), tell), as_json, out)


@app.command("transactional")
def transactional_command(
    workers: Workers = "1,2,4,8",
    tasks: Annotated[int, typer.Option(min=1, help="For every drain.")] = 5_000,
    batches: Batches = f"{DEFAULT},1,1+9",
    repeats: Repeats = 3,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Tasks whose effect and completion are one commit, beside pgbench doing the same."""
    settings, counts = _settings(batches), _numbers("--workers", workers, MOST_WORKERS)
    most = counts[-1] * (max(one.slots for one in settings) + 2)
    if most > MOST_SESSIONS:
        end(f"{counts[-1]} workers need {most} sessions, at most {MOST_SESSIONS} will do", USAGE)
    plan = transactional.Plan(settings, counts, tasks, repeats)
    _measure(lambda tell: transactional.run(plan, _command(), tell), as_json, out)


@app.command("growth")
def growth_command(
    pending: Annotated[
        str, typer.Option(help="Numbers of due tasks, with commas; the whole form has 5000000 too.")
    ] = "10000,100000,1000000",
    future: Annotated[
        int, typer.Option(min=0, help="Tasks of high priority that are not due.")
    ] = 1_000_000,
    finished: Annotated[int, typer.Option(min=0, help="Tasks that are over.")] = 1_000_000,
    dead: Annotated[
        int, typer.Option(min=0, help="Dead rows that an old transaction keeps from being removed.")
    ] = 1_000_000,
    batch: Annotated[int, typer.Option(min=1, help="Tasks a claim.")] = 10,
    claims: Annotated[int, typer.Option(min=1, help="In each repeat.")] = 200,
    repeats: Repeats = 3,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """What a claim costs when much is pending, or when much lies in the future or the past."""
    sizes = _numbers("--pending", pending, 10_000_000)
    if batch * claims * repeats > sizes[0]:
        end(f"{repeats} times {claims} claims of {batch} need more than {sizes[0]} tasks", USAGE)
    plan = growth.Plan(sizes, future, finished, dead, batch, claims, repeats)
    _measure(lambda tell: growth.run(plan, _command(), tell), as_json, out)


@app.command("sustained")
def sustained_command(
    setting: OneSetting = DEFAULT,
    workers: Annotated[int, typer.Option(min=1, max=MOST_WORKERS)] = 2,
    tasks: Annotated[
        int, typer.Option(min=1, help="That are due, more than can be done in the time.")
    ] = 4_000_000,
    past: Annotated[
        int, typer.Option(min=1, help="Tasks that are over, and whose dead rows may stand.")
    ] = 1_000_000,
    seconds: Annotated[int, typer.Option(min=2, max=3600, help="Of each drain.")] = 60,
    window: Annotated[int, typer.Option(min=1, help="Seconds of each window.")] = 10,
    repeats: Repeats = 3,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Whether a drain of a minute decays, also where an old transaction keeps dead rows."""
    if seconds % window or seconds == window:
        end(f"{seconds} s must be two or more windows of {window} s", USAGE)
    one = _settings(setting)[0]
    plan = sustained.Plan(one, workers, tasks, past, seconds, window, repeats)
    _measure(lambda tell: sustained.run(plan, _command(), tell), as_json, out)


@app.command("schedules")
def schedules_command(
    schedules_: Annotated[
        str, typer.Option("--schedules", help="Numbers of schedules, with commas.")
    ] = "10,1000,10000",
    batch: Annotated[int, typer.Option(min=1, help="Tasks a claim.")] = 10,
    claims: Annotated[int, typer.Option(min=1, help="In each repeat.")] = 200,
    repeats: Repeats = 3,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """What declaring and planning cost with many schedules, and a claim beside them."""
    sizes = _numbers("--schedules", schedules_, 100_000)
    plan = schedules.Plan(sizes, batch, claims, repeats)
    _measure(lambda tell: schedules.run(plan, _command(), tell), as_json, out)


@app.command("startup")
def startup_command(
    workers: Workers = "1,10,50",
    repeats: Repeats = 3,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """How long a fleet takes from its start until every worker holds a task."""
    plan = startup.Plan(_numbers("--workers", workers, MOST_WORKERS), repeats)
    _measure(lambda tell: startup.run(plan, _command(), tell), as_json, out)


@app.command("scrape")
def scrape_command(
    rows: Annotated[
        int, typer.Option(min=1, max=100_000_000, help="Tasks in the table.")
    ] = 5_000_000,
) -> None:
    """What it costs the server to count a large queue for its metrics."""
    from chaos.bench import scrape  # what it needs comes with the extra `http`

    with _ended_well():
        for one in scrape.run(rows):
            results(WIDE).print(
                f"{one.finished:,} finished, {one.waiting:,} waiting:"
                f" {one.seconds:.3f} s a scrape, {one.slowest:.3f} s the slowest,"
                f" {one.processor:.2f} s of the server's processor"
            )


@app.command("enqueue")
def enqueue_command(
    clients: Annotated[str, typer.Option(help="Numbers of clients, with commas.")] = "1,8",
    batches: Annotated[str, typer.Option(help="Tasks a call, with commas.")] = "1,1000",
    singles: Annotated[int, typer.Option(min=10, help="Tasks, where a call has one.")] = 4_000,
    bulk: Annotated[int, typer.Option(min=10, help="Tasks, where a call has more.")] = 100_000,
    repeats: Repeats = 3,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """How fast tasks get in, one a commit and in bulk, beside pgbench calling the same function."""
    counts, sizes = _numbers("--clients", clients, 100), _numbers("--batches", batches, 5_000)
    # The rate is taken between the first call and the last: there must be two.
    if any((singles if size == 1 else bulk) < 2 * size for size in sizes):
        end("there must be at least two calls: give more --singles or --bulk", USAGE)
    plan = enqueue.Plan(counts, sizes, singles, bulk, repeats)
    _measure(lambda tell: enqueue.run(plan, _command(), tell), as_json, out)


@app.command("latency")
def latency_command(
    workers: Workers = "1,4",
    rate: Annotated[float, typer.Option(min=0.1, max=1000, help="Tasks a second.")] = 50.0,
    seconds: Annotated[float, typer.Option(min=0.1, help="For how long, each time.")] = 15.0,
    only: Only = None,
    repeats: Repeats = 3,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """How long after its enqueue a task starts on an idle fleet, ours and other queues'."""
    counts = _numbers("--workers", workers, MOST_WORKERS)
    plan = latency.Plan(_systems(only), counts, rate, seconds, repeats, named=bool(only))
    _measure(lambda tell: latency.run(plan, _command(), tell), as_json, out)


@app.command("peers")
def peers_command(
    workers: Workers = "1,2,4",
    tasks: Annotated[
        int, typer.Option(min=1, help="For every drain; fewer where the defaults wait for seconds.")
    ] = 20_000,
    only: Only = None,
    repeats: Repeats = 3,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Ours beside other PostgreSQL queues, each as it comes and at its best."""
    counts = _numbers("--workers", workers, MOST_WORKERS)
    plan = peers.Plan(_systems(only), counts, tasks, repeats, named=bool(only))
    _measure(lambda tell: peers.run(plan, _command(), tell), as_json, out)


@app.command("profile")
def profile_command(
    setting: OneSetting = DEFAULT,
    workers: Annotated[int, typer.Option(min=1, max=MOST_WORKERS)] = 1,
    tasks: Annotated[int, typer.Option(min=1)] = 10_000,
    repeats: Repeats = 3,
    options: Annotated[
        str, typer.Option(help="For the workers' sessions, such as '-c plan_cache_mode=auto'.")
    ] = "",
    before: Annotated[str, typer.Option(help="SQL to run before each drain.")] = "",
) -> None:
    """Where a drain spends its time, statement by statement; and what a change would bring."""
    plan = profile.Plan(_settings(setting)[0], workers, tasks, repeats, options, before)
    with _ended_well():
        with _bar() as tell:
            profiles = profile.run(plan, tell)
        results(WIDE).print(_statements(profiles, tasks))
        for who, figure in (("workers", "worker_cpu"), ("server", "server_cpu")):
            middle, low, high = profile.per_task(profiles, figure)
            results(WIDE).print(f"CPU of {who}: {middle:.0f} us a task ({low:.0f} to {high:.0f})")


def _statements(profiles: list[profile.Profile], tasks: int) -> Table:
    rows = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in ("statement", "calls", "rows", "exec ms", "plans", "plan ms", "blocks"):
        rows.add_column(heading, justify="left" if heading == "statement" else "right")
    for heading in ("WAL records", "WAL bytes"):
        rows.add_column(f"{heading}\n[dim]a task[/]", justify="right")
    for one in profile.statements(profiles)[:6]:
        rows.add_row(
            one.what[:60],
            number(one.calls),
            number(one.rows),
            f"{one.exec_ms / one.calls:.3f}",
            number(one.plans),
            f"{one.plan_ms / one.calls:.3f}",
            number(one.blocks / one.calls),
            f"{one.wal_records / tasks:.1f}",
            number(one.wal_bytes / tasks),
        )
    return rows


@app.command("targets")
def targets_command(
    paths: Annotated[list[Path], typer.Argument(metavar="RESULT.json...")],
    out: Annotated[Path | None, typer.Option(help="A Markdown file that gets them, too.")] = None,
) -> None:
    """Targets, what these results say of them, and which results are missing.

    Ends with 1 if a target is missed, otherwise with 3 if a result is missing.
    """
    try:
        loaded = [load(path) for path in paths]
    except ResultError as error:
        end(str(error), USAGE)
    found = targets.rows(loaded)
    shown = _targets(found)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(markdown.targets_page(_command(), shown, loaded))
    console = results(WIDE)
    console.print(shown)
    for path, result in zip(paths, loaded, strict=True):
        load_before = result.machine.get("load_before", "unknown")
        repeats = max(one.repeat for one in result.measurements)
        console.print(f"{path}: {result.began}, {repeats} repeats, load {load_before} before it")
        for note in result.notes:
            console.print(f"  note: {note}", style="yellow", markup=False)
    for command in targets.missing(loaded):
        console.print(f"missing: {command}", style="yellow", markup=False)
    verdicts = {row.verdict for row in found}
    if targets.NOT_HELD in verdicts:
        raise typer.Exit(EXIT_CODES["fail"])
    if targets.MISSING in verdicts:
        raise typer.Exit(EXIT_CODES["inconclusive"])


def _targets(found: list[targets.Row]) -> Table:
    rows = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in ("figure", "as a multiple of", "must be", "measured", "verdict"):
        rows.add_column(heading)
    styles = {targets.HELD: "green", targets.NOT_HELD: "red"}
    for row in found:
        rows.add_row(*row, style=styles.get(row.verdict, "dim"))
    return rows


@app.command("compare")
def compare_command(
    first: Annotated[Path, typer.Argument(metavar="A.json")],
    second: Annotated[Path, typer.Argument(metavar="B.json")],
) -> None:
    """Tell whether two results differ, cell by cell and as a whole: B as a multiple of A."""
    try:
        a, b = load(first), load(second)
    except ResultError as error:
        end(str(error), USAGE)
    if (a.bench, a.axis) != (b.bench, b.axis):
        end(f"a result of {a.bench} cannot be compared with one of {b.bench}", USAGE)
    compared = compare(a, b)
    out = results(WIDE)
    out.print(_compared(compared, a.axis))
    for caution in cautions(a, b, compared):
        out.print(f"note: {caution}", style="yellow", markup=False)


def _compared(compared: list[Compared], axis: str) -> Table:
    rows = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in ("figure", "cell", "A", "B", "B / A", "p", "verdict"):
        rows.add_column(heading, justify="right" if heading in ("A", "B", "p") else "left")
    for one in compared:
        cell = "all cells together"
        if one.key is not None:
            cell = f"{one.key.system} {one.key.setting} at {one.key.at} {axis}"
        rows.add_row(
            f"{one.figure.replace('_', ' ')} ({FIGURES[one.figure].unit})",
            cell,
            "" if one.first is None else number(one.first.median),
            "" if one.second is None else number(one.second.median),
            _ratio(one),
            f"{one.p:.2g}",
            one.verdict,
            style="bold" if one.key is None else None,
        )
    return rows


def _ratio(one: Compared) -> str:
    if one.ratio is None:
        return ""
    estimate, low, high, confidence = one.ratio
    if one.key is None:
        return f"{estimate:.2f} (mean)"
    if confidence <= 0:
        return f"{estimate:.2f}"
    return f"{estimate:.2f} ({low:.2f} to {high:.2f} at {confidence:.0%})"


@contextmanager
def _ended_well() -> Iterator[None]:
    """Turn what may go wrong into a sentence and an exit code."""
    try:
        yield
    except WrongDrainError as error:
        end(str(error), WRONG)
    except MissingError as error:
        end(str(error), USAGE)
    except (BenchError, ClusterError, ForkServerError, psycopg.Error, OSError) as error:
        end(f"the bench could not do its work: {error}", BROKEN)
    except KeyboardInterrupt:
        interrupted()


def _measure(run: Callable[[Tell], Result], as_json_: bool, out: Path | None) -> None:
    """Run a bench with a live line of progress, then keep and show what it found."""
    with _ended_well():
        page = _page()  # or minutes would be measured for nothing
        (out or Path("reports")).mkdir(parents=True, exist_ok=True)
        with _bar() as tell:
            result = run(tell)
        _show(result, page, as_json_, out)


def _news(last: Measurement | None) -> str:
    """The last measurement's first figure."""
    if last is None:
        return ""
    name, value = next(iter(last.figures.items()))
    return f"last: {number(value)} {FIGURES[name].unit}"


@contextmanager
def _bar() -> Iterator[Tell]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=messages, transient=True) as bar:
        line = bar.add_task("enqueue the tasks", total=None, news="")

        def tell(done: int, total: int, key: Key, last: Measurement | None) -> None:
            now = f"{key.system} {key.setting} at {key.at:,}"
            bar.update(line, description=now, completed=done, total=total, news=_news(last))

        yield tell


def _show(result: Result, page: Callable[[Result], str], as_json_: bool, out: Path | None) -> None:
    """Keep the result and its page in a directory of its own, and print it."""
    directory = new_directory(out or Path("reports"), f"bench-{result.bench}")
    save(result, directory / "result.json")
    (directory / "page.html").write_text(page(result))
    (directory / "page.md").write_text(markdown.page(result))
    if as_json_:
        sys.stdout.write(as_json(result) + "\n")
        return
    console = results(WIDE)
    console.print(table(result))
    for sentence in sentences(result):
        console.print(sentence, markup=False)
    console.print(f"result: {directory / 'result.json'}, page: {directory / 'page.html'}")


def _page() -> Callable[[Result], str]:
    """What writes a result's page. Raises BenchError if it cannot draw."""
    try:
        from chaos.bench.page import page  # matplotlib takes a second and is an extra of its own
    except ImportError as error:
        raise BenchError("the page needs matplotlib: pip install 'leaseproof[bench]'") from error
    return page


def _systems(only: list[str] | None) -> tuple[Peer, ...]:
    """Those that were asked for, or all."""
    known = {peer.name: peer for peer in KNOWN}
    for name in only or ():
        if name not in known:
            end(f"{name!r} is no system that is measured; there are {', '.join(known)}", USAGE)
    return tuple(peer for peer in KNOWN if not only or peer.name in only)


def _settings(text: str) -> tuple[Setting, ...]:
    try:
        return tuple(dict.fromkeys(parse_setting(each) for each in text.split(",")))
    except ValueError as error:
        end(str(error), USAGE)


def _numbers(option: str, text: str, most: int) -> tuple[int, ...]:
    counts = text.split(",")
    if not all(each.isdecimal() and 1 <= int(each) <= most for each in counts):
        end(f"{option} must be numbers from 1 to {most} with commas, not {text!r}", USAGE)
    return tuple(sorted({int(each) for each in counts}))


def _command() -> str:
    return shlex.join(["chaos", *sys.argv[1:]])
