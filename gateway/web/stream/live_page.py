"""Pages of live views: a memory in place of the storage that a page without an origin does not have.

A browser throws `SecurityError` where a page of an opaque origin reads `localStorage`, `sessionStorage` or
`document.cookie` (HTML, "The localStorage getter"). Programs such as noVNC 1.3 stop there. A script before
the page's own gives such a page storage that lasts as long as the page.
"""

from __future__ import annotations

HEAD_BYTES = 8 * 1024
"""Bytes at the beginning of a page in which its head is looked for."""

_TAGS = tuple(b"<head" + end for end in (b">", b" ", b"\n", b"\r", b"\t"))

STORAGE_SCRIPT = b"""<script>(() => {
const define = (target, name, property) => {
  try { void target[name]; } catch { Object.defineProperty(target, name, {...property, configurable: true}); }
};
const storage = () => {
  const items = new Map();
  return {
    getItem: name => items.get(String(name)) ?? null,
    setItem: (name, value) => { items.set(String(name), String(value)); },
    removeItem: name => { items.delete(String(name)); },
    clear: () => items.clear(),
    key: index => [...items.keys()][index] ?? null,
    get length() { return items.size; },
  };
};
define(window, "localStorage", {value: storage()});
define(window, "sessionStorage", {value: storage()});
define(document, "cookie", {get: () => "", set: () => {}});
})()</script>"""


def with_storage(beginning: bytes) -> bytes:
    """Return the beginning of an HTML page with the script in its head; without a head, as it is."""
    lowered = beginning[:HEAD_BYTES].lower()
    tag = min((at for at in map(lowered.find, _TAGS) if at >= 0), default=len(lowered))
    end = lowered.find(b">", tag) + 1
    return beginning[:end] + STORAGE_SCRIPT + beginning[end:] if end else beginning
