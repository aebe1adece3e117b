"""Measure the work of a call in a unit that is the same on every machine: lines of Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def count_lines(call: Callable[[], object]) -> int:
    """Count the lines of Python that a call runs."""
    steps = 0

    def tracer(_frame: FrameType, event: str, _arg: object) -> object:
        nonlocal steps
        steps += event == "line"
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)  # type: ignore[arg-type]
    try:
        call()
    finally:
        sys.settrace(before)
    return steps
