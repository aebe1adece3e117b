"""The example receivers accept what the gateway signs, once, and refuse everything else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from delivery.webhooks.signing import new_secret, sign

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "webhook-receivers"
BODY = json.dumps({"type": "agent.finished", "turn": "trn_1", "data": {"output": "grüße"}}).encode()


@dataclass(frozen=True, slots=True)
class RunningReceiver:
    """A receiver, where it listens and its secret."""

    child: subprocess.Popen[str]
    port: int
    secret: str

    def post(self, headers: dict[str, str], body: bytes) -> int:
        """Send a request and return the status."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/", data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture(
    params=[[sys.executable, "receiver.py"], ["node", "receiver.mjs"]], ids=["python", "javascript"]
)
def receiver(request: pytest.FixtureRequest) -> Iterator[RunningReceiver]:
    """Run an example on a free port, with two secrets as during a rotation."""
    program, file = request.param
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    secret = new_secret()
    env = {**os.environ, "WEBHOOK_SECRET": f"{new_secret()},{secret}", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [program, file, "0"],
        cwd=FOLDER,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline().rpartition(" ")[2])
        try:
            yield RunningReceiver(child, port, secret)
        finally:
            child.kill()


def test_a_receiver_acts_once_on_what_was_signed(receiver: RunningReceiver) -> None:
    """A repeated webhook is confirmed and not handled again; a changed, foreign or old one is refused."""
    now = datetime.now(UTC)
    headers = sign([receiver.secret], message_id="evt_1", moment=now, body=BODY)
    assert [receiver.post(headers, BODY) for _time in range(2)] == [204, 204]
    assert receiver.post(headers, BODY + b" ") == 400
    assert receiver.post(sign([new_secret()], message_id="evt_2", moment=now, body=BODY), BODY) == 400
    old = sign([receiver.secret], message_id="evt_3", moment=now - timedelta(minutes=6), body=BODY)
    assert receiver.post(old, BODY) == 400
    assert receiver.post({"webhook-id": "evt_4"}, BODY) == 400
    last = sign([receiver.secret], message_id="evt_5", moment=now, body=BODY)
    assert receiver.post(last, BODY) == 204
    assert receiver.child.stdout is not None
    handled = [json.loads(receiver.child.stdout.readline()) for _line in range(2)]
    assert handled == [{"type": "agent.finished", "turn": "trn_1", "output": "grüße"}] * 2
