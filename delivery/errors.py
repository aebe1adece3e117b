"""The errors of the broker, its streams and its leases.

DeliveryError         remedy    meaning
├── AppendConflict    retry     another writer appended first: read the tail and try again
├── EventsExpired     give_up   the requested position is older than the stored events (`first`, `missing_to`)
├── LeaseBusy         retry     another holder has the lease
├── LeaseLost         give_up   this process no longer holds the lease: stop at once, change nothing
├── BrokerUnreachable retry     the broker does not answer
└── BrokerRefused     operator  the broker refuses the request (quota, configuration)
    └── BrokerFull    retry     the broker has no space for messages until the operator makes some
"""

from __future__ import annotations

from typing import ClassVar, Literal

Remedy = Literal["retry", "give_up", "operator"]


def as_sentence(text: str) -> str:
    """Return a text that another program may have written, such as a vendor's error, with one full stop."""
    text = text.rstrip()
    return text if text.endswith(("!", "?", "…")) else f"{text.rstrip('.')}."


class DeliveryError(Exception):
    """An operation of delivery failed."""

    remedy: ClassVar[Remedy] = "retry"
    is_outage: ClassVar[bool] = False
    """Whether it fails all work alike, and not only what it was raised for."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or (self.__doc__ or "").strip())


class AppendConflict(DeliveryError):
    """Another writer appended first."""


class EventsExpired(DeliveryError):
    """The requested position is older than the events that the stream stores."""

    remedy = "give_up"

    def __init__(self, *, missing_to: int, first: int) -> None:
        super().__init__(f"events up to seq {missing_to} have expired; the first stored seq is {first}")
        self.missing_to = missing_to
        self.first = first


class LeaseBusy(DeliveryError):
    """Another holder has the lease."""


class LeaseLost(DeliveryError):
    """This process no longer holds the lease."""

    remedy = "give_up"


class BrokerUnreachable(DeliveryError):
    """The broker does not answer."""

    is_outage = True


class BrokerRefused(DeliveryError):
    """The broker refuses the request."""

    remedy: ClassVar[Remedy] = "operator"


class BrokerFull(BrokerRefused):
    """The NATS server has no space: raise max_file_store, or the account's limit, or delete other streams."""

    remedy = "retry"
    is_outage = True
