"""`python -m planq.api`: the API process on PLANQ_HOST and PLANQ_PORT.

Exit codes: 0 after SIGTERM or Ctrl-C, 2 with one sentence on standard error if it cannot start as configured. On a
stop it answers all waiting clients, ends all streams, finishes the running requests, and closes its connections.
"""

from __future__ import annotations

import gc
import logging
import resource
import signal
import socket
import sys
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planq.shared.platform.beats import Beats
    from planq.shared.settings.settings import Settings

_log = logging.getLogger("planq.api")

_MISCONFIGURED = 2
_BACKLOG = 2_048
_MAX_FILES = 65_536
_MAX_CONNECTIONS = 12_000
_OTHER_FILES = 128
_DRAIN_SECONDS = 10

_KEEP_ALIVE_SECONDS = 65
"""Longer than the 60 s of common proxies, so that they, not we, close idle connections."""


def main() -> int:
    """Serve until a signal stops the process; return the exit code."""
    # Before the server listens, and after it has stopped, SIGTERM just ends the process.
    signal.signal(signal.SIGTERM, _leave)
    from planq.shared.platform.beats import Beats
    from planq.shared.platform.errors import PlanqError

    beats = Beats.inherited()
    try:
        serve(beats)
    except PlanqError as error:
        sys.stderr.write(f"planq api: {error.message}\n")
        return _MISCONFIGURED
    except KeyboardInterrupt:
        pass
    return 0


def serve(beats: Beats | None) -> None:
    """Serve until a signal; `beats` are watched by a guard process, if any. Raises `Misconfigured`."""
    gc.disable()  # imports and routes create no garbage, but the collector costs a quarter of their time
    import asyncio

    import uvicorn

    from planq.api.app import create_api
    from planq.shared.platform.logs import configure_logging
    from planq.shared.platform.process_memory import bound_arenas, settle_heap
    from planq.shared.platform.version import release
    from planq.shared.settings.environment import load_settings

    settings = load_settings()
    configure_logging(settings.log_level, form=settings.log_format, secrets=settings.secrets)
    bound_arenas()
    app = create_api(settings)
    beat = None if beats is None else beats.beat(settings.freeze_seconds)
    _check_schema(settings)
    _allow_many_connections()
    gc.enable()
    settle_heap()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if beat is not None:
                beat.start(asyncio.get_running_loop())

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.services.release_clients()  # before the server waits for its clients
            await super().shutdown(sockets)
            if beat is not None:
                beat.stop()

    config = uvicorn.Config(app, **server_options())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with _listen(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        _log.info(
            "api_listening",
            extra={"host": host, "port": port, "needs_key": settings.needs_keys, "version": release()},
        )
        Server(config).run(sockets=[listener])


def server_options() -> dict[str, Any]:
    """Return the options of uvicorn. Fast libraries are named, so that a missing one is an error.

    The maximum number of connections leaves some file descriptors for other uses.
    """
    from planq.api.http.protocol import BoundedProtocol, Bounds

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(_MAX_CONNECTIONS, max(1, soft - _OTHER_FILES))
    return {
        "loop": "uvloop",
        "http": partial(BoundedProtocol, bounds=Bounds(connections=most)),  # on httptools
        "ws": "none",
        "lifespan": "on",
        "access_log": False,
        "log_config": None,
        "server_header": False,
        "proxy_headers": False,  # the client's address is not used
        "backlog": _BACKLOG,
        "timeout_keep_alive": _KEEP_ALIVE_SECONDS,
        "timeout_graceful_shutdown": _DRAIN_SECONDS,
    }


def _check_schema(settings: Settings) -> None:
    """Raise `Misconfigured` for a foreign schema, or if a master key of stored secrets is missing.

    A database that does not answer yet is only logged.
    """
    from planq.shared.kernel.schema_version import require_schema
    from planq.shared.platform.errors import DatabaseUnavailable
    from planq.shared.subjects.tenants.secrets import require_master_keys

    try:
        require_schema(settings.require_database(), settings.pooled_schema)
        require_master_keys(settings.require_database(), settings.master_keys, settings.pooled_schema)
    except DatabaseUnavailable as error:
        _log.error("database_unavailable", extra={"cause": error.message})


def _listen(host: str, port: int) -> socket.socket:
    from planq.shared.platform.errors import Misconfigured

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise Misconfigured(
            f"cannot listen on {host} port {port}: {reason}; set PLANQ_HOST and PLANQ_PORT to a free address"
        ) from error


def _allow_many_connections() -> None:
    """Raise the limit of file descriptors: every waiting client needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _leave(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
