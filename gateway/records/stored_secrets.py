"""Decrypt the secrets of a record, all of them or those that a change keeps."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.accounts.vault import AssociatedData, DecryptionFailed, Vault, associated_data
from gateway.records.errors import SecretUnreadable, json_pointer
from gateway.records.patches import insert_secrets, merge_patch
from gateway.store.accounts.records import Record
from sandbox.config import ConfigProblem


def secret_associated_data(record: str, pointer: str) -> AssociatedData:
    """Return the context that binds a record's secret to its field."""
    return associated_data("records", record, pointer)


def with_secrets(vault: Vault, record: Record) -> dict[str, Any]:
    """Return a record's config with its secrets in clear; raises DecryptionFailed."""
    texts = {
        pointer: vault.decrypt(secret_associated_data(record.id, pointer), sealed)
        for pointer, sealed in record.encrypted_secrets.items()
    }
    return insert_secrets(record.config, texts)


def patched_config(
    vault: Vault, record: Record, patch: Mapping[str, Any], *, below: str = "/config"
) -> dict[str, Any]:
    """Return a record's config, with secrets in clear, after a merge patch; raises SecretUnreadable.

    A secret that cannot be decrypted is no error if the patch replaces or removes it.
    """
    texts: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for pointer, sealed in record.encrypted_secrets.items():
        try:
            texts[pointer] = vault.decrypt(secret_associated_data(record.id, pointer), sealed)
        except DecryptionFailed as error:
            texts[pointer] = secrets.token_urlsafe(32)
            reasons[texts[pointer]] = str(error)
    config: dict[str, Any] = merge_patch(insert_secrets(record.config, texts), patch)
    found = [_problem(below + pointer, reasons[text]) for pointer, text in _texts(config) if text in reasons]
    if found:
        raise SecretUnreadable(found)
    return config


def _texts(value: Any, path: tuple[object, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield each text of a config with its pointer."""
    if isinstance(value, str):
        yield json_pointer(path), value
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if _is_list(value) else ()
    for key, one in inner:
        yield from _texts(one, (*path, key))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _problem(pointer: str, reason: str) -> ConfigProblem:
    detail = f"the stored secret cannot be decrypted: {reason}. If it is lost, send a new value, or null"
    return ConfigProblem(pointer=pointer, detail=detail)
