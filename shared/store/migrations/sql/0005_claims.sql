-- What a claim brings in release 0005: what belongs to agents and child jobs comes apart, null for every other job. The
-- rules of 0003_claims.sql hold.

-- What the stage of a job needs that runs an agent, or is a child, or is in a further round, or shares a budget.
CREATE FUNCTION planq_stage_family(p_job uuid) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    j jobs;
    v_agent json;
    v_skills text[];
    v_texts json;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job;
    IF j.agent_name IS NOT NULL THEN
        SELECT document, skills INTO v_agent, v_skills FROM agents
        WHERE tenant_id = j.tenant_id AND name = j.agent_name AND version = j.agent_version;
        SELECT json_agg(k.text ORDER BY n.place) INTO v_texts
        FROM unnest(v_skills, j.skill_versions) WITH ORDINALITY AS n (name, version, place)
        JOIN skills k ON k.tenant_id = j.tenant_id AND k.name = n.name AND k.version = n.version;
    END IF;
    RETURN json_build_object(
        'agent', v_agent, 'agent_name', j.agent_name, 'agent_version', j.agent_version, 'instructions', v_texts,
        'action', j.action, 'with', j.with_input, 'depth', j.depth, 'root', j.root_job_id, 'parent', j.parent_job_id,
        'parent_round', j.parent_round, 'parent_index', j.parent_step_index, 'output', j.output, 'answer', j.answer,
        'budgeted', j.budget IS NOT NULL);
END $$;

-- As before; and in RESPOND too the plan, where neither the caller nor the model made it.
CREATE OR REPLACE FUNCTION planq_stage_claim(p_job uuid) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    j record;
    p record;
BEGIN
    SELECT tenant_id, status, round, stage_attempt, model, input, tools, limits, forked_from, user_id, trace_id,
           conversation_id,
           agent_name IS NOT NULL OR parent_job_id IS NOT NULL OR round > 0 OR budget IS NOT NULL AS has_family INTO j
    FROM jobs WHERE id = p_job;
    SELECT source, errors, reuse,
           CASE WHEN j.status = 'planning' OR source NOT IN ('caller', 'model') THEN body END AS body INTO p
    FROM plans WHERE job_id = p_job AND round = j.round;
    RETURN json_build_object(
        'job_id', p_job, 'tenant_id', j.tenant_id, 'status', j.status, 'round', j.round, 'attempt', j.stage_attempt,
        'model', j.model, 'input', j.input, 'tools', j.tools, 'limits', j.limits, 'forked_from', j.forked_from,
        'user_id', j.user_id, 'trace_id', j.trace_id, 'conversation_id', j.conversation_id,
        'plan_source', p.source, 'plan_errors', p.errors, 'plan_reuse', p.reuse, 'plan_body', p.body,
        'family', CASE WHEN j.has_family THEN planq_stage_family(p_job) END,
        'results', CASE WHEN j.status = 'responding' AND p.errors IS NULL THEN planq_results(p_job, j.round) END);
END $$;

-- As in 0003; `family` is there for steps that delegate, and in jobs of agents and child jobs. It is asked for apart: a
-- query within RETURN would double what every other claim costs.
CREATE OR REPLACE FUNCTION planq_step_claim(s steps) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    j record;
    v_outputs json;
    v_family json;
BEGIN
    SELECT user_id, trace_id, conversation_id, extract(epoch FROM deadline - now())::float8 AS time_left, agent_name,
           parent_job_id
    INTO j FROM jobs WHERE id = s.job_id;
    IF s.inputs <> '{}' THEN
        SELECT json_object_agg(i.index, json_build_object(
            'output', i.output, 'payload_hash', encode(i.payload_hash, 'hex'),
            'output_bytes', i.output_bytes, 'excerpts', i.excerpts))
        INTO v_outputs FROM steps i WHERE i.job_id = s.job_id AND i.round = s.round AND i.index = ANY (s.inputs);
    END IF;
    IF s.kind <> 'tool' OR s.gathered OR j.agent_name IS NOT NULL OR j.parent_job_id IS NOT NULL THEN
        SELECT json_build_object(
            'kind', s.kind, 'gathered', s.gathered, 'note', s.note, 'depth', o.depth, 'root', o.root_job_id,
            'agent', o.agent_name, 'limits', CASE WHEN s.kind <> 'tool' THEN o.limits END, 'skill', (
                SELECT a.skills[1] FROM agents a
                WHERE a.tenant_id = s.tenant_id AND a.name = o.agent_name AND a.version = o.agent_version),
            -- The arguments of a chained tool are an answer, and no plan's: nothing in them is a reference.
            'verbatim', s.round > 0 AND EXISTS (
                SELECT FROM plans p WHERE p.job_id = s.job_id AND p.round = s.round AND p.source = 'chained'))
        INTO v_family FROM jobs o WHERE o.id = s.job_id;
    END IF;
    RETURN json_build_object(
        'job_id', s.job_id, 'round', s.round, 'index', s.index, 'tenant_id', s.tenant_id, 'tool_name', s.tool_name,
        'effect', s.effect, 'lane', s.lane, 'arguments', s.arguments, 'attempt', s.attempt, 'retries', s.retries,
        'recovery', s.recovery, 'unsure', s.unsure, 'wanted', s.wanted, 'worker_losses', s.worker_losses,
        'releases', s.releases, 'timeout_seconds', s.timeout_seconds, 'user_id', j.user_id, 'trace_id', j.trace_id,
        'conversation_id', j.conversation_id, 'time_left', j.time_left, 'outputs', v_outputs, 'family', v_family);
END $$;

-- The versions that a job pins of the skills of an agent's document, in their order: of each the newest in use.
CREATE FUNCTION planq_pinned_skills(p_tenant text, p_skills text[]) RETURNS int[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT array_agg(k.version ORDER BY n.place) FROM unnest(p_skills) WITH ORDINALITY AS n (name, place)
            LEFT JOIN LATERAL (
                SELECT version FROM skills WHERE tenant_id = p_tenant AND name = n.name AND retired_at IS NULL
                ORDER BY version DESC LIMIT 1
            ) k ON true);
END $$;
