"""A provider that hangs is asked once in a while, not by each list of sandboxes."""

from __future__ import annotations

import asyncio

import pytest

from gateway.maintenance.provider_answers import ProviderAnswers


async def _answer() -> bool:
    return True


async def _hang() -> bool:
    await asyncio.Event().wait()
    return True


async def test_a_provider_that_hangs_is_not_asked_again_at_once() -> None:
    """Its first question ends with a time-out, and until the pause is over it counts as silent."""
    answers = ProviderAnswers(seconds=0.01)
    with pytest.raises(TimeoutError):
        await answers.get("docker", _hang())
    assert answers.is_paused("docker")
    assert not answers.is_paused("host")
    assert await answers.get("host", _answer())


async def test_a_provider_is_asked_again_after_the_pause() -> None:
    """One that answers then is not paused any more."""
    answers = ProviderAnswers(seconds=0.01, pause=0.0)
    with pytest.raises(TimeoutError):
        await answers.get("docker", _hang())
    assert not answers.is_paused("docker")
    assert await answers.get("docker", _answer())
