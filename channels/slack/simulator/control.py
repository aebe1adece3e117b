"""Control the simulated Slack from other programs: JSON over HTTP, on loopback only.

GET  /_control/state            the visible state: messages, notices, modals, statuses, refused rates
GET  /_control/calls?after=N    the Web API calls from the Nth on
POST /_control/<action>         call an action with a JSON object of arguments; returns {"result": …}

User actions: say, edit, delete, unfurl, react, press, submit, slash, open_agent, change_context and send_file
(its content in base64). Faults: kick, unarchive, invite, change_id, fail, cut, answer_late, grant, advance;
room {room, kind?}; request_url {url}; rates {method: {burst, a_second, in_room?} or null};
warn, refresh {reason?} and cut_sockets {times} of Socket Mode.
Arguments are those of the methods of `Simulator`; a wrong one is answered 400 with the reason.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from channels.slack.simulator.api.rate_limits import Rate
from channels.slack.simulator.world import Post, Raw

if TYPE_CHECKING:
    from channels.slack.simulator.simulator import Simulator

ControlAction = Callable[..., Awaitable[Any]]


class Control:
    """The control interface of one simulator."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        one = simulator
        acts: list[ControlAction] = [
            one.say,
            one.edit,
            one.delete,
            one.unfurl,
            one.react,
            one.press,
            one.submit,
            one.slash,
        ]
        acts += [
            one.open_agent,
            one.change_context,
            one.kick,
            one.unarchive,
            one.invite,
            one.change_id,
            one.fail,
            one.cut,
            one.grant,
            one.advance,
            one.answer_late,
            one.hide_metadata,
        ]
        acts += [self.send_file, self.room, self.request_url, self.rates]
        self._actions: dict[str, ControlAction] = {act.__name__: act for act in acts}
        self._actions |= {"warn": one.sockets.warn, "refresh": one.sockets.refresh}
        self._actions["cut_sockets"] = one.sockets.cut

    def add_to(self, application: web.Application) -> None:
        """Add the routes."""
        application.router.add_get("/_control/state", self._get_state)
        application.router.add_get("/_control/calls", self._get_calls)
        application.router.add_post("/_control/{act}", self._run_action)

    async def send_file(self, room: str, content: str, **others: str) -> str:
        """Send a file as a user; its content is base64."""
        return await self._simulator.send_file(room, base64.b64decode(content), **others)

    async def room(self, room: str, kind: str | None = None) -> str:
        """Create a room: `channel`, `group`, `im` or `mpim`."""
        made = self._simulator.world.room(room)
        made.kind = kind or made.kind
        return made.id

    async def request_url(self, url: str) -> None:
        """Post events to a URL, or use Socket Mode if it is empty."""
        self._simulator.request_url = url

    async def rates(self, **rates: Raw | None) -> None:
        """Set the methods' rate limits; null means no limit."""
        for method, rate in rates.items():
            if rate is None:
                self._simulator.rate_limits.rates.pop(method, None)
            else:
                self._simulator.rate_limits.rates[method] = Rate(**rate)

    async def _run_action(self, request: web.Request) -> web.Response:
        act = self._actions.get(request.match_info["act"])
        if act is None:
            return web.json_response({"error": "unknown act", "acts": sorted(self._actions)}, status=404)
        try:
            given = json.loads(await request.text() or "{}")
            result = await act(**given)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            return web.json_response({"error": repr(error)}, status=400)
        await self._simulator.world.notify_changed()
        return web.json_response({"result": result})

    async def _get_state(self, _: web.Request) -> web.Response:
        world, simulator = self._simulator.world, self._simulator
        return web.json_response(
            {
                "messages": [_message_json(post) for post in world.posts],
                "notices": world.notices,
                "modals": [modal.raw for modal in simulator.open_modals()],
                "statuses": [
                    {"room": post.room, "thread": post.ts, "status": status}
                    for post in world.posts
                    if (status := world.status(post.room, post.ts))
                ],
                "posts": simulator.statuses,
                "sockets": len(simulator.sockets.open),
                "unacknowledged": len(simulator.sockets.waiting),
                "refused": simulator.rate_limits.refused,
            }
        )

    async def _get_calls(self, request: web.Request) -> web.Response:
        after = int(request.query.get("after", "0")) if request.query.get("after", "0").isdecimal() else 0
        calls = [{"method": method, "arguments": given} for method, given in self._simulator.calls[after:]]
        return web.json_response({"calls": calls, "next": len(self._simulator.calls)}, dumps=_dump_json)


def _message_json(post: Post) -> Raw:
    return {
        "room": post.room,
        "ts": post.ts,
        "thread": post.thread,
        "user": post.user,
        "text": post.text,
        "earlier": post.history,
        "is_streaming": post.streaming is not None,
        "reactions": post.reactions,
        "buttons": [{"label": one["text"]["text"], "value": one.get("value")} for one in post.buttons],
        "files": post.raw.get("files", []),
        "metadata": post.raw.get("metadata"),
    }


def _dump_json(value: Any) -> str:
    return json.dumps(value, default=str)
