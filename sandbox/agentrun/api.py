"""Requests to AgentRun: its control plane lists sandboxes, its data plane does everything else."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp
from yarl import URL

from egress.guard import TRUSTED
from egress.sessions import open_session
from sandbox.agentrun.errors import error_for, foreign_answer, translate_errors
from sandbox.agentrun.settings import AgentRunSettings
from sandbox.agentrun.signature import (
    API_VERSION,
    AccessKey,
    canonical_query,
    control_headers,
    data_headers,
)
from sandbox.errors import ProviderRefused, ProviderUnauthorized, ProviderUnreachable, SandboxGone
from sandbox.model import SandboxId

COMMAND_SECONDS = 30.0
"""The data plane ends a command after so many seconds."""
REQUEST_SECONDS = 60.0
UPLOAD_SECONDS = 300.0
MAX_ANSWER_BYTES = 4 * 1024 * 1024
PAGE_SIZE, MAX_PAGES = 100, 1000
ENDED_STATES = frozenset({"TERMINATED", "DELETING", "DELETED"})
FAILED_STATES = frozenset({"FAILED", "CREATE_FAILED"})
READY = "READY"
_SUCCESS = "SUCCESS"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunSandboxInfo:
    """A sandbox as the service describes it."""

    id: SandboxId
    status: str
    template: str
    created: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutput:
    """What a command printed, and its exit code."""

    exit_code: int
    stdout: str
    stderr: str


class AgentRunApi:
    """The calls of the API that the provider needs."""

    def __init__(self, session: aiohttp.ClientSession, settings: AgentRunSettings) -> None:
        self._session = session
        self._settings = settings

    async def create(self, sandbox_id: SandboxId, *, template: str, idle_seconds: int) -> None:
        """Create a sandbox with an id of our own; raises ProviderRefused for an unknown template."""
        wanted = {
            "templateName": template,
            "sandboxIdleTimeoutSeconds": idle_seconds,
            "sandboxId": sandbox_id,
        }
        try:
            _described(await self._data("POST", "/sandboxes", wanted))
        except SandboxGone as error:
            raise ProviderRefused(f"{error}: check the template {template!r}") from error

    async def get(self, sandbox_id: SandboxId) -> AgentRunSandboxInfo:
        """Return a sandbox; raises SandboxGone."""
        return _described(await self._data("GET", f"/sandboxes/{sandbox_id}"))

    async def delete(self, sandbox_id: SandboxId) -> None:
        """Stop and delete a sandbox. Idempotent."""
        try:
            await self._data("DELETE", f"/sandboxes/{sandbox_id}")
        except SandboxGone:
            return

    async def touch(self, sandbox_id: SandboxId) -> None:
        """Send a request that resets the sandbox's idle timer."""
        await self._data("GET", f"/sandboxes/{sandbox_id}/health")

    async def run(self, sandbox_id: SandboxId, command: str) -> CommandOutput:
        """Run a command, which must end within COMMAND_SECONDS."""
        answer = await self._data(
            "POST", f"/sandboxes/{sandbox_id}/processes/cmd", {"command": command, "cwd": "/"}
        )
        result = answer.get("result")
        if not isinstance(result, Mapping) or not isinstance(result.get("exitCode"), int):
            raise ProviderUnreachable("agentrun: the answer to a command has no exit code")
        return CommandOutput(
            exit_code=result["exitCode"],
            stdout=str(result.get("stdout") or ""),
            stderr=str(result.get("stderr") or ""),
        )

    async def upload(self, sandbox_id: SandboxId, path: str, content: bytes) -> None:
        """Write a file."""
        form = aiohttp.FormData()
        form.add_field(
            "file", io.BytesIO(content), filename="content", content_type="application/octet-stream"
        )
        form.add_field("path", path)
        await self._data("POST", f"/sandboxes/{sandbox_id}/filesystem/upload", form=form)

    async def list(self) -> AsyncIterator[AgentRunSandboxInfo]:
        """Yield the sandboxes of the account that have not ended."""
        cursor = ""
        for _page in range(MAX_PAGES):
            query = {"maxResults": str(PAGE_SIZE)} | ({"nextToken": cursor} if cursor else {})
            data = await self._list_page(query)
            for one in data.get("items") or ():
                found = _info(one)
                if found.status not in ENDED_STATES:
                    yield found
            cursor = str(data.get("nextToken") or "")
            if not cursor:
                return
        raise ProviderUnreachable(f"agentrun: the list of sandboxes has more than {MAX_PAGES} pages")

    async def _list_page(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        url = f"{self._settings.control}/{API_VERSION}/sandboxes"
        headers = control_headers(
            self._key(),
            action="ListSandboxes",
            url=url,
            query=query,
            now=datetime.now(UTC),
            nonce=secrets.token_hex(16),
        )
        answer = await self._request("GET", f"{url}?{canonical_query(query)}", headers)
        data = answer.get("data")
        return data if isinstance(data, Mapping) else {}

    async def _data(
        self, method: str, path: str, body: Any = None, *, form: aiohttp.FormData | None = None
    ) -> Mapping[str, Any]:
        url = f"{self._settings.data}{path}"
        headers = data_headers(
            self._key(), method=method, url=url, region=self._settings.region, now=datetime.now(UTC)
        )
        return await self._request(method, url, headers, body=body, form=form)

    async def _request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        body: Any = None,
        form: aiohttp.FormData | None = None,
    ) -> Mapping[str, Any]:
        seconds = UPLOAD_SECONDS if form is not None else REQUEST_SECONDS
        with translate_errors():
            async with self._session.request(
                method,
                URL(url, encoded=True),
                headers=headers,
                json=body,
                data=form,
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=10),
                allow_redirects=False,
            ) as response:
                return _checked(response.status, await _read(response))

    def _key(self) -> AccessKey:
        settings = self._settings
        if settings.access_key_id is None or settings.access_key_secret is None:
            raise ProviderUnauthorized(
                "no key for agentrun: set AGENTRUN_ACCESS_KEY_ID and AGENTRUN_ACCESS_KEY_SECRET,"
                " or access_key_id and access_key_secret of [sandbox.agentrun]"
            )
        return AccessKey(id=settings.access_key_id, secret=settings.access_key_secret.get_secret_value())


