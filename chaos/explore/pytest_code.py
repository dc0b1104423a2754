"""Writes a schedule down as a pytest function that replays it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from chaos.explore.errors import ExplorerError
from chaos.explore.program import Program, Violation
from chaos.explore.schedule import Schedule, show


def pytest_function(
    program: Program,
    schedule: Schedule,
    violation: Violation,
    mutant: str | None = None,
    story: Sequence[str] = (),
) -> str:
    """The source of a test module with one test: red while the schedule fails, green after.

    Everything in the program must be importable: functions at the top level of a module, or
    functools.partial of them. Raises ExplorerError otherwise. `mutant` names the planted bug of
    `chaos.mutants` that the schedule was found with; `story` tells where it comes from.
    """
    modules: set[str] = set()
    body = [
        *_program(program, modules),
        f"replayed = replay(program, {show(schedule)!r}, strict=False)",
        "assert replayed.violation is None, replayed",
    ]
    if mutant is not None:
        body = [f"with planted(MUTANTS[{mutant!r}]):", *(f"    {line}" for line in body)]
    # A sentence may hold anything that a database or an assertion says.
    comments = [*story, f"{violation.what}: {violation.sentence}"]
    return "\n".join(
        [
            *_imports(modules, program, mutant),
            "",
            "",
            f"def test_{_name(schedule)}() -> None:",
            *(f"    # {' '.join(comment.split())}" for comment in comments),
            *(f"    {line}" for line in body),
            "",
        ]
    )


def _program(program: Program, modules: set[str]) -> Iterator[str]:
    if program.imported:
        yield from f"program = {program.imported.partition(':')[2]}".splitlines()
        return
    yield "program = Program("
    yield f"    setup={_write(program.setup, modules)},"
    yield "    actors={"
    for name, body in program.actors.items():
        yield f"        {name!r}: {_write(body, modules)},"
    yield "    },"
    for field in ("invariant", "at_end", "install", "advance"):
        function = getattr(program, field)
        if function is not None:
            yield f"    {field}={_write(function, modules)},"
    if program.autocommit:
        yield "    autocommit=True,"
    yield ")"


def _imports(modules: set[str], program: Program, mutant: str | None) -> Iterator[str]:
    if "functools" in modules:
        yield from ("from functools import partial", "")
    yield from (f"import {module}" for module in sorted(modules - {"functools"}))
    module, _, expression = program.imported.partition(":")
    if module:
        name = re.split(r"\W", expression, maxsplit=1)[0]
        yield from ("from chaos.explore import replay", f"from {module} import {name}")
    else:
        yield "from chaos.explore import Program, replay"
    if mutant is not None:
        yield "from chaos.mutants import MUTANTS, planted"


def _name(schedule: Schedule) -> str:
    words = {"!!": "_crashes_after", "!": "_crashes", "?": "_reply_lost", "^": "_terminated"}
    text = show(schedule).replace("+", "plus_")
    for sign, word in words.items():
        text = text.replace(sign, word)
    return text.replace(" ", "_") or "from_the_start"


def _write(function: Callable[..., object], modules: set[str]) -> str:
    if isinstance(function, partial):
        modules.add("functools")
        parts = [_write(function.func, modules), *map(repr, function.args)]
        parts += [f"{name}={value!r}" for name, value in function.keywords.items()]
        return f"partial({', '.join(parts)})"
    module = getattr(function, "__module__", None)
    path = getattr(function, "__qualname__", None)
    found: object = sys.modules.get(module or "")
    for name in (path or "<none>").split("."):
        found = getattr(found, name, None)
    if found is not function or module == "__main__":
        raise ExplorerError(
            f"{path or function!r} cannot be imported, so no test can be written: move it to the"
            " top level of a module"
        )
    modules.add(str(module))
    return f"{module}.{path}"
