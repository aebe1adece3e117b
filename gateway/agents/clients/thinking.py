"""Separate a model's thinking in `<think>` tags, as open models write it, from its text."""

from __future__ import annotations

_OPENING = "<think>"
_CLOSING = "</think>"
_MAX_SPACE = 1024
"""Characters of white space that are held back; more is text."""


class ThinkingFilter:
    """Returns the text of an answer, piece by piece, without a `<think>` section at its beginning.

    White space at the beginning is held back until text follows. It is dropped if thinking came before.
    """

    def __init__(self) -> None:
        self._held = ""
        self._thinking: list[str] = []
        self._state = "start"
        self._skips_space = False

    @property
    def thinking(self) -> str:
        """The thinking so far."""
        return "".join(self._thinking).strip()

    def skip_leading_space(self) -> None:
        """Drop white space at the beginning of the text: the model was thinking before it."""
        self._skips_space = True

    def feed(self, piece: str) -> str:
        """Return what a piece adds to the text."""
        if self._state == "text":
            return piece
        piece, self._held = self._held + piece, ""
        if self._state == "start":
            return self._begin(piece)
        return self._think(piece)

    def _begin(self, piece: str) -> str:
        begun = piece.lstrip()
        if len(piece) <= _MAX_SPACE and (
            not begun or (len(begun) < len(_OPENING) and _OPENING.startswith(begun))
        ):
            self._held = piece
            return ""
        if begun.startswith(_OPENING):
            self._state = "thinking"
            self._skips_space = True
            return self._think(begun[len(_OPENING) :])
        self._state = "text"
        return begun if self._skips_space else piece

    def _think(self, piece: str) -> str:
        thought, closed, rest = piece.partition(_CLOSING)
        if closed:
            self._thinking.append(thought)
            self._state = "start" if not rest.lstrip() else "text"
            return rest.lstrip()
        keep = _partial_closing(thought)
        self._thinking.append(thought[: len(thought) - keep])
        self._held = thought[len(thought) - keep :]
        return ""

    def close(self) -> str:
        """Return what was held back and is text after all."""
        held, self._held = self._held, ""
        if self._state == "thinking":
            self._thinking.append(held)
            return ""
        return held.lstrip() if self._skips_space else held


def _partial_closing(text: str) -> int:
    """Return how many characters at the end of a text may begin the closing tag."""
    for length in range(min(len(_CLOSING) - 1, len(text)), 0, -1):
        if _CLOSING.startswith(text[-length:]):
            return length
    return 0
