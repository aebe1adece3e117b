"""Inside the sandbox: the actions of the browser tool, each from its arguments to a reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sandbox.desktop.browser import ANSWER_SECONDS, HEIGHT, WIDTH, Browser
from sandbox.desktop.cdp import BrowserError, PageChanged

MAX_NODES = 20_000
"""Nodes of a page that are read for an outline."""

MAX_CHARACTERS = 30_000
"""Characters of a page in one reply."""

MAX_CHANGES, CHANGE_SECONDS = 20, 0.4
"""How often a page that goes on to others, as those of a login do, is read again, and after which wait."""

MAX_SCREENSHOT_HEIGHT = 6000
_PART_OF_TIME = 0.8
"""What the script may take of the time that the page has, so that its end is reported by the browser."""
_WORLD = "dovecote"
_SCRIPT = Path(__file__).with_name("page.js")

KEYS: Mapping[str, tuple[str, int, str]] = {
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Escape": ("Escape", 27, ""),
    "Backspace": ("Backspace", 8, ""),
    "Delete": ("Delete", 46, ""),
    "Space": (" ", 32, " "),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "PageUp": ("PageUp", 33, ""),
    "PageDown": ("PageDown", 34, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
}
"""The keys that can be pressed: the value of KeyboardEvent.key, its code, and the text that it types."""

Reply = dict[str, Any]


def perform(browser: Browser, request: Mapping[str, Any]) -> Reply:
    """Carry out one request and return its reply; raises BrowserError."""
    browser.answer_seconds = min(ANSWER_SECONDS, float(request["timeout"]))
    reply = _ACTIONS[request["action"]](browser, request)
    dialogs = browser.take_dialogs()
    return {**reply, **({"dialogs": dialogs} if dialogs else {})}


def _open(browser: Browser, request: Mapping[str, Any]) -> Reply:
    problem = browser.navigate(request["url"], float(request["timeout"]))
    if problem and "still loading" not in problem:
        raise BrowserError(problem)
    return _with_outline(browser, problem)


def _read(browser: Browser, request: Mapping[str, Any]) -> Reply:
    if not request.get("text_only"):
        return _with_outline(browser, "")
    start = int(request.get("offset", 0))
    function = f"text({start}, {MAX_CHARACTERS})"
    return _of_one_page(browser, lambda: {**_where(browser), "offset": start, **_page(browser, function)})


def _click(browser: Browser, request: Mapping[str, Any]) -> Reply:
    at = _locate(browser, request)
    _click_at(browser, at)
    note = f"{at['covered']} covers {at['what']} and received the click" if at.get("covered") else ""
    return {"clicked": at["what"], **_with_outline(browser, note or browser.settle())}


def _type(browser: Browser, request: Mapping[str, Any]) -> Reply:
    at, text = _locate(browser, request), request["value"]
    if at["tag"] == "SELECT":
        chosen = _page(browser, "choose", request, text)
        if chosen.get("missing"):
            raise BrowserError(f"{at['what']} has no option {text!r}")
    else:
        _click_at(browser, at)
        _page(browser, "focus", request)
        browser.call("Input.insertText", {"text": text})
        if not text:
            _press_key(browser, "Backspace")
    if request.get("submit"):
        _press_key(browser, "Enter")
    return {"typed_into": at["what"], **_with_outline(browser, browser.settle())}


def _press(browser: Browser, request: Mapping[str, Any]) -> Reply:
    _press_key(browser, request["key"])
    return _with_outline(browser, browser.settle())


def _back(browser: Browser, _request: Mapping[str, Any]) -> Reply:
    history = browser.call("Page.getNavigationHistory")
    at = history["currentIndex"] - 1
    if at < 0:
        raise BrowserError("there is no earlier page in this tab")
    browser.call("Page.navigateToHistoryEntry", {"entryId": history["entries"][at]["id"]})
    return _with_outline(browser, browser.settle())


def _close_tab(browser: Browser, _request: Mapping[str, Any]) -> Reply:
    browser.close_tab()
    return _with_outline(browser, "the tab was closed")


def _screenshot(browser: Browser, request: Mapping[str, Any]) -> Reply:
    options: dict[str, Any] = {"format": "png"}
    if request.get("full_page"):
        size = browser.call("Page.getLayoutMetrics")["cssContentSize"]
        height = min(max(size["height"], HEIGHT), MAX_SCREENSHOT_HEIGHT)
        options["clip"] = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
        options["captureBeyondViewport"] = True
    image = browser.call("Page.captureScreenshot", options)["data"]
    if len(image) * 3 // 4 > request["max_bytes"]:
        small = options | {"format": "jpeg", "quality": 60}
        image = browser.call("Page.captureScreenshot", small)["data"]
    return {**_where(browser), "image": image}


def _locate(browser: Browser, request: Mapping[str, Any]) -> Mapping[str, Any]:
    found = _of_one_page(browser, lambda: _page(browser, "locate", request))
    if found.get("missing"):
        raise BrowserError("there is no such element on the page now: read the page again")
    if found.get("hidden"):
        raise BrowserError(f"{found['what']} is not visible")
    return found


def _click_at(browser: Browser, at: Mapping[str, Any]) -> None:
    place = {"x": at["x"], "y": at["y"]}
    browser.call("Input.dispatchMouseEvent", {**place, "type": "mouseMoved"})
    for kind in ("mousePressed", "mouseReleased"):
        event = {**place, "type": kind, "button": "left", "clickCount": 1}
        browser.call("Input.dispatchMouseEvent", event)


def _press_key(browser: Browser, name: str) -> None:
    key, code, text = KEYS[name]
    shared = {"key": key, "code": name, "windowsVirtualKeyCode": code}
    down = {**shared, "type": "keyDown", "text": text} if text else {**shared, "type": "rawKeyDown"}
    browser.call("Input.dispatchKeyEvent", down)
    browser.call("Input.dispatchKeyEvent", {**shared, "type": "keyUp"})


def _with_outline(browser: Browser, note: str) -> Reply:
    """Return the page as it is after an action. What was done is no error if the page cannot be read."""

    def read() -> Reply:
        found = _page(browser, f"outline({MAX_NODES}, {MAX_CHARACTERS})")
        return {**_where(browser), **({"note": note} if note else {}), **found}

    try:
        return _of_one_page(browser, read)
    except PageChanged as error:
        return {"note": str(error)}


def _of_one_page(browser: Browser, read: Callable[[], Reply]) -> Reply:
    """Return what `read` finds in one page: again if the page gives way to another; raises PageChanged."""
    for _ in range(MAX_CHANGES):
        try:
            return read()
        except PageChanged:
            browser.settle(CHANGE_SECONDS)
    raise PageChanged("the page goes on to other addresses: read it later")


def _where(browser: Browser) -> Reply:
    history = browser.call("Page.getNavigationHistory")
    entry = history["entries"][history["currentIndex"]]
    tabs = browser.count_tabs()
    shown = {"url": entry["url"][:2000], "title": entry["title"][:300]}
    return {**shown, **({"tabs": tabs} if tabs > 1 else {})}


def _page(browser: Browser, function: str, *arguments: Any) -> Reply:
    """Call a function of `page.js` in the current page; a query is passed as the request that has it."""
    frame = browser.call("Page.getFrameTree")["frameTree"]["frame"]["id"]
    world = browser.call("Page.createIsolatedWorld", {"frameId": frame, "worldName": _WORLD})
    expression = _SCRIPT.read_text(encoding="utf-8") + f"\ndovecote.{function}"
    where = {"contextId": world["executionContextId"], "returnByValue": True}
    limit = {"timeout": browser.answer_seconds * _PART_OF_TIME * 1000}
    answer = browser.call("Runtime.evaluate", {"expression": expression, **where, **limit})
    if arguments:
        declared = f"function(...words) {{ return dovecote.{function}(...words) }}"
        call = {
            "functionDeclaration": declared,
            "arguments": [{"value": one} for one in arguments],
            "executionContextId": where["contextId"],
            "returnByValue": True,
        }
        answer = browser.call("Runtime.callFunctionOn", call)
    if "exceptionDetails" in answer:
        problem = (
            answer["exceptionDetails"].get("exception", {}).get("description", "the page could not be read")
        )
        raise BrowserError(str(problem).partition("\n")[0][:300])
    value = answer["result"].get("value")
    return value if isinstance(value, dict) else {}


_ACTIONS: Mapping[str, Callable[[Browser, Mapping[str, Any]], Reply]] = {
    "open": _open,
    "read": _read,
    "click": _click,
    "type": _type,
    "press": _press,
    "back": _back,
    "close_tab": _close_tab,
    "screenshot": _screenshot,
}
