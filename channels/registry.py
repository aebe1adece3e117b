"""Installed channel adapters, found by entry point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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


class InstalledChannels(Mapping[str, ChannelPlugin]):
    """Adapters by name. Each is loaded when it is first asked for, which raises BrokenChannelPlugin."""

    def __init__(self, entries: Iterable[EntryPoint]) -> None:
        self._entries: dict[str, EntryPoint] = {}
        self._loaded: dict[str, ChannelPlugin] = {}
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name in self._entries:
                raise BrokenChannelPlugin(f"two installed packages both register the channel {entry.name!r}")
            self._entries[entry.name] = entry

    def __getitem__(self, name: str) -> ChannelPlugin:
        if name not in self._loaded:
            self._loaded[name] = _load(self._entries[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@cache
def installed() -> InstalledChannels:
    """Return the installed adapters by name; raises BrokenChannelPlugin if two have the same name."""
    return InstalledChannels(entry_points(group=GROUP))


@cache
def built_in() -> InstalledChannels:
    """Return the adapters that Dovecote itself registers, by name."""
    found = entry_points(group=GROUP)
    return InstalledChannels(
        entry for entry in found if entry.dist is not None and entry.dist.name == DISTRIBUTION
    )


def plugin(kind: str) -> ChannelPlugin:
    """Return the adapter named `kind`; raises UnknownChannelKind with the installed names."""
    try:
        return installed()[kind]
    except KeyError:
        names = ", ".join(installed()) or "none"
        raise UnknownChannelKind(f"no channel kind {kind!r} is installed; installed: {names}") from None
