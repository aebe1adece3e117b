"""Each regular expression that is applied to text that others write takes linear time on hostile text.

A match holds the event loop, so one text that makes an expression try again and again stops every account.
A new expression belongs into one of the two tables: `FOREIGN`, or `NOT_FOREIGN` with the reason.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from hostile_text import Text, applications, grows_too_fast, has_possessive_group, hostile_texts
from regular_expressions import METHODS, expressions_of, read_expressions
from source_trees import PACKAGES, Source, sources

EXPRESSIONS = read_expressions()

FOREIGN: dict[str, str] = {
    "channels/discord/commands.py": "_SLASH_PATTERN _WORDS_PATTERN",
    "channels/discord/receive/codec.py": "_text _text#2",
    "channels/discord/receive/interactions.py": "_SIGNATURE _TIMESTAMP",
    "channels/discord/send/markup.py": "_SMALL_HEADING _DELIMITER _IMAGE _SPECIAL",
    "channels/discord/settings.py": "_TOKEN",
    "channels/discord/text.py": "_PROMPT",
    "channels/github/send/markup.py": "_ESCAPED",
    "channels/inbox/code.py": "_FENCE _RUN",
    "channels/inbox/updates.py": "find_mention",
    "channels/commonmark/bare_urls.py": "_REST",
    "channels/commonmark/inline_spans.py": "_INLINE _MARK",
    "channels/emoji.py": "_KEYCAP",
    "channels/slack/installations.py": "_ID _STATE",
    "channels/slack/send/markup.py": "_ENTITY_START",
    "channels/slack/settings.py": "_TOKEN",
    "channels/slack/text.py": "_MENTION _REFERENCE strip_mention",
    "channels/commonmark/splitting.py": "_OPENING _MARKER _QUOTED _STARTS_BLOCK _NUMBER _trim _fence_of",
    "channels/telegram/commands.py": "_SLASH",
    "channels/telegram/errors.py": "_MISSING_RIGHT",
    "channels/telegram/receive/codec.py": "_ALBUM _without_mention",
    "channels/telegram/settings.py": "_TOKEN _SECRET",
    "channels/zalo/send/markup.py": "_IMAGE",
    "channels/zalo/settings.py": "_TOKEN",
    "delivery/deliveries/rendering.py": "code_block",
    "delivery/events/public_subjects.py": "_TOKEN",
    "egress/proxy/request_head.py": "_PORT",
    "egress/urls.py": "_NUMBER",
    "gateway/accounts/api_keys.py": "KEY_PATTERN",
    "gateway/agents/clients/anthropic_messages.py": "_NO_CREDIT",
    "gateway/agents/clients/error_responses.py": "_TOO_LONG",
    "gateway/agents/clients/openai_chat.py": "_LIMITED",
    "gateway/agents/model/images.py": "_ABOUT_IMAGES",
    "gateway/agents/model/schema_limits.py": "_DATE _TIME _UUID",
    "gateway/cli/doctor/upgrade.py": "_RUNNING _RELEASE",
    "gateway/cli/terminal/markdown.py": "_TASK _FENCE_LINE _CONTINUES_BLOCK _cells",
    "gateway/conversations/message_frame.py": "_FIELD",
    "gateway/files/storage/file_store.py": "_MEDIA_TYPE",
    "gateway/files/media_types.py": "_BITMAP _MARKUP _NOT_TEXT _DEVICES _FORBIDDEN",
    "gateway/files/speech.py": "_CODE _LINK _MARKS to_spoken_text",
    "gateway/files/workspace_outbox.py": "_LISTING _CLOCK",
    "gateway/memory/search_words.py": "_WORD",
    "gateway/observability/log_setup.py": "SECRET_PATTERNS SECRET_FIELD_NAMES",
    "gateway/records/credentials.py": "_HEADER_VALUE",
    "gateway/records/tools/http_requests.py": "PLACEHOLDER",
    "gateway/records/tools/mcp_servers.py": "_HEADER_VALUE _RESERVED_VARIABLES",
    "gateway/records/tools/openapi_document.py": (
        "_PLACEHOLDER _PATH _HEADER_NAME _list_entries _Reader._parameter"
    ),
    "gateway/schedules/triggers.py": "_PLACEHOLDER",
    "gateway/sign_in/attempt.py": "_COOKIE",
    "gateway/tools/builtin/bash.py": "_COMMAND_NOT_FOUND",
    "gateway/tools/external_tools.py": "_UNUSABLE",
    "gateway/tools/git/author.py": "_UNUSABLE _LOCAL",
    "gateway/tools/git/git_arguments.py": "_NAME _ANCESTOR _URL",
    "gateway/tools/mcp/prompt_commands.py": "_COMMAND _UNUSABLE",
    "gateway/tools/screens/browser.py": "_URL",
    "gateway/tools/screens/computer.py": "_KEYS",
    "gateway/web/api/files/workspace_uploads.py": "_offset",
    "gateway/web/api/trace.py": "_TRACEPARENT",
    "gateway/web/compat/openai_ids.py": "_TURN _CONVERSATION _CALL",
    "gateway/web/compat/openai_parts.py": "_DATA_URL",
    "gateway/web/http/idempotency.py": "_KEY_PATTERN",
    "gateway/web/http/request_body.py": "_UNSTORABLE",
    "gateway/web/http/route.py": "_OPENAI_ID",
    "gateway/web/stream/frames.py": "_CURSOR",
    "gateway/web/stream/handlers.py": "_NEW_CONVERSATION_NAME",
    "sandbox/agentrun/execution.py": "_ENDED",
    "sandbox/agentrun/provider.py": "_ESCAPED _ESCAPE _ID",
    "sandbox/config.py": "LOADER_VARIABLES MOUNT_TARGET HOME_PATH EXTERNAL_NAME VARIABLE_NAME",
    "sandbox/docker/settings.py": "IMAGE _HOST _USER _MOUNT",
    "sandbox/exec/background_jobs.py": "_TOKEN",
    "sandbox/exec/command_lint.py": (
        "_RUNTIMES _RUNTIMES#2 _ASSIGNMENT _HEREDOC _TOKEN _ESCAPED _SYSTEM _CLIMBS _REDIRECTION"
    ),
    "sandbox/kubernetes/errors.py": "_MISSING_ROLE",
    "sandbox/kubernetes/settings.py": "IMAGE",
    "sandbox/lifecycle/services.py": "SERVICE_NAME _ENTRY",
}
"""The expressions on text of people, models, programs and servers, by file."""

OPERATOR = "the operator's settings"
OUR_OWN = "our own output"
SIMULATOR = "a simulator reads what this gateway sends, in tests and demonstrations"

NOT_FOREIGN: dict[str, str] = {
    "gateway/config/setting_types.py::LANGUAGE_MODEL": OPERATOR,
    "gateway/config/setting_types.py::ENTRY_MODEL": OPERATOR,
    "gateway/config/sources.py::SECRET_KEY_PATTERN": OPERATOR,
    "gateway/config/sources.py::URL_CREDENTIALS": OPERATOR,
    "sandbox/docker/engine.py::_connector": OPERATOR,
    "gateway/agents/clients/anthropic_messages.py::_LARGEST_OUTPUT": OPERATOR,
    "gateway/agents/clients/anthropic_messages.py::_LARGEST_OUTPUT#2": OPERATOR,
    "gateway/agents/clients/anthropic_messages.py::_LARGEST_OUTPUT#3": OPERATOR,
    "gateway/web/openapi.py::component_name": OUR_OWN,
    "gateway/web/openapi.py::_openapi_path": OUR_OWN,
    "gateway/web/openapi.py::_name": OUR_OWN,
    "gateway/web/openapi.py::_path_parameters": OUR_OWN,
    "channels/inbox/emoji.py::SHORT_NAMES": OUR_OWN,
    "sandbox/workspaces/directory_replica.py::TEMPORARY_NAME": OUR_OWN,
    "channels/discord/simulator/rest.py::_FILE": SIMULATOR,
    "channels/github/simulator/graphql.py::_FIELD": SIMULATOR,
    "channels/slack/simulator/api/interactivity.py::_EMOJI": SIMULATOR,
    "channels/slack/simulator/mrkdwn.py::_MARKS": SIMULATOR,
    "channels/slack/simulator/mrkdwn.py::_REFERENCE": SIMULATOR,
    "channels/telegram/simulator/methods.py::ACTIONS": SIMULATOR,
    "channels/telegram/simulator/methods.py::Methods.do_setmycommands": SIMULATOR,
    "channels/telegram/simulator/updates.py::Updates.set_webhook": SIMULATOR,
    "channels/telegram/simulator/wording.py::_HREF": SIMULATOR,
    "channels/telegram/simulator/wording.py::_TAG": SIMULATOR,
    "channels/telegram/simulator/wording.py::_V2": SIMULATOR,
    "channels/telegram/simulator/wording.py::find_entities": SIMULATOR,
    "channels/testing/rendering.py::_WORD": "the renderings of a test of channels",
    "gateway/cli/doctor/nats_versions.py::_VERSION": "the version of the operator's NATS server",
    "sandbox/host/isolation/bubblewrap.py::version": "the version that the operator's bwrap prints",
    "gateway/environments/glob_pattern.py::GlobPattern.__init__": "names of at most 255 characters",
    "gateway/tools/tool.py::_validate_value": "the anchored pattern of our own tool for services",
}
"""The others, each with the reason why no other party chooses the text, or why it is short."""

LOCAL: dict[str, dict[str, Any]] = {
    "channels/discord/receive/codec.py::_text": {"bot": type("Bot", (), {"id": "123"})},
    "channels/inbox/updates.py::find_mention": {"name": "dove", "suffix": "-bot"},
    "channels/slack/text.py::strip_mention": {"bot_id": "U1"},
    "channels/telegram/receive/codec.py::_without_mention": {
        "bot": type("Bot", (), {"username": "dove_bot"})
    },
}
"""Values of the local variables that an expression is built from."""

HAND_MADE: dict[str, tuple[Text, ...]] = {
    "channels/discord/send/markup.py::_SMALL_HEADING": (("#### a", " ", "b"), ("#### a", " #", "b")),
    "channels/telegram/errors.py::_MISSING_RIGHT": (
        ("", "not enough rights to ", "!"),
        ("not enough rights to a", " to the a", "!"),
    ),
    "gateway/observability/log_setup.py::SECRET_PATTERNS": (
        ("", "M-", ""),
        ("", "N" * 24 + ".", ""),
        ("://", "a:", ""),
        ("", "://a:", ""),
        ("", "Bearer ", ""),
    ),
    "gateway/tools/builtin/bash.py::_COMMAND_NOT_FOUND": (("", "a: command not foun", ""), ("", "a+", ":")),
    "sandbox/exec/command_lint.py::_HEREDOC": (("", "<<a ", ""), ("", "<<'a", ""), ("<<'", "a", '"')),
}
"""Texts in addition to those that are derived from an expression."""


def listed() -> list[str]:
    """Return the key of each expression of `FOREIGN`."""
    return [f"{file}::{name}" for file, names in FOREIGN.items() for name in names.split()]


def test_every_expression_is_listed() -> None:
    """Each expression is in one of the tables, and the tables have no others."""
    tables = [*listed(), *NOT_FOREIGN]
    assert sorted(tables) == sorted(EXPRESSIONS)
    assert set(LOCAL) | set(HAND_MADE) <= set(listed())


def test_every_expression_is_seen() -> None:
    """No module calls a function of `re` under another name."""
    found = [
        source.name
        for source in sources(*PACKAGES)
        for one in (*source.nodes(ast.ImportFrom), *source.nodes(ast.Import))
        if ast.unparse(one).startswith(("from re import ", "import re as ", "import regex", "from regex "))
    ]
    assert not found


@pytest.mark.parametrize("file", FOREIGN)
def test_hostile_text_takes_linear_time(file: str) -> None:
    """Four times the text takes about four times the work, however the product applies the expression."""
    found = []
    for name in FOREIGN[file].split():
        key = f"{file}::{name}"
        pattern = without_large_bounds(EXPRESSIONS[key].build(LOCAL.get(key, {})))
        texts = [*HAND_MADE.get(key, ()), *hostile_texts(pattern)]
        found += [f"{key}: {text}" for text in texts if is_slow(pattern, text, EXPRESSIONS[key].methods)][:1]
    assert not found, (
        "use a possessive quantifier after a class, exclude what comes next from a class, "
        "or bound a repetition below 200"
    )


def test_no_group_is_possessive() -> None:
    """`(…)*+` and `(?>…)` match wrongly before Python 3.11.5; `[…]*+` matches as it should."""
    patterns = {key: EXPRESSIONS[key].build(LOCAL.get(key, {})) for key in listed()}
    assert not [key for key, pattern in patterns.items() if has_possessive_group(pattern)]


@pytest.mark.parametrize(
    ("words", "has_one"),
    [
        (r"(?:a++b)*+", True),
        (r"(a)?+", True),
        (r"(?:ab|c)++", True),
        (r"x(?:(?>ab)|c)", True),
        (r"(a*+[^b]++\n?+|c)*", False),
    ],
)
def test_a_possessive_group_is_found(words: str, has_one: bool) -> None:
    """It is found at any depth, and a possessive class is not taken for one."""
    assert has_possessive_group(re.compile(words)) is has_one


LARGE_BOUND = re.compile(r"\{(\d*),(?:[2-9]\d\d|\d{4,})\}")
"""A bound of 200 or more: a text that reaches it from each character takes hundreds of steps for each."""


def without_large_bounds(pattern: re.Pattern[str] | re.Pattern[bytes]) -> re.Pattern[str] | re.Pattern[bytes]:
    """Return the pattern as if each repetition with a large bound had none."""
    source = pattern.pattern
    words = source.decode("latin-1") if isinstance(source, bytes) else source
    lifted = LARGE_BOUND.sub(r"{\1,}", words)
    return re.compile(lifted.encode("latin-1") if isinstance(source, bytes) else lifted, pattern.flags)


def is_slow(pattern: re.Pattern[str] | re.Pattern[bytes], text: Text, methods: frozenset[str]) -> bool:
    """Return whether one of these ways to apply the pattern takes more than linear time."""
    return any(grows_too_fast(apply, text) for apply in applications(pattern, methods))


@pytest.mark.parametrize(
    ("words", "method"),
    [
        (r"^ {0,3}#{4,6}[ \t]+(\S.*?)(?:[ \t]+#+)?[ \t]*$", "match"),
        (r"\b[MNO][A-Za-z0-9_-]{22,}\.[A-Za-z0-9_-]{6}\.", "sub"),
        (r"not enough rights to ([\w ]+?)(?: (?:to|in|from) the \w+)?$", "search"),
        (r"(a|b|ab)*c", "match"),
        (r"<!--.*?-->", "finditer"),
    ],
)
def test_a_slow_expression_is_found(words: str, method: str) -> None:
    """The derived texts alone find quadratic and exponential expressions."""
    pattern = re.compile(words)
    assert any(is_slow(pattern, text, frozenset({method})) for text in hostile_texts(pattern))


def test_a_large_bound_does_not_hide_a_slow_expression() -> None:
    """Each character costs as many steps as the bound, so the expression is tested without it."""
    bounded = re.compile(r"!?\[([^\]\n]{0,500}+)\]\([^)\n]{0,2000}+\)")
    pattern = without_large_bounds(bounded)
    assert any(is_slow(pattern, text, frozenset({"sub"})) for text in hostile_texts(pattern))


def test_expressions_are_read() -> None:
    """An assigned expression has its name and uses, and one in a function has the function's name."""
    text = (
        "import re\n"
        "_ONE = re.compile('a')\n"
        "def use(text):\n"
        "    local = re.compile('b')\n"
        "    return _ONE.search(text) or re.sub('c', '', text) or local.match(text)\n"
        "PAIR = (re.compile('d'), re.compile('e'))\n"
    )
    found = {one.key: one.methods for one in expressions_of(Source("a/b.py", text, ast.parse(text)))}
    assert found == {
        "a/b.py::_ONE": {"search"},
        "a/b.py::use": {"match"},
        "a/b.py::use#2": {"sub"},
        "a/b.py::PAIR": METHODS,
        "a/b.py::PAIR#2": METHODS,
    }
