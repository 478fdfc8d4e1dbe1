"""One database, one broker and worker processes that come, die and go: what every fault test plays on."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Json

from planq.deploy.local.child import has_exited, reap, send
from planq.deploy.local.folder import last_lines
from planq.shared.failpoints import EXIT_CODE, VARIABLE
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Priority, Strategy
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.submission import Submission
from planq.shared.kernel.wakes import Wake
from tests.support.callers import Caller
from tests.support.servers import FUNCTIONS
from tests.support.stack import ROOT, Stack, step_processes
from tests.support.waiting import eventually

LEASE_SECONDS = 30.0
"""No lease ends because the machine is busy: a worker that is stopped for as long ends itself, and nobody starts it
again. A killed one is not waited for, since the others see that it has gone."""
SHORT_LEASE_SECONDS = 2.5
SHORT_LEASE = {"PLANQ_LEASE_SECONDS": str(SHORT_LEASE_SECONDS)}
"""For plays that wait for the end of a lease."""
GRACE_SECONDS = 1.0

SETTINGS = {
    "PLANQ_TOOLS": "tests.faults.tools,tests.faults.delegating:delegate",
    "PLANQ_HEARTBEAT_SECONDS": "0.3",
    "PLANQ_LEASE_SECONDS": str(LEASE_SECONDS),
    "PLANQ_SWEEP_SECONDS": "0.1",
    "PLANQ_DATABASE_CONNECTIONS": "2",
}

PATIENCE = 180.0
"""Far more than any recovery here takes; the machine may be busy."""

MIGRATING = threading.Lock()
"""Alembic keeps what it is at in a module: one migration at a time."""

Call = tuple[str, Mapping[str, Any]]

# A fan-out with a join, a chain, a timer, a retry and an unsafe tool.
MIXED: Sequence[Call] = [
    *[("fault_note", {"text": "a"})] * 3,
    ("fault_join", {"parts": ["$0.output.text", "$1.output.text", "$2.output.text"]}),
    ("fault_note", {"text": "$3.output.text"}),
    ("wait", {"seconds": 0.2}),
    ("fault_flaky", {"text": "$4.output.text"}),
    ("fault_pay", {"text": "$6.output.text"}),
    ("fault_note", {"text": "$7.output.text"}),
]
MIXED_TEXT = "<<<<<a>+<a>+<a>>>>>"


class Scene:
    """What happened stays readable in `folder`: the workers' logs, and the ledgers of the tools."""

    def __init__(
        self, folder: Path, database_url: str, broker_url: str, *, env: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.database_url = database_url
        self.broker_url = broker_url
        settings = {**SETTINGS, "FAULT_FOLDER": str(folder), **(env or {})}
        self.stack = Stack(folder, database_url, broker_url, env=settings)
        self._lease = timedelta(seconds=float(settings["PLANQ_LEASE_SECONDS"]))
        self.caller = Caller(database_url, broker_url)
        self._numbers = Counter[str]()
        self._connection = self._connect()
        self.read(
            # Else every lost wake-up would take a quarter of a minute of the test run.
            f"CREATE OR REPLACE FUNCTION {FUNCTIONS}.planq_wake_grace() RETURNS interval LANGUAGE sql IMMUTABLE AS "
            f"$$ SELECT interval '{GRACE_SECONDS} seconds' $$"
        )

    # Workers ------------------------------------------------------------------------------------------------------

    def worker(self, pool: str = "io", *, concurrency: int | None = None, **env: str) -> str:
        """Start a worker of a pool (`cpu`: with a single process) and return its name, without waiting for it."""
        self._numbers[pool] += 1
        size = concurrency or (100 if pool == "io" else 1)
        self.stack.run_worker(pool, self._numbers[pool], concurrency=size, env=env)
        return f"{pool}-{self._numbers[pool]}"

    def guarded(self, kind: str = "io", *program: str, **env: str) -> str:
        """Start a worker or API as `planq` does, below a guard that waits for two seconds; returns its name."""
        program = program or ("-m", "planq.worker", kind, "--concurrency", "100" if kind == "io" else "1")
        name = f"guarded-{kind}"
        # A guard starts what looks into no present folder, where modules of the tests lie.
        own = {"PLANQ_FREEZE_SECONDS": "2", "PYTHONPATH": str(ROOT)}
        self.stack.run(name, "-m", "planq.deploy.local.guard", kind, *program, env={**own, **env})
        return name

    def doomed(self, point: str, pool: str = "io", *, concurrency: int | None = None, **env: str) -> str:
        """Start a worker that dies at a point."""
        return self.worker(pool, concurrency=concurrency, **{VARIABLE: point}, **env)

    def held(self, point: str, pool: str = "io", **env: str) -> tuple[str, Path]:
        """Start a worker that stands still at a point; returns its name and the folder of `held` and `go`."""
        folder = self.folder / f"hold-{sum(self._numbers.values())}"
        folder.mkdir()
        # Without room for a fan-out it is published; otherwise a worker keeps so few steps to itself.
        size = 1 if point.startswith("publisher.") else None
        return self.worker(pool, concurrency=size, **{VARIABLE: f"{point}=hold:{folder}", **env}), folder

    def stands(self, job_id: UUID, name: str, folder: Path) -> None:
        """Wait until a worker stands still at its point, in the middle of a job; `name` and `folder` as of `held`."""
        try:
            eventually((folder / "held").exists, PATIENCE, what=f"{name} stands still")
        except AssertionError as stuck:
            raise AssertionError(f"{stuck}\n{self._told(job_id)}") from stuck

    def pid(self, name: str) -> int:
        """Return the pid of a process."""
        return self.stack.processes[name].pid

    def api(self, **env: str) -> None:
        """Start the API and wait until it answers."""
        process = self.stack.run("api", "-m", "planq.api", env=env)

        def answers() -> bool:
            assert not has_exited(process), last_lines(self.stack.log("api"), 40)
            try:
                return httpx.get(f"{self.stack.url}/tools", timeout=60).status_code == httpx.codes.OK
            except httpx.TransportError:
                return False

        eventually(answers, PATIENCE, every=0.05, what="the API answers")

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        send(self.stack.processes[name], number)

    def dies(self, name: str, code: int = EXIT_CODE) -> None:
        """Wait until a process has ended, and see that it did so with this exit code."""
        process = self.stack.processes[name]
        eventually(lambda: has_exited(process), PATIENCE, what=f"{name} dies")
        found = reap(self.stack.processes.pop(name))
        assert found == code, f"{name} ended with {found}:\n{last_lines(self.stack.log(name), 40)}"

    def died_at(self, point: str, pool: str = "io", **env: str) -> None:
        """Start a worker that dies at a point and wait until it has."""
        self.dies(self.doomed(point, pool, **env))

    def kill_child(self, name: str) -> None:
        """Kill the process in which a `cpu` worker runs its step, as the kernel does when memory runs out."""
        children = step_processes(self.pid(name))
        assert len(children) == 1, children
        children[0].kill()

    def live(self) -> int:
        """Return how many workers hold a lease."""
        return len(self.caller.do(self._worker_registry().live()))

    # Jobs ---------------------------------------------------------------------------------------------------------

    def submit(
        self,
        *calls: Call,
        text: str = "",
        publish: bool = True,
        model: str = "offline",
        limits: Limits | None = None,
        strategy: Strategy = Strategy.PLAN,
        priority: Priority = Priority.INTERACTIVE,
        callback_url: str | None = None,
        tenant: str = "default",
    ) -> UUID:
        """Store a job with a plan of `calls` (or, without any, one that the model plans) and publish its wake-up."""
        job_id = new_id()
        plan = (
            {
                "on_failure": "answer",
                "calls": [{"tool_name": name, "arguments": arguments} for name, arguments in calls],
            }
            if calls
            else None
        )
        submission = Submission(
            job_id,
            tenant,
            text,
            strategy,
            model,
            limits or Limits(),
            plan=plan,
            priority=priority,
            callback_url=callback_url,
        )
        self.caller.do(self.caller.requests.submit(submission))
        if publish:
            # Where the broker is in trouble it may refuse: the sweeper of a worker then finds the job.
            self.caller.publisher.publish_soon([Wake.plan(job_id, priority=priority, tenant=tenant)])
        return job_id

    def tenants(self, *names: str) -> None:
        """Make tenants with no configuration of their own."""
        for name in names:
            self.read("INSERT INTO tenants (id, name, config) VALUES (%s, %s, '{}')", name, name)

    def schedule(self, text: str, ahead: str) -> UUID:
        """Store a reminder that is due once, an interval such as `1 hour` from now."""
        schedule_id = new_id()
        self.read(
            "INSERT INTO schedules (id, tenant_id, input, model, limits, next_at) "
            "VALUES (%s, 'default', %s, 'offline', %s, now() + %s::interval)",
            schedule_id,
            text,
            Json(Limits().to_json()),
            ahead,
        )
        return schedule_id

    def job(self, job_id: UUID) -> tuple[Any, list[Any]]:
        """Return a job and its steps."""
        return self.caller.job(job_id)

    def steps(self, job_id: UUID) -> list[str]:
        """Return where the steps of a job stand."""
        rows = self.read("SELECT status FROM steps WHERE job_id = %s ORDER BY index", job_id)
        return [row["status"] for row in rows]

    def runs(self, job_id: UUID, index: int = 0) -> None:
        """Wait until the tool of a step has been called."""
        try:
            eventually(lambda: self.ran()[f"{job_id}/{index}"], PATIENCE, what=f"step {index} runs")
        except AssertionError as stuck:
            raise AssertionError(f"{stuck}\n{self._told(job_id)}") from stuck

    def eventually_running(self, tool_name: str, count: int) -> None:
        """Wait until so many steps run a tool."""
        query = "SELECT 1 FROM steps WHERE tool_name = %s AND status = 'running'"
        eventually(lambda: len(self.read(query, tool_name)) >= count, PATIENCE, what=f"{count} steps run {tool_name}")

    def in_quarantine(self, job_id: UUID) -> None:
        """Wait until what is in flight of a job was lost twice in company, so that it runs in quarantine next."""
        query = "SELECT 1 FROM suspects WHERE job_id = %s AND due_at IS NOT NULL"
        eventually(lambda: self.read(query, job_id), PATIENCE, what="it waits for a worker in quarantine")

    def has_ended(self, job_id: UUID) -> bool:
        """Return whether a job has ended, in whatever way."""
        row = self.read("SELECT status FROM jobs WHERE id = %s", job_id)[0]
        return row["status"] in ("completed", "failed", "cancelled")

    def ends(self, job_id: UUID, patience: float = PATIENCE) -> tuple[Any, list[Any]]:
        """Wait until a job has ended and return it with its steps."""
        try:
            eventually(lambda: self.has_ended(job_id), patience, every=0.05)
        except AssertionError as stuck:
            raise AssertionError(self._told(job_id)) from stuck
        return self.job(job_id)

    def completes(self, job_id: UUID, *expected: str) -> list[Any]:
        """Wait for a job's end; its last steps must have succeeded with these texts. Returns its steps."""
        job, steps = self.ends(job_id)
        assert job["status"] == "completed", self._told(job_id)
        assert {step["status"] for step in steps} == {"succeeded"}, self._told(job_id)
        assert [step["output"]["text"] for step in steps[-len(expected) :]] == list(expected), self._told(job_id)
        return steps

    def mixed_comes_out_right(self, job_id: UUID) -> list[Any]:
        """See that a job of `MIXED` has ended as it should, and that no more was repeated than what was cut off."""
        steps = self.completes(job_id, MIXED_TEXT)
        assert self.paid()[f"{job_id}/7"] == 1
        assert steps[6]["attempt"] >= 2, "its first call failed"
        # At most the three steps of the fan-out were under way when the worker died, and one retry was due anyway.
        assert sum(step["attempt"] for step in steps) <= len(MIXED) + 1 + 3, self._told(job_id)
        ran = self.ran()
        calls = [(ran[f"{job_id}/{step['index']}"], step) for step in steps if step["tool_name"] != "wait"]
        assert all(count >= 1 for count, _ in calls)
        # The fourth and the fifth step are a unit: a call of the fifth may have been thrown away with its worker.
        assert all(count <= step["attempt"] + (step["index"] == 4) for count, step in calls)
        return steps

    def told(self, job_id: UUID, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind that a job has, in their order."""
        return self.read("SELECT * FROM events WHERE job_id = %s AND kind = %s ORDER BY sequence", job_id, kind)

    def now(self) -> datetime:
        """Return the database's time, which decides."""
        moment: datetime = self.read("SELECT clock_timestamp() AS now")[0]["now"]
        return moment

    # Truth --------------------------------------------------------------------------------------------------------

    def ran(self) -> Counter[str]:
        """Return how often the tool of each step was called, by idempotency key."""
        return Counter(line.split()[0] for line in _lines(self.folder / "ran"))

    def ticks(self) -> list[str]:
        """Return which attempts were at work, one entry for each time that one looked."""
        return _lines(self.folder / "ticks")

    def paid(self) -> Counter[str]:
        """Return how often each unsafe call took effect, by idempotency key."""
        return Counter(_lines(self.folder / "paid"))

    def is_over(self, job_id: UUID, attempt: int) -> bool:
        """Return whether a call that acts late (`fault_late_book` and its kin) has ended, however it ended."""
        return f"{job_id}/0 {attempt}" in _lines(self.folder / "over")

    def began(self, job_id: UUID, attempt: int) -> bool:
        """Return whether the tool of a job's first step was called in an attempt."""
        return f"{job_id}/0 {attempt}" in _lines(self.folder / "ran")

    def sound(self) -> None:
        """See that nothing was done twice that may not be, and that every invariant holds."""
        assert [key for key, times in self.paid().items() if times > 1] == []
        again = self.read(
            "SELECT a.job_id, a.data->>'index' AS index FROM events a JOIN events b USING (job_id) "
            "WHERE a.kind = 'step_succeeded' AND b.kind = 'step_started' AND b.sequence > a.sequence "
            "AND a.data->>'index' = b.data->>'index' AND a.data->>'round' = b.data->>'round'"
        )
        assert again == [], "a finished step was begun again"

        def is_whole() -> bool:
            broken = self.caller.do(self._worker_registry().broken_invariants())
            assert broken == []
            return True

        # What a dead worker held may stay without a lease until the next sweep.
        eventually(is_whole, 60, what="every invariant holds")

    def execute(self, statement: str) -> None:
        """Carry out a statement that has no rows."""
        self._connection.execute(statement.encode())

    def read(self, query: str, *arguments: Any) -> list[dict[str, Any]]:
        """Run a statement and return its rows; a connection that has broken is replaced once."""
        try:
            return self._read(query, arguments)
        except psycopg.OperationalError:
            self._connection.close()
            return self._read(query, arguments)

    def _read(self, query: str, arguments: tuple[Any, ...]) -> list[dict[str, Any]]:
        if self._connection.closed:
            self._connection = self._connect()
        cursor = self._connection.execute(query.encode(), arguments)
        return cursor.fetchall() if cursor.description else []

    def _connect(self) -> psycopg.Connection[DictRow]:
        return psycopg.connect(self.database_url, autocommit=True, row_factory=dict_row)

    def close(self) -> None:
        """End the processes, then the connections."""
        self.stack.end()
        self._connection.close()

    @contextmanager
    def no_catalogue(self) -> Iterator[None]:
        """Lock the published tools, so that a PLAN stage begins and stands still; worker starts wait too."""
        with psycopg.connect(self.database_url) as connection:
            connection.execute("LOCK TABLE tools IN ACCESS EXCLUSIVE MODE")
            yield

    def _worker_registry(self) -> WorkerRegistry:
        return WorkerRegistry(self.caller.database, self._lease)

    def _told(self, job_id: UUID) -> str:
        job, steps = self.job(job_id)
        shown = [(s["index"], s["tool_name"], s["status"], s["attempt"], s["error"], s["output"]) for s in steps]
        events = self.read("SELECT kind, data FROM events WHERE job_id = %s ORDER BY sequence", job_id)
        logs = [f"{path.name}:\n{last_lines(path, 15)}" for path in sorted(self.folder.glob("*.log"))]
        kinds = [(row["kind"], row["data"]) for row in events]
        return "\n".join([f"{job['status']}: {job['error']}", *map(str, shown), *map(str, kinds), *logs])


@contextmanager
def playing(folder: Path, database_url: str, broker_url: str, **options: Any) -> Iterator[Scene]:
    """A scene whose processes end with the block."""
    folder.mkdir(exist_ok=True)
    scene = Scene(folder, database_url, broker_url, **options)
    with scene.caller:
        try:
            yield scene
        finally:
            scene.close()


def _lines(ledger: Path) -> list[str]:
    return ledger.read_text("utf-8").splitlines() if ledger.exists() else []
