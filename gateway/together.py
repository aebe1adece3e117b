"""Settings that are right one by one and cannot work together, above all with several replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gateway.layers import Layers, Problem

if TYPE_CHECKING:
    from gateway.settings import Settings


def together(layers: Layers, settings: Settings) -> Iterator[Problem]:
    """Yield what contradicts each other."""
    yield from _bucket(layers, settings)
    if settings.replicas > 1:
        yield from _replicas(layers, settings)


def _bucket(layers: Layers, settings: Settings) -> Iterator[Problem]:
    if settings.sandbox.snapshots == "s3" and not settings.sandbox.snapshot_s3.bucket:
        yield _problem(
            layers,
            ("sandbox", "snapshots"),
            "'s3'",
            "no bucket is named",
            "Set sandbox.snapshot_s3.bucket",
        )


def _replicas(layers: Layers, settings: Settings) -> Iterator[Problem]:
    """Each replica must find what the others have written."""
    several = f"{settings.replicas} replicas"
    if settings.database.startswith("sqlite"):
        yield _problem(
            layers,
            ("replicas",),
            str(settings.replicas),
            "a SQLite file has one gateway",
            "Set database_url to a PostgreSQL database, or replicas to 1",
        )
    if settings.nats_url is None:
        yield _problem(
            layers,
            ("replicas",),
            str(settings.replicas),
            "a gateway's own broker is nobody else's",
            "Set nats_url to a NATS server of all replicas, or replicas to 1",
        )
    if settings.shared_files:
        return
    yield _problem(
        layers,
        ("replicas",),
        str(settings.replicas),
        "workspaces are directories of this machine, which the others do not see",
        f"Put data_dir of {several} on one file system and set shared_files, or set replicas to 1",
    )
    if settings.sandbox.snapshots == "local":
        yield _problem(
            layers,
            ("sandbox", "snapshots"),
            "'local'",
            f"{several} cannot restore what stays on one machine",
            "Set it to s3, nats or none, or set shared_files",
        )


def _problem(layers: Layers, keys: tuple[str, ...], value: str, detail: str, remedy: str) -> Problem:
    source = layers.source(keys)
    return Problem(key=".".join(keys), value=value, source=source, detail=detail, remedy=remedy)
