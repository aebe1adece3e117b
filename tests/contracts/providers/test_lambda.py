"""The Lambda provider when answers are lost, functions fail or requests are refused, and its isolation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lambda_environment import FUNCTION_SECRET
from lambda_rig import lambda_rig, lambda_settings
from lambda_service import ACCESS_KEY
from sandbox.aws_lambda.capabilities import capabilities
from sandbox.config import SandboxConfig, problems
from sandbox.errors import (
    CommandInterrupted,
    FeatureUnsupported,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnreachable,
    SandboxError,
)
from sandbox.model import BackgroundJob, ExecRequest, Network
from sandbox.port import Provider, Sandbox
from sandbox.registry import built_in
from sandbox.testing.rig import ProviderRig
from sandbox.testing.waiting import until

COUNT = ExecRequest(script="echo once >> runs; echo done")
MEBIBYTE = 1 << 20


@pytest.fixture
def rig(tmp_path: Path) -> ProviderRig:
    """Return the loopback service's rig."""
    return lambda_rig(tmp_path)


class LambdaRoutes:
    """The loopback service's own routes."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def fail_next(self, *faults: str) -> None:
        """Let the next invocations fail, and empty the log."""
        async with self._session.post("/faults", json=faults) as answer:
            answer.raise_for_status()

    async def log(self) -> Sequence[dict[str, str]]:
        """Return what was invoked."""
        async with self._session.get("/log") as answer:
            found: list[dict[str, str]] = await answer.json()
            return found

    async def wait_for_late(self) -> None:
        """Wait until the requests that come late have been carried out."""
        async with self._session.get("/late") as answer:
            answer.raise_for_status()


@pytest.fixture
async def service(rig: ProviderRig) -> AsyncIterator[LambdaRoutes]:
    """Return the service without faults."""
    async with aiohttp.ClientSession(rig.settings.endpoint) as session:
        service = LambdaRoutes(session)
        await service.fail_next()
        yield service
        await service.fail_next()


async def _runs(sandbox: Sandbox) -> int:
    """Return how often COUNT ran."""
    result = await sandbox.run(ExecRequest(script="cat runs 2>/dev/null | wc -l"))
    return int(result.stdout)


@pytest.mark.parametrize(
    ("fault", "sent"), [("lose_answer", 1), ("server_error", 1), ("lose_request", 2), ("arrive_late", 2)]
)
async def test_a_lost_answer_never_runs_a_command_twice(
    sandbox: Sandbox, service: LambdaRoutes, fault: str, sent: int
) -> None:
    """Whether a request or its answer was lost, or comes late, the command runs once and has its result."""
    await service.fail_next(fault)
    result = await sandbox.run(COUNT)
    assert (result.exit_code, result.stdout) == (0, b"done\n")
    assert len(await service.log()) == sent
    if fault == "arrive_late":
        await service.wait_for_late()
    assert await _runs(sandbox) == 1


async def test_a_throttled_command_does_not_run(sandbox: Sandbox, service: LambdaRoutes) -> None:
    """429 is an error that names the remedy, and the gateway sends nothing again."""
    await service.fail_next("throttle")
    with pytest.raises(ProviderUnreachable, match="raise the concurrency of sandbox-mount-nonet"):
        await sandbox.run(COUNT)
    assert len(await service.log()) == 1
    assert await _runs(sandbox) == 0


async def test_a_function_that_crashes_is_not_repeated(sandbox: Sandbox, service: LambdaRoutes) -> None:
    """A runtime that ends during a command is an error that names the memory."""
    await service.fail_next("crash")
    with pytest.raises(ProviderRefused, match="more memory"):
        await sandbox.run(ExecRequest(script="echo once >> runs; touch begun; sleep 60"))
    assert await _runs(sandbox) == 1


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_functions_time_out_is_the_commands(tmp_path: Path, *, hangs: bool) -> None:
    """A command that reaches the time-out of its function has timed out, even if the vendor ends it."""
    rig = lambda_rig(tmp_path, mount_nonet="sandbox-ends-early" if hangs else "sandbox-short")
    async with rig.open() as provider, aiohttp.ClientSession(rig.settings.endpoint) as session:
        sandbox = await provider.create(rig.spec())
        await LambdaRoutes(session).fail_next(*(["freeze"] if hangs else []))
        result = await sandbox.run(ExecRequest(script="touch begun; sleep 60"))
        assert (result.timed_out, result.exit_code) == (True, 137)


async def test_contents_may_be_larger_than_a_payload_of_lambda(sandbox: Sandbox) -> None:
    """Requests and results above 6 MB go through the bucket."""
    content = bytes(range(256)) * (6 * MEBIBYTE // 256)
    await sandbox.write("large", content)
    assert await sandbox.read("large", limit=8 * MEBIBYTE) == content


async def test_output_is_cut_at_its_source(sandbox: Sandbox) -> None:
    """A run returns at most 256 KB of each stream, whatever was asked for."""
    result = await sandbox.run(ExecRequest(script="head -c 1000000 /dev/zero", output_limit=MEBIBYTE))
    assert (len(result.stdout), result.stdout_truncated) == (256 * 1024, True)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"access_key": "AKIAOTHERKEY00000000"}, ProviderUnauthorized, "check access_key"),
        ({"mount_nonet": "absent"}, ProviderRefused, "deploy the stack"),
        ({"mount_nonet": None}, ProviderRefused, "SANDBOX_FN_MOUNT_NONET"),
        ({"endpoint": "http://127.0.0.1:9"}, ProviderUnreachable, "cannot be reached"),
        ({"bucket": "absent"}, ProviderRefused, "bucket"),
        ({"bucket": ""}, ProviderRefused, "set \\[sandbox.lambda\\] bucket"),
    ],
)
async def test_wrong_settings_are_named(
    tmp_path: Path, changes: dict[str, str | None], error: type[SandboxError], words: str
) -> None:
    """Wrong keys, names and addresses are errors with the setting to correct."""
    rig = lambda_rig(tmp_path, **changes)
    with pytest.raises(error, match=words):
        async with rig.open() as provider:
            await (await provider.create(rig.spec())).run(ExecRequest(script="true"))


async def test_a_command_sees_no_credentials_of_the_function(sandbox: Sandbox) -> None:
    """The environment of the runtime cannot be read by commands; nor is the directory's name in their own."""
    read = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null"
    script = f"{read} | tr '\\0' '\\n'; ls /proc | grep -c '^[0-9]'"
    result = await sandbox.run(ExecRequest(script=script))
    assert FUNCTION_SECRET.encode() not in result.stdout
    assert ACCESS_KEY.encode() not in result.stdout
    assert sandbox.id.encode() not in result.stdout
    assert int(result.stdout.split()[-1]) > 3


