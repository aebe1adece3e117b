"""CommonMark as Telegram shows it: no text is lost, and Telegram accepts the entities."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.telegram.send.markup import MAX_ENTITIES, RenderedEntity, RenderedText, encode_entity, render
from channels.telegram.simulator.wording import parse_text
from channels.telegram.text import measure
from channels.testing.documents import HOSTILE, documents


def covered(rendered: RenderedText, entity: RenderedEntity) -> str:
    """Return the words an entity covers, as Telegram counts."""
    units = rendered.text.encode("utf-16-le")
    return units[entity.offset * 2 : entity.end * 2].decode("utf-16-le")


def styles(markdown: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text and, for each entity, its type and words."""
    rendered = render(markdown)
    return rendered.text, [(entity.type, covered(rendered, entity)) for entity in rendered.entities]


@pytest.mark.parametrize(
    ("markdown", "text", "entities"),
    [
        ("plain", "plain", []),
        (
            "**b** *i* ~~s~~ `c`",
            "b i s c",
            [("bold", "b"), ("italic", "i"), ("strikethrough", "s"), ("code", "c")],
        ),
        ("😀 **b**", "😀 b", [("bold", "b")]),
        ("**a *b* c**", "a b c", [("bold", "a b c"), ("italic", "b")]),
        ("# Title\ntext", "Title\ntext", [("bold", "Title")]),
        ("a\n\nb", "a\n\nb", []),
        ("```py\nx = 1\n```", "x = 1", [("pre", "x = 1")]),
        ('```py title="a b"\nx\n```', 'title="a b"\nx', [("pre", "x")]),
        ("```\n\n```", "```\n\n```", []),
        ("- a\n- b\n  - c", "• a\n• b\n  • c", []),
        ("3. a\n4. b", "3. a\n4. b", []),
        ("> quoted\n> more", "quoted\nmore", [("blockquote", "quoted\nmore")]),
        ("> > twice", "twice", [("blockquote", "twice")]),
        ("[here](https://x.test/)", "here", [("text_link", "here")]),
        ("[`here`](https://x.test/)", "here", [("text_link", "here")]),
        ("[here](sub/page)", "here (sub/page)", []),
        ("<https://x.test/>", "https://x.test/", []),
        ("![plan](https://x.test/p.png)", "plan", [("text_link", "plan")]),
        ("**bold `code` bold**", "bold code bold", [("bold", "bold "), ("code", "code"), ("bold", " bold")]),
        ("a\n\n---\n\nb", "a\n\n———\n\nb", []),
        ("|a|b|\n|-|-|\n|1|2|", "|a|b|\n|-|-|\n|1|2|", [("pre", "|a|b|\n|-|-|\n|1|2|")]),
        ("if a<b and c>d", "if a<b and c>d", []),
        ("Vec<T>", "Vec<T>", []),
        ("<!channel> hi", "<!channel> hi", []),
        ("a_b_c and 2*3*4", "a_b_c and 234", [("italic", "3")]),
        (" \n", " \n", []),
    ],
)
def test_markdown_is_shown_as_telegram_can(markdown: str, text: str, entities: list[tuple[str, str]]) -> None:
    """Each construct has its text and its entities."""
    assert styles(markdown) == (text, entities)


def test_a_language_and_an_address_are_part_of_the_entity() -> None:
    """What is not shown is in the entity."""
    (fence,) = render("```python\nx\n```").entities
    (link,) = render("[x](https://x.test/)").entities
    assert encode_entity(fence) == {"type": "pre", "offset": 0, "length": 1, "language": "python"}
    assert encode_entity(link) == {
        "type": "text_link",
        "offset": 0,
        "length": 1,
        "url": "https://x.test/",
    }


def assert_telegram_takes(rendered: RenderedText) -> None:
    """Let the simulator, which is strict, read the text with its entities."""
    if rendered.text.strip():
        text, _ = parse_text(rendered.text, "", [encode_entity(entity) for entity in rendered.entities])
        assert text == rendered.text.strip()


@given(documents())
def test_a_document_keeps_its_words_and_grows_no_longer(document: str) -> None:
    """Every word is shown in its order, with valid entities; the text never outgrows its source."""
    rendered = render(document)
    assert_telegram_takes(rendered)
    word = r"[a-z]+\d+"
    assert re.findall(word, rendered.text) == re.findall(word, document)
    assert measure(rendered.text) <= measure(document)


@given(
    st.lists(
        st.sampled_from(["😀", "**w1**", "`w2`", "*w3*", "é", "中", "[w4](https://x.test)", " "]), max_size=40
    )
)
def test_entities_cover_their_words_whatever_precedes_them(pieces: list[str]) -> None:
    """Offsets count UTF-16 units, so that no emoji shifts a style."""
    rendered = render(" ".join(["x", *pieces]))
    words = {"bold": "w1", "code": "w2", "italic": "w3", "text_link": "w4"}
    assert all(covered(rendered, entity) == words[entity.type] for entity in rendered.entities)


@given(st.text(max_size=200) | st.text(alphabet="#>-+*_~`|1.)[]()!<&\\ \n\tab😀", max_size=200))
def test_any_text_is_rendered_to_what_telegram_takes(text: str) -> None:
    """No text, however odd, makes entities Telegram would refuse."""
    rendered = render(text)
    assert len(rendered.entities) <= MAX_ENTITIES
    assert_telegram_takes(rendered)


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_as_long_as_a_message_is_rendered(unit: str) -> None:
    """A message full of brackets is a message."""
    assert_telegram_takes(render((unit * 4096)[:4096]))


def test_code_is_kept_when_there_are_too_many_entities() -> None:
    """Of more than a hundred entities, styles go first."""
    rendered = render("*i* " * 150 + "\n\n```\ncode\n```")
    assert len(rendered.entities) == MAX_ENTITIES
    assert rendered.entities[-1].type == "pre"
