"""Prepare the network of an `allow-all` sandbox: a keeper owns the namespace, and packets are filtered in it.

The keeper is a container that sleeps. The sandbox joins its network namespace without a capability, so it
cannot change the rules. They are loaded each time before the sandbox's container is started: the keeper may
have been restarted, and the machine may have other addresses.

A keeper that ends takes the network with it, and a keeper that is started again has another one, without
rules. The sandbox joins that one when it is started again, and not before.
"""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from egress.addresses import IpAddress, machine_addresses
from sandbox.docker.container import KEEPER_LABEL, keeper_id
from sandbox.docker.engine import Engine, ExecSpec
from sandbox.docker.errors import translate_errors
from sandbox.errors import ProviderRefused, SandboxGone, SandboxOutdated
from sandbox.model import SandboxId
from sandbox.network import load_filter
from sandbox.network.network_filter import batch, parse_name_servers, rules

RESOLVER = "/etc/resolv.conf"
_ROOT = "0:0"
_TIMEOUT_SECONDS = 30.0
_OUTPUT_LIMIT = 1 << 16
_MAX_REMEMBERED = 10_000

REMEDY = (
    "the packet filter of network.mode allow-all cannot be installed: {why}. It needs an engine that may "
    "give NET_ADMIN to a container, a kernel with nf_tables, and python3 in `image` of [sandbox.docker]. "
    "Otherwise use network.mode restricted, or filter the network in the machine's firewall and set "
    "`network_filter = false`"
)


class NetworkKeepers:
    """The keepers of one engine; `_loaded` has the start of each that got its rules from this process."""

    def __init__(self) -> None:
        self._loaded: OrderedDict[SandboxId, str] = OrderedDict()

    async def prepare(self, engine: Engine, details: Mapping[str, Any]) -> None:
        """Start the keeper of a container before it, and load the rules; raises ProviderRefused."""
        name = (details["Config"].get("Labels") or {}).get(KEEPER_LABEL)
        if name is None:
            return
        keeper = SandboxId(name)
        with _explained():
            await engine.ensure_running(keeper)
            await self._load(engine, keeper, (await engine.inspect(keeper))["State"])

    async def check(self, engine: Engine, sandbox_id: SandboxId) -> None:
        """Load the rules of a keeper that was started by others since, before a command uses the network.

        Raises SandboxOutdated if the sandbox runs and is not in the network of its keeper, and
        ProviderRefused if the rules cannot be loaded.
        """
        keeper = keeper_id(sandbox_id)
        try:
            state = (await engine.inspect(keeper))["State"]
        except SandboxGone:
            state = {}
        if state.get("Running") and self._loaded.get(keeper) == state["StartedAt"]:
            return
        own = (await engine.inspect(sandbox_id))["State"]
        if not own.get("Running") and not own.get("Paused"):
            return  # its start prepares the network
        if not state.get("Running") or _started_at(state) > _started_at(own):
            raise SandboxOutdated(f"the network of the sandbox has ended with its keeper {keeper}")
        with _explained():
            await self._load(engine, keeper, state)

    async def _load(self, engine: Engine, keeper: SandboxId, state: Mapping[str, Any]) -> None:
        await _load_rules(engine, keeper)
        self._loaded[keeper] = state["StartedAt"]
        self._loaded.move_to_end(keeper)
        if len(self._loaded) > _MAX_REMEMBERED:
            self._loaded.popitem(last=False)


def _started_at(state: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(state["StartedAt"])


@contextmanager
def _explained() -> Iterator[None]:
    """Say what the packet filter needs when it cannot be installed."""
    try:
        yield
    except ProviderRefused as error:
        raise ProviderRefused(REMEDY.format(why=error)) from error
    except TimeoutError as error:
        raise ProviderRefused(REMEDY.format(why="the engine does not run the program in time")) from error
    except SandboxGone as error:
        raise SandboxGone("the keeper of the sandbox's network was removed") from error


async def _load_rules(engine: Engine, keeper: SandboxId) -> None:
    resolver = await _output_of(engine, keeper, ["cat", RESOLVER])
    wanted = rules(
        name_servers=await asyncio.to_thread(_name_servers, resolver.decode(errors="replace")),
        reachable=engine.settings.reachable,
        machine=machine_addresses(),
    )
    messages = base64.b64encode(batch(wanted)).decode()
    await _output_of(engine, keeper, ["python3", "-I", "-S", "-c", _program(), messages])


@cache
def _program() -> str:
    """Return the program that loads the rules; it is sent as text."""
    return Path(load_filter.__file__).read_text(encoding="utf-8")


def _name_servers(resolver: str) -> Sequence[IpAddress]:
    """Return the container's name servers; the engine's own resolver asks those of the machine."""
    found = parse_name_servers(resolver)
    own = Path(RESOLVER)
    if any(one.is_loopback for one in found) and own.exists():
        found += parse_name_servers(own.read_text(encoding="utf-8", errors="replace"))
    return [one for one in dict.fromkeys(found) if not one.is_loopback]


async def _output_of(engine: Engine, keeper: SandboxId, argv: Sequence[str]) -> bytes:
    """Run a program as the keeper's root, whose only capability is NET_ADMIN; raises ProviderRefused."""
    exec_spec = ExecSpec(argv=argv, environment=[], directory="/", output_limit=_OUTPUT_LIMIT)
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        with translate_errors():
            execution = await engine.start(keeper, user=_ROOT, exec_spec=exec_spec)
        try:
            code = await execution.wait(b"")
        finally:
            await execution.close()
    result = execution.result(code)
    if code != 0:
        said = (result.stderr or result.stdout)[-500:].decode(errors="replace").strip()
        raise ProviderRefused(said or f"{argv[0]} ended with {code}")
    return result.stdout
