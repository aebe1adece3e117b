"""Show a text to one user only."""

from __future__ import annotations

from channels.errors import Rejected, Unreachable
from channels.message import ButtonPress, Command, Message
from channels.slack.api import Api
from channels.slack.send import rendering


async def show_to(api: Api, to: ButtonPress | Message | Command, text: str) -> None:
    """Show a text to the author, by the interaction's response_url while it is valid; raises ChannelError."""
    notice = rendering.escape(text)[: rendering.TEXT_LIMIT]
    url = "" if isinstance(to, Message) else to.token
    if "://" in url and await _respond(api, url, notice):
        return
    parameters = {**rendering.target(to.address), "user": to.author.id, "text": notice}
    await api.call("chat.postEphemeral", parameters)


async def _respond(api: Api, url: str, text: str) -> bool:
    """Post to a response_url; False if it is not Slack's or has expired."""
    try:
        return await api.respond(url, {"response_type": "ephemeral", "replace_original": False, "text": text})
    except (Rejected, Unreachable):
        return False
