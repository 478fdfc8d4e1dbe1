"""Outputs of fifty megabytes: loaded only by the step that needs them, never by a look at the job or its answer."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import Pool
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database
from planq.shared.platform.errors import StorageUnavailable
from planq.shared.platform.values.preview import PREVIEW_CHARS
from planq.shared.subjects.payloads.contract import Payloads
from planq.shared.subjects.payloads.objects import open_objects
from planq.shared.subjects.payloads.store import PayloadStore
from planq.worker.tools import tool
from tests.support.harness import Harness, ScriptedModel, make_tool

MB = 1024 * 1024
TITLE = "fifty megabytes"


class Counting:
    """Real payloads, and what was put and loaded."""

    def __init__(self, behind: Payloads) -> None:
        self.behind = behind
        self.puts = 0
        self.loads = 0

    async def put(self, tenant_id: str, body: bytes, preview: bytes) -> bytes:
        self.puts += 1
        return await self.behind.put(tenant_id, body, preview)

    async def get(self, tenant_id: str, digest: bytes) -> bytes:
        self.loads += 1
        return await self.behind.get(tenant_id, digest)


@tool(effect="pure")
async def dump(megabytes: int) -> dict[str, Any]:
    """Return so much text, a title and some rows."""
    return {"title": TITLE, "text": "x" * (megabytes * MB), "rows": [{"id": n} for n in range(3)]}


@tool(effect="pure")
async def measure(value: Any) -> dict[str, Any]:
    """Return how large a value is."""
    return {"length": len(value) if isinstance(value, (str, list, dict)) else -1}


@tool(effect="pure")
async def echo(value: Any = None) -> dict[str, Any]:
    """Return what was given."""
    return {"value": value}


TOOLS = (dump, measure, echo)


def plan(*calls: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"calls": [{"tool_name": name, "arguments": arguments, **more.get(name, {})} for name, arguments in calls]}


@pytest.fixture(params=["database", "folder"])
def play(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Callable[..., Any]:
    """`play(scenario)`: run `scenario(harness, counting)` with each kind of storage."""
    address = "" if request.param == "database" else f"file://{tmp_path}/payloads"

    def run(scenario: Any, tools: Any = TOOLS) -> Any:
        async def inside() -> Any:
            database = Database(database_url, max_connections=5)
            await database.open()
            try:
                payloads = Counting(PayloadStore(database, open_objects(address)))
                harness = Harness(
                    database,
                    ScriptedModel(),
                    [make_tool(one) for one in tools],
                    payloads=payloads,
                    max_output_bytes=64 * MB,
                )
                await harness.open()
                return await scenario(harness, payloads)
            finally:
                await database.close()

        return asyncio.run(inside())

    return run


def test_fifty_megabytes_pass_through_a_plan_and_only_the_step_that_needs_them_loads_them(
    play: Callable[..., Any],
) -> None:
    async def scenario(harness: Harness, payloads: Counting) -> None:
        calls = plan(
            ("dump", {"megabytes": 50}),
            ("echo", {"value": "{{ $0.output.title }}, row {{ $0.output.rows[1].id }}"}),
            ("measure", {"value": "$0.output.text"}),
            ("echo", {}),
        )
        calls["calls"][3]["depends_on"] = [0]
        job_id = await harness.submit("", plan=calls)
        loads: dict[int, int] = {}
        peaks: dict[int, int] = {}
        while harness.published:
            wake = harness.published.pop(0)
            if bool(wake.more):
                harness.published += wake.each
                continue
            before, index = payloads.loads, wake.ref.index if not wake.ref.is_stage else -1
            harness.dispatcher.wind_down()  # one step a turn: nothing is fused
            tracemalloc.start()
            await harness.run_one(wake)
            peaks[index] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            loads[index] = payloads.loads - before

        job, steps = await harness.requests.job("default", job_id)
        assert (job["status"], [step["status"] for step in steps]) == ("completed", ["succeeded"] * 4)
        assert steps[1]["output"] == {"value": f"{TITLE}, row 1"}
        assert steps[2]["output"] == {"length": 50 * MB}
        assert (payloads.puts, {index for index, count in loads.items() if count}) == (1, {2})
        assert loads[2] == 1
        small = {index: peak for index, peak in peaks.items() if index not in (0, 2)}
        assert max(small.values()) < 5 * MB, f"planning, the small steps and the answer: {peaks}"
        assert peaks[2] > 50 * MB

    play(scenario)


def test_a_look_at_the_job_and_its_answer_bring_no_large_output(play: Callable[..., Any]) -> None:
    async def scenario(harness: Harness, payloads: Counting) -> None:
        calls = (("dump", {"megabytes": 20}), ("measure", {"value": "$0.output.text"}))
        job, steps = await harness.run("", plan=plan(*calls))
        loads = payloads.loads
        tracemalloc.start()
        job, steps = await harness.requests.job("default", job["id"])
        assert tracemalloc.get_traced_memory()[1] < MB
        tracemalloc.stop()
        assert steps[0]["output"] is None
        assert steps[0]["output_bytes"] > 20 * MB
        assert steps[1]["called_arguments"] == {"value": "$0.output.text"}, "as planned: too large to show"
        (_, findings), *_ = harness.model.asked
        shown, whole = findings.results[0], findings.results[1]
        assert shown.shortened_from == steps[0]["output_bytes"]
        assert shown.output["title"] == TITLE
        assert len(json.dumps(shown.output)) < 1.2 * PREVIEW_CHARS
        assert (whole.output, whole.shortened_from) == ({"length": 20 * MB}, None)
        assert payloads.loads == loads

    play(scenario)


def test_a_missing_path_of_a_large_output_is_told_in_the_same_words_without_loading_it(
    play: Callable[..., Any],
) -> None:
    @tool(effect="pure")
    async def strict(value: str) -> dict[str, Any]:
        """Take a text."""
        return {"value": value}

    async def scenario(harness: Harness, payloads: Counting) -> None:
        messages = []
        for megabytes in (0, 1):
            calls = (("dump", {"megabytes": megabytes}), ("strict", {"value": "$0.output.missing"}))
            _, steps = await harness.run("", plan=plan(*calls))
            messages.append(steps[1]["error"]["message"])
        assert "found no 'missing' in an object (fields there: 'title', 'text', 'rows')" in messages[0]
        assert messages[0] == messages[1]
        assert (payloads.puts, payloads.loads) == (1, 0)

    play(scenario, (*TOOLS, strict))


def test_a_whole_list_of_a_large_output_and_a_text_around_a_large_part(play: Callable[..., Any]) -> None:
    @tool(effect="pure")
    async def rows() -> list[dict[str, Any]]:
        """Return many rows."""
        return [{"id": n, "name": f"row {n}"} for n in range(50_000)]

    async def scenario(harness: Harness, payloads: Counting) -> None:
        _, steps = await harness.run(
            "",
            plan=plan(
                ("rows", {}),
                ("measure", {"value": "$0.output.result"}),
                ("measure", {"value": "all: {{ $0.output.result }}"}),
                ("echo", {"value": ["$0.output.result.49999.name", "{{ $0.output.result.0 }}"]}),
            ),
        )
        assert [step["status"] for step in steps] == ["succeeded"] * 4, steps
        assert steps[1]["output"] == {"length": 50_000}
        text = json.dumps([{"id": n, "name": f"row {n}"} for n in range(50_000)], separators=(",", ":"))
        assert steps[2]["output"] == {"length": len("all: ") + len(text)}
        assert steps[3]["output"] == {"value": ["row 49999", '{"id":0,"name":"row 0"}']}
        assert payloads.loads == 2

    play(scenario, (*TOOLS, rows))


def test_references_cannot_multiply_a_large_output(play: Callable[..., Any]) -> None:
    async def scenario(harness: Harness, _: Counting) -> None:
        calls = (("dump", {"megabytes": 30}), ("measure", {"value": ["$0.output.text"] * 3}))
        _, steps = await harness.run("", plan=plan(*calls))
        assert (steps[1]["status"], steps[1]["error"]["code"]) == ("failed", "invalid_arguments")
        assert "more than" in steps[1]["error"]["message"]

    play(scenario)


def test_a_death_between_the_payload_and_the_end_of_the_step_leaves_only_what_is_collected(
    play: Callable[..., Any],
) -> None:
    """The bytes are stored, the worker dies: the step runs again elsewhere, with another output this time."""
    count = iter(range(10))

    @tool(effect="pure")
    async def different() -> dict[str, Any]:
        """Return another large text each time."""
        return {"text": f"{next(count)}" * MB}

    class Died(BaseException):
        """The process is gone."""

    async def scenario(harness: Harness, payloads: Counting) -> None:
        job_id = await harness.submit("", plan=plan(("different", {})))
        harness.dispatcher.wind_down()
        await harness.run_one(harness.published.pop(0))
        (wake,) = harness.published
        harness.published.clear()
        succeed = harness.store.succeed_step

        async def die(*_: Any, **named: Any) -> Any:
            raise Died

        harness.store.succeed_step = die  # type: ignore[method-assign]
        with pytest.raises(Died):
            await harness.run_one(wake)
        harness.store.succeed_step = succeed  # type: ignore[method-assign]
        async with harness.database.connection() as connection:
            await connection.execute("UPDATE steps SET status = 'ready', worker_id = NULL, wake_at = now()")
        harness.published.append(Wake(StepRef(job_id, 0, 0), Pool.IO, "different", 2))
        await harness.drain()
        _, (step,) = await harness.requests.job("default", job_id)
        assert (step["status"], step["attempt"], payloads.puts) == ("succeeded", 2, 2)

        store = payloads.behind
        assert isinstance(store, PayloadStore)
        async with harness.database.connection() as connection:
            for table in ("payloads", "payload_objects"):
                await connection.execute(f"UPDATE {table} SET created_at = now() - interval '2 hours'".encode())
        assert await store.collect(10) == 1
        async with harness.database.connection() as connection:
            rows = await (await connection.execute("SELECT hash FROM payloads")).fetchall()
        assert [row["hash"] for row in rows] == [step["payload_hash"]]
        assert b"1" * MB in await store.get("default", step["payload_hash"])

    play(scenario, (different,))


def test_a_step_whose_input_cannot_be_read_waits_for_it_and_does_not_call_its_tool(play: Callable[..., Any]) -> None:
    """Even an unsafe one: nothing has happened yet."""
    called: list[int] = []

    @tool(effect="unsafe")
    async def send(value: str) -> dict[str, int]:
        """Do something once."""
        called.append(len(value))
        return {"sent": len(value)}

    async def scenario(harness: Harness, payloads: Counting) -> None:
        get, failures = payloads.get, iter([True, True])

        async def away(tenant_id: str, digest: bytes) -> bytes:
            if next(failures, False):
                raise StorageUnavailable("the storage is away")
            return await get(tenant_id, digest)

        payloads.get = away  # type: ignore[method-assign]
        job_id = await harness.submit(
            "", plan=plan(("dump", {"megabytes": 1}), ("send", {"value": "$0.output.text"}))
        )
        await harness.drain()
        for attempt in (2, 3):
            _, steps = await harness.requests.job("default", job_id)
            assert (steps[1]["status"], steps[1]["error"]["code"], called) == ("ready", "storage_unavailable", [])
            harness.published.append(Wake(StepRef(job_id, 0, 1), Pool.IO, "send", attempt))
            await harness.drain()
        _, steps = await harness.requests.job("default", job_id)
        assert (steps[1]["status"], steps[1]["attempt"], called) == ("succeeded", 3, [MB])

    play(scenario, (*TOOLS, send))


def test_keys_that_are_no_texts_are_found_as_they_stand_in_the_json(play: Callable[..., Any]) -> None:
    @tool(effect="pure", output_schema={"type": "object", "properties": {"by": {}, "text": {}}})
    async def numbered() -> dict[str, Any]:
        """Return an object with numbers for keys."""
        return {"by": {1: "one", 2: "two"}, "text": "x" * MB}

    async def scenario(harness: Harness, payloads: Counting) -> None:
        _, steps = await harness.run("", plan=plan(("numbered", {}), ("echo", {"value": "$0.output.by.1"})))
        assert steps[1]["output"] == {"value": "one"}
        assert payloads.loads == 0

    play(scenario, (*TOOLS, numbered))


def test_a_large_artifact_is_kept_as_a_payload(play: Callable[..., Any]) -> None:
    @tool(effect="pure")
    async def report() -> dict[str, Any]:
        """Return a large artifact."""
        return {"artifact_id": "big", "artifact": {"text": "x" * MB}, "_metadata": {"skill_id": "s"}}

    async def scenario(harness: Harness, payloads: Counting) -> None:
        _, (step,) = await harness.run("", plan=plan(("report", {})))
        stored = await harness.requests.artifact("default", "big")
        assert (stored["body"], stored["payload_hash"]) == (None, step["payload_hash"])
        assert json.loads(await payloads.get("default", step["payload_hash"]))["artifact_id"] == "big"

    play(scenario, (report,))


def test_a_step_whose_output_does_not_fit_its_tenant_fails_and_stores_nothing(play: Callable[..., Any]) -> None:
    async def scenario(harness: Harness, counting: Counting) -> Any:
        async with harness.database.connection() as connection:
            await connection.execute(
                b"UPDATE tenants SET config = '{\"max_stored_bytes\": 1500000}' WHERE id = 'default'"
            )
        job, steps = await harness.run(plan=plan(("dump", {"megabytes": 1}), ("dump", {"megabytes": 2})))
        kept = await harness.database.fetch_one("stored_bytes", tenant_id="default", most=0)
        return job["status"], [step["error"] and step["error"]["code"] for step in steps], kept

    status, codes, kept = play(scenario)

    assert (status, codes) == ("completed", [None, "storage_full"])
    assert MB < kept["bytes"] < kept["most"] == 1_500_000
