"""Earlier messages of a request whose client keeps the history are quoted, and shortened if need be."""

from __future__ import annotations

import pytest

from gateway.conversations.submissions.queue_policy import MAX_INPUT
from gateway.web.compat.openai_messages import InputMessage
from gateway.web.compat.openai_requests import MAX_QUOTED, last_user_input


def quoted(*texts: str, question: str = "now") -> str:
    """Return the input of a request with these earlier messages."""
    earlier = [InputMessage(role="assistant", content=text) for text in texts]
    asked = InputMessage(role="user", content=question)
    return last_user_input([*earlier, asked], standalone=True, pointer="/input").text


def test_a_short_history_is_quoted_whole() -> None:
    """Each line begins with the mark."""
    assert quoted("one\ntwo", "x" * 50_000).startswith("> assistant: one\n> two\n> assistant: xxx")


def test_long_messages_of_a_long_history_are_cut() -> None:
    """Their beginning and end stay, with the number of characters between; the short ones stay whole."""
    text = quoted("first", *(f"[{'x' * 20_000}]" for _ in range(20)), "last")
    assert text.startswith("> assistant: first\n> assistant: [xxx")
    assert text.endswith("xx]\n> assistant: last\n\nnow")
    assert len(text) < 20 * (MAX_QUOTED + 100)
    assert f"({len('assistant: []') + 20_000 - MAX_QUOTED} characters are left out)" in text


def test_the_oldest_messages_of_a_history_without_end_are_left_out() -> None:
    """The input is as long as it may be, and says how many are missing."""
    text = quoted(*(f"{number} {'x' * 3000}" for number in range(1000)))
    notice, oldest = text.splitlines()[:2]
    missing = int(notice.removeprefix("> (").partition(" ")[0])
    assert oldest.startswith(f"> assistant: {missing} xxx")
    assert MAX_INPUT - 3100 < len(text) <= MAX_INPUT


@pytest.mark.parametrize("spare", [0, 3, 60])
def test_a_question_without_room_for_a_history_is_asked(spare: int) -> None:
    """The question alone is the input, or with as much of the history as fits."""
    question = "q" * (MAX_INPUT - spare)
    assert quoted(*["\n" * 9000] * 30, question=question).endswith(question)
