"""An MCP server that is a command in the agent's sandbox and speaks the protocol over stdin and stdout.

The command is started for each request and ended after it, so that nothing is left running, and so that each
limit of a command in the sandbox applies. It therefore keeps no state in its memory between two calls. All
pages of a list come from one start, because a cursor may mean something to its own process only.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from egress.json_values import MAX_ANSWER_VALUES, has_more_values
from gateway.records.tools.mcp_servers import McpServerConfig
from gateway.tools.mcp.results import MAX_ERROR, MAX_TOOLS, list_tools
from gateway.tools.mcp.server import (
    CLIENT_NAME,
    CLIENT_VERSION,
    MAX_ANSWER_BYTES,
    McpOffer,
    McpServer,
    McpUnavailable,
    ReadMethod,
)
from gateway.tools.tool import ToolContext
from sandbox.errors import CommandInterrupted, ProviderUnreachable, SandboxError
from sandbox.model import ExecRequest, ExecResult

PROTOCOL_VERSION = "2025-06-18"
LIST_TIMEOUT = 60.0
"""Seconds to start a server and list its tools. Some are downloaded at their first start."""

_OWN = "dovecote-"
_FIRST, _SECOND, _PAGE = f"{_OWN}initialize", f"{_OWN}request", f"{_OWN}page-"
_CHANGED = "notifications/tools/list_changed"

_NOT_SENT = 1
"""The script's exit code for a failure before the request was sent; any other failure came after it."""

_PARSE = r"""
  line = $0; gsub(/\\./, "", line)
  pieces = split(line, piece, "\""); depth = 0; split("", shown)
  for (i = 1; i <= pieces; i += 2) {
    if (depth == 1 && piece[i] ~ /^[ \t]*:/) {
      text = piece[i]; sub(/^[ \t]*:[ \t]*/, "", text); sub(/[ \t\r]*[,}].*/, "", text)
      shown[piece[i - 1]] = text == "" ? "\"" piece[i + 1] "\"" : text
    }
    depth += gsub(/[[{]/, "", piece[i]) - gsub(/[]}]/, "", piece[i])
  }
  whole = depth == 0 && $0 ~ /^[ \t]*[{]/ && $0 ~ /[}][ \t\r]*$/ && shown["jsonrpc"] == "\"2.0\""
  answered = ("result" in shown) || ("error" in shown)
"""
"""Lines of awk that say whether a line is a message of the protocol, and what its fields show.

Servers also log on stdout, and may log the request itself. The line is split at its quotes, without the
escaped ones, so that every second piece is a text and the brackets of the others give the depth of a key.
"""

_FIND_MESSAGE = f"""
index($0, value) {{{_PARSE}
  if (whole && shown[field] == "\\"" value "\\"" && (answered || field != "id")) {{ print; found = 1; exit }}
}}
END {{ exit !found }}
"""
"""An awk program that prints the first line that is a message of the protocol with `value` in `field`."""

_NEXT_CURSOR = r"""
{
  rest = $0; before = ""
  while (match(rest, /[{,][ \t]*"nextCursor"[ \t]*:[ \t]*"/)) {
    before = before substr(rest, 1, RSTART); rest = substr(rest, RSTART + RLENGTH)
    text = before; gsub(/\\./, "", text); pieces = split(text, piece, "\""); depth = 0
    for (i = 1; i <= pieces; i += 2) depth += gsub(/[[{]/, "", piece[i]) - gsub(/[]}]/, "", piece[i])
    if (depth == 2 && match(rest, /^([^"\\]|\\.)*"/)) { print substr(rest, 1, RLENGTH - 1); exit }
    before = before "\"nextCursor\":\""
  }
}
"""
"""An awk program that prints the cursor in the result of a message, as it is between its quotes."""

_ANSWER_REQUESTS = f"""
index($0, "\\"method\\"") {{{_PARSE}
  id = shown["id"]
  if (!whole || answered || id !~ /^("[^"]*"|-?[0-9]+)$/ || id ~ /^"{_OWN}/ || ++seen <= skip) next
  said = "\\"error\\":{{\\"code\\":-32601,\\"message\\":\\"Method not found\\"}}"
  if (shown["method"] == "\\"ping\\"") said = "\\"result\\":{{}}"
  print "{{\\"jsonrpc\\":\\"2.0\\",\\"id\\":" id "," said "}}"
}}
"""
"""An awk program that prints an answer to each request of the server after the first `skip`.

The handshake declares no features of a client, so the only request with a result is `ping`. A server that
asks for input or for a model's answer all the same learns that there is none, and does not wait for it.
"""

