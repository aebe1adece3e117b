"""Commands on jobs, approvals and deliveries."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.errors import ExitCode
from gateway.cli.group import Json, group, remote
from gateway.cli.output import Columns, print_line, print_record, print_rows, short
from gateway.cli.stdout_reader import while_stdout_is_read

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient

FOLLOW_SECONDS = 1.0
OVERLAP = 500
"""Characters at the end of what was printed that are looked up in output whose beginning was dropped."""

jobs = group("Background jobs.")
approvals = group("Tool calls that wait for a person.")
deliveries = group("Deliveries to chats and webhooks.")

Id = Annotated[str, typer.Argument(help="The id, as the list shows it.")]


def state_option(states: type[StrEnum]) -> Any:
    """Return the option that selects one of these states."""
    return typer.Option(help=f"Only those in this state: {', '.join(states)}.", metavar="STATE")


class JobFilter(StrEnum):
    """The states of jobs in the API; its own enum is not imported, which would make each command slow."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


class DeliveryFilter(StrEnum):
    """The states of deliveries in the API."""

    PENDING = "pending"
    SENDING = "sending"
    RETRYING = "retrying"
    PARKED = "parked"
    AMBIGUOUS = "ambiguous"
    DELIVERED = "delivered"
    DEAD = "dead"
    SUPPRESSED = "suppressed"


def filter_by_state(rows: list[dict[str, Any]], state: str | None) -> list[dict[str, Any]]:
    """Return the rows of one state."""
    return [row for row in rows if state is None or row.get("state") == state]


@remote(jobs, "list")
async def list_jobs(
    gateway: GatewayClient,
    *,
    state: Annotated[JobFilter | None, state_option(JobFilter)] = None,
    as_json: Json = False,
) -> None:
    """List the jobs."""
    columns: Columns = {
        "id": lambda row: row.get("id") or row.get("resultId"),
        "state": "state",
        "exit": "exit_code",
        "started": "created_at",
        "command": lambda row: short(row.get("command")),
    }
    print_rows(
        filter_by_state(await gateway.list_all("jobs"), state), columns, as_json=as_json, empty="no jobs"
    )


@remote(jobs, "show")
async def show_job(gateway: GatewayClient, job: Id, *, as_json: Json = False) -> None:
    """Show one job."""
    print_record(await gateway.get("jobs", job), as_json=as_json)


@remote(jobs, "logs")
async def show_logs(
    gateway: GatewayClient,
    job: Id,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print until the job ends.")] = False,
    as_json: Json = False,
) -> None:
    """Print a job's output; also while it runs."""
    if follow:
        async with while_stdout_is_read():
            await follow_logs(gateway, job)
        return
    answer = await gateway.get("jobs", job, "logs")
    if as_json or not isinstance(answer, dict | str):
        print_record(answer if isinstance(answer, dict) else {"output": answer}, as_json=True)
        return
    text = answer if isinstance(answer, str) else str(answer.get("output") or "")
    print_line(text, nl=not text.endswith("\n"))


async def follow_logs(gateway: GatewayClient, job: str) -> None:
    """Print a job's output as it grows, until the job ends; exit 1 if it did not succeed.

    The gateway may restart meanwhile, because the job goes on.
    """
    printed = ""
    now = await gateway.get("jobs", job)
    while True:
        ended = now["state"] != "running"
        output = str((await gateway.get_across_restart("jobs", job, "logs")).get("output") or "")
        print_line(new_output(printed, output), nl=False)
        printed = output
        if ended:
            break
        await asyncio.sleep(FOLLOW_SECONDS)
        now = await gateway.get_across_restart("jobs", job)
    code = now.get("exit_code")
    print_line(f"{job}: {now['state']}" + (f", exit code {code}" if code is not None else ""), err=True)
    if now["state"] != "completed":
        raise typer.Exit(ExitCode.FAILED)


def new_output(printed: str, output: str) -> str:
    """Return what follows in an output of which only the last part is kept; all of it if nothing matches."""
    if output.startswith(printed):
        return output[len(printed) :]
    overlap = printed[-OVERLAP:]
    at = output.rfind(overlap)
    return output[at + len(overlap) :] if overlap and at >= 0 else output


