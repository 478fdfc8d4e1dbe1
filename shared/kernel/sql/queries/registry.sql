-- Worker registry: processes, their leases, and the tools that they publish.

-- name: register_worker
-- Announces a worker process, with the tools that it can run: a JSON array of {name, digest, version}.
WITH worker AS (
    INSERT INTO workers (id, name, pools, planners, provides, capacity, bulk_capacity, version, functions, process, lease_seconds,
                         has_processes, only_priority, left_out)
    VALUES (%(id)s, %(name)s, %(pools)s, %(planners)s, %(provides)s, %(capacity)s, %(bulk_capacity)s, %(version)s, %(functions)s,
            %(process)s, %(lease_seconds)s, %(has_processes)s, %(only_priority)s,
            %(left_out)s)
    ON CONFLICT (id) DO UPDATE SET heartbeat_at = planq_now(), left_out = excluded.left_out
), offered AS (
    SELECT * FROM json_to_recordset(%(tools)s) AS t (name text, digest text, version text)
), gone AS (
    DELETE FROM worker_tools WHERE worker_id = %(id)s AND name NOT IN (SELECT name FROM offered)
)
INSERT INTO worker_tools (worker_id, name, digest, version) SELECT %(id)s, name, digest, version FROM offered
ON CONFLICT (worker_id, name) DO UPDATE SET digest = excluded.digest, version = excluded.version

-- name: differing_tools
-- The tools that live workers have with different schemas: a row for each of their digests, with the names of who has it.
WITH live AS (
    SELECT t.name, t.digest, t.version, w.name AS worker FROM worker_tools t JOIN workers w ON w.id = t.worker_id
    WHERE w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s) AND w.pools <> '{}'
)
SELECT name, digest, max(version) AS version, array_agg(worker ORDER BY worker) AS workers FROM live
WHERE name IN (SELECT name FROM live GROUP BY name HAVING count(DISTINCT digest) > 1)
GROUP BY name, digest ORDER BY name, digest

-- name: awaited_tools
-- The tools for which steps wait that no live worker has: how many, and since when.
SELECT tool_name AS name, pool, count(*)::int AS n, min(tool_away_since) AS since FROM steps
WHERE status = ANY (planq_step_ready()) AND tool_away_since IS NOT NULL GROUP BY tool_name, pool ORDER BY tool_name, pool

-- name: heartbeat
-- Renews a worker's lease; database time decides. A worker whose row was swept is not resurrected: no row comes back. The row
-- says whether the worker holds anything (held_work), and which workers live, itself included.
WITH beat AS (
    UPDATE workers SET heartbeat_at = planq_now(), lag_ms = %(lag_ms)s, in_flight = %(in_flight)s,
        late_outcomes = %(late_outcomes)s, counts = %(counts)s, missing = %(missing)s
    WHERE id = %(id)s RETURNING id
)
SELECT EXISTS (SELECT FROM steps WHERE status = ANY (planq_step_running()) AND worker_id = %(id)s)
           OR EXISTS (SELECT FROM jobs WHERE stage_worker = %(id)s) AS holds,
       (SELECT json_agg(json_build_object('id', w.id, 'pools', w.pools, 'only_priority', w.only_priority) ORDER BY w.id)
        FROM workers w
        WHERE w.id = %(id)s OR w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s)) AS alive
FROM beat

-- name: live_workers
-- The workers whose lease is alive.
SELECT id, name, pools, capacity, version, started_at, heartbeat_at, lag_ms, in_flight, late_outcomes,
       counts, missing, left_out, provides, only_priority
FROM workers
WHERE heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s) ORDER BY name

-- name: workers_named
-- The workers of these ids that are known, also those that have died within a day.
SELECT id, name, heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s) AS is_alive
FROM workers WHERE id = ANY (%(ids)s::uuid[])

-- name: live_planners
-- The planners of each worker whose lease is alive and that says which it has.
SELECT planners FROM workers
WHERE heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s) AND planners IS NOT NULL

-- name: is_provided
-- Whether a live worker of a pool provides `what`: one of all priorities, or of `only`.
SELECT EXISTS (
    SELECT FROM workers
    WHERE heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s) AND %(pool)s = ANY (pools)
      AND %(what)s = ANY (provides) AND (only_priority IS NULL OR only_priority = %(only)s)
) AS is_provided

-- name: held_work
-- What a worker holds: running steps and claimed stages, with what the wake-up of a next attempt needs.
SELECT s.job_id, s.round, s.index, s.attempt, s.effect, s.pool, s.tool_name AS name, j.priority, j.root_job_id, s.releases,
       s.tenant_id
FROM steps s JOIN jobs j ON j.id = s.job_id
WHERE s.status = ANY (planq_step_running()) AND s.worker_id = %(id)s
UNION ALL
SELECT id, round, CASE status WHEN 'responding' THEN -2 ELSE -1 END, stage_attempt, NULL, 'io', agent_name, priority, root_job_id, 0,
       tenant_id
FROM jobs WHERE stage_worker = %(id)s

-- name: watch_steps
-- StepReported, by the worker whose processes carry out these attempts, a JSON array of {job, round, index, attempt, age}, the age in
-- seconds: those may run on that may take longer than the time between two reports. Says how many.
SELECT (count(*) FILTER (WHERE planq_report_progress(
    i.job, i.round, i.index, i.attempt, %(id)s, NULL, NULL, i.seconds)))::int AS watched
