"""Drive a simulated GitHub: what people write, and what goes wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from aiohttp import web

from channels.github.simulator import events
from channels.github.simulator.rest import GitHubApi, private_key
from channels.github.simulator.world import ADA, APP_ID, BOT, INSTALLATION, ROOM, Entry, World, body_text, now
from channels.inbox.simulator import SimulatedMessage, SimulatedPlatform


class Simulator(SimulatedPlatform):
    """A GitHub with one app and one repository, in which a person writes."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.api = GitHubApi(self.world)
        self.secret = "simulated-webhook-secret"  # noqa: S105 - of a simulated app
        self._numbers = count(9001)

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return settings of the app, open to everybody; without a URL for posts it polls."""
        base = {"app_id": str(APP_ID), "private_key": self.api.key, "base_url": self.url, "allow": ["*"]}
        return {**base, "mode": "polling", "poll_seconds": 0.05, "groups": "always", **others}

    def routes(self) -> list[web.RouteDef]:
        """Return the API."""
        return self.api.routes()

    def operation_of(self, request: web.Request) -> str:
        """Name comments "send" and questions for deliveries "receive"."""
        if request.path.startswith("/app/hook/deliveries"):
            return "receive"
        is_comment = request.path.endswith(("/comments", "/replies")) and request.method == "POST"
        return "send" if is_comment or request.path == "/graphql" else "other"

    def messages(self, room: Any = None) -> list[SimulatedMessage]:
        """Return the app's comments, in order."""
        del room  # there is one repository
        own = [one for one in self.world.entries.values() if one.user is BOT]
        return [
            SimulatedMessage(
                id=str(one.id),
                room=self.world.room,
                thread=self.thread_of(one),
                text=body_text(one.body),
                raw=one.body,
            )
            for one in own
        ]

    @staticmethod
    def thread_of(entry: Entry) -> str:
        """Return the thread of an entry, as the adapter's documentation spells it."""
        if entry.kind == "review_comment":
            return f"{entry.number}/review/{entry.parent or entry.id}"
        if not entry.kind.startswith("discussion"):
            return str(entry.number)
        root = "" if entry.kind == "discussion" else f"/{entry.parent or entry.id}"
        return f"discussions/{entry.number}{root}"

    async def say(self, room: Any, text: str, **others: Any) -> Entry:
        """Comment on the issue as a person, whatever the room is called."""
        del room
        return await self.comment("issue_comment", 1, text, **others)

    async def comment(self, kind: str, number: int, text: str, **others: Any) -> Entry:
        """Add a comment, and send its event."""
        entry = self.world.add(kind, number, text, **others)
        await self.send_event(entry, "created", sender=entry.user)
        return entry

    async def review(self, number: int, summary: str, *comments: str) -> Entry:
        """Submit a review with comments on a line; each has an event of its own, after the summary's."""
        made = self.world.add("review", number, summary)
        parts = [self.world.add("review_comment", number, text, review=made.id) for text in comments]
        await self.send_event(made, "submitted")
        for part in parts:
            await self.send_event(part, "created")
        return made

    async def open_thread(self, kind: str, number: int, title: str, text: str) -> Entry:
        """Open an issue, a pull request or a discussion."""
        entry = self.world.add(kind, number, text, title=title)
        await self.send_event(entry, "created" if kind == "discussion" else "opened")
        return entry

    async def edit(self, number: int, text: str) -> None:
        """Change a comment of a person."""
        entry = self.world.entries[number]
        changes = {"body": {"from": entry.body}}
        entry.body, entry.updated_at = text, now()
        await self.send_event(entry, "edited", changes=changes)

    async def lock(self, number: int, *, locked: bool = True) -> None:
        """Lock or unlock the conversation of an issue, a pull request or a discussion."""
        thread = self.world.thread(number)
        if thread is None:
            raise LookupError(f"there is no thread {number}")
        thread.locked = locked
        await self.send_event(thread, "locked" if locked else "unlocked")

    async def delete(self, number: int) -> None:
        """Delete an issue or a discussion with its comments."""
        thread = self.world.thread(number)
        if thread is None:
            raise LookupError(f"there is no thread {number}")
        kept = {key: one for key, one in self.world.entries.items() if one.number != number}
        self.world.entries = kept
        self.world.deleted.add(number)
        await self.send_event(thread, "deleted")

    async def archive(self, *, archived: bool = True) -> None:
        """Archive the repository, which nobody can write in then, or open it again."""
        self.world.archived = archived
        entry = next(iter(self.world.entries.values()))
        action = "archived" if archived else "unarchived"
        await self.deliver("repository", events.payload_of(self.world, entry, action))

    async def rename(self, name: str) -> None:
        """Rename the repository."""
        former = self.world.room.partition("/")[2]
        self.world.former_rooms.add(self.world.room)
        self.world.room = f"octo/{name}"
        entry = next(iter(self.world.entries.values()))
        payload = events.payload_of(
            self.world, entry, "renamed", changes={"repository": {"name": {"from": former}}}
        )
        await self.deliver("repository", payload)

    async def rename_owner(self, login: str) -> None:
        """Rename the account of the repository, which GitHub reports to each app that is installed there."""
        former = self.world.room.partition("/")[0]
        self.world.former_rooms.add(self.world.room)
        self.world.room = self.world.room.replace(former, login, 1)
        account = {"id": 77, "login": login, "type": "Organization"}
        changes = {"login": {"from": former}, "slug": {"from": former}}
        payload = {"action": "renamed", "account": account, "changes": changes, "sender": ADA}
        await self.deliver(
            "installation_target",
            {**payload, "installation": {"id": INSTALLATION}, "target_type": "Organization"},
        )

    async def transfer(self, number: int, room: str, new: int) -> None:
        """Transfer an issue or a discussion to another repository, where the app is installed too."""
        thread = self.world.thread(number)
        if thread is None:
            raise LookupError(f"there is no thread {number}")
        made = {**thread.json(), "number": new, "node_id": f"{thread.node_id}_NEW"}
        changes = {f"new_{thread.kind}": made, "new_repository": {"full_name": room}}
        await self.send_event(thread, "transferred", changes=changes)

    async def uninstall(self) -> None:
        """Remove the app from the account of the repository, which ends its tokens."""
        self.world.installed = False
        self.api.tokens.clear()

    async def change_installation(self, action: str, *, event: str = "installation") -> None:
        """Deliver an event of the installation, which has no field `repository`."""
        account = {"id": 77, "login": ROOM.partition("/")[0], "type": "Organization"}
        installation = {"id": 77001, "account": account}
        added = {"repositories_added": [{"full_name": self.world.room}]} if action == "added" else {}
        self.world.installed = True
        await self.deliver(event, {"action": action, "installation": installation, "sender": ADA, **added})

    async def send_event(self, entry: Entry, action: str, **others: Any) -> None:
        """Deliver the event about an entry."""
        payload = events.payload_of(self.world, entry, action, **others)
        await self.deliver(events.EVENTS[entry.kind], payload)

    async def deliver(self, event: str, payload: dict[str, Any], *, guid: str = "") -> int:
        """Post an event once and write it to the log; GitHub waits 10 s, and does not repeat it."""
        again, guid = bool(guid), guid or events.make_guid()
        body, url = events.encode(payload), self.api.hook["url"] or self.hook_url
        self.hook_url = url
        secret = self.api.hook["secret"] or self.secret
        status = await self.post(body, events.headers_of(secret, event, guid, body))
        number = next(self._numbers)
        self.api.deliveries.append(events.logged(number, guid, event, payload, status, again=again))
        await self.notify()
        return status

    async def redeliver(self) -> int:
        """Deliver the latest event again, with the same id, as the button in GitHub's settings does."""
        latest = self.api.deliveries[-1]
        return await self.deliver(latest.event, latest.payload, guid=latest.guid)

    def revoke(self) -> None:
        """Refuse the app's key and its tokens."""
        self.api.key = private_key("another")
        self.api.tokens.clear()


@asynccontextmanager
async def simulate(*, port: int = 0) -> AsyncIterator[Simulator]:
    """Run a simulated GitHub on a loopback port, a free one by default."""
    async with Simulator().serve(port) as simulator:
        yield simulator
