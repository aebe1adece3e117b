"""What people see of a turn: the output of a running command, and the files that it changed."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway_process import gateway

FILES = "/accounts/me/workspaces/default/files"
ENDED = {"completed", "failed", "cancelled"}


@dataclass
class Inspector:
    """A client of a gateway with an agent on the built-in shell."""

    url: str
    key: str
    session: aiohttp.ClientSession

    async def call(self, method: str, path: str, **options: Any) -> tuple[int, bytes]:
        """Send a request."""
        headers = {"Authorization": f"Bearer {self.key}"}
        async with self.session.request(method, f"{self.url}{path}", headers=headers, **options) as answer:
            return answer.status, await answer.read()

    async def get(self, path: str) -> Any:
        """Return a JSON document."""
        status, body = await self.call("GET", path)
        assert status == 200, body
        return json.loads(body)

    async def start(self, text: str, conversation: str) -> dict[str, Any]:
        """Start a turn."""
        turn = {"input": text, "conversation": conversation}
        status, body = await self.call("POST", "/agents/default/turns", json=turn)
        assert status == 202, body
        started: dict[str, Any] = json.loads(body)
        return started

    async def finish(self, turn: str) -> dict[str, Any]:
        """Wait for the end of a turn."""
        async with asyncio.timeout(60):
            while (now := await self.get(f"/status/{turn}"))["state"] not in ENDED:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        assert now["state"] == "completed", now
        found: dict[str, Any] = now
        return found

    async def run(self, text: str, conversation: str) -> str:
        """Run a turn to its end and return its id."""
        started = await self.start(text, conversation)
        await self.finish(started["turnId"])
        return str(started["turnId"])

    async def changes(self, turn: str) -> dict[str, str | None]:
        """Return the files of a turn with what changed."""
        return {one["path"]: one["change"] for one in (await self.get(f"/turns/{turn}/files"))["files"]}


@pytest.fixture
async def inspector(tmp_path: Path) -> AsyncIterator[Inspector]:
    """Run a gateway."""
    async with gateway(tmp_path / "data") as process, aiohttp.ClientSession() as session:
        yield Inspector(process.url, process.key, session)


async def test_a_running_command_is_watched(inspector: Inspector) -> None:
    """Its output arrives before its end, and is not in the history afterwards."""
    wait = "until [ -e go ]; do sleep 0.1; done"
    started = await inspector.start(f"!echo first line; {wait}; echo last", "watched")
    conversation = started["conversationId"]
    events = f"{inspector.url}/conversations/{conversation}/events?after=0"
    headers = {"Authorization": f"Bearer {inspector.key}", "Accept": "text/event-stream"}
    deltas = []
    async with asyncio.timeout(60), inspector.session.get(events, headers=headers) as stream:
        async for line in stream.content:
            if line.startswith(b"data:") and (event := json.loads(line[5:])).get("type") == "tool.delta":
                deltas.append(event)
                break
    (delta,) = deltas
    assert (delta["data"]["stream"], delta["data"]["text"]) == ("stdout", "first line\n")
    assert "n" not in delta
    assert (await inspector.get(f"/status/{started['turnId']}"))["state"] == "running"
    assert (await inspector.call("PUT", f"{FILES}/go", data=b""))[0] == 204
    await inspector.finish(started["turnId"])
    page = (await inspector.get(f"/conversations/{conversation}/events?after=0"))["items"]
    calls = {one["data"]["call"] for one in page if one["type"] == "tool.called"}
    assert calls == {delta["data"]["call"]}
    assert "tool.delta" not in {one["type"] for one in page}


async def _check_restore(inspector: Inspector, first: str) -> None:
    """Everything is as it was after the first turn, also what a later one changed or removed."""
    refused = await inspector.call("POST", f"/turns/{first}/restore", json={"paths": ["/etc/passwd"]})
    assert refused[0] == 422
    status, body = await inspector.call("POST", f"/turns/{first}/restore", json={"paths": ["two"]})
    assert (status, json.loads(body)["items"][0]["state"]) == (200, "restored"), body
    status, body = await inspector.call("POST", f"/turns/{first}/restore", json={"remove": True})
    states = {one["path"]: one["state"] for one in json.loads(body)["items"]}
    assert states == {"three": "restored", "link": "removed"}
    assert json.loads(body)["unchanged"] == 2
    for path, text in {"two": b"two\n", "three": b"three\n", "d/one": b"one\n"}.items():
        assert await inspector.call("GET", f"{FILES}/{path}") == (200, text)
    assert (await inspector.call("GET", f"{FILES}:stat?path=link"))[0] == 404


async def test_the_files_of_a_turn_are_kept(inspector: Inspector) -> None:
    """As they were at its end, whatever happens later; a turn that changed nothing has none."""
    first = await inspector.run("!mkdir d; echo one >d/one; echo two >two; echo three >three", "kept")
    assert await inspector.changes(first) == {"d/one": "added", "three": "added", "two": "added"}
    second = await inspector.run("!echo 2 >two; rm three; ln -s /etc/passwd link", "kept")
    changes = {"two": "modified", "three": "deleted", "d/one": None, "link": "added"}
    assert await inspector.changes(second) == changes
    status, archive = await inspector.call("GET", f"/turns/{first}/files.tar.gz")
    assert status == 200
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert sorted(tar.getnames()) == ["d/one", "three", "two"]
        content = tar.extractfile("two")
        assert content is not None
        assert content.read() == b"two\n"
    link = (await inspector.get(f"/turns/{first}/files"))["archive"]["url"]
    async with inspector.session.get(link if "://" in link else f"{inspector.url}{link}") as shared:
        assert await shared.read() == archive
    status, diff = await inspector.call("GET", f"/turns/{second}/files.diff")
    assert (status, b"-two\n+2\n" in diff, b"-three\n" in diff) == (200, True, True)
    await _check_restore(inspector, first)
    nothing = await inspector.run("!cat two", "kept")
    assert (await inspector.get(f"/turns/{nothing}/files")) == {
        "files": [],
        "truncated": False,
        "kept": False,
        "archive": None,
    }
    assert (await inspector.call("GET", f"/turns/{nothing}/files.tar.gz"))[0] == 404
    assert (await inspector.call("GET", "/turns/trn_none/files"))[0] == 404


async def test_a_turn_is_continued_in_another_conversation(inspector: Inspector) -> None:
    """It finds the files of the turn; an agent without a workspace leaves nothing."""
    turn = await inspector.run("!echo found >left-behind", "one")
    status, body = await inspector.call("POST", f"/turns/{turn}/continue", json={"conversation": "next"})
    assert (status, json.loads(body)["shares"]) == (201, ["workspace", "sandbox"])
    opened = json.loads(body)["conversationId"]
    later = await inspector.run("!cat left-behind", opened)
    assert "found" in (await inspector.get(f"/status/{later}"))["output"]
    assert (await inspector.call("POST", f"/turns/{turn}/continue", json={"conversation": "next"}))[0] == 409
    assert (await inspector.call("POST", "/turns/trn_none/continue"))[0] == 404
    alone = {"name": "alone", "config": {"model": "builtin:shell"}}
    assert (await inspector.call("POST", "/accounts/me/agents", json=alone))[0] == 201
    started = json.loads(
        (await inspector.call("POST", "/agents/alone/turns", json={"input": "!echo gone >file"}))[1]
    )
    await inspector.finish(started["turnId"])
    status, body = await inspector.call("POST", f"/turns/{started['turnId']}/continue")
    assert status == 409
    assert "nothing of this turn is left" in json.loads(body)["detail"]
