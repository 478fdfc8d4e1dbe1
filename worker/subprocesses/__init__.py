"""Work that a stranger's input may make long, in processes that can be killed: they hold nothing but this work.

    processes.py   starts them, hands them work, ends what takes too long: the side of the worker
    __main__.py    is such a process
    page.py        HTML as text, by a parser in C

A thread would not do: the parsers hold the interpreter's lock, so that no time-out fires, and nothing ends a thread.
"""

from planq.worker.subprocesses.processes import Apart, Failed, WorkRefused

__all__ = ["Apart", "Failed", "WorkRefused"]
