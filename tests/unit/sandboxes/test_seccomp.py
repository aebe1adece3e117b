"""The filter of system calls: its numbers are the kernel's, and it denies what it does not know."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

import pytest

from sandbox.host.isolation import seccomp

ALLOW = 0x7FFF0000
VSOCK = 40


def evaluate(program: bytes, *, number: int, architecture: int, argument: int = 0) -> int:
    """Run the program over one call, as the kernel does, and return the result."""
    data = struct.pack("=iIQQ", number, architecture, 0, argument)
    instructions: list[tuple[int, int, int, int]] = list(struct.iter_unpack("=HBBI", program))
    value = at = 0
    while True:
        code, true, false, operand = instructions[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == 0x06:
            return operand
        else:
            holds = value == operand if code == 0x15 else value > operand
            at += true if holds else false


def answer(name: str, *, number: int, argument: int = 0, architecture: int | None = None) -> int:
    """Return what this machine's kernel would answer: 0 for allowed, else the error."""
    machine = seccomp.ARCHITECTURES[name]
    result = evaluate(
        seccomp.filter_program(machine),
        number=number,
        architecture=machine.audit if architecture is None else architecture,
        argument=argument,
    )
    return 0 if result == ALLOW else result & 0xFFFF


@pytest.mark.parametrize("name", seccomp.ARCHITECTURES)
def test_each_denied_call_is_denied_and_its_neighbours_are_not(name: str) -> None:
    """Every number up to the last reviewed one is allowed unless it is listed."""
    column = seccomp.ARCHITECTURES[name].column
    denied = {columns[column] for columns in seccomp.DENIED.values()}
    for number in range(seccomp.LAST_REVIEWED + 1):
        if number != seccomp.ARCHITECTURES[name].socket:
            assert answer(name, number=number) == (errno.EPERM if number in denied else 0), number


@pytest.mark.parametrize("name", seccomp.ARCHITECTURES)
def test_what_is_not_known_is_denied(name: str) -> None:
    """Later calls, x32's numbers and another architecture's calls do not exist."""
    assert answer(name, number=seccomp.LAST_REVIEWED + 1) == errno.ENOSYS
    assert answer(name, number=0x40000000 | 1) == errno.ENOSYS
    assert answer(name, number=1, architecture=0x40000003) == errno.ENOSYS


@pytest.mark.parametrize("name", seccomp.ARCHITECTURES)
def test_sockets_are_of_families_that_the_namespace_contains(name: str) -> None:
    """Any other family is answered as if the kernel lacked it."""
    socket = seccomp.ARCHITECTURES[name].socket
    for family in range(50):
        expected = 0 if family in seccomp.FAMILIES else errno.EAFNOSUPPORT
        assert answer(name, number=socket, argument=family) == expected
    assert answer(name, number=socket, argument=VSOCK | 1 << 32) == errno.EAFNOSUPPORT


@pytest.mark.parametrize("name", seccomp.ARCHITECTURES)
def test_numbers_are_those_of_libseccomp(name: str) -> None:
    """The library's tables, which are made from the kernel's, have the same numbers."""
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("libseccomp.so.2 is not installed")
    resolve = library.seccomp_syscall_resolve_name_arch
    machine = seccomp.ARCHITECTURES[name]
    known = {call: resolve(machine.audit, call.encode()) for call in seccomp.DENIED}
    ours = {call: columns[machine.column] for call, columns in seccomp.DENIED.items()}
    assert {call: number for call, number in ours.items() if number is not None} == {
        call: number for call, number in known.items() if number >= 0
    }
    assert resolve(machine.audit, b"socket") == machine.socket


def test_each_run_gets_a_descriptor_of_its_own() -> None:
    """A filter is read to its end, so no two runs share a descriptor."""
    first, second = seccomp.open_filter(), seccomp.open_filter()
    assert first is not None
    assert second is not None
    contents = [os.read(descriptor, 1 << 16) for descriptor in (first, second)]
    assert contents[0] == contents[1]
    assert len(contents[0]) % 8 == 0
    assert contents[0]
    os.close(first)
    os.close(second)
