"""The `traceparent` header of W3C's Trace Context: the caller's span, below which a turn's trace continues.

https://www.w3.org/TR/trace-context/#traceparent-header
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HEADER = "traceparent"

MAX_LENGTH = 256
"""Characters of a header; version 00 has 55, later versions may have more."""

_PATTERN = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)


def parse(values: Sequence[str]) -> str | None:
    """Return the header in the form of version 00; None if it is missing, repeated or invalid.

    The specification demands that an invalid header is ignored, so it is no error.
    """
    if len(values) != 1 or len(values[0]) > MAX_LENGTH:
        return None
    found = _PATTERN.fullmatch(values[0])
    if found is None or found["version"] == "ff" or (found["version"] == "00" and found["more"]):
        return None
    if not found["trace"].strip("0") or not found["span"].strip("0"):
        return None
    return f"00-{found['trace']}-{found['span']}-{found['flags']}"
