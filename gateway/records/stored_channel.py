"""Read stored channel records; explain to the account and the operator why one cannot be read.

An upgrade can refuse settings that an earlier version stored, a key can be missing from the ring, and a
plugin can be uninstalled. None of them may stop the other channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from channels.port import ChannelPlugin
from channels.registry import BrokenChannelPlugin, UnknownChannelKind, plugin
from channels.settings import ChannelSettings
from gateway.accounts.vault import DecryptionFailed
from gateway.records.input_problems import to_problems
from gateway.records.kinds import ChannelConfig
from gateway.records.records import Records
from gateway.store.accounts.records import Record


class UnreadableChannel(ValueError):
    """A channel record cannot be read; the text says why and what to do, and has no values of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChannel:
    """A channel record that was read: its config, its plugin and the plugin's settings."""

    config: ChannelConfig
    plugin: ChannelPlugin
    settings: ChannelSettings


def read_channel(records: Records, record: Record, *, public_url: str | None) -> StoredChannel:
    """Return a record's config, plugin and settings; raises UnreadableChannel.

    Webhook mode gets its public address.
    """
    with _errors_explained(record):
        stored = records.with_secrets(record)
    with _errors_explained(record, stored, ChannelConfig):
        config = ChannelConfig.model_validate(stored)
        kind = plugin(config.kind)
    settings = dict(config.settings)
    wants = "webhook_url" in kind.settings.model_fields and not settings.get("webhook_url")
    if wants and public_url and settings.get("mode") == "webhook":
        settings["webhook_url"] = f"{public_url.rstrip('/')}/channels/{record.id}/inbound"
    with _errors_explained(record, settings, kind.settings, below="/settings"):
        return StoredChannel(config=config, plugin=kind, settings=kind.settings.model_validate(settings))


@contextmanager
def _errors_explained(
    record: Record, given: Any = None, shape: Any = None, *, below: str = ""
) -> Iterator[None]:
    try:
        yield
    except (UnknownChannelKind, BrokenChannelPlugin) as error:
        raise UnreadableChannel(str(error)) from error
    except DecryptionFailed as error:
        raise UnreadableChannel(
            f"a secret of channel {record.name!r} cannot be decrypted: {error}. If the secret is lost, "
            "change the channel and give a new one"
        ) from error
    except ValidationError as error:
        # Not chained: the error's text can have values, and secrets are among them.
        found = to_problems(error, given, shape, below=below)
        problems = "; ".join(f"{one.pointer}: {one.detail}" for one in found)
        raise UnreadableChannel(
            f"the stored config of channel {record.name!r} is not valid: {problems}; correct the channel"
        ) from None
