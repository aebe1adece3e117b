"""Programs of others' clients against a real gateway, which is killed in the middle of those that can resume.

Each program in `clients/` prints `ok FEATURE` for what it has checked, `begun` where the gateway may be
killed, and `version …`. They need packages that the project does not install: `.ci/clients` installs them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, last_text

PROGRAMS = Path(__file__).parent / "clients"
COMMAND = "echo a dove | tee ran.txt"
COMMAND_TOOLS: dict[str, dict[str, Any]] = {
    "exec_command": {"cmd": COMMAND},
    "run_shell_command": {"command": COMMAND, "is_background": False},
    "bash": {"command": COMMAND, "description": "say it"},
}
"""Arguments of the tools for commands of Codex, Qwen Code and OpenCode."""
SLOW_SECONDS = 4.0
PATIENCE = 180.0


class ClientsModel:
    """Echoes a text, slowly if it says so; calls a tool of the client, and repeats its result."""

    def __init__(self) -> None:
        self.slow_requests = 0
        self.is_slow = asyncio.Event()

    def __call__(self, body: dict[str, Any]) -> ScriptedTurn:
        """Answer one request."""
        last = body["messages"][-1]
        if last["role"] == "tool":
            return ScriptedTurn(text=f"the tool said: {last['content']}")
        text = last_text(body)
        if "run a command" in text and (command := _command_tool(body)):
            return ScriptedTurn(calls=[command])
        if "weather" in text:
            return ScriptedTurn(calls=[ToolCall(name="get_weather", args={"city": "Paris"})])
        if "slow" not in text:
            return ScriptedTurn(text=f"echo: {text}")
        self.slow_requests += 1
        self.is_slow.set()
        return ScriptedTurn(text=f"echo: {text}", delay=SLOW_SECONDS)


def _command_tool(body: dict[str, Any]) -> ToolCall | None:
    """Return a call of the tool for commands of a coding agent, if the request has one."""
    offered = [tool["function"]["name"] for tool in body.get("tools", ())]
    name = next((name for name in COMMAND_TOOLS if name in offered), None)
    return ToolCall(name=name, args={**COMMAND_TOOLS[name]}) if name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsGateway:
    """A running gateway and its model."""

    process: GatewayProcess
    model: ClientsModel


@dataclass(kw_only=True)
class ProgramReport:
    """What a program has said, and its exit code."""

    lines: list[str] = field(default_factory=list)
    code: int | None = None
    was_interrupted: bool = False
    """Whether the kill interrupted a turn, for which the model was asked again."""

    @property
    def features(self) -> set[str]:
        """The features that it has checked."""
        return {line.removeprefix("ok ") for line in self.lines if line.startswith("ok ")}


@asynccontextmanager
async def clients_gateway(data: Path) -> AsyncIterator[ClientsGateway]:
    """Run a gateway with a loopback model."""
    model = ClientsModel()
    async with OpenAIServer(model) as server:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": server.base_url}
        async with gateway(data, env=env) as process:
            yield ClientsGateway(process=process, model=model)


def prepare(folder: Path, modules: str) -> None:
    """Copy the programs into a folder, beside the packages of Node.js."""
    for program in PROGRAMS.iterdir():
        shutil.copy(program, folder / program.name.removesuffix(".txt"))
    if modules:
        (folder / "node_modules").symlink_to(Path(modules).resolve())


async def run_program(gateway: ClientsGateway, interpreter: str, program: Path) -> ProgramReport:
    """Run a program to its end.

    Once it says `begun` and its turn waits for the model, the gateway is killed and started again.
    """
    process, model = gateway.process, gateway.model
    child = await asyncio.create_subprocess_exec(
        interpreter,
        program.name,
        process.url,
        process.key,
        cwd=program.parent,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": f"{os.environ['PATH']}", "HOME": str(program.parent), "PYTHONSAFEPATH": "1"},
    )
    report = ProgramReport()
    assert child.stdout is not None
    async with asyncio.timeout(PATIENCE):
        async for raw in child.stdout:
            report.lines.append(raw.decode(errors="replace").rstrip())
            if report.lines[-1] == "begun":
                await model.is_slow.wait()
                await process.kill()
                await process.start()
        report.code = await child.wait()
    report.was_interrupted = model.slow_requests > 1
    return report
