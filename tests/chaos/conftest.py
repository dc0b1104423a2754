"""A root directory for one test, so that no other test's start sweeps it first."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.cluster import leftovers


@pytest.fixture
def private_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root directory of this process and of its children, for the time of the test.

    Not below `tmp_path`, which the unprivileged user of the server may not enter.
    """
    base = Path(tempfile.mkdtemp(prefix="leaseproof-test-"))
    base.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    monkeypatch.setenv("TMPDIR", str(base))
    yield leftovers.root()
    shutil.rmtree(base)
