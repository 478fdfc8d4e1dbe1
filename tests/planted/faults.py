"""The faults: one place each, and the tests that must fail for it. A place that has changed is told."""

from __future__ import annotations

from dataclasses import dataclass

STORE = "tests/integration/store"
SQL = "shared/kernel/sql/functions"
KERNEL = "shared/kernel"
AGENTIC = "shared/agentic"
SUBJECTS = "shared/subjects"
PLATFORM = "shared/platform"
UNIT = "tests/unit"


_PAUSED = "    -- The jobs above, too: whose time has run out there waits, and then sees that it is held below.\n"


@dataclass(frozen=True, slots=True)
class Fault:
    """What stands in a file, once, and what is put there instead."""

    file: str
    right: str
    wrong: str
    tests: str


FAULTS = (
    # Domain
    Fault(
        f"{PLATFORM}/values/backoff.py", "min(failures - 1, 64)", "min(failures, 64)", f"{UNIT}/kernel/test_retry.py"
    ),
    Fault(f"{KERNEL}/retry.py", "or attempt > retries:", "or attempt >= retries:", f"{UNIT}/kernel/test_retry.py"),
    Fault(f"{KERNEL}/retry.py", "return max(delay, retry_after)", "return min(delay, retry_after)", f"{UNIT}/kernel"),
    Fault(f"{KERNEL}/retry.py", "decided.delay >= time_left", "decided.delay > time_left", f"{UNIT}/kernel"),
    Fault(f"{KERNEL}/retry.py", "losses < max_losses", "losses <= max_losses", f"{UNIT}/kernel"),
    Fault(f"{KERNEL}/retry.py", "parts = min(groups, len(company))", "parts = groups", f"{UNIT}/kernel"),
    Fault(f"{KERNEL}/retry.py", "min(delay, time_left / 2)", "min(delay, time_left)", f"{UNIT}/kernel"),
    Fault(
        f"{KERNEL}/retry.py",
        "step.tries > step.retry.retries + _FIND_OUT_RETRIES",
        "step.tries >= step.retry.retries + _FIND_OUT_RETRIES",
        f"{UNIT}/kernel",
    ),
    Fault(f"{KERNEL}/budget.py", "0 < value < 1\n", "0 <= value < 1\n", f"{UNIT}/kernel/test_budget.py"),
    Fault(
        f"{KERNEL}/budget.py", "0 < value <= _WHOLE_MOST", "0 < value < _WHOLE_MOST", f"{UNIT}/kernel/test_budget.py"
    ),
    Fault(
        f"{AGENTIC}/plan/graph.py", "if edges > MAX_EDGES:", "if edges >= MAX_EDGES:", f"{UNIT}/agentic/test_graph.py"
    ),
    Fault(
        f"{AGENTIC}/plan/validation.py",
        "elif size > MAX_ARG",
        "elif size >= MAX_ARG",
        f"{UNIT}/agentic/test_validation.py",
    ),
    Fault(
        f"{AGENTIC}/plan/validation.py",
        "if count > max_steps:",
        "if count >= max_steps:",
        f"{UNIT}/agentic/test_validation.py",
    ),
    Fault(
        f"{PLATFORM}/values/preview.py",
        "depth == 0 or chars < _LEAST",
        "depth == 0 or chars <= _LEAST",
        f"{UNIT}/platform",
    ),
    Fault(
        f"{PLATFORM}/values/excerpts.py",
        "index >= len(value)",
        "index > len(value)",
        f"{UNIT}/agentic/test_excerpts.py",
    ),
    Fault(f"{AGENTIC}/references/grammar.py", "int(digits) > MAX_STEP", "int(digits) >= MAX_STEP", f"{UNIT}/agentic"),
    Fault(
        f"{AGENTIC}/references/resolution.py",
        "if left < 0:  # before",
        "if left <= 0:  # before",
        f"{UNIT}/agentic/test_resolution.py",
    ),
    Fault(
        f"{SUBJECTS}/batches/rules.py",
        "raw, size = raw[:-1], size - 1",
        "raw, size = raw[:-1], size",
        f"{UNIT}/subjects/test_batch_lines.py",
    ),
    Fault(
        f"{SUBJECTS}/batches/rules.py",
        "if self.found > self._max",
        "if self.found >= self._max",
        f"{UNIT}/subjects/test_batch_lines.py",
    ),
    Fault(
        f"{SUBJECTS}/batches/rules.py",
        "if size > self._max",
        "if size >= self._max",
        f"{UNIT}/subjects/test_batch_lines.py",
    ),
    Fault(
        f"{SUBJECTS}/conversations/rules.py",
        "        if left < 0:",
        "        if left <= 0:",
        f"{UNIT}/subjects/test_history.py",
    ),
    Fault(
        f"{SUBJECTS}/conversations/inbound.py",
        "len(external) <= MAX",
        "len(external) < MAX",
        f"{UNIT}/subjects/test_inbound_messages.py",
    ),
    Fault(
        f"{SUBJECTS}/tenants/config.py",
        '"max_tool_steps": min(',
        '"max_tool_steps": max(',
        f"{UNIT}/subjects/test_tenant_config.py",
    ),
    Fault(
        f"{SUBJECTS}/tenants/rates.py",
        "not now - WINDOW_SECONDS < times",
        "not now - WINDOW_SECONDS <= times",
        f"{UNIT}/subjects/test_rates.py",
    ),
    # Worker
    Fault(
        "worker/engine/chain.py",
        "min(ready, free, max(part, LOCAL_FAN_OUT))",
        "min(ready, free, part)",
        "tests/unit/engine",
    ),
    Fault(
        "worker/engine/lease.py",
        "return self.clock() < float(at)",
        "return self.clock() <= float(at)",
        "tests/unit/engine/test_fence.py",
    ),
    Fault(
        "worker/engine/sweeper.py",
        "if stage.company == 1 and",
        "if stage.company >= 1 and",
        "tests/integration/engine",
    ),
    Fault(
        "worker/engine/sweeper.py", "delay=max(decided.delay,", "delay=min(decided.delay,", "tests/integration/engine"
    ),
    Fault("worker/webhooks/sender.py", "if count >= EACH", "if count > EACH", "tests/integration/webhooks"),
    # SQL
    Fault(
        f"{SQL}/finish.sql",
        "s.round = i.round AND s.attempt = i.attempt",
        "s.round = i.round",
        f"{STORE}/test_guards.py",
    ),
    Fault(
        f"{SQL}/finish.sql",
        " AND coalesce(s.worker_id = coalesce(p_worker, i.worker), coalesce(p_worker, i.worker) IS NULL)",
        "",
        f"{STORE}/test_guards.py",
    ),
    Fault(f"{SQL}/finish.sql", " AND (s.waits_for IS NULL OR s.joined)))", "))", "tests/interleavings"),
    Fault(
        f"{SQL}/finish.sql",
        "AND o.attempt = 0 AND o.pool = p_pool",
        "AND o.attempt = 0",
        f"{STORE}/test_units.py",
    ),
    Fault(
        f"{SUBJECTS}/batches/sql/functions/batches.sql",
        "greatest(0, least(p_room, h.canary - h.admitted))",
        "p_room",
        f"{STORE}/test_batch_lines.py",
    ),
    Fault(
        f"{SQL}/children.sql",
        "AND attempt = p_attempt\n      AND worker_id = p_worker AND NOT joined;",
        "\n      AND worker_id = p_worker AND NOT joined;",
        f"{STORE}/test_guards.py",
    ),
    Fault(
        f"{SQL}/children.sql",
        "least(p_most, cardinality(v_ids))",
        "cardinality(v_ids)",
        f"{STORE}/test_child_jobs.py",
    ),
    Fault(
        f"{SQL}/children.sql",
        "c.run_at <= planq_now() AND c.paused_at IS NULL",
        "c.run_at <= planq_now()",
        STORE,
    ),
    Fault(
        f"{SQL}/claim.sql",
        "j.run_at <= planq_now() AND j.paused_at IS NULL AND j.status = ANY (coalesce(",
        "j.run_at <= planq_now() AND j.status = ANY (coalesce(",
        f"{STORE}/test_control.py",
    ),
    Fault(
        f"{SQL}/claim.sql",
        "= p_are_out AND s.run_at <= planq_now()\n          AND planq_can_run(p_worker, s.pool",
        "= p_are_out\n          AND planq_can_run(p_worker, s.pool",
        STORE,
    ),
    Fault(
        f"{SUBJECTS}/conversations/sql/functions/message.sql",
        "j.status = 'queued' AND j.stage_attempt = 0",
        "j.status = 'queued'",
        f"{STORE}/test_turns.py",
    ),
    Fault(
        f"{SUBJECTS}/webhooks/sql/functions.sql",
        "WHERE id = p_id AND status = 'sending' AND attempt = p_attempt",
        "WHERE id = p_id AND status = 'sending'",
        f"{STORE}/test_deliveries.py",
    ),
    Fault(
        f"{SUBJECTS}/batches/sql/queries.sql",
        "'validating' AND w.held_until <= planq_now()",
        "'validating'",
        f"{STORE}/test_guards.py",
    ),
    Fault(
        f"{SUBJECTS}/batches/sql/functions/intake.sql",
        "'validating' AND held_by = p_holder",
        "'validating'",
        f"{STORE}/test_guards.py",
    ),
    Fault(
        f"{SQL}/plan.sql",
        "j.status = v_planning AND j.stage_worker = p_worker AND j.stage_attempt = i.attempt",
        "j.status = v_planning AND j.stage_worker = p_worker",
        STORE,
    ),
    Fault(
        f"{SQL}/plan.sql",
        "= p_worker\n      AND stage_attempt = i.attempt",
        "= p_worker",
        f"{STORE}/test_guards.py",
    ),
    Fault(
        f"{SQL}/sweep.sql",
        "j.deadline > planq_now() OR planq_is_held_below(p_job)",
        "j.deadline > planq_now()",
        STORE,
    ),
    Fault(
        f"{SQL}/wait.sql",
        "s.wake_at > planq_now() OR j.paused_at IS NOT NULL",
        "s.wake_at > planq_now()",
        f"{STORE}/test_guards.py",
    ),
    Fault(
        f"{SQL}/load.sql",
        " AND w.heartbeat_at > planq_now() - make_interval(secs => w.lease_seconds)",
        "",
        f"{STORE}/test_load.py",
    ),
    Fault(
        f"{SQL}/control.sql",
        "            ORDER BY id FOR NO KEY UPDATE\n        ) l;\n        EXIT",
        "            ORDER BY id DESC FOR NO KEY UPDATE\n        ) l;\n        EXIT",
        f"tests/interleavings {STORE}/test_interleavings.py",
    ),
    Fault(
        f"{SQL}/control.sql",
        f"{_PAUSED}    PERFORM planq_lock_lineages(ARRAY[p_job]);\n",
        _PAUSED,
        f"tests/interleavings {STORE}/test_interleavings.py",
    ),
)
