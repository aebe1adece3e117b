"""Methods of the simulated Slack for reactions, modals and a thread's status."""

from __future__ import annotations

import re
from collections.abc import Callable

from channels.slack.simulator.api.structure import check_modal, parse_json
from channels.slack.simulator.failure import ApiFailure
from channels.slack.simulator.world import APP, BOT_USER, Modal, Post, Raw, World

_EMOJI = re.compile(r"[a-z0-9_+'-]{1,100}(::skin-tone-[2-6])?")


class InteractivityMethods:
    """reactions.*, views.open and assistant.threads.setStatus."""

    def __init__(self, world: World, get_room: Callable[[Raw], str]) -> None:
        self._world = world
        self._get_room = get_room

    def methods(self) -> dict[str, Callable[[Raw], Raw]]:
        """Return the methods by name."""
        return {
            "reactions.add": self._add,
            "reactions.remove": self._remove,
            "reactions.get": self._reactions,
            "views.open": self._open_view,
            "assistant.threads.setStatus": self._set_status,
        }

    def _get_post(self, given: Raw) -> Post:
        post = self._world.get_post(self._get_room(given), str(given.get("timestamp")))
        if post is None:
            raise ApiFailure("message_not_found")
        return post

    def _add(self, given: Raw) -> Raw:
        post, name = self._get_post(given), str(given.get("name"))
        if not _EMOJI.fullmatch(name):
            raise ApiFailure("invalid_name")
        who = post.reactions.setdefault(name, [])
        if BOT_USER in who:
            raise ApiFailure("already_reacted")
        who.append(BOT_USER)
        return {}

    def _remove(self, given: Raw) -> Raw:
        post, name = self._get_post(given), str(given.get("name"))
        if BOT_USER not in post.reactions.get(name, []):
            raise ApiFailure("no_reaction")
        post.reactions[name].remove(BOT_USER)
        if not post.reactions[name]:
            del post.reactions[name]
        return {}

    def _reactions(self, given: Raw) -> Raw:
        post = self._get_post(given)
        reactions = [
            {"name": name, "users": list(who), "count": len(who)} for name, who in post.reactions.items()
        ]
        return {"type": "message", "channel": post.room, "message": {**post.raw, "reactions": reactions}}

    def _open_view(self, given: Raw) -> Raw:
        user = self._consume_trigger(str(given.get("trigger_id")))
        view = check_modal(parse_json(given.get("view")))
        modal = Modal(f"V{next(self._world.numbers):08d}", user, {})
        state = {"state": {"values": {}}, "hash": f"{self._world.next_ts()}.x"}
        owner = {"team_id": self._world.caller, "app_installed_team_id": self._world.caller}
        modal.raw = {**view, "id": modal.id, "app_id": APP, **owner, **state}
        self._world.modals.append(modal)
        return {"view": modal.raw}

    def _consume_trigger(self, trigger: str) -> str:
        """Return the user of a trigger, which can be used once within three seconds."""
        user, until = self._world.triggers.get(trigger, ("", 0.0))
        if trigger not in self._world.triggers:
            raise ApiFailure("invalid_trigger_id")
        if not user:
            raise ApiFailure("exchanged_trigger_id")
        if self._world.clock.now() > until:
            raise ApiFailure("expired_trigger_id")
        self._world.triggers[trigger] = ("", until)
        return user

    def _set_status(self, given: Raw) -> Raw:
        room, thread = self._get_room({"channel": given.get("channel_id")}), str(given.get("thread_ts"))
        if self._world.get_post(room, thread) is None:
            raise ApiFailure("invalid_thread_ts")
        self._world.set_status(room, thread, str(given.get("status") or ""))
        return {}
