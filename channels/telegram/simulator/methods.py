"""The methods of the Bot API the simulated Telegram has, after the Bot API's documentation."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from channels.telegram.simulator.arguments import Arguments
from channels.telegram.simulator.failure import Failure, bad
from channels.telegram.simulator.faults import Meter
from channels.telegram.simulator.updates import Updates
from channels.telegram.simulator.wording import CAPTION_LIMIT, TEXT_LIMIT, read, units
from channels.telegram.simulator.world import Post, Raw, Room, World

PHOTO_LIMIT = 10_000_000
FILE_LIMIT = 50_000_000
DOWNLOAD_LIMIT = 20_000_000
BUTTON_DATA_LIMIT = 64
ANSWER_LIMIT = 200
ACTIONS = re.compile(
    r"typing|choose_sticker|find_location|(record|upload)_(video|voice|video_note)|upload_(photo|document)"
)
METERED = frozenset({"sendmessage", "sendphoto", "senddocument", "editmessagetext"})

Method = Callable[[Arguments], Awaitable[Any]]


class Methods:
    """Carries out one bot's calls on the world."""

    def __init__(self, world: World, updates: Updates, meter: Meter) -> None:
        self._world = world
        self._updates = updates
        self._meter = meter
        self.actions: list[tuple[int, int | None, str]] = []
        self.commands: list[Raw] = []
        self._known: dict[str, Method] = {
            name.removeprefix("do_"): getattr(self, name) for name in dir(self) if name.startswith("do_")
        }

    async def call(self, name: str, arguments: Arguments) -> Any:
        """Carry out a method by its lower-case name; raises Failure."""
        method = self._known.get(name)
        if method is None:
            raise Failure(404, "Not Found")
        if name in METERED:
            self._meter.count(self._world.open_room(arguments["chat_id"]).id)
        return await method(arguments)

    async def do_getme(self, _: Arguments) -> Raw:
        """Tell the bot who it is."""
        rights = {"can_join_groups": True, "can_read_all_group_messages": not self._world.privacy}
        return {**self._world.bot, **rights, "supports_inline_queries": False}

    async def do_getupdates(self, arguments: Arguments) -> list[Raw]:
        """Hand out updates, waiting for them if asked to."""
        kinds = arguments.structure("allowed_updates")
        if isinstance(kinds, list):
            self._world.kinds = [str(kind) for kind in kinds]
        return await self._updates.poll(
            offset=arguments.number("offset", 0) or 0,
            limit=arguments.number("limit", 100) or 100,
            seconds=arguments.number("timeout", 0) or 0,
        )

    async def do_setwebhook(self, arguments: Arguments) -> bool:
        """Post updates from now on."""
        kinds = arguments.structure("allowed_updates")
        if isinstance(kinds, list):
            self._world.kinds = [str(kind) for kind in kinds]
        self._drop(arguments)
        await self._updates.post_to(arguments.text("url"), arguments.text("secret_token"))
        return True

    async def do_deletewebhook(self, arguments: Arguments) -> bool:
        """Go back to polling."""
        self._drop(arguments)
        await self._updates.post_to("", "")
        return True

    async def do_getwebhookinfo(self, _: Arguments) -> Raw:
        """Tell how posting goes."""
        return self._updates.info()

    async def do_sendmessage(self, arguments: Arguments) -> Raw:
        """Say something in a room."""
        room = self._room(arguments)
        text, entities = read(arguments.text("text"), arguments.text("parse_mode"), arguments["entities"])
        _check_size(text, TEXT_LIMIT)
        content: Raw = {"text": text, **({"entities": entities} if entities else {})}
        return self._said(room, arguments, content).raw

    async def do_editmessagetext(self, arguments: Arguments) -> Raw:
        """Make a message of the bot say something else."""
        post = self._world.found(arguments["chat_id"], arguments["message_id"], purpose="edit")
        text, entities = read(arguments.text("text"), arguments.text("parse_mode"), arguments["entities"])
        _check_size(text, TEXT_LIMIT)
        said: Raw = {"text": text, "entities": entities, **_keyboard(arguments)}
        before = {"text": post.raw.get("text"), "entities": post.raw.get("entities", [])}
        markup = {"reply_markup": post.raw["reply_markup"]} if "reply_markup" in post.raw else {}
        if said == {**before, **markup}:
            raise bad(
                "message is not modified: specified new message content and reply markup are exactly "
                "the same as a current content and reply markup of the message"
            )
        post.history.append(post.text)
        post.raw.pop("reply_markup", None)
        post.raw.update({name: value for name, value in said.items() if value or name == "text"})
        return post.raw

    async def do_deletemessage(self, arguments: Arguments) -> bool:
        """Remove a message of the bot."""
        self._world.found(arguments["chat_id"], arguments["message_id"], purpose="delete").deleted = True
        return True

    async def do_sendphoto(self, arguments: Arguments) -> Raw:
        """Send a picture."""
        name, _, content = self._file(arguments, "photo", PHOTO_LIMIT)
        if not content.startswith((b"\xff\xd8", b"\x89PNG", b"RIFF", b"GIF8")):
            raise bad("IMAGE_PROCESS_FAILED")
        file = {**self._stored(name, content), "width": 640, "height": 480}
        return self._sent_file(arguments, {"photo": [file]}, content)

    async def do_senddocument(self, arguments: Arguments) -> Raw:
        """Send a file."""
        name, kind, content = self._file(arguments, "document", FILE_LIMIT)
        file = {**self._stored(name, content), "file_name": name, "mime_type": kind}
        return self._sent_file(arguments, {"document": file}, content)

    async def do_getfile(self, arguments: Arguments) -> Raw:
        """Prepare a file for download."""
        number = arguments.text("file_id")
        if number not in self._world.files:
            raise bad("wrong file_id or the file is temporarily unavailable")
        path, content = self._world.files[number]
        if len(content) > DOWNLOAD_LIMIT:
            raise bad("file is too big")
        return {"file_id": number, "file_unique_id": number, "file_size": len(content), "file_path": path}

    async def do_sendchataction(self, arguments: Arguments) -> bool:
        """Show that the bot is at work."""
        room = self._room(arguments)
        if not ACTIONS.fullmatch(arguments.text("action")):
            raise bad("wrong parameter action in request")
        self.actions.append((room.id, arguments.number("message_thread_id"), arguments.text("action")))
        return True

    async def do_answercallbackquery(self, arguments: Arguments) -> bool:
        """Answer a press, once."""
        number = arguments.text("callback_query_id")
        if number not in self._world.presses or self._world.presses[number] is not None:
            raise bad("query is too old and response timeout expired or query ID is invalid")
        if units(arguments.text("text")) > ANSWER_LIMIT:
            raise bad("MESSAGE_TOO_LONG")
        self._world.presses[number] = {"text": arguments.text("text"), "alert": arguments.flag("show_alert")}
        return True

    async def do_setmycommands(self, arguments: Arguments) -> bool:
        """Set the menu of commands."""
        commands = arguments.structure("commands")
        valid = isinstance(commands, list) and len(commands) <= 100  # noqa: PLR2004 - documented at setMyCommands
        if not valid or any(
            not re.fullmatch(r"[a-z0-9_]{1,32}", str(entry.get("command"))) for entry in commands
        ):
            raise bad("BOT_COMMAND_INVALID")
        self.commands = commands
        return True

    async def do_getmycommands(self, _: Arguments) -> list[Raw]:
        """Tell the menu of commands."""
        return self.commands

    async def do_setmessagereaction(self, arguments: Arguments) -> bool:
        """React to a message."""
        room = self._room(arguments)
        post = self._world.posts.get((room.id, arguments.number("message_id") or 0))
        if post is None:
            raise bad("message to react not found")
        post.raw["reactions"] = arguments.structure("reaction") or []
        return True

    async def do_getchat(self, arguments: Arguments) -> Raw:
        """Tell about a room."""
        return self._world.open_room(arguments["chat_id"]).raw

    def _drop(self, arguments: Arguments) -> None:
        if arguments.flag("drop_pending_updates"):
            self._world.updates.clear()

    def _room(self, arguments: Arguments) -> Room:
        """Return the room of a call; raises Failure when it, or its topic, is not there."""
        if "chat_id" not in arguments:
            raise bad("chat_id is empty")
        room = self._world.open_room(arguments["chat_id"])
        thread = arguments.number("message_thread_id")
        if thread is not None and thread not in room.topics:
            raise bad("message thread not found")
        if thread in room.closed:
            raise bad("TOPIC_CLOSED")
        return room

    def _said(self, room: Room, arguments: Arguments, content: Raw) -> Post:
        reply_to = self._reply_to(room, arguments)
        thread = arguments.number("message_thread_id")
        content = {**content, **_keyboard(arguments)}
        return self._world.post(room, self._world.bot, content, thread=thread, reply_to=reply_to)

    def _reply_to(self, room: Room, arguments: Arguments) -> int | None:
        asked = arguments.structure("reply_parameters")
        if not isinstance(asked, dict):
            return None
        number = asked.get("message_id")
        if isinstance(number, int) and (room.id, number) in self._world.posts:
            return number
        if asked.get("allow_sending_without_reply") is True:
            return None
        raise bad("message to be replied not found")

    def _file(self, arguments: Arguments, name: str, limit: int) -> tuple[str, str, bytes]:
        given = arguments.file(name)
        if given is None:
            raise bad(f"there is no {name} in the request")
        if not given[2]:
            raise bad("file must be non-empty")
        if len(given[2]) > limit:
            raise Failure(413, "Request Entity Too Large")
        return given

    def _stored(self, name: str, content: bytes) -> Raw:
        return self._updates.store(name, content)

    def _sent_file(self, arguments: Arguments, content: Raw, data: bytes) -> Raw:
        room = self._room(arguments)
        caption, entities = read(
            arguments.text("caption"), arguments.text("parse_mode"), arguments["caption_entities"]
        )
        if units(caption) > CAPTION_LIMIT:
            raise bad("message caption is too long")
        words: Raw = {"caption": caption} if caption else {}
        words |= {"caption_entities": entities} if entities else {}
        post = self._said(room, arguments, {**content, **words})
        post.file = data
        return post.raw


def _check_size(text: str, limit: int) -> None:
    if not text:
        raise bad("message text is empty")
    if units(text) > limit:
        raise bad("message is too long")


def _keyboard(arguments: Arguments) -> Raw:
    """Return the inline keyboard of a call; raises Failure for buttons Telegram refuses."""
    markup = arguments.structure("reply_markup")
    if not isinstance(markup, dict) or not markup.get("inline_keyboard"):
        return {}
    for row in markup["inline_keyboard"]:
        for button in row:
            data = str(button.get("callback_data") or "")
            if not str(button.get("text") or "").strip():
                raise bad(
                    "can't parse inline keyboard button: text buttons are unallowed in the inline keyboard"
                )
            if "url" not in button and not 1 <= len(data.encode()) <= BUTTON_DATA_LIMIT:
                raise bad("BUTTON_DATA_INVALID")
    return {"reply_markup": markup}
