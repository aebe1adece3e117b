"""CommonMark documents for the tests of markup: random ones of every structure, and hostile ones."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

HOSTILE = [
    "[", "![", "[a](", "[[a](b)", "](", "<", "<a:", "&", "\\", "|", "*a **b ", "_", "**", "~~", "~a~~b",
    "`a", "`a``b```", "> ", "- ", "1. ", "# ", "a|b\n-|-\n", "a\n", "- a\n", "> a\n", "```\na\n", "- a\n  ",
    "\n\n", ">a\nb\n", "\t- a\n", "    a\n", "a\n===\n", "> - > - a\n", "\u0301", "\U0001f600",
]  # fmt: skip
"""Units which, repeated, have made some parser of Markdown or other go quadratic or lose text."""

_SHAPES = ["{}", "**{}**", "*{}*", "`{}`", "~~{}~~", "<{}>", "[{}](https://x.test/)", "{} \U0001f600"]
_LETTERS = st.sampled_from(["alpha", "beta", "gamma", "delta"])


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Draw a document whose words are all different, such as `alpha1`."""
    numbers = count(1)
    size = draw(st.integers(1, 6))
    return "\n\n".join(draw(_blocks(numbers, draw(st.integers(0, 2)))) for _ in range(size))


@st.composite
def _sentence(draw: st.DrawFn, numbers: count[int]) -> str:
    parts = [draw(_phrase(numbers)) for _ in range(draw(st.integers(1, 12)))]
    return draw(st.sampled_from([" ", " ", "\n"])).join(parts)


@st.composite
def _phrase(draw: st.DrawFn, numbers: count[int]) -> str:
    word = f"{draw(_LETTERS)}{next(numbers)}"
    return draw(st.sampled_from(_SHAPES)).format(word)


@st.composite
def _blocks(draw: st.DrawFn, numbers: count[int], depth: int) -> str:
    kind = draw(st.sampled_from(["text", "text", "head", "fence", "table", "list", "numbered", "quote"]))
    match kind:
        case "head":
            return "## " + draw(_phrase(numbers))
        case "fence":
            return _fence(draw, numbers)
        case "table":
            rows = [
                f"| {draw(_phrase(numbers))} | {draw(_phrase(numbers))} |"
                for _ in range(draw(st.integers(1, 8)))
            ]
            return "\n".join(["| name | value |", "|---|---|", *rows])
        case "list" | "numbered" | "quote" if depth:
            return _container(draw, numbers, depth, kind)
        case _:
            return draw(_sentence(numbers))


def _fence(draw: st.DrawFn, numbers: count[int]) -> str:
    lines = [
        f"    code{next(numbers)} = {draw(_LETTERS)}{next(numbers)}" for _ in range(draw(st.integers(0, 20)))
    ]
    return "\n".join([draw(st.sampled_from(["```", "```python", "~~~js"])), *lines, "```"]).replace(
        "~~~js", "```js"
    )


def _container(draw: st.DrawFn, numbers: count[int], depth: int, kind: str) -> str:
    if kind == "quote":
        return _indented(draw(_blocks(numbers, depth - 1)), "> ", "> ")
    marks = ["- " if kind == "list" else f"{number}. " for number in range(1, draw(st.integers(1, 5)) + 1)]
    return "\n".join(_indented(draw(_blocks(numbers, depth - 1)), mark, " " * len(mark)) for mark in marks)


def _indented(text: str, first: str, others: str) -> str:
    lines = text.split("\n")
    return "\n".join([first + lines[0], *(others + line for line in lines[1:])])
