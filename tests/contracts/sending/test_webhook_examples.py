"""The examples in the webhook documentation verify what we send, and refuse what we did not."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from delivery.webhooks.signing import new_secret, sign

TEXT = (Path(__file__).parents[3] / "docs" / "guide" / "webhooks.md").read_text(encoding="utf-8")
BODY = '{"text":"grüße"}'.encode()


def example(language: str) -> str:
    """Return the example of a language."""
    found = re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found[1]


def python_verifies(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Return whether the Python example accepts a message."""
    namespace: dict[str, object] = {}
    exec(example("python"), namespace)
    verify = namespace["verify"]
    assert callable(verify)
    try:
        verify(secret, headers, body)
    except ValueError:
        return False
    return True


def javascript_verifies(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Return whether the JavaScript example accepts a message."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    call = (
        f"verify({json.dumps(secret)}, {json.dumps(headers)}, Buffer.from({json.dumps(body.hex())}, 'hex'))"
    )
    done = subprocess.run(
        [node, "-e", example("javascript") + call], capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 0 or b"Error: " in done.stderr
    return done.returncode == 0


@pytest.mark.parametrize("verifies", [python_verifies, javascript_verifies])
def test_the_example_verifies_our_messages_and_no_others(verifies: object) -> None:
    """The example accepts a message signed by its secret, also during rotation, and refuses all others."""
    assert callable(verifies)
    old, new = new_secret(), new_secret()
    now = datetime.now(UTC)
    headers = sign([new, old], message_id="evt_1", moment=now, body=BODY)
    assert verifies(old, headers, BODY)
    assert verifies(new, headers, BODY)
    assert not verifies(new_secret(), headers, BODY)
    assert not verifies(new, headers, BODY + b" ")
    stale = sign([new], message_id="evt_1", moment=now - timedelta(minutes=6), body=BODY)
    assert not verifies(new, stale, BODY)
