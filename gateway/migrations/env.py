"""Alembic's environment: apply the revisions on the connection in the configuration's attributes."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context

import delivery.database.tables
import gateway.store.tables  # noqa: F401  (registers its tables)
from delivery.database.engine import metadata
from delivery.database.partial_indexes import set_postgresql_conditions
from gateway.store.memory_tables import is_described


def _render(kind: str, item: Any, _context: Any) -> str | Literal[False]:
    """Render our own column types as SQLAlchemy's, so that a revision does not depend on today's code."""
    if kind == "type" and isinstance(item, delivery.database.tables.UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


set_postgresql_conditions(metadata)
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    render_item=_render,
    include_name=is_described,
    compare_type=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
