"""Lines of batches become jobs, never too many at once, and end with them: each line once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Json

from planq.shared.kernel.new_ids import new_id
from tests.support.batches import end_jobs, item, settled, stored_batch
from tests.support.servers import FUNCTIONS


class Batches:
    """The transitions of batches, over one connection."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.window(100)

    def window(self, jobs: int) -> None:
        """Let so many jobs of batches be unfinished at once."""
        self.connection.execute(
            f"CREATE OR REPLACE FUNCTION {FUNCTIONS}.planq_window(p_priority text) RETURNS int "  # type: ignore[arg-type]
            f"LANGUAGE sql AS 'SELECT {jobs}'"
        )

    def call(self, function: str, *arguments: Any) -> Any:
        marks = ", ".join(["%s"] * len(arguments))
        row = self.connection.execute(f"SELECT {function}({marks})", arguments).fetchone()  # type: ignore[arg-type]
        assert row is not None
        return row[0]

    def admit(self, most: int = 100) -> list[UUID]:
        """Admit lines, and return their jobs."""
        ids = sorted(new_id() for _ in range(most))
        return [row[0] for row in self.connection.execute("SELECT job_id FROM planq_admit_lines(%s)", (ids,))]

    def settle(self, most: int = 1000) -> int:
        return settled(self.connection, most)

    def batch(self, batch_id: UUID) -> dict[str, Any]:
        with self.connection.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute("SELECT * FROM batches WHERE id = %s", (batch_id,)).fetchone()
        assert row is not None
        return row

    def lines(self, batch_id: UUID) -> list[dict[str, Any]]:
        with self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(
                "SELECT * FROM batch_lines WHERE batch_id = %s ORDER BY line", (batch_id,)
            ).fetchall()

    def stands(self, batch_id: UUID) -> Counter[str]:
        return Counter(line["status"] for line in self.lines(batch_id))

    def jobs_of(self, batch_id: UUID) -> list[UUID]:
        return [line["job_id"] for line in self.lines(batch_id) if line["status"] == "admitted"]


@pytest.fixture
def batches(database_url: str) -> Iterator[Batches]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield Batches(connection)


def tenant(batches: Batches, name: str) -> str:
    batches.connection.execute("INSERT INTO tenants (id, name) VALUES (%s, %s)", (name, name))
    return name


def test_lines_become_jobs_up_to_the_window_and_the_batch_ends_with_the_last(batches: Batches) -> None:
    batches.window(4)
    batch = stored_batch(batches.connection, [item(str(n)) for n in range(6)])

    jobs = batches.admit()

    assert len(jobs) == 4
    assert [line["status"] for line in batches.lines(batch)] == ["admitted"] * 4 + ["valid"] * 2
    made = batches.connection.execute(
        "SELECT id, input, priority, batch_id, batch_line, expires_at - created_at > interval '1 second' "
        "FROM jobs ORDER BY batch_line"
    ).fetchall()
    assert [row[1:] for row in made] == [(str(n), "bulk", batch, n + 1, True) for n in range(4)]
    assert [row[0] for row in made] == batches.jobs_of(batch)
    told = batches.connection.execute("SELECT count(*) FROM events WHERE kind = 'job_submitted'").fetchone()
    assert told == (4,)
    assert batches.admit() == [], "the window is full"

    end_jobs(batches.connection, jobs[:2])
    assert batches.settle() == 2
    assert batches.settle() == 0, "each job is settled once"
    later = batches.admit()
    assert len(later) == 2
    end_jobs(batches.connection, [*jobs[2:], *later[:1]])
    end_jobs(batches.connection, later[1:], "failed")
    batches.settle()

    found = batches.batch(batch)
    assert {name: found[name] for name in ("status", "admitted", "completed", "failed", "cancelled")} == {
        "status": "completed",
        "admitted": 6,
        "completed": 5,
        "failed": 1,
        "cancelled": 0,
    }
    assert found["started_at"] < found["finished_at"]
    assert sorted(line["settled"] for line in batches.lines(batch)) == [1, 2, 3, 4, 5, 6]
    assert batches.lines(batch)[5]["error"]["code"] == "tool_error"


