"""The peers as planq's side of the benchmark sees them: processes that are started, told what to do, and stopped."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

from planq.deploy.local.child import spawn, stop
from tests.bench.context import Context
from tests.bench.peers import environment

ROOT = Path(__file__).parents[3]
START_PATIENCE_SECONDS = 60.0
ORDER_PATIENCE_SECONDS = 180.0

CELERY_DATABASES = (2, 3)
"""Of the broker's server, for messages and results: planq uses the first."""

CELERY_WORKERS = {
    "chain": ["-Q", "celery", "-c", "2", "-P", "prefork"],
    "fan": ["-Q", "fan", "-c", "128", "-P", "threads"],
}
"""Two processes, as planq has two workers; and a thread for every step of the fan-out."""


class Peer:
    """A running peer; `name` is what the table calls it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    def wait_ready(self) -> None:
        """Wait until the peer takes orders; to be called once."""
        self._answer(START_PATIENCE_SECONDS)

    def run(self, workload: str, *, size: int, times: int) -> list[float]:
        """Return the seconds of each of `times` runs; raises `RuntimeError` when one fails or takes for ever."""
        order = {"workload": workload, "size": size, "times": times}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer(ORDER_PATIENCE_SECONDS)
        if "error" in answer:
            raise RuntimeError(f"{self.name}, {workload}: {answer['error']}")
        return [float(seconds) for seconds in answer["seconds"]]

    def _answer(self, patience: float) -> dict[str, list[float]]:
        output = self._process.stdout
        assert output is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(output, selectors.EVENT_READ)
            # Each answer is one short line, written at once: what is readable is whole.
            line = output.readline() if waiting.select(patience) else b""
        if not line:
            said = self._log.read_text("utf-8", "replace")[-2000:]
            raise RuntimeError(f"{self.name} gave no answer within {patience:g} s:\n{said}")
        answer: dict[str, list[float]] = json.loads(line)
        return answer


@contextmanager
def running(context: Context, *names: str) -> Iterator[dict[str, Peer]]:
    """Run the named peers (all without names), each on a database of its own where it needs one."""
    chosen = names or tuple(STARTS)
    with ExitStack() as stack:
        peers = {name: stack.enter_context(STARTS[name](context)) for name in chosen}
        for peer in peers.values():
            peer.wait_ready()
        yield peers


@contextmanager
def _celery(context: Context) -> Iterator[Peer]:
    folder = context.new_folder("celery")
    broker, results = (
        f"redis+socket://{quote(str(context.valkey.socket_path))}?virtual_host={number}"
        for number in CELERY_DATABASES
    )
    env = _environment({"PEER_BROKER": broker, "PEER_RESULTS": results})
    python, application = str(environment.python()), "tests.bench.peers.celery_app"
    with ExitStack() as stack:
        for name, options in CELERY_WORKERS.items():
            command = [
                python,
                "-m",
                "celery",
                "-A",
                application,
                "worker",
                "-n",
                f"{name}@peer",
                "-l",
                "ERROR",
                *options,
            ]
            with (folder / f"{name}.log").open("wb") as log:
                worker = spawn(command, log=log, env=env, cwd=ROOT)
            stack.callback(stop, worker, (signal.SIGTERM, 10.0))
        yield stack.enter_context(_client("Celery", "celery_peer", folder, env))


@contextmanager
def _langgraph(context: Context) -> Iterator[Peer]:
    env = _environment({"PEER_DATABASE": context.create_database()})
    with _client("LangGraph", "langgraph_peer", context.new_folder("langgraph"), env) as peer:
        yield peer


@contextmanager
def _dbos(context: Context) -> Iterator[Peer]:
    env = _environment({"PEER_DATABASE": context.create_database()})
    with _client("DBOS", "dbos_peer", context.new_folder("dbos"), env) as peer:
        yield peer


STARTS = {"Celery": _celery, "LangGraph": _langgraph, "DBOS": _dbos}


@contextmanager
def _client(name: str, module: str, folder: Path, env: Mapping[str, str]) -> Iterator[Peer]:
    """Start a peer's own process; it ends by itself when its input does, so also when this process is killed."""
    path = folder / "client.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [environment.python(), "-m", f"tests.bench.peers.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(env),
            cwd=ROOT,
        )
    try:
        yield Peer(name, process, path)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what would configure planq, Celery or PostgreSQL behind the benchmark's back."""
    foreign = ("PLANQ_", "CELERY_", "PG", "DBOS", "LANG", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "LANGSMITH_TRACING": "false", **own}
