"""A script of the workspace that is a background job: its result comes home after a kill of the gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from gateway_process import gateway
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, last_text

WAIT_SECONDS = 60.0
SCRIPT = """import json, os, sys, time
bird = json.load(sys.stdin)["bird"]
while not os.path.exists("go"):
    time.sleep(0.05)
print("counted " + str(len(bird)) + " letters of " + bird)
"""
PARAMETERS = {"type": "object", "properties": {"bird": {"type": "string"}}, "required": ["bird"]}
MANIFEST = {
    "count": {"script": "count it.py", "description": "Count.", "parameters": PARAMETERS, "async": True}
}
BIRD = "dove'; $(exit 9)"


def _model(body: dict[str, Any]) -> ScriptedTurn:
    text = last_text(body)
    if body["messages"][-1]["role"] == "tool":
        return ScriptedTurn(text=f"started {json.loads(text)['resultId']}")
    if "counted" in text:
        return ScriptedTurn(text="The count is home.")
    return ScriptedTurn(calls=[ToolCall(name="count", args={"bird": BIRD})])


async def _prepare(session: aiohttp.ClientSession) -> None:
    files = {"tools.json": json.dumps(MANIFEST), "count%20it.py": SCRIPT}
    for path, content in files.items():
        async with session.put(f"/accounts/me/workspaces/default/files/{path}", data=content) as answer:
            assert answer.ok, await answer.text()
    changes: dict[str, Any] = {
        "agents/default": {"tools": {"scripts": "tools.json"}},
        "sandboxes/default": {"permissionMode": "bypass"},
    }
    for record, config in changes.items():
        async with session.patch(f"/accounts/me/{record}", json={"config": config}) as answer:
            assert answer.ok, await answer.text()


async def _wait_for(session: aiohttp.ClientSession, item: str) -> dict[str, Any]:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            async with session.get(f"/status/{item}") as answer:
                found = dict(await answer.json())
            if found["state"] in {"completed", "failed", "cancelled", "stopped", "lost"}:
                return found
            await asyncio.sleep(0.05)


async def test_a_script_that_is_a_job_survives_a_kill(tmp_path: Path) -> None:
    """The model gets the result's id at once; the gateway dies; the result starts the follow-up turn."""
    async with OpenAIServer(_model) as model:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        async with gateway(tmp_path / "data", env=env) as process:
            async with process.http() as session:
                await _prepare(session)
                body = {"conversation": "one", "input": "count, please"}
                async with session.post("/agents/default/turns", json=body) as answer:
                    queued = await answer.json()
                output = (await _wait_for(session, queued["turnId"]))["output"]
                assert output.startswith("started "), output
                result = output.removeprefix("started ")
            await process.kill()
            await process.start()
            async with process.http() as session:
                async with session.put("/accounts/me/workspaces/default/files/go", data="now") as answer:
                    assert answer.ok, await answer.text()
                job = await _wait_for(session, result)
                assert (job["state"], job["output"].strip()) == (
                    "completed",
                    f"counted {len(BIRD)} letters of {BIRD}",
                )
                async with asyncio.timeout(WAIT_SECONDS):
                    while "The count is home." not in json.dumps(  # noqa: ASYNC110 - it happens in the gateway
                        await process.events(queued["conversationId"])
                    ):
                        await asyncio.sleep(0.05)
