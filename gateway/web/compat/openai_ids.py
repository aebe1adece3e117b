"""Ids in OpenAI's spelling: `resp_…` and `chatcmpl-…` name a turn, `conv_…` a conversation, `call_…` a call.

    trn_01h…   resp_01h…   chatcmpl-01h…     the turn until it waits for a client's tools
               resp_01h…-7kq2m9xd             the turn after the client returned their results
    cnv_01h…   conv_01h…
    apr_01h…   call_01h…   fc_01h…, ctc_01h…  a call of a client's tool, and its item in a response
    fil_01h…   file-01h…                      an uploaded file

What follows the hyphen is the end of the id of the last of the calls before it, in the order they were made.
"""

from __future__ import annotations

import re
from typing import Literal

_ID = r"[0-9a-z]{26}"
_TURN = re.compile(rf"(?:trn_|resp_|chatcmpl-)({_ID})(?:-([0-9a-z]{{8}}))?")
_CONVERSATION = re.compile(rf"conv_({_ID})")
_CALL = re.compile(rf"(?:call|fc|ctc)_({_ID})")
SUFFIX = 8
"""Letters of the last answered call's id in a response's id."""

Kind = Literal["resp_", "chatcmpl-"]


def from_turn(turn: str, kind: Kind, *, after: str | None = None) -> str:
    """Return a turn's id; `after` is the approval of the last call that the client answered before."""
    return f"{kind}{turn.removeprefix('trn_')}{f'-{after[-SUFFIX:]}' if after else ''}"


def ending(approval: str | None) -> str:
    """Return the end of a call's id, which the ids of what follows the call have; empty for none."""
    return (approval or "")[-SUFFIX:]


def to_turn(given: str) -> tuple[str, str]:
    """Return the turn that an id names and the end of the last answered call's id, which may be empty."""
    found = _TURN.fullmatch(given)
    return (f"trn_{found[1]}", found[2] or "") if found else (given, "")


def from_conversation(conversation: str) -> str:
    """Return a conversation's id."""
    return f"conv_{conversation.removeprefix('cnv_')}"


def to_conversation(given: str) -> str:
    """Return the conversation that an id or a name names."""
    found = _CONVERSATION.fullmatch(given)
    return f"cnv_{found[1]}" if found else given


def from_approval(approval: str) -> str:
    """Return the id of the call that an approval stands for."""
    return f"call_{approval.removeprefix('apr_')}"


def from_file(file: str) -> str:
    """Return the id of an uploaded file."""
    return f"file-{file.removeprefix('fil_')}"


def to_file(given: str) -> str:
    """Return the stored file that an id names."""
    return f"fil_{given.removeprefix('file-')}" if given.startswith("file-") else given


def to_approval(given: str) -> str | None:
    """Return the approval that the id of a call, or of its item, names; None for an id that is not ours."""
    found = _CALL.fullmatch(given)
    return f"apr_{found[1]}" if found else None
