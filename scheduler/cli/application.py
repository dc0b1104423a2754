"""Finds the application that a command names: the module and the registry in it."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from scheduler.errors import SchedulerError
from scheduler.kinds import Registry

LONGEST_WHAT = 1_000  # characters of an error of the application's


class ApplicationError(SchedulerError):
    """What was named as `module:attribute` cannot be imported, or is not a registry."""


def load_registry(name: str) -> Registry:
    """The registry at `module:attribute`, from the current directory or what is installed.

    Raises ApplicationError.
    """
    found, names = _load(name, "an application")
    if isinstance(found, Registry):
        return found
    module_name, _, attribute = name.partition(":")
    others = [key for key, value in names.items() if isinstance(value, Registry)]
    hint = f"; it has {', '.join(f'{module_name}:{key}' for key in others)}" if others else ""
    what = f"is a {type(found).__name__}" if attribute in names else "does not exist"
    raise ApplicationError(f"{name} should be a scheduler.Registry, but it {what}{hint}")


def load_function(name: str) -> Callable[..., Any]:
    """The plain function at `module:attribute`. Raises ApplicationError."""
    found, _ = _load(name, "a function")
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise ApplicationError(f"{name} should be a plain function, not {type(found).__name__}")
    return found


def _load(name: str, what: str) -> tuple[object, dict[str, object]]:
    """What is at `module:attribute`, None if nothing is, and all that the module has."""
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise ApplicationError(f"{name!r} does not name {what} as module:attribute")
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        raise ApplicationError(
            "the current directory does not exist any more: change to another"
        ) from None
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with redirect_stdout(sys.stderr):  # stdout is for data, whatever the module prints
            module = importlib.import_module(module_name)
            found = getattr(module, attribute, None)
            names = dict(getattr(module, "__dict__", {}))  # it may have put another object there
            return found, names
    except (Exception, SystemExit) as error:  # the module may raise anything
        if isinstance(error, ModuleNotFoundError) and _is_within(module_name, error.name):
            raise ApplicationError(
                f"there is no module {error.name!r}, looked for in {here} and among the installed"
            ) from error
        raise ApplicationError(
            f"the module {module_name!r} fails to import: {_with_place(error)}"
        ) from error


def _is_within(module: str, package: str | None) -> bool:
    return package is not None and f"{module}.".startswith(f"{package}.")


def _with_place(error: BaseException) -> str:
    """An error of somebody else's code in one line: type, message, and where it was raised."""
    try:
        what = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an exception's own methods may raise anything
        what = "it cannot be shown"
    if len(what) > LONGEST_WHAT:
        what = f"{what[:LONGEST_WHAT]}..."
    if isinstance(error, SyntaxError):  # the frames are the importer's; the message has the place
        return f"{type(error).__name__}: {what}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {what} ({frame.filename}, line {frame.lineno})"