@remote(jobs, "stop")
async def stop_job(gateway: GatewayClient, job: Id) -> None:
    """Stop a job with its processes."""
    await gateway.post("jobs", job, "stop")
    print_line(f"{job} is being stopped")


@remote(approvals, "list")
async def list_approvals(
    gateway: GatewayClient,
    *,
    decided: Annotated[bool, typer.Option("--all", help="Include decided approvals.")] = False,
    as_json: Json = False,
) -> None:
    """List the tool calls and questions that wait for a person."""
    columns: Columns = {
        "id": "id",
        "state": "state",
        "tool": "tool",
        "command": lambda row: short(row.get("question" if row.get("kind") == "question" else "command"), 80),
        "asked": "created_at",
        "by": lambda row: str(row.get("decided_name") or row.get("decided_by") or ""),
    }
    found = [row for row in await gateway.list_all("approvals") if decided or row.get("state") == "pending"]
    print_rows(found, columns, as_json=as_json, empty="no pending approvals")


Comment = Annotated[str | None, typer.Option(help="A comment for the agent.")]


@remote(approvals, "approve")
async def approve(gateway: GatewayClient, approval: Id, *, comment: Comment = None) -> None:
    """Approve a waiting tool call."""
    await _decide(gateway, approval, "approve", comment)


@remote(approvals, "deny")
async def deny(gateway: GatewayClient, approval: Id, *, comment: Comment = None) -> None:
    """Deny a waiting tool call."""
    await _decide(gateway, approval, "deny", comment)


async def _decide(gateway: GatewayClient, approval: str, decision: str, comment: str | None) -> None:
    body = {"decision": decision} | ({"comment": comment} if comment else {})
    await gateway.post("approvals", approval, body=body)
    print_line(f"{approval}: {'approved' if decision == 'approve' else 'denied'}")


@remote(approvals, "answer")
async def answer(gateway: GatewayClient, approval: Id, text: Annotated[str, typer.Argument()]) -> None:
    """Answer a question of the agent: a choice or its number, `name: value; …` for a form, or any text."""
    await gateway.post("approvals", approval, body={"answer": text})
    print_line(f"{approval}: answered")


@remote(deliveries, "list")
async def list_deliveries(
    gateway: GatewayClient,
    *,
    state: Annotated[DeliveryFilter | None, state_option(DeliveryFilter)] = None,
    as_json: Json = False,
) -> None:
    """List the deliveries with their state."""
    columns: Columns = {
        "id": "id",
        "state": "state",
        "route": "kind",
        "event": "type",
        "attempts": "attempts",
        "due": "due_at",
        "error": lambda row: short(row.get("error"), 80),
    }
    rows = filter_by_state(await gateway.list_all("deliveries"), state)
    print_rows(rows, columns, as_json=as_json, empty="no deliveries")


@remote(deliveries, "show")
async def show_delivery(gateway: GatewayClient, delivery: Id, *, as_json: Json = False) -> None:
    """Show one delivery with every attempt."""
    found = await gateway.get("deliveries", delivery)
    if as_json:
        print_record(found, as_json=True)
        return
    attempts = found.pop("attempts", None)
    print_record(found, as_json=False)
    if isinstance(attempts, list):
        columns: Columns = {name: name for name in ("time", "outcome", "status", "duration_ms", "detail")}
        print_rows(attempts, columns, as_json=False, empty="no attempts yet")


@remote(deliveries, "retry")
async def retry_delivery(gateway: GatewayClient, delivery: Id) -> None:
    """Retry a delivery, also a dead one."""
    await gateway.post("deliveries", delivery, "retry")
    print_line(f"{delivery} will be sent again")


@remote(deliveries, "drop")
async def drop_delivery(gateway: GatewayClient, delivery: Id) -> None:
    """Drop a delivery; it is not sent any more."""
    await gateway.post("deliveries", delivery, "drop")
    print_line(f"{delivery} dropped")
