"""The name of a person in a message of the bot is text: no link, no formatting, no code."""

from __future__ import annotations

import pytest

from channels.commonmark.markup import Paragraph, Text, parse
from channels.telegram.send import markup as telegram
from delivery.deliveries.rendering import render_text
from delivery.events.event import Event, EventType

NAMES = [
    "Ann [confirm here](https://evil.example)",
    "Ann <https://evil.example/x>",
    "**Ann** _the_ ~~boss~~",
    "Ann `rm -rf /` ``",
    "![](https://evil.example/a.png) ||Ann||",
    "Ann &lt;b&gt; \\",
]
DECIDED = {"decision": "approve", "command": "make", "asked": "evt_1"}
ANSWERED = {"question": "Which one?", "answer": "that"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("kind", "data", "start"),
    [
        (EventType.APPROVAL_RESOLVED, DECIDED, "Approved by "),
        (EventType.QUESTION_ANSWERED, ANSWERED, "Answered by "),
    ],
)
def test_the_name_of_a_person_is_not_markup(
    kind: EventType, data: dict[str, str], start: str, name: str
) -> None:
    """People choose their names, and the bot shows them in its own message: as they are."""
    part = render_text(Event.now(kind, "cnv_1", {**data, "name": name}))
    assert part is not None
    shown = [block.children for block in parse(part.text) if isinstance(block, Paragraph)]
    (sentence,) = [one for one in shown if isinstance(one[0], Text) and one[0].text.startswith(start)]
    assert all(isinstance(one, Text) for one in sentence)
    assert f"{start}{name}" in "".join(one.text for one in sentence if isinstance(one, Text))
    rendered = telegram.render(part.text)
    assert f"{start}{name}" in rendered.text
    assert {str(telegram.encode_entity(entity)["type"]) for entity in rendered.entities} == {"pre"}


def test_a_name_of_several_lines_is_one_line() -> None:
    """A line of its own could begin a quote, a heading or a fence."""
    part = render_text(Event.now(EventType.APPROVAL_RESOLVED, "cnv_1", {**DECIDED, "name": "Ann\n\n```\nls"}))
    assert part is not None
    assert part.text.startswith("Approved by Ann \\`\\`\\` ls:\n\n```\nmake\n```")
