"""Answers become voice files by an endpoint or a command, after their texts and never in their place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr
from sqlalchemy import select

from channels.errors import Rejected
from channels.message import Address, File, SentMessage
from channels.port import ChannelFeature, ChannelLimits
from chat_deliveries import chat_delivery
from delivery.broker.memory_events import MemoryEvents
from delivery.broker.wake_ups import MemoryWakeUps
from delivery.chat.file_sink import FileSink
from delivery.chat.rate_limit import RateLimiter
from delivery.chat.sink import ChatSink, ConnectedBot
from delivery.database.engine import Database
from delivery.database.tables import deliveries
from delivery.deliveries import routes
from delivery.deliveries.part import decode_part, encode_part
from delivery.deliveries.port import OutcomeKind
from delivery.deliveries.rendering import SpeechFormat, speech_part
from delivery.deliveries.route import Route
from delivery.deliveries.router import Router
from delivery.deliveries.transactions import Transactions
from delivery.events.event import Event, EventType
from delivery.events.relay import Relay
from gateway.config.file_settings import SpeechSettings
from gateway.files.speech import NotSpoken, Speaker, to_spoken_text
from gateway.files.wiring import speech_format
from memory_channel import MemoryChannel
from turn_worker import open_turn_worker

MP3 = b"\xff\xfb\x90\x00" + bytes(range(200))
FORMAT = SpeechFormat(suffix="mp3", media_type="audio/mpeg")


def speaker(**settings: Any) -> Speaker:
    """Return a speaker with these settings."""
    return Speaker(SpeechSettings(**settings))


def python(program: str) -> tuple[str, ...]:
    """Return a command that runs a program."""
    return ("python3", "-c", program)


@asynccontextmanager
async def service(answer: web.StreamResponse | None) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Run a service that answers so, or never; yields its URL and the requests that it gets."""
    requests: list[dict[str, Any]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        requests.append({"key": request.headers.get("Authorization"), **await request.json()})
        if answer is None:
            await asyncio.Event().wait()
        assert answer is not None
        return answer

    app = web.Application()
    app.router.add_post("/v1/audio/speech", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", requests
    await runner.cleanup()


async def test_an_endpoint_speaks_the_words() -> None:
    """It gets the key, the model, the voice and the words without marks."""
    async with service(web.Response(body=MP3)) as (url, requests):
        one = speaker(base_url=url, api_key=SecretStr("sk-1"), voice="onyx")
        assert await one.speak("**Done**, see [the page](https://example.org/).") == MP3
    words = {"input": "Done, see the page.", "model": "tts-1", "voice": "onyx", "response_format": "mp3"}
    assert requests == [{"key": "Bearer sk-1", **words}]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (web.Response(status=500), "HTTP 500"),
        (web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), "cannot be used"),
        (web.json_response({"error": "no voice"}), "no voice file"),
        (web.Response(body=b""), "no voice file"),
        (web.Response(body=b"\xff" * 2000), "more than"),
        (None, "longer than 0.5 seconds"),
    ],
    ids=["error", "redirect", "json", "nothing", "long", "never"],
)
async def test_an_endpoint_that_fails_is_explained(answer: web.StreamResponse | None, why: str) -> None:
    """Whatever it does, there is a reason."""
    async with service(answer) as (url, _requests):
        timeout = 0.5 if answer is None else 60
        with pytest.raises(NotSpoken, match=why):
            await speaker(base_url=url, timeout=timeout, max_bytes=1000).speak("hello")


async def test_a_command_speaks_the_words() -> None:
    """It reads them from its input; one that fails, or that writes text, is explained."""
    shout = "import sys; sys.stdout.buffer.write(b'OggS' + sys.stdin.buffer.read().upper())"
    assert await speaker(command=python(shout)).speak("hello") == b"OggSHELLO"
    for program, why in (("raise SystemExit(3)", "exit code 3"), ("print('hello')", "no voice file")):
        with pytest.raises(NotSpoken, match=why):
            await speaker(command=python(program)).speak("hello")
    with pytest.raises(NotSpoken, match="no words"):
        await speaker(command=python(shout)).speak("```\ncode\n```")


def test_long_answers_are_cut_between_words() -> None:
    """Code is left out, and so is what is beyond the limit."""
    assert to_spoken_text("# Title\n\n- one\n- two\n\n```\ncode", 100) == "Title\n\none\ntwo"
    assert to_spoken_text("one two three", 9) == "one two"
    assert to_spoken_text("x" * 50, 10) == "x" * 10


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("[the page](https://example.org/)", "the page"),
        ("[a word](https://example.org/A_(b)) and more", "a word and more"),
        ("![a picture](a.png)", "a picture"),
        ("[![a picture](a.png)](https://example.org/)", "a picture"),
        ("[not closed](https://example.org/", "[not closed](https://example.org/"),
    ],
)
def test_the_words_of_a_link_are_spoken(text: str, spoken: str) -> None:
    """Its target is left out, and so is that of a linked picture."""
    assert to_spoken_text(text, 100) == spoken