def test_a_line_whose_job_was_deleted_fails_and_its_batch_ends(batches: Batches) -> None:
    """Pins: the line stayed admitted, and its batch in progress, for ever."""
    limits = {"budget_usd": Decimal(20), "line_usd": Decimal(2)}
    batch = stored_batch(batches.connection, [item(str(n)) for n in range(4)], **limits)
    other = stored_batch(batches.connection, [item("other")], **limits)
    cancelling = stored_batch(batches.connection, [item("cancelled")])
    jobs = batches.admit()
    lost = [*batches.jobs_of(batch)[1:3], *batches.jobs_of(cancelling)]
    batches.connection.execute("UPDATE batches SET status = 'cancelling' WHERE id = %s", (cancelling,))
    error = Json({"code": "job_deleted"})
    assert batches.call("planq_fail_lost_lines", 10, error) == 0, "every line has its job"

    batches.connection.execute("DELETE FROM jobs WHERE id = ANY (%s)", (lost,))
    assert batches.call("planq_fail_lost_lines", 1, error) == 1
    assert batches.call("planq_fail_lost_lines", 10, error) == 1
    assert batches.call("planq_fail_lost_lines", 10, error) == 0, "each line fails once"

    assert [line["status"] for line in batches.lines(batch)] == ["admitted", "failed", "failed", "admitted"]
    assert [line["settled"] for line in batches.lines(batch)] == [None, 1, 2, None]
    assert batches.lines(batch)[1]["error"] == {"code": "job_deleted"}
    found = batches.batch(batch)
    assert (found["status"], found["failed"], found["reserved_usd"]) == ("in_progress", 2, Decimal(4))
    assert batches.stands(other) == {"admitted": 1}, "its job is there"
    assert batches.stands(cancelling) == {"admitted": 1}, "it ends as cancelled"

    end_jobs(batches.connection, [job for job in jobs if job not in lost])
    batches.settle()
    found = batches.batch(batch)
    assert (found["status"], found["completed"], found["failed"]) == ("completed", 2, 2)
    batches.call("planq_cancel_lines", None, 10)
    assert batches.stands(cancelling) == {"cancelled": 1}

    assert batches.call("planq_retry_batch", batch, "default")["lines"] == 2
    assert len(batches.admit()) == 2, "new jobs of both"


def test_a_batch_ends_with_its_last_line_also_where_that_is_lost(batches: Batches) -> None:
    batch = stored_batch(batches.connection, [item("1")])
    canary = stored_batch(batches.connection, [item(str(n)) for n in range(2)], canary=1)
    batches.admit()
    batches.connection.execute("DELETE FROM jobs")
    assert batches.call("planq_fail_lost_lines", 10, Json({"code": "job_deleted"})) == 2
    assert batches.batch(batch)["status"] == "completed"
    assert batches.batch(canary)["pause_reason"] == "canary"


def test_tenants_take_turns_and_so_do_the_batches_of_one(batches: Batches) -> None:
    other = tenant(batches, "other")
    large = stored_batch(batches.connection, [item("a") for _ in range(40)])
    second = stored_batch(batches.connection, [item("b") for _ in range(40)])
    small = stored_batch(batches.connection, [item("c", other) for _ in range(40)], tenant_id=other)

    batches.window(8)
    batches.admit()
    assert [len(batches.jobs_of(batch)) for batch in (large, second, small)] == [2, 2, 4]

    end_jobs(batches.connection, batches.jobs_of(small)[:3])
    batches.settle()
    batches.window(12)
    batches.admit()
    assert [len(batches.jobs_of(batch)) for batch in (large, second, small)] == [3, 3, 6]

    batches.connection.execute("UPDATE tenants SET is_disabled = true WHERE id = 'other'")
    batches.window(16)
    batches.admit()
    assert [len(batches.jobs_of(batch)) for batch in (large, second, small)] == [5, 5, 6]


