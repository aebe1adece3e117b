"""Write a new revision from the tables in the code: `python -m gateway.migrations.write NUMBER MESSAGE`.

Afterwards format the file, add its line to `checksums.txt` (`sha256sum`, run in the folder `versions`), and
write the newest schema: `python -m gateway.migrations.write schema`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from sqlalchemy import Connection

from delivery.database.async_engine import create_async_engine
from gateway.migrations import apply_revisions, configuration, newest_schema


def _write(connection: Connection, number: str, message: str) -> None:
    from alembic import command

    config = configuration(connection)
    command.upgrade(config, "head")
    command.revision(config, message, autogenerate=True, rev_id=number)


async def write(number: str, message: str) -> None:
    """Write a revision with the differences between the present revisions and the tables in the code."""
    with tempfile.TemporaryDirectory() as folder:
        engine = create_async_engine(f"sqlite+aiosqlite:///{Path(folder) / 'empty.db'}")
        async with engine.begin() as connection:
            await connection.run_sync(_write, number, message)
        await engine.dispose()


async def write_schema() -> None:
    """Write the schema to which all revisions lead."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite+aiosqlite:///{Path(folder) / 'empty.db'}"
        newest_schema.FILE.write_text(await apply_revisions(url, newest_schema.describe), "utf-8")


if __name__ == "__main__":
    asyncio.run(write_schema() if sys.argv[1:] == ["schema"] else write(sys.argv[1], sys.argv[2]))
