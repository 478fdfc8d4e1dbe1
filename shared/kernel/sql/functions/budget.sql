-- Budget: what a tree of jobs, the outermost job and everything below it, may use up together.
--
-- planq_reserve asks before a call whether the limits leave what it may need, and holds that until the call is recorded:
-- in tokens, money, calls and steps, for a stage or a step. The commit that records the call settles the hold, and the
-- end of the claim that it was made for ends it (planq_is_held). The limits stand in every job of the tree
-- (`jobs.budget`), what is used is the sum over its jobs (planq_tree_used): a call counts from the commit that records
-- it. Reservations of one tree take turns by the row in `budgets`, which no other transition locks.
--
-- planq_charge_step counts what calls of tools cost, in the same sum: a declared price before the call is begun, within the
-- limit, and what the tool says of it afterwards instead.

-- Reserves what an attempt at a stage of a job (index -1) or at one of its steps is about to use, where the limits of its
-- tree leave that, and its agent's own ones, `p_own`, which count for the job alone.
-- `p_holder` is a `planq_holder`, `p_wanted` a `planq_wanted`, `p_made` a `planq_made` and `p_own` a `planq_own`.
-- The reservation replaces an earlier one of the same stage or step. Who cuts the claim off meanwhile waits, and then sees what is held.
-- Returns {reply_tokens} | {exceeded, most, used} | {paused} | {late}: the claim is not the holder's any more.
CREATE FUNCTION planq_reserve(p_holder json, p_wanted json, p_made json, p_own json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    h CONSTANT planq_holder := json_populate_record(NULL::planq_holder, p_holder);
    m CONSTANT planq_made := json_populate_record(NULL::planq_made, p_made);
    o CONSTANT planq_own := json_populate_record(NULL::planq_own, p_own);
    w planq_wanted := json_populate_record(NULL::planq_wanted, p_wanted);
    j jobs;
    b budgets;
    u record;
    v_rate float8;
    v_most float8[];
    v_used float8[];
    v_next float8[];
    v_passed json;
    v_share float8;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = h.job;
    IF p_own IS NOT NULL AND w.calls > 0 THEN
        v_used := ARRAY[j.model_calls + m.calls, j.input_tokens + m.input, j.output_tokens + m.output,
                        j.input_tokens + m.input + j.output_tokens + m.output];
        v_passed := planq_passed('{request_limit,input_tokens_limit,output_tokens_limit,total_tokens_limit}',
            ARRAY[o.request_limit, o.input_tokens_limit, o.output_tokens_limit, o.total_tokens_limit],
            v_used, ARRAY[w.calls, w.asked, w.least, w.asked + w.least]);
        IF v_passed IS NOT NULL THEN
            RETURN v_passed;
        END IF;
        w.reply := floor(least(w.reply, o.output_tokens_limit - v_used[3], o.total_tokens_limit - v_used[4] - w.asked));
    END IF;
    IF j.budget IS NULL THEN
        RETURN json_build_object('reply_tokens', CASE WHEN w.calls > 0 THEN w.reply::bigint END);
    END IF;
    b := planq_lock_budget(coalesce(j.root_job_id, j.id), j.tenant_id);
    -- Looked at after the lock: another attempt may have reserved while this one waited for its turn.
    IF h.index < 0 THEN
        PERFORM FROM jobs WHERE id = h.job AND status IN ('planning', 'responding') AND stage_worker IS NOT NULL
          AND stage_attempt = h.attempt FOR SHARE;
    ELSE
        PERFORM FROM steps WHERE job_id = h.job AND round = h.round AND index = h.index AND status = ANY (planq_step_running())
          AND attempt = h.attempt FOR SHARE;
    END IF;
    IF h.attempt >= 0 AND NOT FOUND THEN
        RETURN '{"late": true}';
    END IF;
    SELECT t.tokens + m.input + m.output AS tokens, t.cost + m.cost AS cost, t.calls + m.calls AS calls, t.steps, t.tool_cost,
           t.held_tokens, t.held_cost, t.held_calls, t.held_steps INTO u
    FROM planq_tree_used(b.root_job_id, h.job, h.index) t;
    v_rate := CASE WHEN u.tokens > 0 THEN greatest(u.cost - u.tool_cost, 0) / u.tokens ELSE 0 END;
    w.asked_usd := coalesce(w.asked_usd, v_rate * w.asked);
    w.token_usd := coalesce(w.token_usd, v_rate);
    v_most := ARRAY[(j.budget->>'max_tokens')::float8, (j.budget->>'max_cost_usd')::float8,
                    (j.budget->>'max_model_calls')::float8, (j.budget->>'max_steps')::float8];
    v_used := ARRAY[u.tokens + u.held_tokens, u.cost + u.held_cost, u.calls + u.held_calls, u.steps + u.held_steps];
    -- A call costs something, if only a little, so that none is begun where the money is spent.
    v_next := ARRAY[(w.asked + w.least) * sign(w.calls),
                    greatest(w.asked_usd + w.token_usd * w.least, 1e-9) * sign(w.calls), w.calls, w.steps];
    v_passed := planq_passed('{max_tokens,max_cost_usd,max_model_calls,max_steps}', v_most, v_used, v_next);
    IF v_passed IS NOT NULL THEN
        RETURN v_passed;
    END IF;
    IF w.calls > 0 THEN
        w.reply := floor(least(w.reply, v_most[1] - v_used[1] - w.asked,
            CASE WHEN w.token_usd > 0 THEN (v_most[2] - v_used[2] - w.asked_usd) / w.token_usd END));
    END IF;
    SELECT max((c.used + c.next) / c.most) INTO v_share FROM unnest(v_most, v_used, v_next) AS c (most, used, next);
    IF v_share >= (j.budget->>'soft')::float8 THEN
        IF planq_warn_of_budget(b, coalesce((j.budget->>'ask')::boolean, false), w.may_ask, json_build_object(
                'soft', j.budget->'soft', 'tokens', u.tokens, 'cost_usd', u.cost, 'model_calls', u.calls,
                'steps', u.steps, 'by', h.job)) THEN
            RETURN json_build_object('paused', true);
        END IF;
    END IF;
    IF h.attempt >= 0 THEN
        INSERT INTO budget_holds (job_id, index, root_job_id, round, attempt, call_id, tokens, cost_usd, model_calls,
                                  steps)
        VALUES (h.job, h.index, b.root_job_id, h.round, h.attempt, h.call,
                m.input + m.output + CASE WHEN w.calls > 0 THEN w.asked + w.reply ELSE 0 END,
                m.cost + CASE WHEN w.calls > 0 THEN w.asked_usd + w.token_usd * w.reply ELSE 0 END,
                m.calls + w.calls, w.steps)
        ON CONFLICT (job_id, index) DO UPDATE SET round = excluded.round, attempt = excluded.attempt,
            call_id = excluded.call_id, tokens = excluded.tokens, cost_usd = excluded.cost_usd,
            model_calls = excluded.model_calls, steps = excluded.steps, owed_until = NULL;
    END IF;
    RETURN json_build_object('reply_tokens', CASE WHEN w.calls > 0 THEN w.reply::bigint END);
END $$;

-- Locks a tree's row in `budgets`, by which its reservations take turns; first the root's row, as long as the tree may still be paused.
CREATE FUNCTION planq_lock_budget(p_root uuid, p_tenant text) RETURNS budgets LANGUAGE plpgsql AS $$
DECLARE
    b budgets;
BEGIN
    INSERT INTO budgets (root_job_id, tenant_id) VALUES (p_root, p_tenant) ON CONFLICT DO NOTHING;
    PERFORM FROM budgets WHERE root_job_id = p_root AND warned_at IS NOT NULL;
    IF NOT FOUND THEN
        PERFORM FROM jobs WHERE id = p_root FOR NO KEY UPDATE;
    END IF;
    SELECT * INTO b FROM budgets WHERE root_job_id = p_root FOR UPDATE;
    RETURN b;
END $$;

-- Tells once, as `p_event` says, that a tree has come to the soft share of its budget, and pauses it where it `p_asks` people and the claim
-- `p_may_ask`. Returns whether it is paused. The caller holds the tree's row `b` (planq_lock_budget).
CREATE FUNCTION planq_warn_of_budget(b budgets, p_asks boolean, p_may_ask boolean, p_event json) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF b.warned_at IS NOT NULL THEN
        -- Paused already: by a call of this very holder whose answer was lost, or by another one at the same time.
        RETURN p_may_ask AND p_asks AND EXISTS (SELECT FROM jobs WHERE id = b.root_job_id AND paused_at IS NOT NULL);
    END IF;
    -- The holder of the job's row appends its events, so that a reader who follows them misses none.
    IF NOT EXISTS (SELECT FROM events WHERE job_id = b.root_job_id AND kind = 'budget_warning') THEN
        PERFORM planq_append_event(b.tenant_id, b.root_job_id, 'budget_warning', p_event);
    END IF;
    -- Where the tree is to ask and this stage cannot wait, the next one that can does.
    IF p_may_ask OR NOT p_asks THEN
        UPDATE budgets SET warned_at = planq_now() WHERE root_job_id = b.root_job_id;
    END IF;
    IF p_may_ask AND p_asks THEN
        RETURN (planq_pause_job(b.root_job_id, b.tenant_id)->>'applied')::boolean;
    END IF;
    RETURN false;
END $$;

-- StepCharged: what the call of an attempt costs, instead of what it was said to cost before; the step and its job have the sum.
-- Whatever becomes of the attempt, as with model calls: what was spent was spent. A price that is declared is charged
-- ahead of the call (`p_is_ahead`) and only within the limit of the tree: calls at the same time take turns by the row in
-- `budgets`, locked in the order of planq_reserve, so that they cannot pass it together, and a call whose worker dies is
-- counted. Repeating it changes nothing. The day's costs have it at once: what a tool reports may be less than its price, and a
-- sum that only grows could not take that back. Returns {} | {exceeded, most, used}.
CREATE FUNCTION planq_charge_step(p_job uuid, p_index int, p_attempt int, p_usd numeric, p_is_ahead boolean)
RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j record;
    v_most float8;
    v_more numeric;
    v_charges jsonb;
    v_passed json;
    v_tool text;
BEGIN
    SELECT tenant_id, (budget->>'max_cost_usd')::float8 AS most, coalesce(root_job_id, id) AS root,
        coalesce(agent_name, '') AS agent INTO j
    FROM jobs WHERE id = p_job;
    v_most := CASE WHEN p_is_ahead THEN j.most END;
    IF v_most IS NOT NULL THEN
        PERFORM planq_lock_budget(j.root, j.tenant_id);
    END IF;
    PERFORM FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    SELECT coalesce(charges::jsonb, '{}'), tool_name INTO v_charges, v_tool FROM steps WHERE job_id = p_job AND index = p_index;
    IF NOT FOUND THEN
        RETURN '{}';
    END IF;
    v_more := p_usd - coalesce((v_charges->>p_attempt::text)::numeric, 0);
    IF v_most IS NOT NULL THEN
        SELECT planq_passed('{max_cost_usd}', ARRAY[v_most], ARRAY[u.cost + u.held_cost], ARRAY[v_more::float8]) INTO v_passed
        FROM planq_tree_used(j.root, NULL, NULL) u;
        IF v_passed IS NOT NULL THEN
            RETURN v_passed;
        END IF;
    END IF;
    UPDATE jobs SET cost_usd = coalesce(cost_usd, 0) + v_more WHERE id = p_job;
    UPDATE steps SET cost_usd = coalesce(cost_usd, 0) + v_more,
        charges = (v_charges || jsonb_build_object(p_attempt::text, p_usd))::json
    WHERE job_id = p_job AND index = p_index;
    IF v_more <> 0 THEN
        INSERT INTO daily_costs AS d (tenant_id, day, agent, model, calls, unpriced_calls, input_tokens, output_tokens, cost_usd)
        VALUES (j.tenant_id, (planq_now() AT TIME ZONE 'UTC')::date, j.agent, 'tool:' || v_tool,
                (NOT v_charges ? p_attempt::text)::int, 0, 0, 0, v_more)
        ON CONFLICT (tenant_id, day, agent, model) DO UPDATE SET
            calls = d.calls + excluded.calls, cost_usd = d.cost_usd + excluded.cost_usd;
    END IF;
    RETURN '{}';
END $$;

-- Whether the next of what is counted would pass a limit: {exceeded, most, used} of the first that it would, else null.
CREATE FUNCTION planq_passed(p_names text[], p_most float8[], p_used float8[], p_next float8[]) RETURNS json
LANGUAGE sql IMMUTABLE AS $$
    SELECT json_build_object('exceeded', c.name, 'most', c.most, 'used', c.used)
    FROM unnest(p_names, p_most, p_used, p_next) WITH ORDINALITY AS c (name, most, used, next, place)
    WHERE c.next > 0 AND c.used + c.next > c.most ORDER BY c.place LIMIT 1
$$;

-- Returns what the jobs of a tree have used, and what its reservations hold without that of the stage or step `p_index` of `p_job`.
-- `tool_cost` is the tools' part of the cost. One statement reads all of it, so a call that is recorded meanwhile is used or held,
-- never both.
CREATE FUNCTION planq_tree_used(p_root uuid, p_job uuid DEFAULT NULL, p_index int DEFAULT NULL)
RETURNS TABLE (tokens float8, cost float8, calls float8, steps float8, tool_cost float8,
               held_tokens float8, held_cost float8, held_calls float8, held_steps float8)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE tree (id) AS (
        SELECT p_root
        UNION
        SELECT c.id FROM tree t CROSS JOIN LATERAL (SELECT j.id FROM jobs j WHERE j.parent_job_id = t.id OFFSET 0) c
    ), used AS (
        SELECT sum(j.input_tokens + j.output_tokens) AS tokens, sum(j.cost_usd) AS cost, sum(j.model_calls) AS calls,
               sum(o.steps) AS steps, sum(o.cost_usd) AS tool_cost
        FROM jobs j CROSS JOIN LATERAL (
            SELECT count(*) AS steps, sum(s.cost_usd) AS cost_usd FROM steps s WHERE s.job_id = j.id
        ) o
        WHERE j.id = ANY (ARRAY(SELECT t.id FROM tree t))
    ), held AS (
        SELECT sum(q.tokens) AS tokens, sum(q.cost_usd) AS cost, sum(q.model_calls) AS calls, sum(q.steps) AS steps
        FROM budget_holds q
        WHERE q.root_job_id = p_root AND (q.job_id, q.index) IS DISTINCT FROM (p_job, p_index) AND planq_is_held(q)
    )
    SELECT coalesce(u.tokens, 0)::float8, coalesce(u.cost, 0)::float8, coalesce(u.calls, 0)::float8,
           coalesce(u.steps, 0)::float8, coalesce(u.tool_cost, 0)::float8, coalesce(h.tokens, 0)::float8,
           coalesce(h.cost, 0)::float8, coalesce(h.calls, 0)::float8, coalesce(h.steps, 0)::float8
    FROM used u CROSS JOIN held h;
END $$;

-- Returns the sums of what the jobs below a job have used, with `p_is_whole` those of the job and all below it.
CREATE FUNCTION planq_usage(p_job uuid, p_is_whole boolean)
RETURNS TABLE (jobs bigint, model_calls bigint, input_tokens bigint, output_tokens bigint, cache_read_tokens bigint,
               cache_write_tokens bigint, cost_usd numeric)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE tree (id) AS (
        SELECT p_job
        UNION
        SELECT c.id FROM tree t CROSS JOIN LATERAL (SELECT j.id FROM jobs j WHERE j.parent_job_id = t.id OFFSET 0) c
    )
    SELECT count(*), coalesce(sum(j.model_calls), 0)::bigint, coalesce(sum(j.input_tokens), 0)::bigint,
           coalesce(sum(j.output_tokens), 0)::bigint, coalesce(sum(j.cache_read_tokens), 0)::bigint,
           coalesce(sum(j.cache_write_tokens), 0)::bigint, sum(j.cost_usd)
    FROM jobs j WHERE j.id = ANY (ARRAY(SELECT t.id FROM tree t)) AND (p_is_whole OR j.id <> p_job);
END $$;

-- Whether a reservation counts: its call is not recorded, and its attempt still has the stage or step, or was cut off just now.
CREATE FUNCTION planq_is_held(q budget_holds) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM model_calls m WHERE m.job_id = q.job_id AND m.call_id = q.call_id) AND CASE
        WHEN q.owed_until > planq_now() THEN true
        WHEN q.index < 0 THEN EXISTS (
            SELECT FROM jobs o WHERE o.id = q.job_id AND o.status IN ('planning', 'responding')
              AND o.stage_worker IS NOT NULL AND o.stage_attempt = q.attempt)
        ELSE EXISTS (
            SELECT FROM steps s WHERE s.job_id = q.job_id AND s.round = q.round AND s.index = q.index
              AND s.status = ANY (planq_step_running()) AND s.attempt = q.attempt) END
$$;

-- A budget less what the tree below `p_root` has used or holds; what is over is 0 or less. Null for none.
CREATE FUNCTION planq_budget_left(p_budget json, p_root uuid) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    u record;
BEGIN
    IF p_budget IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT * INTO u FROM planq_tree_used(p_root, NULL, NULL);
    RETURN p_budget::jsonb || jsonb_strip_nulls(jsonb_build_object(
        'max_tokens', (p_budget->>'max_tokens')::numeric - (u.tokens + u.held_tokens)::numeric,
        'max_cost_usd', (p_budget->>'max_cost_usd')::numeric - (u.cost + u.held_cost)::numeric,
        'max_model_calls', (p_budget->>'max_model_calls')::numeric - (u.calls + u.held_calls)::numeric,
        'max_steps', (p_budget->>'max_steps')::numeric - (u.steps + u.held_steps)::numeric));
END $$;
