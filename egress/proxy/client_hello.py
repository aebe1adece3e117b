"""Read the server name of a TLS ClientHello (RFC 8446 and RFC 6066), bounded and in linear time."""

from __future__ import annotations

MAX_HELLO_BYTES = 32 * 1024
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0
_RECORD_HEADER, _MESSAGE_HEADER = 5, 4
_MAX_RECORD = 16 * 1024
_MAJOR_VERSION = 3

UNRECOGNIZED_NAME = bytes((21, 3, 3, 0, 2, 2, 112))
"""The fatal alert `unrecognized_name`, as a TLS record."""


class NotClientHello(ValueError):
    """The bytes are not the beginning of a TLS connection, or they exceed the limit."""


class _Fields:
    """Reads the fields of a message one after the other; raises NotClientHello at its end."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._content)

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._content):
            raise NotClientHello("a field of the ClientHello is longer than the message")
        taken, self._at = self._content[self._at : end], end
        return taken

    def rest(self) -> bytes:
        return self.take(len(self._content) - self._at)

    def vector(self, width: int) -> _Fields:
        """Return the fields of a vector whose length has `width` bytes."""
        return _Fields(self.take(self.number(width)))


class ClientHelloReader:
    """Collects the records of a ClientHello; each byte is looked at once, whatever the pieces."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._message = bytearray()
        self._at = 0

    @property
    def received(self) -> bytes:
        """Return all bytes that were fed."""
        return bytes(self._received)

    def feed(self, data: bytes) -> bool:
        """Add bytes and return whether the ClientHello is complete; raises NotClientHello."""
        self._received += data
        if len(self._received) > MAX_HELLO_BYTES:
            raise NotClientHello(f"the ClientHello is longer than {MAX_HELLO_BYTES} bytes")
        while not self._is_complete() and self._take_record():
            pass
        return self._is_complete()

    def server_name(self) -> str | None:
        """Return the server name of a complete ClientHello in lower case, or None; raises NotClientHello."""
        hello = _Fields(bytes(self._message[_MESSAGE_HEADER : _MESSAGE_HEADER + self._length()]))
        hello.take(2 + 32)  # version and random
        hello.vector(1)  # session id
        hello.vector(2)  # cipher suites
        hello.vector(1)  # compression methods
        extensions = hello.vector(2) if hello else _Fields(b"")
        names: list[str] = []
        while extensions:
            kind, content = extensions.number(2), extensions.vector(2)
            if kind == _SERVER_NAME:
                names += _host_names(content.vector(2))
        if len(names) > 1:
            raise NotClientHello("the ClientHello has several server names")
        return names[0] if names else None

    def _take_record(self) -> bool:
        """Move the next record's content into the message; return whether it was complete."""
        header = self._received[self._at : self._at + _RECORD_HEADER]
        if header and header[0] != _HANDSHAKE:
            raise NotClientHello("the first bytes are not a TLS handshake")
        if len(header) < _RECORD_HEADER:
            return False
        length = int.from_bytes(header[3:], "big")
        if header[1] != _MAJOR_VERSION or not 0 < length <= _MAX_RECORD:
            raise NotClientHello("the first bytes are not a TLS record")
        end = self._at + _RECORD_HEADER + length
        if len(self._received) < end:
            return False
        self._message += self._received[self._at + _RECORD_HEADER : end]
        self._at = end
        if self._message[0] != _CLIENT_HELLO:
            raise NotClientHello("the first handshake message is not a ClientHello")
        return True

    def _length(self) -> int:
        return int.from_bytes(self._message[1:_MESSAGE_HEADER], "big")

    def _is_complete(self) -> bool:
        if len(self._message) < _MESSAGE_HEADER:
            return False
        if self._length() > MAX_HELLO_BYTES:
            raise NotClientHello(f"the ClientHello is longer than {MAX_HELLO_BYTES} bytes")
        return len(self._message) >= _MESSAGE_HEADER + self._length()


def _host_names(entries: _Fields) -> list[str]:
    found = []
    while entries:
        kind, name = entries.number(1), entries.vector(2)
        if kind == _HOST_NAME:
            raw = name.rest()
            if not raw.isascii():
                raise NotClientHello("the server name is not ASCII")
            found.append(raw.decode("ascii").lower().removesuffix("."))
    return found
