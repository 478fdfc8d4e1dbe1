-- Submit: a request becomes a job. planq_submit_jobs writes the job, the caller's plan and the first event.

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
