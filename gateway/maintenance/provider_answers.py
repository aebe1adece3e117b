"""Questions to providers whose answers are shown if they come soon: one that hangs is not asked each time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

ANSWER_SECONDS = 2.0
"""Seconds within which a provider answers."""

PAUSE_SECONDS = 60.0
"""Seconds for which one that did not is not asked again."""


class ProviderAnswers:
    """Asks providers by name, and remembers which of them did not answer in time."""

    def __init__(self, *, seconds: float = ANSWER_SECONDS, pause: float = PAUSE_SECONDS) -> None:
        self._seconds = seconds
        self._pause = pause
        self._paused_until: dict[str, float] = {}

    def is_paused(self, provider: str) -> bool:
        """Return whether a provider did not answer lately, so that it is not asked now."""
        return asyncio.get_running_loop().time() < self._paused_until.get(provider, 0.0)

    async def get(self, provider: str, answer: Awaitable[bool]) -> bool:
        """Return an answer; raises TimeoutError after `seconds`, and what the question raises."""
        try:
            async with asyncio.timeout(self._seconds):
                return await answer
        except TimeoutError:
            self._paused_until[provider] = asyncio.get_running_loop().time() + self._pause
            raise
