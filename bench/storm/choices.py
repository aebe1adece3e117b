"""Random choices of a storm: few names and the latest ids, so that requests meet at the same rows."""

from __future__ import annotations

import random
import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

NAMES = ("aa", "bb", "cc")
CONVERSATIONS = ("one", "two", "three")
ID = re.compile(r"([a-z]{2,5})_[0-9A-Za-z]{8,50}")
REMEMBERED = 6
"""How many ids of a kind a storm names: the latest ones, which other requests use too."""

Value = TypeVar("Value")


class Choices:
    """Chooses names, ids and bodies at random, from a seed. `receiver` is the address of webhooks."""

    def __init__(self, seed: int, *, receiver: str) -> None:
        self.receiver = receiver
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
        return self.one_of("default", *NAMES)

    def conversation(self) -> str:
        """Return a conversation: by one of three names, or by an id that was answered."""
        return self.one_of(*CONVERSATIONS, self.id("cnv"))

    def id(self, kind: str) -> str:
        """Return one of the last ids of a kind, such as `trn`; one that does not exist before the first."""
        known = self._ids[kind] or [f"{kind}_none"]
        return self._random.choice(known)

    def path(self, template: str) -> str:
        """Fill a path's places: `{name}`, `{agent}`, `{conversation}`, or a kind of id such as `{trn}`."""
        named = {"name": self.name, "agent": self.agent, "conversation": self.conversation}

        def fill(place: re.Match[str]) -> str:
            what = place[1]
            return named[what]() if what in named else self.id(what)

        return re.sub(r"\{(\w+)\}", fill, template)

    def remember(self, answer: Any) -> None:
        """Take the ids of an answer: later requests name them."""
        if isinstance(answer, Mapping):
            answer = list(answer.values())
        if isinstance(answer, list):
            for value in answer:
                self.remember(value)
        elif isinstance(answer, str) and (found := ID.fullmatch(answer)):
            self._ids[found[1]].append(answer)
