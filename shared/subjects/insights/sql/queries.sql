-- Insights: what was learned, shown to its tenant; and the look at jobs that have ended.

-- name: insight_cursor
-- Up to where the ends of jobs were learned from.
SELECT xid::text, sequence FROM insight_cursor WHERE id = 1

-- name: begin_insights
-- Lets the ends of jobs be learned from, from now on.
INSERT INTO insight_cursor (id, xid, sequence) VALUES (1, pg_snapshot_xmin(pg_current_snapshot()), 0) ON CONFLICT DO NOTHING

-- name: is_anybody_learning
-- Whether any tenant's own configuration asks for insights.
SELECT EXISTS (SELECT FROM tenants WHERE config->>'insights' IN ('shadow', 'on')) AS found

-- name: jobs_to_learn_from
-- The next so many events, and what of them were ends of jobs of tenants that learn, each with its steps; one row at least
-- where there is an event, which says up to where this has looked. A turn that was erased is none of them.
WITH page AS MATERIALIZED (
    SELECT e.xid, e.sequence, e.job_id, e.kind FROM events e
    WHERE (e.xid, e.sequence) > (%(xid)s::text::xid8, %(sequence)s) AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY e.xid, e.sequence LIMIT %(limit)s
), reached AS (
    SELECT p.xid, p.sequence, (SELECT count(*) FROM page)::int AS events FROM page p ORDER BY p.xid DESC, p.sequence DESC LIMIT 1
), ended AS (
    SELECT DISTINCT p.job_id FROM page p WHERE p.kind IN ('job_completed', 'job_failed', 'job_cancelled')
)
SELECT r.xid::text, r.sequence, r.events, j.*
FROM reached r LEFT JOIN LATERAL (
    SELECT j.id, j.tenant_id, j.conversation_id, j.status, j.error::text AS error, j.input, j.round,
           j.answer, t.config->>'insights_model' AS insights_model, (t.config->>'insights_tokens')::float8::int AS insights_tokens,
           EXISTS (SELECT FROM insights i WHERE i.tenant_id = j.tenant_id AND i.reflection_job_id = j.id) AS is_reflection,
           j.cost_usd::float8 AS cost_usd, j.input_tokens + j.output_tokens AS used_tokens,
           extract(epoch FROM j.finished_at - j.created_at)::float8 AS seconds,
           EXISTS (SELECT FROM plans p WHERE p.job_id = j.id AND p.source IN ('model', 'guide')) AS is_planned,
           (SELECT json_agg(json_build_object(
                'index', s.index, 'round', s.round, 'tool', s.tool_name, 'status', s.status,
                'arguments', CASE WHEN octet_length(s.arguments::text) <= 16384 THEN s.arguments END,
                'error', CASE WHEN s.status <> 'succeeded' AND octet_length(s.error::text) <= 65536 THEN s.error END,
                'seconds', extract(epoch FROM s.finished_at - s.started_at)::float8) ORDER BY s.index)
            FROM (SELECT * FROM steps s WHERE s.job_id = j.id AND s.kind = 'tool' ORDER BY s.index LIMIT %(most_steps)s) s
           ) AS steps
    FROM ended d JOIN jobs j ON j.id = d.job_id JOIN tenants t ON t.id = j.tenant_id
    WHERE j.finished_at IS NOT NULL AND coalesce(t.config->>'insights', %(mode)s::text) <> 'off'
      AND (SELECT true FROM conversation_messages m
           WHERE m.job_id = coalesce(j.root_job_id, j.id) AND m.tenant_id = j.tenant_id AND m.status = 'erased'
           LIMIT 1) IS NULL
) j ON true

-- name: offer_insights
-- Notes what was chosen for a job that is being planned; no change where something was chosen before.
INSERT INTO insight_offers (tenant_id, job_id, origin_id, conversation_id, side, insight_ids, tokens, created_at)
VALUES (%(tenant_id)s, %(job_id)s, %(origin)s, %(conversation_id)s, %(side)s, %(chosen)s::uuid[], %(tokens)s, planq_now())
ON CONFLICT DO NOTHING

-- name: tidy_insights
-- Removes some insights that were not seen for long enough; what is pinned stays.
DELETE FROM insights WHERE id = ANY (ARRAY(
    SELECT id FROM insights WHERE NOT is_pinned AND expires_at < planq_now() ORDER BY expires_at LIMIT 10000
    FOR UPDATE SKIP LOCKED
))

-- name: tidy_offers
-- Removes some of what was chosen for jobs that were made as long ago as an insight is kept (INSIGHT_DAYS), tenant by tenant.
DELETE FROM insight_offers o USING (
    SELECT d.tenant_id, d.job_id FROM tenants t
    CROSS JOIN LATERAL (
        SELECT d.tenant_id, d.job_id FROM insight_offers d
        WHERE d.tenant_id = t.id AND d.job_id < planq_first_id(planq_now() - interval '90 days')
        ORDER BY d.job_id LIMIT 10000
    ) d
) old WHERE o.tenant_id = old.tenant_id AND o.job_id = old.job_id

