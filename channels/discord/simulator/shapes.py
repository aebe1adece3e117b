"""Build objects as Discord's documentation describes them, complete enough for a client library."""

from __future__ import annotations

from typing import Any

Raw = dict[str, Any]

LONG_AGO = "2024-01-01T00:00:00+00:00"

PERMISSIONS = {
    "Add Reactions": 1 << 6,
    "View Channels": 1 << 10,
    "Send Messages": 1 << 11,
    "Attach Files": 1 << 15,
    "Read Message History": 1 << 16,
    "Send Messages in Threads": 1 << 38,
}
"""The permissions that can be denied, with the documentation's bits."""

ALL = sum(PERMISSIONS.values()) | (1 << 14) | (1 << 31)


def user(number: int | str, name: str, *, shown: str | None = None, bot: bool = False) -> Raw:
    """Return a user object."""
    return {
        "id": str(number),
        "username": name,
        "global_name": shown,
        "discriminator": "0",
        "avatar": None,
        "bot": bot,
        "public_flags": 0,
    }


def member(who: Raw | None = None) -> Raw:
    """Return a member object; one in a message has no user."""
    shape: Raw = {
        "nick": None,
        "avatar": None,
        "roles": [],
        "joined_at": LONG_AGO,
        "deaf": False,
        "mute": False,
        "flags": 0,
        "pending": False,
    }
    return shape if who is None else {**shape, "user": who, "permissions": str(ALL)}


def own_role_of(guild: str) -> str:
    """Return the id of the role that Discord creates for the bot in a server."""
    return f"{guild}01"


def guild(number: str, name: str, bot: Raw, channels: list[Raw], threads: list[Raw]) -> Raw:
    """Return a server object as the GUILD_CREATE event has it."""
    everyone = {
        "id": number,
        "name": "@everyone",
        "permissions": str(ALL),
        "position": 0,
        "color": 0,
        "hoist": False,
        "managed": False,
        "mentionable": False,
        "flags": 0,
    }
    tags = {"bot_id": bot["id"]}
    own = {**everyone, "id": own_role_of(number), "name": bot["username"], "managed": True, "tags": tags}
    return {
        "id": number,
        "name": name,
        "icon": None,
        "owner_id": "1",
        "roles": [everyone, own],
        "emojis": [],
        "features": [],
        "verification_level": 0,
        "default_message_notifications": 0,
        "explicit_content_filter": 0,
        "mfa_level": 0,
        "nsfw_level": 0,
        "premium_tier": 0,
        "preferred_locale": "en-US",
        "system_channel_flags": 0,
        "joined_at": LONG_AGO,
        "large": False,
        "unavailable": False,
        "member_count": 2,
        "members": [member(bot)],
        "channels": channels,
        "threads": threads,
        "presences": [],
        "voice_states": [],
        "stage_instances": [],
        "guild_scheduled_events": [],
        "soundboard_sounds": [],
    }


def command(number: str, application: str, fields: Raw) -> Raw:
    """Return a registered command."""
    return {
        "id": number,
        "application_id": application,
        "version": number,
        "type": 1,
        "default_member_permissions": None,
        "dm_permission": True,
        "nsfw": False,
        **{key: value for key, value in fields.items() if key not in {"id", "application_id", "version"}},
    }


def application(number: str, bot: Raw, *, key: str, endpoint: str | None, flags: int) -> Raw:
    """Return the bot's application."""
    return {
        "id": number,
        "name": bot["username"],
        "icon": None,
        "description": "",
        "rpc_origins": [],
        "bot_public": True,
        "bot_require_code_grant": False,
        "owner": user(1, "owner"),
        "team": None,
        "verify_key": key,
        "flags": flags,
        "interactions_endpoint_url": endpoint,
        "approximate_guild_count": 1,
    }
