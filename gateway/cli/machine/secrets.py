"""`dovecote secrets`: the secrets that the database stores encrypted."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import typer

from gateway.cli.database import require_current_schema, translate_database_errors
from gateway.cli.errors import CommandFailed, ExitCode, print_error
from gateway.cli.group import Config, Data, Json, group, load_settings, local
from gateway.cli.output import print_json
from gateway.cli.printable import clean

if TYPE_CHECKING:
    from delivery.database.engine import Database
    from gateway.accounts.key_rotation import Reencryption
    from gateway.config.settings import Settings

secrets = group("Encrypt the stored secrets again.")

REMEDY = "Add the key that encrypted it to secret_keys, or replace the secret: send its record a new value."

RESTART = "Restart all gateways with the new key first, and run this again."
STILL_WRITTEN = f"A gateway still encrypts with that key. {RESTART}"


@local(secrets, "reencrypt")
def reencrypt_secrets(*, config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """Encrypt all stored secrets with the first key of secret_keys, and list those that no key decrypts.

    A running gateway continues to work. Secrets that cannot be decrypted are left unchanged, and the exit
    code is 1. It is 1 too while a gateway still encrypts with an older key: the command names each. Without a
    NATS server of your own, run it with the gateway's data directory. With exit code 0 the old keys can be
    removed.
    """
    from gateway.infra.preflight import SecretKeyMismatch

    settings = load_settings(config, data_dir=data)
    with translate_database_errors(settings):
        try:
            done = asyncio.run(_reencrypt(settings))
        except SecretKeyMismatch as error:
            raise CommandFailed(str(error)) from error
    if as_json:
        print_json(asdict(done))
    else:
        _print(done)
    if done.unreadable or done.left or done.replicas:
        raise typer.Exit(ExitCode.FAILED)


def _print(done: Reencryption) -> None:
    typer.echo(f"{done.renewed} rows re-encrypted, {len(done.unreadable)} secrets unreadable")
    for one in done.unreadable:
        print_error(clean(f"{one.table} {one.row} {one.field}: {one.reason}"))
    if done.unreadable:
        print_error(REMEDY)
    if done.left:
        print_error(f"{done.left} secrets of an older key were found in the last pass. {STILL_WRITTEN}")
    for replica in done.replicas:
        print_error(f"the gateway {clean(replica)} (host/process) encrypts with another key. {RESTART}")


async def _reencrypt(settings: Settings) -> Reencryption:
    from delivery.database.engine import Database
    from gateway.accounts.key_rotation import reencrypt_all
    from gateway.infra.preflight import open_checked_vault

    await require_current_schema(settings)
    database = Database(settings.database)
    try:
        vault = await open_checked_vault(settings, database)
        replicas = await _other_replicas(settings, database, vault.first_key_id)
        done = await reencrypt_all(database, vault, forget_others=not replicas)
        return replace(done, replicas=tuple(replicas))
    finally:
        await database.close()


async def _other_replicas(settings: Settings, database: Database, first_key: str) -> list[str]:
    """Return the running gateways that encrypt with another key.

    Those on a NATS of one's own say so there, the one on a data directory in a file of that.
    """
    import socket
    from contextlib import AsyncExitStack

    from delivery.broker.leases.jetstream_leases import JetStreamLeases, LeaseHolder
    from delivery.database.instance_claim import database_identity
    from delivery.errors import DeliveryError
    from gateway.infra.data_dir import process_with_other_key
    from gateway.infra.preflight import DependencyUnavailable, connect_nats
    from gateway.infra.replica_presence import replicas_with_other_key

    if settings.nats_url is None:
        process = process_with_other_key(settings.data_dir, first_key)
        return [f"{socket.gethostname()}/{process}"] if process else []
    identity = await database_identity(database)
    if identity is None:
        return []
    try:
        async with AsyncExitStack() as stack:
            nats = await connect_nats(settings.nats_url, stack)
            leases = JetStreamLeases(nats, LeaseHolder(instance="dovecote secrets", boot=""))
            return await replicas_with_other_key(leases, database=identity, first_key=first_key)
    except (DeliveryError, DependencyUnavailable) as error:
        raise CommandFailed(f"the gateways cannot be asked for their keys: {error}") from error
