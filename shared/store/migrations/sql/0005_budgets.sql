-- The budget of a tree of jobs (release 0005): what its outermost job and everything below it may use up together. The
-- limits stand in every job of the tree (`jobs.budget`), what is used is the sum over its jobs, so that there is nothing
-- to settle: a call counts from the commit that records it. Reservations of one tree take turns by the row in `budgets`,
-- which no other transition locks.

-- What the jobs of a tree have used: {tokens, cost, calls, steps}.
CREATE FUNCTION planq_tree_used(p_root uuid) RETURNS TABLE (tokens float8, cost float8, calls float8, steps float8)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE tree (id) AS (
        SELECT p_root
        UNION
        SELECT c.id FROM tree t JOIN jobs c ON c.parent_job_id = t.id
    )
    SELECT coalesce(sum(j.input_tokens + j.output_tokens), 0)::float8, coalesce(sum(j.cost_usd), 0)::float8,
           coalesce(sum(j.model_calls), 0)::float8,
           coalesce(sum((SELECT count(*) FROM steps s WHERE s.job_id = j.id)), 0)::float8
    FROM tree t JOIN jobs j ON j.id = t.id;
END $$;

-- Whether the next of what is counted would pass a limit: {exceeded, most, used} of the first that it would, else null.
CREATE FUNCTION planq_passed(p_names text[], p_most float8[], p_used float8[], p_next float8[]) RETURNS json
LANGUAGE sql IMMUTABLE AS $$
    SELECT json_build_object('exceeded', c.name, 'most', c.most, 'used', c.used)
    FROM unnest(p_names, p_most, p_used, p_next) WITH ORDINALITY AS c (name, most, used, next, place)
    WHERE c.next > 0 AND c.used + c.next > c.most ORDER BY c.place LIMIT 1
$$;

