"""The bot's commands at Discord, as slash commands and as text after a mention; pure.

Text after a mention is a command only in a command's exact form: `@bot stop` is one, `@bot stop using tabs`
is a message for the agent. After a slash, all following text belongs to the command.
"""

from __future__ import annotations

import re
from typing import Any

import discord
from discord import app_commands

from channels.inbox.commands import DESCRIPTIONS, WITH_ARGUMENTS

RETIRED_COMMANDS = frozenset({"dovecote"})
"""Slash commands that an earlier version registered."""

ASK_COMMAND = "ask"
"""The slash command whose text is a message for the agent."""

CONTEXTS = [0, 1]
"""Where commands are offered: in servers and in private conversations with the bot, in none of others."""

_SLASH_PATTERN = re.compile(r"/(?P<name>[a-z]{1,32})(?:\s+(?P<rest>.*))?", re.DOTALL | re.IGNORECASE)
_WORDS_PATTERN = re.compile(
    r"(?:(?P<name>new|stop|retry|status|help|jobs|approve|deny|queue)[.!?]?"
    r"|(?P<jobs>jobs)\s+(?P<which>(?:logs|stop)\s+\S+)"
    r"|(?P<decision>approve|deny|answer)\s+(?P<what>apr_\S+(?:\s.*)?)"
    r"|(?P<queue>queue)\s+(?P<mode>followup|collect|steer|interrupt))",
    re.DOTALL | re.IGNORECASE,
)


def parse_slash(text: str) -> tuple[str, str] | None:
    """Return the name and arguments of a command with a slash; None for any other text."""
    found = _SLASH_PATTERN.fullmatch(text)
    name = found["name"].lower() if found else ""
    known = name in DESCRIPTIONS or name == "start"
    return (name, (found["rest"] or "").strip()) if found and known else None


def parse_words(text: str) -> tuple[str, str] | None:
    """Return the name and arguments of a command without a slash, as after a mention."""
    found = _WORDS_PATTERN.fullmatch(text)
    if found is None:
        return None
    name = found["name"] or found["jobs"] or found["decision"] or found["queue"]
    rest = found["which"] or found["what"] or found["mode"] or ""
    return name.lower(), rest.strip()


async def _plain(interaction: discord.Interaction) -> None:
    """Describe a command without arguments."""


@app_commands.describe(words="The command's arguments")
async def _with_arguments(interaction: discord.Interaction, words: str | None = None) -> None:
    """Describe a command with optional arguments."""


@app_commands.describe(question="Your question or task")
async def _ask(interaction: discord.Interaction, question: str) -> None:
    """Describe the command that asks the bot."""


def definitions() -> tuple[dict[str, Any], ...]:
    """Return the bot's slash commands in the form Discord registers.

    discord.py derives the options from the parameters of functions, which are never called: commands arrive
    as updates.
    """
    discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False  # voice is not used
    tree = app_commands.CommandTree(discord.Client(intents=discord.Intents(guilds=True)))
    tree.add_command(app_commands.Command(name=ASK_COMMAND, description="Ask the bot", callback=_ask))
    for name, does in DESCRIPTIONS.items():
        described = _with_arguments if name in WITH_ARGUMENTS else _plain
        tree.add_command(app_commands.Command(name=name, description=does, callback=described))
    return tuple({**command.to_dict(tree), "contexts": CONTEXTS} for command in tree.get_commands())


def merge_commands(registered: object) -> list[dict[str, Any]] | None:
    """Return the complete list of commands to register; None if nothing changes.

    Commands that other programs registered for the same bot are kept.
    """
    existing = {one["name"]: one for one in _commands_in(registered)}
    ours = {one["name"]: one for one in definitions()}
    if (
        all(name in existing and _is_same_command(one, existing[name]) for name, one in ours.items())
        and not existing.keys() & RETIRED_COMMANDS
    ):
        return None
    return [
        *ours.values(),
        *(one for name, one in existing.items() if name not in {*ours, *RETIRED_COMMANDS}),
    ]


def _commands_in(registered: object) -> list[dict[str, Any]]:
    found = registered if isinstance(registered, list) else []
    return [one for one in found if isinstance(one, dict) and isinstance(one.get("name"), str)]


def _is_same_command(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Return whether definitions are equal; Discord omits empty fields and adds ids."""
    options = theirs.get("options")
    given = [one for one in options if isinstance(one, dict)] if isinstance(options, list) else []
    expected = ours["options"]
    return (
        theirs.get("type", 1) == ours["type"]
        and theirs.get("description") == ours["description"]
        and theirs.get("contexts") == ours["contexts"]
        and len(given) == len(expected)
        and all(_is_same_option(*pair) for pair in zip(expected, given, strict=True))
    )


def _is_same_option(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    named = all(ours[key] == theirs.get(key) for key in ("type", "name", "description"))
    return named and bool(ours.get("required")) == bool(theirs.get("required"))
