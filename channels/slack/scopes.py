"""The bot scopes of the app."""

from __future__ import annotations

from collections.abc import Mapping

SCOPES: Mapping[str, str] = {
    "app_mentions:read": "to receive mentions",
    "channels:history": "to receive messages of public channels and find its own",
    "chat:write": "to send messages and to show that it is working",
    "commands": "for /dovecote",
    "files:read": "to download attachments",
    "files:write": "to send files",
    "groups:history": "to receive messages of private channels it was invited to",
    "im:history": "to receive private messages",
    "mpim:history": "to receive messages of private groups",
    "reactions:read": "to receive reactions",
    "reactions:write": "to show by a reaction that it saw a message",
}
"""The scopes of the app's manifest, and what each is for."""
