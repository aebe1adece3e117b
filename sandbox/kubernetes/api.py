"""Requests to the API server: JSON objects by path, retries that the server asks for, and WebSockets.

Paths and shapes are those of the Kubernetes API reference. The SDK supplies the access (kubeconfig, service
account, certificates, tokens and their renewal) and the connections.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.config import load_incluster_config, load_kube_config

from sandbox.errors import ProviderUnreachable, SandboxGone
from sandbox.kubernetes.errors import (
    REFUSED_BEFORE_START,
    TOO_MANY,
    PodUnavailable,
    error_of_answer,
    foreign_answer,
    translate_errors,
)
from sandbox.kubernetes.settings import KubernetesSettings

Object = Mapping[str, Any]
Query = Sequence[tuple[str, str]]

JSON, MERGE_PATCH = "application/json", "application/merge-patch+json"
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
PAGE_SIZE = "250"
TRIES, LONGEST_PAUSE_SECONDS = 5, 20.0
HEARTBEAT_SECONDS = 30.0
FIRST_ERROR = 400
SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class ClusterApi:
    """The API server as one user."""

    def __init__(self, client: ApiClient, timeout: float) -> None:
        self._client = client
        self._timeout = timeout

    async def find(self, path: str) -> Object | None:
        """Return an object; None if it does not exist."""
        try:
            return await self.request("GET", path)
        except SandboxGone:
            return None

    async def list(self, path: str, selector: str) -> Sequence[Object]:
        """Return all objects of a kind that have the labels, page by page."""
        found: list[Object] = []
        token = ""
        while True:
            query = [("labelSelector", selector), ("limit", PAGE_SIZE)]
            page = await self.request("GET", path, query=[*query, *([("continue", token)] if token else [])])
            found += page.get("items") or []
            token = str((page.get("metadata") or {}).get("continue") or "")
            if not token:
                return found

    async def create(self, path: str, body: Object) -> Object:
        """Create an object; raises ObjectConflict if its name is taken."""
        return await self.request("POST", path, body=body)

    async def replace(self, path: str, body: Object) -> Object:
        """Replace an object; raises ObjectConflict if it is newer than the body's resourceVersion."""
        return await self.request("PUT", path, body=body)

    async def patch(self, path: str, body: Object) -> Object:
        """Change the named fields of an object."""
        return await self.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def delete(self, path: str) -> None:
        """Delete an object, its dependents in the background. Idempotent."""
        try:
            await self.request("DELETE", path, body={"propagationPolicy": "Background"})
        except SandboxGone:
            return

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Object | None = None,
        content_type: str = JSON,
    ) -> Object:
        """Make a request; while the server asks for patience (429, or 503 with Retry-After), repeat it."""
        for attempt in range(TRIES):
            with translate_errors():
                try:
                    return await self._request_once(method, path, query, body, content_type)
                except ApiException as error:
                    pause = _pause_of(error)
                    if pause is None or attempt == TRIES - 1:
                        raise
            await asyncio.sleep(pause)
        raise ProviderUnreachable("the Kubernetes API server is overloaded")

    async def _request_once(
        self, method: str, path: str, query: Query, body: Object | None, content_type: str
    ) -> Object:
        response = await self._client.rest_client.request(
            method,
            self._url(path),
            query_params=cast("Any", list(query)),
            headers={"Content-Type": content_type, "Accept": JSON, **await self._headers()},
            body=body,
            _request_timeout=self._timeout,
        )
        async with asyncio.timeout(self._timeout):
            content = await response.aiohttp_response.read()
        try:
            found = json.loads(content)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise foreign_answer(response.status, content.decode(errors="replace"))
        return found

    @asynccontextmanager
    async def websocket(self, path: str, query: Query) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket with the channel protocol; raises PodUnavailable if the pod does not run."""
        rest = self._client.rest_client
        with translate_errors():
            try:
                async with asyncio.timeout(self._timeout):
                    socket = await rest.pool_manager.ws_connect(
                        f"{self._url(path)}?{urlencode(query)}",
                        headers=await self._headers(),
                        protocols=PROTOCOLS,
                        heartbeat=HEARTBEAT_SECONDS,
                        proxy=rest.proxy,
                        proxy_headers=rest.proxy_headers,
                    )
            except aiohttp.WSServerHandshakeError as error:
                if error.status in REFUSED_BEFORE_START:
                    raise PodUnavailable(f"kubernetes: the pod takes no command: {error.message}") from error
                if error.status < FIRST_ERROR:
                    raise foreign_answer(error.status, error.message) from error
                raise error_of_answer(error.status, None, error.message) from error
        async with socket:
            yield socket

    def _url(self, path: str) -> str:
        return f"{str(self._client.configuration.host).rstrip('/')}{path}"

    async def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": "dovecote"}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"])
        return headers


def _pause_of(error: ApiException) -> float | None:
    """Return the seconds after which the server wants to be asked again."""
    after = error.headers.get("Retry-After") if error.headers is not None else None
    if error.status != TOO_MANY and after is None:
        return None
    try:
        return min(max(float(after or 1), 0.0), LONGEST_PAUSE_SECONDS)
    except ValueError:
        return 1.0


@asynccontextmanager
async def open_api(settings: KubernetesSettings) -> AsyncIterator[ClusterApi]:
    """Yield the API server of the settings; raises ProviderRefused if they do not say how to reach it."""
    with translate_errors():
        configuration = await _configuration(settings)
    async with ApiClient(configuration) as client:
        yield ClusterApi(client, settings.api_timeout)


async def _configuration(settings: KubernetesSettings) -> Configuration:
    configuration = Configuration()
    if settings.api_url is not None:
        configuration.host = str(settings.api_url).rstrip("/")
        if settings.certificate_authority is not None:
            configuration.ssl_ca_cert = str(settings.certificate_authority)
        if settings.token is not None:
            configuration.api_key["BearerToken"] = f"Bearer {settings.token.get_secret_value()}"
    elif settings.kubeconfig is None and await asyncio.to_thread(SERVICE_ACCOUNT_TOKEN.is_file):
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        await load_kube_config(
            config_file=os.fspath(settings.kubeconfig) if settings.kubeconfig else None,
            context=settings.context or None,
            client_configuration=configuration,
            persist_config=False,
        )
    return configuration
