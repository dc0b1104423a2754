"""The real parts a run needs: PostgreSQL servers and Toxiproxy, owned from start to removal."""


class ClusterError(Exception):
    """A part could not be found, started or driven. The message says what to do about it."""
