"""Store snapshots in Redis: one string for each, which appears with its whole content.

A file is appended in pieces to a key of its own, which expires within an hour if its upload is interrupted,
and then renamed in one step. Redis keeps all of it in memory, and a string has at most 512 MiB.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import asyncio as redis_client
from redis import exceptions as vendor
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sandbox.errors import ProviderRefused, ProviderUnauthorized, ProviderUnreachable, SandboxError
from sandbox.snapshots.port import SnapshotNotFound, SnapshotStore

CHUNK_BYTES = 1 << 20
MAX_BYTES = 512 * 1024 * 1024
UPLOAD_SECONDS = 3600
"""Seconds after which an interrupted upload is gone."""
TIMEOUT_SECONDS = 30.0
DAY_SECONDS = 86_400
_UPLOAD = "upload:"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisStoreOptions:
    """The server, the prefix of all keys, and how long a snapshot is kept unread (0: always)."""

    url: str = field(repr=False)
    prefix: str = "dovecote:"
    ttl_days: int = 60


class RedisSnapshotStore(SnapshotStore):
    """Strings below a prefix. Reading a snapshot renews its time."""

    def __init__(self, client: Any, options: RedisStoreOptions) -> None:
        self.client = client
        self._options = options

    def _key(self, name: str) -> str:
        return f"{self._options.prefix}snapshots:{name}"

    async def put(self, name: str, archive: Path) -> None:
        """Append the file to an upload's key, then rename it."""
        size = await asyncio.to_thread(lambda: archive.stat().st_size)
        if size > MAX_BYTES:
            raise ProviderRefused(
                f"the snapshot has {size} bytes, and Redis stores {MAX_BYTES} at most: set"
                " sandbox.snapshot_limit_mb to 512 or less, or store snapshots in s3"
            )
        upload = f"{self._options.prefix}{_UPLOAD}{secrets.token_hex(16)}"
        try:
            with _translate_errors():
                await self._upload(upload, archive)
                async with self.client.pipeline(transaction=True) as change:
                    change.rename(upload, self._key(name))
                    self._renew(change, name)
                    await change.execute()
        except SandboxError:
            with suppress(vendor.RedisError, OSError):  # a server that is away forgets it in an hour
                await self.client.unlink(upload)
            raise

    async def _upload(self, upload: str, archive: Path) -> None:
        """Append the file; raises ProviderUnreachable if the server has lost, or repeated, a piece of it.

        A server that was started again may have none of the pieces before, or evict them when it is full. A
        piece whose answer is lost is sent again.
        """
        sent = 0
        await self.client.set(upload, b"", ex=UPLOAD_SECONDS)
        with archive.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                sent += len(chunk)
                stored = await self.client.append(upload, chunk)
                if stored != sent:
                    raise ProviderUnreachable(f"redis has {stored} of {sent} bytes of the upload")

    async def get(self, name: str, into: Path) -> None:
        """Renew the string's time, and read it in pieces.

        A replica that only reads, as after a fail-over, is read without that. Raises ProviderUnreachable if
        the string ends early, because it expired or its server was replaced meanwhile.
        """
        key = self._key(name)
        with _translate_errors():
            with suppress(vendor.ReadOnlyError):
                await self._renew(self.client, name)
            exists, size = await self.client.exists(key), await self.client.strlen(key)
            if not exists:
                raise SnapshotNotFound(name)
            with into.open("wb") as file:
                for start in range(0, size, CHUNK_BYTES):
                    file.write(await self.client.getrange(key, start, start + CHUNK_BYTES - 1))
                if file.tell() != size:
                    raise ProviderUnreachable(f"redis has {file.tell()} of {size} bytes of the snapshot left")

    def _renew(self, change: Any, name: str) -> Any:
        """Set the time of a snapshot; await what this returns, unless `change` is a pipeline."""
        if self._options.ttl_days:
            return change.expire(self._key(name), self._options.ttl_days * DAY_SECONDS)
        return change.persist(self._key(name))

    async def delete(self, name: str) -> None:
        """Delete the string."""
        with _translate_errors():
            await self.client.unlink(self._key(name))

    async def list(self, prefix: str = "") -> Sequence[str]:
        """Scan the keys; uploads are not among them."""
        start = self._key("")
        pattern = "".join(f"\\{one}" if one in "*?[]\\^" else one for one in self._key(prefix)) + "*"
        with _translate_errors():
            found = {key.decode() async for key in self.client.scan_iter(match=pattern, count=1000)}
        return sorted(key.removeprefix(start) for key in found)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate the client's errors; some of those about rights are connection errors."""
    try:
        yield
    except (vendor.AuthenticationError, vendor.AuthorizationError, vendor.NoPermissionError) as error:
        raise ProviderUnauthorized(f"redis refuses the gateway's login: {error}") from error
    except vendor.ReadOnlyError as error:
        raise ProviderUnreachable(f"redis only reads, as a replica does: {error}") from error
    except (vendor.ConnectionError, vendor.TimeoutError, OSError) as error:
        raise ProviderUnreachable(f"redis does not answer: {error}") from error
    except vendor.RedisError as error:
        raise ProviderRefused(f"redis refuses the snapshot: {error}") from error


@asynccontextmanager
async def open_store(options: RedisStoreOptions) -> AsyncIterator[RedisSnapshotStore]:
    """Yield the store; the first call shows whether the server answers.

    A connection that a restart of the server closed is noticed when it is used, so a command is tried twice.
    """
    again = Retry(NoBackoff(), 1, supported_errors=(vendor.ConnectionError,))
    client = redis_client.Redis.from_url(
        options.url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, retry=again
    )
    try:
        yield RedisSnapshotStore(client, options)
    finally:
        await client.aclose()
