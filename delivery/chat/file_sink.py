"""Files in chats: a native attachment, and where that cannot be, words that say why and where the file is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from channels.errors import Ambiguous, ChannelError, NotPermitted, Rejected, Unsupported
from channels.message import Address, File, Reply
from channels.port import Feature
from delivery.chat.sink import SEND_SECONDS, Bot, judge_error, reply_key
from delivery.database.engine import Unavailable
from delivery.deliveries.part import Enclosed
from delivery.deliveries.port import Delivery, Outcome, Verdict
from delivery.errors import DeliveryError

UPLOAD_SECONDS = 120.0
"""How long an attachment may take: the largest at half a megabyte a second."""
_SHOWN = 200
_MEGABYTE = 1_000_000

Content = Callable[[str], Awaitable[bytes | None]]
"""Return the bytes of a file by its id; None when they are not kept any more."""

Link = Callable[[Enclosed], str | None]
"""Return an address at which people can fetch a file; None when this gateway has no public one."""

Refused = Callable[[str, str], Awaitable[None]]
"""Note durably, once, that a file (its id) could not be attached, and why: the model is to be told."""


class FileSink:
    """Attaches one file of a reply: one attempt, judged like any other."""

    def __init__(
        self,
        *,
        content: Content,
        link: Link,
        refused: Refused,
        send_seconds: float = SEND_SECONDS,
        upload_seconds: float = UPLOAD_SECONDS,
    ) -> None:
        self._content = content
        self._link = link
        self._refused = refused
        self._send_seconds = send_seconds
        self._upload_seconds = upload_seconds

    async def attach(self, bot: Bot, address: Address, delivery: Delivery, file: Enclosed) -> Outcome:
        """Attempt once; what shows already is not sent again."""
        if delivery.platform_id is not None:
            return Outcome(verdict=Verdict.DELIVERED, platform_id=delivery.platform_id)
        try:
            return await self._bring(bot, address, delivery, file)
        except TimeoutError:
            error: ChannelError = Ambiguous("no answer in time")
        except ChannelError as raised:
            error = raised
        except (DeliveryError, Unavailable) as missing:
            return Outcome(verdict=Verdict.RETRY, detail=f"the file cannot be read now: {missing}")
        return judge_error(error, bot.budget, address, repeatable=bot.can_tell)

    async def _bring(self, bot: Bot, address: Address, delivery: Delivery, file: Enclosed) -> Outcome:
        why = _unfit(bot, file)
        content = None if why else await self._content(file.id)
        if content is None:
            return await self._explain(bot, address, delivery, file, why or "it is not kept any more")
        try:
            async with asyncio.timeout(self._upload_seconds):
                sent = await bot.channel.upload(address, _native(file, content), key=reply_key(delivery.id))
        except (Rejected, Unsupported, NotPermitted) as error:
            return await self._explain(bot, address, delivery, file, str(error))
        return Outcome(verdict=Verdict.DELIVERED, platform_id=sent.platform_id)

    async def _explain(
        self, bot: Bot, address: Address, delivery: Delivery, file: Enclosed, why: str
    ) -> Outcome:
        """Say in words what could not be attached; the model hears of it too."""
        why = " ".join(why.split())[:_SHOWN].rstrip(".")
        await self._refused(file.id, why)
        reply = Reply(text=words(file, why, self._link(file)), key=reply_key(delivery.id))
        async with asyncio.timeout(self._send_seconds):
            sent = await bot.channel.send(address, reply)
        return Outcome(verdict=Verdict.DELIVERED, platform_id=sent.platform_id, detail=why)


def _native(file: Enclosed, content: bytes) -> File:
    return File(name=file.name, media_type=file.media_type, content=content, caption=file.caption)


def _unfit(bot: Bot, file: Enclosed) -> str | None:
    """Say why a file need not be tried here, without asking the platform."""
    if Feature.UPLOAD not in bot.features:
        return "this platform takes no files from bots"
    if bot.limits.upload_bytes and file.size > bot.limits.upload_bytes:
        return f"the platform takes {bot.limits.upload_bytes / _MEGABYTE:.3g} MB at the most"
    return None


def words(file: Enclosed, why: str, link: str | None) -> str:
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
