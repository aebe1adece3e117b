"""The tables of channels: who is paired with a bot, and the durable memory of adapters."""

from __future__ import annotations

from sqlalchemy import Column, String, Table, Text

from delivery.database.engine import metadata
from delivery.database.partial_indexes import partial_index
from delivery.database.tables import UtcDateTime

pairings = Table(
    "pairings",
    metadata,
    Column("channel", String(40), primary_key=True),
    Column("person", String(200), primary_key=True),
    Column("account", String(40), nullable=False),
    Column("code", String(20)),
    Column("name", String(200), nullable=False, default=""),
    Column("address", Text),
    Column("paired_at", UtcDateTime),
    Column("expires_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    partial_index("ix_pairings_requests", "expires_at", where="paired_at IS NULL"),
)


channel_notes = Table(
    "channel_notes",
    metadata,
    Column("channel", String(40), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("account", String(40), nullable=False),
    Column("note", String(1000), nullable=False),
    Column("updated_at", UtcDateTime, nullable=False, index=True),
)
"""State of channel adapters: read positions, known rooms."""

channel_secrets = Table(
    "channel_secrets",
    metadata,
    Column("channel", String(40), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("account", String(40), nullable=False),
    Column("sealed", Text, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)
"""Encrypted secrets of channel adapters: the tokens of workspaces that installed an app."""
