"""The neutral markup: parsed without loss, split without loss, in linear time."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.commonmark.markup import (
    Block,
    CodeSpan,
    Fence,
    Heading,
    Inline,
    InlineImage,
    Link,
    ListBlock,
    Paragraph,
    Quote,
    StyledText,
    Table,
    Text,
    close_fence,
    parse,
    split,
)
from channels.commonmark.splitting import MAX_PARSED_LENGTH
from channels.testing.documents import documents
from text_checks import holds_in_order, packed, utf16


def words_of(blocks: tuple[Block, ...]) -> str:
    """Return all the text of a parsed document, one space between its pieces."""
    return " ".join(_block_words(block) for block in blocks)


def _block_words(block: Block) -> str:
    match block:
        case Paragraph(children=children) | Heading(children=children):
            return "".join(_inline_words(child) for child in children)
        case Fence(text=text, info=info):
            return f"{info}\n{text}"
        case Table(text=text):
            return text
        case Quote(children=children):
            return words_of(children)
        case ListBlock(items=items):
            return " ".join(words_of(item) for item in items)
        case _:
            return ""


def _inline_words(inline: Inline) -> str:
    match inline:
        case Text(text) | CodeSpan(text):
            return text
        case InlineImage(url, alt):
            return f"{alt} {url}"
        case StyledText(_, children):
            return "".join(_inline_words(child) for child in children)
        case Link(url, children):
            return "".join(_inline_words(child) for child in children) + f" {url}"


@given(documents())
def test_every_word_of_a_document_is_in_its_blocks(document: str) -> None:
    """Parsing keeps each word, in order, in any structure."""
    words = re.findall(r"[a-z]+\d+", document)
    assert re.findall(r"[a-z]+\d+", words_of(parse(document))) == words


@pytest.mark.parametrize(
    "text",
    ["if a<b and c>d", "Vec<T>", "<!channel> hi", "<script>alert(1)</script>", "a &lt b", "[foo]: http://x"],
)
def test_text_that_looks_like_html_stays_text(text: str) -> None:
    """Raw HTML is off, so angle brackets are words like any other."""
    assert packed(words_of(parse(text))) == packed(text)


def test_text_nested_deeper_than_the_bound_is_kept_literally() -> None:
    """What markdown-it would drop beyond its nesting bound is one literal paragraph."""
    text = "> " * 40 + "deep"
    assert parse(text) == (Paragraph(children=(Text(text),)),)


@given(documents(), st.integers(40, 400), st.sampled_from([len, utf16]))
def test_parts_of_a_document_fit_and_lose_nothing(
    document: str, limit: int, measure: Callable[[str], int]
) -> None:
    """Every part fits; all but white space and the mark of quoted code comes out in order."""
    parts = split(document, limit, measure)
    assert all(measure(part) <= limit and part.strip() for part in parts)
    assert holds_in_order(packed(document.replace(">", "")), packed("\n".join(parts)))


@given(st.text(), st.integers(16, 64), st.sampled_from([len, utf16]))
def test_parts_of_any_text_fit_and_lose_nothing(text: str, limit: int, measure: Callable[[str], int]) -> None:
    """The same holds for text of no structure at all."""
    parts = split(text, limit, measure)
    assert all(measure(part) <= limit for part in parts)
    assert holds_in_order(packed(text.replace("\0", "\ufffd")), packed("\n".join(parts)))


@given(st.text(alphabet="#>-+*=_~`|1.)[]()!<&\\ \n\tab", max_size=300), st.integers(16, 64))
def test_parts_of_markup_soup_fit_and_lose_nothing(text: str, limit: int) -> None:
    """Nor does a heap of markup characters lose one of them."""
    parts = split(text, limit)
    assert all(len(part) <= limit for part in parts)
    assert holds_in_order(packed(text), packed("\n".join(parts)))


@given(documents(), st.integers(60, 400))
def test_a_part_never_leaves_a_fence_open(document: str, limit: int) -> None:
    """A fence opened in a part is closed in it, and what was code is code in every part."""
    for part in split(document, limit):
        for block in parse(part):
            if isinstance(block, Fence):
                assert "```" not in block.text


@given(documents(), st.data())
def test_what_follows_a_closed_fence_is_no_code(document: str, data: st.DataObject) -> None:
    """However a text is cut, the words after it are a paragraph of their own, and it keeps its own words."""
    text = document[: data.draw(st.integers(1, len(document)))]
    closed = close_fence(text)
    assert closed.startswith(text.rstrip())
    assert close_fence(closed) == closed
    assert parse(f"{closed}\n\nhint")[-1] == Paragraph(children=(Text("hint"),), gap=True)


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("```py\nx", "```py\nx\n```"),
        ("~~~~\n~~~", "~~~~\n~~~\n~~~~"),
        ("- a\n  ```\n  x", "- a\n  ```\n  x\n  ```"),
        ("> ```\n> x\n", "> ```\n> x\n> ```"),
        ("x" * MAX_PARSED_LENGTH + "\n\n```\na", "x" * MAX_PARSED_LENGTH + "\n\n```\na\n```"),
        *((text, text) for text in ("", "a ```b", "```\nx\n```", "> ```\n> x\n\ny", "    code")),
    ],
)
def test_an_open_fence_is_closed_where_it_was_opened(text: str, closed: str) -> None:
    """In a list or a quote the closing mark has the indentation of the opening one."""
    assert close_fence(text) == closed


@settings(max_examples=20, deadline=None)
@given(documents(), st.integers(60, 400))
def test_a_text_too_long_to_be_parsed_is_cut_as_carefully(document: str, limit: int) -> None:
    """Beyond the length that is parsed, parts still fit, lose nothing and leave no fence open."""
    text = "\n\n".join([document] * (MAX_PARSED_LENGTH // (len(document) + 2) + 1))
    parts = split(text, limit)
    assert all(len(part) <= limit for part in parts)
    assert holds_in_order(packed(text.replace(">", "")), packed("\n".join(parts)))
    assert all(part.count("```") % 2 == 0 for part in parts)


def test_a_numbered_item_after_a_cut_is_still_an_item() -> None:
    """A number other than 1 would not end the paragraph before it, and its fence would open nothing."""
    text = "1. 1. " + "word " * 30 + "\n   2. ```python\n      code\n      ```"
    parts = split(text, 60)
    assert [block.text for part in parts for block in _fences(parse(part))] == ["code"]


def test_a_fence_of_an_outer_item_keeps_its_indent_after_a_cut_further_in() -> None:
    """A part that began deep inside a list does not tear a fence from the item it belongs to."""
    inner = "\n".join(f"    - {'word ' * 8}" for _ in range(3))
    text = f"- - x\n{inner}\n  - ```\n    code\n    ```\n\nafter"
    parts = split(text, 70)
    assert [block.text for part in parts for block in _fences(parse(part))] == ["code"]


def _fences(blocks: tuple[Block, ...]) -> list[Fence]:
    found: list[Fence] = []
    for block in blocks:
        if isinstance(block, Fence):
            found.append(block)
        elif isinstance(block, ListBlock):
            found += [fence for item in block.items for fence in _fences(item)]
    return found


def test_a_fence_that_is_too_long_is_opened_again_with_its_info() -> None:
    """Each part of a long program is a fence of the same language, and together they are the program."""
    program = "\n".join(f"    print({number})" for number in range(100))
    parts = split(f"before\n\n```python\n{program}\n```\n\nafter", 200)
    fences = [block for part in parts for block in parse(part) if isinstance(block, Fence)]
    assert {fence.info for fence in fences} == {"python"}
    assert "\n".join(fence.text for fence in fences) == program
    assert parts[0].startswith("before")
    assert parts[-1].endswith("after")


def test_a_table_that_is_too_long_repeats_its_head() -> None:
    """Rows in a later part come under a repeated header."""
    rows = "\n".join(f"| {number} | value |" for number in range(60))
    parts = split(f"| n | v |\n|---|---|\n{rows}", 300)
    assert len(parts) > 1
    assert all(isinstance(parse(part)[0], Table) for part in parts)


def test_blocks_that_fit_are_never_cut() -> None:
    """Parts end where a block ends as long as each block fits."""
    blocks = [f"paragraph {number} " + "word " * 10 for number in range(30)]
    parts = split("\n\n".join(blocks), 200)
    assert [line for part in parts for line in part.split(" \n\n")] == [block.strip() for block in blocks]


def test_the_rest_of_a_paragraph_does_not_become_a_heading() -> None:
    """A cut inside a line never turns words into markup."""
    parts = split("word " * 6 + "# not a heading, only a number sign in the middle of a line", 32)
    assert len(parts) > 1
    assert all(isinstance(block, Paragraph) for part in parts for block in parse(part))


def test_blank_text_has_no_parts() -> None:
    """Empty text renders to nothing."""
    assert split(" \n\t\n", 100) == ()


def test_a_limit_that_holds_no_fence_is_refused() -> None:
    """A limit below the smallest is a mistake of the caller."""
    with pytest.raises(ValueError, match="too small"):
        split("text", 8)


@given(st.builds(str.__add__, st.sampled_from("aZé"), st.text()))
@settings(max_examples=500)
def test_a_line_without_markup_is_parsed_as_among_others(line: str) -> None:
    """Such a line alone is not parsed; with another paragraph behind it, it is, and is the same."""
    first, *rest = parse(line)
    assert (first, *rest) == parse(f"{line}\n\n`code`")[: len(rest) + 1]


@pytest.mark.parametrize(
    "line", ["a 1. b", "Yes! (really) - it's 3 + 4 = 7; 50 % | # > {x}: a@b.example/~c", "é ünï\u2028x"]
)
def test_signs_inside_a_line_are_text(line: str) -> None:
    """Signs that begin a block at the start of a line only, or nothing at all."""
    assert parse(line) == (Paragraph(children=(Text(line),)),)


@pytest.mark.parametrize(
    "character",
    ["\U0001f1e9\U0001f1ea", "\U0001f9d1\U0001f3fd\u200d\U0001f680", "e\u0301\u0323", "กี่", "\u2764\ufe0f"],
    ids=["flag", "family", "accents", "Thai", "variant"],
)
def test_a_long_word_is_cut_between_the_characters_that_people_see(character: str) -> None:
    """Half of a flag is a letter in a box, and a mark without its letter is shown on a circle."""
    parts = split(character * 100, 50)
    assert "".join(parts) == character * 100
    assert {part.replace(character, "") for part in parts} == {""}


def test_a_letter_with_many_marks_is_cut_at_the_limit() -> None:
    """Marks may be as many as a text has; each part fits."""
    text = "e" + "\u0301" * 200
    parts = split(text, 50)
    assert ("".join(parts), max(map(len, parts)) <= 50) == (text, True)


def test_the_parts_of_a_table_leave_space_for_a_fence() -> None:
    """Platforms without tables show each part as code, which must fit their message too."""
    text = "| a | b |\n|---|---|\n" + "".join(f"| row {number} | {number} |\n" for number in range(400))
    for limit in range(200, 240):
        parts = split(text, limit)
        assert max(map(len, parts)) + len("```\n\n```") <= limit


@pytest.mark.parametrize(
    "marked",
    [
        "[the page of the office](https://example.org/a?b=c)",
        "**closed on every Friday**",
        "`cp --archive here there`",
        "*not to be forgotten*",
        "__of great importance__",
        "~~open on each Monday~~",
    ],
)
@pytest.mark.parametrize("before", range(20, 110, 7))
def test_a_long_line_is_cut_outside_of_links_code_and_emphasis(marked: str, before: int) -> None:
    """A part shows no raw markup while there is another place to cut."""
    line = f"{'many words ' * 12}"[:before].rstrip() + f" {marked} " + "and others " * 20
    assert [part for part in split(line, 100) if marked in part], split(line, 100)
    assert not set("*_~`[]\\") & set("".join(map(_shown_text, split(line, 100)))), split(line, 100)


def _shown_text(part: str) -> str:
    """Return the text of a part that is in no link, code or emphasis."""
    blocks = [block for block in parse(part) if isinstance(block, Paragraph)]
    return "".join(one.text for block in blocks for one in block.children if isinstance(one, Text))


@pytest.mark.parametrize(
    "start", ["- not", "* * *", "***", "---", "===", "# no", "> no", "+ no", "1. no", "~~~ no"]
)
def test_a_part_that_begins_like_a_block_is_still_text(start: str) -> None:
    """Words that begin a line after a cut stay words of a paragraph."""
    for number in range(40, 60):
        parts = split("x" * number + f" {start} " + "words " * 40, 64)
        assert {type(block) for part in parts for block in parse(part)} == {Paragraph}


def test_emphasis_that_is_longer_than_a_part_is_cut_between_words() -> None:
    """Where no other place is left, the words stay whole."""
    assert all(part.endswith("word") for part in split(f"**{'word ' * 100}word", 64))


@pytest.mark.parametrize("mark", ["*", "**", "_", "__", "~~", "`", "``"])
@pytest.mark.parametrize("prefix", ["", "> "])
def test_emphasis_that_is_longer_than_a_part_continues_in_the_next(mark: str, prefix: str) -> None:
    """Each part closes the emphasis, and the next one opens it again; what follows is plain."""
    text = f"{prefix}before {mark}{'inside ' * 100}end{mark} {'after ' * 100}"
    parts = split(text, 80)
    plain = " ".join(_shown_text(part.removeprefix(prefix)) for part in parts).split()
    everything = " ".join(words_of(parse(part)) for part in parts).split()
    assert max(map(len, parts)) <= 80
    assert (plain, len(everything)) == (["before", *["after"] * 100], 202)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see https://ex.org/a_b/__init__.py now", ["see https://ex.org/a_b/__init__.py now"]),
        ("**http://ex.org/_a_/b**", [("strong", "http://ex.org/_a_/b")]),
        ("*(HTTPS://ex.org/x_(y)_z).*", [("emphasis", "(HTTPS://ex.org/x_(y)_z).")]),
        ("https://ex.org/a\\_b?c=_d_&amp;e, _f_", ["https://ex.org/a_b?c=_d_&e, ", ("emphasis", "f")]),
        ("nohttps://__a__", ["nohttps://", ("strong", "a")]),
        ("https://ex.org/，**a**", ["https://ex.org/，", ("strong", "a")]),
        ("https://", ["https://"]),
    ],
)
def test_an_address_in_a_text_is_no_markup(text: str, shown: list[object]) -> None:
    """It ends before signs that belong to the text around it, and before letters beyond ASCII."""
    (paragraph,) = parse(text)
    assert isinstance(paragraph, Paragraph)
    assert [
        (one.style, _inline_words(one)) if isinstance(one, StyledText) else _inline_words(one)
        for one in paragraph.children
        if _inline_words(one)
    ] == shown


@pytest.mark.parametrize(
    "text",
    ["\\*no *{}end\\* {}", "2 * 3 {} * 4 {}", "** no {}** {}", "a_b {}c_d {}", "http://a/_b {}http://a/_ {}"],
)
def test_signs_that_are_no_emphasis_are_not_repeated(text: str) -> None:
    """A cut between them adds none."""
    source = text.format("word " * 60, "more " * 60)
    assert packed("".join(split(source, 80))) == packed(source)
