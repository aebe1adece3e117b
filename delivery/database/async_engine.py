"""SQLAlchemy's asynchronous engine, imported without the ORM that its package imports for sessions.

Dovecote writes statements with SQLAlchemy Core. The ORM takes 6 MB and a tenth of a second of CPU at each
start, so it is imported only when another part, such as an installed package, asks the package for a session.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from typing import Any

_PACKAGE = "sqlalchemy.ext.asyncio"


@contextmanager
def _sessions_deferred() -> Iterator[None]:
    """Import modules of the package without its contents, which any name that it lacks imports later."""
    spec = find_spec(_PACKAGE)
    if _PACKAGE in sys.modules or spec is None or spec.loader is None:
        yield
        return
    package, load = module_from_spec(spec), spec.loader.exec_module

    def import_all(name: str) -> Any:
        if name.startswith("__") or vars(package).pop("__getattr__", None) is None:
            raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")
        load(package)
        return getattr(package, name)

    sys.modules[_PACKAGE] = vars(sys.modules["sqlalchemy.ext"])["asyncio"] = package
    yield
    vars(package)["__getattr__"] = import_all


with _sessions_deferred():
    from sqlalchemy.ext.asyncio.engine import AsyncConnection, AsyncEngine, create_async_engine

__all__ = ["AsyncConnection", "AsyncEngine", "create_async_engine"]
