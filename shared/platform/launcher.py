"""A script that ties a server to its parent process and changes its identity; then it becomes the server.

It runs as `python -I -S launcher.py … -- COMMAND…` and ends in `exec`: a threaded parent cannot safely do this
between fork and exec, and the kernel clears PR_SET_PDEATHSIG at every change of credentials (prctl(2)). Standard
library only: the virtual environment is not on the path.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import warnings  # noqa: F401 - os.execvp() imports it, and who we are by then may not reach the standard library

PYTHON = (sys.executable, "-P")
"""Starts planq's modules without the present folder on the path; only users' modules are looked for there."""

# <linux/prctl.h>, <linux/securebits.h>, <linux/sched.h>, <linux/capability.h>
PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 1 << 2
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CLONE_NEWUSER = 0x10000000
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def die_with(parent: int, signal_number: int) -> None:
    """Let the kernel send `signal_number` when the forking thread ends; exit if it has ended."""
    if sys.platform != "linux":
        return
    _checked(_libc().prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(0)


def become(uid: int, gid: int) -> None:
    """Change to another user, without supplementary groups."""
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def become_in_namespace(uid: int, gid: int) -> None:
    """Enter a user namespace where the present user is `uid`; files keep their owner outside."""
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    _checked(_libc().unshare(CLONE_NEWUSER), "unshare(CLONE_NEWUSER)")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {outer_uid} 1"),
        ("gid_map", f"{gid} {outer_gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def become_with_reach(uid: int, gid: int) -> None:
    """Change to another user who may still pass through closed folders, with no other capability."""
    libc = _libc()
    _checked(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl(PR_SET_KEEPCAPS)")
    # Without this, access(2) disregards the capabilities of all but root, and PostgreSQL asks it for its programs.
    _checked(libc.prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0), "prctl(PR_SET_SECUREBITS)")
    become(uid, gid)
    kept = _keep_first(libc, (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE))
    _checked(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, kept, 0, 0), "prctl(PR_CAP_AMBIENT)")


def _keep_first(libc: ctypes.CDLL, wanted: tuple[int, ...]) -> int:
    """Keep only the first possible capability of `wanted`, and return it."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    for capability in wanted:
        bit = 1 << capability
        # Two 32-bit words each of effective, permitted, inheritable; both capabilities live in the first word.
        if libc.capset(header, (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)) == 0:
            return capability
    raise PermissionError("no capability to pass through closed folders")


def hear_signals() -> None:
    """Undo the parent's ignored and blocked signals: a shell's `&` ignores SIGINT."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


IDENTITIES = {"user": become, "namespace": become_in_namespace, "reach": become_with_reach}


def main() -> None:
    """Parse the command line, change identity, tie to the parent, and become the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--signal", type=int, required=True)
    parser.add_argument("--identity", choices=sorted(IDENTITIES))
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    if args.identity:
        IDENTITIES[args.identity](args.uid, args.gid)
    hear_signals()
    die_with(args.parent, args.signal)
    os.execvp(args.command[0], args.command)  # noqa: S606 - becoming the command is the whole purpose


if __name__ == "__main__":
    try:
        main()
    except OSError as failure:
        sys.exit(f"launcher: {failure}")
