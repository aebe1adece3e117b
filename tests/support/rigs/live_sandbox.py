"""The life of a sandbox at a real engine or service, as each of the live tests lives it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from sandbox.errors import SandboxGone
from sandbox.model import BackgroundJob, BackgroundJobState, ExecRequest, JobReport, Network, SandboxSpec
from sandbox.port import CallbackDirectories, Provider, ProviderContext, Sandbox
from sandbox.registry import plugin

TIMEOUT_SECONDS = 180.0
SERVER = (
    "cd $(mktemp -d); echo from the dovecote > index.html; exec python3 -m http.server 8080 --bind 0.0.0.0"
)


async def run_lifecycle(name: str, settings: Mapping[str, Any], directory: Path) -> None:
    """Create, run, start a job, suspend, wake, expose and destroy; check what the service reports of each."""
    chosen = plugin(name)
    context = ProviderContext(
        state=directory / "state", callbacks=CallbackDirectories(root=directory / "callbacks")
    )
    context.state.mkdir()
    spec = SandboxSpec(
        label=f"dovecote-live-{secrets.token_hex(6)}",
        namespace="live",
        workspace=directory / "workspace",
        network=Network.ALLOW_ALL,
        persistent=True,
        idle_timeout=300.0,
        max_lifetime=1800.0,
    )
    (directory / "workspace").mkdir()
    async with chosen.open(chosen.settings.model_validate(dict(settings)), context) as provider:
        try:
            async with asyncio.timeout(3 * TIMEOUT_SECONDS):
                await _run_steps(provider, spec)
        finally:
            for sandbox_id, _ in await provider.list(spec.label):
                await provider.destroy(sandbox_id)


async def _run_steps(provider: Provider, spec: SandboxSpec) -> None:
    sandbox = await provider.create(spec)
    assert (await provider.create(spec)).id == sandbox.id
    result = await sandbox.run(ExecRequest(script="echo out; echo err >&2; echo kept > ~/file; exit 3"))
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
    assert (await sandbox.run(ExecRequest(script="sleep 60", timeout=2.0))).timed_out
    await sandbox.spawn(BackgroundJob(id="brief", script="echo worked; exit 4", token="a-live-token"))
    report = await _wait_for_job(sandbox, "brief")
    assert (report.state, report.exit_code, report.output) == (BackgroundJobState.EXITED, 4, b"worked\n")
    await sandbox.suspend()
    again = await provider.connect(sandbox.id, spec)
    assert (await again.run(ExecRequest(script="cat ~/file"))).stdout == b"kept\n"
    await again.spawn(BackgroundJob(id="web", script=SERVER, token="a-live-token"))
    assert b"from the dovecote" in await _fetch(await again.expose(8080))
    await again.stop("web")
    await provider.destroy(sandbox.id)
    assert not await provider.list(spec.label)
    try:
        await provider.connect(sandbox.id, spec)
    except SandboxGone:
        return
    raise AssertionError("a destroyed sandbox is still there")


async def _wait_for_job(sandbox: Sandbox, job: str) -> JobReport:
    """Return the report of a job once it no longer runs; services are not asked too often."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            report = await sandbox.report(job)
            if report.state is not BackgroundJobState.RUNNING:
                return report
            await asyncio.sleep(0.5)


async def _fetch(url: str) -> bytes:
    """Return what the URL answers, once it does."""
    async with asyncio.timeout(TIMEOUT_SECONDS), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return await answer.read()
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
