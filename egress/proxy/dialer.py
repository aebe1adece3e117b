"""Connect to hosts for a sandbox: the name is resolved once, and the checked address is connected to."""

from __future__ import annotations

import asyncio
import socket

from aiohttp.abc import AbstractResolver

from egress.policy import EgressRefused
from egress.proxy.request_head import Target
from egress.proxy.rules import EgressRules, is_address
from egress.sessions import SocketFactory

LOOKUP_SECONDS = 10.0
CONNECT_SECONDS = 10.0
BUFFER_BYTES = 64 * 1024


class HostUnreachable(OSError):
    """A host that the rules allow cannot be connected to."""


async def connect(
    target: Target,
    rules: EgressRules,
    *,
    resolver: AbstractResolver,
    make_socket: SocketFactory = socket.socket,
) -> tuple[tuple[asyncio.StreamReader, asyncio.StreamWriter], str]:
    """Return streams to the target, and its address; raises EgressRefused and HostUnreachable."""
    rules.check_host(target.host, target.port)
    is_named = not is_address(target.host)
    addresses = await _look_up(target, resolver) if is_named else [_literal(target.host)]
    refused: EgressRefused | None = None
    failed: OSError | None = None
    for family, address in addresses:
        try:
            rules.check_address(address, target.port, is_named=is_named)
            return await _open(family, address, target.port, make_socket), address
        except EgressRefused as error:
            refused = error
        except (OSError, TimeoutError) as error:
            failed = error
    if failed is None and refused is not None:
        raise EgressRefused(f"{refused.why} {target.host} has that address." if is_named else refused.why)
    raise HostUnreachable(f"{target.host} does not answer at port {target.port}: {failed or 'no address'}")


async def _look_up(target: Target, resolver: AbstractResolver) -> list[tuple[int, str]]:
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            found = await resolver.resolve(target.host, target.port, socket.AF_UNSPEC)
    except (OSError, TimeoutError) as error:
        raise HostUnreachable(
            f"the name {target.host} cannot be resolved: {str(error) or 'time-out'}"
        ) from error
    return list(dict.fromkeys((int(one["family"]), one["host"]) for one in found))


def _literal(address: str) -> tuple[int, str]:
    return (socket.AF_INET6 if ":" in address else socket.AF_INET), address


async def _open(
    family: int, address: str, port: int, make_socket: SocketFactory
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    connecting = make_socket(family, socket.SOCK_STREAM, 0)
    try:
        connecting.settimeout(0)
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(connecting, (address, port))
            return await asyncio.open_connection(sock=connecting, limit=BUFFER_BYTES)
    except BaseException:
        connecting.close()
        raise
