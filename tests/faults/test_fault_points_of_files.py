"""Kill the gateway at every step of a file, in and out: it arrives once, or is reported once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from channels.telegram.simulator import Simulator, simulate
from channels.telegram.simulator.failure import ApiFailure
from channels.telegram.simulator.faults import Fault
from gateway_process import GatewayProcess, channel_env

CHAT = 7
TIMEOUT_SECONDS = 40.0

OUTGOING_POINTS = ("file.kept", "file.stage.before_commit", "file.stage.after_commit")
INCOMING_POINTS = (
    ("file.arrive.before_commit", "file.arrive.after_commit", "file.fetched"),
    ("file.written", "file.arrive.before_commit", "file.arrive.after_commit"),
)
"""First an attachment's name is written down, then it is fetched, put away, and written down as received."""

NOTE_POINTS = ("file.note.before_commit", "file.note.after_commit")


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run Telegram on loopback."""
    async with simulate() as simulator:
        yield simulator


@pytest.fixture
async def process(platform: Simulator, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Have a gateway with a Telegram channel and a public address, not started yet."""
    env = channel_env("telegram", platform.settings())
    gateway = GatewayProcess(tmp_path / "data", env=env | {"DOVECOTE_PUBLIC_URL": "https://doves.example"})
    yield gateway
    await gateway.stop()


async def run_until_killed(process: GatewayProcess, point: str, *, first: bool) -> None:
    """Run until a point kills the gateway; the first time, the message is sent after it is ready."""
    if not first:
        await process.start(env={"DOVECOTE_FAULT_POINT": point}, wait=False)
    assert await process.wait_for_exit() == -9, point


async def until(platform: Simulator, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds for the chat's messages."""
    await platform.wait_until(condition, seconds=TIMEOUT_SECONDS)


def documents(platform: Simulator) -> list[tuple[str, bytes]]:
    """Return what the bot attached."""
    return [
        (post.raw["document"]["file_name"], post.file or b"")
        for post in platform.messages(CHAT)
        if "document" in post.raw
    ]


def texts(platform: Simulator) -> list[str]:
    """Return the texts of the bot's messages without an attachment, in order."""
    return [post.text for post in platform.messages(CHAT) if "document" not in post.raw]


def count_messages(platform: Simulator, text: str) -> int:
    """Count the bot's messages with this text."""
    return sum(text in post.text for post in platform.messages(CHAT))


async def test_a_result_arrives_once_whatever_point_of_its_way_kills(
    platform: Simulator, process: GatewayProcess
) -> None:
    """Killed after the bytes are stored and around the file's row, the file is attached exactly once."""
    await process.start(env={"DOVECOTE_FAULT_POINT": OUTGOING_POINTS[0]})
    await platform.say(CHAT, "!mkdir -p outbox; echo pigeon > outbox/result.txt; echo flown")
    for place, point in enumerate(OUTGOING_POINTS):
        await run_until_killed(process, point, first=place == 0)
    await process.start()
    await until(platform, lambda: bool(documents(platform)))
    await platform.say(CHAT, "!echo second")
    await until(platform, lambda: "second" in texts(platform))
    assert documents(platform) == [("result.txt", b"pigeon\n")]
    assert texts(platform) == ["flown", "second"]


@pytest.mark.parametrize("points", INCOMING_POINTS, ids=["named and fetched", "written and recorded"])
async def test_an_attachment_has_one_name_whatever_point_of_its_way_kills(
    points: tuple[str, ...], platform: Simulator, process: GatewayProcess
) -> None:
    """Killed while it is named, fetched, written or recorded, it lies in the inbox once."""
    await process.start(env={"DOVECOTE_FAULT_POINT": points[0]})
    await platform.send_file(
        CHAT, b"%PDF-1.4", name="report.pdf", media_type="application/pdf", caption="!ls -1 inbox | cat -n"
    )
    for place, point in enumerate(points):
        await run_until_killed(process, point, first=place == 0)
    await process.start()
    await until(platform, lambda: count_messages(platform, "1\treport.pdf") > 0)
    await platform.say(CHAT, "!echo second")
    await until(platform, lambda: "second" in texts(platform))
    (answer,) = texts(platform)[:-1]
    assert answer.split() == ["1", "report.pdf"]


async def test_a_refused_attachment_is_reported_once_whatever_point_kills(
    platform: Simulator, process: GatewayProcess
) -> None:
    """Telegram refuses the file: the chat gets the reason and a link, whatever note the gateway died at."""
    refusal = ApiFailure(400, "Bad Request: file is too ugly")
    platform.faults.add(Fault("fail", 10, method="sendDocument", failure=refusal))
    await process.start(env={"DOVECOTE_FAULT_POINT": NOTE_POINTS[0]})
    await platform.say(CHAT, "!mkdir -p outbox; echo pigeon > outbox/result.txt; echo flown")
    for place, point in enumerate(NOTE_POINTS):
        await run_until_killed(process, point, first=place == 0)
    await process.start()
    await until(platform, lambda: count_messages(platform, "could not attach") > 0)
    (words,) = [post.text for post in platform.messages(CHAT) if "could not attach" in post.text]
    assert "file is too ugly" in words
    assert "https://doves.example/files/fil_" in words
    await platform.say(CHAT, "what happened?")
    await until(platform, lambda: count_messages(platform, "outbox/result.txt could not be attached") > 0)
    assert documents(platform) == []
