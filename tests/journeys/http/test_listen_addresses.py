"""The addresses on which a gateway listens, and what its own commands connect to."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest

from gateway_process import gateway


def has_ipv6() -> bool:
    """Return whether this machine has the loopback address of IPv6."""
    if not socket.has_ipv6:
        return False
    with closing(socket.socket(socket.AF_INET6)) as one:
        try:
            one.bind(("::1", 0))
        except OSError:
            return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


async def status_of(url: str) -> int:
    """Return the status of /healthz at a base URL."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/healthz") as answer:
        return answer.status


@needs_ipv6
async def test_the_unspecified_address_includes_ipv4(tmp_path: Path) -> None:
    """With `::`, clients of both versions are served at one port; the noted URL is one of them."""
    async with gateway(tmp_path, env={"DOVECOTE_HOST": "::"}) as process:
        port = process.url.rpartition(":")[2]
        for url in (process.url, f"http://127.0.0.1:{port}", f"http://[::1]:{port}"):
            assert await status_of(url) == 200


@needs_ipv6
async def test_an_address_of_ipv6_is_put_in_brackets(tmp_path: Path) -> None:
    """The noted URL of a gateway that listens at `::1` is one that clients accept."""
    async with gateway(tmp_path, env={"DOVECOTE_HOST": "::1"}) as process:
        assert process.url.startswith("http://[::1]:")
        assert await status_of(process.url) == 200
