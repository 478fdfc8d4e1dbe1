"""No statement touches the rows of a tenant without naming it, and what may is listed here with its reason.

Every statement and every SQL function is read. What callers' requests reach has no exceptions but
those of `ALL_TENANTS`. The engine's own work is done by keys: whoever holds a job's id there has it from a claim,
from a wake-up or from a row, never from a caller.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from sqlalchemy import Uuid
from sqlmodel import SQLModel

from planq.shared.kernel.schema_version import with_lists
from planq.shared.platform.database import named
from planq.shared.platform.sql_files import SHARED, is_query, sql_files
from planq.shared.schema import tables
from tests.support.selects import select_texts
from tests.support.sql_tenancy import functions, untied

ROOT = Path(tables.__file__).parents[2]
TABLES = {
    table.name: frozenset(column.name for column in table.columns if isinstance(column.type, Uuid)) | {"children"}
    for table in SQLModel.metadata.tables.values()
    if "tenant_id" in table.columns
}

ENGINE_FILES = {
    "actions": "what somebody asked for all jobs of a filter, each with the tenant of the action",
    "batches/batches": "lines that are due of all tenants; what people ask of a batch names its tenant",
    "budget": "what a claim reserves, by the claim's job and its tree",
    "children": "a step delegates and joins, by the claim's job and its children",
    "batches/deferred": "of a claim's job, or of a provider's batch that a worker holds",
    "claim": "work is claimed by the ids of a wake-up, or of whatever is due",
    "load": "a step ends, by its claim, or a window of any tenant's job is opened: the caller holds the job's row",
    "finish": "an attempt ends, by its claim",
    "unlock": "an attempt has ended, and its caller holds the job's row",
    "close": "an attempt has ended, and its caller holds the job's row",
    "outcome": "of a step that has just ended",
    "offers": "a wake-up that a worker could not claim, by its ids, or what a sweep has found of all tenants",
    "plan": "a stage ends with a plan, by its claim",
    "progress": "a step that runs, by its claim",
    "stage": "a stage ends, by its claim",
    "suspects": "what a lost worker held, by rows that the sweep has found",
    "sweep": "what is due of all tenants",
    "wait": "a step waits, by its claim; a question is answered by its tenant's (planq_answer_question)",
}
"""Files of functions that workers call, or a function that holds the row of a job which it found by its tenant."""

ENGINE = {
    "planq_claim_deliveries": "a worker takes what is due of all tenants, each with its own tenant's endpoint",
    "planq_end_delivery": "an attempt that this worker has claimed",
    "chats_of_turns": "jobs that this worker carries out, each in a conversation of its own tenant",
    "note_part": "an attempt that this worker has claimed",
    "planq_drop_deliveries": "its caller has found them, of one tenant or as what is due",
    "planq_end_tree": "its caller holds the job's row",
    "planq_below": "its caller holds the row of the job above",
    "planq_end_pause": "its caller holds the job's row",
    "planq_reopen_job": "its caller holds the job's row",
    "planq_place_message": "its caller holds the conversation's row, and jobs are those of its messages",
    "planq_queued_turns": "its caller holds the conversation's row",
    "planq_delete_parts": "what is deleted with the jobs of a statement",
    "planq_count_message": "its caller holds the conversation's row",
    "planq_begin_turn": "its caller holds the conversation's row",
    "planq_write_calls": "its caller holds the conversation's row and has settled the job",
    "planq_note_outcome": "of a claim's job",
    "planq_merged": "of a claim's job and its conversation",
    "planq_note_step": "of a claim's job",
    "planq_first_failure": "its caller holds the job's row",
    "abandon_step": "an attempt that this worker claimed",
    "approvals": "of a claim's job and its tree",
    "child_outcomes": "of a claim's step and the children that it has made",
    "holds_step": "asks for a claim",
    "keep_traceback": "of a claim, by its attempt",
    "heartbeat": "whether this worker holds anything",
    "held_work": "what one worker holds",
    "return_wakes": "gives back wake-ups that a sweep has taken",
    "frame_of_orchestration": "of a claim's job",
    "look_at_orchestration": "of a claim's job",
    "lock_orchestration": "of a claim's job",
    "journal_orchestration": "of a claim's job",
    "journal_refusal": "of a claim's job",
    "tree_usage": "of a claim's job and those below it",
    "model_of_job": "of a claim's job",
    "charge_schedules": "of jobs that retention holds",
    "count_old_deliveries": "what ended long enough ago, of all tenants",
    "delete_old_deliveries": "what ended long enough ago, of all tenants",
    "delete_purgeable_jobs": "of jobs that retention holds",
    "lock_purgeable_jobs": "steps of jobs of a tenant that retention has found",
    "tenants_of_versions": "the tenants for which retention looks, one by one",
    "watch_steps": "attempts that this worker carries out",
    "write_texts": "of claims' jobs; a piece brings the tenant of its claim",
}
"""What only workers ask for, by keys of what they hold."""

ALL_TENANTS = {
    "broken_invariants": "a check of the whole database",
    "awaited_tools": "numbers of a deployment, for its operator",
    "missed_tools": "a sweep",
    "tidy_stored_bytes": "a sweep, each change to the number of its tenant",
    "collect_payloads": "the collector of unused payloads, each compared within its tenant",
    "count_objects": "how many objects the whole installation has, for `planq doctor`",
    "count_unused_payloads": "as collect_payloads does, each compared within its tenant",
    "count_unfinished": "numbers of a deployment, for its operator",
    "forget_places": "what processes have left that are gone",
    "forget_rate_marks": "marks that count for nobody any more",
    "drop_abandoned_uploads": "a sweep",
    "due_batches": "a sweep",
    "due_timers": "a sweep",
    "ended_jobs": "who waits has looked at the job as its tenant's before",
    "events_ahead": "a check of the whole database",
    "fresh_events": "one look for all streams, each of which has looked at its job as its tenant's before",
    "troubled_channels": "numbers of a deployment, for its operator",
    "expired_jobs": "a sweep",
    "expired_plans": "a sweep",
    "expired_questions": "a sweep",
    "tidy_secrets": "a sweep",
    "take_action": "a sweep; all else names the tenant of the action that it returns",
    "tidy_deferred_results": "a sweep",
    "tidy_insights": "what is due of all tenants",
    "tidy_workers": "workers are nobody's",
    "forget_objects": "the collector of unused objects, by where they lie",
    "tidy_schedules": "a sweep",
    "tidy_suspects": "a sweep",
    "tidy_texts": "a sweep",
    "jobs_to_learn_from": "a look at the event log; what a job teaches goes to the tenant of its row",
    "keep_places": "what one API process holds, of all tenants",
    "lost_attempts": "a sweep",
    "lost_stages": "a sweep",
    "lost_steps": "a sweep",
    "events_held_seconds": "one number of the whole log, for operators",
    "secret_keys_in_use": "numbers of a deployment, for its operator",
    "mark_objects": "the collector of unused objects, by where they lie",
    "planq_receive_messages": "messages of several tenants, each in a conversation of its own",
    "note_suspects": "a sweep; the tenant is the job's",
    "stop_schedule": "of a schedule that a sweep has found",
    "secrets_under_other_keys": "the operator changes master keys; each secret is opened as its own tenant's",
    "sweep_look": "a sweep",
    "unanswered_wakes": "a sweep",
    "unserved_ends": "a sweep",
    "wake_offered": "a sweep",
    "woken_jobs": "a sweep",
    "planq_learn": "what that look has found, each job with its own tenant",
    "planq_tally": "numbers of a deployment, for its operator",
    "planq_tally_calls": "numbers of a deployment, for its operator",
    "planq_tally_events": "numbers of a deployment, for its operator",
    "take_batch": "what is due of all tenants; all else names the tenant that it returns",
    "planq_serve_ends": "does the same whoever asks, for jobs that have ended, and tells nothing of them",
    "planq_settle_turn": "does the same whoever asks, for a job that has ended, and tells nothing of it",
}
"""What looks at all tenants on purpose, and shows a caller nothing of it."""

FOR_WORKERS = {
    "actions/sweep.py",
    "batches/sweep.py",
    "batches/provider_store.py",
    "insights/learning.py",
    "orchestrations/store.py",
    "retention/store.py",
    "streams/store.py",
    "webhooks/deliveries.py",
}
"""The modules of subjects that serve workers; all others serve callers too."""


def _queries() -> Mapping[str, str]:
    texts = [file.read_text("utf-8") for file in sql_files() if is_query(file)]
    return {name: statement.decode() for name, statement in named(texts).items()}


def _functions() -> Mapping[str, tuple[str, str]]:
    """Return the bodies of the functions and the names of their files, by name."""
    files = [file for file in sql_files() if not is_query(file)]
    return {
        name: (_room(file), body)
        for file in files
        for name, body in functions(with_lists(file.read_text("utf-8"))).items()
    }


def _room(file: Path) -> str:
    """Return which file of functions it is: of the kernel by its name, of a subject by the subject's."""
    subject = file.relative_to(SHARED).parent.parts
    return file.stem if subject[0] == "kernel" else subject[1] + ("" if file.stem == "functions" else f"/{file.stem}")


