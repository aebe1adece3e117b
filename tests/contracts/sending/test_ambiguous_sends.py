"""What the chat sink does about a message that may have arrived: asks the platform before it repeats it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from channels.errors import ChannelError, NotPermitted, RateLimited, Unreachable
from channels.message import Address
from channels.port import Feature
from delivery.chat.rate_limit import IN_FLIGHT
from delivery.chat.sink import Bot, ChatSink
from delivery.deliveries.attempt import Policy
from delivery.deliveries.port import Delivery, Outcome, Verdict
from delivery.errors import LeaseLost
from memory_channel import MemoryChannel
from sink_harnesses import GENEROUS, a_bot, a_delivery

FINDS = frozenset({Feature.FIND})


def again(*, minutes: float = 0) -> Delivery:
    """Return a delivery whose first attempt, so many minutes ago, may have arrived."""
    tried = datetime.now(UTC) - timedelta(minutes=minutes)
    return a_delivery(uncertain=True, attempt=2, tried_at=tried)


def speaking(channel: MemoryChannel, features: frozenset[Feature], **changes: object) -> ChatSink:
    """Return a sink for one bot."""
    bot: Bot = replace(a_bot(channel, features), **changes)  # type: ignore[arg-type]
    return ChatSink({"chn_1": bot}.get)


def calls(channel: MemoryChannel) -> list[str]:
    """Return what the platform was asked."""
    return [call for call, _ in channel.calls]


async def test_what_arrived_is_found_and_not_repeated() -> None:
    """A send whose answer was lost is looked up by its key, since before its first attempt."""
    channel = MemoryChannel(lost_answers=1)
    sink = speaking(channel, FINDS)
    lost = await sink.send(a_delivery())
    assert (lost.verdict, lost.uncertain) == (Verdict.RETRY, True)
    delivery = again()
    assert await sink.send(delivery) == Outcome(verdict=Verdict.DELIVERED, platform_id="1")
    assert calls(channel) == ["send", "find"]
    assert delivery.tried_at is not None
    assert datetime.fromisoformat(channel.calls[-1][1].text) < delivery.tried_at


async def test_what_did_not_arrive_is_sent() -> None:
    """Where the platform has not taken it, it is said now, once."""
    channel = MemoryChannel()
    outcome = await speaking(channel, FINDS).send(again())
    assert (outcome.verdict, calls(channel)) == (Verdict.DELIVERED, ["find", "send"])


@pytest.mark.parametrize("trouble", [Unreachable(), RateLimited(3)])
async def test_nothing_is_repeated_while_it_cannot_be_looked_up(trouble: ChannelError) -> None:
    """A platform that does not answer the question is asked again later; it stays uncertain."""
    channel = MemoryChannel()
    channel.trouble.append(trouble)
    outcome = await speaking(channel, FINDS).send(again())
    assert (outcome.verdict, outcome.uncertain) == (Verdict.RETRY, True)
    assert calls(channel) == ["find"]


@pytest.mark.parametrize(
    ("policy", "verdict", "said"),
    [(Policy.AT_LEAST_ONCE, Verdict.DELIVERED, 1), (Policy.AT_MOST_ONCE, Verdict.AMBIGUOUS, 0)],
)
@pytest.mark.parametrize("features", [FINDS, frozenset({Feature.TYPING})])
async def test_where_nobody_can_tell_the_settings_decide(
    policy: Policy, verdict: Verdict, said: int, features: frozenset[Feature]
) -> None:
    """Without a way to look, or leave to do so, it is said again or left and marked."""
    channel = MemoryChannel()
    if Feature.FIND in features:
        channel.trouble.append(NotPermitted("Read Message History"))
    outcome = await speaking(channel, features, policy=policy).send(again())
    assert (outcome.verdict, len(channel.texts("42"))) == (verdict, said)


async def test_a_platform_that_recognises_a_repetition_is_asked_only_once_it_does_not() -> None:
    """Within its window the same key is simply sent again; later the platform is asked first."""
    limits = replace(GENEROUS, recognised_seconds=120)
    both = frozenset({Feature.FIND, Feature.IDEMPOTENT_SEND})
    for minutes, expected in ((1, ["send"]), (3, ["find", "send"])):
        channel = MemoryChannel()
        await speaking(channel, both, limits=limits).send(again(minutes=minutes))
        assert calls(channel) == expected


async def test_who_has_waited_too_long_says_nothing() -> None:
    """A sink that was frozen while it waited for its budget finds that it lost the chat, and is silent."""
    channel = MemoryChannel()

    def lost() -> None:
        raise LeaseLost

    with pytest.raises(LeaseLost):
        await speaking(channel, FINDS).send(a_delivery(check=lost))
    assert channel.calls == []


@pytest.mark.parametrize(("features", "at_once"), [(frozenset(), IN_FLIGHT), (FINDS, 2 * IN_FLIGHT)])
async def test_few_messages_are_on_their_way_where_none_is_recognised(
    features: frozenset[Feature], at_once: int
) -> None:
    """So many may be said twice after a kill; the next one leaves when an outcome has been recorded."""
    channel = MemoryChannel()
    sink = speaking(channel, features)
    recorded = [AsyncExitStack() for _ in range(2 * IN_FLIGHT)]

    async def bring(number: int) -> None:
        room = Address(channel="chn_1", room=str(number)).dump()
        await sink.send(a_delivery(id=f"dlv_{number}", target=room, held=recorded[number]))

    sending = [asyncio.create_task(bring(number)) for number in range(len(recorded))]
    await asyncio.wait(sending, timeout=0.2)
    assert len(calls(channel)) == at_once
    for held in recorded[:IN_FLIGHT]:
        await held.aclose()
    await asyncio.gather(*sending)
    assert len(calls(channel)) == 2 * IN_FLIGHT
