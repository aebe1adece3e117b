"""The certificate authority of the credential proxy is made when the first sandbox needs it, and stays."""

from __future__ import annotations

from pathlib import Path

from gateway.accounts.vault import Vault
from gateway.infra.egress_authority import trust_opener

OLD, NEW = "an old key of the vault in tests", "a new key of the vault in tests"


def _pem(directory: Path, vault: Vault) -> str:
    trust = trust_opener(directory, vault)()
    assert trust.authority is not None
    return trust.authority.dump()


def test_the_authority_is_made_when_it_is_first_needed(tmp_path: Path) -> None:
    """A start makes no key, and the next process finds the one that was made."""
    directory, vault = tmp_path / "egress", Vault([OLD])
    opener = trust_opener(directory, vault)
    assert list(directory.iterdir()) == []
    trust = opener()
    assert trust.authority is not None
    assert trust.bundle is not None
    assert trust.authority.certificate_pem() in trust.bundle.read_text()
    assert _pem(directory, vault) == trust.authority.dump()


def test_a_start_with_a_new_key_of_the_vault_encrypts_the_authority_with_it(tmp_path: Path) -> None:
    """The old key can be removed from the settings although no sandbox has needed the authority since."""
    made = _pem(tmp_path, Vault([OLD]))
    trust_opener(tmp_path, Vault([NEW, OLD]))
    assert _pem(tmp_path, Vault([NEW])) == made


def test_an_authority_that_cannot_be_decrypted_is_replaced(tmp_path: Path) -> None:
    """The start goes on, and the first sandbox that needs the authority gets a new one."""
    made = _pem(tmp_path, Vault([OLD]))
    replaced = _pem(tmp_path, Vault([NEW]))
    assert replaced != made
    assert _pem(tmp_path, Vault([NEW])) == replaced