def test_answers_are_spoken_only_if_a_service_is_set() -> None:
    """The name and the type of the file are those of the format."""
    assert speech_format(SpeechSettings()) is None
    opus = speech_format(SpeechSettings(command=("say",), format="opus"))
    assert opus == SpeechFormat(suffix="ogg", media_type="audio/ogg")


async def test_the_answer_that_ends_a_turn_is_spoken_after_its_text(
    database: Database, tmp_path: Path
) -> None:
    """Earlier messages of the turn, notices, and turns that go on have no voice file."""
    harness = await open_turn_worker(database, tmp_path)
    router = Router(lambda _channel: ChannelLimits(text=4000), speech=FORMAT)
    relay = Relay(database, MemoryEvents(), lambda _name: None)
    transactions = Transactions(database, relay, router, MemoryWakeUps(), lambda _name: None)
    async with database.begin() as connection:
        chat = Route.to_chat(
            account=harness.agent.account,
            conversation=harness.conversation,
            address=Address(channel="chn_1", room="42"),
        )
        await routes.add_route(connection, chat)
    async with transactions.begin("turn.progress") as tx:
        tx.emit(message(harness.conversation, "msg_1", "Let me look."))
    async with transactions.begin("turn.finish") as tx:
        tx.emit(
            message(harness.conversation, "msg_2", "Nearly."),
            message(harness.conversation, "msg_3", "Done."),
            message(harness.conversation, "msg_4", "A note.", role="notice"),
            Event.now(EventType.TURN_COMPLETED, harness.conversation, {"attempt": 1}, turn="trn_1"),
        )
    async with database.read() as connection:
        rows = await connection.execute(select(deliveries.c.body).order_by(deliveries.c.position))
        parts = [decode_part(row.body) for row in rows]
    assert [part.file.id if part.file else part.text for part in parts] == [
        "Let me look.",
        "Nearly.",
        "Done.",
        "msg_3",
        "A note.",
    ]


def message(conversation: str, number: str, text: str, *, role: str = "assistant") -> Event:
    """Return the event of a message of the turn."""
    data = {"message": number, "role": role, "text": text, "files": []}
    return Event.now(EventType.MESSAGE_COMPLETED, conversation, data, turn="trn_1")


async def test_a_voice_file_that_cannot_be_made_or_sent_is_left_out() -> None:
    """It is uploaded once; without one, or without uploads, nothing takes its place."""
    event = message("cnv_1", "msg_1", "Done.")
    part = speech_part(event, FORMAT)
    assert decode_part(encode_part(part)) == part
    voices: list[bytes | None] = [MP3, None, MP3, MP3]

    async def speak(_message: str) -> bytes | None:
        return voices.pop(0)

    async def read(_file: str) -> bytes | None:
        raise AssertionError("a voice file is not stored")

    async def reject(_file: str, _why: str) -> None:
        raise AssertionError("nobody reads about a voice file that is left out")

    files = FileSink(read_content=read, create_link=lambda _file: None, on_rejected=reject, speak=speak)
    channel, limits = UploadingChannel(), ChannelLimits(text=4000, account_sends_per_second=1000)
    uploads, none = frozenset({ChannelFeature.UPLOAD}), frozenset[ChannelFeature]()
    for number, (features, refused) in enumerate([(uploads, 0), (uploads, 0), (uploads, 1), (none, 0)]):
        channel.errors.extend([Rejected("too large")] * refused)
        bot = ConnectedBot(sender=channel, features=features, rate_limiter=RateLimiter(limits), limits=limits)
        sink = ChatSink({"chn_1": bot}.get, attach=files.attach)
        assert (
            await sink.send(chat_delivery(event, part, number=number, place=1))
        ).kind is OutcomeKind.DELIVERED
    assert channel.files == [File(name="answer.mp3", media_type="audio/mpeg", content=MP3)]
    assert channel.texts("42") == []


@dataclass
class UploadingChannel(MemoryChannel):
    """A channel that takes files."""

    files: list[File] = field(default_factory=list)

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Add a file to the room."""
        del address, key
        if self.errors:
            raise self.errors.popleft()
        self.files.append(file)
        return SentMessage(platform_id=str(len(self.files)))
