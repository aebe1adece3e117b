"""The menu of commands that Telegram shows: set once, when it is not what it should be."""

from __future__ import annotations

import logging

from channels.errors import ChannelError
from channels.telegram.api import Api
from channels.telegram.commands import MENU

TIMEOUT_SECONDS = 5.0
COMMANDS = [{"command": name, "description": words} for name, words in MENU.items()]

log = logging.getLogger(__name__)


async def publish(api: Api) -> None:
    """Set the menu where it is another one; a failure is told in the log and hurts nobody."""
    try:
        if not await is_published(api):
            await api.call("setMyCommands", {"commands": COMMANDS}, timeout=TIMEOUT_SECONDS)
    except ChannelError as error:
        log.warning("telegram.command_menu_failed: %s", error)


async def is_published(api: Api) -> bool:
    """Say whether Telegram shows our menu; raises ChannelError."""
    shown = await api.call("getMyCommands", {}, timeout=TIMEOUT_SECONDS)
    return bool(shown == COMMANDS)
