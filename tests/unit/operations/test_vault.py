"""Secrets at rest: what opens, what does not, and what shows nothing."""

from __future__ import annotations

import base64
import copy
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from gateway.accounts.vault import (
    DecryptionFailed,
    InvalidSecretKey,
    Secret,
    Vault,
    associated_data,
    open_vault,
)

OLD, NEW = "old-" + "o" * 40, "new-" + "n" * 40
ASSOCIATED_DATA = associated_data("records", "sbx_1", "/envVars/TOKEN")


@given(text=some.text())
def test_what_was_sealed_is_revealed(text: str) -> None:
    """Any text comes back, and its envelope does not hold it."""
    vault = Vault([NEW])
    envelope = vault.encrypt(ASSOCIATED_DATA, text)
    assert vault.decrypt(ASSOCIATED_DATA, envelope) == text
    assert vault.decrypt(ASSOCIATED_DATA, envelope.encode()) == text
    assert len(text) < 8 or text not in envelope


@pytest.mark.parametrize(
    "elsewhere",
    [
        associated_data("records", "sbx_2", "/envVars/TOKEN"),
        associated_data("records", "sbx_1", "/envVars/OTHER"),
        associated_data("endpoints", "sbx_1", "/envVars/TOKEN"),
    ],
)
def test_an_envelope_opens_in_its_own_field_only(elsewhere: str) -> None:
    """Copied to another row, field or table a ciphertext is worth nothing."""
    vault = Vault([NEW])
    with pytest.raises(DecryptionFailed):
        vault.decrypt(associated_data(*elsewhere.split(":", 2)), vault.encrypt(ASSOCIATED_DATA, "canary"))


def test_every_changed_bit_is_noticed() -> None:
    """No byte of nonce or ciphertext can be changed."""
    vault = Vault([NEW])
    version, key, body = vault.encrypt(ASSOCIATED_DATA, "canary").split(".")
    raw = base64.urlsafe_b64decode(body)
    for place in range(len(raw)):
        bent = bytes(byte ^ (place == here) for here, byte in enumerate(raw))
        envelope = f"{version}.{key}.{base64.urlsafe_b64encode(bent).decode()}"
        with pytest.raises(DecryptionFailed):
            vault.decrypt(ASSOCIATED_DATA, envelope)


@given(garbage=some.binary(max_size=80) | some.text(max_size=80))
def test_garbage_is_no_envelope(garbage: str | bytes) -> None:
    """Whatever is not an envelope is refused, never a crash."""
    with pytest.raises(DecryptionFailed):
        Vault([NEW]).decrypt(ASSOCIATED_DATA, garbage)


def test_every_key_of_the_ring_opens_and_the_first_seals() -> None:
    """During a rotation old envelopes open, new ones are of the new key, and renewing moves them."""
    before, during, after = Vault([OLD]), Vault([NEW, OLD]), Vault([NEW])
    envelope = before.encrypt(ASSOCIATED_DATA, "canary")
    assert during.decrypt(ASSOCIATED_DATA, envelope) == "canary"
    assert not during.is_current(envelope)
    renewed = during.reencrypt(ASSOCIATED_DATA, envelope)
    assert after.decrypt(ASSOCIATED_DATA, renewed) == "canary"
    with pytest.raises(DecryptionFailed, match="DOVECOTE_SECRET_KEYS"):
        after.decrypt(ASSOCIATED_DATA, envelope)


@pytest.mark.parametrize("keys", [[], [""], ["   "], [NEW, ""]])
def test_a_missing_or_blank_key_is_refused(keys: list[str]) -> None:
    """Nothing is ever sealed with an empty key."""
    with pytest.raises(InvalidSecretKey):
        Vault(keys)


def test_a_short_key_is_a_key_of_its_own() -> None:
    """A passphrase works, is stretched, and differs from its neighbours."""
    envelope = Vault(["horse"]).encrypt(ASSOCIATED_DATA, "canary")
    assert Vault(["horse"]).decrypt(ASSOCIATED_DATA, envelope) == "canary"
    with pytest.raises(DecryptionFailed):
        Vault(["house"]).decrypt(ASSOCIATED_DATA, envelope)


def test_without_a_key_one_is_made_and_kept_private(tmp_path: Path) -> None:
    """The generated key is for its owner alone and is the same at the next start."""
    envelope = open_vault(tmp_path).encrypt(ASSOCIATED_DATA, "canary")
    assert open_vault(tmp_path).decrypt(ASSOCIATED_DATA, envelope) == "canary"
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600


def test_a_given_key_takes_the_place_of_a_generated_one(tmp_path: Path) -> None:
    """What the generated key sealed still opens when the operator gives keys later."""
    envelope = open_vault(tmp_path).encrypt(ASSOCIATED_DATA, "canary")
    given = open_vault(tmp_path, [NEW])
    assert given.is_rotating
    assert given.decrypt(ASSOCIATED_DATA, envelope) == "canary"
    assert Vault([NEW]).decrypt(ASSOCIATED_DATA, given.reencrypt(ASSOCIATED_DATA, envelope)) == "canary"


def test_a_key_file_open_to_others_is_closed(tmp_path: Path) -> None:
    """Rights that are too wide are narrowed before the key is used."""
    open_vault(tmp_path)
    (tmp_path / "secret.key").chmod(0o644)
    open_vault(tmp_path)
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600


def test_a_secret_cannot_be_compared_shown_or_carried_away() -> None:
    """`==`, hashing, printing, copying and pickling do not work; `matches` does."""
    secret = Secret("canary")
    assert secret.matches("canary")
    assert not secret.matches("canar\udfff")
    assert "canary" not in f"{secret} {secret!r} {[secret]}"
    with pytest.raises(TypeError):
        _ = secret == "canary"
    with pytest.raises(TypeError):
        hash(secret)
    for carry in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            carry(secret)
