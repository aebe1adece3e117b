"""The registries of installed adapters and providers load one when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint

import pytest

from channels.registry import BrokenChannelPlugin, InstalledChannels
from sandbox.registry import BrokenProviderPlugin, InstalledProviders

Open = Callable[[Iterable[EntryPoint]], Mapping[str, object]]
BOTH = pytest.mark.parametrize(
    ("open_registry", "group", "known", "broken"),
    [
        (InstalledChannels, "dovecote.channels", "channels.telegram:plugin", BrokenChannelPlugin),
        (InstalledProviders, "dovecote.sandboxes", "sandbox.host:plugin", BrokenProviderPlugin),
    ],
)


@BOTH
def test_a_package_that_does_not_load_breaks_only_what_uses_it(
    open_registry: Open, group: str, known: str, broken: type[Exception]
) -> None:
    """Its name is known, the others work, and who asks for it gets an error with its name."""
    missing = EntryPoint("missing", "no_such_module:plugin", group)
    other = EntryPoint("other", "math:pi", group)
    found = open_registry([missing, other, EntryPoint("known", known, group)])
    assert (list(found), len(found)) == (["known", "missing", "other"], 3)
    assert found["known"] is found["known"]
    for name in ("missing", "other"):
        assert name in found
        with pytest.raises(broken, match=f"'{name}'"):
            _ = found[name]
    assert found.get("nobody") is None


@BOTH
def test_two_packages_with_one_name_are_an_error_at_once(
    open_registry: Open, group: str, known: str, broken: type[Exception]
) -> None:
    """Which of them is meant cannot be known."""
    with pytest.raises(broken, match="two installed packages both register"):
        open_registry([EntryPoint("one", known, group), EntryPoint("one", known, group)])
