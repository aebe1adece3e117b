"""Import python-telegram-bot without httpx; every other module takes its names from here.

The library imports httpx for an HTTP client of its own, which `http_client.py` replaces. httpx takes 7 MB and
a tenth of a second of CPU at each start, so it is imported only when it is used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _DeferredHttpx(ModuleType):
    """The name `httpx` in python-telegram-bot's own client: any use of it imports httpx."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("httpx"), name)


_ANNOTATIONS = ("AsyncClient", "Proxy", "URL")
"""What the signatures of python-telegram-bot's own client name while it is imported."""


@contextmanager
def _httpx_deferred() -> Iterator[None]:
    if "httpx" in sys.modules:
        yield
        return
    deferred = _DeferredHttpx("httpx")
    vars(deferred).update(dict.fromkeys(_ANNOTATIONS, object))
    sys.modules["httpx"] = deferred
    try:
        yield
    finally:
        del sys.modules["httpx"]
        for name in _ANNOTATIONS:
            delattr(deferred, name)


with _httpx_deferred():
    from telegram import Bot as LibraryBot
    from telegram import InputFile
    from telegram.error import NetworkError, TelegramError
    from telegram.request import BaseRequest, RequestData

__all__ = ["BaseRequest", "InputFile", "LibraryBot", "NetworkError", "RequestData", "TelegramError"]