def _texts(path: Path) -> Iterator[str]:
    """Yield the texts in a module, without its docstrings."""
    tree = ast.parse(path.read_text())
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


def test_every_statement_names_the_tenant_whose_rows_it_touches() -> None:
    found = {name: untied(text, TABLES) for name, text in _queries().items()}
    found |= {
        name: set[str]().union(*(untied(text, TABLES) for text in texts.values()))
        for name, texts in select_texts().items()
    }
    found |= {name: untied(body, TABLES) for name, (file, body) in _functions().items() if file not in ENGINE_FILES}
    listed = {**ENGINE, **ALL_TENANTS}
    assert {name: sorted(touched) for name, touched in found.items() if touched and name not in listed} == {}
    assert [name for name in listed if not found.get(name)] == [], "these need no exception (any more)"


def test_what_serves_callers_reaches_no_statement_of_the_engine() -> None:
    excused = {*ENGINE, *(name for name, (file, _) in _functions().items() if file in ENGINE_FILES)}
    excused -= {name for name, (_, body) in _functions().items() if name in excused and not untied(body, TABLES)}
    for path in sorted((SHARED / "subjects").rglob("*.py")):
        place = str(path.relative_to(SHARED / "subjects"))
        if place not in FOR_WORKERS:
            reached = sorted(excused.intersection(_texts(path)))
            assert reached == [], f"{place} asks for {reached} by ids that may be a caller's"


