-- The two requests that come most often, planned once for a connection (release 0006). As statements of their own they
-- were planned each time, which took longer than they themselves (a look: 0.18 of 0.21 ms; 11/2026).

-- Inserts jobs, the plans that their callers sent, and their first events; one row for each job. `created_at` is null
-- where nothing was inserted: the tenant has used the idempotency key before, be it for another of these jobs, or, with
-- `is_gone`, there is no job any more that could be forked. Until the commit retention cannot remove that one: it waits
-- for the key lock or passes the job over, and then sees the fork.
CREATE FUNCTION planq_submit_jobs(
    p_id uuid[], p_tenant_id text[], p_strategy text[], p_model text[], p_limits text[], p_tools text[],
    p_metadata text[], p_input text[], p_user_id text[], p_trace_id text[], p_idempotency_key text[],
    p_request_hash text[], p_plan text[], p_expires_seconds float8[], p_forked_from uuid[], p_reuse text[],
    p_agent_name text[], p_agent_version int[], p_skill_versions text[], p_action text[], p_with_input text[],
    p_budget text[]
) RETURNS TABLE (id uuid, created_at timestamptz, is_gone boolean) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    g record;
    v_told json;
    v_events planq_event[];
BEGIN
    FOR g IN SELECT * FROM unnest(
        p_id, p_tenant_id, p_strategy, p_model, p_limits, p_tools, p_metadata, p_input, p_user_id, p_trace_id,
        p_idempotency_key, p_request_hash, p_plan, p_expires_seconds, p_forked_from, p_reuse, p_agent_name,
        p_agent_version, p_skill_versions, p_action, p_with_input, p_budget
    ) AS a (
        id, tenant_id, strategy, model, limits, tools, metadata, input, user_id, trace_id, idempotency_key,
        request_hash, plan, expires_seconds, forked_from, reuse, agent_name, agent_version, skill_versions,
        action, with_input, budget
    ) LOOP
        id := g.id;
        created_at := NULL;
        is_gone := false;
        v_told := NULL;
        IF g.forked_from IS NOT NULL THEN
            PERFORM FROM jobs j WHERE j.id = g.forked_from AND j.tenant_id = g.tenant_id FOR KEY SHARE;
            is_gone := NOT FOUND;
            v_told := json_build_object('forked_from', g.forked_from);
        END IF;
        IF NOT is_gone THEN
            INSERT INTO jobs AS j (
                id, tenant_id, root_job_id, strategy, status, model, limits, tools, metadata, input, user_id, trace_id,
                idempotency_key, request_hash, wake_at, expires_at, forked_from, agent_name, agent_version,
                skill_versions, action, with_input, budget
            ) VALUES (
                g.id, g.tenant_id, g.id, g.strategy, 'queued', g.model, g.limits::json, g.tools::text[],
                g.metadata::json, g.input, g.user_id, g.trace_id, g.idempotency_key, g.request_hash,
                now() + planq_wake_grace(), now() + make_interval(secs => g.expires_seconds), g.forked_from,
                g.agent_name, g.agent_version, g.skill_versions::int[], g.action, g.with_input::json, g.budget::json
            ) ON CONFLICT (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
            RETURNING j.created_at INTO created_at;
            IF FOUND THEN
                IF g.plan IS NOT NULL THEN
                    INSERT INTO plans (job_id, round, tenant_id, source, body, reuse)
                    VALUES (g.id, 0, g.tenant_id, 'caller', g.plan::json, g.reuse::json);
                END IF;
                v_events := v_events || ROW(g.tenant_id, g.id, 'job_submitted', v_told)::planq_event;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM planq_tell_all(v_events);
END $$;

-- What callers see of jobs, a row for each of those that there are: the job, the plan of its present round, and the
-- first `p_steps` steps of that round as one JSON array; plan and steps only where they are wanted, or the job has
-- ended. A budget comes with what its tree has used of it. OFFSET keeps the planner from joining whole tables.
CREATE FUNCTION planq_view_jobs(p_ids uuid[], p_tenants text[], p_wanted boolean[], p_ended text[], p_steps int)
RETURNS TABLE (
    id uuid, tenant_id text, status text, strategy text, input text, answer text, error text, model_calls int,
    input_tokens bigint, output_tokens bigint, cost_usd numeric, created_at timestamptz, started_at timestamptz,
    finished_at timestamptz, paused_at timestamptz, expires_at timestamptz, forked_from uuid, metadata text,
    agent_name text, agent_version int, action text, parent_job_id uuid, parent_step_index int, depth int, output text,
    chained text, round int, is_whole boolean, is_wanted boolean, plan_body text, plan_errors text, steps text,
    budget text
) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT j.id, j.tenant_id, j.status, j.strategy, j.input, j.answer, j.error, j.model_calls, j.input_tokens,
           j.output_tokens, j.cost_usd, j.created_at, j.started_at, j.finished_at, j.paused_at, j.expires_at,
           j.forked_from, j.metadata, j.agent_name, j.agent_version, j.action, j.parent_job_id, j.parent_step_index,
           j.depth, j.output, j.chained, j.round, j.is_whole, w.is_wanted, p.body, p.errors, s.steps,
           CASE WHEN j.is_whole AND j.limits_of_tree IS NOT NULL THEN (
               SELECT (j.limits_of_tree || jsonb_build_object('used', jsonb_build_object(
                   'tokens', u.tokens::bigint, 'cost_usd', u.cost, 'model_calls', u.calls::bigint,
                   'steps', u.steps::bigint)))::text
               FROM planq_tree_used(coalesce(j.root_job_id, j.id)) u
           ) END
    FROM unnest(p_ids, p_tenants, p_wanted) AS w (id, tenant_id, is_wanted)
    CROSS JOIN LATERAL (
        SELECT id, tenant_id, status, strategy, input, answer, error::text AS error, model_calls, input_tokens,
               output_tokens, cost_usd, created_at, started_at, finished_at, paused_at, expires_at, forked_from,
               metadata::text AS metadata, agent_name, agent_version, action, parent_job_id, parent_step_index, depth,
               output::text AS output, chained::text AS chained, budget::jsonb AS limits_of_tree, root_job_id, round,
               w.is_wanted OR status = ANY (p_ended) AS is_whole
        FROM jobs WHERE id = w.id AND tenant_id = w.tenant_id OFFSET 0
    ) j
    LEFT JOIN LATERAL (
        SELECT body::text AS body, errors::text AS errors FROM plans
        WHERE j.is_whole AND job_id = j.id AND round = j.round OFFSET 0
    ) p ON true
    CROSS JOIN LATERAL (
        SELECT json_agg(to_json(s))::text AS steps FROM (
            SELECT index, kind, tool_name, status, attempt, arguments, inputs, output,
                   encode(payload_hash, 'hex') AS payload_hash, output_bytes, excerpts, error, depends_on, reused_job,
                   reused_index, effect, recovery, question, started_at, finished_at
            FROM steps WHERE j.is_whole AND job_id = j.id AND round = j.round ORDER BY index LIMIT p_steps
        ) s
    ) s;
END $$;
