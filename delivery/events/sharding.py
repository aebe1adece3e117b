"""Shards: a fixed number of groups of conversations, by a hash that never changes.

The shard of a conversation is part of its subjects on the broker, and work on rows is shared among replicas
by shard. So the number and the hash must stay as they are.
"""

from __future__ import annotations

import hashlib

SHARDS = 64
"""The number of shards; stored subjects contain a shard, so it never changes."""


def shard_of(account: str, conversation: str) -> int:
    """Return the shard of a conversation, from 0 to SHARDS - 1; the same in every process and version."""
    name = f"{account}\x1f{conversation}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(name).digest()[0] % SHARDS


def work_shard(key: str) -> int:
    """Return the shard in which one replica at a time works on a key: a conversation or a destination.

    The account has no part in it: two accounts may send to one room, and only one replica may do so.
    """
    return shard_of("", key)
