"""Speak at Slack: messages, edits, buttons, files, and notices to one person."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from channels.errors import Ambiguous, Rejected, Unsupported
from channels.message import Address, Button, Command, File, Press, Reply, Sent
from channels.port import Channel
from channels.slack import codec, markup, wording
from channels.slack.api import Api
from channels.slack.errors import MARKUP_REFUSED
from channels.splitting import split

TEXT_LIMIT = 4000
SECTION_LIMIT = 3000
UPLOAD_LIMIT = 50_000_000
DOWNLOAD_LIMIT = 50_000_000
LABEL_LIMIT = 75
METADATA_TYPE = "dovecote_delivery"


class SlackChannel(Channel):
    """The sending half of a Slack app."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def send(self, address: Address, reply: Reply) -> Sent:
        """Send one message, as plain text when Slack refuses our blocks."""
        mark = {"event_type": METADATA_TYPE, "event_payload": {"delivery_id": reply.key}}
        place = {**_target(address), "metadata": mark, "unfurl_links": False, "unfurl_media": False}
        return _sent("chat.postMessage", await self._say("chat.postMessage", place, reply))

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> Sent:
        """Make a message of ours say something else; buttons it no longer has are taken away."""
        await self._say("chat.update", {"channel": address.room, "ts": platform_id}, reply)
        return Sent(platform_id=platform_id)

    async def typing(self, address: Address) -> None:  # noqa: ARG002 - nowhere
        """Slack shows no typing in channels; raises Unsupported."""
        raise Unsupported("Slack has no typing notice for apps")

    async def upload(self, address: Address, file: File, *, key: str) -> Sent:  # noqa: ARG002 - Slack knows no idempotency key
        """Send a file in Slack's three steps; nobody sees it before the last."""
        if len(file.content) > UPLOAD_LIMIT:
            raise Rejected(f"{file.name} has {len(file.content)} bytes, {UPLOAD_LIMIT} are taken")
        name = wording.clean(file.name)
        place = await self._api.call(
            "files.getUploadURLExternal", {"filename": name, "length": len(file.content)}
        )
        number, url = place.get("file_id"), place.get("upload_url")
        if not isinstance(number, str) or not isinstance(url, str):
            raise Rejected("files.getUploadURLExternal: the answer names no place")
        await self._api.put(url, file.content)
        thread = {"thread_ts": address.thread} if address.thread else {}
        words = {"initial_comment": _escaped(file.caption)} if file.caption else {}
        done = {"files": [{"id": number, "title": name}], "channel_id": address.room, **thread, **words}
        await self._api.call("files.completeUploadExternal", done)
        return Sent(platform_id=number)

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; a reference without an address is looked up."""
        url = ref if "://" in ref else await self._look_up(ref)
        size = 0
        async for chunk in self._api.fetch(url):
            size += len(chunk)
            if size > DOWNLOAD_LIMIT:
                raise Rejected(f"the file has more than {DOWNLOAD_LIMIT} bytes")
            yield chunk

    async def answer(self, to: Press | Command, text: str) -> None:
        """Show a notice to the person who pressed, and to nobody else."""
        notice = {**_target(to.address), "user": to.author.id, "text": _escaped(text)[:TEXT_LIMIT]}
        await self._api.call("chat.postEphemeral", notice)

    async def _look_up(self, number: str) -> str:
        answer = await self._api.call("files.info", {"file": number})
        file = answer.get("file")
        file = file if isinstance(file, dict) else {}
        url = file.get("url_private_download") or file.get("url_private")
        if not isinstance(url, str):
            raise Rejected("files.info: the answer names no address")
        return url

    async def _say(self, method: str, place: Mapping[str, Any], reply: Reply) -> Any:
        try:
            return await self._api.call(method, {**place, **_worded(reply)})
        except Rejected as error:
            if not any(word in str(error) for word in MARKUP_REFUSED):
                raise
        bare = {"text": _escaped(reply.text), "mrkdwn": False, "blocks": []}
        return await self._api.call(method, {**place, **bare})


def _target(address: Address) -> dict[str, Any]:
    thread = {"thread_ts": address.thread} if address.thread else {}
    return {"channel": address.room, **thread}


def _escaped(text: str) -> str:
    return markup.escape(wording.clean(text))


def _rendered(text: str, limit: int) -> str:
    """Render a text; one that does not fit with its marks is only escaped."""
    rendered = markup.render(wording.clean(text))
    return rendered if len(rendered) <= limit else _escaped(text)


def _worded(reply: Reply) -> dict[str, Any]:
    """Return what is said; the blocks of a message with buttons repeat its text, which notifications show."""
    said = {"text": _rendered(reply.text, TEXT_LIMIT), "parse": "none", "link_names": False}
    return {**said, "blocks": _blocks(reply) if reply.buttons else []}


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    parts = split(reply.text, SECTION_LIMIT, codec.measure)
    sections = [_section(part) for part in parts]
    return [*sections, {"type": "actions", "elements": [_button(one) for one in reply.buttons]}]


def _section(part: str) -> dict[str, Any]:
    text = {"type": "mrkdwn", "text": _rendered(part, SECTION_LIMIT), "verbatim": True}
    return {"type": "section", "text": text}


def _button(button: Button) -> dict[str, Any]:
    label = {"type": "plain_text", "text": wording.clean(button.label)[:LABEL_LIMIT] or "…"}
    return {"type": "button", "text": label, "value": button.data, "action_id": button.data}


def _sent(method: str, answer: Mapping[str, Any]) -> Sent:
    ts = answer.get("ts")
    if not isinstance(ts, str) or not ts:
        raise Ambiguous(f"{method}: the answer names no message")
    return Sent(platform_id=ts)