async def test_each_sandbox_has_the_function_that_fits(
    provider: Provider, rig: ProviderRig, service: LambdaRoutes
) -> None:
    """Workspace and network choose the function; without a workspace every run begins empty."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"network": Network.ALLOW_ALL}, "sandbox-mount-net"),
        ({}, "sandbox-mount-nonet"),
        ({"network": Network.ALLOW_ALL, "workspace": None}, "sandbox-nomount-net"),
        ({"workspace": None}, "sandbox-nomount-nonet"),
    ]
    for number, (changes, function) in enumerate(cases):
        await service.fail_next()
        sandbox = await provider.create(rig.spec(label=f"{rig.label}:{number}", **changes))
        script = "ls; touch left ~/left /tmp/left; ls /tmp"
        first, second = [await sandbox.run(ExecRequest(script=script)) for _ in range(2)]
        assert {one["function"] for one in await service.log()} == {function}
        has_mount = "workspace" not in changes
        assert second.stdout.startswith(b"left\n") == has_mount
        assert first.stdout.split(b"\n")[-2:] == second.stdout.split(b"\n")[-2:]
        if not has_mount:
            with pytest.raises(ProviderRefused, match="add a workspace"):
                await sandbox.write("file", b"")


async def test_accounts_share_no_environment(
    provider: Provider, rig: ProviderRig, service: LambdaRoutes
) -> None:
    """Each account is a tenant of its own, under a name that does not reveal its id."""
    for account in ("acc_1", "acc_2"):
        sandbox = await provider.create(rig.spec(label=f"{rig.label}:{account}", account=account))
        await sandbox.run(ExecRequest(script="true"))
    tenants = [one["tenant"] for one in await service.log()]
    assert len(set(tenants)) == 2
    assert not any("acc" in tenant for tenant in tenants)


async def test_a_cancelled_command_that_has_not_begun_never_begins(sandbox: Sandbox) -> None:
    """After a cancellation the request may arrive, and runs nothing."""
    task = asyncio.ensure_future(sandbox.run(COUNT))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert await _runs(sandbox) == 0


async def test_a_destroyed_sandbox_leaves_no_files(
    provider: Provider, rig: ProviderRig, service: LambdaRoutes
) -> None:
    """Its directory on the file system is removed, whatever the permissions in it."""
    sandbox = await provider.create(rig.spec())
    await sandbox.run(ExecRequest(script="mkdir -p a/b; touch a/b/c; chmod 0 a/b; ln -s /usr link"))
    other = await provider.create(rig.spec(label=f"{rig.label}:other"))
    await provider.destroy(sandbox.id)
    listed = await other.run(ExecRequest(script="ls /mnt/files"))
    assert sandbox.id.encode() not in listed.stdout
    assert other.id.encode() in listed.stdout


async def test_a_deletion_that_reaches_the_time_out_is_repeated(
    provider: Provider, rig: ProviderRig, service: LambdaRoutes
) -> None:
    """The record stays until the files are gone, so that a later sweep finds the sandbox again."""
    sandbox = await provider.create(rig.spec())
    await service.fail_next("time_out")
    with pytest.raises(ProviderUnreachable, match="timed out"):
        await provider.destroy(sandbox.id)
    assert sandbox.id in dict(await provider.list())
    await provider.destroy(sandbox.id)
    assert sandbox.id not in dict(await provider.list())


async def test_destroying_a_sandbox_ends_its_command(provider: Provider, sandbox: Sandbox) -> None:
    """The command is killed where it runs, and is not one that may be run again in another sandbox."""
    running = asyncio.ensure_future(sandbox.run(ExecRequest(script="touch begun; sleep 100")))

    async def begun() -> bool:
        return (await sandbox.run(ExecRequest(script="test -e begun"))).ok

    await until(begun)
    await provider.destroy(sandbox.id)
    with pytest.raises(CommandInterrupted):
        await running


async def test_a_job_is_refused_with_the_alternative(sandbox: Sandbox) -> None:
    """The error says what to do instead."""
    with pytest.raises(
        FeatureUnsupported, match="foreground within 300 seconds, or use a sandbox of another"
    ):
        await sandbox.spawn(BackgroundJob(id="job_1", token="t", script="true"))


def test_a_record_is_judged_in_words() -> None:
    """Each field that Lambda cannot fulfil is a problem with what to do instead."""
    config = SandboxConfig.model_validate(
        {
            "provider": "lambda",
            "persistent": True,
            "timeout": 301,
            "memoryLimit": 1025,
            "network": {"mode": "restricted", "allowDomains": ["example.com"]},
            "options": {"image": "debian", "cpu": 2},
        }
    )
    found = {problem.pointer: problem.detail for problem in problems(config, built_in()["lambda"])}
    assert set(found) == {
        "/persistent", "/timeout", "/memoryLimit", "/network/mode", "/options/image", "/options/cpu",
    }  # fmt: skip
    assert "at most 300 seconds on lambda" in found["/timeout"]
    assert "at most 1024 MB on lambda" in found["/memoryLimit"]
    assert "use false" in found["/persistent"]


def test_doctor_names_what_is_missing() -> None:
    """Each function is asked without running anything, and the bucket is listed."""
    good = {one.name: one for one in capabilities(lambda_settings())}
    assert all(one.present for one in good.values())
    assert set(good) == {"isolation", "bucket", "mount_net", "mount_nonet", "nomount_net", "nomount_nonet"}
    bad = capabilities(lambda_settings(mount_net="absent", nomount_net=None, bucket=""))
    missing = {one.name: one.detail for one in bad if not one.present}
    assert set(missing) == {"bucket", "mount_net", "nomount_net"}
    assert "SANDBOX_FN_NOMOUNT_NET" in missing["nomount_net"]
    assert "'absent'" in missing["mount_net"]
    (isolation, *_others) = capabilities(lambda_settings(tenant_isolation=False))
    assert (isolation.present, "SHARED" in isolation.detail) == (False, True)
