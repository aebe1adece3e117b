"""Files both ways: uploads in Slack's three steps, downloads with the bot's token."""

from __future__ import annotations

from collections.abc import AsyncIterator

from channels.errors import Rejected
from channels.message import Address, File, SentMessage
from channels.port import RECENT_PREFIX, ChannelState
from channels.slack import text
from channels.slack.api import Api
from channels.slack.send import rendering

UPLOAD_LIMIT = 50_000_000
DOWNLOAD_LIMIT = 50_000_000
STATE_PREFIX = f"{RECENT_PREFIX}upload:"


class FileTransfers:
    """The files of one app. What is uploaded is noted by its key before anybody can see it."""

    def __init__(self, api: Api, state: ChannelState) -> None:
        self._api = api
        self._state = state

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Send a file; nobody sees it before the last step."""
        if len(file.content) > UPLOAD_LIMIT:
            raise Rejected(f"{file.name} has {len(file.content)} bytes, {UPLOAD_LIMIT} are taken")
        if not file.content:
            raise Rejected(f"{file.name} is empty, which Slack does not take")
        name = text.clean(file.name)
        number, url = await self._request_upload_url(name, len(file.content))
        await self._api.upload(url, file.content)
        await self._state.set({STATE_PREFIX + key: number})
        thread = {"thread_ts": address.thread} if address.thread else {}
        words = {"initial_comment": rendering.escape(file.caption)} if file.caption else {}
        done = {"files": [{"id": number, "title": name}], "channel_id": address.room, **thread, **words}
        await self._api.call("files.completeUploadExternal", done)
        return SentMessage(platform_id=number)

    async def get_file_id(self, key: str) -> str | None:
        """Return the file that was uploaded under a key, whether or not it was shared."""
        return await self._state.get(STATE_PREFIX + key)

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; a reference without an address is looked up."""
        url = ref if "://" in ref else await self._get_download_url(ref)
        size = 0
        async for chunk in self._api.fetch(url):
            size += len(chunk)
            if size > DOWNLOAD_LIMIT:
                raise Rejected(f"the file has more than {DOWNLOAD_LIMIT} bytes")
            yield chunk

    async def _request_upload_url(self, name: str, length: int) -> tuple[str, str]:
        answer = await self._api.call("files.getUploadURLExternal", {"filename": name, "length": length})
        number, url = answer.get("file_id"), answer.get("upload_url")
        if not isinstance(number, str) or not isinstance(url, str):
            raise Rejected("files.getUploadURLExternal: the answer names no place")
        return number, url

    async def _get_download_url(self, file_id: str) -> str:
        answer = await self._api.call("files.info", {"file": file_id})
        file = answer.get("file")
        file = file if isinstance(file, dict) else {}
        url = file.get("url_private_download") or file.get("url_private")
        if not isinstance(url, str):
            raise Rejected("files.info: the answer names no address")
        return url