-- name: list_insights
-- A tenant's insights, the newest first; those that are retired only where they are asked for, of a kind and of a tool if given.
SELECT id, kind, tool_name, lesson, body, reflection, seen, against, calls, failed_calls, seconds, is_pinned, retired_at, first_seen_at,
       last_seen_at, expires_at
FROM insights
WHERE tenant_id = %(tenant_id)s AND (%(retired)s::boolean OR retired_at IS NULL)
  AND (%(kind)s::text IS NULL OR kind = %(kind)s) AND (%(tool)s::text IS NULL OR tool_name = %(tool)s)
  AND (%(below)s::uuid IS NULL OR id < %(below)s)
ORDER BY id DESC LIMIT %(limit)s

-- name: get_insight
-- One of them, with the newest jobs that have taught it.
SELECT i.id, i.kind, i.tool_name, i.lesson, i.body, i.reflection, i.reflection_job_id, i.reflected_job_id, i.seen, i.against, i.calls, i.failed_calls, i.seconds, i.is_pinned,
       i.retired_at, i.first_seen_at, i.last_seen_at, i.expires_at,
       (SELECT json_agg(json_build_object('job_id', s.job_id, 'round', s.round, 'step_index', s.step_index, 'seen_at', s.seen_at)
                        ORDER BY s.job_id DESC)
        FROM insight_sources s WHERE s.insight_id = i.id AND s.tenant_id = i.tenant_id) AS sources
FROM insights i WHERE i.tenant_id = %(tenant_id)s AND i.id = %(id)s

-- name: change_insight
-- Pins or retires an insight, or takes that back; what is null stays.
UPDATE insights SET is_pinned = coalesce(%(is_pinned)s, is_pinned),
    retired_at = CASE WHEN %(is_retired)s::boolean IS NULL THEN retired_at
                      WHEN %(is_retired)s THEN coalesce(retired_at, planq_now()) END
WHERE tenant_id = %(tenant_id)s AND id = %(id)s
RETURNING id

-- name: insights_of_job
-- What was chosen for a tenant's job, and of it what is still there.
SELECT o.side, o.tokens, o.created_at, o.ended_at, o.is_success, (
    SELECT json_agg(json_build_object('id', i.id, 'lesson', i.lesson) ORDER BY u.n)
    FROM unnest(o.insight_ids) WITH ORDINALITY u (id, n) JOIN insights i ON i.id = u.id AND i.tenant_id = o.tenant_id
) AS insights
FROM jobs j LEFT JOIN insight_offers o ON o.tenant_id = j.tenant_id AND o.job_id = j.id
WHERE j.tenant_id = %(tenant_id)s AND j.id = %(job_id)s

-- name: offers_by_side
-- What jobs came to for which insights were chosen, the newest so many since a time: sums over a hundred blocks of each side.
-- The last bytes of an id are chance.
SELECT o.side, o.block, count(*)::int AS jobs, count(*) FILTER (WHERE o.is_success)::int AS succeeded,
       sum(o.failed_calls)::float8 AS tool_failures, sum(o.rounds)::float8 AS rounds, sum(o.seconds) AS seconds,
       sum(o.cost_usd) AS cost_usd, sum(o.used_tokens)::float8 AS tokens
FROM (
    SELECT *, mod(get_byte(uuid_send(job_id), 15) * 256 + get_byte(uuid_send(job_id), 14), 100) AS block
    FROM insight_offers
    WHERE tenant_id = %(tenant_id)s AND job_id >= planq_first_id(planq_now() - make_interval(secs => %(days)s * 86400))
      AND ended_at IS NOT NULL
    ORDER BY job_id DESC LIMIT %(limit)s
) o GROUP BY o.side, o.block

-- name: offers_by_insight
-- The same by insight, success alone.
SELECT i.id, i.kind, i.lesson, i.is_pinned, i.retired_at,
       count(*) FILTER (WHERE o.side = 'offered')::int AS offered,
       count(*) FILTER (WHERE o.side = 'offered' AND o.is_success)::int AS offered_succeeded,
       count(*) FILTER (WHERE o.side = 'held_out')::int AS held_out,
       count(*) FILTER (WHERE o.side = 'held_out' AND o.is_success)::int AS held_out_succeeded
FROM (
    SELECT side, is_success, insight_ids FROM insight_offers
    WHERE tenant_id = %(tenant_id)s AND job_id >= planq_first_id(planq_now() - make_interval(secs => %(days)s * 86400))
      AND ended_at IS NOT NULL
    ORDER BY job_id DESC LIMIT %(limit)s
) o CROSS JOIN LATERAL unnest(o.insight_ids) u (id) JOIN insights i ON i.id = u.id AND i.tenant_id = %(tenant_id)s
GROUP BY i.id, i.kind, i.lesson, i.is_pinned, i.retired_at
ORDER BY offered DESC, i.id LIMIT 100
