"""The dashboard and the alert rules name metrics and labels that a gateway has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from gateway.instrumentation import DEAD_KINDS, JOB_END_STATES, TURN_END_STATES
from gateway.observability.metrics import COUNTERS, FIRST_VALUES, GAUGES, HISTOGRAMS, Metrics
from gateway.store.turns.queue_depths import OLDEST_ROW_QUERIES

FOLDER = Path(__file__).parents[3] / "deploy" / "monitoring"
PAGE = (FOLDER.parents[1] / "docs" / "guide" / "operations.md").read_text()
METRIC = re.compile(r"\b(dovecote_[a-z_]+)(?:\{([^}]*)\})?")
LABEL = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
OF_PROMETHEUS = {"instance", "job", "le"}


def labels() -> dict[str, set[str]]:
    """Return the labels of each series that a gateway exposes, by its name in queries."""
    found = {f"dovecote_{name}_total": set(about[1]) for name, about in COUNTERS.items()}
    found |= {f"dovecote_{name}": set(about[1]) for name, about in GAUGES.items()}
    for name, about in HISTOGRAMS.items():
        found |= {f"dovecote_{name}_{part}": set(about[1]) for part in ("bucket", "sum", "count")}
    return found


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return list(group["rules"])


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the place of a query, and the query."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in json.loads((FOLDER / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("place", "query"), list(expressions()))
def test_a_query_names_what_there_is(place: str, query: str) -> None:
    """Each metric of a query is exposed, with the labels that the query selects and groups by."""
    known = labels()
    named = METRIC.findall(query)
    assert named or query.startswith("up{"), place  # Prometheus itself counts what it reaches
    allowed = set(OF_PROMETHEUS)
    for metric, selector in named:
        assert metric in known, f"{place}: there is no {metric}"
        allowed |= known[metric]
        assert set(LABEL.findall(selector)) <= known[metric] | OF_PROMETHEUS, f"{place}: {metric}"
    grouped = {name.strip() for names in re.findall(r"by \(([^)]*)\)", query) for name in names.split(",")}
    assert grouped <= allowed, place


VALUE = re.compile(r'(\w+)="([^"$]+)"')


@pytest.mark.parametrize(("place", "query"), list(expressions()))
def test_a_query_selects_values_that_occur(place: str, query: str) -> None:
    """The operations page names each value; one that is never set would make an alert that never fires."""
    for label, value in VALUE.findall(query):
        assert f"`{value}`" in PAGE or f'{label}="{value}"' in PAGE, f"{place}: {label} is never {value}"
    for queue in re.findall(r'oldest_seconds\{queue="([^"]+)"', query):
        assert queue in OLDEST_ROW_QUERIES, place


@pytest.mark.parametrize(
    ("place", "query"), [(place, query) for place, query in expressions() if "> 0" in query]
)
def test_an_alert_on_the_first_count_finds_a_zero_before_it(place: str, query: str) -> None:
    """Prometheus sees no increase in a series that begins with 1. Updates have a zero once a channel runs."""
    shown = Metrics().render().decode()
    for metric, selector in re.findall(r"^increase\((dovecote_[a-z_]+)(?:\{([^}]*)\})?", query):
        if metric != "dovecote_inbound_total":
            assert re.search(rf"^{metric}\{{{selector or '[^}]*'}\}} 0\.0$", shown, re.MULTILINE), place


def test_the_first_values_are_those_that_are_counted() -> None:
    """The states and kinds of instrumentation are all there from the start."""
    assert set(FIRST_VALUES["turns"][1]) == set(TURN_END_STATES.values())
    assert set(FIRST_VALUES["jobs"][1]) == set(JOB_END_STATES.values())
    assert set(FIRST_VALUES["dead"][1]) == {*DEAD_KINDS.values(), "turn"}


def test_the_names_are_those_of_the_exposition() -> None:
    """What the queries are compared with is what `/metrics` shows."""
    text = Metrics().render().decode()
    declared = set(re.findall(r"^# TYPE (dovecote_\w+)", text, re.MULTILINE))
    declared -= {name for name in declared if name.endswith("_created")}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in labels()}
    assert families == declared


def test_the_rules_say_what_to_do() -> None:
    """Each alert has a severity, a summary and a remedy."""
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert {"summary", "description"} <= set(rule["annotations"])
    assert len({rule["alert"] for rule in rules()}) == len(rules())


def test_a_gateway_that_is_gone_is_an_alert() -> None:
    """Its own series are gone with it, so no rule about their values would fire."""
    assert "absent(dovecote_build)" in {query for _place, query in expressions()}
    assert "dovecote_build" in labels()


@pytest.mark.parametrize(
    "part",
    [
        'up{job="dovecote"} == 0',  # one of several replicas; absent() is about all of them
        "deliveries.parked|deliveries.ambiguous",
        'dovecote_channels{state=~"stalled|trouble"}',
    ],
)
def test_what_waits_for_an_operator_is_an_alert(part: str) -> None:
    """A lost replica, messages that are retried aside, and a bot whose credentials are refused."""
    assert any(part in rule["expr"] for rule in rules())


def run_promtool(*arguments: str) -> None:
    """Run promtool, which must find nothing wrong; the test is skipped where it is not installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool, of Debian's package prometheus")
    done = subprocess.run([promtool, *arguments], capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_prometheus_accepts_the_rules() -> None:
    """`promtool check rules` finds nothing."""
    run_promtool("check", "rules", str(FOLDER / "alerts.yaml"))


COUNTED_AT_THE_START = """
rule_files: [{rules}]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - series: {metric}{{instance="a",{label}}}
        values: 1x400 _x8 1x300
      - series: process_start_time_seconds{{instance="a"}}
        values: 0x400 _x8 6060x300
    alert_rule_test:
      - {{eval_time: 90m, alertname: {alert}, exp_alerts: []}}
      - eval_time: 105m
        alertname: {alert}
        exp_alerts:
          - exp_labels: {{severity: warning, instance: a, {exported}}}
            exp_annotations: {{summary: "{summary}", description: "{description}"}}
      - {{eval_time: 170m, alertname: {alert}, exp_alerts: []}}
"""


@pytest.mark.parametrize(
    ("alert", "metric", "label"),
    [
        ("DovecoteDeadLetters", "dovecote_dead_total", 'kind="turn"'),
        ("DovecoteJobsLost", "dovecote_jobs_total", 'state="lost"'),
    ],
)
def test_what_a_new_process_counts_at_its_start_is_an_alert(
    alert: str, metric: str, label: str, tmp_path: Path
) -> None:
    """The new process has counted to 1 when Prometheus first asks it, as the one before had."""
    (rule,) = (rule for rule in rules() if rule["alert"] == alert)
    summary = rule["annotations"]["summary"].replace("{{ $labels.kind }}", "turn")
    case = tmp_path / "case.yaml"
    case.write_text(
        COUNTED_AT_THE_START.format(
            rules=FOLDER / "alerts.yaml",
            alert=alert,
            metric=metric,
            label=label,
            exported=label.replace("=", ": "),
            summary=summary,
            description=rule["annotations"]["description"],
        )
    )
    run_promtool("test", "rules", str(case))


RESTARTS = """
rule_files: [{rules}]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - series: dovecote_build{{instance="a",version="1"}}
        values: 1x400
      - series: dovecote_build{{instance="updated",version="1"}}
        values: 1x400
      - series: process_start_time_seconds{{instance="a"}}
        values: 0x100 1500x20 1800x20 2100x20 2400x240
      - series: process_start_time_seconds{{instance="updated"}}
        values: 0x100 1500x300
      - series: process_start_time_seconds{{instance="another program"}}
        values: 0x100 1500x20 1800x20 2100x20 2400x240
    alert_rule_test:
      - {{eval_time: 25m, alertname: DovecoteRestarts, exp_alerts: []}}
      - eval_time: 42m
        alertname: DovecoteRestarts
        exp_alerts:
          - exp_labels: {{severity: critical, instance: a}}
            exp_annotations: {{summary: "a ends again and again", description: "{description}"}}
      - {{eval_time: 80m, alertname: DovecoteRestarts, exp_alerts: []}}
"""


def test_a_gateway_that_ends_again_and_again_is_an_alert(tmp_path: Path) -> None:
    """Its series are never gone for long; an update restarts it once, and other programs do not count."""
    (rule,) = (rule for rule in rules() if rule["alert"] == "DovecoteRestarts")
    case = tmp_path / "case.yaml"
    description = rule["annotations"]["description"]
    case.write_text(RESTARTS.format(rules=FOLDER / "alerts.yaml", description=description))
    run_promtool("test", "rules", str(case))
