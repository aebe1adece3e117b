"""Every stream of an answer says that its model does not answer, why, and when the next attempt is."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import aiohttp

from gateway_process import gateway

MESSAGE = {"role": "user", "content": "hello"}
UI_MESSAGE = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
A2A_MESSAGE = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
RUN = {"threadId": "run", "runId": "r1", "state": {}, "tools": [], "context": [], "forwardedProps": {}}
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "default", "stream": True, "messages": [MESSAGE]},
    "/v1/responses": {"model": "default", "stream": True, "input": "hello"},
    "/agents/default/ui": {"id": "chat", "messages": [UI_MESSAGE], "trigger": "submit-message"},
    "/agui": {**RUN, "messages": [{**MESSAGE, "id": "m1"}]},
    "/a2a": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendStreamingMessage",
        "params": {"message": A2A_MESSAGE},
    },
}
"""The streams of the compatible interfaces, and a request of each."""


async def first_delay(session: aiohttp.ClientSession, path: str) -> str:
    """Return the line of a stream that shows the first failed attempt."""
    headers = {"A2A-Version": "1.0"} if path == "/a2a" else {}
    async with session.post(path, json=STREAMS[path], headers=headers) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if b"could not be reached" in line:
                return line.decode().strip()
    raise AssertionError(f"{path} ended without its delay")


async def test_each_stream_shows_a_failed_attempt_and_the_next_one(tmp_path: Path) -> None:
    """No model listens; the streams that have no place for it have a comment."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        env = {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": f"http://127.0.0.1:{unused.getsockname()[1]}/v1",
        }
        async with gateway(tmp_path / "data", env=env) as process, process.http() as session:
            async with asyncio.timeout(60):
                lines = await asyncio.gather(*(first_delay(session, path) for path in STREAMS))
    chat, response, ui, run, task = lines
    assert all(line.startswith(": ") and "; next attempt at 20" in line for line in (chat, response))
    chunk = json.loads(ui.removeprefix("data: "))
    assert (chunk["type"], chunk["transient"]) == ("data-delay", True)
    event = json.loads(run.removeprefix("data: "))
    assert (event["type"], event["name"]) == ("CUSTOM", "dovecote.delayed")
    assert set(chunk["data"]) == set(event["value"]) == {"reason", "nextAttempt"}
    status = json.loads(task.removeprefix("data: "))["result"]["statusUpdate"]["status"]
    assert status["state"] == "TASK_STATE_WORKING"
    assert "; next attempt at 20" in status["message"]["parts"][0]["text"]
