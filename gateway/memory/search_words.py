"""Divide texts into words, the same way for notes and for queries, whatever the database's own rules are."""

from __future__ import annotations

import re
import unicodedata

MAX_QUERY_WORDS = 16
MAX_WORD = 64

_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W_{_IDEOGRAPHS}]+")


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case without accents; each ideograph is a word."""
    parts = unicodedata.normalize("NFKD", text)
    plain = "".join(one for one in parts if unicodedata.category(one) != "Mn")
    return [word[:MAX_WORD] for word in _WORD.findall(unicodedata.normalize("NFC", plain).casefold())]


def index_text(text: str) -> str:
    """Return the words of a note as the full-text index reads them."""
    return " ".join(split_words(text))


def search_words(query: str) -> list[str]:
    """Return the different words of a query, at most MAX_QUERY_WORDS."""
    return list(dict.fromkeys(split_words(query)))[:MAX_QUERY_WORDS]
