"""Prompts of an editor: their text, and the files that come with it. Pure."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from gateway.cli.acp.peer import INVALID_PARAMS, RpcError

MAX_TEXT = 60_000
"""Characters of a message over the gateway's WebSocket."""
MAX_FILES = 20
"""Files of one message."""
MAX_NAME = 200
"""Characters of a file's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFile:
    """A file of a prompt."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt with its files."""

    text: str
    files: tuple[PromptFile, ...] = ()


def read_prompt(blocks: Sequence[Any]) -> Prompt:
    """Return a prompt with links and embedded texts in its text; raises RpcError.

    Images, sound and embedded binary files are its files. A prompt without a text names them.
    """
    files = tuple(_read_files(blocks))
    text = "\n".join(filter(None, map(_read_text, blocks))).strip()
    if not text:
        text = ", ".join(file.name for file in files)
    if not text:
        raise RpcError(INVALID_PARAMS, "the prompt is empty")
    if len(text) > MAX_TEXT:
        raise RpcError(INVALID_PARAMS, f"a prompt has at most {MAX_TEXT} characters; this has {len(text)}")
    if len(files) > MAX_FILES:
        raise RpcError(INVALID_PARAMS, f"a prompt has at most {MAX_FILES} files; this has {len(files)}")
    return Prompt(text=text, files=files)


def _read_text(block: Any) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "resource_link", "uri": str(uri)}:
            return f"[{block.get('name') or uri}]({uri})"
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
            return f"{uri}:\n```\n{text}\n```"
        case {"type": "image" | "audio"} | {"type": "resource", "resource": {"blob": _}}:
            return ""
    raise RpcError(INVALID_PARAMS, "a prompt consists of texts, links, images, audio, and embedded files")


def _read_files(blocks: Sequence[Any]) -> Iterator[PromptFile]:
    for number, block in enumerate(blocks, 1):
        match block:
            case {"type": "image" | "audio" as kind, "data": str(data)}:
                yield _to_file(block, f"{kind}-{number}", data)
            case {"type": "image" | "audio" as kind}:
                raise RpcError(INVALID_PARAMS, f"data of {kind} {number} is missing")
            case {"type": "resource", "resource": {"blob": str(data)} as resource}:
                yield _to_file(resource, f"file-{number}", data)


def _to_file(about: Mapping[str, Any], stem: str, data: str) -> PromptFile:
    """Return a file, named by its address, or else by what it is."""
    name = _last_part(str(about.get("uri") or "")) or stem + _extension(str(about.get("mimeType") or ""))
    try:
        content = base64.b64decode(data, validate=True)
    except ValueError as error:
        raise RpcError(INVALID_PARAMS, f"{name} is not base64: {error}") from error
    return PromptFile(name=name[-MAX_NAME:], content=content)


def _last_part(uri: str) -> str:
    """Return the name at the end of an address, or an empty text."""
    with suppress(ValueError):  # no address
        return PurePosixPath(unquote(urlsplit(uri).path)).name
    return ""


def _extension(media_type: str) -> str:
    """Return the extension of a media type's files; the name of the type where none is known."""
    subtype = media_type.rpartition("/")[2]
    known = mimetypes.guess_extension(media_type)
    return known or (f".{subtype}" if subtype.isascii() and subtype.isalnum() else "")
