"""Measure text for Telegram."""

from __future__ import annotations

_REACTIONS = (
    "👍 👎 ❤ 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤\u200d🔥 🌚 🌭 💯 🤣 ⚡ 🍌 🏆 💔 "
    "🤨 😐 🍓 🍾 💋 🖕 😈 😴 😭 🤓 👻 👨\u200d💻 👀 🎃 🙈 😇 😨 🤝 ✍ 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 "
    "💊 🙊 😎 👾 🤷\u200d♂ 🤷 🤷\u200d♀ 😡"
)
REACTIONS = tuple(_REACTIONS.split())
"""The emoji that a bot can react with: ReactionTypeEmoji of the Bot API."""


def is_group(room: str) -> bool:
    """Return whether a chat is a group or a channel; private chats have positive ids."""
    return room.startswith("-")


def measure(text: str) -> int:
    """Return the length in UTF-16 units, as Telegram measures text."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
