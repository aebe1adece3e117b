"""A sandbox that leaves the settings file ends its jobs: `dovecote apply` says how many."""

from __future__ import annotations

import asyncio
from pathlib import Path

from command_line import run_command_line
from gateway.config.load import environment_without_ours
from gateway_process import GatewayProcess, gateway
from turn_requests import poll_until

FILE = """
[sandboxes.heavy]
provider = "host"

[agents.coder]
model = "builtin:shell"
sandbox = "heavy"
"""


async def apply(process: GatewayProcess, text: str, *options: str) -> list[str]:
    """Make a text the settings file, apply it, and return the lines that are shown."""
    file = process.data / "dovecote.toml"
    file.write_text(text)
    env = environment_without_ours() | {"DOVECOTE_DATA_DIR": str(process.data)}
    done = await asyncio.to_thread(run_command_line, "apply", "--config", str(file), *options, env=env)
    assert done.exit_code == 0, done.output
    return list(done.output.splitlines())


async def test_a_deleted_sandbox_names_the_jobs_that_end(tmp_path: Path) -> None:
    """The dry run says so before anything ends; a job says why it ended."""
    async with gateway(tmp_path / "data") as process, process.http() as http:
        assert await apply(process, FILE) == ["+ create sandbox heavy", "+ create agent coder", "2 changed"]
        async with http.post("/agents/coder/turns", json={"input": "!& sleep 600"}) as answer:
            assert answer.status == 202, await answer.text()
        await poll_until(process, "/jobs", lambda found: len(found["items"]) == 1)
        deleted = ["- delete agent coder", "- delete sandbox heavy (ends 1 running job)"]
        assert await apply(process, "", "--dry-run") == [*deleted, "2 to change"]
        assert await apply(process, "") == [*deleted, "2 changed"]
        await poll_until(process, "/jobs", lambda found: found["items"][0]["reason"] == "sandbox_removed")
