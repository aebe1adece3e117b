"""The table of metrics in the operator's document is the catalogue, and labels stay few."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from gateway.observability.gauges import area_of, count_log_lines
from gateway.observability.metrics import COUNTERS, GAUGES, HISTOGRAMS, Metrics

DOCUMENT = Path(__file__).parents[2] / "docs" / "guide" / "operations.md"
ROW = re.compile(r"^\| `(dovecote_\w+)` \| (\w+) \| ([\w, ]*) ?\| (.+?) \| (.*?) ?\|$", re.MULTILINE)
BOUNDED = {
    "platform", "kind", "outcome", "state", "tool", "route", "provider", "reason", "model", "direction",
    "disk", "whose", "type", "change", "method", "status", "level", "area", "queue", "version", "hop",
}  # fmt: skip


def test_the_table_is_the_catalogue() -> None:
    """The document has name, type, labels and meaning of every metric, in the catalogue's order."""
    reported = [
        (name, kind, labels.strip(), about)
        for name, kind, labels, about, _ in ROW.findall(DOCUMENT.read_text())
    ]
    kinds = (("counter", "_total", COUNTERS), ("gauge", "", GAUGES), ("histogram", "", HISTOGRAMS))
    assert reported == [
        (f"dovecote_{name}{suffix}", kind, ", ".join(labels), about)
        for kind, suffix, catalogue in kinds
        for name, (about, labels) in catalogue.items()
    ]


def test_the_registry_is_the_catalogue() -> None:
    """The metrics that are served under our name are exactly those of the catalogue."""
    served = {family.name for family in Metrics().registry.collect() if family.name.startswith("dovecote_")}
    assert served == {f"dovecote_{name}" for part in (COUNTERS, GAUGES, HISTOGRAMS) for name in part}


def test_no_label_can_hold_an_id() -> None:
    """Labels are words from a closed list of kinds of things, none of which is an id or a person."""
    used = {
        label for part in (COUNTERS, GAUGES, HISTOGRAMS) for _, labels in part.values() for label in labels
    }
    assert used <= BOUNDED


def test_areas_are_few() -> None:
    """Lines are counted by package, platform or provider; all libraries together are one."""
    assert area_of("channels.telegram.receive.receiver") == "channels.telegram"
    assert area_of("gateway.web.server") == "gateway"
    assert area_of("nats.aio.client") == "libraries"


def test_warnings_and_errors_are_counted() -> None:
    """Lines from WARNING on are counted by area, whatever log level is set."""
    metrics, log = Metrics(), logging.getLogger("channels.telegram.receive.receiver")
    with count_log_lines(metrics):
        log.warning("an update was left out")
        log.error("worse")
        log.info("nothing")
    log.warning("after")
    text = metrics.render().decode()
    for level in ("warning", "error"):
        assert f'dovecote_log_lines_total{{area="channels.telegram",level="{level}"}} 1.0' in text
