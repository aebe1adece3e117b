"""Telling the gateway that a job has ended, until it listens or ten minutes have passed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

from sandbox.host.run.job_spec import CompletionRequest, memfd_of

OUTPUT_BYTES = 256 * 1024
ATTEMPT_TIMEOUT_SECONDS = 30.0
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 5.0
_RETRYABLE = frozenset({408, 425, 429})


class CompletionReporter:
    """Posts one job's outcome."""

    def __init__(self, request: CompletionRequest) -> None:
        self._request = request

    def report(self, exit_code: int, output: bytes, *, truncated: bool) -> bool:
        """Try until an answer settles it (2xx and 4xx do) or patience ends; say which."""
        payload = self._payload(exit_code, output, truncated=truncated)
        end = time.monotonic() + self._request.patience
        pause = FIRST_PAUSE_SECONDS
        while not _is_final(self._attempt(payload)):
            if time.monotonic() + pause >= end:
                return False
            time.sleep(pause * (0.8 + os.urandom(1)[0] / 640))  # between 0.8 and 1.2, so that jobs spread
            pause = min(pause * 2, MAX_PAUSE_SECONDS)
        return True

    def _payload(self, exit_code: int, output: bytes, *, truncated: bool) -> bytes:
        text = output[-OUTPUT_BYTES:].decode("utf-8", "replace")
        while len(text.encode()) > OUTPUT_BYTES:
            text = text[len(text) // 8 :]
        more = {"truncated": True} if truncated or len(output) > OUTPUT_BYTES else {}
        body = json.dumps({"exit_code": exit_code, "output": text, **more}, ensure_ascii=False)
        post = self._request
        fields = {"socket": post.socket, "path": post.path, "token": post.token, "body": body}
        return json.dumps(fields).encode()

    def _attempt(self, payload: bytes) -> int:
        """Return the HTTP status of one try, 0 for none."""
        secret = memfd_of(self._request.secret)
        argv = [word.replace("{secret}", str(secret)) for word in self._request.argv]
        try:
            answer = subprocess.run(  # noqa: S603 - our own program
                argv,
                input=payload,
                capture_output=True,
                pass_fds=(secret,),
                timeout=ATTEMPT_TIMEOUT_SECONDS,
                env={},
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return 0
        finally:
            os.close(secret)
        with contextlib.suppress(ValueError):
            return int(answer.stdout)
        return 0


def _is_final(status: int) -> bool:
    return 200 <= status < 300 or (400 <= status < 500 and status not in _RETRYABLE)  # noqa: PLR2004 - HTTP's classes


def program_path() -> Path:
    """Return the file of the program that posts."""
    return Path(__file__).with_name("post_completion.py")
