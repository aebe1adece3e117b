"""The file store keeps files once, for their retention, and deletes bytes with the last file."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from delivery.database.engine import Database
from delivery.errors import BrokerUnreachable
from delivery.events import outbox
from delivery.events.event import new_id
from gateway.files.storage.blob_store import DirectoryBlobStore
from gateway.files.storage.file_store import FileStore
from gateway.store.accounts import accounts, deletion
from gateway.store.accounts.accounts import Account
from gateway.store.conversations import conversations, uploads
from gateway.store.conversations import files as store
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.files import FileRow, FileState

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
async def file_store(database: Database, tmp_path: Path) -> FileStore:
    """A store with a retention of one day and no grace for idle bytes, and a conversation."""
    async with database.begin() as connection:
        await accounts.add_account(connection, Account(id="acc_1", name="ada", created_at=NOW))
        conversation = Conversation(id="cnv_1", account="acc_1", agent="agt_1", created_at=NOW)
        await conversations.insert_conversation(connection, conversation)
        await outbox.create_stream(connection, conversation="cnv_1", account="acc_1", agent="agt_1")
    blobs = DirectoryBlobStore(tmp_path / "files")
    return FileStore(database, blobs, retention=timedelta(days=1), grace=timedelta(0), tries=2)


def make_file(digest: str, **changes: object) -> FileRow:
    """Return a row of the conversation."""
    values: dict[str, object] = {
        "id": new_id("fil"),
        "account": "acc_1",
        "conversation": "cnv_1",
        "state": FileState.STAGED,
        "identity": new_id("x"),
        "name": "a.txt",
        "type": "text/plain",
        "size": 1,
        "sha256": digest,
        "created_at": datetime.now(UTC),
        "version": "1",
        "path": "outbox/a.txt",
    }
    return FileRow(**(values | changes))  # type: ignore[arg-type]


async def added(database: Database, *rows: FileRow) -> list[bool]:
    """Insert rows; returns which were new."""
    async with database.begin() as connection:
        return [await store.add(connection, row) for row in rows]


async def test_a_file_found_again_is_the_same(database: Database, file_store: FileStore) -> None:
    """One identity is one row of its conversation; a file to be attached is attached once."""
    row = make_file(await file_store.write_blob("acc_1", b"x"), identity="same")
    assert await added(database, row, make_file(row.sha256 or "", identity="same")) == [True, False]
    async with database.begin() as connection:
        first = await store.collect_staged(connection, "cnv_1")
        second = await store.collect_staged(connection, "cnv_1")
        reported = await store.get_by_id(connection, row.id)
    assert ([one.id for one in first], second) == ([row.id], [])
    assert reported is not None
    assert reported.state is FileState.EMITTED


async def test_bytes_go_with_the_last_file_that_has_them(database: Database, file_store: FileStore) -> None:
    """Two files of one content need both to be gone."""
    digest = await file_store.write_blob("acc_1", b"shared")
    one = make_file(digest)
    two = make_file(digest, conversation=None, state=FileState.UPLOADED, version="")
    await added(database, one, two)
    async with database.begin() as connection:
        await deletion.delete_conversation(connection, "acc_1", "cnv_1")
    await file_store.sweep(datetime.now(UTC) + timedelta(seconds=1))
    assert await file_store.read(one.id) is None
    assert await file_store.read(two.id) == b"shared"
    async with database.begin() as connection:
        await deletion.delete_account(connection, "acc_1")
    await file_store.sweep(datetime.now(UTC) + timedelta(seconds=1))
    assert await file_store.read_blob(digest) is None


async def test_files_end_with_their_time(database: Database, file_store: FileStore) -> None:
    """An old file is not found even before it is swept, and its bytes go with the sweep."""
    digest = await file_store.write_blob("acc_1", b"old")
    row = make_file(digest, created_at=datetime.now(UTC) - timedelta(days=2))
    await added(database, row)
    assert await file_store.get(row.id) is None
    await file_store.sweep(datetime.now(UTC) + timedelta(seconds=1))
    assert await file_store.read_blob(digest) is None


async def test_an_upload_ends_with_the_time_that_its_client_gave(
    database: Database, file_store: FileStore
) -> None:
    """It is neither found nor listed any more, and the sweep deletes it; others stay."""
    gone = await file_store.save("acc_1", "gone.txt", b"gone", lifetime=timedelta(microseconds=1))
    long = await file_store.save("acc_1", "long.txt", b"long", lifetime=timedelta(days=9))
    plain = await file_store.save("acc_1", "plain.txt", b"plain")
    assert (long.expires_at, plain.expires_at) == (long.created_at + timedelta(days=1), None)
    assert await file_store.get(gone.id) is None
    async with database.begin() as connection:
        listed = await uploads.list_uploads(connection, "acc_1", after=None, limit=9, newest_first=False)
        assert {one.id for one in listed} == {long.id, plain.id}
    await file_store.sweep(datetime.now(UTC))
    async with database.read() as connection:
        assert await store.get_by_id(connection, gone.id) is None
    assert await file_store.read(long.id) == b"long"
    assert await file_store.read(plain.id) == b"plain"


async def test_bytes_whose_file_is_about_to_be_written_down_stay(database: Database, tmp_path: Path) -> None:
    """Unreferenced bytes have an hour's grace."""
    patient = FileStore(database, DirectoryBlobStore(tmp_path / "files"), retention=timedelta(days=1))
    digest = await patient.write_blob("acc_1", b"soon")
    await patient.sweep(datetime.now(UTC) + timedelta(minutes=50))
    assert await patient.read_blob(digest) == b"soon"


async def test_bytes_are_not_taken_while_they_are_being_dropped(
    database: Database, file_store: FileStore
) -> None:
    """A writer of the same bytes at that moment waits, and fails rather than lose them."""
    await file_store.write_blob("acc_1", b"x")
    async with database.begin() as connection:
        later = datetime.now(UTC) + timedelta(seconds=1)
        (digest,), _ = await store.begin_delete(connection, now=later, grace=timedelta(0))
    with pytest.raises(BrokerUnreachable):
        await file_store.write_blob("acc_1", b"x")
    async with database.begin() as connection:
        await store.end_delete(connection, digest)
    assert await file_store.write_blob("acc_1", b"x") == digest


async def test_a_note_is_reported_by_one_turn_however_often_it_runs(
    database: Database, file_store: FileStore
) -> None:
    """The turn that attached it attaches it again after a crash; no other does."""
    row = make_file(await file_store.write_blob("acc_1", b"x"))
    await added(database, row)
    async with database.begin() as connection:
        assert await store.add_note(connection, row.id, "it was refused")
        assert not await store.add_note(connection, row.id, "again")
        first = await store.list_notes(connection, "cnv_1", "trn_1")
        await store.mark_noted(connection, first, "trn_1")
        assert await store.list_notes(connection, "cnv_1", "trn_1") == first == {row.id: "it was refused"}
        assert await store.list_notes(connection, "cnv_1", "trn_2") == {}


async def test_an_accounts_stored_files_are_added_up(database: Database, file_store: FileStore) -> None:
    """Files count by size, small ones as blocks; those without bytes and other accounts' do not count."""
    digest = await file_store.write_blob("acc_1", b"x")
    large, small = make_file(digest, size=10_000), make_file(digest, size=1)
    missing = make_file(digest, size=500_000, sha256=None)
    await added(database, large, small, missing)
    async with database.read() as connection:
        assert await store.stored_bytes(connection, "acc_1", at_least=4096) == 10_000 + 4096
        assert await store.stored_bytes(connection, "acc_2", at_least=4096) == 0
