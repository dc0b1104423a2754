"""Loopback ports that stay ours while the server behind them is down."""

import socket
import sys


class Reservation:
    """A free port of 127.0.0.1, kept from everybody but the server that is told its number.

    On Linux the socket stays bound, without listening, for the life of the reservation. A server
    that sets SO_REUSEADDR (PostgreSQL and Go's servers do) can bind beside it, because neither of
    the two listens at that moment. Nobody else gets the port: `bind(0)` and the kernel's choice of
    a source port for `connect` both pass over a port that is explicitly bound. Without this, a
    crashed server's port can be taken before its restart by any outgoing connection, even by a
    client's own attempt to reconnect (a TCP connection to itself). While only the reservation is
    bound, clients are refused, as they should be.

    Elsewhere SO_REUSEADDR does not allow the second bind, so the socket is closed at once and the
    port is only likely to be free.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self.close()

    def close(self) -> None:
        self._socket.close()
