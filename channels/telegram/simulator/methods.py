"""The methods of the simulated Bot API, after its documentation."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from channels.telegram.simulator.arguments import Arguments
from channels.telegram.simulator.failure import ApiFailure, bad_request
from channels.telegram.simulator.faults import RateLimits
from channels.telegram.simulator.media import MediaMethods
from channels.telegram.simulator.method_base import inline_keyboard
from channels.telegram.simulator.updates import Updates
from channels.telegram.simulator.wording import TEXT_LIMIT, parse_text, utf16_length
from channels.telegram.simulator.world import Raw, World

ANSWER_LIMIT = 200
_EMOJI = (
    "👍 👎 ❤ 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤\u200d🔥 🌚 🌭 💯 🤣 ⚡ 🍌 🏆 💔 "
    "🤨 😐 🍓 🍾 💋 🖕 😈 😴 😭 🤓 👻 👨\u200d💻 👀 🎃 🙈 😇 😨 🤝 ✍ 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 "
    "💊 🙊 😎 👾 🤷\u200d♂ 🤷 🤷\u200d♀ 😡"
)
REACTIONS = frozenset(_EMOJI.split())
"""The emoji a bot may react with, after ReactionTypeEmoji."""

ACTIONS = re.compile(
    r"typing|choose_sticker|find_location|(record|upload)_(video|voice|video_note)|upload_(photo|document)"
)
METERED = frozenset(
    {"sendmessage", "editmessagetext", "sendphoto", "senddocument", "sendaudio", "sendvideo", "sendvoice"}
    | {"sendanimation"}
)

Method = Callable[[Arguments], Awaitable[Any]]


class Methods(MediaMethods):
    """Carries out one bot's calls; `unknown` lists methods that this server does not have."""

    def __init__(self, world: World, updates: Updates, rate_limits: RateLimits) -> None:
        super().__init__(world, updates, rate_limits)
        self.unsupported: set[str] = set()
        self.actions: list[tuple[int, int | None, str]] = []
        self.commands: list[Raw] = []
        self._methods: dict[str, Method] = {
            name.removeprefix("do_"): getattr(self, name) for name in dir(self) if name.startswith("do_")
        }

    async def call(self, name: str, arguments: Arguments) -> Any:
        """Carry out a method by its lower-case name; raises ApiFailure."""
        method = self._methods.get(name)
        if method is None or name in self.unsupported:
            raise ApiFailure(404, "Not Found")
        if name in METERED:
            self._rate_limits.count(self._world.get_writable_room(arguments["chat_id"]).id)
        return await method(arguments)

    async def do_getme(self, _: Arguments) -> Raw:
        """Return the bot's own account."""
        rights = {"can_join_groups": True, "can_read_all_group_messages": not self._world.privacy}
        return {**rights, **self._world.bot, "supports_inline_queries": False}

    async def do_getupdates(self, arguments: Arguments) -> list[Raw]:
        """Return updates, waiting for them if requested."""
        kinds = arguments.json_value("allowed_updates")
        if isinstance(kinds, list):
            self._world.kinds = [str(kind) for kind in kinds]
        return await self._updates.poll(
            offset=arguments.number("offset", 0) or 0,
            limit=arguments.number("limit", 100) or 100,
            seconds=arguments.number("timeout", 0) or 0,
        )

    async def do_setwebhook(self, arguments: Arguments) -> bool:
        """Set the webhook."""
        kinds = arguments.json_value("allowed_updates")
        if isinstance(kinds, list):
            self._world.kinds = [str(kind) for kind in kinds]
        self._drop_pending_updates(arguments)
        await self._updates.set_webhook(arguments.text("url"), arguments.text("secret_token"))
        return True

    async def do_deletewebhook(self, arguments: Arguments) -> bool:
        """Remove the webhook, which allows polling."""
        self._drop_pending_updates(arguments)
        await self._updates.set_webhook("", "")
        return True

    async def do_getwebhookinfo(self, _: Arguments) -> Raw:
        """Return the webhook's state."""
        return self._updates.info()

    async def do_sendmessage(self, arguments: Arguments) -> Raw:
        """Send a message."""
        room = self._room(arguments, "text messages")
        text, entities = parse_text(
            arguments.text("text"), arguments.text("parse_mode"), arguments["entities"]
        )
        _check_size(text, TEXT_LIMIT)
        content: Raw = {"text": text, **({"entities": entities} if entities else {})}
        return self._post_message(room, arguments, content).raw

    async def do_editmessagetext(self, arguments: Arguments) -> Raw:
        """Edit a message of the bot."""
        post = self._world.get_bot_post(arguments["chat_id"], arguments["message_id"], purpose="edit")
        text, entities = parse_text(
            arguments.text("text"), arguments.text("parse_mode"), arguments["entities"]
        )
        _check_size(text, TEXT_LIMIT)
        said: Raw = {"text": text, "entities": entities, **inline_keyboard(arguments)}
        before = {"text": post.raw.get("text"), "entities": post.raw.get("entities", [])}
        markup = {"reply_markup": post.raw["reply_markup"]} if "reply_markup" in post.raw else {}
        if said == {**before, **markup}:
            raise bad_request(
                "message is not modified: specified new message content and reply markup are exactly "
                "the same as a current content and reply markup of the message"
            )
        post.history.append(post.text)
        post.raw.pop("reply_markup", None)
        post.raw.update({name: value for name, value in said.items() if value or name == "text"})
        return post.raw

    async def do_sendmessagedraft(self, arguments: Arguments) -> bool:
        """Show a draft in a private chat for 30 seconds."""
        room = self._room(arguments)
        number = arguments.number("draft_id", 0) or 0
        if room.kind != "private":
            raise bad_request("TEXTDRAFT_PEER_INVALID")
        if number == 0:
            raise bad_request("parameter draft_id must be non-zero")
        text, entities = parse_text(
            arguments.text("text"), arguments.text("parse_mode"), arguments["entities"]
        )
        if utf16_length(text) > TEXT_LIMIT:
            raise bad_request("message is too long")
        self._world.show_draft(room.id, number, text, entities)
        return True

    async def do_deletemessage(self, arguments: Arguments) -> bool:
        """Delete a message of the bot."""
        self._world.get_bot_post(
            arguments["chat_id"], arguments["message_id"], purpose="delete"
        ).deleted = True
        return True

    async def do_sendchataction(self, arguments: Arguments) -> bool:
        """Show a chat action, also in a thread of replies of a supergroup that is no forum."""
        room = self._room(arguments, threads=True)
        if not ACTIONS.fullmatch(arguments.text("action")):
            raise bad_request("wrong parameter action in request")
        self.actions.append((room.id, arguments.number("message_thread_id"), arguments.text("action")))
        return True

    async def do_answercallbackquery(self, arguments: Arguments) -> bool:
        """Answer a button press, once."""
        number = arguments.text("callback_query_id")
        if number not in self._world.presses or self._world.presses[number] is not None:
            raise bad_request("query is too old and response timeout expired or query ID is invalid")
        if utf16_length(arguments.text("text")) > ANSWER_LIMIT:
            raise bad_request("MESSAGE_TOO_LONG")
        self._world.presses[number] = {"text": arguments.text("text"), "alert": arguments.flag("show_alert")}
        return True

    async def do_setmycommands(self, arguments: Arguments) -> bool:
        """Set the menu of commands."""
        commands = arguments.json_value("commands")
        valid = isinstance(commands, list) and len(commands) <= 100  # noqa: PLR2004 - documented at setMyCommands
        if not valid or any(
            not re.fullmatch(r"[a-z0-9_]{1,32}", str(entry.get("command"))) for entry in commands
        ):
            raise bad_request("BOT_COMMAND_INVALID")
        self.commands = commands
        return True

    async def do_getmycommands(self, _: Arguments) -> list[Raw]:
        """Return the menu of commands."""
        return self.commands

    async def do_setmessagereaction(self, arguments: Arguments) -> bool:
        """Set the bot's reaction: one emoji, or none."""
        room = self._room(arguments)
        post = self._world.posts.get((room.id, arguments.number("message_id") or 0))
        if post is None or post.deleted:
            raise bad_request("message to react not found")
        reactions = arguments.json_value("reaction") or []
        if len(reactions) > 1:
            raise bad_request("REACTIONS_TOO_MANY")
        for reaction in reactions:
            emoji = reaction.get("emoji") if isinstance(reaction, dict) else None
            if emoji not in REACTIONS or (room.reactions is not None and emoji not in room.reactions):
                raise bad_request("REACTION_INVALID")
        post.raw["reactions"] = reactions
        return True

    async def do_getchat(self, arguments: Arguments) -> Raw:
        """Return a ChatFullInfo."""
        room = self._world.get_writable_room(arguments["chat_id"])
        posts = (
            post for (chat, _), post in self._world.posts.items() if chat == room.id and not post.deleted
        )
        pinned = [post.raw for post in posts if post.raw.get("is_automatic_forward")][-1:]
        shown = {"pinned_message": pinned[0]} if pinned else {}
        return {**room.raw, **({"linked_chat_id": room.linked} if room.linked else {}), **shown}

    def _drop_pending_updates(self, arguments: Arguments) -> None:
        if arguments.flag("drop_pending_updates"):
            self._world.updates.clear()


def _check_size(text: str, limit: int) -> None:
    if not text:
        raise bad_request("message text is empty")
    if utf16_length(text) > limit:
        raise bad_request("message is too long")
