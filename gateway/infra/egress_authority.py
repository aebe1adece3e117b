"""The gateway's certificate authority for the credential proxy, and the certificates that sandboxes trust."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gateway.accounts.vault import DecryptionFailed, Vault, associated_data, read_private, write_private
from gateway.infra.egress_sockets import EgressTrust

if TYPE_CHECKING:
    from egress.proxy.certificate_authority import CertificateAuthority

log = structlog.get_logger(__name__)

_CONTEXT = associated_data("egress", "authority", "key")
_SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
)
_READABLE = 0o644


def trust_opener(directory: Path, vault: Vault) -> Callable[[], EgressTrust]:
    """Return what opens the authority of a directory: only sandboxes with a restricted network need it.

    A key that is encrypted with an old key of the vault is encrypted with the new one at once, because the
    operator removes the old one from the settings.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / "authority"
    sealed = read_private(path)
    with suppress(DecryptionFailed):  # it is logged when the authority is replaced
        if sealed and not vault.is_current(sealed):
            write_private(path, vault.reencrypt(_CONTEXT, sealed))

    def open_trust() -> EgressTrust:
        authority = open_authority(directory, vault)
        bundle = write_bundle(directory, authority)
        return EgressTrust(authority=authority if bundle else None, bundle=bundle)

    return open_trust


def open_authority(directory: Path, vault: Vault) -> CertificateAuthority:
    """Return the authority of a directory, made when it is first needed; the vault encrypts its key."""
    from egress.proxy.certificate_authority import CertificateAuthority

    path = directory / "authority"
    sealed = read_private(path)
    if sealed:
        try:
            return CertificateAuthority.load(vault.decrypt(_CONTEXT, sealed))
        except DecryptionFailed as error:
            log.warning("egress_authority.replaced", reason=str(error))
    made = CertificateAuthority.create()
    write_private(path, vault.encrypt(_CONTEXT, made.dump()))
    return made


def write_bundle(directory: Path, authority: CertificateAuthority) -> Path | None:
    """Write the system's certificates and the authority's to one file; None where the system has none."""
    system = next((Path(one) for one in _SYSTEM_BUNDLES if Path(one).is_file()), None)
    if system is None:
        log.warning("egress_authority.certificates_missing", remedy="install ca-certificates")
        return None
    text = f"{system.read_text(encoding='utf-8', errors='replace').rstrip()}\n{authority.certificate_pem()}"
    path = directory / "ca-bundle.pem"
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") == text:
        return path
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(_READABLE)
    fresh.replace(path)
    return path
