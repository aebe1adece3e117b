"""Every built-in channel keeps the contract of `channels.testing`, and has what the repository asks of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from importlib import import_module
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from channels.message import Address
from channels.port import ChannelFeature, ChannelPlugin
from channels.registry import built_in
from channels.testing.suite import ChannelContract, RenderingContract, WebhookContract

KINDS = {
    "message": None,
    "edit": ChannelFeature.EDITS,
    "command": None,
    "reaction": ChannelFeature.REACTIONS,
    "button press": ChannelFeature.BUTTONS,
    "file": ChannelFeature.DOWNLOAD,
}
"""The kinds of updates, and the feature of the channels that have them."""


def module_of(plugin: ChannelPlugin) -> str:
    """Return the package of a channel."""
    return plugin.settings.__module__.rpartition(".")[0]


SAMPLES = [
    pytest.param(plugin, path, id=f"{name}-{path.name.removesuffix('.json')}")
    for name, plugin in built_in().items()
    for path in sorted(files(module_of(plugin)).joinpath("samples").iterdir(), key=lambda path: path.name)
]


class TestChannelContract(ChannelContract, WebhookContract, RenderingContract):
    """The contract, for each built-in channel on its own simulator."""

    @pytest.fixture
    def render(self, plugin: ChannelPlugin) -> Callable[[str], str]:
        """Return how a channel renders CommonMark, as text."""
        render: Callable[[str], Any] = import_module(f"{module_of(plugin)}.send.markup").render
        return lambda text: str(getattr(rendered := render(text), "text", rendered))


@pytest.mark.parametrize(("plugin", "path"), SAMPLES)
def test_a_sample_decodes_as_recorded(plugin: ChannelPlugin, path: Any) -> None:
    """Each recorded payload gives the update, or the reason to ignore it, that is recorded beside it."""
    sample = json.loads(path.read_text())
    codec = import_module(f"{module_of(plugin)}.receive.codec")
    decoded = codec.decode(sample["update"], channel="chn_sample", bot=codec.Bot(**sample["bot"]))
    plain = json.loads(json.dumps(asdict(decoded), default=datetime.isoformat))
    for name in ("quoted", "root", "above", "includes"):
        if not plain.get(name, ...):
            del plain[name]
    assert {"type": type(decoded).__name__, **plain} == sample["expected"]


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_a_sample_of_every_kind(plugin: ChannelPlugin, kind: str) -> None:
    """Each kind of update has a recorded payload beside its parser."""
    feature = KINDS[kind]
    if feature is not None and feature not in plugin.features:
        pytest.skip(f"the channel does not declare {feature.value}")
    assert kind in {_kind_of(sample) for sample in _expected(plugin)} | {
        "file" for sample in _expected(plugin) if sample.get("attachments")
    }


def _expected(plugin: ChannelPlugin) -> list[dict[str, object]]:
    folder = files(module_of(plugin)).joinpath("samples")
    return [json.loads(path.read_text())["expected"] for path in folder.iterdir()]


def _kind_of(sample: dict[str, object]) -> str:
    if sample["type"] == "Message":
        return "edit" if sample["edited"] else "message"
    return {"Reaction": "reaction", "Command": "command", "ButtonPress": "button press"}.get(
        str(sample["type"]), ""
    )


def test_a_manifest_imports_no_sdk() -> None:
    """Listing the built-in channels loads none of their SDKs."""
    code = (
        "import sys; from channels.registry import built_in; dict(built_in());"
        "sdks = {'telegram', 'slack_sdk', 'discord', 'gidgethub', 'httpx', 'aiohttp', 'pytest'};"
        "print(sdks & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("secret", ["", " ", None])
def test_a_webhook_without_a_secret_is_refused(plugin: ChannelPlugin, secret: str | None) -> None:
    """Telegram's settings for webhooks are invalid without a secret."""
    if plugin.name != "telegram":
        pytest.skip("signs with a key of another name")
    given = {"token": "1:a", "mode": "webhook", "webhook_secret": secret}
    with pytest.raises(ValidationError) as caught:
        plugin.settings.model_validate(given)
    assert "1:a" not in str(caught.value)


@given(
    st.builds(
        Address,
        channel=st.text(),
        room=st.text(),
        thread=st.none() | st.text(),
        extras=st.dictionaries(st.text(), st.text()),
    )
)
def test_an_address_survives_encoding(address: Address) -> None:
    """An encoded address decodes to an equal one."""
    assert Address.decode(address.encode()) == address
