"""House rules that no linter has: size, words, calls that have bitten us, and what a repository may name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from source_trees import EVERYTHING, PACKAGES, ROOT, Source, sources, tracked

MOST_LINES = 400
MOST_BODY_LINES = 40
LONG_FUNCTIONS = {
    "channels/discord/simulator/shapes.py": "an object of the platform with all its fields",
    "gateway/composition/": "the construction of components",
    "gateway/files/wiring.py": "the construction of components",
    "gateway/infra/backing_services.py": "the construction of components",
    "gateway/ingress/commands/chat_commands.py": "a table of commands",
    "gateway/migrations/versions/": "statements of a schema",
    "gateway/web/admin/agent_files.py": "a table of routes",
    "gateway/web/admin/routes.py": "tables of routes",
    "gateway/web/api/routes.py": "tables of routes",
}
"""Where bodies may be longer: tables, and the construction of components."""

BANNED_CALLS = {
    "wait_for": "asyncio.wait_for swallows cancellation on Python 3.11: use asyncio.timeout or asyncio.wait",
    "shield": "asyncio logs errors of work whose caller is cancelled: delivery.background.run_shielded",
    "ordered_consumer": "nats-py's ordered consumer loses messages silently: read in batches",
    "delete_msg": "deleting a stream's last message makes the server forget message ids",
}
DEFINITIONS = {("shield", "delivery/background.py")}
"""Where a banned call is made once, for all."""

REGISTRIES = re.compile(
    r"https?://[^\s\"'`)]*(pypi\.org|pythonhosted|registry\.npmjs|deb\.debian\.org|ghcr\.io|quay\.io)"
)


def test_no_file_is_longer_than_400_lines() -> None:
    """A longer file has more than one responsibility."""
    long = {
        source.name: source.text.count("\n")
        for source in sources(*EVERYTHING)
        if source.text.count("\n") > MOST_LINES and "/migrations/versions/" not in source.name
    }
    assert not long


def test_no_body_is_longer_than_40_lines() -> None:
    """A longer body has steps without names; tables and the construction of components are listed."""
    long = {
        f"{source.name}: {node.name}"
        for source in sources(*PACKAGES)
        for node in _functions(source)
        if _body_lines(node) > MOST_BODY_LINES
    }
    listed = tuple(LONG_FUNCTIONS)
    assert not [name for name in long if not name.startswith(listed)]
    assert not [place for place in listed if not any(name.startswith(place) for name in long)]


def _functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from source.nodes(ast.FunctionDef)
    yield from source.nodes(ast.AsyncFunctionDef)


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a body without its docstring."""
    first, *others = node.body
    if ast.get_docstring(node) is not None and others:
        first = others[0]
    return (node.end_lineno or 0) - first.lineno + 1


def test_every_module_class_function_and_test_says_what_it_is() -> None:
    """Modules, public classes and functions, and tests have a docstring."""
    silent = [
        f"{source.name}: {what}"
        for source in sources(*EVERYTHING)
        for what in _without_docstring(source.tree)
    ]
    assert not silent


