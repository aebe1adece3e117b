"""The users of a chaos run: each sends one message after the other in a chat of their own."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from bench.chaos.tally import answered_turns, message_mark
from channels.telegram.simulator import Simulator

FIRST_CHAT = 1000


class ChaosUsers:
    """All users. `asked` counts messages by chat; `errors` and `repeats` are shares of injected faults."""

    def __init__(
        self, platform: Simulator, *, chats: int, errors: float = 0.0, repeats: float = 0.0, seed: int = 1
    ) -> None:
        self.asked = {FIRST_CHAT + place: 0 for place in range(chats)}
        self.errors = 0
        self.repeats = 0
        self._platform = platform
        self._share_of_errors = errors
        self._share_of_repeats = repeats
        self._random = random.Random(seed)

    async def send_all(self, turns: int, *, within: float) -> None:
        """Send all messages, spread over so many seconds."""
        share, left = divmod(turns, len(self.asked))
        async with asyncio.TaskGroup() as group:
            for place, chat in enumerate(self.asked):
                group.create_task(self._send_in_chat(chat, share + (place < left), within))

    async def _send_in_chat(self, chat: int, number: int, within: float) -> None:
        for place in range(number):
            await asyncio.sleep(self._random.uniform(0, 2 * within / number))
            if self._random.random() < self._share_of_errors:
                self.errors += 1
                await self._platform.fail(500, method="sendMessage", chat=chat)
            await self._platform.say(chat, f"!echo {message_mark(chat, place)}")
            self.asked[chat] += 1
            if self._random.random() < self._share_of_repeats:
                await self._repeat()

    async def _repeat(self) -> None:
        """Have Telegram send its latest update again, as it does when a confirmation is lost."""
        world = self._platform.world
        if not world.updates:
            return
        number, update = max(world.updates.items())
        try:
            await self._platform.wait_until(lambda: number not in world.updates, seconds=30)
        except TimeoutError:
            return
        self.repeats += 1
        world.updates[number] = update
        await world.notify_changed()

    async def wait(self, seconds: float) -> int:
        """Wait for every answer; returns how many chats still wait when none came for so many seconds."""
        waiting = list(self.asked)

        def all_answered() -> bool:
            while waiting and self._is_answered(waiting[-1]):
                waiting.pop()
            return not waiting

        before = -1
        while not all_answered() and self.answered() > before:
            before = self.answered()
            with suppress(TimeoutError):
                await self._platform.wait_until(all_answered, seconds=seconds)
        return sum(not self._is_answered(chat) for chat in waiting)

    def answered(self) -> int:
        """Return how many turns have been answered."""
        return sum(len(self._answers_in_chat(chat)) for chat in self.asked)

    def _is_answered(self, chat: int) -> bool:
        return len(self._answers_in_chat(chat)) >= self.asked[chat]

    def _answers_in_chat(self, chat: int) -> set[int]:
        return set(answered_turns((post.text for post in self._platform.messages(chat)), chat))
