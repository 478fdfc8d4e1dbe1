-- Sweep: what is lost or due. sweep_look.sql says which of these is worth a statement.

-- name: unanswered_wakes
-- How much of a pool's work (of one priority with `only`) no worker claims although the sweeper has published it at least
-- twice, the last time more than %(settled_seconds)s and less than %(idle_seconds)s seconds ago. The time of publication follows from `wake_at`, which
-- planq_take_due_wakes moves by planq_wake_pause(wakes), the longest of which bounds what an index is asked for: a history has
-- thousands of steps that wait for days.
WITH waiting AS (
    SELECT s.wake_at, s.wakes FROM steps s JOIN jobs j ON j.id = s.job_id
    WHERE s.status = ANY (planq_step_idle()) AND s.status = ANY (planq_step_ready())
      AND s.pool = %(pool)s AND s.run_at <= planq_now()
      AND s.wake_at BETWEEN planq_now() - make_interval(secs => %(idle_seconds)s) AND planq_now() + planq_wake_pause(100)
      AND s.wakes >= 2 AND j.status = 'executing' AND j.paused_at IS NULL
      AND j.priority = coalesce(%(only)s, j.priority)
    UNION ALL
    SELECT wake_at, wakes FROM jobs
    WHERE planq_is_unfinished(status)
      AND status IN ('queued', 'planning', 'responding') AND %(pool)s = 'io' AND stage_worker IS NULL
      AND wake_at BETWEEN planq_now() - make_interval(secs => %(idle_seconds)s) AND planq_now() + planq_wake_pause(100)
      AND run_at <= planq_now() AND wakes >= 2 AND paused_at IS NULL AND priority = coalesce(%(only)s, priority)
), published AS (
    SELECT wake_at - planq_wake_pause(wakes) AS at FROM waiting
)
SELECT count(*)::int AS n FROM published
WHERE at BETWEEN planq_now() - make_interval(secs => %(idle_seconds)s)
    AND planq_now() - make_interval(secs => %(settled_seconds)s)

-- name: return_wakes
-- The broker did not take these wake-ups (job ids of stages; a JSON array of {job_id, round, index} for steps): they are
-- due again at once, as if they had never been published; a worker that hears nothing of them is not deaf (see
-- unanswered_wakes). What has been claimed meanwhile has no wake_at.
WITH stages AS (
    UPDATE jobs SET wakes = 0, wake_at = planq_now()
    WHERE id = ANY (%(stages)s) AND wake_at IS NOT NULL
)
UPDATE steps s SET wakes = 0, wake_at = planq_now()
FROM json_to_recordset(%(steps)s) AS r (job_id uuid, round int, index int)
WHERE s.job_id = r.job_id AND s.round = r.round AND s.index = r.index
  AND s.status = ANY (planq_step_ready()) AND s.wake_at IS NOT NULL

-- name: lost_steps
-- Running steps whose worker's lease has ended and of which it is noted who was in flight with them (`company`, 1 where
-- the step was alone), or whose worker did not enforce the step's deadline. `seen` is a planq.shared.kernel.sweep.LossKind.
-- Where somebody will look whether an unsafe call took effect, it must not act any more by then: its
-- worker has gone ('epoch') or has let go of it (no worker, or one that has given its lease up), or the time of the
-- call is over (that of finding out too, where it was in_doubt), by a margin. A living worker that runs steps on its loop says
-- so itself, however late: it cannot kill a thread.
SELECT s.job_id, s.round, s.index, s.attempt, s.effect, s.retry, s.worker_losses, s.tool_name,
       s.attempt - s.worker_losses - s.releases - s.joined::int AS tries, s.recovery, s.in_doubt, s.timeout_seconds, s.worker_id, w.id IS NULL AS is_worker_lost,
       coalesce(n.company, 1) AS company,
       CASE WHEN s.worker_id IS NULL THEN 'abandoned'
            WHEN EXISTS (SELECT FROM workers g WHERE g.id = s.worker_id AND g.heartbeat_at = 'epoch') THEN 'gone'
            ELSE 'lease' END AS seen
