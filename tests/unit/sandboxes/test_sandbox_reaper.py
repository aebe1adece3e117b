"""What the reaper does about a row, and whose sandbox is whose."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sandbox.labels import Owner, Scope, label_of, prefix_of, scope_of
from sandbox.lifecycle.reaper import Verdict, judge
from sandbox.lifecycle.reservations import Wanted, cold, ready, reserved, suspended
from sandbox.model import SandboxId, Spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = Spec(label="l", namespace="n", persistent=True, idle_timeout=900, max_lifetime=86400)
OWNER = Owner(account="acc_1", scope=Scope.WORKSPACE, conversation="cnv_1", workspace="wsp_1")
MAKING = reserved(Wanted(spec=SPEC, owner=OWNER, provider="p"), NOW)
READY = ready(MAKING, SandboxId("one"), NOW)
PASSING = replace(READY, persistent=False)
COLD = replace(cold(READY, NOW), snapshot="l/1-abc")


@pytest.mark.parametrize(
    ("row", "after", "running", "verdict"),
    [
        (MAKING, 30, 0, Verdict.KEEP),
        (MAKING, 51, 0, Verdict.ABANDON),
        (READY, 899, 0, Verdict.KEEP),
        (READY, 900, 0, Verdict.SUSPEND),
        (READY, 5000, 1, Verdict.KEEP),
        (READY, 86400, 1, Verdict.EXPIRE),
        (suspended(READY, NOW), 5000, 0, Verdict.KEEP),
        (suspended(READY, NOW), 86400, 0, Verdict.EXPIRE),
        (PASSING, 30, 0, Verdict.KEEP),
        (PASSING, 61, 1, Verdict.KEEP),
        (PASSING, 61, 0, Verdict.FINISH),
        (COLD, 86400, 0, Verdict.KEEP),
        (COLD, 31 * 86400, 0, Verdict.FORGET),
        (cold(READY, NOW), 1, 0, Verdict.FORGET),
    ],
)
def test_a_row_is_judged_by_age_idleness_and_jobs(
    row: object, after: float, running: int, verdict: Verdict
) -> None:
    """Idle ones sleep, those whose time is over end, and none sleeps while a job runs in it."""
    assert judge(row, NOW + timedelta(seconds=after), running=running) is verdict  # type: ignore[arg-type]


def _label(**changes: object) -> str:
    return label_of("here", "p", replace(OWNER, **changes), persistent=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scope", "same", "other"),
    [
        (Scope.WORKSPACE, {"conversation": "cnv_2", "person": "x"}, {"workspace": "wsp_2"}),
        (Scope.SESSION, {"person": "x", "agent": "agt_2"}, {"conversation": "cnv_2"}),
        (Scope.USER, {"conversation": "cnv_2"}, {"person": "somebody else"}),
        (Scope.AGENT, {"conversation": "cnv_2", "person": "x"}, {"agent": "agt_2"}),
        (Scope.GLOBAL, {"conversation": "cnv_2", "agent": "agt_2", "person": "x"}, {"account": "acc_2"}),
    ],
)
def test_a_scope_says_who_shares(scope: Scope, same: dict[str, str], other: dict[str, str]) -> None:
    """Within a scope the label is one; beyond it, in another account or installation, it is another."""
    mine = _label(scope=scope)
    assert mine == _label(scope=scope, **same)
    assert mine != _label(scope=scope, **other)
    assert mine != _label(scope=scope, account="acc_9")
    assert mine.startswith(prefix_of("here"))
    assert not label_of("there", "p", OWNER, persistent=True).startswith(prefix_of("here"))


def test_the_default_scope_follows_the_workspace() -> None:
    """WORKSPACE where there is one, else SESSION; USER only where somebody is known."""
    assert scope_of(None, workspace="wsp_1", person="") is Scope.WORKSPACE
    assert scope_of(None, workspace=None, person="") is Scope.SESSION
    assert scope_of("WORKSPACE", workspace=None, person="") is Scope.SESSION
    assert scope_of("USER", workspace=None, person="") is Scope.SESSION
    assert scope_of("USER", workspace="wsp_1", person="ada") is Scope.USER
    assert scope_of("GLOBAL", workspace="wsp_1", person="") is Scope.GLOBAL
