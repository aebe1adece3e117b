"""Voice messages as text: by an endpoint in the form of OpenAI's, or by a command of the operator."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import aiohttp

from egress.guard import TRUSTED
from egress.sessions import open_session
from gateway.config.file_settings import TranscriptionSettings
from gateway.config.load import environment_without_ours
from gateway.config.setting_types import SecretValue
from gateway.files.media_types import render_size

MAX_TEXT_BYTES = 64 * 1024
MAX_CACHED = 100
_CHUNK_BYTES = 64 * 1024
KILL_SECONDS = 10.0
_OK = 200


class VoiceServiceFailed(Exception):
    """A service or command for voices has no result; the message says why."""


class NotTranscribed(VoiceServiceFailed):
    """A voice message has no text."""


class Transcriber:
    """Transcribes voice messages; those of the last turns are not transcribed again by this process."""

    def __init__(self, settings: TranscriptionSettings) -> None:
        self._settings = settings
        self._known: OrderedDict[str, str] = OrderedDict()

    def accepts(self, media_type: str) -> bool:
        """Return whether files of a type are transcribed."""
        return media_type.startswith("audio/") and bool(self._settings.base_url or self._settings.command)

    async def transcribe(self, name: str, content: bytes, *, digest: str) -> str:
        """Return the text of a voice message; raises NotTranscribed."""
        if digest in self._known:
            return self._known[digest]
        if not content:
            raise NotTranscribed("it is empty, or no longer stored")
        most = self._settings.max_bytes
        if len(content) > most:
            raise NotTranscribed(f"it has {render_size(len(content))}; the limit is {render_size(most)}")
        try:
            async with asyncio.timeout(self._settings.timeout):
                said = await (self._post(name, content) if self._settings.base_url else self._run(content))
        except TimeoutError:
            raise NotTranscribed(f"it took longer than {self._settings.timeout:g} seconds") from None
        except VoiceServiceFailed as error:
            raise NotTranscribed(str(error)) from error
        if not (text := said.strip()):
            raise NotTranscribed("no words were recognised")
        self._known[digest] = text
        if len(self._known) > MAX_CACHED:
            self._known.popitem(last=False)
        return text

    async def _post(self, name: str, content: bytes) -> str:
        settings, key = self._settings, self._settings.api_key
        form = aiohttp.FormData({"model": settings.model, "response_format": "json"})
        form.add_field("file", content, filename=name)
        url = f"{str(settings.base_url).rstrip('/')}/audio/transcriptions"
        body = await post_bounded(url, key, limit=MAX_TEXT_BYTES, data=form)
        with suppress(ValueError):
            answer = json.loads(body)
            if isinstance(answer, dict) and isinstance(answer.get("text"), str):
                return str(answer["text"])
        raise NotTranscribed("the service answered without a text")

    async def _run(self, content: bytes) -> str:
        """Run the command with the file as its input; its output is the text."""
        output = await run_command(self._settings.command, content, limit=MAX_TEXT_BYTES)
        return output.decode("utf-8", "replace")


async def post_bounded(url: str, key: SecretValue | None, *, limit: int, **body: Any) -> bytes:
    """Post to a service of the operator, and return what it answers; raises VoiceServiceFailed."""
    headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}
    try:
        async with (
            open_session(TRUSTED, headers=headers, limit=1) as session,
            session.post(url, **body) as response,
        ):
            answer = await _read_bounded(response.content, limit)
            status = response.status
    except (aiohttp.ClientError, OSError) as error:
        raise VoiceServiceFailed(f"the service cannot be used: {type(error).__name__}") from error
    if status != _OK:
        raise VoiceServiceFailed(f"the service answered HTTP {status}")
    return answer


async def run_command(command: Sequence[str], content: bytes, *, limit: int) -> bytes:
    """Run a command of the operator with this input, and return its output; raises VoiceServiceFailed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
            env=environment_without_ours(),
        )
    except OSError as error:
        raise VoiceServiceFailed(f"the command cannot be run: {error.strerror}") from error
    try:
        output = await _exchange(process, content, limit)
        code = await process.wait()
    finally:
        await _end(process)
    if code:
        raise VoiceServiceFailed(f"the command failed with exit code {code}")
    return output


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a command with its children; it has ended when its output is at its end."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(KILL_SECONDS):
            while process.stdout is not None and await process.stdout.read(_CHUNK_BYTES):
                pass
            await process.wait()


async def _exchange(process: asyncio.subprocess.Process, content: bytes, limit: int) -> bytes:
    """Write the input while the output is read."""
    if process.stdin is None or process.stdout is None:
        raise VoiceServiceFailed("the command has no input or output")
    feeding = asyncio.ensure_future(_feed(process.stdin, content))
    try:
        return await _read_bounded(process.stdout, limit)
    finally:
        feeding.cancel()
        await asyncio.wait({feeding})


async def _feed(stdin: asyncio.StreamWriter, content: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        stdin.write(content)
        await stdin.drain()
        stdin.close()
        await stdin.wait_closed()


async def _read_bounded(stream: asyncio.StreamReader | aiohttp.StreamReader, limit: int) -> bytes:
    """Return all that a stream has; raises VoiceServiceFailed if that is too much."""
    content = bytearray()
    while chunk := await stream.read(_CHUNK_BYTES):
        content += chunk
        if len(content) > limit:
            raise VoiceServiceFailed(f"the result has more than {render_size(limit)}")
    return bytes(content)
