"""The routes of conversations: turns, messages, approvals, jobs, deliveries and files."""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.web.api import (
    approvals,
    conversations,
    deliveries,
    handover,
    job_completion,
    jobs,
    memories,
    persons,
    schedules,
    snapshots,
    trace,
    triggers,
    turn_continue,
    turn_list,
    turns,
)
from gateway.web.api.files import (
    downloads,
    turn_files,
    turn_restore,
    workspace_files,
    workspace_operations,
    workspace_uploads,
)
from gateway.web.http import attachments
from gateway.web.http.auth import SignatureAccess
from gateway.web.http.pagination import ListPage, PageQuery
from gateway.web.http.route import ApiRoute
from gateway.web.http.route_table import (
    ADMIN,
    CHAT,
    JOBS,
    ME,
    READ,
    delete_route,
    get_route,
    patch_route,
    post_route,
)


def _turns() -> tuple[ApiRoute, ...]:
    t, accepted = turns, turns.TurnAccepted
    conflicts = {409: "the conversation belongs to another agent", 429: "the conversation's queue is full"}
    accept = partial(
        post_route,
        status=202,
        response_model=accepted,
        error_responses=conflicts,
        body_bytes=attachments.MAX_BODY_BYTES,
    )
    steps, status = ListPage[turns.StepResponse], t.TurnStatus
    turn_or_job: Any = t.TurnOrJobStatus
    return (
        accept(
            "/agents/{id}/turns", CHAT, t.start_turn, "start a turn of an agent", request_model=t.TurnCreate
        ),
        accept(
            "/conversations/{id}/messages",
            CHAT,
            t.send_message,
            "send a message to a conversation, or a command such as /stop",
            request_model=t.MessageCreate,
            response_model=t.MessageAccepted,
        ),
        get_route(
            "/status/{id}",
            READ,
            t.get_status,
            "show the state of a turn or a job",
            response_model=turn_or_job,
        ),
        post_route(
            "/turns/{id}/cancel", CHAT, t.cancel_turn, "cancel a turn", status=202, response_model=status
        ),
        get_route("/turns/{id}/log", READ, t.get_log, "list a turn's tool calls", response_model=steps),
    )


def _conversations() -> tuple[ApiRoute, ...]:
    c, a, one = conversations, approvals, "/conversations/{id}"
    page, approval_page = ListPage[conversations.ConversationResponse], ListPage[approvals.ApprovalResponse]
    conflict = {409: "already decided differently; `winner` is the decision that counts"}
    post_decision = partial(
        post_route,
        request_model=a.ApprovalDecisionRequest,
        response_model=a.ApprovalResponse,
        error_responses=conflict,
    )
    h = handover
    query, response = c.ConversationQuery, c.ConversationResponse
    return (
        get_route(
            "/conversations",
            READ,
            c.list_conversations,
            "list the conversations",
            query_model=query,
            response_model=page,
        ),
        get_route(
            one, READ, c.get_conversation, "show a conversation", response_model=response, versioned=True
        ),
        patch_route(
            one,
            CHAT,
            c.update_conversation,
            "change a conversation's title, or how it queues messages",
            request_model=c.ConversationUpdate,
            response_model=response,
            versioned=True,
        ),
        delete_route(
            one,
            ADMIN,
            c.delete_conversation,
            "delete a conversation with its events, files and jobs",
            versioned=True,
        ),
        post_route(
            f"{one}/handover",
            CHAT,
            h.hand_over,
            "give a conversation to a person, or back to its agent",
            request_model=h.HandoverRequest,
            response_model=h.HandoverResponse,
        ),
        get_route(
            f"{one}/snapshot",
            READ,
            snapshots.get_snapshot,
            "show a conversation's messages, jobs and approvals",
            response_model=snapshots.ConversationSnapshot,
        ),
        get_route(
            "/approvals",
            READ,
            a.list_approvals,
            "list approvals",
            query_model=a.ApprovalQuery,
            response_model=approval_page,
        ),
        get_route(
            "/approvals/{id}", READ, a.get_approval, "show an approval", response_model=a.ApprovalResponse
        ),
        post_decision("/approvals/{id}", CHAT, a.decide, "approve or deny a tool call, or answer a question"),
    )


def _jobs() -> tuple[ApiRoute, ...]:
    j, one, page = jobs, "/jobs/{id}", ListPage[jobs.JobResponse]
    return (
        get_route("/jobs", READ, j.list_jobs, "list the jobs", query_model=j.JobQuery, response_model=page),
        get_route(one, READ, j.get_job, "show a job", response_model=j.JobDetail),
        get_route(f"{one}/logs", READ, j.get_log, "show a job's output", response_model=j.JobLog),
        post_route(f"{one}/stop", JOBS, j.stop_job, "stop a job", status=202, response_model=j.JobDetail),
    )


