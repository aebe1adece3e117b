"""The small decisions of the way in: rates, rules, thumbs, and what joins the line."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from channels.commonmark.markup import Fence
from channels.commonmark.markup import parse as parse_markup
from channels.message import Address
from channels.port import ChannelFeature, ChannelLimits
from chat_deliveries import chat_delivery
from delivery.chat.rate_limit import RateLimiter
from delivery.chat.sink import ChatSink, ConnectedBot
from delivery.deliveries.part import decode_part, encode_part
from delivery.deliveries.port import OutcomeKind
from delivery.deliveries.rendering import render_text
from delivery.events.event import Event, EventType
from gateway.conversations.approver_rules import may_decide
from gateway.conversations.submissions.queue_policy import MAX_INPUT, find_mergeable, merge_input
from gateway.ingress.commands.chat_commands import parse, to_command
from gateway.ingress.interactions.approval_replies import parse_decision
from gateway.ingress.rate_limit import MAX_SENDERS, RateDecision, SenderRateLimiter
from gateway.store.turn_state import QueueMode, TurnState
from gateway.store.turns.turns import Turn
from memory_channel import MemoryChannel

SENDER_KEY = ("chn_1", "room", "7")


WORKSPACE = Address(channel="chn_1", room="C1", extras={"team": "T1", "enterprise": "E1"})


def turn(name: str, **changes: object) -> Turn:
    """Return a turn in a line."""
    values: dict[str, object] = {
        "id": name,
        "account": "acc_1",
        "conversation": "cnv_1",
        "agent": "agt_1",
        "trigger": "message",
        "asker": "7",
        "input": name,
        "created_at": datetime.now(UTC),
    }
    return Turn(**(values | changes))  # type: ignore[arg-type]


def test_a_minutes_worth_may_come_at_once_and_one_refusal_a_minute_is_said() -> None:
    """Beyond the burst one refusal is sent and the rest is dropped, until time has passed."""
    now = [0.0]
    flood = SenderRateLimiter(clock=lambda: now[0])
    assert [flood.acquire(SENDER_KEY, 3) for _ in range(6)] == [
        *[RateDecision.ACCEPTED] * 3,
        RateDecision.REFUSED,
        *[RateDecision.DROPPED] * 2,
    ]
    now[0] = 20.0
    assert [flood.acquire(SENDER_KEY, 3), flood.acquire(SENDER_KEY, 3)] == [
        RateDecision.ACCEPTED,
        RateDecision.DROPPED,
    ]
    now[0] = 61.0
    assert [flood.acquire(SENDER_KEY, 3) for _ in range(4)] == [
        *[RateDecision.ACCEPTED] * 2,
        RateDecision.REFUSED,
        RateDecision.DROPPED,
    ]


def test_one_persons_flood_limits_no_others() -> None:
    """Rates are counted for each user in each room, for a bounded number of users; 0 means no limit."""
    flood = SenderRateLimiter(clock=lambda: 0.0)
    assert flood.acquire(SENDER_KEY, 1) is RateDecision.ACCEPTED
    assert flood.acquire(SENDER_KEY, 1) is RateDecision.REFUSED
    assert flood.acquire(("chn_1", "room", "8"), 1) is RateDecision.ACCEPTED
    assert flood.acquire(("chn_1", "other", "7"), 1) is RateDecision.ACCEPTED
    assert flood.acquire(SENDER_KEY, 0) is RateDecision.ACCEPTED
    for person in range(MAX_SENDERS):
        flood.acquire(("chn_2", "room", str(person)), 1)
    assert flood.acquire(SENDER_KEY, 1) is RateDecision.ACCEPTED


@pytest.mark.parametrize(
    ("rule", "person", "may"),
    [
        ("anyone", "8", True),
        ("asker", "7", True),
        ("asker", "8", False),
        (("8", "9"), "8", True),
        (("8", "9"), "7", False),
        ((), "7", False),
        (("T1:8",), "8", True),
        (("E1:8",), "8", True),
        (("T2:8", "T1:9"), "8", False),
    ],
)
def test_the_rule_says_who_decides(rule: str | tuple[str, ...], person: str, may: bool) -> None:
    """Anyone, the asker alone, or the ids that are listed; a list holds for the asker as well.

    An id may be listed together with its Slack workspace or organisation.
    """
    assert may_decide(rule, person, asker="7", address=WORKSPACE) is may


def test_a_turn_without_an_asker_has_none() -> None:
    """Under the rule `asker`, a turn without an asker cannot be approved in the chat."""
    assert not may_decide("asker", "", asker="", address=WORKSPACE)


@pytest.mark.parametrize(
    ("emoji", "decision"),
    [
        ("👍", True),
        ("👍🏽", True),
        ("✔️", True),
        ("+1", True),
        ("thumbsup::skin-tone-2", True),
        (":white_check_mark:", True),
        ("👎🏿", False),
        ("-1", False),
        ("❌", False),
        ("🎉", None),
        ("", None),
    ],
)
def test_thumbs_are_read_by_sign_and_by_name(emoji: str, decision: bool | None) -> None:
    """Skin tones and the platforms' spellings change nothing; other reactions decide nothing."""
    assert parse_decision(emoji) is decision


RUNNING = turn("now", state=TurnState.RUNNING, attempt=1)


