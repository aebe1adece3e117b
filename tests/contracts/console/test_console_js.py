"""The console's own code, under node's test runner; and that it handles every type of event."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from delivery.events.event import TRANSIENT, EventType

NODE = shutil.which("node")
CASES = sorted((Path(__file__).parent).glob("*.test.mjs"))


@pytest.mark.skipif(NODE is None, reason="node is not installed, which runs the console's unit tests")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_consoles_code_keeps_its_promises(case: Path) -> None:
    """Every test of the page's pure parts passes."""
    assert NODE is not None
    done = subprocess.run(
        [NODE, "--test", "--test-reporter=tap", str(case)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def exported(module: str, expression: str) -> object:
    """Return a value of one of the console's modules as node evaluates it."""
    assert NODE is not None
    path = Path(__file__).parents[3] / "gateway" / "console" / module
    script = f"import * as module from {json.dumps(path.as_uri())}; console.log(JSON.stringify({expression}))"
    done = subprocess.run(
        [NODE, "--input-type=module", "--eval", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(NODE is None, reason="node is not installed, which runs the console's unit tests")
def test_a_conversation_shows_every_type_of_event_or_names_it_as_not_shown() -> None:
    """A new type must be read by the timeline, or be in its list of types that are seen elsewhere."""
    known = exported("core/timeline.js", "[module.SHOWN_TYPES, Object.keys(module.TYPES_ELSEWHERE)]")
    assert isinstance(known, list)
    shown, elsewhere = map(set, known)
    assert shown & elsewhere == set()
    assert shown | elsewhere == set(EventType)


@pytest.mark.skipif(NODE is None, reason="node is not installed, which runs the console's unit tests")
def test_a_trace_has_words_for_every_event_of_a_turn() -> None:
    """Types that are not stored, or belong to no conversation, are in no trace."""
    words = exported("work/step_words.js", "Object.keys(module.STEP_WORDS)")
    assert isinstance(words, list)
    never = TRANSIENT | {EventType.WEBHOOK_TEST, EventType.WEBHOOK_DISABLED}
    assert {*words} - {"accepted"} == set(EventType) - never
