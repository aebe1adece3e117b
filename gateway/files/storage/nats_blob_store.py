"""Blobs that replicas share: chunks in a JetStream stream, read one by one.

Each chunk is a message `file.<digest>.<number>`. The last message, `file.<digest>.end`, has their count; a
blob with this message is complete. Chunks are read by direct gets, because a consumer can lose messages
silently.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from delivery.broker.connection import NatsConnection
from delivery.errors import BrokerRefused, BrokerUnreachable
from gateway.files.storage.blob_store import CHUNK_BYTES, BlobNotFound, BlobStore

STREAM = "FILES"
_NOT_CLUSTERED = 10074
_EXISTS = 10058
_SECONDS = 10.0


class NatsBlobStore(BlobStore):
    """Stores blobs in one JetStream stream."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._ready = False

    async def write(self, digest: str, content: bytes) -> None:
        """Publish the chunks, each acknowledged, and then the end marker."""
        await self._ensure_stream()
        if await self._get_last(digest, "end") is not None:
            return
        chunks = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]
        for number, chunk in enumerate(chunks):
            await self._connection.publish(f"file.{digest}.{number}", chunk, timeout=_SECONDS)
        end = json.dumps({"chunks": len(chunks)}).encode()
        await self._connection.publish(f"file.{digest}.end", end, timeout=_SECONDS)

    async def read_chunks(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the chunks in order; raises BlobNotFound before the first."""
        await self._ensure_stream()
        end = await self._get_last(digest, "end")
        if end is None:
            raise BlobNotFound
        for number in range(int(json.loads(end)["chunks"])):
            chunk = await self._get_last(digest, str(number))
            if chunk is None:
                raise BlobNotFound
            yield chunk

    async def delete(self, digest: str) -> None:
        """Purge the end marker first, so that a partial blob is never read as a complete one."""
        await self._ensure_stream()
        for subject in (f"file.{digest}.end", f"file.{digest}.*"):
            answer = await self._connection.api_request(f"STREAM.PURGE.{STREAM}", {"filter": subject})
            if "error" in answer:
                raise BrokerRefused(f"stream {STREAM}: {answer['error'].get('description')}")

    async def _get_last(self, digest: str, part: str) -> bytes | None:
        found = await self._connection.direct_get(
            STREAM, {"multi_last": [f"file.{digest}.{part}"]}, timeout=_SECONDS
        )
        return found[0].data if found else None

    async def _ensure_stream(self) -> None:
        """Create the stream if it does not exist, with three replicas on a cluster."""
        if self._ready:
            return
        answer = await self._connection.api_request(f"STREAM.INFO.{STREAM}")
        if "error" in answer:
            answer = await self._create_stream(replicas=3)
        if answer.get("error", {}).get("err_code") == _NOT_CLUSTERED:
            answer = await self._create_stream(replicas=1)
        if "error" in answer and answer["error"].get("err_code") != _EXISTS:
            raise BrokerUnreachable(f"stream {STREAM}: {answer['error'].get('description')}")
        self._ready = True

    async def _create_stream(self, *, replicas: int) -> dict[str, Any]:
        wanted = {
            "name": STREAM,
            "subjects": ["file.*.*"],
            "retention": "limits",
            "discard": "old",
            "storage": "file",
            "num_replicas": replicas,
            "max_msgs_per_subject": 1,
            "allow_direct": True,
        }
        return await self._connection.api_request(f"STREAM.CREATE.{STREAM}", wanted)
