"""Set up a measurement: a gateway with Telegram on loopback, a model of fixed latency, the raw limit."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from channels.telegram.simulator import Simulator, simulate
from gateway_process import GatewayProcess, gateway

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "tests" / "support" / "openai_server.py"
SENDS_PER_SECOND = 10_000
"""What the simulated platform takes: a bench measures the gateway, not Telegram's limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchGateway:
    """A running gateway, the platform it speaks to, and the process to meter."""

    platform: Simulator
    gateway: GatewayProcess


@asynccontextmanager
async def open_bench_gateway(
    directory: Path, *, model: str | None = None, env: Mapping[str, str] | None = None
) -> AsyncIterator[BenchGateway]:
    """Run a gateway with a Telegram bot that is open to everybody; `model` is the model's base URL."""
    more = env or {}
    async with simulate() as platform:
        env = {**settings_for(platform), **more}
        if model is not None:
            env |= env_variables("AGENT", {"model": "openai:loopback", "base_url": model})
            env["OPENAI_API_KEY"] = "a key for a loopback model"
        async with gateway(directory / "data", env=env) as process:
            yield BenchGateway(platform=platform, gateway=process)


def settings_for(platform: Simulator) -> dict[str, str]:
    """Return the settings of a gateway with a bot on this platform that is open to everybody."""
    channel = platform.settings() | {"sends_per_second": SENDS_PER_SECOND, "allow": "*"}
    return env_variables("CHANNELS__TELEGRAM", channel) | {"DOVECOTE_LOG_LEVEL": "warning"}


def env_variables(prefix: str, settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as variables of the environment."""
    return {f"DOVECOTE_{prefix}__{name.upper()}": str(value) for name, value in settings.items()}


@asynccontextmanager
async def run_model(delay: float = 0.0, *, pieces: int = 1) -> AsyncIterator[str]:
    """Run a model that echoes after so many seconds, in a process of its own; yields its base URL."""
    async with _child(str(MODEL), "--delay", str(delay), "--pieces", str(pieces)) as (_, url):
        yield url


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineProcess:
    """A running raw limit: its address, and the process to measure."""

    url: str
    pid: int


@asynccontextmanager
async def run_baseline(
    platform: Simulator | None, *, delay: float = 0.0, model: str | None = None
) -> AsyncIterator[BaselineProcess]:
    """Run the raw limit on Telegram (or, without it, on a WebSocket) in a process of its own."""
    arguments = [] if platform is None else [platform.url, platform.token]
    arguments += [] if model is None else [model]
    async with _child("-m", "bench.baseline", str(delay), *arguments) as (pid, url):
        yield BaselineProcess(url=url, pid=pid)


@asynccontextmanager
async def _child(*arguments: str) -> AsyncIterator[tuple[int, str]]:
    """Run a Python program that prints `ready URL` until the block ends."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert child.stdout is not None
    async with AsyncExitStack() as stack:
        stack.push_async_callback(child.wait)
        stack.callback(lambda: child.send_signal(signal.SIGTERM) if child.returncode is None else None)
        async with asyncio.timeout(30):
            ready, url = (await child.stdout.readline()).decode().split()
        assert ready == "ready"
        yield child.pid, url