_SCRIPT = """
set -m; missing=
dir=$(mktemp -d) || exit 1
trap '' PIPE
trap 'kill -- -"$server" 2>/dev/null; rm -rf "$dir"' EXIT
cat > "$dir/requests"
mkfifo "$dir/in"
: > "$dir/out"; : > "$dir/err"
{exports}
for program in awk head sed tail wc; do
  command -v "$program" >/dev/null || missing="$missing $program"
done
[ -z "$missing" ] || {{ echo "the sandbox has no$missing" >&2; exit 1; }}
bash -c {command} < "$dir/in" > "$dir/out" 2> "$dir/err" &
server=$!
disown
exec 3> "$dir/in"
failure={not_sent}; size=0; answered=0
fail() {{
  tail -c 2000 "$dir/err" >&2
  [ -z "$1" ] || echo "$1" >&2
  exit "$failure"
}}
output() {{ head -c {limit} "$dir/out" 2>/dev/null; }}
find_message() {{ output | LC_ALL=C awk -v field="$1" -v value="$2" {find_message}; }}
answer_requests() {{
  output | LC_ALL=C awk -v skip="$answered" {answer_requests} > "$dir/answers"
  answered=$((answered + $(wc -l < "$dir/answers")))
  cat "$dir/answers" >&3 2>/dev/null
}}
wait_for() {{
  while :; do
    before=$size
    size=$(($(wc -c < "$dir/out") + $(wc -c < "$dir/err")))
    [ "$size" -gt {limit} ] && fail 'it wrote more than {limit} bytes'
    find_message id "$1" >/dev/null && return
    if ! kill -0 -- -"$server" 2>/dev/null; then
      find_message id "$1" >/dev/null && return
      fail
    fi
    [ "$size" -gt "$before" ] && answer_requests
    sleep 0.05
  done
}}
sed -n 1p "$dir/requests" >&3 2>/dev/null
wait_for {first}
failure=2
sed -n '2,$p' "$dir/requests" >&3 2>/dev/null
wait_for {second}
find_message id {first}
request={second}; page=1
while :; do
  find_message id "$request" > "$dir/answer"; cat "$dir/answer"
  cursor=$(LC_ALL=C awk {next_cursor} "$dir/answer")
  [ "$page" -lt {pages} ] && [ -n "$cursor" ] || break
  page=$((page + 1)); request={page}$page
  printf '{{"jsonrpc":"2.0","id":"%s","method":"%s","params":{{"cursor":"%s"}}}}\n' \
    "$request" {method} "$cursor" >&3 2>/dev/null
  wait_for "$request"
done
if find_message method {changed} >/dev/null; then echo '"{changed}"'; fi
exec 3>&-
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """What a server wrote: the capabilities of its handshake, its answers, and whether its list changed.

    It has one answer, or one for each page of a list.
    """

    capabilities: Mapping[str, Any]
    answers: Sequence[Mapping[str, Any]]
    list_changed: bool

    def result(self, page: int = 0) -> Mapping[str, Any]:
        """Return the result in an answer, empty after the last page; raises McpUnavailable."""
        if page >= len(self.answers):
            return {}
        problem, result = self.answers[page].get("error"), self.answers[page].get("result")
        if isinstance(problem, Mapping):
            reason = str(problem.get("message"))[:MAX_ERROR]
            raise McpUnavailable(f"the MCP server answered with an error: {reason}")
        if not isinstance(result, Mapping):
            raise McpUnavailable("the MCP server's answer does not follow the protocol")
        return result


class StdioMcpServer(McpServer):
    """A command in the first of the agent's sandboxes."""

    def __init__(self, config: McpServerConfig) -> None:
        self._config = config
        self._list_changed = False

    async def describe(self, context: ToolContext) -> McpOffer:
        """Start the server and return what it offers."""
        async with context.environment_resolver.in_use(context.environment, changed=False):
            listed = await self._exchange(context, "tools/list", {}, timeout=LIST_TIMEOUT, pages=MAX_TOOLS)
        capabilities, page_numbers = listed.capabilities, count()
        declares_others = "resources" in capabilities or "prompts" in capabilities

        async def get_page(_params: Mapping[str, Any]) -> Mapping[str, Any]:
            return listed.result(next(page_numbers))

        specs = [] if "tools" not in capabilities and declares_others else await list_tools(get_page)
        return McpOffer(
            tools=specs,
            resources="resources" in capabilities,
            prompts="prompts" in capabilities,
            announces_at_start=self.take_list_changed(),
        )

    async def call_tool(self, context: ToolContext, name: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Start the server and call a tool."""
        params = {"name": name, "arguments": dict(args)}
        return (await self._exchange(context, "tools/call", params, timeout=self._timeout)).result()

    async def read(
        self, context: ToolContext, method: ReadMethod, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Start the server and send a request that changes nothing."""
        return (await self._exchange(context, method, params, timeout=self._timeout)).result()

    def take_list_changed(self) -> bool:
        """Return whether a request's output had the notification since the last question."""
        changed, self._list_changed = self._list_changed, False
        return changed

    async def aclose(self) -> None:
        """Do nothing: no server outlives its request."""

    @property
    def _timeout(self) -> float:
        return float(self._config.timeout)

    async def _exchange(
        self, context: ToolContext, method: str, params: Mapping[str, Any], *, timeout: float, pages: int = 1
    ) -> _Exchange:
        try:
            sandbox = await context.environment_resolver.sandbox(context.environment)
            done = await sandbox.run(
                ExecRequest(
                    script=self._script(method, pages),
                    stdin=_messages(method, params),
                    timeout=timeout,
                    output_limit=MAX_ANSWER_BYTES,
                )
            )
        except SandboxError as error:
            raise McpUnavailable(
                f"the sandbox of the MCP server cannot be used: {error}",
                may_have_run=isinstance(error, CommandInterrupted | ProviderUnreachable),
            ) from error
        exchange = _parse(done, timeout)
        self._list_changed = self._list_changed or exchange.list_changed
        return exchange

    def _script(self, method: str, pages: int) -> str:
        exports = "\n".join(
            f"export {name}={shlex.quote(value.get_secret_value())}"
            for name, value in self._config.env.items()
        )
        return _SCRIPT.format(
            exports=exports,
            command=shlex.quote(self._config.command or ""),
            limit=MAX_ANSWER_BYTES,
            not_sent=_NOT_SENT,
            first=_FIRST,
            second=_SECOND,
            page=_PAGE,
            pages=pages,
            method=shlex.quote(method),
            changed=_CHANGED,
            find_message=shlex.quote(_FIND_MESSAGE),
            next_cursor=shlex.quote(_NEXT_CURSOR),
            answer_requests=shlex.quote(_ANSWER_REQUESTS),
        )


def _messages(method: str, params: Mapping[str, Any]) -> bytes:
    """Return the messages of a request, one a line: the handshake of two messages, and the request."""
    client = {"name": CLIENT_NAME, "version": CLIENT_VERSION}
    begin = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client}
    messages = (
        {"jsonrpc": "2.0", "id": _FIRST, "method": "initialize", "params": begin},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": _SECOND, "method": method, "params": params},
    )
    return "".join(f"{json.dumps(message)}\n" for message in messages).encode()


