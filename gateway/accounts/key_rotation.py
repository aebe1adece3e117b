"""Re-encrypt all secrets with a new secret key while the gateway runs.

Key checks are stored values that show which keys secrets may be encrypted with. `vault` is of the key that
encrypts all secrets. `vault.<key id>` is of a key that was the first of a ring with several: secrets may be
encrypted with it from then on. So an interrupted rotation needs both keys until it is completed.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from delivery.database.engine import Database
from gateway.accounts.vault import AssociatedData, DecryptionFailed, Vault, associated_data
from gateway.store.accounts import encrypted_columns

log = structlog.get_logger(__name__)

_REENCRYPT = (
    encrypted_columns.reencrypt_records,
    encrypted_columns.reencrypt_endpoints,
    encrypted_columns.reencrypt_channel_secrets,
    encrypted_columns.reencrypt_mcp_sign_ins,
    encrypted_columns.reencrypt_ended_sign_ins,
    encrypted_columns.reencrypt_jobs,
    encrypted_columns.reencrypt_triggers,
    encrypted_columns.reencrypt_idempotency,
)

MAX_PASSES = 10
"""Passes over all secrets; one more is needed only for what was changed during the one before."""

_CHECK = "vault"
_CHECK_TEXT = "dovecote"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableSecret:
    """A stored secret that no key of the ring decrypts: where it is and why."""

    table: str
    row: str
    field: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reencryption:
    """How many rows were re-encrypted, and what was left as it was.

    `left` counts secrets of an older key that were found even in the last pass: a gateway still writes them.
    `replicas` names the running gateways that encrypt with another key.
    """

    renewed: int
    unreadable: tuple[UnreadableSecret, ...]
    left: int = 0
    replicas: tuple[str, ...] = ()


async def check_keys(database: Database, vault: Vault) -> None:
    """Raise DecryptionFailed if secrets may be encrypted with a key that is not in the ring.

    From now on secrets may be encrypted with the first key of the ring: a check of it is stored.
    """
    name = f"{_CHECK}.{vault.first_key_id}"
    async with database.begin() as connection:
        await encrypted_columns.add_key_check(connection, _CHECK, vault.encrypt(_place(_CHECK), _CHECK_TEXT))
        if vault.is_rotating:
            await encrypted_columns.add_key_check(connection, name, vault.encrypt(_place(name), _CHECK_TEXT))
        stored = await encrypted_columns.list_key_checks(connection, _CHECK)
        for check, envelope in stored.items():
            vault.decrypt(_place(check), envelope)


async def reencrypt_all(database: Database, vault: Vault, *, forget_others: bool = False) -> Reencryption:
    """Encrypt everything with the first key of the ring; returns what was changed and what could not be.

    Each batch is a short transaction, so that the gateway continues to work. A row that somebody changes
    meanwhile may be skipped, so the passes end with one that finds no secret of an older key. A value that
    cannot be decrypted is left unchanged and returned. Afterwards the old keys can be removed from the ring:
    at once if the caller says that no gateway encrypts with another key (`forget_others`).
    """
    renewed = 0
    for _ in range(MAX_PASSES):
        found = await _reencrypt_once(database, vault)
        renewed += found.renewed
        if not found.left:
            await _complete(database, vault, forget_others=forget_others)
            break
    return Reencryption(renewed=renewed, unreadable=found.unreadable, left=found.left)


async def _reencrypt_once(database: Database, vault: Vault) -> Reencryption:
    """Go through all rows; `left` of the answer counts the secrets of older keys that were found."""
    unreadable: list[UnreadableSecret] = []
    renewed = older = 0

    def renew(table: str, row: str, field: str, envelope: str | bytes) -> str | None:
        nonlocal older
        if envelope in ("", b""):
            return None
        try:
            fresh = vault.reencrypt(associated_data(table, row, field), envelope)
        except DecryptionFailed as error:
            found = UnreadableSecret(table=table, row=row, field=field, reason=str(error))
            unreadable.append(found)
            return None
        if vault.is_current(envelope):
            return None
        older += 1
        return fresh

    for batch in _REENCRYPT:
        after: str | None = ""
        while after is not None:
            async with database.begin() as connection:
                after, changed = await batch(connection, after, renew)
            renewed += changed
    return Reencryption(renewed=renewed, unreadable=tuple(unreadable), left=older)


async def _complete(database: Database, vault: Vault, *, forget_others: bool) -> None:
    """Store that the first key encrypts all secrets."""
    async with database.begin() as connection:
        await encrypted_columns.replace_key_check(
            connection, _CHECK, vault.encrypt(_place(_CHECK), _CHECK_TEXT)
        )
        if forget_others:
            await encrypted_columns.keep_key_checks(connection, (_CHECK,))


def _place(check: str) -> AssociatedData:
    return associated_data("marks", check, "sealed")


async def reencrypt_at_start(database: Database, vault: Vault) -> None:
    """Encrypt everything with the first key of the ring, and log what cannot be decrypted or is left."""
    done = await reencrypt_all(database, vault)
    for one in done.unreadable:
        log.error("secret.decryption_failed", table=one.table, row=one.row, field=one.field, error=one.reason)
    if done.left:
        log.warning("secret.reencryption_incomplete", left=done.left)
