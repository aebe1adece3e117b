"""The fault points of a sandbox's life, which `python -m bench.chaos.sandboxes` exercises."""

from __future__ import annotations

from gateway.observability.fault_points import FAULT_POINTS

TESTED_ELSEWHERE = {"sandbox.create", "sandbox.spawn.before", "sandbox.spawn.after"}
"""Points of one turn's sandbox and of jobs: `test_fault_points.py` kills there."""

SANDBOX_POINTS = [
    point for point in FAULT_POINTS if point.startswith("sandbox.") and point not in TESTED_ELSEWHERE
]
