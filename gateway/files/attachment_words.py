"""What attachments say: words of voice messages, and texts that no workspace takes.

The agent reads them as JSON strings, so that a file cannot imitate the lines of the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from delivery.database.engine import DatabaseUnavailable
from delivery.deliveries.transactions import Transactions
from delivery.errors import DeliveryError, as_sentence
from gateway.conversations.notices import post_notice
from gateway.files import media_types
from gateway.files.storage.file_store import FileStore
from gateway.files.transcription import NotTranscribed, Transcriber
from gateway.store.conversations import messages
from gateway.store.conversations.files import FileRow, FileState
from gateway.store.turns.turns import Turn

log = structlog.get_logger(__name__)

MAX_TEXT_BYTES = 64_000
"""The most bytes of the texts of one message that the agent reads without a workspace."""

NO_WORKSPACE = (
    "there is no workspace to write it to; without one the agent gets images, and texts of up to "
    f"{media_types.render_size(MAX_TEXT_BYTES)}"
)


class AttachmentWords:
    """Reads the words of received files. Without a transcriber voice messages have none."""

    def __init__(
        self, transactions: Transactions, file_store: FileStore, transcriber: Transcriber | None
    ) -> None:
        self._transactions = transactions
        self._file_store = file_store
        self._transcriber = transcriber

    def may_need_no_workspace(self, given_type: str, size: int) -> bool:
        """Return whether a file of the type and size that its sender gives is worth fetching without one."""
        return given_type.startswith("image/") or self._is_voice(given_type) or size <= MAX_TEXT_BYTES

    def needs_workspace(self, media_type: str, given_type: str, size: int) -> bool:
        """Return whether a file is of no use without one: no image is shown, and no words are read."""
        is_short_text = media_types.is_text(media_type) and size <= MAX_TEXT_BYTES
        return not (
            media_type in media_types.IMAGES or is_short_text or self._is_voice(media_type, given_type)
        )

    async def lines(
        self, turn: Turn, rows: Sequence[FileRow], attached: Sequence[Mapping[str, Any]]
    ) -> list[str]:
        """Return a line for each file that says something and that the workspace does not show by itself."""
        found: list[str] = []
        left = MAX_TEXT_BYTES
        for row, given in zip(rows, attached, strict=True):
            if row.state is not FileState.RECEIVED or not row.sha256:
                continue
            if self._is_voice(row.type, str(given.get("type", ""))):
                found.append(await self._voice_line(turn, row, row.sha256))
            elif not row.path and media_types.is_text(row.type):
                found.append(await self._text_line(row, row.sha256) if row.size <= left else _beyond(row))
                left -= row.size
        return found

    def _is_voice(self, *kinds: str) -> bool:
        return self._transcriber is not None and any(map(self._transcriber.accepts, kinds))

    async def _text_line(self, row: FileRow, digest: str) -> str:
        try:
            content = await self._file_store.read_blob(digest)
        except (DeliveryError, DatabaseUnavailable, OSError) as error:
            log.warning("files.text_read_failed", file=row.id, error=str(error))
            content = None
        if content is None:
            return f"[the text of {row.name} could not be read]"
        return f"[the text of {row.name}: {_quoted(content.decode(errors='replace'))}]"

    async def _voice_line(self, turn: Turn, row: FileRow, digest: str) -> str:
        """Return what a voice message says; people get a notice once if it has no text."""
        assert self._transcriber is not None, "only a transcriber accepts voice messages"
        name = row.path or row.name
        try:
            content = await self._file_store.read_blob(digest) or b""
            text = await self._transcriber.transcribe(row.name, content, digest=digest)
        except (NotTranscribed, DeliveryError, DatabaseUnavailable, OSError) as error:
            log.warning("files.not_transcribed", file=row.id, error=str(error))
            await self._report_untranscribed(turn, row, str(error))
            return f"[the voice message {name} could not be transcribed: {error}]"
        return f"[what the voice message {name} says: {_quoted(text)}]"

    async def _report_untranscribed(self, turn: Turn, row: FileRow, reason: str) -> None:
        message = f"msg_{row.id.removeprefix('fil_')}"
        async with self._transactions.begin("file.arrive") as tx:
            if await messages.get_by_id(tx.connection, message) is None:
                text = f"I could not understand the voice message: {as_sentence(reason)}"
                text += f" I continue {'with the file' if row.path else 'without it'}."
                await post_notice(tx, turn.conversation, text, turn=turn.id, message=message)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _beyond(row: FileRow) -> str:
    return f"[the text of {row.name} is not here: the texts before it fill the message]"
