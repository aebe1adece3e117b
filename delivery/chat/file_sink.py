"""Files in chats: a native attachment, or a message with the reason and the file's location."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from channels.errors import Ambiguous, ChannelError, NotPermitted, Rejected, Unsupported
from channels.message import Address, File, Reply
from channels.port import ChannelFeature, ChannelLimits
from delivery.chat.outcomes import outcome_for_error
from delivery.chat.sink import SEND_SECONDS, ConnectedBot, idempotency_key
from delivery.database.engine import DatabaseUnavailable
from delivery.deliveries.part import FilePart
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind
from delivery.deliveries.rendering import code_block
from delivery.errors import DeliveryError

UPLOAD_SECONDS = 120.0
"""Seconds that an upload may take: enough for the largest file at half a megabyte a second."""
_MAX_REASON_LENGTH = 200
_NOT_SPOKEN = "there is no voice file of the message, or the platform does not accept it"
_MEGABYTE = 1_000_000

ReadContent = Callable[[str], Awaitable[bytes | None]]
"""Return the bytes of a file by its id; None when they are no longer stored."""

CreateLink = Callable[[FilePart], str | None]
"""Return a URL from which people can download a file; None when the gateway has no public URL."""

OnFileRejected = Callable[[str, str], Awaitable[None]]
"""Record durably and once that a file (its id) could not be attached, and why; the model gets the reason."""


Speak = Callable[[str], Awaitable[bytes | None]]
"""Return the voice file of a message by its id; None if there is none. Never raises."""


async def _no_speech(_message: str) -> bytes | None:
    return None


class FileSink:
    """Attaches one file of a reply in one attempt."""

    def __init__(
        self,
        *,
        read_content: ReadContent,
        create_link: CreateLink,
        on_rejected: OnFileRejected,
        speak: Speak = _no_speech,
        send_seconds: float = SEND_SECONDS,
        upload_seconds: float = UPLOAD_SECONDS,
    ) -> None:
        self._read_content = read_content
        self._create_link = create_link
        self._on_rejected = on_rejected
        self._speak = speak
        self._send_seconds = send_seconds
        self._upload_seconds = upload_seconds

    async def attach(
        self, bot: ConnectedBot, address: Address, delivery: Delivery, file: FilePart
    ) -> Outcome:
        """Attempt once to attach the file; a file that is already visible is not sent again."""
        if delivery.platform_id is not None:
            return Outcome(kind=OutcomeKind.DELIVERED, platform_id=delivery.platform_id)
        try:
            return await self._upload(bot, address, delivery, file)
        except TimeoutError:
            error: ChannelError = Ambiguous("the platform did not answer in time")
        except ChannelError as raised:
            error = raised
        except (DeliveryError, DatabaseUnavailable) as unavailable:
            return Outcome(kind=OutcomeKind.RETRY, detail=f"the file cannot be read now: {unavailable}")
        return outcome_for_error(error, bot.rate_limiter, address, repeatable=bot.detects_duplicates)

    async def _upload(
        self, bot: ConnectedBot, address: Address, delivery: Delivery, file: FilePart
    ) -> Outcome:
        why = _problem_of(bot, file)
        read = self._speak if file.is_speech else self._read_content
        content = None if why else await read(file.id)
        delivery.ensure_held()
        if content is None and file.is_speech:
            return Outcome(kind=OutcomeKind.DELIVERED, detail=_NOT_SPOKEN)
        if content is None:
            why = why or "it is no longer stored"
            return await self._send_explanation(bot, address, delivery, file, why=why)
        if file.is_text:
            content = shorten(content, bot.limits.upload_bytes)
        try:
            async with asyncio.timeout(self._upload_seconds):
                sent = await bot.sender.upload(
                    address, _to_channel_file(file, content), key=idempotency_key(delivery.id)
                )
        except (Rejected, Unsupported, NotPermitted) as error:
            if file.is_speech:
                return Outcome(kind=OutcomeKind.DELIVERED, detail=_NOT_SPOKEN)
            return await self._send_explanation(bot, address, delivery, file, why=str(error))
        return Outcome(kind=OutcomeKind.DELIVERED, platform_id=sent.platform_id)

    async def _send_explanation(
        self, bot: ConnectedBot, address: Address, delivery: Delivery, file: FilePart, *, why: str
    ) -> Outcome:
        """Send a message with the reason and the file's location, and record the reason for the model.

        A text is sent by its end, because its beginning was sent before.
        """
        why = " ".join(why.split())[:_MAX_REASON_LENGTH].rstrip(".")
        if file.is_text:
            content, link = await self._read_content(file.id), self._create_link(file)
            text = render_end(content, why, bot.limits, link=link if content else None)
        else:
            await self._on_rejected(file.id, why)
            text = render_rejected_file(file, why, self._create_link(file))
        reply = Reply(text=text, key=idempotency_key(delivery.id))
        async with asyncio.timeout(self._send_seconds):
            sent = await bot.sender.send(address, reply)
        return Outcome(kind=OutcomeKind.DELIVERED, platform_id=sent.platform_id, detail=why)


def _to_channel_file(file: FilePart, content: bytes) -> File:
    return File(name=file.name, media_type=file.media_type, content=content, caption=file.caption)


def _problem_of(bot: ConnectedBot, file: FilePart) -> str | None:
    """Return why the platform cannot accept the file, by its declared limits; None: it may be tried."""
    if ChannelFeature.UPLOAD not in bot.features:
        return "this platform does not accept files from bots"
    if bot.limits.upload_bytes and file.size > bot.limits.upload_bytes and not file.is_text:
        return f"the platform accepts at most {bot.limits.upload_bytes / _MEGABYTE:.3g} MB"
    return None


def shorten(content: bytes, limit: int) -> bytes:
    """Return a text of at most `limit` bytes (0: no limit): its beginning and its end."""
    if not limit or len(content) <= limit:
        return content
    gap = f"\n\n[… {len(content) - limit} bytes or more are left out …]\n\n".encode()
    half = max((limit - len(gap)) // 2, 0)
    head = content[:half].decode(errors="ignore")
    tail = content[len(content) - half :].decode(errors="ignore")
    return head.encode() + gap + tail.encode()


def render_end(content: bytes | None, why: str, limits: ChannelLimits, *, link: str | None = None) -> str:
    """Return the message that is sent in place of a text's file: the reason, its link and its end."""
    reason = f"I could not attach the whole text: {why}."
    if not content:
        return reason
    where = f" You can download it here for some days: {link}\n\n" if link else " "
    end = content.decode(errors="ignore")[-limits.text :]
    while end and limits.measure(text := f"{reason}{where}It ends with\n\n{code_block(end)}") > limits.text:
        end = end[len(end) // 8 + 1 :]
    return text if end else f"{reason}{where}".rstrip()


def render_rejected_file(file: FilePart, why: str, link: str | None) -> str:
    """Return the message that is sent in place of a file."""
    size = f"{file.size / _MEGABYTE:.3g} MB" if file.size >= _MEGABYTE else f"{file.size} bytes"
    reason = f"I could not attach {_code(file.name)} ({size}): {why}."
    if link is not None:
        return f"{reason} You can download it here for some days: {link}"
    if file.path:
        return f"{reason} It is in the workspace as {_code(file.path)}."
    return reason


def _code(text: str) -> str:
    return "`" + " ".join(text.replace("`", "'").split()) + "`"
