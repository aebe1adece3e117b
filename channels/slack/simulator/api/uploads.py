"""Files of the simulated Slack: the three steps of an upload, and file information."""

from __future__ import annotations

from collections.abc import Callable

from channels.slack.simulator.api.structure import parse_json
from channels.slack.simulator.failure import ApiFailure
from channels.slack.simulator.world import BOT_ID, BOT_USER, Post, Raw, World

MAX_FILE_BYTES = 1_000_000_000


class FileMethods:
    """files.getUploadURLExternal, files.completeUploadExternal and files.info."""

    def __init__(
        self,
        world: World,
        address: Callable[[], str],
        on_message: Callable[[Post], None],
        get_room: Callable[[Raw], str],
    ) -> None:
        self._world = world
        self._address = address
        self._on_message = on_message
        self._get_room = get_room

    def methods(self) -> dict[str, Callable[[Raw], Raw]]:
        """Return the methods by name."""
        return {
            "files.getUploadURLExternal": self._get_upload_url,
            "files.completeUploadExternal": self._complete,
            "files.info": self._info,
        }

    def _get_upload_url(self, given: Raw) -> Raw:
        length = str(given.get("length", ""))
        if not given.get("filename") or not length.isdecimal() or int(length) < 1:
            raise ApiFailure("invalid_arguments")
        if int(length) > MAX_FILE_BYTES:
            raise ApiFailure("file_upload_size_restricted")
        number = f"F{next(self._world.numbers):08d}"
        self._world.files[number] = {"id": number, "name": given["filename"], "size": int(length)}
        return {"upload_url": f"{self._address()}/upload/v1/{number}", "file_id": number}

    def _complete(self, given: Raw) -> Raw:
        files = parse_json(given.get("files"))
        numbers = [str(file.get("id")) for file in files] if isinstance(files, list) else []
        if not numbers or any(number not in self._world.contents for number in numbers):
            raise ApiFailure("file_not_found")
        described = [self._world.files[number] for number in numbers]
        for file, named in zip(described, files, strict=True):
            file["title"] = named.get("title") or file["name"]
        rooms = [str(given["channel_id"])] if given.get("channel_id") else []
        rooms += [name for name in str(given.get("channels") or "").split(",") if name]
        for name in rooms:
            self._share(self._get_room({"channel": name}), described, given)
        return {"files": described}

    def _share(self, room: str, described: list[Raw], given: Raw) -> None:
        thread = {"thread_ts": given["thread_ts"]} if given.get("thread_ts") else {}
        words = {"text": given.get("initial_comment", ""), "files": described, "subtype": "file_share"}
        post = self._world.post(room, BOT_USER, {**words, **thread, "bot_id": BOT_ID})
        seen = "public" if self._world.room(room).kind == "channel" else "private"
        for file in described:
            file.setdefault("shares", {}).setdefault(seen, {}).setdefault(room, []).append({"ts": post.ts})
        self._on_message(post)

    def _info(self, given: Raw) -> Raw:
        file = self._world.files.get(str(given.get("file")))
        if file is None:
            raise ApiFailure("file_not_found")
        return {"file": file}
