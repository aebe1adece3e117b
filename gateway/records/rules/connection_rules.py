"""Refuse a second channel record on a connection that only one may use, such as a Slack app-level token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from channels.port import ChannelPlugin
from channels.registry import BrokenChannelPlugin, UnknownChannelKind, plugin
from gateway.accounts.vault import DecryptionFailed
from gateway.records.kinds import ChannelConfig
from gateway.store.accounts.records import Record
from sandbox.config import ConfigProblem

REMEDY = (
    "another channel is connected with these credentials, and the platform gives each event to only one of "
    "them: use that channel, or the credentials of another app"
)


def shared_connections(
    config: ChannelConfig,
    others: Iterable[Record],
    decrypt: Callable[[Record], ChannelConfig],
    *,
    below: str,
) -> Iterator[ConfigProblem]:
    """Yield a problem if another record has the connection of this config."""
    adapter = plugin(config.kind)
    key = _key(adapter, config.settings)
    if not key:
        return
    for other in others:
        if other.config.get("kind") == config.kind and _key_of(adapter, other, decrypt) == key:
            yield ConfigProblem(pointer=f"{below}/settings", detail=REMEDY)
            return


def _key_of(adapter: ChannelPlugin, record: Record, decrypt: Callable[[Record], ChannelConfig]) -> str:
    """Return the key of a record's connection, "" if the record cannot be read."""
    try:
        return _key(adapter, decrypt(record).settings)
    except (DecryptionFailed, ValidationError, BrokenChannelPlugin, UnknownChannelKind):
        return ""


def _key(adapter: ChannelPlugin, settings: dict[str, Any]) -> str:
    return adapter.connection_key(adapter.settings.model_validate(settings))
