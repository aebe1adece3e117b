"""Invoke a function so that a program runs at most once, even if an answer is lost or the caller cancelled.

Each run has a key of its own and a claim, an object that can be created once. The function runs the program
only if it creates the claim. If an answer is lost, the gateway tries to create the claim itself: if it can,
the program has not started and never will, and is sent again under a new key. Otherwise the program has
started, and the gateway waits for the result that the function stores.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from sandbox.aws_lambda.api import invoke
from sandbox.aws_lambda.errors import AnswerLost, FunctionTimedOut
from sandbox.errors import CommandInterrupted, OutcomeUnknown, ProviderUnreachable
from sandbox.s3 import Bucket, ObjectNotFound, put_if_absent, read_body, translate_errors

log = structlog.get_logger(__name__)

STORE = "runs"
MAX_INLINE_BYTES = 1 << 20
"""A larger request is an object; Lambda accepts 6 MB."""

MAX_RESULT_BYTES = 96 * 1024 * 1024
URL_SECONDS_BEYOND = 120
SENDS = 2
"""How often a program is sent that has certainly not started."""

POLL_SECONDS = 0.5
_GATEWAY = b"gateway"
CANCEL_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run: the function, where it works, and for how many seconds.

    `directory` is the sandbox's directory on the file system, or empty.
    """

    function: str
    tenant: str
    namespace: str
    directory: str
    seconds: float
    program: str = ""
    stdin: bytes = b""
    remove: bool = False


class Invocations:
    """Runs programs in functions; `functions` and `objects` are clients of Lambda and of the bucket."""

    def __init__(self, functions: Any, objects: Any, bucket: Bucket, *, url_seconds: int) -> None:
        self._functions = functions
        self._objects = objects
        self._bucket = bucket
        self._url_seconds = url_seconds + URL_SECONDS_BEYOND

    async def run(self, request: RunRequest) -> bytes:
        """Return what a program printed.

        Raises FunctionTimedOut and SandboxError. When it is cancelled, the program is dead, or will never
        start, before this returns; if Lambda does not answer, the program ends at its own time-out.
        """
        key = secrets.token_hex(16)
        task = asyncio.create_task(self._run(request, key))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await self._cancel(key, task)
            raise
        return task.result()

    async def _run(self, request: RunRequest, key: str) -> bytes:
        for number in range(SENDS):
            attempt = f"{key}-{number}"
            try:
                return await self._run_once(request, attempt)
            except AnswerLost as error:
                log.warning("lambda.answer_lost", function=request.function, run=attempt, error=str(error))
                if not await self._claim(attempt):
                    return await self._await_result(attempt, request.seconds)
                lost = error
        raise ProviderUnreachable(f"{lost}; the command has not been started")

    async def _run_once(self, request: RunRequest, attempt: str) -> bytes:
        event = await self._event(request, attempt)
        payload = json.dumps(event).encode()
        answer = _parse(await invoke(self._functions, request.function, payload, tenant=request.tenant))
        if answer.get("state") == "claimed":
            return await self._result_of_other(attempt, request.seconds)
        if answer.get("state") == "stored":
            return await self._await_result(attempt, 0.0)
        await self._forget(attempt, "result", *(["input"] if "input" in event else []))
        return _output(answer)

    async def _result_of_other(self, attempt: str, seconds: float) -> bytes:
        """Return the result of another invocation of the same attempt, unless the gateway has claimed it."""
        with translate_errors(attempt, STORE):
            claim = await self._objects.get_object(**self._key(attempt, "claim"))
            if await read_body(claim, len(_GATEWAY) + 1) == _GATEWAY:
                raise ProviderUnreachable("the command was cancelled before it began")
        return await self._await_result(attempt, seconds)

    async def _event(self, request: RunRequest, attempt: str) -> Mapping[str, Any]:
        work = {"program": request.program, "stdin": base64.b64encode(request.stdin).decode()}
        event: dict[str, Any] = {
            "claim": await self._url("put_object", attempt, "claim", IfNoneMatch="*"),
            "result": await self._url("put_object", attempt, "result"),
            "cancel": await self._url("get_object", attempt, "cancel"),
            "namespace": request.namespace,
            "directory": request.directory,
            "remove": request.remove,
        }
        if len(request.program) + len(work["stdin"]) <= MAX_INLINE_BYTES:
            return event | work
        await self._put(attempt, "input", json.dumps(work).encode())
        return event | {"input": await self._url("get_object", attempt, "input")}

    async def _await_result(self, attempt: str, seconds: float) -> bytes:
        """Wait until the function has stored its result."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds + CANCEL_SECONDS
        is_late = False
        while not is_late:
            is_late = loop.time() >= deadline  # looks once more: a gateway that was paused may be late
            try:
                with translate_errors(attempt, STORE):
                    answer = await self._objects.get_object(**self._key(attempt, "result"))
                    content = await read_body(answer, MAX_RESULT_BYTES)
                await self._forget(attempt, "result")
                return _output(_parse(content))
            except ObjectNotFound:
                await asyncio.sleep(POLL_SECONDS)
        raise OutcomeUnknown("the answer of lambda was lost")

    async def _cancel(self, key: str, task: asyncio.Task[bytes]) -> None:
        """Kill a program that has started, and prevent one that has not."""
        names = [f"{key}-{number}" for number in range(SENDS)]
        stopping = asyncio.gather(*map(self._stop, names), return_exceptions=True)
        both = asyncio.gather(stopping, task, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await both

    async def _stop(self, attempt: str) -> None:
        if not await self._claim(attempt):
            await self._put(attempt, "cancel", b"")

    async def _claim(self, attempt: str) -> bool:
        return await put_if_absent(self._objects, self._key(attempt, "claim"), _GATEWAY, STORE)

    async def _put(self, attempt: str, name: str, content: bytes) -> None:
        with translate_errors(name, STORE):
            await self._objects.put_object(**self._key(attempt, name), Body=content)

    async def _forget(self, attempt: str, *names: str) -> None:
        """Delete what a run stored, if the store answers; the bucket deletes the rest after a day."""
        await asyncio.gather(
            *(self._objects.delete_object(**self._key(attempt, name)) for name in names),
            return_exceptions=True,
        )

    def _key(self, attempt: str, name: str) -> dict[str, str]:
        return self._bucket.key(f"runs/{attempt}/{name}")

    async def _url(self, method: str, attempt: str, name: str, **conditions: str) -> str:
        with translate_errors(name, STORE):
            return str(
                await self._objects.generate_presigned_url(
                    method, Params={**self._key(attempt, name), **conditions}, ExpiresIn=self._url_seconds
                )
            )


def _output(answer: Mapping[str, Any]) -> bytes:
    """Return what the program printed; raises FunctionTimedOut or CommandInterrupted if it was killed."""
    if answer.get("state") == "removed":
        raise CommandInterrupted
    if answer.get("state") == "killed":
        raise FunctionTimedOut("the function's time-out was near")
    return str(answer.get("output", "")).encode()


def _parse(content: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ProviderUnreachable(f"invalid answer of the function: {content[:200]!r}")
    return answer
