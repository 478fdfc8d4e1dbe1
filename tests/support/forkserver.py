"""`python -m tests.support.forkserver SOCKET`: has imported what planq's processes import, and forks them.

Most of a worker's start is the import of other people's libraries, and the tests start hundreds of workers. Here they
are imported once. A request comes as a message on the socket whose descriptor is given; the process that is forked is
a child of the *requesting* process (CLONE_PARENT), which sends it signals and waits for it as for one of its own.
What planq makes of its environment when it is imported (`planq.worker.celery.app`) is not imported here, and nothing
runs: no thread, no connection. Closing the other end of the socket ends this process.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import platform
import runpy
import socket
import sys
import threading
import warnings
from typing import Any, NoReturn

from planq.shared.platform.launcher import die_with

# <linux/sched.h>; the number of clone(2) in <asm/unistd.h> of each machine.
CLONE_PARENT = 0x00008000
CLONE = {"x86_64": 56, "aarch64": 220}
SIGCHLD = 17

MESSAGE_BYTES = 1 << 17

MODULES = (
    *("celery.bin.celery", "celery.apps.worker", "celery.worker.worker", "celery.concurrency.prefork"),
    *("celery.loaders.app", "celery.app.amqp", "celery.app.events", "celery.app.log", "celery.app.control"),
    *("celery.worker.consumer", "celery.worker.strategy", "celery.worker.autoscale", "celery.backends.base"),
    *("kombu.transport.redis", "kombu.transport.pyamqp", "billiard.pool", "billiard.popen_fork"),
    *("uvicorn", "uvicorn.loops.uvloop", "uvicorn.protocols.http.httptools_impl", "uvicorn.lifespan.on"),
    *("structlog", "jmespath", "orjson", "yaml", "encodings.idna", "planq.shared.platform.logs"),
    # Read by a worker in the middle of its first call to a model; a busy disk may stop all its threads for that long.
    *("planq.worker.models.providers", "anyio._backends._asyncio", "genai_prices.data", "jiter"),
    *(
        "planq.worker.container",
        "planq.worker.runtime.lifecycle",
        "planq.worker.runtime.prefork",
        "planq.worker.celery.events",
        "planq.api.app",
    ),
)
"""What a running worker and a running API have imported, but for what reads the environment."""

ENVIRONMENT_READERS = ("planq.worker.celery.app", "planq.worker.main")


def fork_beside() -> int:
    """Fork, as a sibling: the child's parent is this process's parent. Returns as `os.fork` does."""
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    # What os.fork does around fork(2), which has no flags.
    python.PyOS_BeforeFork()
    pid = int(libc.syscall(CLONE[platform.machine()], CLONE_PARENT | SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"clone(CLONE_PARENT): {os.strerror(number)}")
    return pid


def become(request: dict[str, Any], log: int, control: socket.socket) -> NoReturn:
    """Make this fork what `planq.deploy.local.child.spawn` makes of a new process, say so, and run the module."""
    os.setsid()
    die_with(request["parent"], request["parting"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, place)
    os.close(nothing)
    os.close(log)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[0] = request["cwd"]
    program, *arguments = request["argv"]
    sys.argv = [program, *arguments]
    control.send(json.dumps({"pid": os.getpid()}).encode())
    control.close()
    gc.unfreeze()
    runpy.run_module(program, run_name="__main__", alter_sys=True)
    sys.exit(0)


def serve(control: socket.socket) -> None:
    """Answer requests until the other end is closed; in a fork, run its module and never return."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
        if not message:
            return
        if fork_beside() == 0:
            become(json.loads(message), descriptors[0], control)
        os.close(descriptors[0])


def main() -> None:
    """Import, make sure that forking is safe, and serve."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in MODULES:
            importlib.import_module(name)
    early = [name for name in ENVIRONMENT_READERS if name in sys.modules]
    if early or threading.active_count() != 1 or len(os.listdir("/proc/self/task")) != 1:
        sys.exit(f"forkserver: modules imported too early: {early}; threads: {threading.enumerate()}")
    # The collector would touch, and so copy, every page of every child.
    gc.collect()
    gc.freeze()
    control.send(b"{}")
    serve(control)


if __name__ == "__main__":
    main()
