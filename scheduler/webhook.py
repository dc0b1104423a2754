"""A webhook for dead letters: one signed POST a death, bounded in time, that follows no
redirect."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import re
import socket
import ssl
import time
from contextlib import closing
from importlib.metadata import version
from threading import Timer
from urllib.parse import SplitResult, urlsplit

from scheduler.dead_letter_hooks import Death
from scheduler.dial import dial, is_loopback
from scheduler.secret_references import is_reference, read
from scheduler.wire import Wire

SECONDS = 10.0  # for a whole request, from the look-up of the name to the answer's headers
SIGNATURE = "Leaseproof-Signature"

_OF_ANOTHER = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_URL = re.compile(r"https?://[\x21-\x7e]+")


class DeliveryError(Exception):
    """Nobody has taken the message. The text says why, and nothing of the URL, which may be a
    secret itself."""


class Webhook:
    """Where to send messages, and how they are signed.

    secret: a reference (`env:NAME` or `file:/path`), read anew for each message, so that it can be
    changed under a running deliverer. Raises ValueError for a URL or secret that cannot be used.
    """

    def __init__(self, url: str, secret: str, seconds: float = SECONDS) -> None:
        self._parts = _checked(url)
        self._secret = secret
        self._seconds = seconds
        self._context = ssl.create_default_context()
        self._key()

    @property
    def in_clear(self) -> bool:
        """Whether messages go over a network that others may read."""
        return self._parts.scheme == "http" and not is_loopback(self._parts.hostname or "")

    def __call__(self, death: Death) -> None:
        """Send the message. Raises DeliveryError unless a 2xx answers it in time."""
        body = death.message()
        try:
            signature = sign(self._key(), body, int(time.time()))
        except ValueError as error:
            raise DeliveryError(str(error)) from None
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": death.key,
            SIGNATURE: signature,
            "User-Agent": f"leaseproof/{version('leaseproof')}",
        }
        parts = self._parts
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        late = f"no answer within {self._seconds:g} s"
        why, status = "", 0
        with closing(self._connection()) as connection, closing(_Limit(self._seconds)) as limit:
            try:
                self._connect(connection, limit)
                connection.request("POST", target, body, headers)
                status = connection.getresponse().status
            except TimeoutError:
                why = late
            except (OSError, http.client.HTTPException) as error:
                why = _said(error)
            # Also without an error: a connection that was shut looks like headers that end.
            if limit.over:
                why = late
        if why:
            raise DeliveryError(why)
        if not 200 <= status < 300:
            told = "; redirects are not followed" if 300 <= status < 400 else ""
            raise DeliveryError(f"answered with status {status}{told}")

    def _key(self) -> bytes:
        if not is_reference(self._secret):  # and is not repeated: it may be the secret itself
            raise ValueError("a webhook's secret is a reference, env:NAME or file:/absolute/path")
        try:
            return read(self._secret).encode()
        except OSError as error:
            why = error.strerror
        except ValueError as error:
            why = str(error)
        # Without its context, whose text may have part of the value.
        raise ValueError(f"the secret {self._secret} cannot be had: {why}")

    def _connection(self) -> http.client.HTTPConnection:
        in_clear = self._parts.scheme == "http"
        # Always with a port: without one, http.client looks for it in an IPv6 address.
        host, port = self._parts.hostname or "", self._parts.port or (80 if in_clear else 443)
        if in_clear:
            return http.client.HTTPConnection(host, port, timeout=self._seconds)
        return http.client.HTTPSConnection(host, port, timeout=self._seconds, context=self._context)

    def _connect(self, connection: http.client.HTTPConnection, limit: _Limit) -> None:
        """In place of the connection's own `connect`, which gives all the time to each address. A
        message whose time went by meanwhile is not sent: raises TimeoutError."""
        host = self._parts.hostname or ""
        connection.sock = dial(host, connection.port, self._seconds)
        connection.sock.settimeout(self._seconds)
        limit.guard(connection.sock)
        if self._parts.scheme == "https":
            # The handshake by itself, when there is already something to shut.
            connection.sock = secured = self._context.wrap_socket(
                connection.sock, server_hostname=host, do_handshake_on_connect=False
            )
            secured.do_handshake()
            limit.check()


def sign(secret: bytes, body: bytes, at: int) -> str:
    """The header of a message: when it was signed, and the HMAC-SHA256 of that and the body, so
    that neither can be changed and an old message not be passed off as new."""
    digest = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


class _Limit:
    """Shuts a socket once its time is over: a socket's own timeout begins again with each byte, so
    a peer that sends one now and then would hold us for ever."""

    def __init__(self, seconds: float) -> None:
        self.over = False
        self._wire: Wire | None = None
        self._timer = Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def guard(self, connection: socket.socket) -> None:
        """Shut this socket then. Raises TimeoutError if the time is over already."""
        self._wire = Wire(connection.fileno())
        self.check()  # after that: whoever says that it is over looks for a socket afterwards

    def check(self) -> None:
        """Raise TimeoutError if the time is over."""
        if self.over:
            raise TimeoutError("timed out")

    def close(self) -> None:
        """Shut nothing any more."""
        self._timer.cancel()
        if self._wire is not None:
            self._wire.close()

    def _end(self) -> None:
        self.over = True
        if self._wire is not None:
            self._wire.shut()


def _checked(url: str) -> SplitResult:
    mistake = "the URL of a webhook is of the form https://host/path, without user or fragment"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(mistake) from None
    if not _URL.fullmatch(url) or not parts.hostname or "@" in parts.netloc or parts.fragment:
        raise ValueError(mistake)
    if port == 0:
        raise ValueError(mistake)
    return parts


def _said(error: Exception) -> str:
    name = type(error).__name__
    if isinstance(error, http.client.HTTPException):
        return name  # its text is the peer's, who may repeat the URL
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _OF_ANOTHER:
        return f"{name}: the certificate is another host's"  # its text would name ours
    return f"{name}: {getattr(error, 'strerror', None) or error}"
