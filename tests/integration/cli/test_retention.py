"""`planq retention` against PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner, Result

from planq.deploy.cli.main import create_app
from tests.support.ended import ended

Planq = Callable[..., Result]

OTHERS = (
    "INSERT INTO conversations (id, tenant_id, channel, thread, created_at)"
    " VALUES (uuidv7(-interval '9 days'), 'default', 'api', 't', now() - interval '9 days')",
    "INSERT INTO conversation_messages (conversation_id, sequence, id, tenant_id, channel, direction)"
    " SELECT id, n, uuidv7(-interval '8 days'), tenant_id, channel, 'inbound'"
    " FROM conversations, generate_series(1, 2) n",
    "INSERT INTO deliveries (id, tenant_id, recipient, target, event, body, status, finished_at)"
    " VALUES (planq_new_id(), 'default', 'a', 'https://a', 'job.completed', '', 'sent', now() - interval '31 days')",
    "INSERT INTO skills (tenant_id, name, version, text, digest, created_at)"
    " SELECT 'default', 'rhyme', n, '', '', now() - interval '370 days' FROM generate_series(1, 2) n",
    "INSERT INTO payloads (hash, tenant_id, size, body, created_at)"
    " VALUES ('\\x00', 'default', 1, '\\x00', now() - interval '2 hours')",
)
"""What goes beside jobs: the command removed none of it."""


@pytest.fixture
def planq(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planq:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("PLANQ_DATA", str(tmp_path / "no-data"))
    monkeypatch.setenv("PLANQ_RETAIN_COMPLETED_DAYS", "0.5")
    monkeypatch.setenv("PLANQ_RETAIN_CANCELLED_DAYS", "none")
    monkeypatch.setenv("PLANQ_RETAIN_CONVERSATIONS_DAYS", "7")

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(create_app(), ["retention", *arguments])

    return run


def document(result: Result) -> dict[str, Any]:
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.newest_server
def test_what_is_due_is_counted_then_removed_then_gone(planq: Planq, database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        for status in ("completed", "cancelled", "failed"):
            ended(connection, status, days=89, count=120, steps=1)
        for statement in OTHERS:
            connection.execute(statement.encode())
        oldest = connection.execute("SELECT min(finished_at) FROM jobs WHERE status = 'completed'").fetchone()
    assert oldest is not None

    due = document(planq("--dry-run", "--json"))
    removed = document(planq("--json"))
    again = planq()

    when = oldest[0].isoformat()
    assert due == {
        "dry_run": True,
        "jobs": {
            "cancelled": {"kept_days": None, "due": 0, "or_more": False, "oldest": None},
            "completed": {"kept_days": 0.5, "due": 120, "or_more": False, "oldest": when},
            "failed": {"kept_days": 90.0, "due": 0, "or_more": False, "oldest": None},
        },
        "batches": {"due": 0, "or_more": False},
        "messages": {"kept_days": 7.0, "due": 2, "or_more": False},
        "conversations": {"kept_days": 7.0, "due": 0, "or_more": False},
        "deliveries": {"kept_days": 30.0, "due": 1, "or_more": False},
        "versions": {"kept_days": 365.0, "due": 1, "or_more": False},
        "large_outputs": {"due": 1, "or_more": False},
    }
    assert removed == {
        "dry_run": False,
        "jobs": {
            "cancelled": {"kept_days": None, "removed": 0},
            "completed": {"kept_days": 0.5, "removed": 120},
            "failed": {"kept_days": 90.0, "removed": 0},
        },
        "batches": {"removed": 0},
        "messages": {"kept_days": 7.0, "removed": 2},
        "conversations": {"kept_days": 7.0, "removed": 1},
        "deliveries": {"kept_days": 30.0, "removed": 1},
        "versions": {"kept_days": 365.0, "removed": 1},
        "large_outputs": {"removed": 1},
    }
    assert [" ".join(line.split()) for line in again.stdout.splitlines()] == [
        "cancelled kept for ever 0 removed",
        "completed kept for 0.5 days 0 removed",
        "failed kept for 90 days 0 removed",
        "batches kept as jobs that ended so 0 removed",
        "messages kept for 7 days 0 removed",
        "conversations kept for 7 days 0 removed",
        "deliveries kept for 30 days 0 removed",
        "versions kept for 365 days 0 removed",
        "large outputs kept while a job has them 0 removed",
    ]


def test_a_length_that_cannot_be_is_refused_with_what_to_do(planq: Planq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANQ_RETAIN_FAILED_DAYS", "0")

    result = planq("--json")

    assert result.exit_code == 2
    message = json.loads(result.stdout)["error"]["message"]
    assert "PLANQ_RETAIN_FAILED_DAYS" in message
    assert "0.001 is 86 seconds" in message
    assert "`none`" in message
