"""Inside the sandbox: a Chromium with its tabs, of which one is current.

Pages are hostile: a dialog is closed at once, a page that does not answer ends the browser, tabs beyond a few
are closed, downloads are refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sandbox.desktop.cdp import BrowserError, BrowserGone, BrowserSilent, CdpConnection
from sandbox.desktop.fonts import font_variables

PROGRAMS = (
    "/usr/lib/chromium/chromium",
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
)
"""Debian's start script reads /etc/chromium.d, which some sandboxes lack: the program itself comes first."""

WIDTH, HEIGHT = 1280, 800
START_SECONDS = 30.0
ANSWER_SECONDS = 10.0
"""Seconds that a page may take for one command, unless the request has less."""

SETTLE_SECONDS = 5.0
"""Seconds that a page may load after a click or a key."""

MAX_TABS = 5
MAX_DIALOGS = 10
MAX_DIALOG_LENGTH = 300

_SWITCHES = (
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-sync",
    "--hide-scrollbars",
    "--mute-audio",
    "--password-store=basic",
    "--disk-cache-size=20000000",
    f"--window-size={WIDTH},{HEIGHT}",
)
"""`--no-sandbox`: the sandbox around this program is the boundary, and it allows no further namespaces."""


class Browser:
    """A Chromium and its tabs; `directory` holds its profile."""

    def __init__(self, directory: Path) -> None:
        self._tabs: dict[str, str] = {}
        self._loading: set[str] = set()
        self._dialogs: list[str] = []
        self._current = ""
        self._spent: set[str] = set()
        """Tabs that opened another one; such a tab does not load another page reliably."""
        self._ended = False
        self.answer_seconds = ANSWER_SECONDS
        self._connection = CdpConnection(
            _argv(directory), {**os.environ, **font_variables(directory)}, self._receive
        )
        self._connection.call("Browser.getVersion", timeout=START_SECONDS)
        self._connection.call("Browser.setDownloadBehavior", {"behavior": "deny"}, timeout=START_SECONDS)
        attach = {"autoAttach": True, "waitForDebuggerOnStart": False, "flatten": True}
        self._connection.call("Target.setAutoAttach", attach, timeout=START_SECONDS)
        self._ensure_tab()

    @property
    def closed(self) -> bool:
        """Whether the browser has ended."""
        return self._ended or self._connection.closed

    def close(self) -> None:
        """End the browser."""
        self._ended = True
        self._connection.close()

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Send a command to the current tab; raises BrowserError.

        A tab that does not answer ends the browser: other tabs may share its process.
        """
        session, timeout = self._ensure_tab(), self.answer_seconds

        def is_moot() -> bool:
            """Return whether input opened another tab: its own tab is hidden then, and answers nothing."""
            return method.startswith("Input.") and self._current != session

        try:
            result = self._connection.call(method, params, session=session, timeout=timeout, is_moot=is_moot)
        except BrowserSilent:
            self.close()
            raise BrowserSilent(
                f"the page did not answer within {timeout:.0f} s, so the browser was ended: open another page"
            ) from None
        self._spent |= {session} if is_moot() else set()
        return result

    def navigate(self, url: str, timeout: float) -> str:
        """Open an address and wait for the page; return what is wrong with it, if anything."""
        session, until = self._ensure_tab(), time.monotonic() + timeout
        if session in self._spent:
            self._open_tab()
            self._discard(session)
            session = self._ensure_tab()
        try:
            result = self._connection.call("Page.navigate", {"url": url}, session=session, timeout=timeout)
        except BrowserSilent:
            self._connection.send("Page.stopLoading", session=session)
            return f"the server did not answer within {timeout:.0f} s"
        if result.get("errorText"):
            return f"the page could not be opened: {result['errorText']}"
        return self.settle(until - time.monotonic())

    def settle(self, timeout: float = SETTLE_SECONDS) -> str:
        """Wait until the current tab has loaded; return a note if it still loads."""
        until = time.monotonic() + timeout
        time.sleep(0.2)  # the browser reports a navigation that a click began only after the click
        while self._current in self._loading and time.monotonic() < until:
            time.sleep(0.05)
        return (
            "the page is still loading; this is what it has so far" if self._current in self._loading else ""
        )

    def take_dialogs(self) -> list[str]:
        """Return the dialogs that were closed since the last call."""
        taken, self._dialogs = self._dialogs, []
        return taken

    def count_tabs(self) -> int:
        """Return the number of open tabs."""
        return len(self._tabs)

    def close_tab(self) -> None:
        """Close the current tab; the one opened before it becomes current."""
        self._discard(self._ensure_tab())

    def _ensure_tab(self) -> str:
        """Return the session of the current tab; open one if there is none."""
        if not self._tabs:
            self._open_tab()
        until = time.monotonic() + START_SECONDS
        while not self._current:
            if self.closed or time.monotonic() > until:
                raise BrowserGone("the browser opens no tab")
            time.sleep(0.02)
        return self._current

    def _open_tab(self) -> None:
        """Open a tab and wait until it is current."""
        before, until = self._current, time.monotonic() + START_SECONDS
        self._connection.call("Target.createTarget", {"url": "about:blank"}, timeout=START_SECONDS)
        while self._current in ("", before) and time.monotonic() < until:
            time.sleep(0.02)

    def _discard(self, session: str) -> None:
        target = self._tabs.get(session, "")
        with suppress(BrowserError):
            self._connection.call("Target.closeTarget", {"targetId": target}, timeout=ANSWER_SECONDS)
        self._forget(session)

    def _forget(self, session: str) -> None:
        self._tabs.pop(session, None)
        self._loading.discard(session)
        if self._current == session:
            self._current = next(reversed(self._tabs), "")
            if self._current:  # a tab in the background loads nothing
                self._connection.send("Target.activateTarget", {"targetId": self._tabs[self._current]})

    def _receive(self, session: str, event: str, params: Mapping[str, Any]) -> None:
        """Handle an event of the browser, in the reading thread: nothing here waits for an answer."""
        if event == "Target.attachedToTarget":
            self._attached(params)
        elif event == "Target.detachedFromTarget":
            self._forget(params["sessionId"])
        elif event == "Inspector.targetCrashed":
            self._connection.send("Target.closeTarget", {"targetId": self._tabs.get(session, "")})
        elif event == "Page.javascriptDialogOpening":
            self._close_dialog(session, params)
        elif event == "Page.frameStartedLoading" and params.get("frameId") == self._tabs.get(session):
            self._loading.add(session)
        elif event == "Page.frameStoppedLoading" and params.get("frameId") == self._tabs.get(session):
            self._loading.discard(session)

    def _attached(self, params: Mapping[str, Any]) -> None:
        session, target = params["sessionId"], params["targetInfo"]
        if target["type"] != "page":
            return
        if len(self._tabs) >= MAX_TABS:
            self._connection.send("Target.closeTarget", {"targetId": target["targetId"]})
            return
        for method in ("Page.enable", "Inspector.enable"):
            self._connection.send(method, session=session)
        self._tabs[session] = target["targetId"]
        self._current = session

    def _close_dialog(self, session: str, params: Mapping[str, Any]) -> None:
        kind = str(params.get("type", ""))
        accepted = kind in ("alert", "beforeunload")
        self._connection.send("Page.handleJavaScriptDialog", {"accept": accepted}, session=session)
        if len(self._dialogs) < MAX_DIALOGS:
            said = str(params.get("message", ""))[:MAX_DIALOG_LENGTH]
            self._dialogs.append(f"{kind} {said!r} was {'accepted' if accepted else 'dismissed'}")


def find_program() -> str:
    """Return the browser of this sandbox; raises BrowserError."""
    found = next((one for one in PROGRAMS if os.access(one, os.X_OK)), None)
    if found is None:
        raise BrowserError(f"there is no Chromium in this sandbox (looked for {', '.join(PROGRAMS)})")
    return found


def _argv(directory: Path) -> list[str]:
    profile = directory / "profile"
    profile.mkdir(parents=True, exist_ok=True)
    for stale in profile.glob("Singleton*"):  # the lock of a browser that was killed
        stale.unlink(missing_ok=True)
    proxy = os.environ.get("https_proxy") or os.environ.get("http_proxy")
    own = [f"--user-data-dir={profile}", "--disk-cache-dir=/tmp/dovecote-browser-cache"]
    if proxy:
        own.append(f"--proxy-server={proxy}")
    if not os.environ.get("DISPLAY"):
        own.append("--headless=new")
    return [find_program(), *_SWITCHES, *own, "about:blank"]
