"""Whether a process still does something: it may end between two looks, and be listed after its end."""

from __future__ import annotations

import psutil


def command_line(process: psutil.Process) -> list[str]:
    """Return the command line of a process, an empty one where it has ended, be it this moment."""
    try:
        return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
    except psutil.NoSuchProcess:
        return []


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process, be it stopped, has not ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
