"""Installed channel adapters, found by entry point."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from channels.port import ChannelPlugin

GROUP = "dovecote.channels"
DISTRIBUTION = "dovecote"


class UnknownChannelKind(LookupError):
    """No adapter of this name is installed; the message lists the installed ones."""


class BrokenChannelPlugin(RuntimeError):
    """An installed adapter cannot be loaded, or two adapters have the same name."""


def _load(entry: EntryPoint) -> ChannelPlugin:
    try:
        plugin = entry.load()
    except Exception as error:  # importing a third party's module may raise anything
        raise BrokenChannelPlugin(
            f"channel {entry.name!r} ({entry.value}) cannot be loaded: {error}"
        ) from error
    if not isinstance(plugin, ChannelPlugin):
        raise BrokenChannelPlugin(f"channel {entry.name!r}: {entry.value} is not a ChannelPlugin")
    return plugin


@cache
def installed() -> dict[str, ChannelPlugin]:
    """Return the installed adapters by name; raises BrokenChannelPlugin."""
    return _load_all(entry_points(group=GROUP))


@cache
def built_in() -> dict[str, ChannelPlugin]:
    """Return the adapters that Dovecote itself registers, by name; other packages' are not loaded."""
    found = entry_points(group=GROUP)
    return _load_all(entry for entry in found if entry.dist is not None and entry.dist.name == DISTRIBUTION)


def _load_all(entries: Iterable[EntryPoint]) -> dict[str, ChannelPlugin]:
    plugins: dict[str, ChannelPlugin] = {}
    for entry in sorted(entries, key=lambda entry: entry.name):
        if entry.name in plugins:
            raise BrokenChannelPlugin(f"two installed packages both register the channel {entry.name!r}")
        plugins[entry.name] = _load(entry)
    return plugins


def plugin(kind: str) -> ChannelPlugin:
    """Return the adapter named `kind`; raises UnknownChannelKind with the installed names."""
    try:
        return installed()[kind]
    except KeyError:
        names = ", ".join(installed()) or "none"
        raise UnknownChannelKind(f"no channel kind {kind!r} is installed; installed: {names}") from None
