"""A rotation of the secret key that is interrupted, or during which what it encrypts is changed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from databases import until_waiting
from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.key_rotation import check_keys, reencrypt_all, reencrypt_at_start
from gateway.accounts.vault import AssociatedData, DecryptionFailed, Vault
from gateway.records.records import Records
from gateway.store.accounts import records
from gateway.store.accounts.records import Record

OLD, NEW = Vault(["old-" + "o" * 40]), Vault(["new-" + "n" * 40])
OLD_NEW = Vault(["old-" + "o" * 40, "new-" + "n" * 40])
NEW_OLD = Vault(["new-" + "n" * 40, "old-" + "o" * 40])


async def _add_record(database: Database) -> Record:
    """Store a record with a secret that the old key encrypts."""
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        config = {"envVars": {"TOKEN": "canary"}}
        saved = await Records(OLD).create(connection, account.id, "sandbox", name="s", config=config)
    return saved.record


async def _read(database: Database, record: Record, vault: Vault) -> str:
    async with database.read() as connection:
        stored = await records.get(connection, record.account, "sandbox", record.id)
    assert stored is not None
    return Records(vault).sandbox_config(stored).env_vars["TOKEN"]


async def _accepted(database: Database) -> set[str]:
    """Return the keys with which alone a gateway starts."""
    found = set()
    for name, vault in {"old": OLD, "new": NEW}.items():
        with suppress(DecryptionFailed):
            await check_keys(database, vault)
            found.add(name)
    return found


async def test_a_record_that_changes_at_that_time_is_encrypted_too(database: Database) -> None:
    """A request changes a record while the rotation waits for it; the new key alone reads it afterwards."""
    record = await _add_record(database)
    await check_keys(database, OLD)
    async with database.begin() as connection:
        held = await records.get(connection, record.account, "sandbox", record.id, locked=True)
        assert held is not None
        rotation = asyncio.create_task(reencrypt_all(database, NEW_OLD, forget_others=True))
        await until_waiting(database)
        await records.update_record(
            connection, replace(held, updated_at=held.updated_at + timedelta(seconds=1))
        )
    done = await rotation
    assert (done.renewed, done.left) == (1, 0)
    assert await _read(database, record, NEW) == "canary"


class OvertakenVault(Vault):
    """Encrypts again with the old key, as a gateway that changes each row just after the rotation does."""

    def reencrypt(self, context: AssociatedData, envelope: str | bytes) -> str:
        """Return the same secret encrypted with the old key."""
        return OLD.encrypt(context, self.decrypt(context, envelope))


async def test_what_a_gateway_still_encrypts_with_the_old_key_is_counted(database: Database) -> None:
    """The rotation ends after some passes, counts what it found in the last one, and is not complete."""
    await _add_record(database)
    await check_keys(database, OLD)
    keys = ("new-" + "n" * 40, "old-" + "o" * 40)
    await check_keys(database, NEW_OLD)
    done = await reencrypt_all(database, OvertakenVault(keys), forget_others=True)
    assert (done.left, done.unreadable) == (1, ())
    assert await _accepted(database) == set()


async def test_an_interrupted_rotation_needs_both_keys(database: Database) -> None:
    """Before the first row is encrypted with the new key, each key alone is refused until all rows are."""
    record = await _add_record(database)
    await check_keys(database, OLD)
    assert await _accepted(database) == {"old"}
    await check_keys(database, NEW_OLD)  # a gateway begins the rotation, and is killed
    assert await _accepted(database) == set()
    await check_keys(database, NEW_OLD)
    await reencrypt_at_start(database, NEW_OLD)
    assert await _accepted(database) == {"new"}
    assert await _read(database, record, NEW) == "canary"


async def test_replicas_with_both_keys_in_different_orders_need_both(database: Database) -> None:
    """One of two replicas was not restarted with the new key first: only the command ends the rotation."""
    await _add_record(database)
    await check_keys(database, OLD)
    for ring in (OLD_NEW, NEW_OLD):
        await check_keys(database, ring)
        await reencrypt_at_start(database, ring)
    assert await _accepted(database) == set()
    await check_keys(database, NEW_OLD)
    await reencrypt_all(database, NEW_OLD, forget_others=True)
    assert await _accepted(database) == {"new"}


async def test_a_rotation_is_taken_back(database: Database) -> None:
    """The old key is made the first again, and after the command it is enough."""
    record = await _add_record(database)
    await check_keys(database, OLD)
    for ring in (OLD_NEW, NEW_OLD):
        await check_keys(database, ring)
        await reencrypt_at_start(database, ring)
    await check_keys(database, OLD_NEW)
    await reencrypt_at_start(database, OLD_NEW)
    assert await _accepted(database) == set()
    await reencrypt_all(database, OLD_NEW, forget_others=True)
    assert await _accepted(database) == {"old"}
    assert await _read(database, record, OLD) == "canary"