def test_a_batch_stops_at_its_budget_and_goes_on_when_that_is_raised(batches: Batches) -> None:
    cap = Decimal("0.10")
    batch = stored_batch(
        batches.connection, [item(str(n)) for n in range(5)], line_usd=cap, budget_usd=Decimal("0.25")
    )

    first = batches.admit()
    assert len(first) == 2
    assert batches.batch(batch)["reserved_usd"] == 2 * cap
    assert batches.admit() == []
    assert batches.batch(batch)["paused_at"] is None, "what runs may give back what it does not use"

    end_jobs(batches.connection, first, usd=Decimal("0.06"))
    batches.settle()
    assert (batches.batch(batch)["reserved_usd"], batches.batch(batch)["spent_usd"]) == (0, Decimal("0.12"))
    (third,) = batches.admit()
    end_jobs(batches.connection, [third], usd=Decimal("0.09"))
    batches.settle()
    assert batches.admit() == []
    assert batches.batch(batch)["pause_reason"] == "budget"

    assert batches.call("planq_change_batch", batch, "default", "resume", None, None)["applied"]
    assert batches.admit() == []
    assert batches.batch(batch)["pause_reason"] == "budget", "the same budget does not suffice again"
    assert batches.call("planq_change_batch", batch, "default", "resume", Decimal(1), None)["applied"]
    rest = batches.admit()
    assert len(rest) == 2
    end_jobs(batches.connection, rest)
    batches.settle()
    assert batches.batch(batch)["status"] == "completed"


def test_after_the_canary_nothing_is_admitted_until_somebody_has_looked(batches: Batches) -> None:
    batch = stored_batch(batches.connection, [item(str(n)) for n in range(5)], canary=2)

    first = batches.admit()
    assert len(first) == 2
    assert batches.admit() == []
    end_jobs(batches.connection, first[:1])
    batches.settle()
    assert batches.batch(batch)["paused_at"] is None
    end_jobs(batches.connection, first[1:], "failed")
    batches.settle()

    assert batches.batch(batch)["pause_reason"] == "canary"
    assert batches.admit() == []
    assert batches.call("planq_change_batch", batch, "default", "resume", None, None)["applied"]
    assert len(batches.admit()) == 3


def test_a_paused_batch_admits_nothing(batches: Batches) -> None:
    batches.window(1)
    batch = stored_batch(batches.connection, [item(str(n)) for n in range(3)])
    jobs = batches.admit()
    assert batches.call("planq_change_batch", batch, "default", "pause") == {
        "found": True,
        "applied": True,
        "status": "in_progress",
    }
    assert not batches.call("planq_change_batch", batch, "default", "pause")["applied"]

    end_jobs(batches.connection, jobs)
    batches.settle()

    assert batches.admit() == []
    assert batches.stands(batch) == {"completed": 1, "valid": 2}
    assert batches.call("planq_change_batch", batch, "default", "resume", None, None)["applied"]
    assert len(batches.admit()) == 1


def test_a_cancelled_batch_keeps_what_has_ended_and_ends_the_rest_bit_by_bit(batches: Batches) -> None:
    batches.window(4)
    batch = stored_batch(batches.connection, [item(str(n)) for n in range(9)])
    first = batches.admit()
    end_jobs(batches.connection, first[:1])
    batches.settle()
    batches.admit()
    end_jobs(batches.connection, first[1:2])  # nobody has settled it

    assert batches.call("planq_change_batch", batch, "default", "cancel") == {
        "found": True,
        "applied": True,
        "status": "cancelling",
    }
    assert batches.admit() == []
    ended: list[str] = []
    parts = 0
    while (part := batches.call("planq_cancel_lines", None, 2))["applied"]:
        ended += part["ended"]
        parts += 1

    assert len(set(ended)) == len(ended) == 3
    assert parts == 2 + 1, "two parts of jobs, and one of lines that have become none"
    assert batches.stands(batch) == {"completed": 2, "cancelled": 7}
    found = batches.batch(batch)
    assert (found["status"], found["completed"], found["cancelled"]) == ("cancelled", 2, 7)
    assert sorted(line["settled"] for line in batches.lines(batch)) == list(range(1, 10))
    assert batches.settle() == 0
    assert not batches.call("planq_change_batch", batch, "default", "cancel")["applied"]
    assert not batches.call("planq_retry_batch", batch, "default")["applied"]