FROM (
    SELECT r.*, least(s.timeout_seconds, s.longest_seconds - r.age) AS seconds
    FROM json_to_recordset(%(items)s::json) AS r (job uuid, round int, index int, attempt int, age float8)
    JOIN steps s ON s.job_id = r.job AND s.round = r.round AND s.index = r.index AND s.attempt = r.attempt
    WHERE s.longest_seconds > r.age AND s.status = ANY (planq_step_running())
    ORDER BY r.job, r.index OFFSET 0
) i

-- name: end_lease
-- Ends the lease of a worker whose process has gone: nobody has ever beaten at the epoch. A beat that was still on its
-- way brings the lease back until the next sweep.
UPDATE workers SET heartbeat_at = 'epoch'
WHERE process = %(process)s AND heartbeat_at > 'epoch' RETURNING name

-- name: forget_worker
-- A worker that stops gives up its lease at once, so that whatever it still holds is taken back by the next sweep.
DELETE FROM workers WHERE id = %(id)s

-- name: leave_quarantine
-- A worker carries out other work again (planq_enter_quarantine).
UPDATE workers SET in_quarantine = false WHERE id = %(id)s

-- name: tidy_workers
-- Removes workers that have been silent for a day, or whose lease was ended, once nothing refers to them any more.
DELETE FROM workers w WHERE w.heartbeat_at < planq_now() - interval '1 day'
  AND NOT EXISTS (SELECT FROM steps s WHERE s.status = ANY (planq_step_running()) AND s.worker_id = w.id)
  AND NOT EXISTS (SELECT FROM jobs j WHERE j.stage_worker = w.id)

-- name: publish_tools
-- Publishes tool definitions (a JSON array of {name, definition}, the latter a text that holds JSON: see
-- planq_record_calls); unchanged ones only get a new date.
INSERT INTO tools (name, definition)
SELECT t.name, t.definition::json
FROM json_to_recordset(%(tools)s) AS t (name text, definition text)
ORDER BY t.name
ON CONFLICT (name) DO UPDATE SET definition = excluded.definition, published_at = planq_now()

-- name: list_tools
-- Every tool that workers have published.
SELECT definition FROM tools ORDER BY name

-- name: version_of_tools
-- What changes with each publication and removal of a tool, "" without tools. By the transaction that wrote a row: one that began
-- earlier may commit later, so times would hide it.
SELECT coalesce(md5(string_agg(name || ' ' || xmin::text, ',' ORDER BY name)), '') AS version FROM tools

-- name: tidy_tools
-- Removes tools that no live worker offers, once a worker of their pool is alive to say so.
WITH live AS (
    SELECT id, pools FROM workers WHERE heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s)
)
DELETE FROM tools t
WHERE t.published_at < planq_now() - interval '5 minutes'
  AND EXISTS (SELECT FROM live WHERE t.definition->>'pool' = ANY (live.pools))
  AND NOT EXISTS (SELECT FROM live JOIN worker_tools o ON o.worker_id = live.id WHERE o.name = t.name)

-- name: count_ended
-- How many jobs have ended with each outcome since there were none (planq_count_end); a crash of the server may add some.
SELECT 'succeeded' AS outcome, CASE WHEN is_called THEN last_value ELSE 0 END AS n FROM jobs_ended_succeeded
UNION ALL
SELECT 'partial', CASE WHEN is_called THEN last_value ELSE 0 END FROM jobs_ended_partial
UNION ALL
SELECT 'incomplete', CASE WHEN is_called THEN last_value ELSE 0 END FROM jobs_ended_incomplete
UNION ALL
SELECT 'failed', CASE WHEN is_called THEN last_value ELSE 0 END FROM jobs_ended_failed
UNION ALL
SELECT 'cancelled', CASE WHEN is_called THEN last_value ELSE 0 END FROM jobs_ended_cancelled

-- name: count_unfinished
-- How many jobs, steps and deliveries stand in each unfinished state, for metrics and `planq doctor`; and how many of the jobs are
-- bulk, beside how many of those there may be. Counted from the indexes of what is unfinished, by what these keep.
WITH unfinished AS MATERIALIZED (
    SELECT status, priority, count(*)::int AS n FROM jobs
    WHERE planq_is_unfinished(status) GROUP BY status, priority
), asking AS MATERIALIZED (
    SELECT count(*)::int AS n FROM jobs WHERE open_questions > 0
)
SELECT 'job' AS kind, status, n FROM (
    SELECT u.status, sum(u.n)::int - CASE u.status WHEN 'executing' THEN a.n ELSE 0 END AS n
    FROM unfinished u CROSS JOIN asking a GROUP BY u.status, a.n
    UNION ALL
    SELECT 'input_required', n FROM asking
) jobs
WHERE n > 0
UNION ALL
SELECT 'step', status, count(*)::int FROM steps WHERE status = ANY (planq_step_idle()) GROUP BY status
UNION ALL
SELECT 'step', status, count(*)::int FROM steps WHERE status = ANY (planq_step_running()) GROUP BY status
UNION ALL
SELECT 'bulk', 'unfinished', coalesce(sum(n), 0)::int FROM unfinished WHERE priority = 'bulk'
UNION ALL
SELECT 'delivery', status, count(*)::int FROM deliveries WHERE status IN ('pending', 'sending') GROUP BY status
UNION ALL
SELECT 'bulk', 'window', planq_window('bulk')

-- name: has_functions
-- Whether a schema of functions is there: planq migrate drops those that it believes to be unused.
SELECT to_regproc(%(schema)s || '.planq_digest') IS NOT NULL AS found
