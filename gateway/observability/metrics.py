"""The Prometheus metrics of a gateway: name, kind, labels and help text in one catalogue.

A label never contains an id or a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector

from gateway.observability.samples import Catalogue, Samples

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)

COUNTERS: Catalogue = {
    "messages": ("messages accepted from people", ()),
    "inbound": ("platform updates, by outcome", ("platform", "kind", "outcome")),
    "turns": ("turns that ended, by final state", ("state",)),
    "turn_restarts": ("turns restarted after an interruption", ()),
    "tool_calls": ("tool calls started, by tool", ("tool",)),
    "deliveries": ("delivery attempts, by kind of route and outcome", ("route", "outcome")),
    "dead": ("dead letters that wait for an operator, by kind", ("kind",)),
    "jobs": ("background jobs that ended, by final state", ("state",)),
    "sandbox_seconds": ("seconds of active sandboxes, by reason of their end", ("provider", "reason")),
    "tokens": ("model tokens, by model and direction", ("model", "direction")),
    "model_requests": ("requests to models", ("model",)),
    "cost": ("cost of models, in the currency of the prices", ("model",)),
    "budget_refusals": ("turns refused because a budget is used up", ("whose",)),
    "budget_warnings": ("warnings that most of a budget is used", ("whose",)),
    "storage_refusals": ("files refused because the account's storage is full", ()),
    "events": ("events published to conversation streams, by type", ("type",)),
    "lease_changes": ("leases acquired, found busy, failed or lost, by kind", ("kind", "change")),
    "http_requests": ("requests answered, by route and status", ("method", "route", "status")),
    "log_lines": ("warnings and errors logged, by part of the program", ("level", "area")),
}
_WHOSE = ("account", "agent", "person")
FIRST_VALUES: Mapping[str, tuple[str, Sequence[str]]] = {
    "turns": ("state", ("completed", "failed", "cancelled")),
    "dead": ("kind", ("turn", "job", "delivery", "webhook")),
    "jobs": ("state", ("completed", "failed", "stopped", "lost")),
    "budget_refusals": ("whose", _WHOSE),
    "budget_warnings": ("whose", _WHOSE),
}
"""Counters that are there from the start, as 0, with their label and its values.

Prometheus sees no increase in a series that begins with its first count, so an alert would miss that one.
"""
GAUGES: Catalogue = {
    "queue_depth": ("waiting rows, by queue", ("queue",)),
    "queue_oldest_seconds": ("age of the oldest waiting row, by queue", ("queue",)),
    "sandboxes": ("live sandboxes, by state", ("state",)),
    "leases": ("leases held by this process, by kind", ("kind",)),
    "channels": ("channels of this process, by state", ("state",)),
    "stream_fill_ratio": ("used share of the event log's capacity, 0 to 1", ()),
    "stream_days": ("days of events that the event log holds at the present rate", ()),
    "broker_up": ("1 while NATS answers this process and stores messages", ()),
    "database_up": ("1 while the database answers this process", ()),
    "disk_free_bytes": ("free bytes of the data directory's disk, and of disks mounted in it", ("disk",)),
    "build": ("always 1; the label is the version", ("version",)),
}
HISTOGRAMS: Catalogue = {
    "turn_seconds": ("seconds from a turn's start to its end", ()),
    "turn_wait_seconds": ("seconds from a turn's acceptance to its start", ()),
    "model_seconds": (
        "seconds of one model request, by the agent's first model",
        ("model", "outcome"),
    ),
    "tool_seconds": ("seconds of one tool call, by tool", ("tool",)),
    "job_seconds": ("seconds from a job's start to its end", ()),
    "delivery_seconds": ("seconds of one delivery attempt, by kind of route", ("route",)),
    "delivery_lag_seconds": ("seconds from an event to its delivery, by kind of route", ("route",)),
    "hop_seconds": ("seconds until a message's next step, by step", ("hop",)),
    "http_seconds": ("seconds of one answered request, by route", ("route",)),
}


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of one gateway process, in their own registry."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    gauges: dict[str, Gauge] = field(init=False, default_factory=dict)
    _samples: Samples = field(
        init=False, default_factory=lambda: Samples("dovecote_", COUNTERS, HISTOGRAMS, BUCKETS), repr=False
    )

    def __post_init__(self) -> None:
        """Register every metric under its public name."""
        ProcessCollector(registry=self.registry)
        self.registry.register(self._samples)
        for name, (about, labels) in GAUGES.items():
            self.gauges[name] = Gauge(f"dovecote_{name}", about, labels, registry=self.registry)
        for name, (label, values) in FIRST_VALUES.items():
            for value in values:
                self.count(name, 0, **{label: value})

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter of the catalogue."""
        self._samples.count(name, max(amount, 0), labels)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge of the catalogue."""
        gauge = self.gauges[name]
        (gauge.labels(**labels) if labels else gauge).set(value)

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Record one duration in seconds; a negative one, from two clocks, counts as 0."""
        self._samples.observe(name, max(seconds, 0.0), labels)

    def count_request(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Record an answered request; a stream has no duration."""
        self.count("http_requests", method=method, route=route, status=str(status))
        if seconds is not None:
            self.observe("http_seconds", seconds, route=route)

    def render(self) -> bytes:
        """Return the exposition text for `/metrics`."""
        return generate_latest(self.registry)
