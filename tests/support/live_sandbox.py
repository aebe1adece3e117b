"""The life of a sandbox at a real engine or service, as each of the live tests lives it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from sandbox.errors import Gone
from sandbox.model import Command, Job, JobReport, JobState, Network, Spec
from sandbox.port import Provider, Sandbox, Surroundings
from sandbox.registry import plugin

PATIENCE = 180.0
SERVER = (
    "cd $(mktemp -d); echo from the dovecote > index.html; exec python3 -m http.server 8080 --bind 0.0.0.0"
)


async def live(name: str, settings: Mapping[str, Any], directory: Path) -> None:
    """Create, run, job, suspend, wake, expose, destroy: with what the service itself says of each."""
    chosen = plugin(name)
    around = Surroundings(state=directory / "state", callbacks=directory / "callbacks")
    for place in (around.state, around.callbacks):
        place.mkdir()
    spec = Spec(
        label=f"dovecote-live-{secrets.token_hex(6)}",
        namespace="live",
        workspace=directory / "workspace",
        network=Network.ALLOW_ALL,
        persistent=True,
        idle_timeout=300.0,
        max_lifetime=1800.0,
    )
    (directory / "workspace").mkdir()
    async with chosen.open(chosen.settings.model_validate(dict(settings)), around) as provider:
        try:
            async with asyncio.timeout(3 * PATIENCE):
                await _life(provider, spec)
        finally:
            for sandbox_id, _ in await provider.list(spec.label):
                await provider.destroy(sandbox_id)


async def _life(provider: Provider, spec: Spec) -> None:
    sandbox = await provider.create(spec)
    assert (await provider.create(spec)).id == sandbox.id
    result = await sandbox.run(Command(script="echo out; echo err >&2; echo kept > ~/file; exit 3"))
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
    assert (await sandbox.run(Command(script="sleep 60", timeout=2.0))).timed_out
    await sandbox.spawn(Job(id="brief", script="echo worked; exit 4", token="a-live-token"))
    report = await _ended(sandbox, "brief")
    assert (report.state, report.exit_code, report.output) == (JobState.EXITED, 4, b"worked\n")
    await sandbox.suspend()
    again = await provider.connect(sandbox.id, spec)
    assert (await again.run(Command(script="cat ~/file"))).stdout == b"kept\n"
    await again.spawn(Job(id="web", script=SERVER, token="a-live-token"))
    assert b"from the dovecote" in await _fetched(await again.expose(8080))
    await again.stop("web")
    await provider.destroy(sandbox.id)
    assert not await provider.list(spec.label)
    try:
        await provider.connect(sandbox.id, spec)
    except Gone:
        return
    raise AssertionError("a destroyed sandbox is still there")


async def _ended(sandbox: Sandbox, job: str) -> JobReport:
    """Return the report of a job once it no longer runs; services are not asked too often."""
    async with asyncio.timeout(PATIENCE):
        while True:
            report = await sandbox.report(job)
            if report.state is not JobState.RUNNING:
                return report
            await asyncio.sleep(0.5)


async def _fetched(url: str) -> bytes:
    """Return what the URL answers, once it does."""
    async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return await answer.read()
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
