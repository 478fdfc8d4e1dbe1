"""A program that becomes another one on a host of its own: a network namespace with one cable, and a name.

It runs as `python -m tests.bench.scaling.host … -- ARGUMENTS` and ends in `exec` of `python ARGUMENTS`. The
namespace has no name in the file system: it lives as long as the processes in it and leaves nothing behind, however
they end.
Nothing here touches an interface of the machine: whatever is set up is set up after leaving the machine's network.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import socket
import subprocess
import sys

from tests.support.waiting import eventually

# <linux/sched.h>
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000

CABLE = "eth0"
"""What the host calls its end of the cable that the network plugs in."""

_CABLE_PATIENCE_SECONDS = 20.0


def network_of(pid: int | str = "self") -> str:
    """Return what the kernel calls the network namespace of a process, like `net:[4026531840]`."""
    return os.readlink(f"/proc/{pid}/ns/net")


def leave(name: str) -> None:
    """Leave the machine's network for an empty one and take a host name; raises OSError where that is not allowed.

    Who is not root becomes root of a user namespace first, which many systems allow and some forbid.
    """
    if os.geteuid() != 0:
        _become_root()
    _unshare(_CLONE_NEWNET | _CLONE_NEWUTS)
    socket.sethostname(name)


def _become_root() -> None:
    uid, gid = os.geteuid(), os.getegid()
    _unshare(_CLONE_NEWUSER)
    for file, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{file}", "w", encoding="ascii") as out:
            out.write(text)


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def ip(*arguments: str) -> str:
    """Run `ip ARGUMENTS` (iproute2) in this process's network, return what it printed; raises RuntimeError."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _connect(address: str) -> None:
    """Wait for the cable and take an address (with the length of its prefix) on it."""
    eventually(
        lambda: CABLE in {name for _, name in socket.if_nameindex()},
        _CABLE_PATIENCE_SECONDS,
        every=0.01,
        what="a cable",
    )
    ip("address", "add", address, "dev", CABLE)
    ip("link", "set", CABLE, "up")


def main() -> None:
    """Parse the command line, leave the machine's network, and become the program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True, help="the host's name")
    parser.add_argument("--address", help="wait for a cable, and take this address on it")
    parser.add_argument("arguments", nargs="+", help="what python runs")
    given = parser.parse_args()
    leave(given.name)
    ip("link", "set", "lo", "up")
    if given.address:
        _connect(given.address)
    os.execv(sys.executable, [sys.executable, *given.arguments])


if __name__ == "__main__":
    try:
        main()
    except (OSError, RuntimeError, AssertionError) as failure:
        sys.exit(f"host: {failure}")
