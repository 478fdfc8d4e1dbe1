-- name: approvals
-- The tools that people have approved for the rest of a job, whom that was asked of, and what its tree of jobs has used by now.
SELECT (SELECT array_agg(DISTINCT ARRAY[s.tool_name, q.asked_of::text]) FROM questions q
        JOIN steps s ON s.job_id = q.job_id AND s.index = q.step_index
        WHERE q.job_id = j.id AND q.kind = 'approval' AND q.status = 'accepted' AND q.content->>'scope' = 'job') AS tools,
       u.tokens::bigint AS tokens, u.cost::float8 AS cost, u.calls::bigint AS calls
FROM jobs j CROSS JOIN LATERAL planq_tree_used(coalesce(j.root_job_id, j.id), NULL, NULL) u WHERE j.id = %(job_id)s

-- name: steps_to_ask_about
-- Steps of a round that have not begun and whose arguments are known by now, as their claims will be, without those of which a
-- person was asked ahead.
SELECT c.claim FROM planq_step_claims(ARRAY(
    SELECT ROW(NULL, s.job_id, s.round, s.index, 0)::planq_step_ref FROM steps s
    WHERE s.job_id = %(job_id)s AND s.tenant_id = %(tenant_id)s AND s.round = %(round)s AND s.status = ANY (planq_step_unstarted())
      AND s.kind <> 'elicitation' AND NOT s.is_asked_ahead AND NOT s.joined
      AND NOT EXISTS (SELECT FROM steps d WHERE d.job_id = s.job_id AND d.index = ANY (s.inputs) AND d.status <> 'succeeded')
    ORDER BY s.index LIMIT %(limit)s
)) c

-- name: lock_questions
-- Lets those who ask people for one tenant take turns until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('planq.questions/' || %(tenant_id)s, 0))

-- name: too_many_questions
-- How many open questions a tenant may have, where it has more and these are among them; else no row.
SELECT c.most FROM (
    SELECT coalesce((t.config ->> 'max_open_questions')::int, %(most)s::int) AS most FROM tenants t WHERE t.id = %(tenant_id)s
) c
WHERE c.most < (SELECT count(*) FROM (
        SELECT FROM questions q WHERE q.tenant_id = %(tenant_id)s AND q.status = 'open' LIMIT c.most + 1) open)
  AND EXISTS (SELECT FROM questions q WHERE q.tenant_id = %(tenant_id)s AND q.id = ANY (%(ids)s::uuid[]))

-- name: expired_questions
-- Waiting steps that asked a person, and whose time for an answer is over.
SELECT s.job_id, s.round, s.index, s.tenant_id, s.tool_name, s.kind AS step_kind, q.id, q.kind, q.default_content AS default,
       (j.limits->>'human_wait_seconds')::float8 AS limit_seconds
FROM steps s JOIN jobs j ON j.id = s.job_id JOIN questions q ON q.id = s.question_id
WHERE s.status = ANY (planq_step_waiting()) AND s.question_id IS NOT NULL AND s.wake_at <= planq_now()
  AND j.paused_at IS NULL
ORDER BY s.wake_at LIMIT %(limit)s

-- name: sweep_look/questions
SELECT 'questions', NULL, NULL WHERE EXISTS (
    SELECT FROM steps s JOIN jobs j ON j.id = s.job_id
    WHERE s.status = ANY (planq_step_waiting()) AND s.question_id IS NOT NULL AND s.wake_at <= planq_now()
      AND j.paused_at IS NULL
)
