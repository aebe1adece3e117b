"""What the operator allows holds for every sandbox record, new, changed or older than the rule."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.vault import Vault
from gateway.config.sandbox_settings import SandboxCeilings
from gateway.records.errors import InvalidRecord
from gateway.records.records import Records
from gateway.records.rules.sandbox_ceilings import problems_above
from sandbox.config import SandboxConfig, problems
from sandbox.registry import plugin

OPEN = {"network": {"mode": "allow-all"}}
VAULT = Vault(["key-" + "k" * 40])


async def test_more_memory_than_the_operator_allows_is_refused(database: Database) -> None:
    """On create and update, the error has the field, the given value and the allowed one."""
    book = Records(VAULT, ceilings=SandboxCeilings(memory_mb=600))
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        made: dict[str, Any] = {"connection": connection, "account": account.id, "kind": "sandbox"}
        with pytest.raises(InvalidRecord) as refused:
            await book.create(**made, name="wide", config={"memoryLimit": 601})
        (problem,) = refused.value.problems
        assert (problem.pointer, "601" in problem.detail, "600" in problem.detail) == (
            "/config/memoryLimit",
            True,
            True,
        )
        kept = (await book.create(**made, name="fits", config={"memoryLimit": 600})).record
        with pytest.raises(InvalidRecord):
            await book.update(connection, kept, patch={"memoryLimit": 601})
        assert book.sandbox_config(kept).memory_limit == 600


async def test_what_was_stored_before_gets_what_is_allowed_now(database: Database) -> None:
    """A rule that came later holds at the next use, for defaults too, and changes no record."""
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        before = Records(VAULT)
        wide = (
            await before.create(connection, account.id, "sandbox", name="w", config={"memoryLimit": 4096})
        ).record
        silent = (await before.create(connection, account.id, "sandbox", name="s", config={})).record
        strict = Records(VAULT, ceilings=SandboxCeilings(memory_mb=256, lifetime=60))
        renamed = (await strict.update(connection, silent, name="t")).record
    assert before.sandbox_config(wide).memory_limit == 4096
    for record in (wide, renamed, None):
        assert strict.sandbox_config(record).memory_limit == 256
        assert strict.sandbox_config(record).lifecycle.max_lifetime == 60
    assert wide.config == {"memoryLimit": 4096}


async def test_the_whole_network_is_for_the_first_account(database: Database) -> None:
    """An account that the operator adds cannot give its sandboxes `allow-all`, in any spelling."""
    book = Records(VAULT)
    async with database.begin() as connection:
        first, _key = await api_keys.create_account(connection, "default")
        other, _key = await api_keys.create_account(connection, "other")
        made: dict[str, Any] = {"connection": connection, "kind": "sandbox"}
        await book.create(**made, account=first.id, name="open", config=OPEN)
        for config in (OPEN, {"internet": True}):
            with pytest.raises(InvalidRecord) as refused:
                await book.create(**made, account=other.id, name="open", config=config)
            (problem,) = refused.value.problems
            assert problem.pointer == "/config/network/mode"
            assert "[sandbox.allow] networks" in problem.detail
        closed = (await book.create(**made, account=other.id, name="closed", config={})).record
        with pytest.raises(InvalidRecord):
            await book.update(connection, closed, patch=OPEN)


async def test_the_operator_may_open_or_close_the_network_for_all(database: Database) -> None:
    """A list of modes is for every account, the first one included."""
    async with database.begin() as connection:
        first, _key = await api_keys.create_account(connection, "default")
        other, _key = await api_keys.create_account(connection, "other")
        made: dict[str, Any] = {"connection": connection, "kind": "sandbox", "name": "open", "config": OPEN}
        generous = Records(VAULT, ceilings=SandboxCeilings(networks=("allow-all", "deny-all")))
        stored = (await generous.create(**made, account=other.id)).record
        strict = Records(VAULT, ceilings=SandboxCeilings(networks=("deny-all",)))
        with pytest.raises(InvalidRecord):
            await strict.create(**made, account=first.id)
        config = strict.sandbox_config(stored)
        assert "allow-all" in (await strict.ceiling_problem(connection, other.id, config) or "")
        assert await generous.ceiling_problem(connection, other.id, config) is None


@pytest.mark.parametrize(
    ("config", "pointer"),
    [
        ({"options": {"diskGb": 3}}, "/config/options/diskGb"),
        ({"options": {"memoryGb": 1}}, "/config/options/memoryGb"),
        ({"lifecycle": {"maxLifetimeSeconds": 61}}, "/config/lifecycle/maxLifetimeSeconds"),
        ({"memoryLimit": 513}, "/config/memoryLimit"),
        ({"options": {"image": "ubuntu:24.04"}}, "/config/options/image"),
        ({"provider": "docker"}, "/config/provider"),
    ],
)
def test_every_ceiling_names_its_field(config: dict[str, Any], pointer: str) -> None:
    """A value above a ceiling is refused with its field; the ceiling itself is fine."""
    ceilings = SandboxCeilings(
        memory_mb=512, disk_gb=2, lifetime=60, images=("python:3.12-slim",), providers=("host", "e2b")
    )
    fine = {
        "memoryLimit": 512,
        "options": {"diskGb": 2, "image": "python:3.12-slim"},
        "lifecycle": {"maxLifetimeSeconds": 60},
    }
    assert _pointers(fine, ceilings) == []
    assert _pointers(config, ceilings) == [pointer]


MOUNTS = SandboxCeilings(mounts=("/srv/own", "/srv/work:rw"), shared_mounts=("/srv/all",))


@pytest.mark.parametrize(
    ("source", "read_only", "first", "other"),
    [
        ("/srv/own", True, "", "source"),
        ("/srv/own", False, "readOnly", "source"),
        ("/srv/work", False, "", "source"),
        ("/srv/all", True, "", ""),
        ("/srv/all", False, "readOnly", "readOnly"),
        ("/srv/own/below", True, "source", "source"),
        ("/srv/own/../../etc", True, "source", "source"),
        ("/srv/ow", True, "source", "source"),
        ("/srv/own/", True, "source", "source"),
        ("/srv/work:rw", True, "source", "source"),
        ("/etc", True, "source", "source"),
        ("/", True, "source", "source"),
    ],
)
def test_directories_of_the_machine_are_mounted_exactly_as_listed(
    source: str, first: str, other: str, *, read_only: bool
) -> None:
    """Nothing below, above or beside a listed one, for writing only with `:rw`, and for the right account."""
    config = {"mounts": [{"source": source, "target": "/mnt/data", "readOnly": read_only}]}
    parsed = SandboxConfig.model_validate(config)
    for is_first, field in ((True, first), (False, other)):
        found = [one.pointer for one in problems_above(parsed, MOUNTS, is_first=is_first, below="/config")]
        assert found == ([f"/config/mounts/0/{field}"] if field else [])


@pytest.mark.parametrize("listed", [("/srv:rw", "/srv/data"), ("srv",), ("/",), ("/srv/../etc",), ("/srv/",)])
def test_a_list_that_sandboxes_could_turn_is_refused(listed: tuple[str, ...]) -> None:
    """A directory inside a writable one could be replaced by a link; other paths name no directory."""
    with pytest.raises(ValidationError):
        SandboxCeilings(mounts=listed)


@pytest.mark.parametrize(
    "target",
    [
        "/mnt",
        "/mnt/workspaces",
        "/mnt/workspaces/x",
        "/etc",
        "/mnt/../etc",
        "/mnt/a/..",
        "/mnt//a",
        "mnt/a",
        "/mnt/a b",
    ],
)
def test_a_mount_hides_nothing_of_the_sandbox(target: str) -> None:
    """Its place is a free path below /mnt; two mounts do not hide each other."""
    config = SandboxConfig.model_validate({"mounts": [{"source": "/srv/own", "target": target}]})
    assert [one.pointer for one in problems(config, plugin("host"))] == ["/mounts/0/target"]
    nested = [{"source": "/srv/own", "target": one} for one in ("/mnt/a", "/mnt/a/b")]
    config = SandboxConfig.model_validate({"mounts": nested})
    assert [one.pointer for one in problems(config, plugin("docker"))] == ["/mounts/1/target"]


@pytest.mark.parametrize("provider", ["e2b", "daytona", "kubernetes", "lambda"])
def test_providers_elsewhere_refuse_mounts(provider: str) -> None:
    """The refusal names the provider."""
    config = SandboxConfig.model_validate(
        {"provider": provider, "mounts": [{"source": "/srv/own", "target": "/mnt/a"}]}
    )
    (found,) = problems(config, plugin(provider))
    assert found.pointer == "/mounts"
    assert provider in found.detail


def _pointers(config: dict[str, Any], ceilings: SandboxCeilings) -> list[str]:
    parsed = SandboxConfig.model_validate(config)
    return [one.pointer for one in problems_above(parsed, ceilings, is_first=False, below="/config")]
