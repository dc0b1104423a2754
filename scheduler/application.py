"""Finds the application that a command names: the module and the registry in it."""

from __future__ import annotations

import importlib
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path

from scheduler.errors import SchedulerError
from scheduler.kinds import Registry


class ApplicationError(SchedulerError):
    """What was named as `module:attribute` cannot be imported, or is not a registry."""


def load_registry(name: str) -> Registry:
    """The registry at `module:attribute`, from the current directory or what is installed.

    Raises ApplicationError.
    """
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise ApplicationError(f"{name!r} does not name an application as module:attribute")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with redirect_stdout(sys.stderr):  # stdout is for data, whatever the module prints
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the module may raise anything
        if isinstance(error, ModuleNotFoundError) and _is_within(module_name, error.name):
            raise ApplicationError(
                f"there is no module {error.name!r}, looked for in {here} and among the installed"
            ) from error
        raise ApplicationError(
            f"the module {module_name!r} fails to import: {_with_place(error)}"
        ) from error
    found = getattr(module, attribute, None)
    if isinstance(found, Registry):
        return found
    others = [key for key, value in vars(module).items() if isinstance(value, Registry)]
    hint = f"; it has {', '.join(f'{module_name}:{key}' for key in others)}" if others else ""
    what = f"is a {type(found).__name__}" if hasattr(module, attribute) else "does not exist"
    raise ApplicationError(f"{name} should be a scheduler.Registry, but it {what}{hint}")


def _is_within(module: str, package: str | None) -> bool:
    return package is not None and f"{module}.".startswith(f"{package}.")


def _with_place(error: BaseException) -> str:
    """An error of somebody else's code in one line: type, message, and where it was raised."""
    what = " ".join(str(error).split())
    if isinstance(error, SyntaxError):  # the frames are the importer's; the message has the place
        return f"{type(error).__name__}: {what}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {what} ({frame.filename}, line {frame.lineno})"
