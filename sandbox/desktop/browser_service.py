"""Inside the sandbox: the service that owns the browser."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandbox.desktop import browser_actions
from sandbox.desktop.browser import Browser, find_program
from sandbox.desktop.cdp import BrowserError
from sandbox.desktop.service import serve


class BrowserService:
    """The browser that requests use; the first request starts it, and the first one after its end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._browser: Browser | None = None

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the reply to a request."""
        try:
            if self._browser is None or self._browser.closed:
                self._browser = Browser(self._directory)
            return browser_actions.perform(self._browser, request)
        except BrowserError as error:
            dialogs = self._browser.take_dialogs() if self._browser is not None else []
            return {"error": str(error), **({"dialogs": dialogs} if dialogs else {})}


def main() -> None:
    """Serve below HOME; ends at once, with the reason, where there is no browser."""
    find_program()
    directory = Path(os.environ["HOME"], ".dovecote/browser")
    serve(directory, BrowserService(directory).answer)
