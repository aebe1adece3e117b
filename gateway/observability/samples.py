"""Counters and histograms as plain numbers, which a scrape collects.

The metrics of prometheus_client take five calls for each sample, and a message has thirty samples. So they
are counted here; names, labels and format stay those of the library, by its custom collectors.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from threading import Lock
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Catalogue = Mapping[str, tuple[str, tuple[str, ...]]]
"""Help text and labels by name."""

Sample = TypeVar("Sample")


class _Count:
    """The value of a counter with certain labels."""

    __slots__ = ("amount",)

    def __init__(self) -> None:
        self.amount = 0.0


class _Durations:
    """How many durations are in each bucket of a histogram with certain labels, and their sum."""

    __slots__ = ("counts", "seconds")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.seconds = 0.0


class _Series(Generic[Sample]):
    """The samples of a catalogue by name and labels, which callers name in any order."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.known: dict[tuple[str, ...], Sample] = {}
        """By name, the names of the labels and their values, in the order of a call."""
        self.by_labels: dict[str, dict[tuple[str, ...], Sample]] = {name: {} for name in catalogue}

    def add(self, name: str, labels: Mapping[str, str], sample: Sample) -> Sample:
        """Add a sample, unless there is one; raises KeyError, ValueError for labels that the name lacks."""
        names = self._catalogue[name][1]
        if labels.keys() != set(names):
            raise ValueError(f"the labels of {name} are {names}, not {tuple(labels)}")
        sample = self.by_labels[name].setdefault(tuple(labels[one] for one in names), sample)
        self.known[name, *labels, *labels.values()] = sample
        return sample


class Samples(Collector):
    """The counters and histograms of a process. A metric without labels is there from the start, as 0."""

    def __init__(
        self, prefix: str, counters: Catalogue, histograms: Catalogue, buckets: Sequence[float]
    ) -> None:
        self._prefix = prefix
        self._catalogues = counters, histograms
        self._buckets = (*buckets, float("inf"))
        self._lock = Lock()
        self._counts = _Series[_Count](counters)
        self._durations = _Series[_Durations](histograms)
        for name in (name for name, (_about, labels) in counters.items() if not labels):
            self._counts.add(name, {}, _Count())
        for name in (name for name, (_about, labels) in histograms.items() if not labels):
            self._durations.add(name, {}, _Durations(len(self._buckets)))

    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        """Add to a counter."""
        counted = self._counts.known.get((name, *labels, *labels.values()))
        counted = counted or self._counts.add(name, labels, _Count())
        with self._lock:
            counted.amount += amount

    def observe(self, name: str, seconds: float, labels: Mapping[str, str]) -> None:
        """Add a duration to a histogram."""
        found = self._durations.known.get((name, *labels, *labels.values()))
        found = found or self._durations.add(name, labels, _Durations(len(self._buckets)))
        with self._lock:
            found.counts[bisect_left(self._buckets, seconds)] += 1
            found.seconds += seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        counters, histograms = self._catalogues
        for name, (about, labels) in counters.items():
            counter = CounterMetricFamily(f"{self._prefix}{name}", about, labels=labels)
            for values, counted in list(self._counts.by_labels[name].items()):
                counter.add_metric(values, counted.amount)
            yield counter
        for name, (about, labels) in histograms.items():
            histogram = HistogramMetricFamily(f"{self._prefix}{name}", about, labels=labels)
            for values, found in list(self._durations.by_labels[name].items()):
                with self._lock:
                    counts, seconds = list(accumulate(found.counts)), found.seconds
                limits = map(floatToGoString, self._buckets)
                histogram.add_metric(values, list(zip(limits, counts, strict=True)), seconds)
            yield histogram
