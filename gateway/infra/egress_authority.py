"""The gateway's certificate authority for the credential proxy, and the certificates that sandboxes trust."""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from egress.proxy.certificate_authority import CertificateAuthority
from gateway.accounts.vault import DecryptionFailed, Vault, associated_data, read_private, write_private

log = structlog.get_logger(__name__)

_CONTEXT = associated_data("egress", "authority", "key")
_SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
)
_READABLE = 0o644


def open_authority(directory: Path, vault: Vault) -> CertificateAuthority:
    """Return the authority of a directory, made at the first start; its key is encrypted by the vault."""
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / "authority"
    sealed = read_private(path)
    if sealed:
        try:
            pem = vault.decrypt(_CONTEXT, sealed)
        except DecryptionFailed as error:
            log.warning("egress_authority.replaced", reason=str(error))
        else:
            if not vault.is_current(sealed):
                write_private(path, vault.reencrypt(_CONTEXT, sealed))
            return CertificateAuthority.load(pem)
    made = CertificateAuthority.create()
    write_private(path, vault.encrypt(_CONTEXT, made.dump()))
    return made


def write_bundle(directory: Path, authority: CertificateAuthority) -> Path | None:
    """Write the system's certificates and the authority's to one file; None where the system has none."""
    system = next((Path(one) for one in _SYSTEM_BUNDLES if Path(one).is_file()), None)
    if system is None:
        log.warning("egress_authority.no_system_certificates", remedy="install ca-certificates")
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
