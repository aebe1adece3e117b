"""Random choices of a storm: few names and the latest ids, so that requests meet at the same rows."""

from __future__ import annotations

import random
import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

NAMES = ("aa", "bb", "cc")
CONVERSATIONS = ("one", "two", "three")
ID = re.compile(r"([a-z]{2,5})_[0-9A-Za-z]{20,50}")
DEFAULT = "default"
THINKER = "thinker"
"""The agents of each account that no request deletes: one runs commands, the other asks a model."""

REMEMBERED = 6
"""How many ids of a kind a storm names: the latest ones, which other requests use too."""

FOREIGN_SHARE = 0.03
"""How often an id is chosen among those of all accounts."""

Value = TypeVar("Value")


class Choices:
    """Chooses names, ids and bodies for an account at random, from a seed.

    `receiver` is an address for webhooks. `owners` tells which account has an id; accounts that share it name
    ids of each other now and then.
    """

    def __init__(
        self, seed: int, *, receiver: str, account: str = "own", owners: dict[str, str] | None = None
    ) -> None:
        self.receiver = receiver
        self.account = account
        self.protected: set[str] = set()
        self._owners = {} if owners is None else owners
        self._random = random.Random(seed)
        self._ids: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    def one_of(self, *values: Value) -> Value:
        """Return one of the values."""
        return self._random.choice(values)

    def chance(self, share: float) -> bool:
        """Return true for so large a share of the calls."""
        return self._random.random() < share

    def weighted(self, values: Sequence[Value], weights: Sequence[float]) -> Value:
        """Return one of the values; larger weights are chosen more often."""
        chosen: Value = self._random.choices(values, weights)[0]
        return chosen

    def word(self) -> str:
        """Return a text that no other request has."""
        return f"{self._random.random():.9f}"

    def name(self) -> str:
        """Return one of three names of records."""
        return self.one_of(*NAMES)

    def agent(self) -> str:
        """Return an agent's name: the default agent, which always exists, or one that may be deleted."""
        return self.one_of(DEFAULT, *NAMES)

    def conversation(self) -> str:
        """Return a conversation: by one of three names, or by an id that was answered."""
        return self.one_of(*CONVERSATIONS, self.id("cnv"))

    def id(self, kind: str) -> str:
        """Return one of the last ids of a kind, such as `trn`; one that does not exist before the first."""
        known: Sequence[str] = self._ids[kind] or [f"{kind}_none"]
        if self.chance(FOREIGN_SHARE):
            known = [one for one in self._owners if one.startswith(f"{kind}_")] or known
        return self._random.choice(known)

    def foreign_ids(self, text: str) -> list[str]:
        """Return the ids in a text that belong to another account."""
        found = (match[0] for match in ID.finditer(text))
        return [one for one in found if self._owners.get(one, self.account) != self.account]

    def path(self, template: str) -> str:
        """Fill places: `{name}`, `{agent}`, `{thinker}`, `{conversation}`, or a kind such as `{trn}`."""
        named = {
            "name": self.name,
            "agent": self.agent,
            "thinker": lambda: THINKER,
            "conversation": self.conversation,
        }

        def fill(place: re.Match[str]) -> str:
            what = place[1]
            return named[what]() if what in named else self.id(what)

        return re.sub(r"\{(\w+)\}", fill, template)

    def remember(self, answer: Any) -> None:
        """Take the ids of an answer, except `protected` ones: later requests name them, and delete things."""
        if isinstance(answer, Mapping):
            answer = list(answer.values())
        if isinstance(answer, list):
            for value in answer:
                self.remember(value)
        elif isinstance(answer, str) and answer not in self.protected and (found := ID.fullmatch(answer)):
            self._owners.setdefault(answer, self.account)
            self._ids[found[1]].append(answer)
