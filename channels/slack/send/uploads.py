"""Upload files in Slack's three steps, and download them with the bot's token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from channels.errors import Rejected
from channels.inbox.calls import ensure_accepted, limited
from channels.inbox.text import clean, mapping
from channels.message import Address, File, SentMessage
from channels.port import RECENT_PREFIX, ChannelState
from channels.slack.api import Api
from channels.slack.send import rendering

UPLOAD_LIMIT = 50_000_000
DOWNLOAD_LIMIT = 50_000_000
STATE_PREFIX = f"{RECENT_PREFIX}upload:"


class FileTransfers:
    """Transfers the files of one app; an upload's id is stored before the file is visible."""

    def __init__(self, api: Api, state: ChannelState) -> None:
        self._api = api
        self._state = state

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Send a file, which becomes visible with the last step."""
        ensure_accepted(file, UPLOAD_LIMIT)
        if not file.content:
            raise Rejected(f"{file.name} is empty: Slack refuses empty files")
        name = clean(file.name)
        file_id, url = await self._request_upload_url(name, len(file.content))
        await self._api.upload(url, file.content)
        await self._state.set({STATE_PREFIX + key: file_id})
        shared: dict[str, Any] = {"files": [{"id": file_id, "title": name}], "channel_id": address.room}
        shared |= {"thread_ts": address.thread} if address.thread else {}
        shared |= {"initial_comment": rendering.escape(file.caption)} if file.caption else {}
        await self._api.call("files.completeUploadExternal", shared)
        return SentMessage(platform_id=file_id)

    async def get_file_id(self, key: str) -> str | None:
        """Return the file uploaded with a key, whether or not it was shared."""
        return await self._state.get(STATE_PREFIX + key)

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; a reference that is not a URL is looked up."""
        url = ref if "://" in ref else await self._get_download_url(ref)
        async for chunk in limited(self._api.fetch(url), DOWNLOAD_LIMIT):
            yield chunk

    async def _request_upload_url(self, name: str, length: int) -> tuple[str, str]:
        parameters = {"filename": name, "length": str(length)}
        answer = await self._api.call("files.getUploadURLExternal", parameters)
        file_id, url = answer.get("file_id"), answer.get("upload_url")
        if not isinstance(file_id, str) or not isinstance(url, str):
            raise Rejected("files.getUploadURLExternal: the response has no upload URL")
        return file_id, url

    async def _get_download_url(self, file_id: str) -> str:
        answer = await self._api.call("files.info", {"file": file_id})
        file = mapping(answer.get("file"))
        url = file.get("url_private_download") or file.get("url_private")
        if not isinstance(url, str):
            raise Rejected("files.info: the response has no download URL")
        return url
