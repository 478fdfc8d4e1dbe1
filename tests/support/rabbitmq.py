"""A private RabbitMQ node from the system's package: own name, ports and folders, nothing of the system's service.

Erlang's port mapper is started as a child too: left to itself the node would start one that outlives everything.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.parse import quote

import httpx

from planq.deploy.local.child import has_exited, spawn, stop
from planq.deploy.local.folder import last_lines
from tests.support.ports import free_ports
from tests.support.waiting import eventually

# Debian's wrapper in /usr/sbin insists on the user rabbitmq; the script that it wraps does not.
SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
USER = PASSWORD = "guest"  # RabbitMQ's own, accepted from the loopback only


def missing() -> str | None:
    """Return what RabbitMQ lacks on this machine, None when it can be started."""
    if not SCRIPT.exists():
        return f"RabbitMQ is not installed ({SCRIPT} is missing; Debian's package is rabbitmq-server)"
    if shutil.which("epmd") is None:
        return "Erlang's port mapper (epmd) is not on the PATH"
    return None


class RabbitMQ:
    """One node below `folder`; each `create` gives a virtual host of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port, self._distribution, self._mapper_port, self._management = free_ports(4)
        self._children: list[subprocess.Popen[bytes]] = []
        self._numbers = itertools.count(1)

    @property
    def api(self) -> str:
        """The management API's URL, with credentials."""
        return f"http://{USER}:{PASSWORD}@127.0.0.1:{self._management}/api"

    def start(self) -> None:
        """Start the node and wait until its management API answers (4 s on two quiet cores)."""
        log = self._folder / "node.log"
        (self._folder / "plugins").write_text("[rabbitmq_management].\n")
        (self._folder / "rabbitmq.conf").write_text(
            f"management.tcp.port = {self._management}\nmanagement.tcp.ip = 127.0.0.1\n"
            "log.console = true\nlog.console.level = warning\nlog.file = false\n"
            "disk_free_limit.absolute = 1MB\n"
            "collect_statistics_interval = 1000\n"  # not five seconds: tests wait until connections are known
        )
        with log.open("ab") as out:
            mapper = ["epmd", "-port", str(self._mapper_port), "-address", "127.0.0.1"]
            self._children.append(spawn(mapper, log=out, env=self._environment()))
            node = spawn([str(SCRIPT)], log=out, env=self._environment(), cwd=self._folder)
            self._children.append(node)
        try:
            eventually(lambda: has_exited(node) or self._answers(), 240, every=0.1, what="RabbitMQ answers")
            assert not has_exited(node), f"RabbitMQ ended while it was starting:\n{last_lines(log)}"
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the node in peace, and its port mapper: it can be started again."""
        while self._children:
            stop(self._children.pop(), (signal.SIGTERM, 8.0))

    def end(self) -> None:
        """End both at once, for good; in peace it takes six seconds."""
        while self._children:
            stop(self._children.pop())

    def create(self) -> str:
        """Create a virtual host and return its broker URL."""
        name = f"test-{next(self._numbers)}"
        httpx.put(f"{self.api}/vhosts/{name}").raise_for_status()
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{quote(name, safe='')}"

    def drop(self, url: str) -> None:
        """Delete the virtual host behind `url` with its queues and connections."""
        httpx.delete(f"{self.api}/vhosts/{url.rsplit('/', 1)[1]}", timeout=60).raise_for_status()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.api}/overview", timeout=2).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")}
        return kept | {
            "HOME": str(self._folder),  # the cookie that nodes know one another by
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_NODENAME": f"planq{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_CONFIG_FILE": str(self._folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_PID_FILE": str(self._folder / "pid"),
        }
