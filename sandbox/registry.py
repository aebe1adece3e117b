"""Find the installed providers by entry point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from sandbox.port import Feature, ProviderPlugin

GROUP = "dovecote.sandboxes"
DISTRIBUTION = "dovecote"


class UnknownProvider(LookupError):
    """No provider of this name is installed; the message lists the installed ones."""


class BrokenProviderPlugin(RuntimeError):
    """An installed provider cannot be loaded, or two have the same name."""


def _load(entry: EntryPoint) -> ProviderPlugin:
    try:
        plugin = entry.load()
    except Exception as error:  # a third party's import may raise anything: name the package and stop
        raise BrokenProviderPlugin(
            f"sandbox provider {entry.name!r} ({entry.value}) does not load: {error}"
        ) from error
    if not isinstance(plugin, ProviderPlugin):
        raise BrokenProviderPlugin(f"sandbox provider {entry.name!r}: {entry.value} is not a ProviderPlugin")
    return plugin


class InstalledProviders(Mapping[str, ProviderPlugin]):
    """Providers by name. Each is loaded when it is first asked for, which raises BrokenProviderPlugin."""

    def __init__(self, entries: Iterable[EntryPoint]) -> None:
        self._entries: dict[str, EntryPoint] = {}
        self._loaded: dict[str, ProviderPlugin] = {}
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name in self._entries:
                raise BrokenProviderPlugin(
                    f"two installed packages both register the sandbox provider {entry.name!r}"
                )
            self._entries[entry.name] = entry

    def __getitem__(self, name: str) -> ProviderPlugin:
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
def installed() -> InstalledProviders:
    """Return the installed providers by name; raises BrokenProviderPlugin if two have the same name."""
    return InstalledProviders(entry_points(group=GROUP))


@cache
def built_in() -> InstalledProviders:
    """Return the providers that Dovecote itself registers, by name."""
    found = entry_points(group=GROUP)
    return InstalledProviders(
        entry for entry in found if entry.dist is not None and entry.dist.name == DISTRIBUTION
    )


def plugin(name: str) -> ProviderPlugin:
    """Return the provider `name`; raises UnknownProvider with the installed names."""
    try:
        return installed()[name]
    except KeyError:
        names = ", ".join(installed()) or "none"
        raise UnknownProvider(f"no sandbox provider {name!r} is installed; installed: {names}") from None


def mounts_workspace(name: str, *, external: object) -> bool:
    """Return whether a provider mounts the workspace store in a sandbox; in an `external` one, none does."""
    found = installed().get(name)
    return not external and found is not None and Feature.MOUNTS_WORKSPACE in found.features
