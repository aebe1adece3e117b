"""An agent with several workspaces, and one whose workspace has no sandbox."""

from __future__ import annotations

import asyncio
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp

from api_server import ApiClient
from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, last_text


async def _talk(
    process: GatewayProcess, session: aiohttp.ClientSession, agent: str, text: str = "go on"
) -> str:
    mine = ApiClient(session=session, url=process.url, key=process.key)
    taken = await mine.call("POST", f"/agents/{agent}/turns", {"input": text})
    assert taken.status == 202, taken.body
    async with asyncio.timeout(40):
        while True:
            answer = await mine.call("GET", f"/status/{taken.body['turnId']}")
            if answer.body["state"] in ("completed", "failed"):
                return str(answer.body.get("output") or answer.body.get("error"))
            await asyncio.sleep(0.05)


async def _type_command(
    process: GatewayProcess, session: aiohttp.ClientSession, workspaces: list[Any], command: str
) -> str:
    """Return what the built-in shell answers to a person's own command."""
    mine = ApiClient(session=session, url=process.url, key=process.key)
    config = {"model": "builtin:shell", "sandbox": "free", "workspaces": workspaces}
    made = await mine.call("POST", "/accounts/me/agents", {"name": "shell", "config": config})
    assert made.status == 201, made.body
    return await _talk(process, session, "shell", command)


async def _set_up(process: GatewayProcess, session: aiohttp.ClientSession, workspaces: list[Any]) -> None:
    mine = ApiClient(session=session, url=process.url, key=process.key)
    shown = (await mine.call("GET", "/accounts/me/agents/default")).body["config"]
    await mine.call(
        "POST", "/accounts/me/sandboxes", {"name": "free", "config": {"permissionMode": "bypass"}}
    )
    for name in ("code", "notes"):
        await mine.call("POST", "/accounts/me/workspaces", {"name": name})
        url = f"{process.url}/accounts/me/workspaces/{name}/files/which.txt"
        headers = {"Authorization": f"Bearer {process.key}"}
        async with session.put(url, data=BytesIO(name.encode()), headers=headers) as answer:
            assert answer.status == 204
    config = {key: shown[key] for key in ("model", "base_url")} | {
        "sandbox": "free",
        "workspaces": workspaces,
    }
    made = await mine.call("POST", "/accounts/me/agents", {"name": "worker", "config": config})
    assert made.status == 201, made.body


def _env(model: OpenAIServer) -> dict[str, str]:
    return {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}


async def test_a_call_names_the_workspace_it_works_in(tmp_path: Path) -> None:
    """Without a name the first one is meant; what one holds the other does not; a wrong name is refused."""
    script = [
        ScriptedTurn(calls=[ToolCall(name="read", args={"path": "which.txt"})]),
        ScriptedTurn(calls=[ToolCall(name="read", args={"path": "which.txt", "workspace": "second"})]),
        ScriptedTurn(calls=[ToolCall(name="bash", args={"command": "cat which.txt", "workspace": "second"})]),
        ScriptedTurn(calls=[ToolCall(name="read", args={"path": "which.txt", "workspace": "third"})]),
        ScriptedTurn(calls=[ToolCall(name="bash", args={"command": "ls .."})]),
        ScriptedTurn(text="Done."),
    ]
    uses = [{"name": "first", "workspaceId": "code"}, {"name": "second", "workspaceId": "notes"}]
    async with OpenAIServer(script) as model, aiohttp.ClientSession() as session:
        async with gateway(tmp_path / "data", env=_env(model)) as process:
            await _set_up(process, session, uses)
            assert await _talk(process, session, "worker") == "Done."
            typed = await _type_command(process, session, uses[:1], "!cd .. && echo pigeon")
        reported = [last_text(body) for body in model.bodies[1:]]
    assert reported[4].startswith("'..' leads out of the working directory")
    assert "pigeon\n" in typed
    assert "Note: '..' leads out of the working directory" in typed
    assert reported[0] == "     1\tcode"
    assert reported[1] == "     1\tnotes"
    assert "notes" in reported[2]
    assert "first, second" in reported[3]
    tools = {one["function"]["name"]: one["function"]["parameters"] for one in model.bodies[0]["tools"]}
    assert tools["bash"]["properties"]["workspace"]["enum"] == ["first", "second"]
    assert "workspace" not in tools["async_status"]["properties"]


async def test_without_a_sandbox_a_workspace_is_read_alone(tmp_path: Path) -> None:
    """`sandbox: null` offers read, glob and search and nothing else; they read the workspace store."""
    script = [
        ScriptedTurn(calls=[ToolCall(name="glob", args={"pattern": "**/*.txt"})]),
        ScriptedTurn(calls=[ToolCall(name="read", args={"path": "which.txt"})]),
        ScriptedTurn(calls=[ToolCall(name="read", args={"path": "../../key"})]),
        ScriptedTurn(calls=[ToolCall(name="bash", args={"command": "id"})]),
        ScriptedTurn(calls=[ToolCall(name="search", args={"text": "note"})]),
        ScriptedTurn(text="Done."),
    ]
    uses = [{"name": "papers", "workspaceId": "notes", "sandbox": None}]
    async with OpenAIServer(script) as model, aiohttp.ClientSession() as session:
        async with gateway(tmp_path / "data", env=_env(model)) as process:
            await _set_up(process, session, uses)
            assert await _talk(process, session, "worker") == "Done."
        reported = [last_text(body) for body in model.bodies[1:]]
    offered = {one["function"]["name"] for one in model.bodies[0]["tools"]}
    assert {"read", "glob", "search"} <= offered
    assert not offered & {"bash", "write", "edit", "grep", "list_files", "deliver_file", "stat", "remove"}
    assert reported[0] == "which.txt"
    assert reported[1] == "     1\tnotes"
    assert "dvk_" not in reported[2]
    assert "uid=" not in reported[3]
    assert reported[4] == "which.txt:1:notes"