async def _read(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    while chunk := await response.content.read(MAX_ANSWER_BYTES):
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            raise ProviderUnreachable(f"agentrun: an answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(content)


def _checked(status: int, content: bytes) -> Mapping[str, Any]:
    """Return the object of a successful answer; raises SandboxError for any other."""
    try:
        answer = json.loads(content) if content else {}
    except ValueError:
        answer = None
    if not isinstance(answer, Mapping):
        text = content[:200].decode(errors="replace")
        raise error_for(status, "", text) if status >= 400 else foreign_answer(status, text)  # noqa: PLR2004
    nested = answer.get("error")
    details = nested if isinstance(nested, Mapping) else answer
    code, message = str(details.get("code") or ""), str(details.get("message") or "")
    if status >= 300 or code not in {"", _SUCCESS}:  # noqa: PLR2004 - redirects are errors too
        raise error_for(status, code, message)
    return answer


def _described(answer: Mapping[str, Any]) -> AgentRunSandboxInfo:
    """Return the sandbox in an answer, which may stand below `data`."""
    data = answer.get("data")
    return _info(data if isinstance(data, Mapping) else answer)


def _info(given: Any) -> AgentRunSandboxInfo:
    fields = given if isinstance(given, Mapping) else {}
    return AgentRunSandboxInfo(
        id=SandboxId(str(fields.get("sandboxId") or "")),
        status=str(fields.get("status") or "").upper(),
        template=str(fields.get("templateName") or ""),
        created=str(fields.get("createdAt") or ""),
    )


@asynccontextmanager
async def open_api(settings: AgentRunSettings) -> AsyncIterator[AgentRunApi]:
    """Yield the API with an open session to the operator's addresses."""
    async with open_session(TRUSTED) as session:
        yield AgentRunApi(session, settings)
