"""The parts that `planq up` keeps alive, and the environment in which they run."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planq import shared
from planq.api.cli import runtime
from planq.deploy.local.child import bare_environment
from planq.deploy.local.supervisor import PlanqProcess
from planq.shared.platform.data_folder import kept_text
from planq.shared.platform.launcher import PYTHON
from planq.shared.subjects.tenants.master_keys import KEY_BYTES

PROJECT = Path(shared.__file__).resolve().parents[1]
"""The folder that holds the four of planq: of a clone, or the package of a wheel."""

PLANQ = (*PYTHON, "-m", "planq.deploy.cli.main")
_DEFAULT_DRAIN_SECONDS = 10.0  # planq.shared.settings.settings.Settings.drain_seconds
_STOP_MARGIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    """Addresses and data folder; `flower_port` None: no Flower; `may_migrate`: change a foreign database unasked."""

    host: str
    port: int
    flower_port: int | None
    data: Path
    may_migrate: bool = False

    @property
    def reachable_host(self) -> str:
        return "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host  # noqa: S104 - compared, not bound

    @property
    def url(self) -> str:
        return f"http://{self.reachable_host}:{self.port}"

    def log(self, name: str) -> Path:
        return self.data / "logs" / f"{name}.log"


def given_url(*names: str) -> str | None:
    """Return the first of these environment variables that is set and not empty."""
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def child_environment(options: UpOptions, database_url: str, broker_url: str) -> dict[str, str]:
    """Return the environment of planq's processes.

    The embedded database's secrets are sealed under a key next to it, unless PLANQ_SECRET_KEYS names others. Who
    names a database may share it with other machines, so no key is made for it. A planq that only this machine
    reaches may tell receivers on this machine, unless PLANQ_WEBHOOK_ALLOW_HOSTS says otherwise.
    """
    env = {
        name: value for name, value in os.environ.items() if name not in ("PLANQ_DATABASE_URL", "PLANQ_BROKER_URL")
    }
    if not env.get("PLANQ_SECRET_KEYS") and given_url("PLANQ_DATABASE_URL", "DATABASE_URL") is None:
        env["PLANQ_SECRET_KEYS"] = kept_text(options.data, runtime.SECRET_KEYS, _master_key)
    if options.host in ("127.0.0.1", "localhost", "::1"):
        env.setdefault("PLANQ_WEBHOOK_ALLOW_HOSTS", "localhost,127.0.0.1")
    if options.flower_port is not None:
        # Flower asks for task events every five seconds; the first jobs would be over by then and never be seen.
        env.setdefault("PLANQ_TASK_EVENTS", "true")
        env.setdefault("PLANQ_FLOWER_URL", f"http://127.0.0.1:{options.flower_port}")
    return env | {
        "DATABASE_URL": database_url,
        "BROKER_URL": broker_url,
        "PLANQ_HOST": options.host,
        "PLANQ_PORT": str(options.port),
        "PLANQ_DATA": str(options.data),
        # Threads would each get a malloc arena of their own; two are enough and keep idle memory down.
        "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "2"),
    }


_URLS = ("DATABASE_URL", "BROKER_URL", "REDIS_URL")
_INTERPRETERS = ("PYTHON", "MALLOC_")
_STORES = ("AWS_",)  # where PLANQ_PAYLOADS is a bucket
_OF_FLOWER = ("PLANQ_FLOWER_PORT", "PLANQ_FLOWER_HOST", "PLANQ_FLOWER_PASSWORD")
_OF_WORKERS = ("PLANQ_MODEL_BASE_URL", "PLANQ_WEB_SEARCH_API_KEY", "PLANQ_WEB_SEARCH_URL")
_OF_CALLERS = ("PLANQ_API_KEYS", "PLANQ_API_KEY")


def environment_of(part: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return what one part gets of the environment of all, by name: whoever reads a part's reads no other's secrets.

    Workers run tools of yours, which may read what they like: they get all but what is another part's.
    """

    def chosen(*names: str, beginning: tuple[str, ...] = ()) -> dict[str, str]:
        begins = (*_INTERPRETERS, *beginning)
        return {name: value for name, value in env.items() if name in names or name.startswith(begins)}

    match part:
        case "worker-io" | "worker-io-bulk" | "worker-cpu":
            others = {*_OF_FLOWER, *_OF_CALLERS, "PLANQ_HOST", "PLANQ_PORT"}
            return {name: value for name, value in env.items() if name not in others}
        case "api" | "sample":
            mine = {**bare_environment(), **chosen(*_URLS, beginning=("PLANQ_", *_STORES))}
            others = {*_OF_FLOWER, *_OF_WORKERS, *(("PLANQ_API_KEY",) if part == "api" else ())}
            return {name: value for name, value in mine.items() if name not in others}
        case "flower":
            return {**bare_environment(), **chosen("BROKER_URL", "PLANQ_DATA", *_OF_FLOWER, beginning=("FLOWER_",))}
        case "migrate":
            return {**bare_environment(), **chosen("DATABASE_URL", "PLANQ_SCHEMA", "PLANQ_LISTEN_URL", "PLANQ_DATA")}
    raise ValueError(f"no such part: {part}")


def _master_key() -> str:
    return base64.b64encode(os.urandom(KEY_BYTES)).decode("ascii")


def planq_parts(options: UpOptions, env: Mapping[str, str]) -> list[PlanqProcess]:
    """Return API, workers and Flower, the slowest first; bulk jobs have their own `io` worker."""
    drain = float(env.get("PLANQ_DRAIN_SECONDS") or _DEFAULT_DRAIN_SECONDS) + _STOP_MARGIN_SECONDS
    parts = [
        _process("worker-io", ["worker", "io", "--priority", "interactive"], options, env, patience=drain),
        _process("api", ["api"], options, env),
        _process("worker-io-bulk", ["worker", "io", "--priority", "bulk"], options, env, patience=drain),
        _process("worker-cpu", ["worker", "cpu"], options, env, patience=drain),
    ]
    if options.flower_port is not None:
        parts.append(_process("flower", ["flower", "--port", str(options.flower_port)], options, env, patience=3.0))
    return parts


def _process(
    name: str, command: Sequence[str], options: UpOptions, env: Mapping[str, str], *, patience: float = 10.0
) -> PlanqProcess:
    return PlanqProcess(name, [*PLANQ, *command], environment_of(name, env), options.log(name), patience=patience)
