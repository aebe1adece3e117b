"""SQL of the prompts of MCP servers, as `/help` lists them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.accounts.mcp_sign_ins import SignInKey
from gateway.store.key_tables import mcp_prompts as table
from gateway.store.tables import account_of_record


async def get(connection: Connection, key: SignInKey) -> list[str] | None:
    """Return the commands of a server; None if its prompts were never listed."""
    this = (table.c.agent == key.agent) & (table.c.server == key.server) & (table.c.person == key.person)
    found = await connection.execute(select(table.c.commands).where(this))
    commands = found.scalar_one_or_none()
    return None if commands is None else list(commands)


async def save(connection: Connection, key: SignInKey, commands: Sequence[str]) -> None:
    """Store the commands of a server, in place of earlier ones."""
    values = {"commands": list(commands), "updated_at": utc_now()}
    await connection.execute(
        insert_on_conflict(table, connection.dialect.name)
        .values(
            agent=key.agent,
            server=key.server,
            person=key.person,
            account=account_of_record(key.agent),
            **values,
        )
        .on_conflict_do_update(index_elements=["agent", "server", "person"], set_=values)
    )


async def list_commands(connection: Connection, agent: str, people: Sequence[str]) -> dict[str, list[str]]:
    """Return the commands that these people see, by server."""
    found = await connection.execute(
        select(table.c.server, table.c.commands)
        .where(table.c.agent == agent, table.c.person.in_(people))
        .order_by(table.c.server, table.c.person)
    )
    return {row.server: list(row.commands) for row in found}
