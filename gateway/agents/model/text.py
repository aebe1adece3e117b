"""Text as models and storage can take it: not too long, and free of halved characters."""

from __future__ import annotations

OMISSION_MARKER = "…[{left_out} characters left out to fit the model's memory]…"


def shorten(text: str, max_chars: int) -> str:
    """Return a text of about `most_chars` by leaving out its middle, and say so; 0 leaves it whole."""
    if max_chars <= 0 or len(text) <= max_chars:
        return text
    half = max_chars // 2
    left_out = len(text) - 2 * half
    return text[:half] + OMISSION_MARKER.format(left_out=left_out) + text[len(text) - half :]


def repair_surrogates(text: str) -> str:
    """Return text that can be encoded: halves of a surrogate pair are joined, a lone one is replaced.

    JSON may carry such halves in escapes (RFC 8259, section 8.2), and models that stream tokens do send them.
    """
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
