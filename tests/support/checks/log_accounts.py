"""Which lines of a gateway's log name something of an account, and not the account."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_OF_AN_ACCOUNT = re.compile(
    r" (?:approval|channel|conversation|delivery|job|schedule|turn|webhook)=(?!None)\S|\bkind=webhook\b"
)
_AREA = re.compile(r"\[(?:gateway|delivery|sandbox|egress)[.\w]*\]")


def lines_without_account(log: Iterable[str]) -> Sequence[str]:
    """Return the lines in which an operator of many accounts cannot see whose turn, job or channel it is.

    Adapters are left out: they have ids of their platform alone.
    """
    return [
        line
        for line in log
        if _AREA.search(line) and _OF_AN_ACCOUNT.search(line) and not re.search(r" account=\S", line)
    ]
