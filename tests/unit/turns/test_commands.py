"""The texts of chat commands, as far as they do not need a gateway."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.deliveries.rendering import code_block
from delivery.errors import as_sentence
from gateway.agents.port import ToolResult
from gateway.agents.shell import ShellCommand, render_result
from gateway.ingress.commands.chat_commands import parse, render_queue
from gateway.store.turn_state import TurnState
from gateway.store.turns.turns import Turn


def turn(
    text: str, *, asker: str = "7", state: TurnState = TurnState.QUEUED, trigger: str = "message"
) -> Turn:
    """Return a turn in a line."""
    return Turn(
        id=f"trn_{text}",
        account="acc_1",
        conversation="cnv_1",
        agent="agt_1",
        trigger=trigger,
        asker=asker,
        input=text,
        state=state,
        created_at=datetime.now(UTC),
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([], "Nothing is running."),
        ([turn("a\n b", state=TurnState.RUNNING)], "Working on `a b`."),
        ([turn("x", state=TurnState.RUNNING, trigger="job")], "Working on a job's result."),
        ([turn("a", state=TurnState.WAITING)], "Waiting for a decision about `a`."),
        ([turn("a"), turn("b")], "About to begin with `a`. 1 more waits in line."),
        (
            [turn("a", asker="8", state=TurnState.RUNNING), turn("b", asker="9"), turn("c")],
            "Working on `a`. 2 more wait in line, yours is number 2.",
        ),
    ],
)
def test_a_queue_is_shown_with_the_position_of_the_sender(line: list[Turn], said: str) -> None:
    """The running turn comes first, then the number of waiting turns and the asker's position."""
    assert render_queue(line, "7") == said


@pytest.mark.parametrize("why", ["Please reduce your request rate.", "Please reduce your request rate"])
def test_a_text_of_a_vendor_ends_with_one_full_stop(why: str) -> None:
    """Some vendors' errors are sentences, others are not."""
    waiting = replace(turn("a"), error=why, next_at=datetime.now(UTC) + timedelta(hours=1))
    assert render_queue([waiting], "7").endswith("UTC: Please reduce your request rate.")
    output = {"stdout": "", "stderr": "", "timed_out": False, "exit_code": 0, "note": why}
    shown = render_result(ShellCommand(tool="bash", args={}), ToolResult(ok=True, content="", detail=output))
    assert shown.endswith("\n\nNote: Please reduce your request rate.")
    assert (as_sentence("Try again? "), as_sentence("rate…")) == ("Try again?", "rate…")


def test_only_known_words_are_commands() -> None:
    """An unknown `/word` and a path are passed to the agent."""
    assert parse("/etc/passwd") is None
    assert parse("say /stop") is None
    found = parse("/JOBS logs job_1")
    assert found is not None
    assert (found.name, found.args) == ("jobs", ("logs", "job_1"))


@given(st.text(alphabet="`~a \n", max_size=60))
def test_output_cannot_leave_its_code_block(text: str) -> None:
    """Output with any backticks stays one code block with exactly that output."""
    block = code_block(text)
    fence = block.partition("\n")[0]
    assert block == f"{fence}\n{text}\n{fence}"
    assert not [line for line in text.split("\n") if line.strip().startswith(fence)]
