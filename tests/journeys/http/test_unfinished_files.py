"""A file of `outbox/` that a job is still writing is not sent by turns or other jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from api_server import ApiClient
from files_gateway import FilesGateway
from gateway_process import gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAUSED = """!&mkdir -p outbox; exec 3>outbox/{name}.txt; echo first >&3
while ! test -e {name}.more; do sleep 0.01; done; echo second >&3; touch {name}.paused
while ! test -e {name}.end; do sleep 0.01; done; echo last >&3"""
"""A job that writes while a turn runs, and then pauses with the file open."""

BESIDE = """!until test -s outbox/{name}.txt; do sleep 0.01; done; echo own > outbox/own-{name}.txt
touch {name}.more; until test -e {name}.paused; do sleep 0.01; done"""


WHOLE = len("first\nsecond\nlast\n")


async def sent_sizes(gateway: FilesGateway, conversation: str, name: str, *, jobs: int) -> list[int]:
    """Return the sizes with which a file was sent until so many jobs had ended.

    The turn that lets a job end may send the file itself, if the job is quick enough to close it.
    """
    async with asyncio.timeout(30):
        while len(ended := await gateway.events_of_kind(conversation, "job.completed")) < jobs:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    events = [*ended, *await gateway.events_of_kind(conversation, "message.completed")]
    return [file["size"] for event in events for file in event["files"] if file["name"] == name]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def files_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FilesGateway]:
    """Run one gateway for all tests."""
    async with (
        gateway(tmp_path_factory.mktemp("files") / "data") as process,
        aiohttp.ClientSession() as session,
    ):
        mine = ApiClient(session=session, url=process.url, key=process.key)
        yield FilesGateway(process=process, mine=mine, other=mine, anonymous=mine)


async def test_a_file_that_a_job_writes_is_sent_when_it_is_complete(files_gateway: FilesGateway) -> None:
    """A turn beside the job sends its own file alone; the job's file comes whole with the job's end."""
    loop = "while ! test -e enough; do echo line >> outbox/growing.txt; sleep 0.002; done"
    conversation, _ = await files_gateway.turn("grow", f"!&mkdir -p outbox; {loop}")
    wait = "until test -s outbox/growing.txt; do sleep 0.01; done"
    _, beside = await files_gateway.turn("grow", f"!{wait}; echo own > outbox/own.txt; sleep 0.05")
    assert [one["name"] for one in beside.body["files"]] == ["own.txt"]
    await files_gateway.turn("grow", "!touch enough")
    ended = await files_gateway.first_event(conversation, "job.completed")
    assert [one["name"] for one in ended["files"]] == ["growing.txt"]


async def test_a_file_that_a_job_holds_open_is_not_sent(files_gateway: FilesGateway) -> None:
    """However long the job pauses, neither a turn nor the end of another job sends what it has begun."""
    conversation, _ = await files_gateway.turn("open", PAUSED.format(name="open"))
    _, beside = await files_gateway.turn("open", BESIDE.format(name="open"))
    assert [one["name"] for one in beside.body["files"]] == ["own-open.txt"]
    await files_gateway.turn("open", "!&true")
    brief = await files_gateway.first_event(conversation, "job.completed")
    assert brief["files"] == []
    await files_gateway.turn("open", "!touch open.end")
    assert await sent_sizes(files_gateway, conversation, "open.txt", jobs=2) == [WHOLE]


async def test_a_file_that_the_job_of_another_conversation_holds_open_is_not_sent(
    files_gateway: FilesGateway,
) -> None:
    """Conversations may share a workspace: a job of one is not disturbed by the turns of the other."""
    conversation, _ = await files_gateway.turn("writer", PAUSED.format(name="shared"))
    _, beside = await files_gateway.turn("neighbour", BESIDE.format(name="shared"))
    assert [one["name"] for one in beside.body["files"]] == ["own-shared.txt"]
    await files_gateway.turn("writer", "!touch shared.end")
    assert await sent_sizes(files_gateway, conversation, "shared.txt", jobs=1) == [WHOLE]
