"""What can go wrong on the way back.

DeliveryError         remedy    meaning
├── Conflict          retry     another writer appended first: read the tail and try again
├── Trimmed           give_up   the position asked for is older than what is kept (`first`, `missing_to`)
├── Busy              retry     the lease is held elsewhere
├── LeaseLost         give_up   we no longer hold the lease: stop at once, change nothing
├── Unreachable       retry     the broker does not answer
└── Refused           operator  the broker refuses (no space, quota, configuration)
"""

from __future__ import annotations

from typing import ClassVar, Literal

Remedy = Literal["retry", "give_up", "operator"]


class DeliveryError(Exception):
    """The way back is obstructed."""

    remedy: ClassVar[Remedy] = "retry"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or (self.__doc__ or "").strip())


class AppendConflict(DeliveryError):
    """Another writer appended first."""


class EventsExpired(DeliveryError):
    """The position asked for is older than what the stream keeps."""

    remedy = "give_up"

    def __init__(self, *, missing_to: int, first: int) -> None:
        super().__init__(f"events up to {missing_to} are no longer kept; the first kept is {first}")
        self.missing_to = missing_to
        self.first = first


class LeaseBusy(DeliveryError):
    """The lease is held elsewhere."""


class LeaseLost(DeliveryError):
    """The lease is no longer ours."""

    remedy = "give_up"


class BrokerUnreachable(DeliveryError):
    """The broker does not answer."""


class BrokerRefused(DeliveryError):
    """The broker refuses."""

    remedy = "operator"
