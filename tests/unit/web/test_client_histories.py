"""Earlier messages of a request whose client keeps the history: roles, calls, results, and shortening."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.agents.client_history import ANSWER_FIRST, MAX_HISTORY, MAX_SHORTENED
from gateway.agents.clients import messages as stored
from gateway.web.compat.openai_messages import InputMessage
from gateway.web.compat.openai_requests import last_user_input, read_history

NOW = {"role": "user", "content": "now"}


def history(*earlier: dict[str, Any]) -> Sequence[Any]:
    """Return the history of a request with these earlier messages, as vendors accept it."""
    read = [InputMessage.model_validate(one) for one in (*earlier, NOW)]
    assert last_user_input(read, pointer="/input").text == "now"
    entry = read_history(read)
    return stored.repaired(stored.check_messages(list(entry.messages))) if entry else []


def shown(messages: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Return what messages say: texts, calls as (name, arguments, id), and results as (result, id)."""
    return [(message["kind"], [_shown_part(part) for part in message["parts"]]) for message in messages]


def _shown_part(part: Any) -> Any:
    if part["part_kind"] == "tool-call":
        return part["tool_name"], json.loads(part["args"]), part["tool_call_id"]
    if part["part_kind"] == "tool-return":
        return part["content"], part["tool_call_id"]
    return part["content"]


def call(id_: str, name: str, arguments: str = "{}") -> dict[str, Any]:
    """Return a call as responses have it."""
    return {"type": "function_call", "call_id": id_, "name": name, "arguments": arguments}


def result(id_: str, output: str) -> dict[str, Any]:
    """Return a result as responses have it."""
    return {"type": "function_call_output", "call_id": id_, "output": output}


def test_each_message_keeps_its_role() -> None:
    """Those of a person in a row are one; system messages are instructions, and the question is not in it."""
    said = history(
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hello"},
        {"role": "user", "content": "you"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
    )
    assert shown(said) == [("request", ["hello\n\nyou"]), ("response", ["hi"])]


def test_a_first_question_has_no_history() -> None:
    """Instructions alone are none."""
    assert history() == history({"role": "developer", "content": "be kind"}) == []


def test_calls_and_results_belong_together() -> None:
    """Calls of one response are in one message; a repeated id is that of its last call."""
    said = history(
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "I look"},
        call("c", "ls", '{"path": "."}'),
        {"type": "reasoning", "id": "rs_1", "summary": []},
        call("d", "pwd"),
        result("d", "/"),
        result("c", "a.txt"),
        call("c", "cat"),
        result("c", "text"),
    )
    assert shown(said) == [
        ("request", ["look"]),
        ("response", ["I look", ("ls", {"path": "."}, "earlier_1"), ("pwd", {}, "earlier_2")]),
        ("request", [("/", "earlier_2"), ("a.txt", "earlier_1")]),
        ("response", [("cat", {}, "earlier_3")]),
        ("request", [("text", "earlier_3")]),
    ]


def test_calls_of_completions_and_of_custom_tools_are_read() -> None:
    """A custom tool has one text; a tool in a namespace has the name that the model gets."""
    made = [
        {"id": "1", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
        {"id": "2", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}},
    ]
    named = {"type": "custom_tool_call", "call_id": "3", "namespace": "git", "name": "log", "input": "-1"}
    said = history({"role": "assistant", "content": None, "tool_calls": made}, named)
    assert shown(said)[:2] == [
        ("request", [ANSWER_FIRST]),
        (
            "response",
            [
                ("ls", {}, "earlier_1"),
                ("patch", {"input": "*** Begin"}, "earlier_2"),
                ("git__log", {"input": "-1"}, "earlier_3"),
            ],
        ),
    ]


def test_an_empty_result_is_a_result() -> None:
    """Many commands print nothing; the model must not read that they were interrupted."""
    said = history(call("c", "mkdir"), result("c", ""), result("lost", ""))
    assert shown(said)[-1] == ("request", [("", "earlier_1")])


def test_a_result_without_its_call_is_text() -> None:
    """A client that shortens its history may leave a result without the call."""
    said = history(result("lost", "found"), {"role": "assistant", "content": "ok"})
    assert shown(said) == [("request", ["[a tool returned] found"]), ("response", ["ok"])]


def test_long_messages_of_a_long_history_are_cut() -> None:
    """Their beginning and end stay, with the number of characters between; arguments stay an object."""
    texts = [{"role": "user", "content": f"[{'x' * 20_000}]"} for _ in range(20)]
    said = history({"role": "user", "content": "first"}, *texts, call("c", "write", '"' + "y" * 9000 + '"'))
    prompts = said[0]["parts"][0]["content"].split("\n\n")
    assert prompts[0] == "first"
    assert prompts[1].startswith("[xxx")
    assert prompts[1].endswith("xx]")
    assert f"({len('[]') + 20_000 - MAX_SHORTENED} characters are left out)" in prompts[1]
    (kept,) = [part for part in said[1]["parts"] if part["part_kind"] == "tool-call"]
    assert json.loads(kept["args"])["shortened"].startswith('"yyy')


def test_the_oldest_messages_of_a_history_without_end_are_left_out() -> None:
    """It is as long as it may be, and says how many messages are missing."""
    roles = ("user", "assistant")
    said = history(*({"role": roles[one % 2], "content": f"{one} {'x' * 3000}"} for one in range(1000)))
    texts = [part["content"] for message in said for part in message["parts"]]
    notice, *kept = "\n\n".join(texts).split("\n\n")
    missing = int(notice.removeprefix("(").partition(" ")[0])
    assert [text.split()[0] for text in kept] == [str(number) for number in range(missing, 1000)]
    assert MAX_HISTORY - 3100 < sum(map(len, kept)) <= MAX_HISTORY


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TOOL_CALLS = st.lists(
    st.fixed_dictionaries({}, optional={"id": JSON, "function": JSON, "custom": JSON}) | JSON, max_size=3
)


@given(st.lists(TOOL_CALLS, max_size=3), JSON, JSON)
def test_whatever_calls_look_like_they_are_read(calls: list[Any], name: Any, arguments: Any) -> None:
    """No form of a call is a fault, and vendors accept the names."""
    said = history(
        *({"role": "assistant", "content": None, "tool_calls": one} for one in calls),
        {"type": "function_call", "call_id": name, "name": name, "arguments": arguments},
    )
    names = [one["tool_name"] for message in said for one in stored.calls_of(message)]
    assert all(0 < len(one) <= 64 and one.isascii() for one in names)
