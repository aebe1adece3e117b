"""The calls by which a bot answers interactions, with the token of each."""

from __future__ import annotations

from channels.discord.simulator import shapes
from channels.discord.simulator.rest import Body, Rest
from channels.discord.simulator.world import EPHEMERAL, LOADING, Failure, Interaction, Raw, World, invalid

SAY, DEFER_MESSAGE, DEFER_UPDATE, UPDATE, CHOICES, MODAL = 4, 5, 6, 7, 8, 9
"""Kinds of first reaction, by the documentation's numbers."""

TITLE_LIMIT, FIELD_LIMIT = 45, 5


class Hooks:
    """Carries out what is asked for with an interaction's token."""

    def __init__(self, world: World, rest: Rest) -> None:
        self._world = world
        self._rest = rest

    async def callback(self, number: str, token: str, body: Body, *, detailed: bool) -> Raw | None:
        """Take the first reaction to an interaction."""
        asked = self._world.interactions.get(token)
        if asked is None or asked.id != number:
            raise Failure(404, 10062, "Unknown interaction")
        if asked.reaction is not None:
            raise Failure(400, 40060, "Interaction has already been acknowledged.")
        self.react(asked, body.fields)
        if asked.original is not None:
            await self._rest.tell("MESSAGE_CREATE", asked.channel, asked.original)
        return self._described(asked) if detailed else None

    def _described(self, asked: Interaction) -> Raw:
        """Return what the first reaction made."""
        made: Raw = {"interaction": {"id": asked.id, "type": 2}}
        if asked.original is not None:
            loading = bool(asked.original["flags"] & LOADING)
            named = {"response_message_id": asked.original["id"], "response_message_loading": loading}
            made["interaction"] |= {**named, "response_message_ephemeral": False}
            made["resource"] = {"type": asked.reaction, "message": asked.original}
        return made

    def react(self, asked: Interaction, reaction: Raw) -> None:
        """Carry out the first reaction, however it came."""
        kind, content = int(reaction["type"]), reaction.get("data") or {}
        if kind == MODAL:
            asked.modal = _checked(content)
        asked.reaction = kind
        origin = {"interaction_metadata": self._origin(asked)}
        if kind == DEFER_MESSAGE:
            asked.original = self._world.post(asked.channel, self._world.bot, "", flags=LOADING, **origin)
        if kind == SAY:
            self._rest.check(Body(content))
            if int(content.get("flags") or 0) & EPHEMERAL:
                asked.notices.append(str(content["content"]))
            else:
                asked.original = self._rest.post(asked.channel, Body(content), **origin)

    def _origin(self, asked: Interaction) -> Raw:
        who = asked.person or shapes.user(7, "person7")
        return {"id": asked.id, "type": 2, "user": who, "authorizing_integration_owners": {}}

    async def follow_up(self, application: str, token: str, body: Body) -> Raw:
        """Say something more to whoever interacted; right after a deferral it takes that place."""
        asked = self._asked(application, token)
        if asked.original is not None and asked.original["flags"] & LOADING:
            return await self._rest.change(asked.channel, asked.original, body)
        self._rest.check(body)
        flags = int(body.fields.get("flags") or 0) & EPHEMERAL
        message = self._rest.post(asked.channel, body, flags=flags)
        if flags:
            asked.notices.append(str(body.fields["content"]))
            asked.channel.messages.remove(message)
        else:
            await self._rest.tell("MESSAGE_CREATE", asked.channel, message)
        return message

    async def fill(self, application: str, token: str, body: Body) -> Raw:
        """Change the first reaction's message."""
        asked = self._asked(application, token)
        if asked.original is None or asked.original not in asked.channel.messages:
            raise Failure(404, 10008, "Unknown Message")
        return await self._rest.change(asked.channel, asked.original, body)

    async def remove(self, application: str, token: str) -> None:
        """Take the first reaction's message away."""
        message = self.original(application, token)
        await self._rest.delete(message["channel_id"], message["id"])

    def original(self, application: str, token: str) -> Raw:
        """Return the first reaction's message."""
        asked = self._asked(application, token)
        if asked.original is None:
            raise Failure(404, 10008, "Unknown Message")
        return asked.original

    def _asked(self, application: str, token: str) -> Interaction:
        asked = self._world.interactions.get(token)
        if asked is None or application != self._world.application or asked.reaction is None:
            raise Failure(404, 10015, "Unknown Webhook")
        return asked


def _checked(modal: Raw) -> Raw:
    """Refuse a form without title, name or fields."""
    title, named, rows = modal.get("title"), modal.get("custom_id"), modal.get("components")
    fields = [one for row in rows or [] for one in row.get("components", [row.get("component")])]
    labelled = all(
        one and one.get("custom_id") and 0 < len(one.get("label", "")) <= TITLE_LIMIT for one in fields
    )
    if not (title and len(title) <= TITLE_LIMIT and named and len(named) <= 100):  # noqa: PLR2004
        raise invalid("title", "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 45 in length.")
    if not (0 < len(fields) <= FIELD_LIMIT and labelled):
        raise invalid("components", "BASE_TYPE_BAD_LENGTH", "Between 1 and 5 labelled fields are wanted.")
    return modal
