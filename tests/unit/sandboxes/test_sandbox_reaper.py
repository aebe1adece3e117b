"""What the reaper does about a row, and whose sandbox is whose."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sandbox.labels import Owner, Scope, effective_scope, installation_prefix, sandbox_label
from sandbox.lifecycle.reaper import ReaperAction, next_action
from sandbox.lifecycle.reservations import SandboxRequest, mark_ready, mark_stopped, reserve, suspend
from sandbox.model import SandboxId, SandboxSpec, external_id

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = SandboxSpec(label="l", namespace="n", persistent=True, idle_timeout=900, max_lifetime=86400)
OWNER = Owner(account="acc_1", scope=Scope.WORKSPACE, conversation="cnv_1", workspace="wsp_1")
CREATING = reserve(SandboxRequest(spec=SPEC, owner=OWNER, provider="p"), NOW)
READY = mark_ready(CREATING, SandboxId("one"), NOW)
EPHEMERAL = replace(READY, persistent=False)
EXTERNAL = mark_ready(CREATING, external_id("somebody-elses"), NOW)
STOPPED = replace(mark_stopped(READY, NOW), snapshot="l/1-abc")


@pytest.mark.parametrize(
    ("row", "after", "running", "decision"),
    [
        (CREATING, 30, 0, ReaperAction.KEEP),
        (CREATING, 51, 0, ReaperAction.ABANDON),
        (READY, 899, 0, ReaperAction.KEEP),
        (READY, 900, 0, ReaperAction.SUSPEND),
        (READY, 5000, 1, ReaperAction.KEEP),
        (READY, 86400, 1, ReaperAction.EXPIRE),
        (suspend(READY, NOW), 5000, 0, ReaperAction.KEEP),
        (suspend(READY, NOW), 86400, 0, ReaperAction.EXPIRE),
        (EPHEMERAL, 30, 0, ReaperAction.KEEP),
        (EPHEMERAL, 61, 1, ReaperAction.KEEP),
        (EPHEMERAL, 61, 0, ReaperAction.FINISH),
        (STOPPED, 86400, 0, ReaperAction.KEEP),
        (STOPPED, 31 * 86400, 0, ReaperAction.DELETE),
        (mark_stopped(READY, NOW), 1, 0, ReaperAction.DELETE),
        (EXTERNAL, 900, 0, ReaperAction.SUSPEND),
        (EXTERNAL, 86400, 1, ReaperAction.KEEP),
        (suspend(EXTERNAL, NOW), 86400 * 365, 0, ReaperAction.KEEP),
    ],
)
def test_a_row_is_judged_by_age_idleness_and_jobs(
    row: object, after: float, running: int, decision: ReaperAction
) -> None:
    """Idle ones sleep, those whose time is over end, and none sleeps while a job runs in it."""
    assert next_action(row, NOW + timedelta(seconds=after), running=running) is decision  # type: ignore[arg-type]


def _label(**changes: object) -> str:
    return sandbox_label("here", "p", replace(OWNER, **changes), persistent=True)  # type: ignore[arg-type]


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
    assert mine.startswith(installation_prefix("here"))
    assert not sandbox_label("there", "p", OWNER, persistent=True).startswith(installation_prefix("here"))


def test_the_default_scope_follows_the_workspace() -> None:
    """WORKSPACE if there is one, else SESSION; USER only if the user is known."""
    assert effective_scope(None, workspace="wsp_1", person="") is Scope.WORKSPACE
    assert effective_scope(None, workspace=None, person="") is Scope.SESSION
    assert effective_scope("WORKSPACE", workspace=None, person="") is Scope.SESSION
    assert effective_scope("USER", workspace=None, person="") is Scope.SESSION
    assert effective_scope("USER", workspace="wsp_1", person="ada") is Scope.USER
    assert effective_scope("GLOBAL", workspace="wsp_1", person="") is Scope.GLOBAL
