"""Inside the sandbox: an X display, and the programs that drive it.

In the image's desktop the display is :1, which its other programs share. Elsewhere Xvfb chooses a free one.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sandbox.desktop.fonts import font_variables
from sandbox.desktop.keyboard import Keyboard, KeyboardError, split_text

PROGRAMS = {
    "/usr/bin/Xvfb": "xvfb",
    "/usr/bin/xdotool": "xdotool",
    "/usr/bin/scrot": "scrot",
}
"""What a display needs, with the packages of Debian that have it."""

WINDOW_MANAGER = "/usr/bin/openbox"
DESKTOP = Path("/etc/dovecote/desktop.conf")
"""The file that tells the image's desktop from other sandboxes."""

DESKTOP_DISPLAY = ":1"
WIDTH, HEIGHT = 1280, 800
START_SECONDS = 20.0
CALL_SECONDS = 20.0
SETTLE_SECONDS = 0.3
"""Seconds that programs have to react to input."""

TYPE_DELAY_MS = "4"
MAX_PROBLEM = 300


class DisplayError(Exception):
    """The display refused a request; the text is for the model."""


class Display:
    """An X display: the desktop's own where it runs, else an Xvfb with a window manager.

    Programs are launched in `working_directory`; `directory` holds what they need to start.
    """

    def __init__(self, directory: Path, working_directory: Path) -> None:
        self._working_directory = working_directory
        self._fonts = font_variables(directory)
        self._server: subprocess.Popen[bytes] | None = None
        self._programs: list[subprocess.Popen[bytes]] = []
        self._name = DESKTOP_DISPLAY
        self._keyboard: Keyboard | None = None
        if not (DESKTOP.exists() and self._answers()):
            self._start()

    @property
    def closed(self) -> bool:
        """Whether the display has ended."""
        has_ended = self._server is not None and self._server.poll() is not None
        return has_ended or not self._answers()

    def close(self) -> None:
        """End the programs that were launched, and the display unless it is the desktop's."""
        for process in (*self._programs, *([self._server] if self._server else [])):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def drive(self, *words: str, text: str = "") -> str:
        """Run xdotool and return its output; raises DisplayError with what it complained about."""
        done = self._run(["/usr/bin/xdotool", *words], text)
        if done.returncode or done.stderr:
            raise DisplayError(_problem(done))
        return done.stdout.decode("utf-8", "replace")

    def type(self, text: str) -> None:
        """Type a text where the focus is; raises DisplayError."""
        try:
            self._keyboard = self._keyboard or Keyboard(self._name)
        except (OSError, KeyboardError) as error:
            raise DisplayError(str(error)) from None
        for part, special in split_text(text, len(self._keyboard.free)):
            if special:
                self._keyboard.assign(special)
            self.drive("type", "--delay", TYPE_DELAY_MS, "--file", "-", text=part)
            time.sleep(SETTLE_SECONDS)  # programs ask for the keys' characters before others are assigned

    def take_picture(self, path: Path, *more: str) -> None:
        """Write a picture of the screen with its pointer; raises DisplayError."""
        done = self._run(["/usr/bin/scrot", "--overwrite", "--pointer", *more, str(path)])
        if done.returncode:
            raise DisplayError(_problem(done))

    def launch(self, command: str, *, seconds: float) -> int | None:
        """Start a program on the display; return its exit code, or None once it has a window.

        A program without a window counts as started after so many seconds.
        """
        self._programs = [one for one in self._programs if one.poll() is None]
        before, until = self.active_window(), time.monotonic() + seconds
        process = self._spawn(["/bin/bash", "-c", command])
        self._programs.append(process)
        while (code := process.poll()) is None and time.monotonic() < until:
            if self.active_window() not in ("", before):
                break
            time.sleep(0.1)
        return code

    def active_window(self) -> str:
        """Return the id of the window that has the focus; nothing without one or a window manager."""
        try:
            return self.drive("getactivewindow").strip()
        except DisplayError:
            return ""

    def _start(self) -> None:
        numbers, written = os.pipe()
        named = [DESKTOP_DISPLAY] if DESKTOP.exists() else []
        screen = [
            "-screen",
            "0",
            f"{WIDTH}x{HEIGHT}x24",
            "-nolisten",
            "tcp",
            "-noreset",
            "-displayfd",
            str(written),
        ]
        self._server = self._spawn(["/usr/bin/Xvfb", *named, *screen], passed=(written,))
        os.close(written)
        with os.fdopen(numbers, "rb") as chosen:
            ready, _, _ = select.select([chosen], [], [], START_SECONDS)
            number = chosen.readline().decode().strip() if ready else ""
        if not number:
            self.close()
            raise DisplayError(f"Xvfb did not start within {START_SECONDS:.0f} s")
        self._name = f":{number}"
        if not self._wait_for(
            "getdisplaygeometry"
        ):  # the server names its display before it accepts programs
            self.close()
            raise DisplayError(f"Xvfb accepts no connection within {START_SECONDS:.0f} s")
        if os.access(WINDOW_MANAGER, os.X_OK):
            self._programs.append(self._spawn([WINDOW_MANAGER]))
            self._wait_for("get_num_desktops")

    def _wait_for(self, question: str) -> bool:
        """Wait until xdotool has an answer; return whether it came in time."""
        until = time.monotonic() + START_SECONDS
        while not self._answers(question):
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def _spawn(self, argv: Sequence[str], passed: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - a program of the sandbox, in the sandbox
            argv,
            env=self._environment(),
            cwd=self._working_directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=passed,
            start_new_session=True,
        )

    def _run(self, argv: Sequence[str], text: str = "") -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(  # noqa: S603 - a program of the sandbox, in the sandbox
                argv,
                env=self._environment(),
                input=text.encode("utf-8", "replace"),
                capture_output=True,
                timeout=CALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DisplayError(f"{Path(argv[0]).name} did not end within {CALL_SECONDS:.0f} s") from None

    def _answers(self, question: str = "getdisplaygeometry") -> bool:
        try:
            self.drive(question)
        except DisplayError:
            return False
        return True

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self._fonts, "DISPLAY": self._name}


def _problem(done: subprocess.CompletedProcess[bytes]) -> str:
    said = done.stderr.decode("utf-8", "replace").strip()[:MAX_PROBLEM]
    return f"{Path(done.args[0]).name} failed: {said or f'exit code {done.returncode}'}"


def check_programs() -> None:
    """Raise DisplayError where a program that the display needs is missing."""
    missing = find_missing()
    if missing:
        raise DisplayError(f"a display needs Debian's packages {', '.join(missing)} in this sandbox")


def find_missing() -> list[str]:
    """Return the packages whose programs are missing."""
    return [package for program, package in PROGRAMS.items() if not os.access(program, os.X_OK)]
