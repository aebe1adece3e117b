"""Files in chats: attached once, or described with a link, and recorded when refused."""

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
from channels.message import Address, File, Reply, SentMessage
from channels.port import ChannelFeature, ChannelLimits
from delivery.chat.file_sink import FileSink
from delivery.chat.sink import ChatSink, idempotency_key
from delivery.database.engine import DatabaseUnavailable
from delivery.deliveries.part import FilePart, Part, decode_part, encode_part
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind
from memory_channel import MemoryChannel
from sink_harnesses import ROOM, make_bot, make_delivery

FILE_PART = FilePart(
    id="fil_1", name="result.txt", media_type="text/plain", size=6, path="outbox/result.txt", caption="here"
)
BODY = encode_part(Part(text="", file=FILE_PART))
SMALL = ChannelLimits(text=4096, upload_bytes=1000, room_sends_per_second=1000, account_sends_per_second=1000)


@dataclass(slots=True)
class FileChannel(MemoryChannel):
    """A platform in memory that accepts files."""

    files: list[tuple[Address, File, str]] = field(default_factory=list)

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Keep the file."""
        await self._record_call("upload", Reply(text="", key=key))
        self.files.append((address, file, key))
        self._finish_call()
        return SentMessage(platform_id=f"file-{len(self.files)}")


@dataclass(slots=True)
class FileSinkHarness:
    """The chat sink with files, in front of a platform."""

    features: frozenset[ChannelFeature] = frozenset({ChannelFeature.UPLOAD})
    channel: FileChannel = field(default_factory=FileChannel)
    public: bool = True
    contents: dict[str, bytes] = field(default_factory=lambda: {"fil_1": b"pigeon"})
    refused: list[tuple[str, str]] = field(default_factory=list)
    content_error: Exception | None = None

    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once."""
        sink = FileSink(
            read_content=self._content,
            create_link=lambda file: f"https://doves.example/files/{file.id}" if self.public else None,
            on_rejected=self._record_refusal,
            upload_seconds=1,
        )
        bot = make_bot(self.channel, self.features, SMALL)
        return await ChatSink({"chn_1": bot}.get, attach=sink.attach).send(delivery)

    async def _content(self, file: str) -> bytes | None:
        if self.content_error is not None:
            raise self.content_error
        return self.contents.get(file)

    async def _record_refusal(self, file: str, why: str) -> None:
        self.refused.append((file, why))


def test_a_file_part_is_stored_and_read_again() -> None:
    """What the router plans is what the sink is given."""
    assert decode_part(BODY) == Part(text="", file=FILE_PART)


async def test_a_file_is_attached_in_its_thread() -> None:
    """Bytes, name, type, caption and the delivery's own key reach the platform."""
    harness = FileSinkHarness()
    outcome = await harness.send(make_delivery(body=BODY))
    assert outcome == Outcome(kind=OutcomeKind.DELIVERED, platform_id="file-1")
    ((address, file, key),) = harness.channel.files
    assert address == ROOM
    assert file == File(name="result.txt", media_type="text/plain", content=b"pigeon", caption="here")
    assert key == idempotency_key("dlv_1")
    assert not harness.refused


TEXT_FILE = FilePart(id="msg_1", name="answer.txt", media_type="text/plain", size=5000, is_text=True)


async def test_a_long_text_is_attached_as_the_platform_allows() -> None:
    """Beyond the platform's limit its middle is left out."""
    harness = FileSinkHarness(contents={"msg_1": b"begin" + b"." * 5000 + b"end"})
    outcome = await harness.send(make_delivery(body=encode_part(Part(text="", file=TEXT_FILE))))
    assert outcome.kind is OutcomeKind.DELIVERED
    ((_, file, _),) = harness.channel.files
    assert len(file.content) <= SMALL.upload_bytes
    assert file.content.startswith(b"begin")
    assert file.content.endswith(b"end")