def _without_docstring(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Yield what has no docstring in a module or a public class; setters belong to their property."""
    if node.body and ast.get_docstring(node) is None:
        yield getattr(node, "name", "the module")
    for inner in node.body:
        if isinstance(inner, ast.ClassDef) and not inner.name.startswith("_"):
            yield from _without_docstring(inner)
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("_"):
            setter = any(isinstance(one, ast.Attribute) for one in inner.decorator_list)
            if ast.get_docstring(inner) is None and not setter:
                yield inner.name


def test_every_text_is_next_to_what_it_describes() -> None:
    """A text that is no docstring follows an assignment: it describes the name."""
    strays = [
        f"{source.name}:{text.lineno}"
        for source in sources(*EVERYTHING)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for before, text in pairwise(node.body)
        if _is_text(text) and not isinstance(before, ast.Assign | ast.AnnAssign)
    ]
    assert not strays


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@pytest.mark.parametrize("call", sorted(BANNED_CALLS))
def test_calls_that_have_bitten_us_are_not_made(call: str) -> None:
    """What swallowed cancellations or lost messages once is not called again."""
    found = [
        f"{source.name}:{node.lineno}"
        for source in sources(*EVERYTHING)
        for node in source.nodes(ast.Attribute)
        if node.attr == call and not _is_condition_wait(node) and (call, source.name) not in DEFINITIONS
    ]
    assert not found, BANNED_CALLS[call]


def _is_condition_wait(node: ast.Attribute) -> bool:
    """Distinguish asyncio.Condition.wait_for, which is fine, from asyncio.wait_for."""
    return node.attr == "wait_for" and not (isinstance(node.value, ast.Name) and node.value.id == "asyncio")


def test_commands_ask_without_blocking_the_event_loop() -> None:
    """A question that blocks the loop sees Ctrl-C too late; `init` asks before there is a loop."""
    found = {
        source.name
        for source in sources("gateway")
        for node in source.nodes(ast.Attribute)
        if ast.unparse(node) in {"typer.prompt", "typer.confirm"}
    }
    assert found == {"gateway/cli/machine/init.py"}


def test_commands_print_without_control_characters() -> None:
    """Names are typed or sent by others: `print_line` cleans them, `typer.echo` does not."""
    found = {
        source.name
        for source in sources("gateway")
        for node in source.nodes(ast.Attribute)
        if source.name.startswith("gateway/cli/commands/") and ast.unparse(node) == "typer.echo"
    }
    assert found == {
        "gateway/cli/commands/status.py"
    }  # lines with colours, whose texts are cleaned one by one


def test_leases_are_never_renewed_by_a_key_value_update() -> None:
    """`kv.update` drops the time to live, which makes a lease immortal."""
    found = [
        source.name
        for source in sources(*PACKAGES)
        for node in source.nodes(ast.Attribute)
        if node.attr == "update" and isinstance(node.value, ast.Name) and node.value.id in {"kv", "bucket"}
    ]
    assert not found


def test_the_machine_is_not_asked_what_time_it_is() -> None:
    """Rows are written and judged by the clock that all replicas share (`delivery.database.clock`)."""
    found = [
        f"{source.name}:{node.lineno}"
        for source in sources("gateway", "delivery")
        for node in source.nodes(ast.Attribute)
        if node.attr == "now"
        and isinstance(node.value, ast.Name)
        and node.value.id == "datetime"
        and not source.name.startswith(("gateway/cli/", "delivery/database/clock.py"))
    ]
    assert not found


def test_times_of_others_are_converted_where_they_are_bounded() -> None:
    """`fromtimestamp` raises for numbers that others may send: each place bounds its number first."""
    bounded = {
        "channels/discord/payloads.py",  # a snowflake has 64 bits
        "channels/discord/simulator/world.py",
        "channels/inbox/text.py",
        "channels/slack/addresses.py",  # Timestamp has 11 digits
        "channels/telegram/probe.py",
        "channels/telegram/receive/codec.py",  # UnixTime
        "gateway/cli/doctor/local_checks.py",  # this machine's clock
        "sandbox/paths.py",
    }
    found = {source.name for source in sources(*PACKAGES) if "fromtimestamp(" in source.text}
    assert found == bounded


def test_moments_of_others_are_moved_to_utc_where_their_range_is_checked() -> None:
    """`astimezone` raises at both ends of time: these places catch it, or their moment is bounded."""
    checked = {
        "channels/github/send/sender.py",  # a time of ours
        "channels/inbox/text.py",
        "delivery/database/clock.py",  # the database's clock
        "delivery/database/tables.py",  # everything that is stored was checked before
        "delivery/deliveries/rendering.py",  # a time of ours
        "delivery/events/event.py",
        "gateway/accounts/budget_periods.py",  # the present
        "gateway/conversations/room_context.py",  # adapters check the times of their platforms
        "gateway/ingress/inbound.py",
        "gateway/ingress/interactions/agent_reactions.py",  # the present
        "gateway/ingress/commands/schedule_commands.py",  # a stored time within ten years
        "gateway/schedules/chat_times.py",  # the present
        "gateway/schedules/cron_times.py",  # the present, and the next decades
        "gateway/schedules/recurrence.py",
        "gateway/conversations/commands/session_reset.py",  # the present
        "gateway/web/admin/webhook_replay.py",
        "sandbox/kubernetes/objects.py",  # the present
    }
    found = {
        source.name
        for source in sources(*PACKAGES)
        if ".astimezone(" in source.text and not {"simulator", "testing"} & set(source.parts)
    }
    assert found == checked
    given = {source.name for source in sources(*PACKAGES) if "AwareDatetime" in source.text}
    assert given == {
        "gateway/schedules/declared.py",  # with recurrence.py
        "gateway/web/admin/webhook_replay.py",
        "gateway/web/api/schedules.py",  # with recurrence.py
        "gateway/web/compat/a2a/requests.py",  # only compared
    }


def test_only_settings_reads_the_environment() -> None:
    """Other modules get what they need; programs inside a sandbox read the sandbox's environment."""
    programs = ("browser", "browser_service", "client", "computer_service", "display")
    inside = {f"sandbox/desktop/{name}.py" for name in programs}
    allowed = {"gateway/config/load.py", *inside}
    found = [
        source.name
        for source in sources(*PACKAGES)
        for node in source.nodes(ast.Attribute)
        if node.attr in {"environ", "getenv"} and source.name not in allowed
    ]
    assert not found


def test_secrets_are_compared_in_constant_time() -> None:
    """Code that verifies a token or a signature calls compare_digest."""
    for name in (
        "channels/telegram/receive/receiver.py",
        "delivery/webhooks/signing.py",
        "gateway/jobs/settlement.py",
    ):
        assert "compare_digest" in (ROOT / name).read_text(), name


def test_the_repository_names_no_registry_and_no_machine() -> None:
    """Installs work with the configured index; no file names a directory of one machine."""
    found = []
    for path in tracked():
        if path.suffix in {".png", ".ico", ".woff2"} or path == Path(__file__):
            continue
        text = path.read_text(errors="replace")
        if REGISTRIES.search(text) or re.search(r"/(?:root|home)/\w+/\.(?:pyenv|cache)", text):
            found.append(str(path.relative_to(ROOT)))
    assert not found


def test_paths_that_documents_name_exist() -> None:
    """A document that names a file of ours names one that is there."""
    named = re.compile(
        r"`((?:gateway|delivery|channels|sandbox|egress|tests|bench|docs|examples|\.ci)/[\w./-]+)`"
    )
    missing = [
        f"{path.name}: {found}"
        for path in tracked()
        if path.suffix == ".md"
        for found in named.findall(path.read_text())
        if not (ROOT / found.rstrip("/")).exists()
    ]
    assert not missing


def test_no_test_patches_what_we_own() -> None:
    """Tests use real collaborators or simulators that speak the platform's protocol."""
    pattern = re.compile(r"mock\.patch|monkeypatch\.setattr|MagicMock|AsyncMock")
    own = Path(__file__).name
    found = [
        source.name
        for source in sources("tests")
        if not source.name.endswith(own) and pattern.search(source.text)
    ]
    assert not found


def test_no_test_says_that_digits_are_absent() -> None:
    """A text with a port, an id or a time has any few digits now and then: name words instead."""
    digits = re.compile(r"(?=.*\d)[0-9a-f]{1,4}")
    found = [
        f"{source.name}:{test.lineno}: {test.left.value!r}"
        for source in sources("tests")
        for node in source.nodes(ast.Assert)
        if isinstance(test := node.test, ast.Compare)
        and isinstance(test.ops[0], ast.NotIn)
        and isinstance(test.left, ast.Constant)
        and isinstance(test.left.value, str)
        and digits.fullmatch(test.left.value)
    ]
    assert found == []
