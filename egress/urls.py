"""Types of URLs in settings and records: parsed once, kept in one normal form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, ClassVar, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from yarl import URL

from egress.policy import URL_LIMIT

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_WEB_SCHEMES = {"ws": "http", "wss": "https"}
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port of a URL. WebSockets have the origin of the HTTP server that they belong to."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


class EndpointUrl(str):
    """An http or https URL without credentials, query and fragment, in its normal form.

    Scheme and host are lower-case, an international name is in its ASCII form, an IP address is in its
    canonical form, and a default port and a slash at the end are left out. So equal URLs are equal texts.
    """

    __slots__ = ()

    schemes: ClassVar[frozenset[str]] = frozenset({"http", "https"})
    takes_query: ClassVar[bool] = False
    keeps_slash: ClassVar[bool] = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the URL in its normal form; raises ValueError with what is wrong."""
        parts = _split(text)
        scheme, known = parts.scheme.lower(), " or ".join(sorted(cls.schemes))
        if scheme not in cls.schemes or not parts.hostname:
            raise ValueError(
                f"must be an absolute {known} URL, such as {min(cls.schemes)}://bots.example.org"
            )
        if "@" in parts.netloc:
            raise ValueError("must not contain a user name or password")
        if parts.fragment or (parts.query and not cls.takes_query):
            raise ValueError("must have no query and no fragment")
        port = "" if parts.port in {None, _PORTS[scheme]} else f":{parts.port}"
        path = parts.path if cls.keeps_slash else parts.path.rstrip("/")
        query = f"?{parts.query}" if parts.query else ""
        return cls(f"{scheme}://{normal_host(parts.hostname)}{port}{path}{query}")

    @property
    def origin(self) -> Origin:
        """The scheme, host and port to which a key for this URL may be sent."""
        return origin_of(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls.parse, core_schema.str_schema(min_length=1, max_length=URL_LIMIT)
        )


class SocketUrl(EndpointUrl):
    """A ws or wss URL."""

    __slots__ = ()
    schemes: ClassVar[frozenset[str]] = frozenset({"ws", "wss"})
    keeps_slash: ClassVar[bool] = True


class CallbackUrl(EndpointUrl):
    """An http or https URL to which something is posted: it may have a query, and its path stays as it is."""

    __slots__ = ()
    takes_query: ClassVar[bool] = True
    keeps_slash: ClassVar[bool] = True


def origin_of(url: str) -> Origin:
    """Return the origin of a URL as others wrote it; raises ValueError if it has none."""
    parts = _split(url)
    scheme = parts.scheme.lower()
    if scheme not in _PORTS or not parts.hostname or "@" in parts.netloc:
        raise ValueError("is not an absolute http, https, ws or wss URL without credentials")
    return Origin(_WEB_SCHEMES.get(scheme, scheme), normal_host(parts.hostname), parts.port or _PORTS[scheme])


def is_same_origin(url: str, home: str) -> bool:
    """Return whether a URL that others wrote leads to the scheme, host and port of `home`."""
    try:
        return origin_of(url) == origin_of(home)
    except ValueError:
        return False


def endpoint(text: str) -> EndpointUrl:
    """Return a URL of the program itself, such as a default."""
    return EndpointUrl.parse(text)


def _split(text: str) -> SplitResult:
    if len(text) > URL_LIMIT or not text.isprintable() or " " in text or "\\" in text:
        raise ValueError(f"must be a URL of at most {URL_LIMIT} characters without spaces")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is no URL: {error}") from None
    if port == 0 or not f"{parts.path}{parts.query}".isascii():
        raise ValueError("must be a URL with a port above 0, and with ASCII characters after the host")
    return parts


def normal_host(host: str) -> str:
    """Return a host in its normal form; raises ValueError for spellings that resolvers read differently."""
    if "%" in host:
        raise ValueError("must not contain % in its host")
    if ":" in host:
        address = IPv6Address(host)
        # Versions of Python write mapped addresses differently.
        return f"[{f'::ffff:{address.ipv4_mapped}' if address.ipv4_mapped else address}]"
    try:
        name = (URL.build(scheme="http", host=host).raw_host or "").lower().removesuffix(".")
    except ValueError:
        raise ValueError("has no valid host name") from None
    if _NUMBER.match(name.rpartition(".")[2]):
        return str(_canonical(name))
    if not name or name.startswith(".") or ".." in name:
        raise ValueError("has no valid host name")
    return name


def _canonical(name: str) -> IPv4Address:
    try:
        return IPv4Address(name)
    except ValueError:
        raise ValueError("must give an IPv4 address as four decimal numbers, such as 192.0.2.1") from None
