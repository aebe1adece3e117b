"""What the chat sink does about a message that may have arrived: asks the platform before it repeats it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from channels.errors import ChannelError, NotPermitted, RateLimited, Unreachable
from channels.message import Address
from channels.port import ChannelFeature
from delivery.chat.rate_limit import IN_FLIGHT
from delivery.chat.sink import ChatSink, ConnectedBot
from delivery.deliveries.attempt import AmbiguityPolicy
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind
from delivery.errors import LeaseLost
from memory_channel import MemoryChannel
from sink_harnesses import HIGH_LIMITS, make_bot, make_delivery

FINDS = frozenset({ChannelFeature.FIND})


def retried_delivery(*, minutes: float = 0) -> Delivery:
    """Return a delivery whose first attempt, so many minutes ago, may have arrived."""
    tried = datetime.now(UTC) - timedelta(minutes=minutes)
    return make_delivery(uncertain=True, attempt=2, first_attempt_at=tried)


def make_sink(channel: MemoryChannel, features: frozenset[ChannelFeature], **changes: object) -> ChatSink:
    """Return a sink for one bot."""
    bot: ConnectedBot = replace(make_bot(channel, features), **changes)  # type: ignore[arg-type]
    return ChatSink({"chn_1": bot}.get)


def calls(channel: MemoryChannel) -> list[str]:
    """Return what the platform was asked."""
    return [call for call, _ in channel.calls]


async def test_what_arrived_is_found_and_not_repeated() -> None:
    """A send whose answer was lost is looked up by its key, from before its first attempt on."""
    channel = MemoryChannel(lost_answers=1)
    sink = make_sink(channel, FINDS)
    lost = await sink.send(make_delivery())
    assert (lost.kind, lost.uncertain) == (OutcomeKind.RETRY, True)
    delivery = retried_delivery()
    assert await sink.send(delivery) == Outcome(kind=OutcomeKind.DELIVERED, platform_id="1")
    assert calls(channel) == ["send", "find"]
    assert delivery.first_attempt_at is not None
    assert datetime.fromisoformat(channel.calls[-1][1].text) < delivery.first_attempt_at


async def test_what_did_not_arrive_is_sent() -> None:
    """If the platform does not have it, it is sent now, once."""
    channel = MemoryChannel()
    outcome = await make_sink(channel, FINDS).send(retried_delivery())
    assert (outcome.kind, calls(channel)) == (OutcomeKind.DELIVERED, ["find", "send"])


@pytest.mark.parametrize("problem", [Unreachable(), RateLimited(3)])
async def test_nothing_is_repeated_while_it_cannot_be_looked_up(problem: ChannelError) -> None:
    """A platform that does not answer the question is asked again later; it stays uncertain."""
    channel = MemoryChannel()
    channel.errors.append(problem)
    outcome = await make_sink(channel, FINDS).send(retried_delivery())
    assert (outcome.kind, outcome.uncertain) == (OutcomeKind.RETRY, True)
    assert calls(channel) == ["find"]


@pytest.mark.parametrize(
    ("policy", "decision", "said"),
    [
        (AmbiguityPolicy.AT_LEAST_ONCE, OutcomeKind.DELIVERED, 1),
        (AmbiguityPolicy.AT_MOST_ONCE, OutcomeKind.AMBIGUOUS, 0),
    ],
)
@pytest.mark.parametrize("features", [FINDS, frozenset({ChannelFeature.TYPING})])
async def test_the_settings_decide_an_ambiguous_send(
    policy: AmbiguityPolicy, decision: OutcomeKind, said: int, features: frozenset[ChannelFeature]
) -> None:
    """Without a lookup, or without the right to it, the message is sent again or left and marked."""
    channel = MemoryChannel()
    if ChannelFeature.FIND in features:
        channel.errors.append(NotPermitted("Read Message History"))
    outcome = await make_sink(channel, features, policy=policy).send(retried_delivery())
    assert (outcome.kind, len(channel.texts("42"))) == (decision, said)


async def test_a_platform_that_recognises_a_repetition_is_asked_only_once_it_does_not() -> None:
    """Within its window the same key is simply sent again; later the platform is asked first."""
    limits = replace(HIGH_LIMITS, recognised_seconds=120)
    both = frozenset({ChannelFeature.FIND, ChannelFeature.IDEMPOTENT_SEND})
    for minutes, expected in ((1, ["send"]), (3, ["find", "send"])):
        channel = MemoryChannel()
        await make_sink(channel, both, limits=limits).send(retried_delivery(minutes=minutes))
        assert calls(channel) == expected


async def test_who_has_waited_too_long_says_nothing() -> None:
    """A sink that was frozen while it waited for its budget finds that it lost the chat, and is silent."""
    channel = MemoryChannel()

    def lost() -> None:
        raise LeaseLost

    with pytest.raises(LeaseLost):
        await make_sink(channel, FINDS).send(make_delivery(ensure_held=lost))
    assert channel.calls == []


@pytest.mark.parametrize(("features", "at_once"), [(frozenset(), IN_FLIGHT), (FINDS, 2 * IN_FLIGHT)])
async def test_few_messages_are_on_their_way_where_none_is_recognised(
    features: frozenset[ChannelFeature], at_once: int
) -> None:
    """At most so many may be sent twice after a kill; the next is sent when an outcome is recorded."""
    channel = MemoryChannel()
    sink = make_sink(channel, features)
    recorded = [AsyncExitStack() for _ in range(2 * IN_FLIGHT)]

    async def bring(number: int) -> None:
        room = Address(channel="chn_1", room=str(number)).encode()
        await sink.send(make_delivery(id=f"dlv_{number}", target=room, exit_stack=recorded[number]))

    sending = [asyncio.create_task(bring(number)) for number in range(len(recorded))]
    await asyncio.wait(sending, timeout=0.2)
    assert len(calls(channel)) == at_once
    for held in recorded[:IN_FLIGHT]:
        await held.aclose()
    await asyncio.gather(*sending)
    assert len(calls(channel)) == 2 * IN_FLIGHT
