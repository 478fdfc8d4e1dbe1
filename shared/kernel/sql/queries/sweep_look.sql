-- name: sweep_look
-- What a sweep has to do: a row for each part of it, and one for each queue with unclaimed work; none at rest. Each
-- condition is that of the query of its part, which finds the rows then. And a row that says in how many seconds the next
-- job or plan runs out of time, where that is sooner than
-- %(ahead_seconds)s. The processes of workers in one place (see planq.shared.kernel.processes) whose lease nobody has ended have a
-- row each, too. What subjects have a sweep do is told by rows of their own, in their files.
-- An end that nobody was served with is rare, and PostgreSQL expects many: it knows how many jobs have ended, and not that the
-- others are joined. It would read all jobs until it finds one, so it is asked for the first one in the order of the index; what
-- stands in an EXISTS has no order.
SELECT 'timers' AS part, NULL AS pool, NULL::float8 AS seconds WHERE EXISTS (
    SELECT FROM steps WHERE status = ANY (planq_step_waiting()) AND question_id IS NULL AND wake_at <= planq_now()
)
UNION ALL
SELECT 'steps', NULL, NULL WHERE EXISTS (
    SELECT FROM steps s
    LEFT JOIN workers w ON w.id = s.worker_id AND w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s)
    WHERE s.status = ANY (planq_step_running())
      AND CASE WHEN w.id IS NULL THEN NOT (
            s.effect = 'unsafe' AND s.recovery <> 'fail'
            AND s.deadline + make_interval(secs => %(margin_seconds)s + s.in_doubt::int * s.timeout_seconds) > planq_now()
            AND EXISTS (SELECT FROM workers g WHERE g.id = s.worker_id AND g.heartbeat_at > 'epoch'))
          ELSE s.deadline < planq_now() - make_interval(secs => %(deadline_grace_seconds)s)
            AND NOT (s.effect = 'unsafe' AND s.recovery <> 'fail' AND NOT w.has_processes) END
)
UNION ALL
SELECT 'stages', NULL, NULL WHERE EXISTS (
    SELECT FROM jobs j
    LEFT JOIN workers w ON w.id = j.stage_worker AND w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s)
    WHERE j.stage_worker IS NOT NULL AND (w.id IS NULL OR j.deadline < planq_now())
)
UNION ALL
SELECT 'plans', NULL, NULL WHERE EXISTS (
    SELECT FROM jobs
    WHERE status = 'executing' AND deadline IS NOT NULL AND paused_at IS NULL
      AND deadline <= planq_now() AND NOT planq_is_held_below(id)
)
UNION ALL
SELECT 'jobs', NULL, NULL WHERE EXISTS (
    SELECT FROM jobs
    WHERE planq_is_unfinished(status)
      AND expires_at <= planq_now() AND paused_at IS NULL AND NOT planq_is_held_below(id)
)
UNION ALL
SELECT 'ends', NULL, NULL WHERE (
    SELECT true FROM jobs
    WHERE (is_untold OR NOT is_joined AND coalesce(parent_job_id, conversation_id, batch_id) IS NOT NULL)
      AND planq_is_ended(status)
      AND (coalesce(parent_job_id, conversation_id) IS NULL OR finished_at <= planq_now() - planq_claim_grace())
    ORDER BY finished_at LIMIT 1
)
UNION ALL
SELECT 'windows', NULL, NULL WHERE EXISTS (
    SELECT FROM jobs WHERE held_steps > 0 AND paused_at IS NULL AND out_steps < planq_places(priority)
)
UNION ALL
SELECT 'tools', NULL, NULL WHERE EXISTS (
    SELECT FROM (
        SELECT DISTINCT pool, tool_name FROM steps WHERE status = ANY (planq_step_ready()) AND tool_away_since IS NOT NULL
    ) a
    WHERE planq_is_offered(a.pool, a.tool_name, '')
) OR EXISTS (
    SELECT FROM steps s JOIN jobs j ON j.id = s.job_id
    WHERE s.status = ANY (planq_step_ready()) AND s.tool_away_since IS NOT NULL AND j.paused_at IS NULL
      AND s.tool_away_since <= planq_now() - make_interval(secs => %(tool_wait_seconds)s)
)
UNION ALL
SELECT 'wakes', NULL, NULL WHERE EXISTS (
    SELECT FROM jobs
    WHERE wake_at <= planq_now() AND run_at <= planq_now() AND stage_worker IS NULL
      AND planq_is_unfinished(status)
      AND status IN ('queued', 'planning', 'responding')
) OR EXISTS (
    SELECT FROM steps WHERE status = ANY (planq_step_idle()) AND status = ANY (planq_step_ready()) AND wake_at <= planq_now()
)
UNION ALL
-- Work that was published more than planq_claim_grace() ago, is not yet due again, and is unclaimed.
SELECT 'unclaimed', planq_wake_queue('io', p.priority), NULL
FROM (VALUES ('interactive'), ('bulk')) AS p (priority) WHERE EXISTS (
    SELECT FROM jobs
    WHERE planq_is_unclaimed(wake_at, wakes) AND priority = p.priority
      AND planq_is_unfinished(status)
      AND status IN ('queued', 'planning', 'responding')
      AND run_at <= planq_now() AND stage_worker IS NULL AND paused_at IS NULL
)
UNION ALL
SELECT DISTINCT 'unclaimed', planq_wake_queue(s.pool, j.priority), NULL::float8 FROM steps s JOIN jobs j ON j.id = s.job_id
WHERE s.status = ANY (planq_step_idle()) AND s.status = ANY (planq_step_ready()) AND planq_is_unclaimed(s.wake_at, s.wakes)
  AND s.run_at <= planq_now() AND j.paused_at IS NULL
UNION ALL
SELECT 'suspects', NULL, NULL WHERE EXISTS (SELECT FROM suspects WHERE due_at <= planq_now())
UNION ALL
SELECT 'next', NULL, extract(epoch FROM next.at - planq_now())::float8 FROM (
    SELECT least((
        SELECT min(expires_at) FROM jobs
        WHERE planq_is_unfinished(status)
          AND expires_at > planq_now() AND expires_at < planq_now() + make_interval(secs => %(ahead_seconds)s)
          AND paused_at IS NULL
    ), (
        SELECT min(deadline) FROM jobs
        WHERE status = 'executing' AND deadline IS NOT NULL
          AND deadline > planq_now() AND deadline < planq_now() + make_interval(secs => %(ahead_seconds)s)
          AND paused_at IS NULL
    )) AS at
) next WHERE next.at IS NOT NULL
UNION ALL
SELECT 'peer', process, NULL FROM workers WHERE starts_with(process, %(place)s::text) AND heartbeat_at > 'epoch'
