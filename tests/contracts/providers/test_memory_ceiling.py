"""What memory the operator allows holds for every sandbox record, new, changed or older than the rule."""

from __future__ import annotations

from typing import Any

import pytest

from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.vault import Vault
from gateway.records.errors import InvalidRecord
from gateway.records.records import Records

VAULT = Vault(["key-" + "k" * 40])


async def test_more_memory_than_the_operator_allows_is_refused(database: Database) -> None:
    """On create and update, the error has the field, the given value and the allowed one."""
    book = Records(VAULT, max_memory_mb=600)
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        made: dict[str, Any] = {"connection": connection, "account": account.id, "kind": "sandbox"}
        with pytest.raises(InvalidRecord) as refused:
            await book.create(**made, name="wide", config={"memoryLimit": 601})
        (problem,) = refused.value.problems
        assert (problem.pointer, "601" in problem.detail, "600" in problem.detail) == (
            "/config/memoryLimit",
            True,
            True,
        )
        kept = (await book.create(**made, name="fits", config={"memoryLimit": 600})).record
        with pytest.raises(InvalidRecord):
            await book.update(connection, kept, patch={"memoryLimit": 601})
        assert book.sandbox_config(kept).memory_limit == 600


async def test_what_was_stored_before_gets_what_is_allowed_now(database: Database) -> None:
    """A rule that came later holds at the next use, for defaults too, and changes no record."""
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        before = Records(VAULT)
        wide = (
            await before.create(connection, account.id, "sandbox", name="w", config={"memoryLimit": 4096})
        ).record
        silent = (await before.create(connection, account.id, "sandbox", name="s", config={})).record
        strict = Records(VAULT, max_memory_mb=256)
        renamed = (await strict.update(connection, silent, name="t")).record
    assert before.sandbox_config(wide).memory_limit == 4096
    for record in (wide, renamed, None):
        assert strict.sandbox_config(record).memory_limit == 256
    assert wide.config == {"memoryLimit": 4096}