@pytest.mark.parametrize(
    ("line", "mode", "found"),
    [
        ([RUNNING, turn("next")], QueueMode.COLLECT, "next"),
        ([turn("first")], QueueMode.COLLECT, None),
        ([turn("first")], QueueMode.INTERRUPT, "first"),
        ([RUNNING], QueueMode.INTERRUPT, None),
        ([RUNNING, turn("next")], QueueMode.FOLLOWUP, None),
        ([RUNNING, turn("next")], QueueMode.STEER, None),
        ([RUNNING, turn("theirs", asker="8")], QueueMode.COLLECT, None),
        ([RUNNING, turn("job", trigger="job")], QueueMode.COLLECT, None),
        ([RUNNING, turn("going", cancel=True)], QueueMode.COLLECT, None),
        ([RUNNING, turn("again", attempt=1)], QueueMode.COLLECT, None),
        ([RUNNING, turn("one"), turn("two")], QueueMode.COLLECT, "two"),
    ],
)
def test_a_message_joins_only_a_waiting_turn_of_its_own_author(
    line: list[Turn], mode: QueueMode, found: str | None
) -> None:
    """No message is added to another user's turn, to a job's follow-up, or to one that has begun."""
    turn = find_mergeable(line, "7", mode)
    assert (turn.id if turn else None) == found


def test_joined_input_stays_within_bounds() -> None:
    """Messages are parted by an empty line; what would grow too long stays a turn of its own."""
    assert merge_input(turn("a"), "b") == "a\n\nb"
    assert merge_input(turn("a", input="x" * MAX_INPUT), "b") is None


def test_start_is_help_and_unknown_words_are_no_commands() -> None:
    """Platforms' `/start` shows the help; words of others are no commands of ours."""
    start, queue = to_command("start", ()), parse("/queue collect")
    assert start is not None
    assert start.name == "help"
    assert queue is not None
    assert queue.args == ("collect",)
    assert to_command("weather", ("today",)) is None


APPROVAL_REQUESTED = Event.now(
    EventType.APPROVAL_REQUESTED, "cnv_1", {"approval": "apr_" + "0" * 26, "command": "ls", "tool": "bash"}
)


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (frozenset({ChannelFeature.BUTTONS}), ["Approve", "Deny"]),
        (
            frozenset({ChannelFeature.BUTTONS, ChannelFeature.PROMPTS}),
            ["Approve", "Deny", "Approve with comment…", "Deny with comment…"],
        ),
        (frozenset(), []),
    ],
)
async def test_buttons_that_ask_for_words_are_shown_where_a_platform_can_ask(
    features: frozenset[ChannelFeature], labels: list[str]
) -> None:
    """Where it cannot, the plain buttons stay; each button has its own data, within 64 bytes."""
    part = render_text(APPROVAL_REQUESTED)
    assert part is not None
    assert decode_part(encode_part(part)) == part
    assert len({button.data for button in part.buttons}) == 4
    assert all(len(button.data.encode()) <= 64 for button in part.buttons)
    channel, limits = MemoryChannel(), ChannelLimits(text=4000, account_sends_per_second=1000)
    bot = ConnectedBot(
        sender=channel, features=features, rate_limiter=RateLimiter(limits), limits=limits, account="acc_1"
    )
    delivery = chat_delivery(APPROVAL_REQUESTED, part)
    outcome = await ChatSink({"chn_1": bot}.get).send(delivery)
    assert outcome.kind is OutcomeKind.DELIVERED
    assert [button.label for button in channel.calls[0][1].buttons] == labels


@pytest.mark.parametrize(
    ("reason", "said"),
    [("cancelled", True), ("stopped", True), ("stopped in line", False), ("superseded", False)],
)
def test_a_stop_is_said_once(reason: str, said: bool) -> None:
    """Not for what waited behind the stopped turn, and not where a newer message takes over."""
    assert (render_text(Event.now(EventType.TURN_CANCELLED, "cnv_1", {"reason": reason})) is not None) is said


def test_a_renewed_question_says_why_it_is_asked_again() -> None:
    """The reason comes before the question."""
    asked = render_text(
        Event.now(APPROVAL_REQUESTED.type, "cnv_1", {**APPROVAL_REQUESTED.data, "reason": "It was changed."})
    )
    assert asked is not None
    assert asked.text.startswith("It was changed.\n\nMay I run this?")


OPEN_FENCE = "Which one?\n\n```\na"


@pytest.mark.parametrize(
    ("kind", "data", "below"),
    [
        (EventType.QUESTION_REQUESTED, {"approval": "apr_1", "question": OPEN_FENCE}, "Answer with "),
        (EventType.QUESTION_ANSWERED, {"question": OPEN_FENCE, "by": "ada"}, "Answered by ada."),
        (
            EventType.QUESTION_ANSWERED,
            {"question": f"```\n{'a' * 2000}\n```", "declined": True},
            "Not answered by",
        ),
        (
            EventType.APPROVAL_REQUESTED,
            {"approval": "apr_1", "command": "ls", "reason": OPEN_FENCE},
            "May I run this?",
        ),
        (
            EventType.TURN_RETRYING,
            {"error": OPEN_FENCE, "at": "2026-01-01T00:00:00+00:00", "attempt": 1},
            "Attempt 2 follows",
        ),
    ],
)
def test_words_below_an_open_code_block_are_no_code(
    kind: EventType, data: dict[str, object], below: str
) -> None:
    """What an agent or a server wrote may not end its code block; how to answer is still read as text."""
    shown = render_text(Event.now(kind, "cnv_1", data, turn="trn_1"))
    assert shown is not None
    code = [block.text for block in parse_markup(shown.text) if isinstance(block, Fence)]
    assert below in shown.text
    assert not any(below in text for text in code), shown.text
