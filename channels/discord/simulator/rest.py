"""The simulated REST API, call by call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import BodyPartReader, web

from channels.discord.simulator.sessions import Sessions
from channels.discord.simulator.world import (
    EPHEMERAL,
    LOADING,
    Channel,
    Failure,
    Interaction,
    Raw,
    World,
    invalid,
)

TEXT_LIMIT = 2000
NONCE_LIMIT = 25
FILE_LIMIT = 10 * 1024 * 1024


@dataclass(slots=True)
class Body:
    """What a request brought."""

    fields: Raw = field(default_factory=dict)
    files: dict[str, tuple[str, str, bytes]] = field(default_factory=dict)


async def body_of(request: web.Request) -> Body:
    """Read JSON, or a form with `payload_json` and files."""
    if not request.content_type.startswith("multipart/"):
        text = await request.text()
        return Body(json.loads(text) if text else {})
    body = Body()
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader):
            continue
        if part.name == "payload_json":
            body.fields = json.loads(await part.text())
        else:
            kind = part.headers.get("Content-Type", "application/octet-stream")
            body.files[part.name or ""] = (part.filename or "file", kind, bytes(await part.read()))
    return body


class Rest:
    """Carries out what the bot asks for."""

    def __init__(self, world: World, sessions: Sessions) -> None:
        self._world = world
        self._sessions = sessions
        self.url = ""
        self.endpoint: str | None = None

    def me(self) -> Raw:
        """Return the bot."""
        return self._world.bot

    def application(self) -> Raw:
        """Return the bot's application."""
        return {
            "id": self._world.application,
            "flags": 1 << 19,
            "interactions_endpoint_url": self.endpoint,
        }

    def command(self, body: Body) -> Raw:
        """Register a command; one of the same name is replaced."""
        made = {"id": self._world.snowflake(), **body.fields}
        self._world.commands[body.fields["name"]] = made
        return made

    def history(self, channel: str, query: Mapping[str, str]) -> list[Raw]:
        """Return messages after one, the newest first; those next after it when there are too many."""
        after, limit = int(query.get("after", "0")), int(query.get("limit", "50"))
        found = [one for one in self._world.found(channel).messages if int(one["id"]) > after]
        return list(reversed(found[:limit] if "after" in query else found[-limit:]))

    def one(self, channel: str, number: str) -> Raw:
        """Return one message."""
        return self._world.message(self._world.found(channel), number)

    async def create(self, channel: str, body: Body) -> Raw:
        """Send a message; the same nonce again gives the same message, when that is asked for."""
        place = self._world.found(channel, writes=True)
        nonce = body.fields.get("nonce")
        self._check(body)
        enforced = nonce if body.fields.get("enforce_nonce") is True else None
        known = self._world.known(place, enforced)
        if known is not None:
            return known
        message = self._post(place, body)
        self._world.remember(place, nonce, message)
        await self._tell("MESSAGE_CREATE", place, {**message, "nonce": nonce})
        return message

    def _check(self, body: Body) -> None:
        content, nonce = str(body.fields.get("content") or ""), body.fields.get("nonce")
        if len(content) > TEXT_LIMIT:
            raise invalid("content", "BASE_TYPE_MAX_LENGTH", "Must be 2000 or fewer in length.")
        if not content.strip() and not body.files:
            raise Failure(400, 50006, "Cannot send an empty message")
        if nonce is not None and len(str(nonce)) > NONCE_LIMIT:
            raise invalid("nonce", "BASE_TYPE_MAX_LENGTH", "Must be 25 or fewer in length.")
        if any(len(file[2]) > FILE_LIMIT for file in body.files.values()):
            raise Failure(413, 40005, "Request entity too large")

    def _post(self, place: Channel, body: Body, **others: Any) -> Raw:
        attachments = [self.attach(place, *file) for file in body.files.values()]
        return self._world.post(
            place,
            self._world.bot,
            str(body.fields.get("content") or "").strip(),
            components=body.fields.get("components") or [],
            attachments=attachments,
            allowed_mentions=body.fields.get("allowed_mentions"),
            **others,
        )

    def attach(self, place: Channel, name: str, kind: str, content: bytes) -> Raw:
        """Keep a file; returns its attachment object."""
        number = self._world.snowflake()
        where = f"attachments/{place.id}/{number}/{name}"
        self._world.files[where] = content
        return {
            "id": number,
            "filename": name,
            "content_type": kind,
            "size": len(content),
            "url": f"{self.url}/cdn/{where}?ex=1&is=1&hm=1",
        }

    async def edit(self, channel: str, number: str, body: Body) -> Raw:
        """Change one of the bot's messages."""
        place = self._world.found(channel)
        message = self._world.message(place, number)
        if message["author"]["id"] != self._world.bot["id"]:
            raise Failure(403, 50005, "Cannot edit a message authored by another user")
        return await self._change(place, message, body)

    async def _change(self, place: Channel, message: Raw, body: Body) -> Raw:
        self._check(Body({"content": message["content"], **body.fields}, body.files))
        if not message["flags"] & LOADING:
            self._world.histories[message["id"]].append(message["content"])
        message["flags"] &= ~LOADING
        message.update({key: body.fields[key] for key in ("content", "components") if key in body.fields})
        message["edited_timestamp"] = datetime.now(UTC).isoformat()
        await self._tell("MESSAGE_UPDATE", place, message)
        return message

    def typing(self, channel: str) -> None:
        """Show that the bot types."""
        self._world.typed.append(self._world.found(channel, writes=True).id)

    async def callback(self, number: str, token: str, body: Body) -> None:
        """Take the first reaction to an interaction."""
        asked = self._world.interactions.get(token)
        if asked is None or asked.id != number:
            raise Failure(404, 10062, "Unknown interaction")
        if asked.reaction is not None:
            raise Failure(400, 40060, "Interaction has already been acknowledged.")
        self.react(asked, body.fields)
        if asked.original is not None:
            await self._tell("MESSAGE_CREATE", asked.channel, asked.original)

    def react(self, asked: Interaction, reaction: Raw) -> None:
        """Carry out the first reaction, however it came."""
        asked.reaction = int(reaction["type"])
        if asked.reaction == 5:  # noqa: PLR2004 - the documentation's number
            asked.original = self._world.post(asked.channel, self._world.bot, "", flags=LOADING)
        if asked.reaction == 4:  # noqa: PLR2004 - the documentation's number
            asked.notices.append(str(reaction["data"]["content"]))

    async def follow_up(self, application: str, token: str, body: Body) -> Raw:
        """Say something more to whoever interacted; right after a deferral it takes that place."""
        asked = self._asked(application, token)
        if asked.original is not None and asked.original["flags"] & LOADING:
            return await self._change(asked.channel, asked.original, body)
        self._check(body)
        flags = int(body.fields.get("flags") or 0)
        if flags & EPHEMERAL:
            asked.notices.append(str(body.fields["content"]))
        message = self._post(asked.channel, body, flags=flags & EPHEMERAL)
        if not flags & EPHEMERAL:
            await self._tell("MESSAGE_CREATE", asked.channel, message)
        else:
            asked.channel.messages.remove(message)
        return message

    async def fill(self, application: str, token: str, body: Body) -> Raw:
        """Change the first reaction's message."""
        asked = self._asked(application, token)
        if asked.original is None:
            raise Failure(404, 10008, "Unknown Message")
        return await self._change(asked.channel, asked.original, body)

    def _asked(self, application: str, token: str) -> Interaction:
        asked = self._world.interactions.get(token)
        if asked is None or application != self._world.application or asked.reaction is None:
            raise Failure(404, 10015, "Unknown Webhook")
        return asked

    async def _tell(self, name: str, place: Channel, message: Raw) -> None:
        shown = {**message, "guild_id": place.guild} if place.guild else message
        await self._sessions.tell(name, shown, private=place.guild is None)
