"""The system calls that a container's processes may make, as a profile for the engine; others are denied.

The format is that of the OCI runtime specification (config-linux, Seccomp), which Docker and Podman read. The
list is stricter than the profiles of engines: it leaves out namespaces, key rings, io_uring, bpf, perf and
userfaultfd, and allows sockets of four families only. Host sandboxes have a filter of the same strictness.
"""

from __future__ import annotations

import errno
import json
import platform
import socket
from typing import Any

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Socket families that a network namespace contains; AF_VSOCK, for one, reaches the hypervisor."""

ALLOWED = """
accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chmod chown
clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3
epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve
execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2
fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs
fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_mempolicy
get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups
getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit
getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr inotify_add_watch
inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_setup
io_submit ioctl ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset
landlock_restrict_self lchown lgetxattr link linkat listen listxattr llistxattr lremovexattr lseek
lsetxattr lstat madvise map_shadow_stack membarrier memfd_create mincore mkdir mkdirat mknod mknodat
mlock mlock2 mlockall mmap mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend
mq_unlink mremap msgctl msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat open
openat openat2 pause pidfd_getfd pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free
pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64 process_mrelease process_vm_readv
process_vm_writev pselect6 ptrace pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv
recvfrom recvmmsg recvmsg remap_file_pages removexattr rename renameat renameat2 restart_syscall rmdir
rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity
sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr
sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile
sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid
setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid
setsockopt setuid setxattr shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socketpair
splice stat statfs statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time
timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork vmsplice
wait4 waitid write writev
""".split()  # noqa: SIM905 - a literal list would have one line for each name
"""Names of x86_64 and aarch64; an engine skips those that its architecture or its library does not have."""

ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_NAMESPACE_FLAGS = 0x7E020000
"""The flags of clone(2) that make a namespace."""

_ALLOW, _ERROR = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"


def profile(machine: str = "") -> str:
    """Return the profile as JSON for a kind of machine, by default this one; empty for an unknown kind."""
    architecture = ARCHITECTURES.get(machine or platform.machine())
    if architecture is None:
        return ""
    calls = [
        {"names": ALLOWED, "action": _ALLOW},
        {"names": ["clone"], "action": _ALLOW, "args": [_argument(_NAMESPACE_FLAGS, "MASKED_EQ")]},
        *({"names": ["socket"], "action": _ALLOW, "args": [_argument(family, "EQ")]} for family in FAMILIES),
        # The C library then uses clone, whose flags a filter can see.
        {"names": ["clone3"], "action": _ERROR, "errnoRet": errno.ENOSYS},
    ]
    return json.dumps(
        {
            "defaultAction": _ERROR,
            "defaultErrnoRet": errno.EPERM,
            "architectures": [architecture],
            "syscalls": calls,
        }
    )


def _argument(value: int, comparison: str) -> dict[str, Any]:
    return {"index": 0, "value": value, "valueTwo": 0, "op": f"SCMP_CMP_{comparison}"}
