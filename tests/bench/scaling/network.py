"""A network of hosts that exist in the kernel only: a bridge as the switch, and a cable for each host.

It may only be built by a process that has left the machine's network (`host.py`): the switch, its address and all
cables then lie in that process's own network namespace, and go with it. The machine's interfaces, routes and names
stay as they are, also when everything is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench.scaling.host import CABLE, ip, network_of
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]

# RFC 2544, appendix C.2.2: 198.18.0.0/15 is set aside for benchmarks of networks.
RANGE = "198.18.77.0/24"
SERVERS = "198.18.77.1"
"""The address of PostgreSQL and Valkey."""

_SWITCH = "planq-switch"
_JOIN_PATIENCE_SECONDS = 20.0

_REHEARSAL = """
from tests.bench.scaling.host import ip
ip("link", "add", "name", "switch", "type", "bridge")
ip("link", "add", "one", "type", "veth", "peer", "name", "two")
ip("link", "set", "one", "master", "switch")
"""


def missing() -> str | None:
    """Return what keeps this machine from having such a network, in words for a person; None when nothing does.

    Tries it all out in a namespace that is gone when this returns.
    """
    if sys.platform != "linux":
        return f"network namespaces are Linux's, and this is {sys.platform}"
    if shutil.which("ip") is None:
        return "the program `ip` is missing (Debian: apt-get install iproute2)"
    command = [sys.executable, "-m", "tests.bench.scaling.host", "--name", "rehearsal", "--", "-c", _REHEARSAL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 0:
        return None
    who = "root" if os.geteuid() == 0 else "this user, who is not root,"
    said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"{who} may not make network namespaces with a bridge and cables here ({said})"


def address(number: int) -> str:
    """Return the address of host `number`, which counts from 1 to 200, with the length of its prefix."""
    if not 1 <= number <= 200:
        raise ValueError(f"expected the number of a host from 1 to 200, found {number}")
    return f"198.18.77.{number + 10}/24"


class Network:
    """The switch with the servers' address, in the network of this process."""

    def __init__(self, outside: str) -> None:
        """`outside` is the network that must not be touched (`network_of` it); raises RuntimeError inside of it.

        A network that is in use is refused too: besides the loopback a new one has nothing that is up.
        """
        used = ip("-brief", "link", "show", "up").splitlines()
        if network_of() == outside or any(not line.startswith("lo ") for line in used):
            raise RuntimeError("refused to build a network inside one that is in use: the machine's own")
        ip("link", "add", "name", _SWITCH, "type", "bridge")
        ip("address", "add", f"{SERVERS}/24", "dev", _SWITCH)
        ip("link", "set", _SWITCH, "up")

    def plug_in(self, pid: int, number: int) -> None:
        """Give host `number`, which `host.py` makes of process `pid`, its cable; it goes when the host goes."""
        here = network_of()

        def has_left() -> bool:
            return network_of(pid) != here

        eventually(has_left, _JOIN_PATIENCE_SECONDS, every=0.01, what=f"host {number} has a network of its own")
        cable = f"host-{number}"
        ip("link", "add", cable, "type", "veth", "peer", "name", CABLE, "netns", str(pid))
        ip("link", "set", cable, "master", _SWITCH)
        ip("link", "set", cable, "up")