def test_a_batch_ends_by_a_cancel_though_somebody_has_removed_its_jobs(batches: Batches) -> None:
    batch = stored_batch(batches.connection, [item(str(n)) for n in range(3)], line_usd=Decimal(1))
    admitted = batches.admit()
    batches.connection.execute("DELETE FROM jobs WHERE id = ANY (%s)", [admitted[:2]])

    batches.call("planq_change_batch", batch, "default", "cancel")
    parts = [batches.call("planq_cancel_lines", None, 2)["applied"] for _ in range(4)]

    assert parts == [True, True, False, False]
    assert batches.stands(batch) == {"cancelled": 3}
    found = batches.batch(batch)
    assert (found["status"], found["cancelled"], found["reserved_usd"]) == ("cancelled", 3, 0)


def test_failed_lines_alone_are_tried_again_by_new_jobs(batches: Batches) -> None:
    batch = stored_batch(batches.connection, [item(str(n)) for n in range(4)])
    jobs = batches.admit()
    end_jobs(batches.connection, jobs[:2], "failed", Decimal("0.5"))
    end_jobs(batches.connection, jobs[2:])
    batches.settle()
    before = batches.lines(batch)

    assert batches.call("planq_retry_batch", batch, "default")["lines"] == 2
    assert batches.batch(batch)["status"] == "in_progress"
    again = batches.admit()
    assert len(again) == 2
    assert not set(again) & set(jobs)
    end_jobs(batches.connection, again, usd=Decimal("0.25"))
    batches.settle()

    after = batches.lines(batch)
    assert after[2:] == before[2:], "what has succeeded is not touched"
    assert [(line["status"], line["tries"], line["cost_usd"]) for line in after[:2]] == [
        ("completed", 2, Decimal("0.25"))
    ] * 2
    assert min(line["settled"] for line in after[:2]) > max(line["settled"] for line in before)
    found = batches.batch(batch)
    assert (found["status"], found["completed"], found["failed"], found["admitted"]) == ("completed", 4, 0, 4)
    assert found["spent_usd"] == Decimal("1.5"), "what the failed tries have used is spent"
    assert not batches.call("planq_retry_batch", batch, "default")["applied"]


def test_partial_lines_are_counted_beside_and_tried_again_as_failed_ones_are(batches: Batches) -> None:
    batch = stored_batch(batches.connection, [item(str(n)) for n in range(4)])
    jobs = batches.admit()
    end_jobs(batches.connection, jobs[:1], "failed")
    end_jobs(batches.connection, jobs[1:3], "partial")
    end_jobs(batches.connection, jobs[3:])
    batches.settle()
    assert counted(batches, batch) == ("completed", 3, 2, 1)

    # One is resumed, and succeeds; one runs again when the batch is retried.
    batches.connection.execute("UPDATE jobs SET is_joined = false, error = NULL WHERE id = %s", (jobs[1],))
    batches.settle()
    assert counted(batches, batch) == ("completed", 3, 1, 1)
    batches.connection.execute("UPDATE jobs SET is_joined = false WHERE id = %s", (jobs[2],))
    assert batches.call("planq_retry_batch", batch, "default")["lines"] == 1
    assert counted(batches, batch) == ("in_progress", 3, 1, 0)
    batches.settle()
    assert batches.call("planq_retry_batch", batch, "default")["lines"] == 1
    assert counted(batches, batch) == ("in_progress", 2, 0, 0)

    assert [line["status"] for line in batches.lines(batch)] == ["valid", "completed", "valid", "completed"]
    again = batches.admit()
    end_jobs(batches.connection, again[:1])
    end_jobs(batches.connection, again[1:], "partial")
    batches.settle()
    assert counted(batches, batch) == ("completed", 4, 1, 0)
    assert [line["tries"] for line in batches.lines(batch)] == [2, 1, 2, 1]


def test_incomplete_lines_are_counted_beside_and_not_tried_again(batches: Batches) -> None:
    batch = stored_batch(batches.connection, [item(str(n)) for n in range(2)])
    jobs = batches.admit()
    end_jobs(batches.connection, jobs[:1], "incomplete")
    end_jobs(batches.connection, jobs[1:])
    batches.settle()
    assert (*counted(batches, batch), batches.batch(batch)["incomplete"]) == ("completed", 2, 0, 0, 1)
    assert batches.call("planq_retry_batch", batch, "default")["lines"] == 0

    batches.connection.execute("UPDATE jobs SET is_joined = false, error = NULL WHERE id = %s", (jobs[0],))
    batches.settle()
    assert batches.batch(batch)["incomplete"] == 0, "it was resumed, and its answer is whole"


