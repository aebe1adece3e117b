"""Where a long conversation is cut, and what replaces its older part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.agents.clients.messages import (
    ChatMessage,
    calls_of,
    is_result,
    request,
    tool_return,
    user_prompt,
    with_parts,
)
from gateway.agents.clients.text import repair_surrogates, shorten
from gateway.agents.model import compaction
from model_messages import response, tool_call

sizes = st.integers(min_value=0, max_value=4000)
turns = st.lists(st.tuples(sizes, st.lists(sizes, max_size=3), st.booleans()), min_size=1, max_size=12)


def conversation(turns: list[tuple[int, list[int], bool]]) -> list[ChatMessage]:
    """Return turns: a question, tool rounds with results of some sizes, and perhaps an answer."""
    messages: list[ChatMessage] = []
    for number, (asked, results, answered) in enumerate(turns):
        messages.append(request([user_prompt(f"question {number} " + "q" * asked)]))
        for round_number, size in enumerate(results):
            call = tool_call({"command": "x"}, f"call_{number}_{round_number}")
            messages += [response(call), request([tool_return(call, "r" * size)])]
        if answered:
            messages.append(response(f"answer {number}"))
    return messages


def calls_and_results(messages: list[ChatMessage]) -> tuple[set[str], set[str]]:
    """Return the ids of calls made and of results given."""
    calls = {call["tool_call_id"] for item in messages for call in calls_of(item)}
    results = {part["tool_call_id"] for item in messages for part in item["parts"] if is_result(part)}
    return calls, results


@given(turns, st.integers(1, 8000))
def test_a_cut_never_parts_a_call_from_its_result(
    turns: list[tuple[int, list[int], bool]], room: int
) -> None:
    """Both sides of a cut hold whole exchanges."""
    messages = conversation(turns)
    place = compaction.find_cut(messages, room)
    for side in (messages[:place], messages[place:]):
        calls, results = calls_and_results(side)
        assert calls == results


@given(turns, st.integers(1, 8000))
def test_the_request_being_worked_on_is_never_lost(
    turns: list[tuple[int, list[int], bool]], room: int
) -> None:
    """The newest question is in the tail, or quoted in full beside the summary."""
    messages = conversation(turns)
    place = compaction.find_cut(messages, room)
    standing = compaction.current_request(messages, place)
    compacted = compaction.compacted_history("the summary", [], standing, messages[place:], 16_000)
    newest = f"question {len(turns) - 1} "
    reported = [
        str(part["content"])
        for item in compacted
        for part in item["parts"]
        if part["part_kind"] == "user-prompt"
    ]
    assert any(newest in text for text in reported)


@given(turns, st.lists(st.text("abc ", max_size=600), max_size=60))
def test_what_remains_fits_well_below_the_threshold(
    turns: list[tuple[int, list[int], bool]], notes: list[str]
) -> None:
    """However long the conversation was, compaction leaves it short enough to go on for a while."""
    room = 8_000
    messages = conversation(turns)
    place = compaction.find_cut(messages, int(room * compaction.TAIL_SHARE))
    standing = compaction.current_request(messages, place)
    compacted = compaction.compacted_history("s" * 100_000, notes, standing, messages[place:], room)
    assert compaction.estimate_tokens(compacted) <= room * compaction.START_SHARE


def test_a_tail_starts_at_a_turn_where_it_can() -> None:
    """Whole turns are retained rather than the end of one."""
    messages = conversation([(400, [400], True)] * 5)
    place = compaction.find_cut(messages, 700)
    assert messages[place]["parts"][0]["part_kind"] == "user-prompt"


def test_the_newest_notes_are_included_and_the_rest_counted() -> None:
    """When there are too many notes the oldest are dropped, and their number is stated."""
    notes = [f"{number:03d} approved" for number in range(100)]
    (memory, *_) = compaction.compacted_history("summary", notes, "", [], 1000)
    text = str(memory["parts"][0]["content"])
    assert "099 approved" in text
    assert "000 approved" not in text
    assert "older ones are in the conversation's event log" in text


@given(st.text(max_size=400), st.integers(1, 300))
def test_shortening_says_how_much_is_missing(text: str, most: int) -> None:
    """A shortened text keeps both ends and states the number of characters left out."""
    short = shorten(text, most)
    if len(text) <= most:
        assert short == text
    else:
        half = most // 2
        assert short.startswith(text[:half])
        assert f"{len(text) - 2 * half} characters left out" in short


@given(st.text(st.characters(), max_size=100))
def test_mended_text_can_be_stored(text: str) -> None:
    """Repaired text always encodes as JSON, and valid text stays as it is."""
    mended = repair_surrogates(text)
    mended.encode()
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert mended == text


@given(st.text(max_size=5000), st.integers(1, 3000))
def test_pieces_of_a_transcript_lose_nothing(text: str, room: int) -> None:
    """The summariser is asked about every character of the transcript, in order."""
    pieces = list(compaction.chunks(text, room))
    assert "".join(pieces) == text


def test_a_transcript_names_who_said_what() -> None:
    """Users, the assistant, its calls and their results are distinguishable."""
    text = compaction.transcript(conversation([(0, [3], True)]))
    assert text.splitlines() == [
        "Person: question 0 ",
        'Assistant calls bash: {"command":"x"}',
        "Result of bash: rrr",
        "Assistant: answer 0",
    ]


def test_a_requested_summary_keeps_the_last_exchange_whole() -> None:
    """A message that a running turn received is beside results: nothing is cut before it."""
    messages = conversation([(10, [20], True), (10, [20, 30], True)])
    steered = messages[-2]
    messages[-2] = with_parts(steered, [*steered["parts"], user_prompt("faster")])
    place = compaction.find_last_exchange(messages)
    assert str(messages[place]["parts"][0]["content"]).startswith("question 1")
    assert compaction.find_last_exchange(messages[:4]) == 0
    assert compaction.find_last_exchange([]) == 0
