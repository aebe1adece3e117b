"""Texts that make a regular expression try again and again, and the measure of what it then costs.

The texts are derived from the pattern: each repeated part, driven long behind everything that leads to it and
ended so that the match fails late; the pattern's beginnings, repeated; and pairs of its own characters.
"""

from __future__ import annotations

import importlib
import itertools
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, cast

_parser: Any = importlib.import_module("re._parser")
_compiler: Any = importlib.import_module("re._compiler")

SMALL, LARGE = 4_096, 16_384
"""Lengths of a text in characters. Quadratic work grows 16 times between them, linear work 4 times."""

MAX_GROWTH = 8
QUICK_SECONDS = 0.001
"""Quadratic work takes longer than this at the length `SMALL`: 8 million steps."""

MAX_SECONDS = 0.5
"""Processor time after which one text is given up: it would not end, as with exponential work."""

_ENDS = ("", "\x01", "\nx")
_POOL = "aMZ0 \t\n-_.:/\\<>[](){}#*`~|=+@!?&;,'\"$%^é\x01"
_LONG = 20
"""A repetition that can be longer than this is driven long."""

_SINGLE = (["ANY"], ["IN"], ["LITERAL"], ["NOT_LITERAL"])
"""The parts that match exactly one character."""

Text = tuple[str, str, str]
"""What comes first, what is repeated, and what ends the text."""

AnyPattern = re.Pattern[str] | re.Pattern[bytes]


def hostile_texts(pattern: AnyPattern) -> list[Text]:
    """Return the texts for this pattern, each once."""
    source = pattern.pattern
    tree = _parser.parse(source, pattern.flags & ~re.DEBUG)
    words = source.decode("latin-1") if isinstance(source, bytes) else source
    return list(dict.fromkeys([*_driven(tree, ""), *_pairs(words)]))


def has_possessive_group(pattern: AnyPattern) -> bool:
    """Return whether a group is possessive or atomic, which Python before 3.11.5 matches wrongly."""
    return _is_possessive_group(_parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG))


def _is_possessive_group(tree: Any) -> bool:
    for kind, value in tree:
        parts = list(_sequences(value))
        if str(kind) == "ATOMIC_GROUP" or any(map(_is_possessive_group, parts)):
            return True
        if str(kind) == "POSSESSIVE_REPEAT" and [str(inner) for inner, _ in parts[0]] not in _SINGLE:
            return True
    return False


def _sequences(value: Any) -> Iterator[Any]:
    """Yield the sequences of parts below a part."""
    if isinstance(value, _parser.SubPattern):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _sequences(one)


def _pairs(words: str) -> Iterator[Text]:
    characters = "".join(dict.fromkeys(one for one in words if one not in "\\?(){}$"))[:5] + "a0 -"
    for first, second in itertools.product(dict.fromkeys(characters), repeat=2):
        yield "", first if first == second else first + second, "\x01"


def _driven(tree: Any, before: str) -> Iterator[Text]:
    """Yield the texts of a sequence of parts, with what leads to the sequence in front (`before`)."""
    whole = list(tree)
    for number, (kind, value) in enumerate(whole):
        if before:
            yield "", before, "\x01"
        after = _example(whole[number + 1 :], tree)
        for inner in _inner(kind, value):
            yield from _driven(inner, before)
        if "REPEAT" in str(kind) and value[1] > _LONG:
            for unit in _units(value[2]):
                yield from ((before, unit, end) for end in _ENDS)
                yield before, unit, after[:-1] + "\x01"
                yield "", before + unit, "\x01"
        before += _example(whole[number : number + 1], tree)


def _inner(kind: Any, value: Any) -> Iterator[Any]:
    """Yield the sequences inside a part."""
    match str(kind):
        case "BRANCH":
            yield from value[1]
        case "SUBPATTERN":
            yield value[3]
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            yield value[2]
        case "ATOMIC_GROUP":
            yield value
        case "ASSERT" | "ASSERT_NOT":
            yield value[1]


def _units(body: Any) -> Iterator[str]:
    if len(body) == 1 and _is_class(body[0]):
        some = _characters(body[0], body)
        yield from some
        yield from (first + second for first, second in itertools.permutations(some[:3], 2))
    else:
        yield _example(list(body), body) or "a"
        for inner in itertools.chain.from_iterable(_inner(*part) for part in body):
            yield _example(list(inner), inner) or "a"


def _is_class(part: Any) -> bool:
    return str(part[0]) in {"IN", "LITERAL", "NOT_LITERAL", "ANY"}


def _example(parts: Sequence[Any], tree: Any) -> str:
    """Return a short text that such parts match."""
    return "".join(_example_of(part, tree) for part in parts)


def _example_of(part: Any, tree: Any) -> str:
    kind, value = part
    if _is_class(part):
        return next(iter(_characters(part, tree)), "a")
    if "REPEAT" in str(kind):
        return _example(list(value[2]), value[2]) * min(int(value[0]), 100)
    if str(kind).startswith("ASSERT"):
        return ""
    inner = next(_inner(kind, value), None)
    return "" if inner is None else _example(list(inner), inner)


def _characters(part: Any, tree: Any) -> list[str]:
    """Return one character of each sort that a class matches."""
    kind, value = part
    if str(kind) == "LITERAL":
        return [chr(value)]
    single = _compiler.compile(_parser.SubPattern(tree.state, [part]), tree.state.flags & ~re.UNICODE)
    found: dict[str, str] = {}
    for one in _POOL:
        if single.match(one):
            sort = (
                "letter" if one.isalpha() else "digit" if one.isdigit() else one if one.isspace() else "mark"
            )
            found.setdefault(sort, one)
    return list(found.values())


class Endless(Exception):
    """A text takes so much processor time that it is given up."""


def grows_too_fast(apply: Callable[[str], object], text: Text) -> bool:
    """Return whether four times the text takes much more than four times the work.

    Work is the processor time of this thread, so waiting for a busy machine does not count. What is quick at
    first is linear. Else the least of several runs counts, because other work only adds.
    """
    try:
        if any(_seconds(apply, _of_length(text, SMALL)) < QUICK_SECONDS for _ in range(2)):
            return False
        limit = MAX_GROWTH * min(_seconds(apply, _of_length(text, SMALL)) for _ in range(2))
        return all(_seconds(apply, _of_length(text, LARGE)) > limit for _ in range(2))
    except Endless:
        return True


def _of_length(text: Text, length: int) -> str:
    before, unit, end = text
    return before + unit * (length // len(unit)) + end


def _seconds(apply: Callable[[str], object], text: str) -> float:
    began = time.thread_time()
    previous = signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
    try:
        apply(text)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
    return time.thread_time() - began


def _give_up(_number: int, _frame: FrameType | None) -> None:
    raise Endless


def applications(pattern: AnyPattern, methods: frozenset[str]) -> Iterator[Callable[[str], object]]:
    """Yield what applies the pattern to a text in each of these ways."""
    for name in ("match", "fullmatch"):
        if name in methods:
            yield _encoded(pattern, getattr(pattern, name))
    if methods - {"match", "fullmatch"}:
        searched = pattern.search if methods <= {"match", "fullmatch", "search"} else pattern.findall
        yield _encoded(pattern, searched)


def _encoded(pattern: AnyPattern, apply: Any) -> Callable[[str], object]:
    if isinstance(pattern.pattern, str):
        return cast("Callable[[str], object]", apply)
    return lambda text: apply(text.encode("latin-1"))
