"""Inside the sandbox: the actions of the computer tool, each from its arguments to a reply."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sandbox.desktop.display import SETTLE_SECONDS, Display, DisplayError

LAUNCH_SECONDS = 4.0
"""Seconds in which a program may open its window."""

MAX_TITLE = 300
BUTTONS: Mapping[str, str] = {"left": "1", "middle": "2", "right": "3"}
DIRECTIONS: Mapping[str, str] = {"up": "4", "down": "5", "left": "6", "right": "7"}
"""X has buttons for the wheel's directions."""

_JPEG = ("--quality", "60")
_PAUSE = ("sleep", "0.1")

Reply = dict[str, Any]


def perform(display: Display, request: Mapping[str, Any]) -> Reply:
    """Carry out one request and return its reply; raises DisplayError."""
    reply = _ACTIONS[request["action"]](display, request)
    return {**reply, **_where(display)}


def _screenshot(display: Display, request: Mapping[str, Any]) -> Reply:
    image = _picture(display, Path("screen.png"))
    if len(image) > request["max_bytes"]:
        image = _picture(display, Path("screen.jpg"), *_JPEG)
    return {"image": base64.b64encode(image).decode()}


def _picture(display: Display, path: Path, *more: str) -> bytes:
    try:
        display.take_picture(path, *more)
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


def _move(display: Display, request: Mapping[str, Any]) -> Reply:
    return _drive(display, *_pointer(display, request))


def _click(display: Display, request: Mapping[str, Any]) -> Reply:
    button = BUTTONS[request["button"]]
    clicks = ("click", "--repeat", str(request["count"]), "--delay", "60", button)
    return _drive(display, *_pointer(display, request), *clicks)


def _drag(display: Display, request: Mapping[str, Any]) -> Reply:
    button = BUTTONS[request["button"]]
    target = {"x": request["to_x"], "y": request["to_y"]}
    near = {"x": (request["x"] + target["x"]) // 2, "y": (request["y"] + target["y"]) // 2}
    moves = (word for at in (near, target) for word in (*_pointer(display, at), *_PAUSE))
    return _drive(
        display, *_pointer(display, request), "mousedown", button, *_PAUSE, *moves, "mouseup", button
    )


def _scroll(display: Display, request: Mapping[str, Any]) -> Reply:
    turns = ("click", "--repeat", str(request["count"]), "--delay", "20", DIRECTIONS[request["direction"]])
    return _drive(display, *_pointer(display, request), *turns)


def _type(display: Display, request: Mapping[str, Any]) -> Reply:
    display.type(request["text"])
    return {}


def _key(display: Display, request: Mapping[str, Any]) -> Reply:
    return _drive(display, "key", "--delay", "40", *[request["keys"]] * request["count"])


def _launch(display: Display, request: Mapping[str, Any]) -> Reply:
    code = display.launch(request["command"], seconds=LAUNCH_SECONDS)
    time.sleep(SETTLE_SECONDS)
    if code:
        raise DisplayError(f"the command ended with exit code {code}: run it with bash to see why")
    return {"launched": "it runs" if code is None else "it has ended"}


def _drive(display: Display, *words: str) -> Reply:
    display.drive(*words)
    time.sleep(SETTLE_SECONDS)
    return {}


def _pointer(display: Display, request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words that move the pointer to the place of a request, if it has one."""
    if request.get("x") is None:
        return ()
    width, height = (int(one) for one in display.drive("getdisplaygeometry").split())
    x, y = request["x"], request["y"]
    if x >= width or y >= height:
        raise DisplayError(f"{x},{y} is outside the screen, which has {width} × {height} pixels")
    return ("mousemove", str(x), str(y))


def _where(display: Display) -> Reply:
    """Return the size of the screen, the place of the pointer, and the title of the active window."""
    fields = dict(
        line.partition("=")[::2] for line in display.drive("getmouselocation", "--shell").splitlines()
    )
    title = ""
    with suppress(DisplayError):  # without a window manager, or without a window, none is active
        title = display.drive("getactivewindow", "getwindowname").strip()[:MAX_TITLE]
    size = " × ".join(display.drive("getdisplaygeometry").split())
    place = f"{fields.get('X', '?')},{fields.get('Y', '?')}"
    return {"screen": size, "pointer": place, **({"window": title} if title else {})}


_ACTIONS: Mapping[str, Callable[[Display, Mapping[str, Any]], Reply]] = {
    "screenshot": _screenshot,
    "move": _move,
    "click": _click,
    "drag": _drag,
    "scroll": _scroll,
    "type": _type,
    "key": _key,
    "launch": _launch,
}
