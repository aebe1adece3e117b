"""Report a job's end to the gateway, with retries for ten minutes."""

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
    """Posts the outcome of one job."""

    def __init__(self, request: CompletionRequest) -> None:
        self._request = request

    def report(self, exit_code: int, output: bytes, *, truncated: bool) -> bool:
        """Retry until an answer is final (2xx and 4xx) or the time is up; return which."""
        payload = self._payload(exit_code, output, truncated=truncated)
        end = time.monotonic() + self._request.patience
        pause = FIRST_PAUSE_SECONDS
        while not _is_final(self._attempt(payload)):
            if time.monotonic() + pause >= end:
                return False
            time.sleep(pause * (0.8 + os.urandom(1)[0] / 640))  # 0.8 to 1.2: spreads retries
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
        """Return the HTTP status of one attempt, or 0 if there was no answer."""
        secret = memfd_of(self._request.secret)
        argv = [word.replace("{secret}", str(secret)) for word in self._request.argv]
        try:
            completed = subprocess.run(  # noqa: S603 - our own program
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
            return int(completed.stdout)
        return 0


def _is_final(status: int) -> bool:
    return 200 <= status < 300 or (400 <= status < 500 and status not in _RETRYABLE)  # noqa: PLR2004 - HTTP's classes


def program_path() -> Path:
    """Return the file of the program that posts."""
    return Path(__file__).with_name("post_completion.py")
