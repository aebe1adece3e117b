"""Voice messages become text by an endpoint or a command, within limits of time and size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr

from gateway.config.file_settings import TranscriptionSettings
from gateway.files.transcription import MAX_TEXT_BYTES, NotTranscribed, Transcriber

OGG = b"OggS" + bytes(range(200))


def transcriber(**settings: Any) -> Transcriber:
    """Return a transcriber with these settings."""
    return Transcriber(TranscriptionSettings(**settings))


def python(program: str) -> tuple[str, ...]:
    """Return a command that runs a program."""
    return ("python3", "-c", program)


@asynccontextmanager
async def service(answer: web.StreamResponse | None) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Run a service that answers so, or never; yields its URL and the forms that it gets."""
    forms: list[dict[str, Any]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        form = await request.post()
        file = form["file"]
        assert isinstance(file, web.FileField)
        sent = {"key": request.headers.get("Authorization"), "model": form["model"], "name": file.filename}
        forms.append({**sent, "content": file.file.read()})
        file.file.close()
        if answer is None:
            await asyncio.Event().wait()
        assert answer is not None
        return answer

    app = web.Application()
    app.router.add_post("/v1/audio/transcriptions", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", forms
    await runner.cleanup()


async def test_an_endpoint_gets_the_file_once() -> None:
    """It gets the key, the model and the bytes; the same file again is not sent again."""
    async with service(web.json_response({"text": " good morning\n"})) as (url, forms):
        one = transcriber(base_url=url, api_key=SecretStr("sk-1"), model="large")
        for _ in range(2):
            assert await one.transcribe("voice.ogg", OGG, digest="d") == "good morning"
    assert forms == [{"key": "Bearer sk-1", "model": "large", "name": "voice.ogg", "content": OGG}]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (web.Response(status=500), "HTTP 500"),
        (web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), "cannot be used"),
        (web.json_response(["text"]), "without a text"),
        (web.Response(text="no json"), "without a text"),
        (web.json_response({"text": " "}), "no words"),
        (web.json_response({"text": "x" * MAX_TEXT_BYTES}), "more than"),
        (None, "longer than 0.5 seconds"),
    ],
    ids=["error", "redirect", "list", "text", "silence", "long", "never"],
)
async def test_an_endpoint_that_fails_is_explained(answer: web.StreamResponse | None, why: str) -> None:
    """Whatever it does, the turn gets a reason and goes on."""
    async with service(answer) as (url, _forms):
        one = transcriber(base_url=url, timeout=0.5 if answer is None else 60)
        with pytest.raises(NotTranscribed, match=why):
            await one.transcribe("voice.ogg", OGG, digest="d")


async def test_a_command_reads_the_file_and_prints_the_text() -> None:
    """It gets the file as its input, and nothing of the gateway's environment."""
    program = "import os, sys; n = len(sys.stdin.buffer.read()); print(n, 'DOVECOTE_KEY' in os.environ)"
    said = await transcriber(command=python(program)).transcribe("voice.ogg", OGG, digest="d")
    assert said == f"{len(OGG)} False"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("no-such-command-here",), "cannot be run"),
        (python("raise SystemExit(3)"), "exit code 3"),
        (python("print('x' * 1_000_000)"), "more than"),
        (python("pass"), "no words"),
    ],
    ids=["missing", "failed", "endless", "silent"],
)
async def test_a_command_that_fails_is_explained(command: tuple[str, ...], why: str) -> None:
    """The reason names what happened."""
    with pytest.raises(NotTranscribed, match=why):
        await transcriber(command=command).transcribe("voice.ogg", OGG, digest="d")


async def test_a_command_that_never_ends_is_killed_with_its_children(tmp_path: Path) -> None:
    """After the time limit no process of it is left."""
    lock = tmp_path / "lock"
    lock.touch()
    program = f"import fcntl, os, time; f = open({str(lock)!r}); fcntl.flock(f, fcntl.LOCK_SH); "
    program += "os.fork(); time.sleep(600)"
    one = transcriber(command=python(program), timeout=2)
    with pytest.raises(NotTranscribed, match="longer than 2 seconds"):
        await one.transcribe("voice.ogg", OGG, digest="d")
    released = await asyncio.create_subprocess_exec("flock", "--timeout", "60", str(lock), "true")
    assert await released.wait() == 0


async def test_large_and_empty_files_are_not_sent() -> None:
    """The limit is named; other files than sounds are not for it, nor is any without settings."""
    one = transcriber(command=python("print('x')"), max_bytes=10)
    with pytest.raises(NotTranscribed, match="the limit is 10 bytes"):
        await one.transcribe("voice.ogg", OGG, digest="d")
    with pytest.raises(NotTranscribed, match="empty"):
        await one.transcribe("voice.ogg", b"", digest="d")
    assert one.accepts("audio/ogg")
    assert not one.accepts("image/png")
    assert not transcriber().accepts("audio/ogg")
