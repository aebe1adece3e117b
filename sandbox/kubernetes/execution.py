"""Run a program in a pod over the WebSocket of `pods/exec`.

Each message begins with the number of its channel: 0 stdin, 1 stdout, 2 stderr, 3 the final status. The
command line is a part of the URL, which the API server logs, so it only names how many bytes to read: the
program and its input are sent as stdin. Stdin need not be closed, which version 4 of the protocol cannot do.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from sandbox.errors import OutcomeUnknown, ProviderRefused, outcome_unknown
from sandbox.exec.command_timeout import command_timeout
from sandbox.exec.scripts import program
from sandbox.kubernetes.api import ClusterApi
from sandbox.kubernetes.errors import PodUnavailable, translate_errors
from sandbox.kubernetes.objects import CONTAINER

STDIN, STDOUT, STDERR, STATUS = range(4)
CHUNK_BYTES = 32 * 1024
OTHER_POD = 113
"""The exit code of receive.sh in a pod that is not the expected one."""

MAX_OUTPUT_BYTES = 128 * 1024 * 1024
"""The most bytes that one program may return; more is an attack on the gateway's memory."""


@dataclass(kw_only=True)
class PodExecution:
    """What a program has returned so far; `status` is the final one."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    status: dict[str, Any] | None = None

    def add(self, message: bytes) -> None:
        """Take a message of the server; raises ProviderRefused if there is too much output."""
        channel, content = message[:1], message[1:]
        if channel == bytes([STATUS]):
            self.status = json.loads(content)
        elif channel == bytes([STDOUT]):
            self.stdout += content
        elif channel == bytes([STDERR]):
            self.stderr += content[: CHUNK_BYTES - len(self.stderr)]
        if len(self.stdout) > MAX_OUTPUT_BYTES:
            raise ProviderRefused("kubernetes: a program returned too much output")

    def output(self) -> bytes:
        """Return the output of a program that ended with 0.

        Raises PodUnavailable if the pod is another one, ProviderRefused, OutcomeUnknown.
        """
        if self.status is None:
            raise OutcomeUnknown("kubernetes: the connection to the pod ended before the program did")
        code = exit_code(self.status)
        if code == OTHER_POD:
            raise PodUnavailable("kubernetes: the pod has been replaced")
        if code != 0:
            message = self.stderr[-500:].decode(errors="replace").strip() or self.status.get("message")
            raise ProviderRefused(f"kubernetes: a program ended with {code}: {message}")
        return bytes(self.stdout)


def exit_code(status: dict[str, Any]) -> int | None:
    """Return the exit code of a final status; None if the program could not be started."""
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or []
    codes = [cause.get("message") for cause in causes if cause.get("reason") == "ExitCode"]
    return int(codes[0]) if codes and str(codes[0]).isdigit() else None


async def run_program(
    api: ClusterApi,
    pod: str,
    uid: str,
    text: str,
    *,
    stdin: bytes,
    timeout: float,
    container: str = CONTAINER,
) -> bytes:
    """Run a shell program in a pod (its API path and its uid), with the path of its input in `$input`."""
    place = f"/tmp/.dovecote-{secrets.token_hex(8)}"  # noqa: S108 - inside the pod
    sent = f"input={place}/input\n{text}\n".encode("utf-8", "surrogateescape")
    command = ["sh", "-c", program("receive.sh"), "dovecote", place, str(len(sent)), str(len(stdin)), uid]
    execution, query = PodExecution(), exec_query(command, container=container)
    try:
        async with command_timeout(timeout), api.websocket(f"{pod}/exec", query) as socket:
            with outcome_unknown(), translate_errors():
                await _send(socket, sent + stdin)
                await _receive(socket, execution)
    except TimeoutError as error:
        raise OutcomeUnknown(f"kubernetes: a program did not end within {timeout:g} seconds") from error
    return execution.output()


def exec_query(command: Sequence[str], *, container: str = CONTAINER) -> list[tuple[str, str]]:
    """Return the query of an exec with all three streams."""
    streams = [(name, "true") for name in ("stdin", "stdout", "stderr")]
    return [("container", container), *streams, *(("command", word) for word in command)]


async def _send(socket: aiohttp.ClientWebSocketResponse, content: bytes) -> None:
    """Send the whole of stdin; a program that ends before it has read all of it tells so by its status."""
    try:
        for begin in range(0, len(content), CHUNK_BYTES):
            await socket.send_bytes(bytes([STDIN]) + content[begin : begin + CHUNK_BYTES])
    except ConnectionError:
        return


async def _receive(socket: aiohttp.ClientWebSocketResponse, execution: PodExecution) -> None:
    while execution.status is None:
        message = await socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            execution.add(message.data)
        elif message.type is aiohttp.WSMsgType.TEXT:
            execution.add(message.data.encode())
        else:
            return
