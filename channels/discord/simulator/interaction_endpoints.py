"""The REST calls by which a bot answers interactions, authorised by an interaction's token."""

from __future__ import annotations

from channels.discord.simulator import shapes
from channels.discord.simulator.rest import RequestBody, RestApi
from channels.discord.simulator.world import (
    EPHEMERAL,
    LOADING,
    ApiFailure,
    Raw,
    SimulatedInteraction,
    World,
    invalid,
)

CHANNEL_MESSAGE, DEFER_MESSAGE, DEFER_UPDATE, UPDATE, CHOICES, MODAL = 4, 5, 6, 7, 8, 9
"""Types of interaction responses, by the documentation's numbers."""

TITLE_LIMIT, FIELD_LIMIT = 45, 5
RESPONSE_SECONDS, TOKEN_SECONDS = 3.0, 900.0
"""How long an initial response is accepted, and a token. Only time that was passed on purpose counts."""


class InteractionEndpoints:
    """Carries out the calls that use an interaction's token."""

    def __init__(self, world: World, rest: RestApi) -> None:
        self._world = world
        self._rest = rest

    async def callback(self, number: str, token: str, body: RequestBody, *, detailed: bool) -> Raw | None:
        """Accept the initial response to an interaction."""
        asked = self._world.interactions.get(token)
        is_missed = (
            asked is not None and asked.response_type is None and self._is_older(asked, RESPONSE_SECONDS)
        )
        if asked is None or asked.id != number or is_missed:
            raise ApiFailure(404, 10062, "Unknown interaction")
        if asked.response_type is not None:
            raise ApiFailure(400, 40060, "Interaction has already been acknowledged.")
        self.apply_response(asked, body.fields)
        if asked.original is not None:
            await self._rest.emit_message("MESSAGE_CREATE", asked.channel, asked.original)
        return self._callback_response(asked) if detailed else None

    def _callback_response(self, interaction: SimulatedInteraction) -> Raw:
        """Return the resource that the initial response created."""
        made: Raw = {"interaction": {"id": interaction.id, "type": 2}}
        if interaction.original is not None:
            loading = bool(interaction.original["flags"] & LOADING)
            named = {"response_message_id": interaction.original["id"], "response_message_loading": loading}
            made["interaction"] |= {**named, "response_message_ephemeral": False}
            made["resource"] = {"type": interaction.response_type, "message": interaction.original}
        return made

    def apply_response(self, interaction: SimulatedInteraction, response: Raw) -> None:
        """Carry out an initial response, by callback or HTTP response."""
        kind, content = int(response["type"]), response.get("data") or {}
        if kind == MODAL:
            interaction.modal = _check_modal(content)
        interaction.response_type = kind
        origin = {"interaction_metadata": self._origin(interaction)}
        if kind == DEFER_MESSAGE:
            interaction.original = self._world.post(
                interaction.channel, self._world.bot, "", flags=LOADING, **origin
            )
        if kind == CHANNEL_MESSAGE:
            self._rest.check(RequestBody(content))
            if int(content.get("flags") or 0) & EPHEMERAL:
                interaction.notices.append(str(content["content"]))
            else:
                interaction.original = self._rest.post(interaction.channel, RequestBody(content), **origin)

    def _origin(self, interaction: SimulatedInteraction) -> Raw:
        who = interaction.person or shapes.user(7, "person7")
        return {"id": interaction.id, "type": 2, "user": who, "authorizing_integration_owners": {}}

    async def follow_up(self, application: str, token: str, body: RequestBody) -> Raw:
        """Send a follow-up message; right after a deferral it fills the deferred reply."""
        asked = self._get_interaction(application, token)
        if asked.original is not None and asked.original["flags"] & LOADING:
            return await self._rest.update_message(asked.channel, asked.original, body)
        self._rest.check(body)
        flags = int(body.fields.get("flags") or 0) & EPHEMERAL
        message = self._rest.post(asked.channel, body, flags=flags)
        if flags:
            asked.notices.append(str(body.fields["content"]))
            asked.channel.messages.remove(message)
        else:
            await self._rest.emit_message("MESSAGE_CREATE", asked.channel, message)
        return message

    async def edit_original(self, application: str, token: str, body: RequestBody) -> Raw:
        """Edit the message of the initial response."""
        asked = self._get_interaction(application, token)
        if asked.original is None or asked.original not in asked.channel.messages:
            raise ApiFailure(404, 10008, "Unknown Message")
        return await self._rest.update_message(asked.channel, asked.original, body)

    async def delete_original(self, application: str, token: str) -> None:
        """Delete the message of the initial response."""
        message = self.get_original(application, token)
        await self._rest.delete(message["channel_id"], message["id"])

    def get_original(self, application: str, token: str) -> Raw:
        """Return the message of the initial response."""
        asked = self._get_interaction(application, token)
        if asked.original is None:
            raise ApiFailure(404, 10008, "Unknown Message")
        return asked.original

    def _get_interaction(self, application: str, token: str) -> SimulatedInteraction:
        asked = self._world.interactions.get(token)
        if asked is None or application != self._world.application or asked.response_type is None:
            raise ApiFailure(404, 10015, "Unknown Webhook")
        if self._is_older(asked, TOKEN_SECONDS):
            raise ApiFailure(401, 50027, "Invalid Webhook Token")
        return asked

    def _is_older(self, interaction: SimulatedInteraction, seconds: float) -> bool:
        return self._world.offset_seconds - interaction.made_at >= seconds


def _check_modal(modal: Raw) -> Raw:
    """Raise ApiFailure for a modal without title, id or fields."""
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
