"""Make text acceptable to models and storage: shorten it, and repair surrogates."""

from __future__ import annotations

OMISSION_MARKER = "…[{left_out} characters left out to fit the model's memory]…"


def shorten(text: str, max_chars: int) -> str:
    """Return a text of about `most_chars` by leaving out its middle, with a note; 0 means no limit."""
    if max_chars <= 0 or len(text) <= max_chars:
        return text
    half = max_chars // 2
    left_out = len(text) - 2 * half
    return text[:half] + OMISSION_MARKER.format(left_out=left_out) + text[len(text) - half :]


def repair_surrogates(text: str) -> str:
    """Return text that can be encoded: surrogate pairs are joined, lone surrogates are replaced.

    JSON may contain surrogates in escapes (RFC 8259, section 8.2), and models that stream tokens send them.
    """
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
