"""Where the parts of a run come from."""

import sys

import pytest

import chaos.cluster
from chaos.cluster import ClusterError, process
from chaos.cluster.server import cluster


def test_without_their_package_containers_say_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "chaos.cluster.containers", raising=False)
    monkeypatch.delattr(chaos.cluster, "containers", raising=False)
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(ClusterError, match=r"'docker'.*pip install 'leaseproof\[containers\]'"):
        cluster("container")
    assert cluster("process") is process
