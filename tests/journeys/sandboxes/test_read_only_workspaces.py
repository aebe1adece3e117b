"""An agent that only reads a workspace changes it nowhere, also where the files are synced."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import cloud_gateways
from api_server import ApiClient, ApiResponse
from gateway_process import gateway
from repetitions import in_gate
from sandbox import registry
from sandbox.port import Feature

PROVIDERS = {
    "agentrun": cloud_gateways.agentrun,
    "daytona": cloud_gateways.daytona,
    "e2b": cloud_gateways.e2b,
}
if os.environ.get("DOVECOTE_TEST_EVERY_PROVIDER"):
    PROVIDERS |= {"kubernetes": cloud_gateways.kubernetes, "lambda": cloud_gateways.aws_lambda}


def _has(provider: str, feature: Feature) -> bool:
    return feature in registry.plugin(provider).features


class Readers:
    """The agents `reads` and `writes`, which use one workspace with one sandbox record."""

    def __init__(self, mine: ApiClient) -> None:
        self._mine = mine

    async def create(self, provider: str) -> None:
        """Create the records; the sandbox is reserved where the provider can."""
        box = {
            "provider": provider,
            "permissionMode": "bypass",
            "persistent": _has(provider, Feature.PERSISTENT),
        }
        await self._create("workspaces", "work", {})
        await self._create("sandboxes", "box", box)
        use = {"name": "work", "workspaceId": "work"}
        await self._create("agents", "writes", {"sandbox": "box", "workspaces": [use]})
        await self._create("agents", "reads", {"sandbox": "box", "workspaces": [use | {"readOnly": True}]})

    async def _create(self, kind: str, name: str, config: object) -> None:
        made = await self._mine.call("POST", f"/accounts/me/{kind}", {"name": name, "config": config})
        assert made.status == 201, made.body

    async def turn(self, agent: str, text: str) -> str:
        """Return the answer of an agent in its conversation."""
        body = {"input": text, "conversation": f"demo-{agent}"}
        taken = await self._mine.call("POST", f"/agents/{agent}/turns", body)
        assert taken.status == 202, taken.body
        return str((await self._ended(taken.body["turnId"])).body["output"])

    async def wait_for_job(self) -> None:
        """Wait until the only job has ended well."""
        job = (await self._mine.call("GET", "/jobs")).body["items"][0]["resultId"]
        assert (await self._ended(job)).body["state"] == "completed"

    async def _ended(self, result: str) -> ApiResponse:
        async with asyncio.timeout(60):
            while True:
                answer = await self._mine.call("GET", f"/status/{result}")
                if answer.body["state"] not in ("queued", "running"):
                    return answer
                await asyncio.sleep(0.05)

    async def files(self) -> dict[str, bytes]:
        """Return the stored files of the workspace."""
        below = "/accounts/me/workspaces/work/files"
        names = [one["name"] for one in (await self._mine.call("GET", below)).body["items"]]
        return {name: (await self._mine.call("GET", f"{below}/{name}")).body for name in names}


@asynccontextmanager
async def _readers(directory: Path, provider: str) -> AsyncIterator[Readers]:
    async with gateway(directory, env=PROVIDERS[provider]()) as process, process.http() as session:
        readers = Readers(ApiClient(session=session, url=process.url, key=process.key))
        await readers.create(provider)
        yield readers


@pytest.mark.parametrize("provider", in_gate((one for one in PROVIDERS if _has(one, Feature.JOBS)), {"e2b"}))
async def test_a_readers_background_job_changes_no_stored_file(tmp_path: Path, provider: str) -> None:
    """Neither the job's end nor a later turn of a writer brings into the store what a reader's job wrote."""
    async with _readers(tmp_path / "data", provider) as both:
        await both.turn("writes", "!echo mine > note.txt; echo kept > kept.txt")
        written = {"note.txt": b"mine\n", "kept.txt": b"kept\n"}
        assert await both.files() == written
        await both.turn("reads", "!& echo x > stolen; echo x > note.txt; rm kept.txt; sleep 1")
        await both.wait_for_job()
        assert await both.files() == written
        assert "stolen" not in await both.turn("writes", "!ls; touch seen.txt")
        assert await both.files() == {**written, "seen.txt": b""}


@pytest.mark.parametrize("provider", in_gate(PROVIDERS, {"e2b"}))
async def test_what_a_reader_writes_is_in_no_writers_sandbox(tmp_path: Path, provider: str) -> None:
    """A reader sees the writer's files, and a writer's next turn stores only the writer's."""
    async with _readers(tmp_path / "data", provider) as both:
        await both.turn("writes", "!echo mine > note.txt; echo kept > kept.txt")
        written = {"note.txt": b"mine\n", "kept.txt": b"kept\n"}
        assert "mine" in await both.turn(
            "reads", "!cat note.txt; echo x > stolen; echo x > note.txt; rm kept.txt"
        )
        assert await both.files() == written
        listed = await both.turn("writes", "!ls; cat note.txt; touch seen.txt")
        assert "mine" in listed
        assert "stolen" not in listed
        assert await both.files() == {**written, "seen.txt": b""}
