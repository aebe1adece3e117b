"""SQLAlchemy's sessions, which Dovecote does not use, are there for code that asks for them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

PROGRAM = """
import sys
from delivery.database.async_engine import AsyncEngine
import sqlalchemy.ext.asyncio
assert "sqlalchemy.orm" not in sys.modules
assert not hasattr(sqlalchemy.ext.asyncio, "__wrapped__")
assert "sqlalchemy.orm" not in sys.modules
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
assert issubclass(AsyncSession, object) and "sqlalchemy.orm" in sys.modules
assert sqlalchemy.ext.asyncio.AsyncEngine is AsyncEngine
assert not hasattr(sqlalchemy.ext.asyncio, "no_such_name")
"""


async def test_a_session_can_be_imported_after_the_engine() -> None:
    """The package completes itself when it is asked for a name that the engine does not need."""
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, cwd=root)
    assert await process.wait() == 0
