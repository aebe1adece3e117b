"""Inside the sandbox: keys for characters that the keyboard of an X display lacks.

xdotool lends such a character a free key and takes it back at once, before a busy program has asked which
character the key has. Here the key is kept until others are needed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

_COLUMNS = 2
"""Characters of a key: the plain one and the shifted one."""

_LATIN = 0x100
_UNICODE = 0x01000000
"""A keysym beyond Latin-1 is the code point and this bit."""


class KeyboardError(Exception):
    """The display's keyboard cannot be read."""


def split_text(text: str, free: int) -> Iterator[tuple[str, str]]:
    """Yield parts of a text, each with its characters beyond ASCII: at most `free` different ones."""
    part, special = "", ""
    for letter in text:
        is_new = not letter.isascii() and letter not in special
        if is_new and len(special) == free:
            yield part, special
            part, special = "", ""
        part += letter
        special += letter if not letter.isascii() and letter not in special else ""
    if part:
        yield part, special


class Keyboard:
    """The free keys of a display."""

    def __init__(self, name: str) -> None:
        self._x11 = ctypes.CDLL("libX11.so.6")
        self._x11.XOpenDisplay.restype = ctypes.c_void_p
        self._x11.XGetKeyboardMapping.restype = ctypes.POINTER(ctypes.c_ulong)
        opened = self._x11.XOpenDisplay(name.encode())
        if not opened:
            raise KeyboardError(f"the display {name} accepts no connection")
        self._display = ctypes.c_void_p(opened)
        self.free = self._find_free()

    def assign(self, letters: str) -> None:
        """Give each letter a free key, instead of the letters that were assigned before."""
        for code, letter in zip(self.free, letters, strict=False):
            point = ord(letter)
            symbol = point if point < _LATIN else point | _UNICODE
            symbols = (ctypes.c_ulong * _COLUMNS)(symbol, symbol)
            self._x11.XChangeKeyboardMapping(self._display, code, _COLUMNS, symbols, 1)
        self._x11.XSync(self._display, 0)

    def _find_free(self) -> list[int]:
        """Return the codes of the keys without a character."""
        low, high, columns = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._x11.XDisplayKeycodes(self._display, ctypes.byref(low), ctypes.byref(high))
        count = high.value - low.value + 1
        found = self._x11.XGetKeyboardMapping(
            self._display, ctypes.c_ubyte(low.value), count, ctypes.byref(columns)
        )
        if not found:
            raise KeyboardError("the display has no keyboard")
        width = columns.value
        free = [at for at in range(count) if not any(found[at * width + column] for column in range(width))]
        self._x11.XFree(found)
        return [low.value + at for at in free]
