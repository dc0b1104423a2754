"""What tests of several parts of the harness share."""

import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from chaos.cluster import leftovers
from chaos.cluster.postgres import Postgres
from chaos.hunt.explorer import Stages


@pytest.fixture
def private_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root directory of this process and of its children, for the time of the test: no other
    test's start sweeps it first.

    Not below `tmp_path`, which the unprivileged user of the server may not enter.
    """
    base = Path(tempfile.mkdtemp(prefix="leaseproof-test-"))
    base.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    monkeypatch.setenv("TMPDIR", str(base))
    yield leftovers.root()
    shutil.rmtree(base)


@pytest.fixture
def stages(server: Postgres) -> Iterator[Stages]:
    """Stages of the explorer in databases of their own."""
    made: list[str] = []
    numbers = count(1)

    def create() -> str:
        made.append(f"stages_{id(made)}_{next(numbers)}")
        server.create_database(made[-1])
        return server.dsn(made[-1])

    opened = Stages(create)
    yield opened
    opened.close()
    for name in made:
        server.drop_database(name)
