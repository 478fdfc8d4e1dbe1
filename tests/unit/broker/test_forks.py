"""A process that is forked while a thread opens a connection to the broker: it can open one of its own."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack

import pytest
from kombu import Connection

from planq.shared.broker.celery_config import create_celery
from planq.shared.broker.transport import properties_with_a_lock

PATIENCE = 60


def _holding_every_lock(held: threading.Event, done: threading.Event) -> None:
    with ExitStack() as locks:
        for found in properties_with_a_lock():
            locks.enter_context(found.lock)
        held.set()
        done.wait(PATIENCE)


def _asks_what_has_locks() -> int:
    """In the fork: ask for what stands behind such locks; a signal ends a process that waits for one for ever."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # of this process alone: the tests have a handler of their own
    signal.alarm(PATIENCE)
    app = create_celery("memory://")
    return 0 if app.amqp and app.connection_for_write().connection_errors else 1


# The thread that is not there in the fork is what this is about: Python 3.12 and later warn of it.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_does_not_wait_for_a_lock_that_a_thread_of_its_parent_held() -> None:
    assert vars(Connection)["connection_errors"] in list(properties_with_a_lock())
    held, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=_holding_every_lock, args=(held, done))
    thread.start()
    try:
        assert held.wait(PATIENCE)
        if (pid := os.fork()) == 0:
            code = 1
            try:
                code = _asks_what_has_locks()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
    finally:
        done.set()
        thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
