"""Pages that give way to others while the browser tool reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from sandbox.desktop.browser import Browser
from sandbox.desktop.browser_actions import MAX_CHANGES, perform
from sandbox.desktop.cdp import PageChanged


class ChangingBrowser:
    """Answers as a browser whose page gives way to another one at each of the first commands for it."""

    def __init__(self, changes: int) -> None:
        self.changes = changes
        self.clicks = 0
        self.answer_seconds = 1.0

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Answer a command."""
        expression = str((params or {}).get("expression", "")).rpartition("\n")[2]
        if method == "Input.dispatchMouseEvent":
            self.clicks += (params or {})["type"] == "mousePressed"
        elif method == "Page.getFrameTree":
            return {"frameTree": {"frame": {"id": "f"}}}
        elif method == "Page.createIsolatedWorld":
            return {"executionContextId": 1}
        elif method == "Page.getNavigationHistory":
            return {"currentIndex": 0, "entries": [{"url": "about:end", "title": "End"}]}
        elif method == "Runtime.callFunctionOn":
            return {"result": {"value": {"x": 1, "y": 1, "tag": "A", "what": "link"}}}
        elif expression.startswith("dovecote.outline") and self.changes:
            self.changes -= 1
            raise PageChanged("Cannot find context with specified id")
        return {"result": {"value": {"text": "Landed"}}}

    def settle(self, _timeout: float = 0.0) -> str:
        """Wait for nothing."""
        return ""

    def count_tabs(self) -> int:
        """Return one."""
        return 1

    def take_dialogs(self) -> list[str]:
        """Return none."""
        return []


def test_a_page_is_read_at_its_last_address() -> None:
    """The click is done once; the pages on the way are not its result."""
    browser = ChangingBrowser(3)
    reply = perform(cast("Browser", browser), {"action": "click", "text": "Go", "timeout": 5})
    assert (reply["clicked"], reply["text"], browser.clicks) == ("link", "Landed", 1)


def test_a_page_that_always_goes_on_is_no_error_of_the_click() -> None:
    """The result says what happened, so that the click is not repeated."""
    browser = ChangingBrowser(MAX_CHANGES)
    reply = perform(cast("Browser", browser), {"action": "click", "text": "Go", "timeout": 5})
    assert (reply["clicked"], browser.clicks) == ("link", 1)
    assert "other addresses" in reply["note"]
