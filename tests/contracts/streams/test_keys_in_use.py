"""The keys of open stream connections: checked together, whatever their number."""

from __future__ import annotations

from contextlib import ExitStack

from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.api_keys import ApiKeyAuthenticator, Principal
from gateway.store.accounts import accounts
from gateway.web.stream.readers import StreamReaders
from statement_recorder import recorded_statements

KEYS = 300


async def test_all_keys_in_use_cost_one_query(database: Database) -> None:
    """The connections of keys that another replica has revoked are closed, at one statement."""
    principals = await _principals(database)
    revoked, named_alike = principals[7], principals[8]
    async with database.begin() as connection:
        await accounts.revoke_key(connection, revoked.key)
        await accounts.revoke_key(connection, named_alike.key)
        # A key whose name is the id of a revoked one does not make that one valid.
        await api_keys.create_key(connection, named_alike.account, name=named_alike.key, scopes=("read",))
    readers = StreamReaders()
    with ExitStack() as stack:
        opened = {one.key: stack.enter_context(readers.register(one)) for one in principals}
        with recorded_statements() as recorder:
            await readers.check_keys(ApiKeyAuthenticator(database).live_scopes)
        closed = {key for key, reader in opened.items() if reader.closed.done()}
        codes = {reader.code for reader in opened.values() if reader.closed.done()}
    assert closed == {revoked.key, named_alike.key}
    assert codes == {4401}
    assert len([one for one in recorder.executed if "keys" in one.text]) == 1


async def _principals(database: Database) -> list[Principal]:
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        made = [
            (await api_keys.create_key(connection, account.id, name=f"key {number}", scopes=("read",)))[0]
            for number in range(KEYS)
        ]
    return [Principal(account=key.account, key=key.id, scopes=frozenset(key.scopes)) for key in made]
