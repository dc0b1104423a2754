"""The cluster whose parts are processes of this machine."""

from chaos.cluster.postgres import postgres
from chaos.cluster.standby import standby
from chaos.cluster.toxiproxy import toxiproxy

__all__ = ["postgres", "standby", "toxiproxy"]
