"""Query plans of recorded statements, and which of them read a whole table that grows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from sqlalchemy import Constraint, Index, create_engine, make_url, text

from delivery.database.engine import metadata
from statement_recorder import Statement

NOT_GROWING: Mapping[str, str] = {
    "alembic_version": "one row",
    "erasures": "conversations that were deleted in the last minute",
    "installations": "one row",
    "sandboxes": "the reaper visits every reserved sandbox, whose cost is not in SQL",
}
"""Tables that may be read as a whole, and why."""

PARTIAL = frozenset(
    str(index.name)
    for table in metadata.tables.values()
    for index in table.indexes
    if index.dialect_options["sqlite"]["where"] is not None
)
"""Indexes that contain only unfinished work, so that reading all of one is bounded by that work."""

TABLE_OF = {
    str(named.name): table.name
    for table in metadata.tables.values()
    for named in cast("Iterable[Index | Constraint]", (*table.indexes, *table.constraints))
}
"""The tables of indexes, by their names."""

_SCAN = re.compile(r"^SCAN (?P<table>\w+)(?: USING (?:COVERING )?INDEX (?P<index>\w+))?")
_DATA = ("SELECT", "UPDATE", "DELETE", "INSERT", "WITH")


def full_scans(url: str, statements: Iterable[Statement]) -> list[str]:
    """Return a line for each statement that reads a whole growing table or index."""
    asked = [one for one in statements if one.text.lstrip().upper().startswith(_DATA)]
    explain = _sqlite_scans if url.startswith("sqlite") else _postgres_scans
    return [
        f"{found}: {' '.join(one.text.split())[:600]}"
        for one, scans in explain(url, asked)
        for found in scans
    ]


def _sqlite_scans(url: str, statements: list[Statement]) -> Iterator[tuple[Statement, list[str]]]:
    engine = create_engine(make_url(url).set(drivername="sqlite"))
    with engine.connect() as connection:
        for one in statements:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {one.text}", tuple(one.parameters))
            yield one, [row[3] for row in plan if _is_full(_SCAN.match(row[3]))]
    engine.dispose()


def _is_full(scan: re.Match[str] | None) -> bool:
    return scan is not None and _is_growing(scan["table"]) and scan["index"] not in PARTIAL


def _postgres_scans(url: str, statements: list[Statement]) -> Iterator[tuple[Statement, list[str]]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        # Tables are small: without these a join reads both of them, and so it does with any index.
        for method in ("seqscan", "hashjoin", "mergejoin"):
            connection.execute(text(f"SET enable_{method} = off"))
        for one in statements:
            rows = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {one.text}", one.parameters)
            plan = rows.scalar_one()
            nodes = _nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
            yield one, [_shown(node) for node in nodes if _reads_all(node)]
    engine.dispose()


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _reads_all(node: Mapping[str, Any]) -> bool:
    kind = node["Node Type"]
    if kind == "Seq Scan":
        return _is_growing(node["Relation Name"])
    if "Index" not in kind or "Scan" not in kind or "Index Cond" in node:
        return False
    return node["Index Name"] not in PARTIAL and _is_growing(TABLE_OF.get(node["Index Name"], ""))


def _is_growing(table: str) -> bool:
    return table in metadata.tables and table not in NOT_GROWING


def _shown(node: Mapping[str, Any]) -> str:
    return f"{node['Node Type']} {node.get('Relation Name', '')} {node.get('Index Name', '')}".strip()
