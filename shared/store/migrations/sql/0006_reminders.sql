-- Budgets of reminders (release 0006): what a reminder makes may use what its tree had left, once.

-- A budget less what the tree below `p_root` has used or holds; what is over is 0 or less. Null for none.
CREATE FUNCTION planq_budget_left(p_budget json, p_root uuid) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    u record;
    h record;
BEGIN
    IF p_budget IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT * INTO u FROM planq_tree_used(p_root);
    SELECT coalesce(sum(q.tokens), 0)::float8 AS tokens, coalesce(sum(q.cost_usd), 0)::float8 AS cost,
           coalesce(sum(q.model_calls), 0)::float8 AS calls, coalesce(sum(q.steps), 0)::float8 AS steps INTO h
    FROM budget_holds q WHERE q.root_job_id = p_root AND planq_is_held(q);
    RETURN p_budget::jsonb || jsonb_strip_nulls(jsonb_build_object(
        'max_tokens', (p_budget->>'max_tokens')::numeric - (u.tokens + h.tokens)::numeric,
        'max_cost_usd', (p_budget->>'max_cost_usd')::numeric - (u.cost + h.cost)::numeric,
        'max_model_calls', (p_budget->>'max_model_calls')::numeric - (u.calls + h.calls)::numeric,
        'max_steps', (p_budget->>'max_steps')::numeric - (u.steps + h.steps)::numeric));
END $$;

-- Whether nothing can be done any more with what is left of a budget; false for none.
CREATE FUNCTION planq_budget_is_spent(p_left json) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_left IS NOT NULL AND EXISTS (
        SELECT FROM json_each_text(p_left) AS l (name, value)
        WHERE l.name IN ('max_tokens', 'max_cost_usd', 'max_model_calls', 'max_steps') AND l.value::numeric <= 0)
$$;

-- Whether a job runs no more: it has ended, or is there no more; true for none.
CREATE FUNCTION planq_has_ended(p_job uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (
        SELECT FROM jobs j WHERE j.id = p_job AND j.status NOT IN ('completed', 'failed', 'cancelled'))
$$;
