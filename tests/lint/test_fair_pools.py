"""Every pool that accounts share is scheduled fairly: other ways to queue or to limit work need a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from source_trees import PACKAGES, Source, sources

UNFAIR = frozenset(
    {
        "BoundedSemaphore",
        "CapacityLimiter",
        "Lock",
        "PriorityQueue",
        "ProcessPoolExecutor",
        "Queue",
        "Semaphore",
        "SimpleQueue",
        "ThreadPoolExecutor",
    }
)
"""Primitives that admit their callers in the order of arrival, whichever account they work for."""

ALLOWED = {
    "channels/receiving/session_pace.py Lock": "the new sessions of one bot",
    "channels/receiving/unread_rooms.py Lock": "the stored notes of one bot",
    "channels/slack/receive/socket_mode.py Queue": "the envelopes of one app, in their order",
    "channels/slack/send/reactions.py Lock": "the reactions to one message",
    "channels/slack/workspaces.py Lock": "the replacement of expiring tokens of one app",
    "delivery/broker/wake_ups.py Queue": "wake-ups received by one pull; KeyedWorker schedules them",
    "delivery/chat/draft_writer.py Lock": "the draft of one turn in one chat",
    "delivery/chat/rate_limit.py Semaphore": "the sends of one bot, which one account owns",
    "delivery/chat/shared_rate_limit.py Lock": "the tokens of one bot, which one account owns",
    "delivery/deliveries/transactions.py Queue": "wake-ups to send; none waits for an answer",
    "delivery/fair_threads.py Lock": "guards the scheduler itself",
    "delivery/fair_threads.py ThreadPoolExecutor": "the fair thread pool is built on it",
    "gateway/agents/clients/pydantic_ai_client.py Queue": "the answer to one request",
    "gateway/agents/custom/runner.py Queue": "the events of one attempt",
    "gateway/agents/model/workspace.py Lock": "the sandbox of one turn",
    "gateway/cli/acp/peer.py Queue": "the messages of one editor's connection",
    "gateway/cli/terminal/session.py Queue": "the inputs of one person's terminal",
    "gateway/environments/credential_headers.py Lock": "the access token of one credential",
    "gateway/files/storage/storage_quota.py Lock": "the count of one account's bytes",
    "gateway/infra/callback_sockets.py Semaphore": "the connections of one sandbox",
    "gateway/infra/egress_sockets.py Semaphore": "the connections of one sandbox",
    "gateway/ingress/open_channels.py Lock": "the configuration of one channel",
    "gateway/ingress/commands/sandbox_commands.py Queue": "commands to start; a gate orders them by account",
    "gateway/observability/samples.py Lock": "one addition or copy of numbers",
    "gateway/observability/tracing/span_recorder.py Queue": "spans, which are dropped when it is full",
    "gateway/sign_in/provider.py Lock": "the metadata and keys of the one identity provider",
    "gateway/web/api/files/workspace_files.py Lock": "the changes of one file of a workspace",
    "gateway/web/http/deferred_routes.py Lock": "the one import of the URL table",
    "sandbox/aws_lambda/capabilities.py ThreadPoolExecutor": "one question of `doctor`",
    "sandbox/aws_lambda/sandbox_records.py Semaphore": "the requests of one listing",
    "sandbox/desktop/cdp.py Lock": "the requests to one browser, in its sandbox",
    "sandbox/docker/capabilities.py ThreadPoolExecutor": "one call when the gateway starts",
    "sandbox/exec/scripts/egress_tunnel.py Lock": "the stream of one sandbox",
    "sandbox/host/isolation/cgroups.py Lock": "a few calls for the directories of groups, which do not block",
    "sandbox/host/isolation/repeated_probe.py Lock": "one probe of this machine at a time",
    "sandbox/kubernetes/capabilities.py ThreadPoolExecutor": "one question of `doctor`",
    "sandbox/lifecycle/locks.py Lock": "the calls on one sandbox",
    "sandbox/lifecycle/pool.py Lock": "the files of one sandbox",
    "sandbox/lifecycle/teardown.py Semaphore": "the orphans of one provider, whose accounts are unknown",
    "sandbox/workspaces/working_copies.py Lock": "the files of one workspace",
}


def test_shared_pools_use_the_fair_scheduler() -> None:
    """Work of accounts uses FairGate, FairQueue, FairThreadPool or KeyedWorker; what serves one is listed."""
    used = set(_uses())
    assert sorted(used - set(ALLOWED)) == [], "use delivery.fair_gate, or list the file with the reason"
    assert sorted(set(ALLOWED) - used) == [], "remove what is no longer used"


def test_only_the_keyed_worker_receives_wake_ups() -> None:
    """A second subscriber would take the wake-ups of a queue past the fair scheduler.

    The wake-ups of shards are themselves what the keyed worker subscribes to, over those of the broker.
    """
    subscribers = {
        source.name
        for source in _product()
        for node in source.nodes(ast.Call)
        if _name_of(node.func) == "subscribe"
        and {keyword.arg for keyword in node.keywords} >= {"at_most", "stop"}
    }
    assert subscribers == {"delivery/broker/keyed_worker.py", "gateway/infra/shard_wake_ups.py"}


def _uses() -> Iterator[str]:
    for source in _product():
        named = [base for node in source.nodes(ast.ClassDef) for base in node.bases]
        named += [node.func for node in source.nodes(ast.Call)]
        named += [node.value for node in source.nodes(ast.keyword)]
        yield from (f"{source.name} {name}" for name in map(_name_of, named) if name in UNFAIR)


def _product() -> Iterator[Source]:
    return (one for one in sources(*PACKAGES) if not {"simulator", "testing"} & set(one.parts))


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
