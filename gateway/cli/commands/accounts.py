"""Commands of the operator on accounts; they need the operator's key."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.group import Json, group, operator
from gateway.cli.output import Columns, print_line, print_record, print_rows
from gateway.cli.questions import Yes, confirm_deletion
from gateway.cli.shown_once import print_once, print_or_fail

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient

accounts = group("Accounts of the gateway; needs the operator's key (DOVECOTE_ADMIN_KEY).")

Name = Annotated[str, typer.Argument(help="An id or a name.")]
AUDIT_COLUMNS = ("time", "account", "actor", "action", "object", "status", "address")


@operator(accounts, "list")
async def list_accounts(gateway: GatewayClient, *, as_json: Json = False) -> None:
    """List the accounts, oldest first."""
    columns: Columns = {"id": "id", "name": "name", "created": "created_at"}
    print_rows(await gateway.list_all("accounts"), columns, as_json=as_json, empty="no accounts")


@operator(accounts, "show")
async def show_account(gateway: GatewayClient, account: Name, *, as_json: Json = False) -> None:
    """Show an account."""
    print_record(await gateway.get("accounts", account), as_json=as_json)


@operator(accounts, "add")
async def add_account(
    gateway: GatewayClient,
    name: Annotated[str, typer.Argument(help="The new account's name.")],
    *,
    as_json: Json = False,
) -> None:
    """Create an account; its key is printed only now."""
    made = await gateway.post("accounts", body={"name": name})
    await print_once(gateway, partial(print_record, made, as_json=as_json), "accounts", made["id"])


@operator(accounts, "key")
async def add_key(
    gateway: GatewayClient,
    account: Name,
    name: Annotated[str, typer.Argument(help="The new key's name.")],
    *,
    scope: Annotated[
        list[str] | None, typer.Option(help="A scope of the key; can be repeated (default: every scope).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a key for an account; it is printed only now."""
    body = {"name": name} | ({"scopes": scope} if scope else {})
    made = await gateway.post("accounts", account, "keys", body=body)
    lost = f"{made['id']} exists, and its text is lost: the account can revoke it"
    print_or_fail(partial(print_record, made, as_json=as_json), lost=lost)


@operator(accounts, "nats-user")
async def add_nats_user(gateway: GatewayClient, account: Name, *, as_json: Json = False) -> None:
    """Make a NATS user that may only read the events of an account; its seed is printed only now."""
    from gateway.infra.nats_users import make_nats_user

    user = make_nats_user((await gateway.get("accounts", account))["id"])
    shown = {
        "subject": user.subject,
        "nkey": user.public_key,
        "seed": user.seed,
        "entry": user.server_entry(),
    }
    print_record(shown, as_json=as_json)


@operator(accounts, "audit")
async def list_entries(
    gateway: GatewayClient,
    account: Annotated[
        str | None, typer.Argument(help="The account's id or name (default: all); a deleted one's id.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """List who changed what over HTTP, newest first, in all accounts or in one."""
    chosen = {"account": await _find_id(gateway, account)} if account else {}
    rows = await gateway.list_all("audit", **chosen)
    columns: Columns = {name: name for name in AUDIT_COLUMNS}
    print_rows(rows, columns, as_json=as_json, empty="no changes")


async def _find_id(gateway: GatewayClient, account: str) -> str:
    """Return the id of an account; an id of none that exists may be a deleted one's."""
    if account.startswith("acc_"):
        return account
    return str((await gateway.get("accounts", account))["id"])


@operator(accounts, "rm")
async def delete_account(
    gateway: GatewayClient,
    account: Name,
    *,
    yes: Yes = False,
) -> None:
    """Delete an account with all its conversations, files, sandboxes and keys."""
    await confirm_deletion(account, "this deletes everything of the account", yes=yes)
    await gateway.delete("accounts", account)
    print_line(f"{account} deleted")
