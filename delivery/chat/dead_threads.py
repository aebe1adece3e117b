"""Send to a public place what a thread there no longer accepts, because it was deleted or locked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from channels.message import Address
from channels.port import ChannelLimits
from channels.receiving.bounded_dict import BoundedDict
from delivery.database.engine import DatabaseUnavailable
from delivery.deliveries.part import Part
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind

MAX_REMEMBERED = 1000
"""Answers of which this process remembers which part has the line about the thread."""

_WHY = "which accepts no more messages"

_OWN_MESSAGE = -1
"""In place of a part's number: the line is a message of its own."""

SendPart = Callable[[Address, Part, Delivery], Awaitable[Outcome]]
"""Attempt once to send a part of a delivery to an address."""

NameThread = Callable[[str], Awaitable[str]]
"""Return the name under which people know a conversation, or ""; raises DatabaseUnavailable."""


async def no_name(_conversation: str) -> str:
    """Return that the conversation has no name."""
    return ""


def render_line(name: str) -> str:
    """Return the line that says for which thread a message was."""
    name = " ".join(name.replace("`", "'").split())
    return f"For the thread `{name}`, {_WHY}:" if name else f"For a thread, {_WHY}:"


class DeadThreads:
    """Sends parts, and to its public place what a thread refuses for good, below a line that names it.

    A refused part was not sent, so each part is sent once: in the thread or there. The line is above
    the first part of a turn's answer that is sent there. After a restart it may be above another part
    as well.
    """

    def __init__(self, name_thread: NameThread) -> None:
        self._name_thread = name_thread
        self._introduced = BoundedDict[str, tuple[str, int]](MAX_REMEMBERED)

    async def send_or_move(
        self, send: SendPart, limits: ChannelLimits, address: Address, delivery: Delivery, part: Part
    ) -> Outcome:
        """Attempt once to send a part to its thread, and then to its public place if the thread is dead."""
        async with AsyncExitStack() as exit_stack:
            outcome = await send(address, part, replace(delivery, exit_stack=exit_stack))
            place = limits.public_place(address) if outcome.thread_dead and address.thread else None
            if place is None:
                await delivery.exit_stack.enter_async_context(exit_stack.pop_all())
                return outcome
        delivery.ensure_held()
        moved = await self._send_to_place(send, limits, place, delivery, replace(part, reply_to=None))
        if not moved.thread_dead:
            return moved
        detail = f"{outcome.detail}; nor does the place of the thread take messages: {moved.detail}"
        return replace(moved, detail=detail)

    async def _send_to_place(
        self, send: SendPart, limits: ChannelLimits, place: Address, delivery: Delivery, part: Part
    ) -> Outcome:
        """Attempt once to send a part to a place, below the line if no other part of the answer has it."""
        if part.only_edit or self._is_introduced(delivery):
            return await send(place, part, delivery)
        line = render_line(await self._name(delivery.conversation))
        introduced = _introduce(part, line, limits)
        if introduced is None:
            return await self._send_below_line(send, place, delivery, part, line)
        outcome = await send(place, introduced, delivery)
        if outcome.kind is OutcomeKind.DELIVERED:
            self._introduced[_answer_of(delivery)] = (delivery.event_id, delivery.part)
        return outcome

    async def _send_below_line(
        self, send: SendPart, place: Address, delivery: Delivery, part: Part, line: str
    ) -> Outcome:
        """Send the line as a message of its own, and then a part that is too long for both."""
        async with AsyncExitStack() as exit_stack:
            own = replace(delivery, id=f"{delivery.id}:thread", platform_id=None, exit_stack=exit_stack)
            outcome = await send(place, Part(text=line), own)
        if outcome.kind is not OutcomeKind.DELIVERED:
            return outcome
        self._introduced[_answer_of(delivery)] = (delivery.event_id, _OWN_MESSAGE)
        return await send(place, part, delivery)

    def _is_introduced(self, delivery: Delivery) -> bool:
        """Return whether another part of the same answer has the line."""
        found = self._introduced.get(_answer_of(delivery))
        return found is not None and found != (delivery.event_id, delivery.part)

    async def _name(self, conversation: str | None) -> str:
        try:
            return await self._name_thread(conversation) if conversation else ""
        except DatabaseUnavailable:
            return ""


def _answer_of(delivery: Delivery) -> str:
    return delivery.turn or delivery.event_id


def _introduce(part: Part, line: str, limits: ChannelLimits) -> Part | None:
    """Return a part with the line above it; None if it is too long for that."""
    if part.file is not None:
        caption = f"{line}\n\n{part.file.caption}" if part.file.caption else line
        return replace(part, file=replace(part.file, caption=caption))
    text = f"{line}\n\n{part.text}"
    return replace(part, text=text) if limits.measure(text) <= limits.text else None
