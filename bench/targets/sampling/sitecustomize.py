"""Sample a process that finds this folder on its path: CPU by layer, written to CPU_LAYERS at its end.

It begins with SIGUSR2, so that the start does not count. A timer of the kernel fires for each 4 ms of user
CPU (the watchdog of the event loop has the timer of all CPU). A sample counts for the innermost frame that is
in a layer of the gateway or in a library; the standard library counts for what called it.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
from collections import Counter
from pathlib import Path
from types import FrameType

INTERVAL = 0.004
LAYERS = ("gateway", "delivery", "channels", "sandbox", "egress")
ROOT = str(Path(__file__).parents[3]) + os.sep
_counts: Counter[str] = Counter()


def _layer(filename: str) -> str | None:
    """Return the layer of the gateway, or the library, that a file belongs to."""
    _, separator, library = filename.rpartition(f"site-packages{os.sep}")
    if separator:
        return library.partition(os.sep)[0].removesuffix(".py")
    own = filename.removeprefix(ROOT).partition(os.sep)[0]
    return own if own != filename and own in LAYERS else None


def _sample(_number: int, frame: FrameType | None) -> None:
    while frame is not None:
        layer = _layer(frame.f_code.co_filename)
        if layer is not None:
            _counts[layer] += 1
            return
        frame = frame.f_back
    _counts["event loop"] += 1


def _begin(_number: int, _frame: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, INTERVAL, INTERVAL)


def _write(path: str, owner: int) -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if os.getpid() == owner:  # a fork inherits this function
        Path(path).write_text(json.dumps(_counts))


if "CPU_LAYERS" in os.environ:
    atexit.register(_write, os.environ.pop("CPU_LAYERS"), os.getpid())
    signal.signal(signal.SIGVTALRM, _sample)
    signal.signal(signal.SIGUSR2, _begin)