def _deliveries() -> tuple[ApiRoute, ...]:
    d, one = deliveries, "/deliveries/{id}"
    page, detail = ListPage[deliveries.DeliveryResponse], d.DeliveryDetail
    return (
        get_route(
            "/deliveries",
            READ,
            d.list_deliveries,
            "list the deliveries",
            query_model=d.DeliveryQuery,
            response_model=page,
        ),
        get_route(one, READ, d.get_delivery, "show a delivery with its attempts", response_model=detail),
        post_route(
            f"{one}/retry", ADMIN, d.retry_delivery, "retry a delivery", status=202, response_model=detail
        ),
        post_route(f"{one}/drop", ADMIN, d.drop_delivery, "drop a delivery", response_model=detail),
    )


def _schedules() -> tuple[ApiRoute, ...]:
    s, collection, one = schedules, f"{ME}/schedules", f"{ME}/schedules/{{id}}"
    response, page = s.ScheduleResponse, ListPage[schedules.ScheduleResponse]
    full = {429: "the account has as many schedules as it may have"}
    changed = {409: "the schedule has ended, or fired at this moment"}
    return (
        post_route(
            collection,
            CHAT,
            s.create,
            "create a schedule: a turn or a reminder at a time",
            status=201,
            request_model=s.ScheduleCreate,
            response_model=response,
            error_responses={**full, 409: "the conversation belongs to another agent"},
        ),
        get_route(
            collection,
            READ,
            s.list_schedules,
            "list the schedules",
            query_model=s.ScheduleQuery,
            response_model=page,
        ),
        get_route(one, READ, s.get, "show a schedule", response_model=response, versioned=True),
        patch_route(
            one,
            CHAT,
            s.update,
            "change, pause or resume a schedule",
            request_model=s.ScheduleUpdate,
            response_model=response,
            versioned=True,
            error_responses=changed,
        ),
        post_route(
            f"{one}/run",
            CHAT,
            s.run_now,
            "start what a schedule starts now",
            status=202,
            response_model=s.ScheduleRun,
            error_responses={429: "the conversation's queue is full"},
        ),
        delete_route(one, CHAT, s.delete, "delete a schedule", versioned=True),
    )


def _memories() -> tuple[ApiRoute, ...]:
    m, collection, one = memories, f"{ME}/memories", f"{ME}/memories/{{id}}"
    response, page = m.MemoryResponse, ListPage[memories.MemoryResponse]
    full = {
        429: "the account has as many memories as it may have",
        413: "the account's storage is full",
    }
    return (
        post_route(
            collection,
            CHAT,
            m.create,
            "write a memory about a person, a room, an agent or the account",
            status=201,
            request_model=m.MemoryCreate,
            response_model=response,
            error_responses=full,
        ),
        get_route(
            collection,
            READ,
            m.list_memories,
            "list or find memories",
            query_model=m.MemoryQuery,
            response_model=page,
        ),
        get_route(one, READ, m.get, "show a memory", response_model=response, versioned=True),
        patch_route(
            one,
            CHAT,
            m.update,
            "change a memory",
            request_model=m.MemoryUpdate,
            response_model=response,
            error_responses={413: full[413]},
            versioned=True,
        ),
        delete_route(one, CHAT, m.delete, "delete a memory", versioned=True),
    )


def _triggers() -> tuple[ApiRoute, ...]:
    t, collection = triggers, f"{ME}/triggers"
    return (
        post_route(
            collection,
            CHAT,
            t.create,
            "create a trigger: signed requests that start a turn",
            status=201,
            request_model=t.TriggerCreate,
            response_model=t.TriggerCreated,
            error_responses={
                409: "the conversation belongs to another agent",
                429: "the account has as many triggers as it may have",
            },
        ),
        get_route(
            collection,
            READ,
            t.list_triggers,
            "list the triggers",
            query_model=PageQuery,
            response_model=ListPage[t.TriggerResponse],
        ),
        delete_route(f"{collection}/{{id}}", CHAT, t.delete, "delete a trigger"),
        post_route(
            "/triggers/{id}",
            SignatureAccess(),
            t.fire,
            "start a trigger's turn with a signed request (Standard Webhooks or X-Hub-Signature-256)",
            status=202,
            raw=True,
            optional_headers=t.SIGNATURE_HEADERS,
            response_model=t.TriggerFired,
            error_responses={
                401: "no such trigger signed the request",
                409: "the id was used for another request, or the chat's channel or the agent was deleted",
                429: "the conversation's queue is full: send the request again later",
                503: "the signature cannot be checked now: send the request again later",
            },
        ),
    )


API_ROUTES: tuple[ApiRoute, ...] = (
    *workspace_files.ROUTES,
    *workspace_operations.ROUTES,
    *workspace_uploads.ROUTES,
    *_turns(),
    *turn_files.ROUTES,
    *turn_restore.ROUTES,
    *turn_continue.ROUTES,
    *turn_list.ROUTES,
    *_conversations(),
    *_jobs(),
    *_deliveries(),
    *job_completion.ROUTES,
    *downloads.ROUTES,
    *trace.ROUTES,
    *_schedules(),
    *_memories(),
    *persons.ROUTES,
    *_triggers(),
)