def test_statements_over_rows_of_tenants_stand_in_sql_files_alone() -> None:
    touches = re.compile(rf"\b(?:FROM|JOIN|UPDATE|INTO)\s+(?:{'|'.join(TABLES)})\b")
    places = [path for room in ("api", "deploy", "shared", "worker") for path in (ROOT / room).rglob("*.py")]
    found = {path.name for path in places for text in _texts(path) if touches.search(text)}
    assert found == set()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM jobs WHERE id = %(id)s",
        "SELECT * FROM jobs WHERE id = %(id)s AND (tenant_id = %(tenant_id)s OR %(everybody)s)",
        "SELECT * FROM jobs WHERE id = %(id)s OR tenant_id = %(tenant_id)s",
        "SELECT * FROM jobs WHERE id = %(id)s AND tenant_id <> %(tenant_id)s",
        "SELECT * FROM jobs WHERE CASE WHEN tenant_id = %(tenant_id)s THEN true ELSE true END",
        "SELECT tenant_id = %(tenant_id)s FROM jobs",
        "UPDATE jobs SET tenant_id = %(tenant_id)s WHERE id = %(id)s",
        "SELECT * FROM jobs j JOIN steps s ON s.job_id <> j.id WHERE j.tenant_id = %(tenant_id)s",
        "SELECT * FROM jobs j, steps s WHERE j.tenant_id = %(tenant_id)s",
        "SELECT * FROM steps WHERE job_id IN (SELECT id FROM jobs WHERE id = %(id)s)",
        "SELECT (SELECT count(*) FROM steps) FROM jobs WHERE tenant_id = %(tenant_id)s",
        "SELECT id FROM jobs WHERE tenant_id = %(tenant_id)s UNION ALL SELECT id FROM jobs",
        "WITH mine AS (SELECT id FROM jobs) SELECT * FROM steps s JOIN mine m ON m.id = s.job_id",
        "DELETE FROM jobs j USING steps s WHERE s.tenant_id = %(tenant_id)s",
        "INSERT INTO events (job_id, kind) VALUES (%(id)s, 'x')",
        "SELECT * FROM steps s JOIN jobs j ON s.index = j.round WHERE j.tenant_id = %(tenant_id)s",
    ],
)
def test_a_statement_that_could_touch_another_tenants_rows_is_found(statement: str) -> None:
    assert untied(statement, TABLES) != set()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM jobs WHERE id = %(id)s AND tenant_id = %(tenant_id)s",
        "SELECT * FROM jobs j LEFT JOIN steps s ON s.job_id = j.id WHERE j.tenant_id = %(tenant_id)s",
        "WITH mine AS (SELECT id FROM jobs WHERE tenant_id = %(tenant_id)s) SELECT * FROM steps "
        "WHERE job_id IN (SELECT id FROM mine)",
        "WITH RECURSIVE tree (id) AS (SELECT id FROM jobs WHERE tenant_id = %(t)s UNION "
        "SELECT c.id FROM tree t JOIN jobs c ON c.parent_job_id = t.id) "
        "SELECT * FROM steps s JOIN tree t ON t.id = s.job_id",
        "PERFORM FROM jobs WHERE id = p_job AND tenant_id = p_tenant; UPDATE steps SET note = 1 WHERE job_id = p_job",
        "SELECT * INTO e FROM questions WHERE id = p_id AND tenant_id = p_tenant; "
        "SELECT 1 FROM jobs WHERE id = e.job_id",
        "INSERT INTO events (tenant_id, job_id, kind) VALUES (%(tenant_id)s, %(id)s, 'x')",
    ],
)
def test_a_statement_within_one_tenant_is_known(statement: str) -> None:
    assert untied(statement, TABLES) == set()
