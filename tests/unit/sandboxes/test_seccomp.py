"""The filter of system calls: its numbers are the kernel's, and it denies those that it does not list."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

import pytest

from sandbox.host.isolation import seccomp

ALLOW = 0x7FFF0000
VSOCK = 40


def evaluate(program: bytes, *, number: int, architecture: int, arguments: Sequence[int]) -> int:
    """Run the program over one call, as the kernel does, and return the result."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
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
            holds = {0x15: value == operand, 0x25: value > operand, 0x45: bool(value & operand)}[code]
            at += true if holds else false


def answer(name: str, *, number: int, arguments: Sequence[int] = (), architecture: int | None = None) -> int:
    """Return what this machine's kernel would answer: 0 for allowed, else the error."""
    machine = seccomp.ARCHITECTURES[name]
    result = evaluate(
        seccomp.filter_program(machine),
        number=number,
        architecture=machine.audit if architecture is None else architecture,
        arguments=arguments,
    )
    return 0 if result == ALLOW else result & 0xFFFF


@pytest.mark.parametrize("name", seccomp.ARCHITECTURES)
def test_each_denied_call_is_denied_and_its_neighbours_are_not(name: str) -> None:
    """Every number up to the last reviewed one is allowed unless it is listed."""
    column = seccomp.ARCHITECTURES[name].column
    denied = {columns[column] for columns in seccomp.DENIED.values()}
    for number in range(seccomp.LAST_REVIEWED + 1):
        if number not in (seccomp.ARCHITECTURES[name].socket, seccomp.OPENAT2):
            assert answer(name, number=number) == (errno.EPERM if number in denied else 0), number


@pytest.mark.parametrize("name", seccomp.ARCHITECTURES)
@pytest.mark.parametrize("call", seccomp.MODE_CALLS)
def test_no_call_sets_a_setuid_or_setgid_bit(name: str, call: str) -> None:
    """Other modes are allowed, and a mode counts only for a call that creates the file."""
    known = seccomp.MODE_CALLS[call]
    number = known.numbers[seccomp.ARCHITECTURES[name].column]
    if number is None:
        assert name == "aarch64"  # it has only the newer calls
        return
    creating = [0] if known.flags is None else [os.O_CREAT, os.O_TMPFILE, os.O_CREAT | os.O_EXCL | os.O_RDWR]
    answers = {0o755: 0, 0o1777: 0, 0o100644: 0, 0o4755: errno.EPERM, 0o2755: errno.EPERM}
    for flags in creating:
        for mode, expected in answers.items():
            arguments = [0] * 4
            arguments[known.mode] = mode
            if known.flags is not None:
                arguments[known.flags] = flags
            assert answer(name, number=number, arguments=arguments) == expected, (flags, mode)
    if known.flags is not None:
        arguments = [0] * 4
        arguments[known.mode], arguments[known.flags] = 0o7777, os.O_RDWR | os.O_DIRECTORY
        assert answer(name, number=number, arguments=arguments) == 0
    assert answer(name, number=seccomp.OPENAT2) == errno.ENOSYS


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
        assert answer(name, number=socket, arguments=[family]) == expected
    assert answer(name, number=socket, arguments=[VSOCK | 1 << 32]) == errno.EAFNOSUPPORT


@pytest.mark.parametrize("name", seccomp.ARCHITECTURES)
def test_numbers_are_those_of_libseccomp(name: str) -> None:
    """The library's tables, which are made from the kernel's, have the same numbers."""
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("libseccomp.so.2 is not installed")
    resolve = library.seccomp_syscall_resolve_name_arch
    machine = seccomp.ARCHITECTURES[name]
    modes = {call: one.numbers for call, one in seccomp.MODE_CALLS.items() if call != "fchmodat2"}
    listed = {**seccomp.DENIED, **modes, "openat2": (seccomp.OPENAT2, seccomp.OPENAT2)}
    known = {call: resolve(machine.audit, call.encode()) for call in listed}
    ours = {call: columns[machine.column] for call, columns in listed.items()}
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