FROM steps s
LEFT JOIN workers w ON w.id = s.worker_id AND w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s)
LEFT JOIN suspects n ON n.job_id = s.job_id AND n.round = s.round AND n.index = s.index AND n.attempt = s.attempt
WHERE s.status = ANY (planq_step_running())
  AND CASE WHEN w.id IS NULL THEN (s.worker_id IS NULL OR n.job_id IS NOT NULL) AND NOT (
        s.effect = 'unsafe' AND s.recovery <> 'fail'
        AND s.deadline + make_interval(secs => %(margin_seconds)s + s.in_doubt::int * s.timeout_seconds) > planq_now()
        AND EXISTS (SELECT FROM workers g WHERE g.id = s.worker_id AND g.heartbeat_at > 'epoch'))
      ELSE s.deadline < planq_now() - make_interval(secs => %(deadline_grace_seconds)s)
        AND NOT (s.effect = 'unsafe' AND s.recovery <> 'fail' AND NOT w.has_processes) END
LIMIT %(limit)s

-- name: lost_stages
-- PLAN and RESPOND stages whose worker's lease has ended and of which it is noted who was in flight with them, or that
-- have taken longer than any stage can. `company` and `seen` as in lost_steps.
SELECT j.id AS job_id, j.status, j.stage_attempt AS attempt, j.stage_losses AS losses, w.id IS NULL AS is_worker_lost,
       coalesce(n.company, 1) AS company,
       CASE WHEN EXISTS (SELECT FROM workers g WHERE g.id = j.stage_worker AND g.heartbeat_at = 'epoch') THEN 'gone'
            ELSE 'lease' END AS seen
FROM jobs j
LEFT JOIN workers w ON w.id = j.stage_worker AND w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s)
LEFT JOIN suspects n ON n.job_id = j.id AND n.index = -1 AND n.attempt = j.stage_attempt
WHERE j.stage_worker IS NOT NULL AND ((w.id IS NULL AND n.job_id IS NOT NULL) OR j.deadline < planq_now())
LIMIT %(limit)s

-- name: abandon_step
-- The process that ran a step has died, its worker lives: the next sweep takes the step back as from a lost worker.
UPDATE steps SET worker_id = NULL
WHERE job_id = %(job_id)s AND round = %(round)s AND index = %(index)s AND status = ANY (planq_step_running())
  AND attempt = %(attempt)s AND worker_id = %(worker_id)s

-- name: lost_attempts
-- All that was in flight in workers whose lease has ended; the number of a stage is -1. In some each step `is_apart` already, in a
-- process of its own.
SELECT r.*, r.pool = 'cpu' OR coalesce(w.has_processes, false) AS is_apart
FROM (
    SELECT worker_id, job_id, round, index, attempt, pool, tool_name FROM steps
    WHERE status = ANY (planq_step_running()) AND worker_id IS NOT NULL
    UNION ALL
    SELECT stage_worker, id, round, -1, stage_attempt, 'io', status FROM jobs WHERE stage_worker IS NOT NULL
) r LEFT JOIN workers w ON w.id = r.worker_id
WHERE w.id IS NULL OR w.heartbeat_at <= planq_now() - make_interval(secs => %(lease_seconds)s)

-- name: note_suspects
-- Notes who was in flight with whom in a lost worker (a JSON array), once for each attempt: who comes later has seen less.
-- `losses` are those in a row.
INSERT INTO suspects (tenant_id, job_id, round, index, attempt, pool, group_id, company, delays)
SELECT j.tenant_id, s.*
FROM json_to_recordset(%(suspects)s) AS s (
    job_id uuid, round int, index int, attempt int, pool text, group_id uuid, company int, delays boolean
) JOIN jobs j ON j.id = s.job_id
ORDER BY s.job_id, s.round, s.index
ON CONFLICT (job_id, round, index) DO UPDATE SET attempt = excluded.attempt, pool = excluded.pool,
    group_id = excluded.group_id, company = excluded.company, delays = excluded.delays, noted_at = planq_now(),
    due_at = NULL, losses = CASE WHEN suspects.attempt = excluded.attempt - 1 THEN suspects.losses + 1 ELSE 1 END
WHERE suspects.attempt < excluded.attempt

-- name: tidy_suspects
-- Removes what was lost of jobs that have ended.
DELETE FROM suspects n USING jobs j WHERE j.id = n.job_id AND planq_is_ended(j.status)

-- name: due_timers
-- Waiting steps whose timer has run out.
SELECT job_id, round, index, attempt FROM steps
WHERE status = ANY (planq_step_waiting()) AND question_id IS NULL AND wake_at <= planq_now() ORDER BY wake_at LIMIT %(limit)s

