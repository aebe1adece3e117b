"""Give the kernel the netlink messages of a packet filter, in the network namespace of this process.

    load_filter.py MESSAGES      MESSAGES in base64, as `network_filter.batch` returns them

It runs in a container of an engine, or before a sandbox of the host begins. It imports the standard library
alone, and exits with 1 and the reason if the kernel refuses a message. The kernel carries out all messages or
none.
"""

from __future__ import annotations

import base64
import os
import socket
import struct
import sys

_NETFILTER, _ERROR = 12, 2
_ANSWER_SECONDS = 10.0


def main() -> None:
    """Load the filter of the command line."""
    load(base64.b64decode(sys.argv[1]))


def load(messages: bytes) -> None:
    """Send the messages and wait for the answer to the last one; raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER) as netlink:
        netlink.settimeout(_ANSWER_SECONDS)
        netlink.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(messages))
        netlink.bind((0, 0))
        netlink.send(messages)
        while not _is_confirmed(netlink.recv(1 << 16)):
            pass


def _is_confirmed(answers: bytes) -> bool:
    """Return whether one of the answers is a confirmation; raises OSError for a refusal."""
    at = 0
    while at < len(answers):
        length, kind = struct.unpack_from("=IH", answers, at)
        if kind == _ERROR:
            (code,) = struct.unpack_from("=i", answers, at + 16)
            if code == 0:
                return True
            raise OSError(-code, os.strerror(-code))
        at += length + (-length % 4)
    return False


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"the kernel does not take the packet filter: {error}")
