"""The parts that `planq up` keeps alive, and the environment in which they run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import shared
from deploy.local.postgres import EmbeddedPostgres
from deploy.local.supervisor import ProcessPart
from deploy.local.valkey import EmbeddedValkey

PROJECT = Path(shared.__file__).parents[1]
PLANQ = (sys.executable, "-m", "deploy.cli.main")
DEFAULT_DRAIN_SECONDS = 10.0  # shared.settings.Settings.drain_seconds
STOP_MARGIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where planq listens and keeps its data; `flower_port` None means no Flower."""

    host: str
    port: int
    flower_port: int | None
    data: Path

    @property
    def reachable_host(self) -> str:
        """The address by which this machine reaches the API."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host  # noqa: S104 - compared, not bound

    @property
    def url(self) -> str:
        """The API's URL as seen from this machine."""
        return f"http://{self.reachable_host}:{self.port}"

    def log(self, name: str) -> Path:
        """The log file of a planq process."""
        return self.data / "logs" / f"{name}.log"


class ServerPart:
    """An embedded server as a part."""

    def __init__(self, name: str, server: EmbeddedPostgres | EmbeddedValkey, *, patience: float) -> None:
        self.name, self.server, self.patience = name, server, patience

    @property
    def log(self) -> Path:
        """The server's own log."""
        return self.server.log

    def last_words(self) -> str:
        """Return the end of what the server has written since it was last launched."""
        return self.server.last_words()

    def start(self) -> None:
        """Launch the server; it may need a moment until it answers."""
        self.server.launch()

    def has_died(self) -> bool:
        """True when it was launched and has ended by itself."""
        return self.server.has_died()

    def is_misconfigured(self) -> bool:
        """False: a server that is, is not launched at all."""
        return False

    def ask_to_stop(self) -> None:
        """Ask for an orderly shutdown."""
        self.server.ask_to_stop()

    def has_stopped(self) -> bool:
        """True when the server does not run."""
        return self.server.pid is None

    def end(self) -> None:
        """End it for certain and free its folder."""
        self.server.stop(patience=1.0)


def given_url(*names: str) -> str | None:
    """Return the first of these environment variables that is set and not empty."""
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def import_path() -> dict[str, str]:
    """Return the variables that say where a child of ours looks for modules.

    planq's own packages come first on the path and the present folder last (`PLANQ_TOOLS` may name a module in it): a
    folder of the caller's called `api` or `worker` must not stand in for ours.
    """
    path = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()]
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}


def child_environment(place: Place, database_url: str, broker_url: str) -> dict[str, str]:
    """Return the environment of planq's processes."""
    env = {
        name: value for name, value in os.environ.items() if name not in ("PLANQ_DATABASE_URL", "PLANQ_BROKER_URL")
    }
    if place.flower_port is not None:
        # Flower asks for task events every five seconds; the first jobs would be over by then and never be seen.
        env.setdefault("PLANQ_TASK_EVENTS", "true")
    return env | {
        "DATABASE_URL": database_url,
        "BROKER_URL": broker_url,
        "PLANQ_HOST": place.host,
        "PLANQ_PORT": str(place.port),
        "PLANQ_DATA": str(place.data),
        **import_path(),
        # Threads would each get a malloc arena of their own; two are enough and keep idle memory down.
        "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "2"),
    }


def planq_parts(place: Place, env: Mapping[str, str]) -> list[ProcessPart]:
    """Return API, workers and Flower, in the order in which they are started (the slowest first)."""
    drain = float(env.get("PLANQ_DRAIN_SECONDS") or DEFAULT_DRAIN_SECONDS) + STOP_MARGIN_SECONDS
    parts = [
        ProcessPart("worker-io", [*PLANQ, "worker", "io"], env, place.log("worker-io"), patience=drain),
        ProcessPart("api", [*PLANQ, "api"], env, place.log("api")),
        ProcessPart("worker-cpu", [*PLANQ, "worker", "cpu"], env, place.log("worker-cpu"), patience=drain),
    ]
    if place.flower_port is not None:
        flower = [*PLANQ, "flower", "--port", str(place.flower_port)]
        parts.append(ProcessPart("flower", flower, env, place.log("flower"), patience=3.0))
    return parts
