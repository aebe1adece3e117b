"""Files in chats: attached once, or told of in words with a way to get them, and noted when refused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from channels.errors import (
    Ambiguous,
    ChannelError,
    NotPermitted,
    RateLimited,
    Rejected,
    Undeliverable,
    Unreachable,
)
from channels.message import Address, File, Reply, Sent
from channels.port import Feature, Limits
from delivery.chat.file_sink import FileSink
from delivery.chat.sink import ChatSink, reply_key
from delivery.database.engine import Unavailable
from delivery.deliveries.part import Enclosed, Part, decode_part, encode_part
from delivery.deliveries.port import Delivery, Outcome, Verdict
from memory_channel import MemoryChannel
from sink_harnesses import ROOM, a_bot, a_delivery

ENCLOSED = Enclosed(
    id="fil_1", name="result.txt", media_type="text/plain", size=6, path="outbox/result.txt", caption="here"
)
BODY = encode_part(Part(text="", file=ENCLOSED))
SMALL = Limits(text=4096, upload_bytes=1000, room_sends_per_second=1000, account_sends_per_second=1000)


@dataclass(slots=True)
class FileRoom(MemoryChannel):
    """A platform in memory that takes files."""

    files: list[tuple[Address, File, str]] = field(default_factory=list)

    async def upload(self, address: Address, file: File, *, key: str) -> Sent:
        """Keep the file."""
        await self._take("upload", Reply(text="", key=key))
        self.files.append((address, file, key))
        self._answer()
        return Sent(platform_id=f"file-{len(self.files)}")


@dataclass(slots=True)
class Stage:
    """The chat sink with files, in front of a platform."""

    features: frozenset[Feature] = frozenset({Feature.UPLOAD})
    channel: FileRoom = field(default_factory=FileRoom)
    public: bool = True
    contents: dict[str, bytes] = field(default_factory=lambda: {"fil_1": b"pigeon"})
    refused: list[tuple[str, str]] = field(default_factory=list)
    trouble: Exception | None = None

    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once."""
        sink = FileSink(
            content=self._content,
            link=lambda file: f"https://doves.example/files/{file.id}" if self.public else None,
            refused=self._note,
            upload_seconds=1,
        )
        bot = a_bot(self.channel, self.features, SMALL)
        return await ChatSink({"chn_1": bot}.get, attach=sink.attach).send(delivery)

    async def _content(self, file: str) -> bytes | None:
        if self.trouble is not None:
            raise self.trouble
        return self.contents.get(file)

    async def _note(self, file: str, why: str) -> None:
        self.refused.append((file, why))


def test_a_file_part_is_stored_and_read_again() -> None:
    """What the router plans is what the sink is given."""
    assert decode_part(BODY) == Part(text="", file=ENCLOSED)


async def test_a_file_is_attached_in_its_thread() -> None:
    """Bytes, name, type, caption and the delivery's own key reach the platform."""
    stage = Stage()
    outcome = await stage.send(a_delivery(body=BODY))
    assert outcome == Outcome(verdict=Verdict.DELIVERED, platform_id="file-1")
    ((address, file, key),) = stage.channel.files
    assert address == ROOM
    assert file == File(name="result.txt", media_type="text/plain", content=b"pigeon", caption="here")
    assert key == reply_key("dlv_1")
    assert not stage.refused


async def test_what_was_attached_is_not_attached_again() -> None:
    """A delivery that has its platform id shows already."""
    stage = Stage()
    outcome = await stage.send(a_delivery(body=BODY, platform_id="file-1"))
    assert outcome.verdict is Verdict.DELIVERED
    assert not stage.channel.calls


@pytest.mark.parametrize(
    ("features", "size", "trouble", "why"),
    [
        (frozenset[Feature](), 6, None, "takes no files"),
        ({Feature.UPLOAD}, 2000, None, "0.001 MB at the most"),
        ({Feature.UPLOAD}, 6, Rejected("it is too ugly"), "it is too ugly"),
        ({Feature.UPLOAD}, 6, NotPermitted("Attach Files"), "Attach Files"),
    ],
)
async def test_what_cannot_be_attached_is_told_in_words_with_a_link(
    features: frozenset[Feature], size: int, trouble: ChannelError | None, why: str
) -> None:
    """People read why and where to fetch it; the model is to be told as well."""
    stage = Stage(features=frozenset(features))
    if trouble is not None:
        stage.channel.trouble.append(trouble)
    body = encode_part(Part(text="", file=Enclosed(id="fil_1", name="r`.txt", media_type="a/b", size=size)))
    outcome = await stage.send(a_delivery(body=body))
    assert outcome.verdict is Verdict.DELIVERED
    (words,) = stage.channel.texts("42")
    assert why in words
    assert "`r'.txt`" in words
    assert words.endswith("https://doves.example/files/fil_1")
    ((file, noted),) = stage.refused
    assert (file, why in noted) == ("fil_1", True)


async def test_without_a_public_address_the_words_name_the_workspace() -> None:
    """A link nobody could open is not given."""
    stage = Stage(features=frozenset(), public=False)
    await stage.send(a_delivery(body=BODY))
    assert stage.channel.texts("42")[0].endswith("It lies in the workspace as `outbox/result.txt`.")


async def test_a_file_that_is_gone_is_told_of() -> None:
    """A delivery that waited longer than the file was kept ends in words."""
    stage = Stage(contents={})
    assert (await stage.send(a_delivery(body=BODY))).verdict is Verdict.DELIVERED
    assert "not kept any more" in stage.channel.texts("42")[0]


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (Unreachable("x"), Verdict.RETRY),
        (RateLimited(3), Verdict.RETRY),
        (Ambiguous("x"), Verdict.AMBIGUOUS),
        (Undeliverable("x"), Verdict.GIVE_UP),
    ],
)
async def test_passing_trouble_is_judged_as_for_words(error: ChannelError, verdict: Verdict) -> None:
    """No words replace a file that may yet be attached."""
    stage = Stage()
    stage.channel.trouble.append(error)
    assert (await stage.send(a_delivery(body=BODY))).verdict is verdict
    assert not stage.channel.texts("42")
    assert not stage.refused


async def test_bytes_that_cannot_be_read_now_are_read_later() -> None:
    """The database or the broker may be away."""
    stage = Stage(trouble=Unavailable("away"))
    assert (await stage.send(a_delivery(body=BODY))).verdict is Verdict.RETRY
    assert not stage.channel.calls


async def test_a_platform_that_is_silent_ends_in_time() -> None:
    """An upload without an answer may have arrived."""
    stage = Stage()
    stage.channel.frozen = asyncio.Event()
    assert (await stage.send(a_delivery(body=BODY))).verdict is Verdict.AMBIGUOUS
