"""Inside the sandbox: a Chromium process and the Chrome DevTools Protocol over its pipe.

A message is one JSON text that ends with NUL. Commands go to descriptor 3 of the browser and its messages
come from descriptor 4, so no port is open that a page or another program could use.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""A larger message of the browser ends it."""

_CHUNK = 1 << 16
_BROWSER_READS, _BROWSER_WRITES = 3, 4
_EXIT_SECONDS = 1.0
"""Seconds for a browser that closed its pipe to exit by itself, which gives the reason."""

_FIRST_FREE = 10
"""A descriptor from here on is not overwritten by the browser's own two."""


class BrowserError(Exception):
    """The browser refused a command; the text is for the model."""


class BrowserGone(BrowserError):
    """The browser has ended; the next call starts another."""


class BrowserSilent(BrowserError):
    """The browser or the page did not answer in time."""


class PageChanged(BrowserError):
    """The page that a command was for has given way to another one."""


_CHANGED = (
    "Cannot find context with specified id",
    "Execution context was destroyed",
    "Frame with the given id was not found",
    "Inspected target navigated or closed",
    "No frame for given id found",
    "Not attached to an active page",
)
"""How the browser answers a command for a page that has gone."""

EventListener = Callable[[str, str, Mapping[str, Any]], None]
"""Receives the session, the name and the parameters of an event, in the reading thread."""


class CdpConnection:
    """A running Chromium; its messages are read in a thread, so that events never wait."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], on_event: EventListener) -> None:
        self._on_event = on_event
        self._lock = threading.Lock()
        self._answered = threading.Condition()
        self._answers: dict[int, Mapping[str, Any] | None] = {}
        self._last_id = 0
        self.closed = False
        self._reason = "for an unknown reason"
        low_commands, self._commands = os.pipe()
        messages, low_messages = os.pipe()
        commands_out, messages_in = (_above_standard(one) for one in (low_commands, low_messages))
        script = (
            f'exec "$@" {_BROWSER_READS}<&{commands_out} {_BROWSER_WRITES}>&{messages_in} '
            f"{commands_out}<&- {messages_in}>&-"
        )
        self.process = subprocess.Popen(  # noqa: S603 - a program of the sandbox, in the sandbox
            ["/bin/bash", "-c", script, "browser", *argv],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(commands_out, messages_in),
            start_new_session=True,
        )
        os.close(commands_out)
        os.close(messages_in)
        reader = threading.Thread(target=self._read, args=(os.fdopen(messages, "rb", buffering=0),))
        reader.daemon = True
        reader.start()

    def send(self, method: str, params: Mapping[str, Any] | None = None, *, session: str = "") -> int:
        """Send a command without waiting for its answer, which is dropped; return its id."""
        with self._lock:
            self._last_id += 1
            number = self._last_id
            message: dict[str, Any] = {"id": number, "method": method, "params": dict(params or {})}
            if session:
                message["sessionId"] = session
            self._write(json.dumps(message).encode() + b"\0")
            return number

    def call(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        session: str = "",
        timeout: float,
        is_moot: Callable[[], bool] = lambda: False,
    ) -> Mapping[str, Any]:
        """Send a command and return its result, or nothing once it `is_moot`; raises BrowserError."""
        with self._answered:
            number = self.send(method, params, session=session)
            self._answers[number] = None
            try:
                self._answered.wait_for(
                    lambda: self.closed or self._answers[number] is not None or is_moot(), timeout
                )
                answer = self._answers[number]
            finally:
                del self._answers[number]
        if answer is not None:
            return _result(answer)
        if self.closed:
            raise BrowserGone(f"the browser has ended {self._reason}")
        if is_moot():
            return {}
        raise BrowserSilent(f"no answer to {method} in {timeout:.0f} s")

    def close(self) -> None:
        """End the browser with all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _write(self, content: bytes) -> None:
        try:
            while content:
                content = content[os.write(self._commands, content) :]
        except OSError as error:
            raise BrowserGone(f"the browser has ended {self._reason}") from error

    def _read(self, messages: BinaryIO) -> None:
        try:
            self._receive_all(messages)
        finally:
            messages.close()
            self._note_reason()
            self.close()
            with self._answered:
                self.closed = True
                self._answered.notify_all()

    def _note_reason(self) -> None:
        """Note how the browser ended, if it did so itself."""
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(_EXIT_SECONDS)
            self._reason = f"with exit code {code}" if code >= 0 else f"by signal {-code}"

    def _receive_all(self, messages: BinaryIO) -> None:
        pending = bytearray()
        while (piece := messages.read(_CHUNK)) and len(pending) <= MAX_MESSAGE_BYTES:
            *ended, rest = piece.split(b"\0")
            for part in ended:
                with suppress(BrowserGone):  # the pipe's end is noticed here as well
                    self._receive(json.loads(bytes(pending) + part))
                pending.clear()
            pending += rest

    def _receive(self, message: Mapping[str, Any]) -> None:
        if "id" not in message:
            self._on_event(message.get("sessionId", ""), message["method"], message.get("params", {}))
            with self._answered:
                self._answered.notify_all()
            return
        with self._answered:
            if message["id"] in self._answers:
                self._answers[message["id"]] = message
                self._answered.notify_all()


def _result(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if "error" in answer:
        problem = str(answer["error"].get("message", "unknown error"))[:500]
        raise PageChanged(problem) if problem.startswith(_CHANGED) else BrowserError(problem)
    result: Mapping[str, Any] = answer.get("result", {})
    return result


def _above_standard(descriptor: int) -> int:
    """Return a copy of a descriptor with a number that the browser does not use, and close the descriptor."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    os.close(descriptor)
    return copy