@pytest.mark.parametrize("problem", [None, Rejected("no text files")])
async def test_where_no_file_can_be_sent_the_end_of_a_text_is(problem: ChannelError | None) -> None:
    """The beginning was sent before; no rejected file is reported to the model."""
    features = frozenset() if problem is None else frozenset({ChannelFeature.UPLOAD})
    harness = FileSinkHarness(features=features, contents={"msg_1": b"." * 5000 + b"the end"})
    if problem is not None:
        harness.channel.errors.append(problem)
    await harness.send(make_delivery(body=encode_part(Part(text="", file=TEXT_FILE))))
    (text,) = harness.channel.texts("42")
    assert text.rstrip("`\n").endswith("the end")
    assert not harness.refused


async def test_what_was_attached_is_not_attached_again() -> None:
    """A delivery that has its platform id shows already."""
    harness = FileSinkHarness()
    outcome = await harness.send(make_delivery(body=BODY, platform_id="file-1"))
    assert outcome.kind is OutcomeKind.DELIVERED
    assert not harness.channel.calls


@pytest.mark.parametrize(
    ("features", "size", "problem", "why"),
    [
        (frozenset[ChannelFeature](), 6, None, "does not accept files"),
        ({ChannelFeature.UPLOAD}, 2000, None, "at most 0.001 MB"),
        ({ChannelFeature.UPLOAD}, 6, Rejected("it is too ugly"), "it is too ugly"),
        ({ChannelFeature.UPLOAD}, 6, NotPermitted("Attach Files"), "Attach Files"),
    ],
)
async def test_what_cannot_be_attached_is_described_with_a_link(
    features: frozenset[ChannelFeature], size: int, problem: ChannelError | None, why: str
) -> None:
    """The chat gets the reason and a link; the model gets a note as well."""
    harness = FileSinkHarness(features=frozenset(features))
    if problem is not None:
        harness.channel.errors.append(problem)
    body = encode_part(Part(text="", file=FilePart(id="fil_1", name="r`.txt", media_type="a/b", size=size)))
    outcome = await harness.send(make_delivery(body=body))
    assert outcome.kind is OutcomeKind.DELIVERED
    (words,) = harness.channel.texts("42")
    assert why in words
    assert "`r'.txt`" in words
    assert words.endswith("https://doves.example/files/fil_1")
    ((file, noted),) = harness.refused
    assert (file, why in noted) == ("fil_1", True)


async def test_without_a_public_address_the_words_name_the_workspace() -> None:
    """A link that would not work is left out."""
    harness = FileSinkHarness(features=frozenset(), public=False)
    await harness.send(make_delivery(body=BODY))
    assert harness.channel.texts("42")[0].endswith("It is in the workspace as `outbox/result.txt`.")


async def test_a_file_that_is_gone_is_reported() -> None:
    """A delivery that waited longer than the file is retained ends as text."""
    harness = FileSinkHarness(contents={})
    assert (await harness.send(make_delivery(body=BODY))).kind is OutcomeKind.DELIVERED
    assert "no longer stored" in harness.channel.texts("42")[0]


@pytest.mark.parametrize(
    ("error", "decision"),
    [
        (Unreachable("x"), OutcomeKind.RETRY),
        (RateLimited(3), OutcomeKind.RETRY),
        (Ambiguous("x"), OutcomeKind.AMBIGUOUS),
        (Undeliverable("x"), OutcomeKind.GIVE_UP),
    ],
)
async def test_a_temporary_failure_is_handled_as_for_texts(
    error: ChannelError, decision: OutcomeKind
) -> None:
    """No words replace a file that may yet be attached."""
    harness = FileSinkHarness()
    harness.channel.errors.append(error)
    assert (await harness.send(make_delivery(body=BODY))).kind is decision
    assert not harness.channel.texts("42")
    assert not harness.refused


async def test_bytes_that_cannot_be_read_now_are_read_later() -> None:
    """The database or the broker may be away."""
    harness = FileSinkHarness(content_error=DatabaseUnavailable("away"))
    assert (await harness.send(make_delivery(body=BODY))).kind is OutcomeKind.RETRY
    assert not harness.channel.calls


async def test_a_platform_that_is_silent_ends_in_time() -> None:
    """An upload without an answer may have arrived."""
    harness = FileSinkHarness()
    harness.channel.frozen = asyncio.Event()
    assert (await harness.send(make_delivery(body=BODY))).kind is OutcomeKind.AMBIGUOUS
