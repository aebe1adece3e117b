"""What Alembic runs: the migrations on the connection it is given."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context

import delivery.database.tables
import gateway.store.tables  # noqa: F401  (registers its tables)
from delivery.database.engine import metadata


def _render(kind: str, item: Any, _context: Any) -> str | Literal[False]:
    """Write our own types as what they are in SQL, so that a revision never depends on today's code."""
    if kind == "type" and isinstance(item, delivery.database.tables.UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    render_item=_render,
    compare_type=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
