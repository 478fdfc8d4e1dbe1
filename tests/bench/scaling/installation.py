"""One planq to be measured: servers with full durability, an API, and workers here or on hosts of their own."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import redis

from planq.deploy.local.child import has_exited
from planq.deploy.local.folder import last_lines
from planq.deploy.local.postgres import PORT, EmbeddedPostgres
from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.schema.migrate import upgrade
from tests.bench.scaling.network import RANGE, SERVERS, Network, address
from tests.support.servers import FUNCTIONS_FOUND
from tests.support.stack import Stack
from tests.support.waiting import eventually

_BROKER_PORT = 6379
_START_PATIENCE_SECONDS = 60.0

_ACCESS = f"local all all trust\nhost planq planq {RANGE} trust\n"
"""pg_hba.conf: whoever reaches the private socket, and the hosts of the test's own network, which nobody else can."""

_LIVE = re.compile(r'^planq_live_workers\{pool="io"\} (\S+)$', re.MULTILINE)


class Servers:
    """PostgreSQL and Valkey as in production; with a network they listen on its switch too."""

    def __init__(self, folder: Path, *, networked: bool) -> None:
        self._networked = networked
        options: dict[str, str] = {"max_connections": "200"}
        if networked:
            access = folder / "postgres" / "access.conf"
            access.parent.mkdir(mode=0o700)
            access.write_text(_ACCESS, "utf-8")
            options |= {"listen_addresses": SERVERS, "hba_file": str(access)}
        self.postgres = EmbeddedPostgres(folder / "postgres", options={**FUNCTIONS_FOUND, **(options or {})})
        self.valkey = EmbeddedValkey(folder / "valkey")

    def start(self) -> None:
        """Start both on an empty, migrated database."""
        self.valkey.start()
        self.postgres.start()
        upgrade(self.postgres.url)
        if self._networked:
            with redis.Redis(unix_socket_path=str(self.valkey.socket_path)) as broker:
                for name, value in (("bind", SERVERS), ("protected-mode", "no"), ("port", _BROKER_PORT)):
                    broker.config_set(name, value)

    def stop(self) -> None:
        """Stop both; idempotent."""
        self.postgres.stop()
        self.valkey.stop()

    @property
    def remote(self) -> dict[str, str]:
        """The variables by which a host finds both over the network."""
        return {
            "DATABASE_URL": f"postgresql://planq@{SERVERS}:{PORT}/planq",
            "BROKER_URL": f"redis://{SERVERS}:{_BROKER_PORT}/0",
        }


class Installation:
    """API and io workers on given servers; with a network each worker runs on a host of its own."""

    def __init__(self, folder: Path, servers: Servers, *, network: Network | None, concurrency: int) -> None:
        self._servers = servers
        self._network = network
        self._concurrency = concurrency
        env = {"PLANQ_TOOLS": "tests.bench.tools", "PLANQ_LOG_LEVEL": "WARNING"}
        self._stack = Stack(folder, servers.postgres.url, servers.valkey.url, env=env, fresh=True)

    @property
    def url(self) -> str:
        """The API's base URL."""
        return self._stack.url

    @property
    def pids(self) -> dict[str, int]:
        """The processes by name: `api`, `io-1` and so on, `postgres`, `valkey`."""
        found = {name: process.pid for name, process in self._stack.processes.items()}
        servers = {"postgres": self._servers.postgres.pid, "valkey": self._servers.valkey.pid}
        return found | {name: pid for name, pid in servers.items() if pid is not None}

    def start(self, workers: int) -> None:
        """Start the API and so many workers, and wait until every worker holds a lease."""
        self._stack.start(io=0, cpu=0, ready=False)
        for number in range(1, workers + 1):
            if self._network is None:
                self._stack.run_worker("io", number, concurrency=self._concurrency)
            else:
                self._start_on_host(self._network, number)
        eventually(
            lambda: self._live_workers() == workers,
            _START_PATIENCE_SECONDS,
            every=0.1,
            what=f"{workers} live workers",
        )

    def stop(self) -> None:
        """End all of them."""
        self._stack.stop()

    def _start_on_host(self, network: Network, number: int) -> None:
        name = f"io-{number}"
        host = [
            "-m",
            "tests.bench.scaling.host",
            "--name",
            f"planq-host-{number}",
            "--address",
            address(number),
            "--",
        ]
        worker = ["-m", "planq.worker", "io", "--concurrency", str(self._concurrency)]
        process = self._stack.run(name, *host, *worker, env=self._servers.remote)
        network.plug_in(process.pid, number)

    def _live_workers(self) -> int:
        """Return how many workers the API sees; raises RuntimeError when a process has ended."""
        for name, process in self._stack.processes.items():
            if has_exited(process):
                raise RuntimeError(f"{name} ended:\n{last_lines(self._stack.log(name), 40)}")
        try:
            text = httpx.get(f"{self.url}/metrics", timeout=5, trust_env=False).text
        except httpx.TransportError:
            return 0
        return int(sum(map(float, _LIVE.findall(text))))
