"""Inside the sandbox: the service that owns the display, or uses the one of the image's desktop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandbox.desktop import computer_actions
from sandbox.desktop.display import Display, DisplayError, check_programs
from sandbox.desktop.service import serve

ENDED = "the display has ended, and the programs on it with it: the next call starts another"


class ComputerService:
    """The display that requests use; the first request starts it, and the first one after its end."""

    def __init__(self, directory: Path, working_directory: Path) -> None:
        self._directory = directory
        self._working_directory = working_directory
        self._display: Display | None = None

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the reply to a request."""
        try:
            if self._display is not None and self._display.closed:
                self._display.close()
                self._display = None
            if self._display is None:
                self._display = Display(self._directory, self._working_directory)
            return computer_actions.perform(self._display, request)
        except DisplayError as error:
            return {"error": ENDED if self._display is not None and self._display.closed else str(error)}


def main() -> None:
    """Serve below HOME; ends at once, with the reason, where a program is missing."""
    check_programs()
    directory = Path(os.environ["HOME"], ".dovecote/computer")
    serve(directory, ComputerService(directory, Path.cwd()).answer)
