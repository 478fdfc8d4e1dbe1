"""`python -m tests.support.beating FOLDER LIMIT`: a loop that beats for a guard, and does what files in FOLDER say.

`PID.turns` grows with each turn of the loop; `hold` holds the interpreter in a regular expression, `block` blocks the
loop in a system call, `rest` and `act` let a lease end soon, the latter in a write and with the process
stopped, `end` ends it in peace. A file is taken away when it is obeyed.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from planq.shared.platform.beats import Beats, boot_clock

SERVER = ".server"
"""`PID.server` holds the pid of a program that a process has started in a session of its own, as the MCP SDK does."""


_FENCED_SECONDS = 0.5


def hold() -> None:
    """Take the interpreter until the end of time."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def block() -> None:
    """Leave it to others, and the loop to nobody."""
    time.sleep(3600)


async def live(folder: Path, limit: float) -> None:
    """Beat, and look for what to do."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    beats = Beats.inherited()
    assert beats is not None
    beat = beats.beat(limit)
    beat.start(asyncio.get_running_loop())

    def rest() -> None:
        beat.fence(boot_clock() + _FENCED_SECONDS, False)

    def act() -> None:
        beat.fence(boot_clock() + _FENCED_SECONDS, True)
        os.kill(os.getpid(), signal.SIGSTOP)

    turns = folder / f"{os.getpid()}.turns"
    with turns.open("w") as file:
        while not stop.is_set() and not (folder / "end").exists():
            file.write(".")
            file.flush()
            for do in (hold, block, rest, act):
                order = folder / do.__name__
                if order.exists():
                    order.unlink()
                    do()
            await asyncio.sleep(0.01)
    beat.stop()


def main() -> int:
    """Start a server, live, and return 3, which says that it was in peace."""
    folder = Path(sys.argv[1])
    server = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (folder / f"{os.getpid()}{SERVER}").write_text(str(server.pid))
    asyncio.run(live(folder, float(sys.argv[2])))
    server.kill()
    server.wait()
    return 3


if __name__ == "__main__":
    sys.exit(main())
