"""The parts of discord.py that are no public interface and that the adapter uses are still there."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib.metadata import version

import aiohttp
import discord
import pytest
from discord import app_commands, gateway, http, ui, utils

ADVICE = (
    "discord.py {version} has no {name} as the adapter uses it: adapt channels/discord/{file}, "
    "or keep discord.py below this version."
)
GATEWAY, REST = "receive/gateway.py", "rest.py"
OF_CLASSES: tuple[tuple[type, str, str], ...] = (
    (
        gateway.DiscordWebSocket,
        GATEWAY,
        "from_client poll_event received_message identify resume close DISPATCH HELLO DEFAULT_GATEWAY",
    ),
    (gateway.KeepAliveHandler, GATEWAY, "tick stop"),
    (discord.VoiceClient, GATEWAY, "warn_nacl warn_dave"),
    (http.HTTPClient, REST, "get_ratelimit request ws_connect"),
    (http.Ratelimit, REST, "acquire update __aenter__ __aexit__ expires remaining outgoing"),
    (http.Route, REST, "BASE"),
    (aiohttp.ClientResponse, REST, "_body"),
    (app_commands.Command, "commands.py", "to_dict"),
    (ui.View, "send/rendering.py", "to_components"),
    (ui.Modal, "send/rendering.py", "to_dict"),
)
"""Names of classes: methods, constants and slots."""

IN_SOURCES: tuple[tuple[object, str, str], ...] = (
    (gateway.DiscordWebSocket.__init__, GATEWAY, "self._decompressor:"),
    (gateway.DiscordWebSocket.__init__, GATEWAY, "self._keep_alive:"),
    (gateway.DiscordWebSocket.__init__, GATEWAY, "self.session_id:"),
    (gateway.DiscordWebSocket.__init__, GATEWAY, "self.sequence:"),
    (gateway.DiscordWebSocket.poll_event, GATEWAY, "timeout=self._max_heartbeat_timeout"),
    (gateway.DiscordWebSocket.poll_event, GATEWAY, "await self.received_message("),
    (gateway.DiscordWebSocket.received_message, GATEWAY, "self.sequence = seq"),
    (gateway.DiscordWebSocket.received_message, GATEWAY, "self.gateway = "),
    (gateway.DiscordWebSocket.received_message, GATEWAY, "self._discord_parsers[event]"),
    (gateway.DiscordWebSocket.from_client, GATEWAY, "client.http.ws_connect("),
    (gateway.DiscordWebSocket.from_client, GATEWAY, "client._connection.parsers"),
    (gateway.KeepAliveHandler.__init__, GATEWAY, "daemon"),
    (gateway.ReconnectWebSocket.__init__, GATEWAY, "self.resume"),
    (discord.ConnectionClosed.__init__, GATEWAY, "self.code"),
    (http.HTTPClient.request, REST, "**kwargs) as response"),
    (http.HTTPClient.request, REST, "async with ratelimit:"),
    (http.HTTPClient.request, REST, "json_or_text(response)"),
    (http.json_or_text, REST, "response.text("),
    (http.handle_message_parameters, "send/rendering.py", "payload['enforce_nonce'] = True"),
)
"""What functions do with names that exist in objects only."""

PARAMETERS = {"client", "initial", "gateway", "shard_id", "session", "sequence", "resume", "compress"}


def _names() -> Iterator[tuple[str, bool, str]]:
    """Yield each private name, whether it is there, and the file that uses it."""
    for holder, file, names in OF_CLASSES:
        for name in names.split():
            yield f"{holder.__name__}.{name}", hasattr(holder, name), file
    for function, file, text in IN_SOURCES:
        source = inspect.getsource(function)  # type: ignore[arg-type]
        yield f"`{text}` in {getattr(function, '__qualname__', '')}", text in source, file
    for name in PARAMETERS:
        accepted = inspect.signature(gateway.DiscordWebSocket.from_client).parameters
        yield f"DiscordWebSocket.from_client({name})", name in accepted, GATEWAY
    yield from _names_of_objects()


def _names_of_objects() -> Iterator[tuple[str, bool, str]]:
    client = discord.Client(intents=discord.Intents.none())
    for name in ("http", "loop"):
        yield f"Client().{name}", name in vars(client), GATEWAY
    yield "Client()._connection.parsers", isinstance(client._connection.parsers, dict), GATEWAY
    for name in ("_HTTPClient__session", "_global_over", "_buckets", "token", "max_ratelimit_timeout"):
        yield f"HTTPClient().{name}", name in vars(client.http), REST
    kind = getattr(utils._ActiveDecompressionContext, "COMPRESSION_TYPE", "")
    yield "utils._ActiveDecompressionContext", kind in {"zlib-stream", "zstd-stream"}, GATEWAY


@pytest.mark.parametrize(("name", "is_there", "file"), sorted(_names()), ids=lambda value: str(value)[:60])
def test_a_private_name_is_still_there(name: str, is_there: bool, file: str) -> None:
    """An upgrade that removes or renames one fails here, with the file to change."""
    assert is_there, ADVICE.format(version=version("discord.py"), name=name, file=file)