def _parse(done: ExecResult, timeout: float) -> _Exchange:
    """Return what the script printed; raises McpUnavailable."""
    if done.timed_out:
        raise McpUnavailable(f"the MCP server did not answer within {timeout:g} s", may_have_run=True)
    if not done.ok:
        said = done.stderr.decode("utf-8", "replace").strip()[-MAX_ERROR:]
        raise McpUnavailable(
            f"the MCP server ended without an answer: {said or 'it wrote no error'}",
            may_have_run=done.exit_code != _NOT_SENT,
        )
    if has_more_values(done.stdout, MAX_ANSWER_VALUES):
        raise McpUnavailable(
            f"the MCP server's answer has more than {MAX_ANSWER_VALUES} JSON values", may_have_run=True
        )
    try:
        begun, *rest = (json.loads(line) for line in done.stdout.splitlines())
    except (ValueError, RecursionError) as error:
        raise McpUnavailable(
            "the MCP server's answer is not JSON, or is too long", may_have_run=True
        ) from error
    answers = [one for one in rest if one != _CHANGED]
    if not answers or not all(isinstance(one, Mapping) for one in (begun, *answers)):
        raise McpUnavailable("the MCP server's answer does not follow the protocol", may_have_run=True)
    described = begun.get("result")
    capabilities = described.get("capabilities") if isinstance(described, Mapping) else None
    return _Exchange(
        capabilities=capabilities if isinstance(capabilities, Mapping) else {},
        answers=answers,
        list_changed=_CHANGED in rest,
    )
