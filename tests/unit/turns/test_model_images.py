"""Images in what a model agent is shown, stores and remembers."""

from __future__ import annotations

from gateway.agents.clients.errors import ModelRequestRefused
from gateway.agents.clients.messages import is_image, request, user_prompt
from gateway.agents.history import decode_entry, encode_entry
from gateway.agents.model import compaction, images
from gateway.agents.model.state import AgentState, encode, initial_state, resume
from gateway.agents.port import AgentImage

CAT = AgentImage(name="inbox/cat.png", media_type="image/png", content=b"\x89PNG" + b"\0" * 100_000)


def a_progress() -> AgentState:
    """Return a turn that has begun with an image."""
    progress = AgentState()
    content = images.prompt("what is this?", [CAT])
    progress.messages = [request([user_prompt(content)])]
    return progress


def content_of(progress: AgentState | None) -> list[object]:
    """Return what the first prompt consists of."""
    assert progress is not None
    content = progress.messages[0]["parts"][0]["content"]
    return [content] if isinstance(content, str) else list(content)


def test_a_prompt_without_images_stays_a_text() -> None:
    """A model without support for images gets the same prompt as before."""
    assert images.prompt("hello", []) == "hello"


def test_progress_is_stored_without_bytes_and_shown_again_with_them() -> None:
    """A crash in the middle of a turn loses no image, and the database stores none."""
    stored = encode(a_progress())
    assert len(stored) < 2000
    again = resume(stored, ())
    assert again is not None
    again.messages = images.restore_images(again.messages, [CAT])
    assert content_of(again) == content_of(a_progress())


def test_history_keeps_words_in_place_of_images() -> None:
    """A later turn has the fact that an image was shown, and its path."""
    history = encode_entry(a_progress().to_entry())
    assert len(history) < 2000
    entry = decode_entry(history)
    assert entry is not None
    said = content_of(initial_state([entry]))
    assert said == ["what is this?", "[image: inbox/cat.png] (shown to you then, not again)"]


def test_only_the_turn_s_own_labels_bring_images_back() -> None:
    """A person who types a label is shown nothing."""
    typed = [request([user_prompt(["[image: inbox/cat.png]", "x"])])]
    assert images.count(images.restore_images(typed, [CAT])) == 0


def test_an_image_is_estimated_as_one_and_not_by_its_bytes() -> None:
    """A conversation with an image is not counted as full."""
    assert 1000 <= compaction.estimate_tokens(a_progress().messages) < 1200


def test_a_refusal_of_images_is_distinguished_from_other_errors() -> None:
    """Only an error that names images, of a request that has some, is tried again without."""
    messages = a_progress().messages
    refused = ModelRequestRefused("m", "image_url is only supported by certain models", status=400)
    overflow = ModelRequestRefused("m", "too long", status=400)
    assert images.are_refused(refused, messages)
    assert not images.are_refused(overflow, messages)
    assert not images.are_refused(refused, images.replace_images(messages))


def test_what_is_hidden_says_so_and_stays_hidden() -> None:
    """A model that refused images gets a note, also after a restart in the same turn."""
    hidden = images.replace_images(a_progress().messages)
    assert images.count(hidden) == 0
    progress = a_progress()
    progress.messages = hidden
    assert images.NOT_SHOWN in content_of(progress)
    assert images.count(images.restore_images(hidden, [CAT])) == 0
    assert not any(is_image(item) for item in content_of(a_progress())[:2])
