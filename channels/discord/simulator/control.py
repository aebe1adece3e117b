"""Control the simulated Discord from another program: JSON over HTTP on the same loopback port.

`POST /_control/ACTION` calls a public action of the simulator with named arguments in a JSON object; the
response is `{"result": …}`. `GET /_control/{messages,calls,interactions,state,settings}` return its state.
Anyone who can reach the port can use it, so it listens on loopback only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aiohttp import web

from channels.discord.simulator.world import ApiFailure, Raw, SimulatedChannel, SimulatedInteraction

if TYPE_CHECKING:
    from channels.discord.simulator.simulator import Simulator

_USER_ACTIONS = ("say", "forward", "edit", "purge", "preview", "react", "command", "press", "set_endpoint")
_CHANNEL_ACTIONS = (
    "server_channel",
    "thread",
    "forum_post",
    "archive",
    "lock",
    "delete_thread",
    "kick",
    "readmit",
    "deny",
    "allow",
    "allow_server",
    "mute",
)
_FAULT_ACTIONS = (
    "push",
    "fail",
    "ban_after",
    "throttle",
    "limit",
    "cut",
    "answer_late",
    "drop",
    "reconnect",
    "invalidate",
    "revoke",
    "pass_time",
)
ACTIONS = (*_USER_ACTIONS, *_CHANNEL_ACTIONS, *_FAULT_ACTIONS)
VIEWS = ("messages", "calls", "interactions", "state", "settings")


class Control:
    """The HTTP routes below /_control."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._actions: dict[str, Callable[..., Awaitable[Any]]] = {
            **{name: getattr(simulator, name) for name in ACTIONS},
            "deny": self._deny,
            "forward": self._forward,
            "send_file": self._send_file,
            "submit": self._submit,
        }

    def add_to(self, application: web.Application) -> None:
        """Add the routes."""
        application.router.add_post("/_control/{act}", self._run_action)
        application.router.add_get("/_control/{view}", self._view)

    async def _run_action(self, request: web.Request) -> web.Response:
        act = self._actions.get(request.match_info["act"])
        if act is None:
            return web.json_response({"error": f"no such act; there are {sorted(self._actions)}"}, status=404)
        try:
            text = await request.text()
            result = await act(**json.loads(text or "{}"))
        except (TypeError, ValueError, KeyError, ApiFailure) as error:
            return web.json_response({"error": str(error)}, status=400)
        await self._simulator.world.notify_changed()
        return web.json_response({"result": _to_json(result)})

    async def _view(self, request: web.Request) -> web.Response:
        simulator, chat = self._simulator, request.query.get("chat")
        views: dict[str, Callable[[], Any]] = {
            "messages": lambda: [asdict(one) for one in simulator.messages(int(chat) if chat else None)],
            "calls": lambda: [list(call) for call in simulator.calls],
            "interactions": lambda: [_to_json(one) for one in simulator.world.interactions.values()],
            "state": simulator.state,
            "settings": lambda: {**simulator.settings(), "public_key": simulator.public_key},
        }
        view = views.get(request.match_info["view"])
        if view is None:
            return web.json_response({"error": f"no such view; there are {list(views)}"}, status=404)
        return web.json_response(view())

    async def _deny(self, chat: int, permissions: list[str]) -> None:
        await self._simulator.deny(chat, *permissions)

    async def _forward(self, chat: int, text: str, user: int = 7) -> str:
        return await self._simulator.forward(chat, text, user=user)

    async def _send_file(self, content_base64: str, **others: Any) -> str:
        return await self._simulator.send_file(content=base64.b64decode(content_base64), **others)

    async def _submit(self, interaction: str, words: str, user: int = 7) -> SimulatedInteraction:
        known = {one.id: one for one in self._simulator.world.interactions.values()}
        opened = known[interaction]
        return await self._simulator.submit(opened, words, user=user)


def _to_json(result: object) -> Any:
    if isinstance(result, SimulatedChannel):
        return result.raw
    return _interaction_json(result) if isinstance(result, SimulatedInteraction) else result


def _interaction_json(interaction: SimulatedInteraction) -> Raw:
    """Return an interaction as JSON without its token."""
    return {
        "id": interaction.id,
        "chat": int(interaction.channel.id),
        "reaction": interaction.response_type,
        "original": interaction.original,
        "modal": interaction.modal,
        "notices": interaction.notices,
    }
