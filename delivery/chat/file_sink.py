"""Files in chats: a native attachment, and where that cannot be, words that say why and where the file is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from channels.errors import Ambiguous, ChannelError, NotPermitted, Rejected, Unsupported
from channels.message import Address, File, Reply
from channels.port import ChannelFeature
from delivery.chat.sink import SEND_SECONDS, ConnectedBot, idempotency_key, outcome_for_error
from delivery.database.engine import DatabaseUnavailable
from delivery.deliveries.part import FilePart
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind
from delivery.errors import DeliveryError

UPLOAD_SECONDS = 120.0
"""How long an attachment may take: the largest at half a megabyte a second."""
_MAX_REASON_LENGTH = 200
_MEGABYTE = 1_000_000

ReadContent = Callable[[str], Awaitable[bytes | None]]
"""Return the bytes of a file by its id; None when they are not kept any more."""

CreateLink = Callable[[FilePart], str | None]
"""Return an address at which people can fetch a file; None when this gateway has no public one."""

OnFileRejected = Callable[[str, str], Awaitable[None]]
"""Note durably, once, that a file (its id) could not be attached, and why: the model is to be told."""


class FileSink:
    """Attaches one file of a reply: one attempt, judged like any other."""

    def __init__(
        self,
        *,
        read_content: ReadContent,
        create_link: CreateLink,
        on_rejected: OnFileRejected,
        send_seconds: float = SEND_SECONDS,
        upload_seconds: float = UPLOAD_SECONDS,
    ) -> None:
        self._read_content = read_content
        self._create_link = create_link
        self._on_rejected = on_rejected
        self._send_seconds = send_seconds
        self._upload_seconds = upload_seconds

    async def attach(
        self, bot: ConnectedBot, address: Address, delivery: Delivery, file: FilePart
    ) -> Outcome:
        """Attempt once; what shows already is not sent again."""
        if delivery.platform_id is not None:
            return Outcome(kind=OutcomeKind.DELIVERED, platform_id=delivery.platform_id)
        try:
            return await self._upload(bot, address, delivery, file)
        except TimeoutError:
            error: ChannelError = Ambiguous("no answer in time")
        except ChannelError as raised:
            error = raised
        except (DeliveryError, DatabaseUnavailable) as missing:
            return Outcome(kind=OutcomeKind.RETRY, detail=f"the file cannot be read now: {missing}")
        return outcome_for_error(error, bot.rate_limiter, address, repeatable=bot.detects_duplicates)

    async def _upload(
        self, bot: ConnectedBot, address: Address, delivery: Delivery, file: FilePart
    ) -> Outcome:
        why = _problem_of(bot, file)
        content = None if why else await self._read_content(file.id)
        if content is None:
            return await self._send_explanation(
                bot, address, delivery, file, why or "it is not kept any more"
            )
        try:
            async with asyncio.timeout(self._upload_seconds):
                sent = await bot.sender.upload(
                    address, _to_channel_file(file, content), key=idempotency_key(delivery.id)
                )
        except (Rejected, Unsupported, NotPermitted) as error:
            return await self._send_explanation(bot, address, delivery, file, str(error))
        return Outcome(kind=OutcomeKind.DELIVERED, platform_id=sent.platform_id)

    async def _send_explanation(
        self, bot: ConnectedBot, address: Address, delivery: Delivery, file: FilePart, why: str
    ) -> Outcome:
        """Say in words what could not be attached; the model hears of it too."""
        why = " ".join(why.split())[:_MAX_REASON_LENGTH].rstrip(".")
        await self._on_rejected(file.id, why)
        reply = Reply(
            text=render_rejected_file(file, why, self._create_link(file)), key=idempotency_key(delivery.id)
        )
        async with asyncio.timeout(self._send_seconds):
            sent = await bot.sender.send(address, reply)
        return Outcome(kind=OutcomeKind.DELIVERED, platform_id=sent.platform_id, detail=why)


def _to_channel_file(file: FilePart, content: bytes) -> File:
    return File(name=file.name, media_type=file.media_type, content=content, caption=file.caption)


def _problem_of(bot: ConnectedBot, file: FilePart) -> str | None:
    """Say why a file need not be tried here, without asking the platform."""
    if ChannelFeature.UPLOAD not in bot.features:
        return "this platform takes no files from bots"
    if bot.limits.upload_bytes and file.size > bot.limits.upload_bytes:
        return f"the platform takes {bot.limits.upload_bytes / _MEGABYTE:.3g} MB at the most"
    return None


def render_rejected_file(file: FilePart, why: str, link: str | None) -> str:
    """Return what people read in place of a file."""
    size = f"{file.size / _MEGABYTE:.3g} MB" if file.size >= _MEGABYTE else f"{file.size} bytes"
    said = f"I could not attach {_code(file.name)} ({size}): {why}."
    if link is not None:
        return f"{said} It can be fetched here for some days: {link}"
    if file.path:
        return f"{said} It lies in the workspace as {_code(file.path)}."
    return said


def _code(text: str) -> str:
    return "`" + " ".join(text.replace("`", "'").split()) + "`"