-- Reserves for the stage `p_attempt` of a job (-1: for a step, which holds nothing) what it is about to use, where the
-- limits of its tree leave that, and its agent's own ones, `p_own`, which count for the job alone. `p_made` is what calls
-- of the same stage have used that are not recorded yet: {input, output, cost, calls}. A reply may be cut from `p_reply`
-- tokens to `p_least`. The reservation holds as long as that stage is carried out. Until a call has ended its price is
-- taken to be what the tree's tokens have cost so far.
-- Returns {reply_tokens} | {exceeded, most, used} | {paused}.
CREATE FUNCTION planq_reserve(
    p_job uuid, p_attempt int, p_asked float8, p_reply float8, p_least float8, p_calls int, p_steps int, p_made json,
    p_own json, p_may_ask boolean
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_made_tokens CONSTANT float8 := (p_made->>'input')::float8 + (p_made->>'output')::float8;
    v_names CONSTANT text[] := '{max_tokens,max_cost_usd,max_model_calls,max_steps}';
    j jobs;
    b budgets;
    u record;
    h record;
    v_root uuid;
    v_in float8;
    v_out float8;
    v_rate float8;
    v_reply float8 := p_reply;
    v_most float8[];
    v_used float8[];
    v_next float8[];
    v_passed json;
    v_share float8;
    v_asks boolean;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job;
    IF p_own IS NOT NULL AND p_calls > 0 THEN
        v_in := j.input_tokens + (p_made->>'input')::float8;
        v_out := j.output_tokens + (p_made->>'output')::float8;
        v_passed := planq_passed('{request_limit,input_tokens_limit,output_tokens_limit,total_tokens_limit}',
            ARRAY[(p_own->>'request_limit')::float8, (p_own->>'input_tokens_limit')::float8,
                  (p_own->>'output_tokens_limit')::float8, (p_own->>'total_tokens_limit')::float8],
            ARRAY[j.model_calls + (p_made->>'calls')::float8, v_in, v_out, v_in + v_out],
            ARRAY[p_calls, p_asked, p_least, p_asked + p_least]);
        IF v_passed IS NOT NULL THEN
            RETURN v_passed;
        END IF;
        v_reply := floor(least(v_reply, (p_own->>'output_tokens_limit')::float8 - v_out,
            (p_own->>'total_tokens_limit')::float8 - v_in - v_out - p_asked));
    END IF;
    IF j.budget IS NULL THEN
        RETURN json_build_object('reply_tokens', CASE WHEN p_calls > 0 THEN v_reply::bigint END);
    END IF;
    v_root := coalesce(j.root_job_id, j.id);
    v_asks := coalesce((j.budget->>'ask')::boolean, false);
    INSERT INTO budgets (root_job_id, tenant_id) VALUES (v_root, j.tenant_id) ON CONFLICT DO NOTHING;
    SELECT * INTO b FROM budgets WHERE root_job_id = v_root FOR UPDATE;
    SELECT * INTO u FROM planq_tree_used(v_root);
    SELECT coalesce(sum(q.tokens), 0)::float8 AS tokens, coalesce(sum(q.model_calls), 0)::float8 AS calls,
           coalesce(sum(q.steps), 0)::float8 AS steps INTO h
    FROM budget_holds q JOIN jobs o ON o.id = q.job_id
    WHERE q.root_job_id = v_root AND q.job_id <> p_job AND o.status IN ('planning', 'responding')
      AND o.stage_worker IS NOT NULL AND o.stage_attempt = q.attempt;
    u.tokens := u.tokens + v_made_tokens;
    u.cost := u.cost + (p_made->>'cost')::float8;
    u.calls := u.calls + (p_made->>'calls')::float8;
    v_rate := CASE WHEN u.tokens > 0 THEN u.cost / u.tokens ELSE 0 END;
    v_most := ARRAY[(j.budget->>'max_tokens')::float8, (j.budget->>'max_cost_usd')::float8,
                    (j.budget->>'max_model_calls')::float8, (j.budget->>'max_steps')::float8];
    v_used := ARRAY[u.tokens + h.tokens, u.cost + v_rate * h.tokens, u.calls + h.calls, u.steps + h.steps];
    -- A call costs something, if only a little, so that none is begun where the money is spent.
    v_next := ARRAY[(p_asked + p_least) * sign(p_calls), greatest(v_rate * (p_asked + p_least), 1e-9) * sign(p_calls),
                    p_calls, p_steps];
    v_passed := planq_passed(v_names, v_most, v_used, v_next);
    IF v_passed IS NOT NULL THEN
        RETURN v_passed;
    END IF;
    IF p_calls > 0 THEN
        v_reply := floor(least(v_reply, v_most[1] - v_used[1] - p_asked,
            CASE WHEN v_rate > 0 THEN (v_most[2] - v_used[2]) / v_rate - p_asked END));
    END IF;
    SELECT max((c.used + c.next) / c.most) INTO v_share FROM unnest(v_most, v_used, v_next) AS c (most, used, next);
    IF v_share >= (j.budget->>'soft')::float8 AND b.warned_at IS NULL THEN
        -- Its events are told by whoever holds the job's row, so that those who follow them miss none.
        PERFORM FROM jobs WHERE id = v_root FOR NO KEY UPDATE;
        IF NOT EXISTS (SELECT FROM events WHERE job_id = v_root AND kind = 'budget_warning') THEN
            PERFORM planq_tell(b.tenant_id, v_root, 'budget_warning', json_build_object(
                'soft', j.budget->'soft', 'tokens', u.tokens, 'cost_usd', u.cost, 'model_calls', u.calls,
                'steps', u.steps, 'by', p_job));
        END IF;
        -- Where the tree is to ask and this stage cannot wait, the next one that can does.
        IF p_may_ask OR NOT v_asks THEN
            UPDATE budgets SET warned_at = now() WHERE root_job_id = v_root;
        END IF;
        IF p_may_ask AND v_asks AND (planq_pause_job(v_root, b.tenant_id)->>'landed')::boolean THEN
            RETURN json_build_object('paused', true);
        END IF;
    END IF;
    IF p_attempt >= 0 THEN
        INSERT INTO budget_holds (job_id, root_job_id, attempt, tokens, model_calls, steps)
        VALUES (p_job, v_root, p_attempt, v_made_tokens + CASE WHEN p_calls > 0 THEN p_asked + v_reply ELSE 0 END,
                (p_made->>'calls')::int + p_calls, p_steps)
        ON CONFLICT (job_id) DO UPDATE SET attempt = excluded.attempt, tokens = excluded.tokens,
            model_calls = excluded.model_calls, steps = excluded.steps;
    END IF;
    RETURN json_build_object('reply_tokens', CASE WHEN p_calls > 0 THEN v_reply::bigint END);
END $$;

-- Tells of a stage what people should know, once for each kind, as long as the attempt that tells it is the job's.
-- Returns whether it is.
CREATE FUNCTION planq_warn(p_job uuid, p_attempt int, p_kind text, p_data json) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_tenant text;
BEGIN
    SELECT tenant_id INTO v_tenant FROM jobs
    WHERE id = p_job AND stage_attempt = p_attempt AND stage_worker IS NOT NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF NOT EXISTS (SELECT FROM events WHERE job_id = p_job AND kind = p_kind) THEN
        PERFORM planq_tell(v_tenant, p_job, p_kind, p_data);
    END IF;
    RETURN true;
END $$;
