"""Answers as speech: by an endpoint in the form of OpenAI's, or by a command of the operator."""

from __future__ import annotations

import asyncio
import re

from gateway.config.file_settings import SpeechSettings
from gateway.files.media_types import detect_media_type
from gateway.files.transcription import VoiceServiceFailed, post_bounded, run_command

_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_LINK = re.compile(r"!?\[([^\[\]\n]*+)\]\((?:[^()\n]++|\([^()\n]*+\))*\)")
"""A link or an image. No part can contain another's beginning, so that no text is read again and again."""

_MARKS = re.compile(r"[*`~|]+|^[#>\-+ \t]+", re.MULTILINE)


class NotSpoken(VoiceServiceFailed):
    """An answer has no voice file."""


class Speaker:
    """Makes the voice files of answers within limits of characters, bytes and time."""

    def __init__(self, settings: SpeechSettings) -> None:
        self._settings = settings

    async def speak(self, text: str) -> bytes:
        """Return the voice file of an answer; raises NotSpoken."""
        settings = self._settings
        spoken = to_spoken_text(text, settings.max_characters)
        if not spoken:
            raise NotSpoken("there are no words to speak")
        try:
            async with asyncio.timeout(settings.timeout):
                content = await (self._post(spoken) if settings.base_url else self._run(spoken))
        except TimeoutError:
            raise NotSpoken(f"it took longer than {settings.timeout:g} seconds") from None
        except VoiceServiceFailed as error:
            raise NotSpoken(str(error)) from error
        if not content or detect_media_type(content, "").startswith("text/"):
            raise NotSpoken("the result is no voice file")
        return content

    async def _post(self, text: str) -> bytes:
        settings = self._settings
        request = {
            "model": settings.model,
            "voice": settings.voice,
            "input": text,
            "response_format": settings.format,
        }
        url = f"{str(settings.base_url).rstrip('/')}/audio/speech"
        return await post_bounded(url, settings.api_key, limit=settings.max_bytes, json=request)

    async def _run(self, text: str) -> bytes:
        return await run_command(self._settings.command, text.encode(), limit=self._settings.max_bytes)


def to_spoken_text(text: str, limit: int) -> str:
    """Return the words of CommonMark without code and marks, at most `limit` characters (pure)."""
    linked_images = _LINK.sub(r"\1", _CODE.sub("", text))
    plain = _MARKS.sub("", _LINK.sub(r"\1", linked_images))
    words = re.sub(r"\n{3,}", "\n\n", plain).strip()
    if len(words) <= limit:
        return words
    kept = words[:limit]
    return kept[: kept.rindex(" ")] if " " in kept else kept
