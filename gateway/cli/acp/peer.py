"""JSON-RPC over standard input and output, one message a line, with requests in both directions."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from gateway.cli.errors import CommandFailed, print_error
from gateway.cli.terminal.stdin_lines import stdin_lines

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002
CANCEL_REQUEST = "$/cancel_request"
MAX_OUTGOING = 1000
"""Messages that wait for the editor to read."""

Message = dict[str, Any]
Handler = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


class RpcError(Exception):
    """The error of a request, with its code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class JsonRpcPeer:
    """One side of a connection; it ends when the input ends."""

    def __init__(self) -> None:
        self._incoming: asyncio.Queue[str | None] = asyncio.Queue()
        self._outgoing: asyncio.Queue[Message] = asyncio.Queue(MAX_OUTGOING)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._handling: dict[str | int, Message] = {}
        self._ids = count(1)
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, handle: Handler) -> None:
        """Handle the requests and notifications of the other side, several at a time."""
        async with self._group:
            self.start(self._write())
            with stdin_lines(sys.stdin.fileno(), self._incoming.put_nowait):
                while (line := await self._incoming.get()) is not None:
                    await self._receive(line, handle)
            for task in self._tasks:
                task.cancel()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start something that runs until it ends or the input does, and return its task."""
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification; waits while the other side does not read."""
        await self._outgoing.put({"jsonrpc": "2.0", "method": method, "params": dict(params)})

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        """Send a request and return its result; raises RpcError. If it is cancelled, the other side hears."""
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)}
        try:
            await self._outgoing.put(message)
            return await self._answers[number]
        except asyncio.CancelledError:
            cancel = {"jsonrpc": "2.0", "method": CANCEL_REQUEST, "params": {"requestId": number}}
            with suppress(asyncio.QueueFull):
                self._outgoing.put_nowait(cancel)
            raise
        finally:
            del self._answers[number]

    def request_of(self, identity: object) -> Message | None:
        """Return the other side's request with an id, while it is handled."""
        return self._handling.get(identity) if isinstance(identity, str | int) else None

    async def _receive(self, line: str, handle: Handler) -> None:
        try:
            message = json.loads(line) if line.strip() else {}
        except ValueError:
            await self._outgoing.put(_failure(None, RpcError(PARSE_ERROR, "the line is no JSON")))
            return
        if not isinstance(message, dict):
            await self._outgoing.put(_failure(None, RpcError(INVALID_REQUEST, "the message is no object")))
        elif "method" in message:
            self.start(self._handle(message, handle))
        else:
            self._on_answer(message)

    def _on_answer(self, message: Message) -> None:
        answer = self._answers.get(message["id"]) if isinstance(message.get("id"), int) else None
        if answer is None or answer.done():
            return
        error = message.get("error")
        if isinstance(error, dict):
            code = error.get("code")
            answer.set_exception(
                RpcError(code if isinstance(code, int) else INTERNAL_ERROR, str(error.get("message")))
            )
        else:
            answer.set_result(message.get("result"))

    async def _handle(self, message: Message, handle: Handler) -> None:
        params, identity = message.get("params"), message.get("id")
        if isinstance(identity, str | int):
            self._handling[identity] = message
        try:
            given = params if isinstance(params, dict) else {}
            answer = {"jsonrpc": "2.0", "id": identity, "result": await handle(str(message["method"]), given)}
        except RpcError as error:
            answer = _failure(identity, error)
        except CommandFailed as error:
            answer = _failure(identity, RpcError(INTERNAL_ERROR, str(error)))
        except Exception as error:  # noqa: BLE001 - the other sessions of the editor go on
            answer = _failure(identity, RpcError(INTERNAL_ERROR, f"a defect of dovecote: {error!r}"))
        finally:
            if isinstance(identity, str | int):
                self._handling.pop(identity, None)
        if identity is not None:
            await self._outgoing.put(answer)
        elif "error" in answer:
            print_error(str(answer["error"]["message"]))

    async def _write(self) -> None:
        while True:
            message = await self._outgoing.get()
            line = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            await asyncio.to_thread(_write_line, line)


def _failure(identity: object, error: RpcError) -> Message:
    return {"jsonrpc": "2.0", "id": identity, "error": {"code": error.code, "message": str(error)}}


def _write_line(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
