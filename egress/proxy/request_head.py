"""The head of a request to the proxy: its method and target, and the answers that refuse it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from egress.policy import EgressRefused
from egress.urls import normal_host

MAX_HEAD_BYTES = 16 * 1024
MAX_PORT = 65535
HEAD_END = b"\r\n\r\n"
_PORT = re.compile(r"[0-9]{1,5}")


class InvalidRequest(ValueError):
    """The bytes are not a request that a proxy answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """The request line of a request, and everything that was received."""

    method: str
    target: str
    received: bytes

    @property
    def is_connect(self) -> bool:
        """Return whether the client asks for a tunnel."""
        return self.method == "CONNECT"

    @property
    def behind(self) -> bytes:
        """Return what was received behind the head."""
        return self.received.partition(HEAD_END)[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The host in its normal form, and the port, to which a client wants to connect."""

    host: str
    port: int


def parse_head(received: bytes) -> RequestHead:
    """Return the head of a request whose end was received; raises InvalidRequest."""
    line = received.partition(b"\r\n")[0]
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1.") or not line.isascii():  # noqa: PLR2004 - a request line
        raise InvalidRequest("The request line is not one of HTTP/1.1.")
    return RequestHead(method=parts[0].decode(), target=parts[1].decode(), received=received)


def parse_authority(text: str) -> Target:
    """Return the target of a CONNECT request; raises InvalidRequest."""
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or not 0 < int(port) <= MAX_PORT:
        raise InvalidRequest("The target of CONNECT must be a host and a port, such as example.org:443.")
    return Target(host=parse_host(host), port=int(port))


def parse_host(text: str) -> str:
    """Return a host in its normal form, an IPv6 address without brackets; raises InvalidRequest."""
    try:
        return normal_host(text.removeprefix("[").removesuffix("]")).strip("[]")
    except ValueError as error:
        raise InvalidRequest(f"The host {text[:80]!r} {error}.") from error


def refusal_response(status: int, phrase: str, sentence: str) -> bytes:
    """Return an answer of the proxy that says in words why there is no other one."""
    body = f"{sentence}\n".encode()
    head = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nX-Dovecote-Refused: {_header_text(sentence)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def forbidden(refused: EgressRefused) -> bytes:
    """Return the answer to a request that the rules refuse."""
    return refusal_response(403, "Forbidden", refused.why)


def _header_text(sentence: str) -> str:
    return "".join(one if one.isprintable() and one.isascii() else "?" for one in sentence)
