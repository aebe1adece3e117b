"""Settings that cannot work together are refused at the start with the reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.config.load import load
from gateway.config.settings import InvalidSettings, Settings

SHARED = {
    "DOVECOTE_REPLICAS": "2",
    "DOVECOTE_DATABASE_URL": "postgresql://user:pw@db/gateway",
    "DOVECOTE_NATS_URL": "nats://broker:4222",
}


def loaded(directory: Path, **env: str) -> Settings:
    """Load settings from these variables alone."""
    return load(env=env, directory=directory)


def inconsistencies_of(directory: Path, **env: str) -> str:
    """Return what is wrong with them."""
    with pytest.raises(InvalidSettings) as caught:
        loaded(directory, **env)
    return str(caught.value)


def test_several_replicas_need_what_all_of_them_see(tmp_path: Path) -> None:
    """A SQLite file, a broker of one's own and unshared directories are named, each with a remedy."""
    reported = inconsistencies_of(tmp_path, DOVECOTE_REPLICAS="2")
    for words in ("SQLite file supports one gateway", "cannot use the embedded broker", "cannot read"):
        assert words in reported
    assert "shared_files" in inconsistencies_of(tmp_path, **SHARED)


def test_local_snapshots_of_several_replicas_are_refused(tmp_path: Path) -> None:
    """Data on one machine cannot be restored on another, unless the directory is declared shared."""
    local = SHARED | {"DOVECOTE_SANDBOX__SNAPSHOTS": "local"}
    assert "cannot restore snapshots that are stored on one machine" in inconsistencies_of(tmp_path, **local)
    assert loaded(tmp_path, **local, DOVECOTE_SHARED_FILES="true").sandbox.snapshots == "local"
    assert loaded(tmp_path, DOVECOTE_SANDBOX__SNAPSHOTS="local").replicas == 1


def test_workspaces_in_s3_need_a_bucket_and_whole_keys(tmp_path: Path) -> None:
    """Missing settings are named, and so is a directory that replicas share: each needs its own copies."""
    s3 = {"DOVECOTE_WORKSPACES__STORE": "s3"}
    reported = inconsistencies_of(tmp_path, **s3)
    assert "workspaces.store" in reported
    assert "Set workspaces.s3.bucket" in reported
    named = s3 | {"DOVECOTE_WORKSPACES__S3__BUCKET": "pigeons"}
    half = inconsistencies_of(tmp_path, **named, DOVECOTE_WORKSPACES__S3__ACCESS_KEY="half")
    assert "workspaces.s3.access_key" in half
    assert "Set workspaces.s3.secret_key as well" in half
    assert "'half'" not in half
    assert loaded(tmp_path, **named, **SHARED).workspaces.s3.bucket == "pigeons"
    assert "each needs its own working copies" in inconsistencies_of(
        tmp_path, **named, DOVECOTE_SHARED_FILES="true"
    )
    reported = inconsistencies_of(tmp_path, **SHARED)
    assert "workspaces.store" in reported
    assert "Set it to s3" in reported


def test_s3_without_what_speaks_with_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named that installs it."""
    monkeypatch.setitem(sys.modules, "aiobotocore", None)
    env = {"DOVECOTE_WORKSPACES__STORE": "s3", "DOVECOTE_WORKSPACES__S3__BUCKET": "pigeons"}
    assert "'.[s3]'" in inconsistencies_of(tmp_path, **env)


def test_snapshots_in_s3_need_a_bucket(tmp_path: Path) -> None:
    """The table of the bucket is no table of a provider, and its name must be there."""
    assert "snapshot_s3.bucket" in inconsistencies_of(tmp_path, DOVECOTE_SANDBOX__SNAPSHOTS="s3")
    given = {"DOVECOTE_SANDBOX__SNAPSHOTS": "s3", "DOVECOTE_SANDBOX__SNAPSHOT_S3__BUCKET": "pigeons"}
    assert loaded(tmp_path, **given).sandbox.snapshot_s3.bucket == "pigeons"


def test_snapshots_in_redis_need_a_server(tmp_path: Path) -> None:
    """A missing URL and an unknown scheme are named without the login; replicas can share the server."""
    redis = {"DOVECOTE_SANDBOX__SNAPSHOTS": "redis"}
    assert "sandbox.snapshot_redis.url" in inconsistencies_of(tmp_path, **redis)
    url = "DOVECOTE_SANDBOX__SNAPSHOT_REDIS__URL"
    wrong = inconsistencies_of(tmp_path, **redis, **{url: "http://me:canary@redis.example"})
    assert "rediss://" in wrong
    assert "canary" not in wrong
    given = redis | {url: "redis://me:canary@redis.example"}
    assert loaded(tmp_path, **given).sandbox.snapshot_redis.with_secrets()["url"].endswith("redis.example")


@pytest.mark.parametrize(("text", "value"), [("asker", "asker"), (" anyone", "anyone"), ("7, 8", ["7", "8"])])
def test_a_word_in_place_of_a_list_is_no_list(tmp_path: Path, text: str, value: object) -> None:
    """`approvers = "asker"` is the rule, in the file and in a variable; other text is a list of people."""
    table = f'[channels.telegram]\ntoken = "123456:ABC"\napprovers = "{text}"\n'
    (tmp_path / "dovecote.toml").write_text(table)
    for settings in (loaded(tmp_path), loaded(tmp_path, DOVECOTE_CHANNELS__TELEGRAM__APPROVERS=text)):
        assert settings.channels["telegram"]["approvers"] == value
