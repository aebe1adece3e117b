"""Render replies as arguments of the Web API: text, sections, buttons and delivery metadata."""

from __future__ import annotations

from typing import Any

from slack_sdk.models.blocks import (
    ActionsBlock,
    ButtonElement,
    MarkdownBlock,
    MarkdownTextObject,
    SectionBlock,
)

from channels.commonmark.splitting import split
from channels.inbox.text import clean
from channels.message import Address, Button, Reply
from channels.slack import payloads
from channels.slack import text as slack_text
from channels.slack.send import markup

TEXT_LIMIT = 4000
SECTION_LIMIT = 3000
LABEL_LIMIT = 75
METADATA_TYPE = "dovecote_delivery"


def target(address: Address) -> dict[str, Any]:
    """Return the arguments that name the channel and the thread."""
    thread = {"thread_ts": address.thread} if address.thread else {}
    return {"channel": address.room, **thread}


def delivery_metadata(key: str) -> dict[str, Any]:
    """Return the metadata by which a message is found by its delivery key."""
    return {"metadata": {"event_type": METADATA_TYPE, "event_payload": {"delivery_id": key}}}


def escape(text: str) -> str:
    """Return the text with every reference escaped."""
    return markup.escape(clean(text))


def render_blocks(reply: Reply) -> dict[str, Any]:
    """Return a reply's arguments; with buttons, blocks repeat the text for the notification."""
    fields = {"text": _render(reply.text, TEXT_LIMIT), "parse": "none", "link_names": False}
    return {**fields, "blocks": _blocks(reply) if reply.buttons else []}


def render_markdown(reply: Reply) -> dict[str, Any]:
    """Return the arguments for the end of a stream: Slack renders the text as it rendered the stream."""
    markdown = MarkdownBlock(text=markup.escape_markdown(clean(reply.text))).to_dict()
    return {"text": _render(reply.text, TEXT_LIMIT), "blocks": [markdown, *_actions(reply)]}


def render_plain(reply: Reply) -> dict[str, Any]:
    """Return a reply's arguments without any markup."""
    return {"text": escape(reply.text), "mrkdwn": False, "blocks": []}


def _render(text: str, limit: int) -> str:
    """Render a text; if the result is too long, only escape it."""
    rendered = markup.render(clean(text))
    return rendered if len(rendered) <= limit else escape(text)


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    parts = split(reply.text, SECTION_LIMIT, slack_text.measure)
    return [*(_section(part) for part in parts), *_actions(reply)]


def _section(part: str) -> dict[str, Any]:
    text = MarkdownTextObject(text=_render(part, SECTION_LIMIT), verbatim=True)
    return SectionBlock(text=text).to_dict()


def _actions(reply: Reply) -> list[dict[str, Any]]:
    return [ActionsBlock(elements=[_button(one) for one in reply.buttons]).to_dict()] if reply.buttons else []


def _button(button: Button) -> ButtonElement:
    label = clean(button.label)[:LABEL_LIMIT] or "…"
    return ButtonElement(text=label, value=button.data, action_id=payloads.action_id_of(button))
