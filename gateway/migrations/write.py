"""Write a new revision from the tables in the code: `python -m gateway.migrations.write NUMBER MESSAGE`.

Afterwards format the file and add its line to `checksums.txt` (`sha256sum`, run in the folder `versions`).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from sqlalchemy import Connection

from delivery.database.async_engine import create_async_engine
from gateway.migrations import configuration


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


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2]))