def counted(batches: Batches, batch_id: UUID) -> tuple[Any, ...]:
    found = batches.batch(batch_id)
    return tuple(found[name] for name in ("status", "completed", "partial", "failed"))


def test_a_resumed_job_ends_its_line_anew_and_one_that_was_replaced_ends_none(batches: Batches) -> None:
    batch = stored_batch(batches.connection, [item("a"), item("b")])
    jobs = batches.admit()
    end_jobs(batches.connection, jobs, "failed")
    batches.settle()

    batches.connection.execute("UPDATE jobs SET is_joined = false, status = 'completed', error = NULL")
    batches.settle()
    assert batches.batch(batch)["completed"] == 2
    assert batches.batch(batch)["failed"] == 0

    batches.connection.execute("UPDATE jobs SET is_joined = false, status = 'failed' WHERE id = %s", (jobs[0],))
    batches.settle()
    batches.call("planq_retry_batch", batch, "default")
    batches.connection.execute("UPDATE jobs SET is_joined = false, status = 'completed' WHERE id = %s", (jobs[0],))
    batches.settle()
    assert batches.stands(batch) == {"valid": 1, "completed": 1}
    assert batches.batch(batch)["status"] == "in_progress"


def test_what_a_line_has_used_is_that_of_its_job_and_of_all_below_it(batches: Batches) -> None:
    batch = stored_batch(batches.connection, [item("a")])
    (job,) = batches.admit()
    batches.connection.execute(
        "INSERT INTO jobs (id, tenant_id, root_job_id, parent_job_id, depth, strategy, status, model, limits, input, "
        "cost_usd, input_tokens, finished_at, is_joined) "
        "VALUES (%s, 'default', %s, %s, 1, 'plan', 'completed', 'offline', '{}', '', 0.5, 100, now(), true)",
        (new_id(), job, job),
    )
    end_jobs(batches.connection, [job], usd=Decimal("0.25"), tokens=5)
    batches.settle()
    assert batches.batch(batch)["spent_tokens"] == 105
    (line,) = batches.lines(batch)
    assert (line["cost_usd"], line["input_tokens"], line["output_tokens"]) == (Decimal("0.75"), 105, 0)


def test_nobody_moves_a_batch_of_another_tenant(batches: Batches) -> None:
    batch = stored_batch(batches.connection, [item("a")])
    before = batches.batch(batch)
    assert batches.call("planq_change_batch", batch, "other", "cancel")["found"] is False
    assert batches.call("planq_change_batch", batch, "other", "pause")["found"] is False
    assert batches.call("planq_retry_batch", batch, "other")["found"] is False
    assert batches.call("planq_change_batch", batch, "other", "resume", Decimal(1), None)["found"] is False
    assert batches.batch(batch) == before


def test_the_end_of_a_batch_is_told_to_whoever_wants_to_know(batches: Batches) -> None:
    batches.connection.execute(
        "INSERT INTO endpoints (id, tenant_id, url, events) VALUES (%s, 'default', 'https://a.example', '{batch.*}')",
        (new_id(),),
    )
    batch = stored_batch(batches.connection, [item("a")], name="nightly")
    other = stored_batch(batches.connection, [item("a")])
    batches.call("planq_change_batch", other, "default", "cancel")
    batches.call("planq_cancel_lines", None, 10)
    end_jobs(batches.connection, batches.admit(), "partial")
    batches.settle()

    told = batches.connection.execute(
        "SELECT event, batch_id, body::json->'data'->>'name', body::json->'data'->'request_counts'->>'completed', "
        "body::json->'data'->'counts'->>'partial' FROM deliveries ORDER BY created_at"
    ).fetchall()
    assert told == [("batch.cancelled", other, "", "0", "0"), ("batch.completed", batch, "nightly", "1", "1")]
