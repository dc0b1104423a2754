"""The webhook: signed, bounded in time, and content with nothing but a 2xx."""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from scheduler.dead_letter_hooks import Death
from scheduler.dial import dial
from scheduler.webhook import DeliveryError, Webhook, sign

ROOT = Path(__file__).parents[2]
SECRET = "s3cret-of-the-hook"
AT = datetime(2026, 11, 30, 9, tzinfo=UTC)
DEATH = Death(17, 4711, 3, "mail", '{"n": 1}', 3, "no é", AT, AT)

Verify = Callable[..., bool]


class Received:
    """What a receiver was sent, and what it is to answer."""

    def __init__(self) -> None:
        self.status = 204
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, dict[str, str], bytes]] = []


@contextmanager
def receiver() -> Iterator[tuple[str, Received]]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.requests.append((self.path, dict(self.headers), body))
            self.send_response(received.status)
            for name, value in received.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def do_GET(self) -> None:
            received.requests.append(("GET", {}, b""))

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    return "env:HOOK_SECRET"


@pytest.fixture
def verify() -> Verify:
    """The receiver's check as docs/operations.md has it."""
    page = (ROOT / "docs" / "operations.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    found: Verify = names["verify"]
    return found


def test_a_message_is_signed_and_has_its_key(secret: str, verify: Verify) -> None:
    with receiver() as (address, received):
        Webhook(f"{address}/hook?token=x", secret)(DEATH)
    [(path, headers, body)] = received.requests
    assert path == "/hook?token=x"
    assert headers["Content-Type"] == "application/json"
    assert headers["Idempotency-Key"] == "17-4711-3"
    signature = headers["Leaseproof-Signature"]
    assert verify(SECRET.encode(), signature, body)
    assert not verify(SECRET.encode(), signature, body + b" ")
    assert not verify(b"another", signature, body)
    at = int(re.findall(r"t=(\d+)", signature)[0])
    assert not verify(SECRET.encode(), signature.replace(f"t={at}", f"t={at + 1}"), body)
    old = sign(SECRET.encode(), body, int(time.time()) - 3600)
    assert not verify(SECRET.encode(), old, body)
    assert not verify(SECRET.encode(), "nonsense", body)


def test_a_message_has_the_fields_that_the_page_shows(secret: str) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    [shown] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    sent = json.loads(DEATH.message())
    assert list(sent) == list(json.loads(shown))
    assert (sent["payload"], sent["last_error"]) == ({"n": 1}, "no é")


def test_a_secret_can_be_changed_while_it_is_in_use(
    secret: str, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as (address, received):
        webhook = Webhook(address, secret)
        monkeypatch.setenv("HOOK_SECRET", "the next one")
        webhook(DEATH)
        monkeypatch.delenv("HOOK_SECRET")
        with pytest.raises(DeliveryError, match="the variable is not set"):
            webhook(DEATH)
    [(path, headers, body)] = received.requests
    assert path == "/"
    assert verify(b"the next one", headers["Leaseproof-Signature"], body)


@pytest.mark.parametrize("status", [199, 300, 301, 302, 307, 400, 410, 429, 500, 503])
def test_anything_but_a_2xx_is_a_failure_and_no_redirect_is_followed(
    secret: str, status: int
) -> None:
    with receiver() as (address, received):
        received.status = status
        received.headers = {"Location": f"{address}/elsewhere"}
        with pytest.raises(DeliveryError, match=r"answered with status|BadStatusLine|Remote"):
            Webhook(address, secret)(DEATH)
    assert len(received.requests) == 1


def test_a_receiver_that_is_not_there_is_a_failure_that_names_no_url(secret: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(DeliveryError) as told:
        Webhook(f"http://127.0.0.1:{port}/secret-path", secret)(DEATH)
    assert str(told.value) == "ConnectionRefusedError: Connection refused"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n"], ids=["silent", "dripping"])
def test_a_receiver_has_so_long_for_everything(secret: str, answer: bytes) -> None:
    """Also one that sends a byte now and then, with which a socket's timeout begins again."""
    with dripping(answer) as port:
        webhook = Webhook(f"http://127.0.0.1:{port}", secret, seconds=0.3)
        with pytest.raises(DeliveryError, match=r"no answer within 0\.3 s"):
            webhook(DEATH)


def test_so_long_for_the_handshake_too(secret: str) -> None:
    # The head of a TLS record whose rest never comes.
    with dripping(b"\x16\x03\x03\x40\x00") as port:
        webhook = Webhook(f"https://127.0.0.1:{port}", secret, seconds=0.3)
        with pytest.raises(DeliveryError, match=r"no answer within 0\.3 s"):
            webhook(DEATH)


@contextmanager
def dripping(answer: bytes) -> Iterator[int]:
    """The port of a server that answers so, and a bit more each moment if it is anything."""
    over = Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(answer)
                while not over.wait(0.05):
                    if answer:
                        try:
                            connection.sendall(b"X: y\r\n")
                        except OSError:
                            return

        thread = Thread(target=drip)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            thread.join()


def test_what_is_no_http_is_a_failure(secret: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def babble() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"\0\xff not http\r\n\r\n")

        thread = Thread(target=babble)
        thread.start()
        with pytest.raises(DeliveryError, match="BadStatusLine"):
            Webhook(f"http://127.0.0.1:{server.getsockname()[1]}", secret)(DEATH)
        thread.join()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/hook",
        "file:///etc/passwd",
        "https://user:password@example.com/",
        "https:///path",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com/#part",
        "https://example.com/\r\nX: y",
        "https://exämple.com/",
    ],
)
def test_what_is_no_url_of_a_webhook_is_refused(secret: str, url: str) -> None:
    with pytest.raises(ValueError, match="the URL of a webhook is of the form"):
        Webhook(url, secret)


@pytest.mark.parametrize(
    ("url", "in_clear"),
    [
        ("https://example.com", False),
        ("http://127.0.0.1:80", False),
        ("http://[::1]/", False),
        ("http://localhost/", False),
        ("http://example.com", True),
        ("http://10.0.0.1", True),
    ],
)
def test_a_message_that_others_could_read_is_known(secret: str, url: str, in_clear: bool) -> None:
    assert Webhook(url, secret).in_clear == in_clear


def test_a_message_whose_time_went_by_while_it_connected_is_not_sent(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(host: str, port: int, seconds: float) -> socket.socket:
        connection = dial(host, port, 30)
        assert not Event().wait(seconds + 0.2)
        return connection

    monkeypatch.setattr("scheduler.webhook.dial", slowly)
    late = pytest.raises(DeliveryError, match=r"no answer within 0\.1 s")
    with receiver() as (address, received), late:
        Webhook(address, secret, seconds=0.1)(DEATH)
    assert received.requests == []


def test_what_a_peer_says_instead_of_http_is_not_repeated(secret: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(peer.recv(65_536))

        with ThreadPoolExecutor(1) as thread:
            thread.submit(echo)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/services/WHO-KNOWS-THIS-MAY-POST"
            with pytest.raises(DeliveryError) as failed:
                Webhook(url, secret)(DEATH)
    assert str(failed.value) == "BadStatusLine"


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("https://[2001:db8::1]/hook", 443),
        ("https://[2001:db8::abcd]/hook", 443),
        ("http://[2001:db8::1]/hook", 80),
        ("https://[2001:db8::1]:8443/hook", 8443),
        ("https://example.com/hook", 443),
    ],
)
def test_the_port_is_the_urls_or_its_schemes_and_no_part_of_an_address(
    url: str, port: int, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[int] = []

    def refuse(_: str, at: int, __: float) -> socket.socket:
        dialled.append(at)
        raise ConnectionRefusedError

    monkeypatch.setattr("scheduler.webhook.dial", refuse)
    with pytest.raises(DeliveryError, match="ConnectionRefusedError"):
        Webhook(url, secret)(DEATH)
    assert dialled == [port]


def test_a_certificate_of_another_host_is_told_without_naming_ours(
    secret: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: str, __: int, ___: float) -> socket.socket:
        error = ssl.SSLCertVerificationError("certificate is not valid for 'secret.example.com'")
        error.verify_code = 62
        raise error

    monkeypatch.setattr("scheduler.webhook.dial", refuse)
    with pytest.raises(DeliveryError, match="the certificate is another host's") as told:
        Webhook("https://secret.example.com/hook", secret)(DEATH)
    assert "secret" not in str(told.value)
