"""Processes that the suite looks for or starts on this machine."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from sandbox.testing.rig import ProviderRig


def unique_sleep_seconds() -> str:
    """Return a number of seconds for `sleep` that no other process of this machine uses."""
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


OTHER_PROCESS_PROGRAM = """
import asyncio, json, os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from sandbox.port import CallbackDirectories
from sandbox.model import BackgroundJob, ExecRequest, SandboxId, SandboxSpec
from sandbox.port import ProviderContext
from sandbox import registry

async def main():
    fields = json.loads({fields!r})
    here = Path(fields["directory"])
    context = ProviderContext(
        state=here / "state",
        callbacks=CallbackDirectories(root=here / "callbacks"),
        allow_unsandboxed=not fields["isolated"],
    )
    space = here / "workspace"
    spec = SandboxSpec(label=fields["label"], namespace="space", workspace=space, memory_mb=256, pids=64)
    plugin = registry.plugin(fields["provider"])
    async with plugin.open(plugin.settings(**fields["settings"]), context) as provider:
        {body}

asyncio.run(main())
"""


def other_process_program(rig: ProviderRig, body: str) -> str:
    """Return a program that opens the same provider in another process and runs `body`, one statement."""
    fields = {
        "directory": str(rig.directory),
        "isolated": rig.isolated,
        "label": rig.label,
        "provider": rig.plugin.name,
        "settings": _plain_settings(rig.settings),
    }
    return OTHER_PROCESS_PROGRAM.format(path=sys.path, fields=json.dumps(fields), body=body)


def _plain_settings(settings: BaseModel) -> dict[str, Any]:
    """Return settings as JSON, with secrets in plain text."""
    shown = settings.model_dump(mode="json")
    secret = {name: value.get_secret_value() for name, value in settings if isinstance(value, SecretStr)}
    return shown | secret
