"""One-line faults in important behaviour, each with the tests that must fail because of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A fault: `old` occurs exactly once in `file` and is replaced by `new`; `tests` are pytest arguments."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


_TOOL_CALLS = "tests/contracts/tools/test_tool_calls.py"
_REPLIES = "tests/contracts/chat/test_approval_replies.py"
_RELAY = "tests/contracts/streams/test_relay.py"
_EGRESS = "tests/unit/sending/test_egress.py"
_LOCKS = "tests/unit/sandboxes/test_sandbox_locks.py"

MUTANTS: tuple[Mutant, ...] = (
    # Approvals and tool calls
    Mutant(
        name="the approval digest leaves the arguments out",
        file="gateway/conversations/call_binding.py",
        old="[tool, args, sandbox_fingerprint, *",
        new="[tool, sandbox_fingerprint, *",
        tests=("tests/unit/turns/test_approval_digest.py",),
    ),
    Mutant(
        name="the digest is not compared at the call",
        file="gateway/tools/call_approvals.py",
        old="if covers(approval, call, fingerprint, target, file):",
        new="if True:",
        tests=(_TOOL_CALLS,),
    ),
    Mutant(
        name="a call that needs an approval runs without one",
        file="gateway/tools/executor.py",
        old="if standing is not Standing.FREE:",
        new="if False:",
        tests=(_TOOL_CALLS,),
    ),
    Mutant(
        name="a finished step is not replayed after a crash",
        file="gateway/tools/executor.py",
        old='and earlier.state == "done"',
        new='and earlier.state == "never"',
        tests=(_TOOL_CALLS,),
    ),
    Mutant(
        name="a decided approval can be decided again",
        file="gateway/store/turns/approvals.py",
        old='.where(approvals.c.id == approval, approvals.c.state == "pending")',
        new=".where(approvals.c.id == approval)",
        tests=(_REPLIES,),
    ),
    Mutant(
        name="anybody may decide where only the asker may",
        file="gateway/conversations/approver_rules.py",
        old='(rule == "asker" and person == asker and person != "")',
        new='rule == "asker"',
        tests=(_REPLIES,),
    ),
    # Leases and fences
    Mutant(
        name="a turn is not cut when its lease is lost",
        file="gateway/turns/bounds.py",
        old='self.reach(DeliveryError("the lease was lost"))',
        new="None",
        tests=("tests/contracts/turns/test_lost_lease.py",),
    ),
    Mutant(
        name="no lease check before a send",
        file="delivery/workers/attempts.py",
        old='        lease.ensure_held()\n        self._checkpoint("delivery.before_send")',
        new='        self._checkpoint("delivery.before_send")',
        tests=("tests/contracts/sending/test_delivery_lease.py",),
    ),
    Mutant(
        name="an expired lease is trusted until it is known to be lost",
        file="delivery/broker/leases/held_lease.py",
        old="if self._is_lost or self.remaining <= 0:",
        new="if self._is_lost:",
        tests=("tests/contracts/streams/test_lease_contract.py", "-k", "past_its_time"),
    ),
    Mutant(
        name="a held lease is taken over",
        file="delivery/broker/leases/jetstream_leases.py",
        old='if value.get("state") == RELEASED or self._is_abandoned(value):',
        new="if True:",
        tests=("tests/contracts/streams/test_lease_contract.py",),
    ),
    Mutant(
        name="the leases of a replica's shards outlive its session",
        file="delivery/broker/leases/held_lease.py",
        old="return self.session is None or self.session.is_trusted",
        new="return True",
        tests=("tests/contracts/streams/test_lease_contract.py", "-k", "session"),
    ),
    Mutant(
        name="a new holder of a shard begins work that the last one goes on with",
        file="gateway/infra/shard_leases.py",
        old="if await self._leases.is_held(name):",
        new="if False:",
        tests=("tests/contracts/streams/test_shard_leases.py", "-k", "outlives"),
    ),
    Mutant(
        name="a transaction claims work of a shard that its last holder goes on with",
        file="gateway/infra/shard_leases.py",
        old="if name in shard.kept_by_last_holder or name in self._working:",
        new="if name in self._working:",
        tests=("tests/contracts/streams/test_shard_leases.py", "-k", "claims"),
    ),
    Mutant(
        name="the reply in a chat that has come to life is ended with earlier deliveries",
        file="delivery/workers/worker.py",
        old="if await ordering.reopen_if_due(tx.connection, account, destination):",
        new="if False:",
        tests=("tests/contracts/sending/test_chat_deliveries.py", "-k", "gets_them"),
    ),
    Mutant(
        name="a late failure changes a delivery that another worker has claimed",
        file="delivery/deliveries/attempt_store.py",
        old='deliveries.c.attempts == bindparam("number")',
        new='deliveries.c.attempts >= bindparam("number")',
        tests=("tests/contracts/streams/test_fencing.py",),
    ),
    Mutant(
        name="the sandbox lock believes an expired lease",
        file="sandbox/lifecycle/locks.py",
        old="return time.monotonic() < lock.expires_at - self._ttl * EXPIRY_MARGIN",
        new="return True",
        tests=(_LOCKS,),
    ),
    Mutant(
        name="an exclusive sandbox lock is given while the sandbox is in use",
        file="sandbox/lifecycle/locks.py",
        old="lock.exclusive or (exclusive and lock.users)",
        new="lock.exclusive",
        tests=(_LOCKS,),
    ),
    # Events
    Mutant(
        name="the relay does not read the outbox again after a conflict",
        file="delivery/events/relay.py",
        old="                self._to_read.add(conversation)\n                continue",
        new="                continue",
        tests=(_RELAY,),
    ),
    Mutant(
        name="the published position may go back",
        file="delivery/events/outbox.py",
        old='.where(streams.c.conversation == bindparam("of"), streams.c.relayed_n < bindparam("n"))',
        new='.where(streams.c.conversation == bindparam("of"))',
        tests=(_RELAY,),
    ),
    Mutant(
        name="a stream that lost its end keeps its epoch",
        file="delivery/broker/checkpoints.py",
        old="(is_behind or may_have_lost)",
        new="may_have_lost",
        tests=("tests/contracts/streams/test_epochs.py",),
    ),
    Mutant(
        name="a position beyond the stream's end is not reset",
        file="delivery/events/replay.py",
        old=" or self.position > bounds.last_seq",
        new="",
        tests=("tests/contracts/streams/test_replay.py",),
    ),
    # Deliveries
    Mutant(
        name="a delivery found in flight after a kill is never sent again",
        file="delivery/deliveries/attempt.py",
        old="if not repeatable and policy is AmbiguityPolicy.AT_MOST_ONCE:",
        new="if not repeatable:",
        tests=("tests/faults/test_fault_points.py", "-k", "before_send or delivery.claim.after_commit"),
    ),
    Mutant(
        name="a late outcome changes a delivery that has ended",
        file="delivery/deliveries/attempt.py",
        old="if state in FINAL:",
        new="if False:",
        tests=("tests/unit/sending/test_delivery_attempt.py",),
    ),
    Mutant(
        name="a Retry-After shortens a webhook's schedule",
        file="delivery/deliveries/retry_schedule.py",
        old="requested if schedule.honors_retry_after else max(delay, requested)",
        new="requested",
        tests=("tests/unit/sending/test_retry_schedule.py",),
    ),
    Mutant(
        name="an endpoint that fails for days is never disabled",
        file="delivery/webhooks/circuit_breaker.py",
        old="if now - since >= DISABLE_AFTER and is_observed and delivery.attempt > 1:",
        new="if False:",
        tests=("tests/unit/sending/test_circuit_breaker.py",),
    ),
    # Security
    Mutant(
        name="egress allows a public address of this machine",
        file="egress/policy.py",
        old="if not is_public(address) or is_local(address):",
        new="if not is_public(address):",
        tests=(_EGRESS,),
    ),
    Mutant(
        name="egress follows redirects",
        file="delivery/webhooks/egress.py",
        old="allow_redirects=False",
        new="allow_redirects=True",
        tests=(_EGRESS,),
    ),
    Mutant(
        name="a webhook's signature never expires",
        file="delivery/webhooks/signing.py",
        old="if abs(ahead) > tolerance:",
        new="if False:",
        tests=("tests/unit/sending/test_webhook_signing.py",),
    ),
    Mutant(
        name="a signed Slack request never expires",
        file="channels/slack/receive/signature.py",
        old="_FixedClock(now)",
        new="_FixedClock(float(timestamp))",
        tests=("tests/unit/test_security_signatures.py",),
    ),
    Mutant(
        name="X-Forwarded-For is trusted from any peer",
        file="gateway/web/http/auth_lockout.py",
        old="while chain and is_within(current, trusted):",
        new="while chain:",
        tests=("tests/unit/web/test_auth_lockout.py",),
    ),
    Mutant(
        name="a signed link never expires",
        file="gateway/files/signed_links.py",
        old="any(fits) and plain and int(expires) > now.timestamp()",
        new="any(fits) and plain",
        tests=("tests/unit/web/test_signed_links.py",),
    ),
    Mutant(
        name="any token completes a job",
        file="gateway/jobs/settlement.py",
        old="if not hmac.compare_digest(digest, known) or job is None:",
        new="if job is None:",
        tests=("tests/journeys/safety/test_security_jobs.py",),
    ),
    Mutant(
        name="a path climbs out of the workspace",
        file="sandbox/paths.py",
        old='if plain.split("/")[0] == "..":',
        new="if False:",
        tests=("tests/unit/sandboxes/test_workspace_paths.py",),
    ),
    Mutant(
        name="a cancelled start leaves its process running",
        file="sandbox/host/run/execution.py",
        old="        await shielded(run.kill_all())\n        raise cancelled",
        new="        raise cancelled",
        tests=("tests/unit/sandboxes/test_host_start.py",),
    ),
    Mutant(
        name="a sandbox inherits the gateway's open files",
        file="sandbox/host/run/spawn.py",
        old="    _check(_libc.posix_spawn_file_actions_addclosefrom_np(actions, len(descriptors)))\n",
        new="",
        tests=("tests/unit/sandboxes/test_host_start.py",),
    ),
    Mutant(
        name="the event loop stops while a command starts",
        file="sandbox/host/run/spawn.py",
        old="code = _unlocked_libc.posix_spawn(",
        new="code = _libc.posix_spawn(",
        tests=("tests/unit/sandboxes/test_host_start.py",),
    ),
)
