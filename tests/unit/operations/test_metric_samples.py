"""Counters and histograms are exposed as those of prometheus_client are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gateway.observability.samples import Samples

COUNTERS = {"plain": ("a counter", ()), "labelled": ("one with labels", ("kind", "state"))}
HISTOGRAMS = {"seconds": ("a histogram", ()), "part_seconds": ("one with a label", ("part",))}
BUCKETS = (0.005, 0.1, 1, 30)
WORDS = st.sampled_from(["a", "b", 'quoted "word"', "two\nlines"])
VALUES = st.floats(0, 100) | st.sampled_from(BUCKETS)
COUNTED: st.SearchStrategy[tuple[str, float, dict[str, str]]] = st.one_of(
    st.tuples(st.just("plain"), VALUES, st.just({})),
    st.tuples(st.just("labelled"), VALUES, st.fixed_dictionaries({"kind": WORDS, "state": WORDS})),
    st.tuples(st.just("labelled"), VALUES, st.fixed_dictionaries({"state": WORDS, "kind": WORDS})),
)
OBSERVED: st.SearchStrategy[tuple[str, float, dict[str, str]]] = st.one_of(
    st.tuples(st.just("seconds"), VALUES, st.just({})),
    st.tuples(st.just("part_seconds"), VALUES, st.fixed_dictionaries({"part": WORDS})),
)


def exposed(registry: CollectorRegistry) -> list[str]:
    """Return the lines of a scrape without the times at which metrics were created."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@given(st.lists(COUNTED), st.lists(OBSERVED))
def test_a_scrape_is_as_that_of_the_library(
    counted: list[tuple[str, float, dict[str, str]]], observed: list[tuple[str, float, dict[str, str]]]
) -> None:
    """For any values and labels, in any order: names, buckets, sums and escapes."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    samples = Samples("app_", COUNTERS, HISTOGRAMS, BUCKETS)
    ours.register(samples)
    counters = {
        name: Counter(f"app_{name}", about, labels, registry=theirs)
        for name, (about, labels) in COUNTERS.items()
    }
    histograms = {
        name: Histogram(f"app_{name}", about, labels, registry=theirs, buckets=BUCKETS)
        for name, (about, labels) in HISTOGRAMS.items()
    }
    for name, value, labels in counted:
        samples.count(name, value, labels)
        (counters[name].labels(**labels) if labels else counters[name]).inc(value)
    for name, value, labels in observed:
        samples.observe(name, value, labels)
        (histograms[name].labels(**labels) if labels else histograms[name]).observe(value)
    assert exposed(ours) == exposed(theirs)


def test_a_name_or_label_that_is_in_no_catalogue_is_an_error() -> None:
    """At the call, not at the scrape."""
    samples = Samples("app_", COUNTERS, HISTOGRAMS, BUCKETS)
    with pytest.raises(KeyError):
        samples.count("unknown", 1, {})
    with pytest.raises(ValueError, match="labels of labelled"):
        samples.count("labelled", 1, {"kind": "a"})
    with pytest.raises(ValueError, match="labels of seconds"):
        samples.observe("seconds", 1, {"part": "a"})
