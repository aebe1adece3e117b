"""What a simulator can do is used by a test: a failure that no test meets proves nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIMULATORS = sorted((ROOT / "channels").glob("*/simulator/simulator.py"))
USERS = (*(ROOT / "tests").rglob("*.py"), *(ROOT / "channels" / "testing").rglob("*.py"))


def _actions(source: Path) -> Iterator[str]:
    """Yield the public coroutine methods of a simulator: what people, admins and the platform do."""
    for defined in ast.parse(source.read_text()).body:
        if isinstance(defined, ast.ClassDef):
            for method in defined.body:
                if isinstance(method, ast.AsyncFunctionDef) and not method.name.startswith("_"):
                    yield method.name


@pytest.mark.parametrize("source", SIMULATORS, ids=lambda source: source.parts[-3])
def test_every_action_of_a_simulator_is_used_by_a_test(source: Path) -> None:
    """An action or a failure is called by a test, or by another part of its simulator."""
    folder = [path for path in source.parent.glob("*.py") if path.name != "control.py"]
    used = set()
    for path in (*USERS, *folder):
        used |= set(re.findall(r"\.(\w+)\b", path.read_text()))
    assert set(_actions(source)) <= used
