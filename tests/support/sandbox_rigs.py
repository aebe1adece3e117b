"""Open every installed sandbox provider in a test, and inspect the machine from outside.

A provider joins the contract by a module `<provider>_rig` beside this one with a table VARIANTS of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import BaseModel, SecretStr

from sandbox.host.settings import HostSettings
from sandbox.model import BackgroundJobState, JobReport, SandboxSpec
from sandbox.port import Feature, Provider, ProviderContext, ProviderPlugin, Sandbox
from sandbox.registry import installed

TOKEN = "the-job-token-that-nobody-sees"
TIMEOUT_SECONDS = 20.0


@dataclass(kw_only=True)
class CompletionCall:
    """One completion callback as it arrived."""

    job_id: str
    authorization: str
    exit_code: int
    output: str
    truncated: bool


@dataclass(kw_only=True)
class CallbackServer:
    """The gateway's side of the callback socket: gathers completions and answers with `statuses` in turn."""

    socket: Path
    statuses: list[int] = field(default_factory=list)
    completions: asyncio.Queue[CompletionCall] = field(default_factory=asyncio.Queue)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[CallbackServer]:
        """Serve the callback route and nothing else."""
        application = web.Application()
        application.router.add_post("/sandbox-jobs/{id}/complete", self._complete)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.UnixSite(runner, str(self.socket)).start()
            yield self
        finally:
            await runner.cleanup()

    async def next(self) -> CompletionCall:
        """Return the next completion."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.completions.get()

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        await self.completions.put(
            CompletionCall(
                job_id=request.match_info["id"],
                authorization=request.headers.get("Authorization", ""),
                exit_code=body["exit_code"],
                output=body["output"],
                truncated=body.get("truncated", False),
            )
        )
        return web.json_response({}, status=self.statuses.pop(0) if self.statuses else 200)


@dataclass(kw_only=True)
class ProviderRig:
    """A provider as a test opens it: the same rig opened twice is the same provider again."""

    name: str
    plugin: ProviderPlugin
    settings: Any
    directory: Path
    isolated: bool = True
    label: str = field(default_factory=lambda: f"label-{secrets.token_hex(4)}")

    @property
    def provider_context(self) -> ProviderContext:
        """What the composition root would give it."""
        return ProviderContext(
            state=self.directory / "state",
            callbacks=self.directory / "callbacks",
            allow_unsandboxed=not self.isolated,
        )

    @property
    def mounts(self) -> bool:
        """Whether the workspace is a directory of this machine."""
        return Feature.MOUNTS_WORKSPACE in self.plugin.features

    @property
    def workspace(self) -> Path:
        """The directory of the workspace."""
        return self.directory / "workspace"

    @property
    def callback_server(self) -> CallbackServer:
        """A gateway that is not listening yet."""
        return CallbackServer(socket=self.provider_context.callbacks / "callback.sock")

    def spec(self, **changes: Any) -> SandboxSpec:
        """Return a small sandbox with a workspace."""
        fields = {
            "label": self.label,
            "namespace": "space",
            "workspace": self.workspace,
            "memory_mb": 256,
            "pids": 64,
        }
        return SandboxSpec(**{**fields, **changes})

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Provider]:
        """Open the provider."""
        async with self.plugin.open(self.settings, self.provider_context) as provider:
            yield provider


def _host(name: str, directory: Path, *, isolated: bool = True, **settings: Any) -> ProviderRig:
    return ProviderRig(
        name=name,
        plugin=installed()["host"],
        settings=HostSettings(**settings),
        directory=directory,
        isolated=isolated,
    )


RigFactory = Callable[[Path], ProviderRig]
VARIANTS: dict[str, dict[str, RigFactory]] = {
    "host": {
        "control_groups": lambda directory: _host("control_groups", directory),
        "rlimits": lambda directory: _host("rlimits", directory, cgroups=False),
        "plain": lambda directory: _host(
            "plain", directory, isolated=False, bubblewrap=failing_bubblewrap(directory)
        ),
    },
}


def variants_of(provider: str) -> dict[str, RigFactory]:
    """Return how an installed provider is opened; one without a rig fails the contract."""
    if provider not in VARIANTS:
        VARIANTS[provider] = import_module(f"{provider}_rig").VARIANTS
    return VARIANTS[provider]


def all_rigs() -> dict[str, RigFactory]:
    """Return the ways of all installed providers by name."""
    return {f"{name}-{way}": make for name in installed() for way, make in variants_of(name).items()}


def failing_bubblewrap(directory: Path) -> Path:
    """Return a bwrap that meets a kernel without user namespaces."""
    program = directory / "refusing-bwrap"
    program.write_text('#!/bin/sh\necho "bwrap: No permissions to create new namespace" >&2\nexit 1\n')
    program.chmod(0o755)
    return program


def unique_sleep_seconds() -> str:
    """Return a number of seconds to sleep that no other process of this machine sleeps for."""
    return f"3{secrets.randbelow(10)}.{secrets.randbelow(10**9):09}"


def processes_with(marker: str) -> Sequence[int]:
    """Return the live processes of this machine, in any namespace, whose command line holds `marker`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until `condition` holds."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await condition():  # noqa: ASYNC110 - what is waited for happens in other processes
            await asyncio.sleep(0.01)


async def wait_for_job(sandbox: Sandbox, job_id: str) -> JobReport:
    """Return the report of a job once it no longer runs."""
    report = await sandbox.report(job_id)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while report.state is BackgroundJobState.RUNNING:
            await asyncio.sleep(0.01)
            report = await sandbox.report(job_id)
    return report


async def wait_for_output(sandbox: Sandbox, job_id: str, text: bytes) -> None:
    """Wait until a running job's output holds `words`."""

    async def holds() -> bool:
        return text in (await sandbox.report(job_id)).output

    await until(holds)


OTHER_PROCESS_PROGRAM = """
import asyncio, json, os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from sandbox.model import BackgroundJob, ExecRequest, SandboxId, SandboxSpec
from sandbox.port import ProviderContext
from sandbox.registry import installed

async def main():
    fields = json.loads({fields!r})
    here = Path(fields["directory"])
    context = ProviderContext(
        state=here / "state", callbacks=here / "callbacks", allow_unsandboxed=not fields["isolated"]
    )
    space = here / "workspace"
    spec = SandboxSpec(label=fields["label"], namespace="space", workspace=space, memory_mb=256, pids=64)
    plugin = installed()[fields["provider"]]
    async with plugin.open(plugin.settings(**fields["settings"]), context) as provider:
        {body}

asyncio.run(main())
"""


def other_process_program(rig: ProviderRig, body: str) -> str:
    """Return a program for another process that opens the same provider and runs `body`, one statement."""
    fields = {
        "directory": str(rig.directory),
        "isolated": rig.isolated,
        "label": rig.label,
        "provider": rig.plugin.name,
        "settings": _plain_settings(rig.settings),
    }
    root = str(Path(__file__).resolve().parents[2])
    return OTHER_PROCESS_PROGRAM.format(path=[root], fields=json.dumps(fields), body=body)


def _plain_settings(settings: BaseModel) -> dict[str, Any]:
    """Return settings as JSON, secrets in the clear: the other process needs them."""
    shown = settings.model_dump(mode="json")
    secret = {name: value.get_secret_value() for name, value in settings if isinstance(value, SecretStr)}
    return shown | secret