-- name: expired_jobs
-- Jobs that have used up the time they may be queued, or take as a whole; nobody is queued for longer than that.
SELECT id AS job_id, status = 'queued' AS is_queued,
       CASE status WHEN 'queued' THEN least((limits->>'queue_timeout_seconds')::float8, (limits->>'job_timeout_seconds')::float8)
            ELSE (limits->>'job_timeout_seconds')::float8 END AS limit_seconds, coalesce(parent_job_id, conversation_id) IS NOT NULL AS is_awaited
FROM jobs
WHERE planq_is_unfinished(status)
  AND expires_at <= planq_now() AND paused_at IS NULL AND NOT planq_is_held_below(id)
ORDER BY expires_at LIMIT %(limit)s

-- name: wake_offered
-- ToolOffered: makes steps due at once that were put aside and whose tool a live worker has.
WITH offered AS MATERIALIZED (
    SELECT a.pool, a.tool_name FROM (
        SELECT DISTINCT pool, tool_name FROM steps WHERE status = ANY (planq_step_ready()) AND tool_away_since IS NOT NULL
    ) a WHERE planq_is_offered(a.pool, a.tool_name, '')
), due AS (
    SELECT s.job_id, s.index FROM steps s JOIN offered o ON o.pool = s.pool AND o.tool_name = s.tool_name
    WHERE s.status = ANY (planq_step_ready()) AND s.tool_away_since IS NOT NULL
    ORDER BY s.job_id, s.index LIMIT %(limit)s FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE steps s SET tool_away_since = NULL, wakes = 0,
    wake_at = CASE WHEN s.wake_at IS NOT NULL THEN greatest(s.run_at, planq_now()) END
FROM due WHERE s.job_id = due.job_id AND s.index = due.index

-- name: missed_tools
-- Steps that have waited for their tool for as long as they may, and no live worker has it.
SELECT s.job_id, s.round, s.index, s.attempt, s.tool_name, s.pool, %(tool_wait_seconds)s::float8 AS seconds
FROM steps s JOIN jobs j ON j.id = s.job_id
WHERE s.status = ANY (planq_step_ready()) AND s.tool_away_since IS NOT NULL AND j.paused_at IS NULL
  AND s.tool_away_since <= planq_now() - make_interval(secs => %(tool_wait_seconds)s)
  AND NOT planq_is_offered(s.pool, s.tool_name, s.tool_digest)
ORDER BY s.tool_away_since LIMIT %(limit)s

-- name: miss_tool
-- StepFailed, of a step that has waited too long for its tool: as planq_finish_step of the `planq_outcome`, which uses up no
-- attempt.
SELECT planq_finish_step(i) AS result FROM json_populate_record(NULL::planq_outcome, %(item)s::json) i

-- name: expired_plans
-- Jobs whose plan has used up its time, with the tools that steps of it wait for.
SELECT id AS job_id, (limits->>'plan_timeout_seconds')::float8 AS plan_timeout_seconds, ARRAY(
    SELECT DISTINCT tool_name FROM steps s
    WHERE s.job_id = jobs.id AND s.status = ANY (planq_step_ready()) AND s.tool_away_since IS NOT NULL
    ORDER BY tool_name) AS awaited_tools
FROM jobs
WHERE status = 'executing' AND deadline IS NOT NULL AND paused_at IS NULL
  AND deadline <= planq_now() AND NOT planq_is_held_below(id) LIMIT %(limit)s

-- name: unserved_ends
-- Ends that somebody is still to be served with, `besides` some, in the order of the index (see sweep_look): lines, all together,
-- and others each alone. Whoever ended a child or a turn serves its parent or conversation at once, so these are given a moment.
SELECT array_agg(u.id) AS jobs FROM (
    SELECT id, finished_at, parent_job_id IS NULL AND conversation_id IS NULL AND NOT is_untold AS is_line FROM jobs
    WHERE (is_untold OR NOT is_joined AND coalesce(parent_job_id, conversation_id, batch_id) IS NOT NULL)
      AND planq_is_ended(status)
      AND (coalesce(parent_job_id, conversation_id) IS NULL OR finished_at <= planq_now() - planq_claim_grace())
      AND NOT id = ANY (%(besides)s::uuid[])
    ORDER BY finished_at LIMIT %(limit)s
) u GROUP BY CASE WHEN NOT u.is_line THEN u.id END ORDER BY min(u.finished_at)

-- name: woken_jobs
-- What the wake-ups of these jobs say of them.
SELECT id, priority, agent_name, root_job_id, tenant_id FROM jobs WHERE id = ANY (%(ids)s)
