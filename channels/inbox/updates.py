"""Make the updates of messages that people wrote; pure."""

from __future__ import annotations

import re
from typing import Any

from channels.inbox.code import code_spans, fenced_lines, is_quoted, without_comments
from channels.inbox.commands import parse_mentioned, parse_slash
from channels.message import Attachment, Command, IgnoredUpdate, Message


def find_mention(text: str, name: str, *, suffix: str = "") -> tuple[bool, str]:
    """Return whether `@name` is in a text, and the text without it at the start; no name is never mentioned.

    Code holds no mention. Neither does a quote: it repeats what was answered before. Neither does an HTML
    comment, which is not shown: templates of issues hold hints there. `suffix` is a pattern of what may
    follow the name.
    """
    if not name:
        return False, text
    mention = re.compile(rf"(?<![\w@/`.-])@{re.escape(name)}(?:{suffix})?(?![\w-])", re.IGNORECASE)
    own = [line for line, is_code in fenced_lines(text) if not is_code and not is_quoted(line)]
    parts = [part for line in own for part, is_code in code_spans(line) if not is_code]
    start = mention.match(text)
    rest = text[start.end() :].lstrip(" ,:\n\t") if start else text
    return mention.search(without_comments(" ".join(parts))) is not None, rest


def make_update(
    text: str,
    command: tuple[str, str] | None,
    common: dict[str, Any],
    *,
    mention: bool,
    attachments: tuple[Attachment, ...] = (),
    edited: bool = False,
    **others: Any,
) -> Message | Command | IgnoredUpdate:
    """Return a command (its name and arguments), or a message; `common` are the fields that both have.

    `others` are further fields of a message.
    """
    if command is not None and not attachments and not edited:
        return Command(name=command[0], rest=command[1], **common)
    if not text and not attachments:
        return IgnoredUpdate(reason="a message with neither text nor file")
    common = {**common, **others, "attachments": attachments}
    return Message(text=text, mentions_bot=mention, edited=edited, **common)


def parse_update(
    text: str,
    common: dict[str, Any],
    *,
    mention: bool,
    attachments: tuple[Attachment, ...] = (),
    edited: bool = False,
) -> Message | Command | IgnoredUpdate:
    """Return the command or message of a text; after a mention, a command needs no slash.

    The parameters are those of `make_update`.
    """
    command = parse_mentioned(text) if mention else parse_slash(text)
    return make_update(text, command, common, mention=mention, attachments=attachments, edited=edited)
