"""Tell which files of a workspace the processes of its sandbox have open for writing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sandbox.model import ExecRequest
from sandbox.port import Sandbox

_BEGIN = "listed"
_SCRIPT = r"""
[ -r /proc/self/fdinfo/0 ] || exit 0
printf 'listed\0'
here=$(pwd -P)
find /proc/[0-9]*/fd -maxdepth 1 -type l -lname '/*' -printf '%p\0%l\0' 2>/dev/null |
while IFS= read -r -d '' link && IFS= read -r -d '' target; do
  case $target in "$here"/*) ;; *) continue ;; esac
  while read -r key flags; do
    case $key$flags in flags:*[1-3]) printf '%s\0' "${target#"$here"/}" ;; esac
  done 2>/dev/null <"${link%/fd/*}/fdinfo/${link##*/}"
done
exit 0
"""
"""The last digit of the flags of an open file is its access: 1 to 3 for writing (proc(5))."""


async def find_open(sandbox: Sandbox, paths: Collection[str]) -> Mapping[str, bool | None]:
    """Return for each path below the workspace whether a process of the sandbox has it open for writing.

    None where that cannot be told, for want of /proc. Processes of other users, and those in other process
    namespaces, are not seen. Raises SandboxError.
    """
    result = await sandbox.run(ExecRequest(script=_SCRIPT, timeout=30.0, output_limit=256 * 1024))
    first, *opened = result.stdout.decode("utf-8", "surrogateescape").split("\0")
    if first != _BEGIN:
        return dict.fromkeys(paths)
    return {path: path in opened for path in paths}
