"""The tables of API keys, among them those of people who signed in, and of sign-ins at MCP servers."""

from __future__ import annotations

from sqlalchemy import JSON, Column, ForeignKey, LargeBinary, String, Table, Text

from delivery.database.engine import metadata
from delivery.database.tables import UtcDateTime

keys = Table(
    "keys",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("name", String(200), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("revoked_at", UtcDateTime),
    Column("expires_at", UtcDateTime, index=True),
    Column("subject", String(255)),
)
"""`expires_at` NULL: until it is revoked. `subject`: who signed in, by the name that the identity provider
gives; NULL for the key of a program. The digest is that of the key, or of a sign-in's unused code."""

mcp_sign_ins = Table(
    "mcp_sign_ins",
    metadata,
    Column("agent", String(40), ForeignKey("records.id", ondelete="CASCADE"), primary_key=True),
    Column("server", String(40), primary_key=True),
    Column("person", String(600), primary_key=True),
    Column("account", String(40), nullable=False),
    Column("sealed", Text, nullable=False),
    Column("claimed_until", UtcDateTime),
    Column("updated_at", UtcDateTime, nullable=False),
)
"""Encrypted tokens of people at the MCP servers of agents. `person` is a subject; empty: the client that the
gateway registered for all. Until `claimed_until` one process renews the token, and others wait for it."""

ended_sign_ins = Table(
    "ended_sign_ins",
    metadata,
    Column("agent", String(40), primary_key=True),
    Column("server", String(40), primary_key=True),
    Column("person", String(600), primary_key=True),
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("sealed", Text, nullable=False),
)
"""The rows of `mcp_sign_ins` of agents that left the settings file, until a gateway revokes their tokens."""

mcp_prompts = Table(
    "mcp_prompts",
    metadata,
    Column("agent", String(40), ForeignKey("records.id", ondelete="CASCADE"), primary_key=True),
    Column("server", String(40), primary_key=True),
    Column("person", String(600), primary_key=True),
    Column("account", String(40), nullable=False),
    Column("commands", JSON, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)
"""The prompts of MCP servers as `/help` lists them. `person` is who signed in there; empty: all see them."""
