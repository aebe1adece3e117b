"""File names that a program in a sandbox may choose and that are easily misread."""

from __future__ import annotations

HOSTILE_NAMES = (
    "two\nlines",
    "5 1700000000 outbox\n",
    "carriage\rreturn",
    "tab\tand\vother\fspace",
    "-rf",
    "--help",
    " lead and trail ",
    "quote'\"`$(id)",
    "back\\slash\\n",
    "*?[x]{a,b}!",
    "semi;colon&amp|pipe<>",
    "#fragment?query=1%0a%2e%2e%2fx",
    "~",
    "...",
    "line\u2028separator\u2029paragraph\x85next",
    "right\u202eleft\u200b",
    "e\u0301 \N{LATIN SMALL LETTER E WITH ACUTE} \N{PILE OF POO}",
    "escape\x1b[31m\x07\x01",
    "\x7fdelete",
    "n" * 200,
)
"""Each is valid UTF-8, so that HTTP and tools can name it."""
