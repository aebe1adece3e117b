"""How long a channel has not received what people say, and why."""

from __future__ import annotations

from collections.abc import Callable

from channels.port import Receiving

GRACE = 60.0
"""Seconds a channel may be without updates before its process is not ready: a hand-over, a short outage."""

STEADY = 5.0
"""Seconds it has to receive before that counts: two pollers of one bot cut each other off again and again."""


class Listening(Receiving):
    """One channel's ear in this process; `clock` counts seconds and never goes back.

    It is open while updates arrive here, or while it stands by for another replica that receives.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard_at = self._changed_at = clock()
        self.receives = False
        self.stands_by = False
        self.has_begun = False
        self.why = ""

    def __call__(self, yes: bool, why: str = "", /) -> None:  # noqa: FBT001 - the port's signature
        """Take whether updates arrive, and why they do not; a reason stays until they do."""
        self._change(receives=yes, stands_by=self.stands_by, why=why)

    def fall_silent(self, why: str = "") -> None:
        """Take that nothing listens any more."""
        self._change(receives=False, stands_by=self.stands_by, why=why)

    def stand_by(self, *, yes: bool, why: str = "") -> None:
        """Take whether another replica receives, and why that cannot be known."""
        self._change(receives=self.receives, stands_by=yes, why=why)

    @property
    def is_open(self) -> bool:
        """Whether what people say is received now, here or by another replica."""
        return self.receives or self.stands_by

    @property
    def is_deaf(self) -> bool:
        """Whether it has not been open steadily for longer than GRACE."""
        return self._clock() - self._last_heard() > GRACE

    def _last_heard(self) -> float:
        now = self._clock()
        return now if self.is_open and now - self._changed_at >= STEADY else self._heard_at

    def _change(self, *, receives: bool, stands_by: bool, why: str) -> None:
        was_open, self._heard_at = self.is_open, self._last_heard()
        self.receives, self.stands_by = receives, stands_by
        if self.is_open is not was_open:
            self._changed_at = self._clock()
        self.has_begun = self.has_begun or self.is_open
        self.why = why or self.why
