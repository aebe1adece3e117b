"""The URL and key of the gateway: from the settings, else from a local gateway's data directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.cli.errors import UsageError

if TYPE_CHECKING:
    from gateway.config.settings import Settings

URL_FILE = "url"
KEY_FILE = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLocation:
    """A gateway's base URL and API key; `is_named` is false if the URL is only the default."""

    url: str
    key: str | None = field(repr=False)
    is_named: bool


def locate_gateway(settings: Settings) -> GatewayLocation:
    """Return the URL and key of the gateway to call.

    A key from the data directory is only sent to this machine, to the address that the local gateway
    stored, or to its public URL; never to another host.
    """
    noted = _read(settings.data_dir / URL_FILE)
    is_named = bool(settings.url or noted)
    url = settings.url or noted or f"http://{_connect_host(settings.host)}:{settings.port or 8080}"
    if settings.key:
        return GatewayLocation(url=url, key=settings.key.get_secret_value(), is_named=is_named)
    trusted = _is_local(url) or url in {noted, settings.public_url}
    key = _read(settings.data_dir / KEY_FILE) if trusted else None
    return GatewayLocation(url=url, key=key, is_named=is_named)


def _connect_host(host: str) -> str:
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - the wildcard address of a server is no address for a client
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return None
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a directory, but must be a file: move it away, or pass --key") from error
    except PermissionError as error:
        raise UsageError(f"{path} cannot be read: run as the gateway's user, or pass --key") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is damaged: the gateway did not write this") from error
