-- Budgets that calls at the same time cannot pass together, and model calls that are counted once (release 0006). What a
-- call may need is held from before it until it is recorded: for a stage or a step, in tokens, money, calls and steps.
-- It is settled by the commit that records the call, whichever that is, and ends with the claim that it was made for.

-- How long what a call may have cost stays held after its job was cut off: its worker hears of that within a heartbeat.
CREATE FUNCTION planq_owing() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '15 seconds' $$;

-- Whether an attempt has its stage (index -1) or step still.
CREATE FUNCTION planq_has_claim(p_job uuid, p_round int, p_index int, p_attempt int) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN p_index < 0 THEN EXISTS (
            SELECT FROM jobs o WHERE o.id = p_job AND o.status IN ('planning', 'responding')
              AND o.stage_worker IS NOT NULL AND o.stage_attempt = p_attempt)
        ELSE EXISTS (
            SELECT FROM steps s WHERE s.job_id = p_job AND s.round = p_round AND s.index = p_index
              AND s.status = 'running' AND s.attempt = p_attempt) END
$$;

-- Whether a reservation counts: its call is not recorded, and its claim lives, or was cut off just now.
CREATE FUNCTION planq_is_held(q budget_holds) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT (coalesce(q.owed_until > now(), false) OR planq_has_claim(q.job_id, q.round, q.index, q.attempt))
        AND NOT EXISTS (SELECT FROM model_calls m WHERE m.job_id = q.job_id AND m.call_id = q.call_id)
$$;

-- Keeps what open calls of jobs may have cost held while these are cut off; called before that.
CREATE FUNCTION planq_owe(p_jobs uuid[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    UPDATE budget_holds q SET owed_until = now() + planq_owing() WHERE q.job_id = ANY (p_jobs) AND planq_is_held(q);
END $$;

-- Reserves what an attempt at a stage of a job (index -1) or at one of its steps is about to use, where the limits of its
-- tree leave that, and its agent's own ones, `p_own`, which count for the job alone.
--   p_holder {job, round, index, attempt, call}: `call` is the id under which the model call will be recorded
--   p_wanted {asked, reply, least, calls, steps, asked_usd, token_usd, may_ask}: a reply may be cut from `reply` tokens to
--            `least`. Where the price of the question and of each token of the reply is null, it is taken to be what the
--            tree's tokens have cost so far
--   p_made   {input, output, cost, calls}: what calls of the same claim have used that are not recorded yet
-- The reservation replaces an earlier one of the same stage or step. All of one tree take turns by its row in `budgets`.
-- Returns {reply_tokens} | {exceeded, most, used} | {paused} | {late}: the claim is not the holder's any more.
CREATE FUNCTION planq_reserve(p_holder json, p_wanted json, p_made json, p_own json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_job CONSTANT uuid := p_holder->>'job';
    v_index CONSTANT int := p_holder->>'index';
    v_attempt CONSTANT int := p_holder->>'attempt';
    v_asked CONSTANT float8 := p_wanted->>'asked';
    v_least CONSTANT float8 := p_wanted->>'least';
    v_calls CONSTANT int := p_wanted->>'calls';
    v_steps CONSTANT int := p_wanted->>'steps';
    v_may_ask CONSTANT boolean := p_wanted->>'may_ask';
    v_made_tokens CONSTANT float8 := (p_made->>'input')::float8 + (p_made->>'output')::float8;
    v_names CONSTANT text[] := '{max_tokens,max_cost_usd,max_model_calls,max_steps}';
    v_reply float8 := p_wanted->>'reply';
    j jobs;
    b budgets;
    u record;
    v_root uuid;
    v_in float8;
    v_out float8;
    v_rate float8;
    v_asked_usd float8;
    v_token_usd float8;
    v_most float8[];
    v_used float8[];
    v_next float8[];
    v_passed json;
    v_share float8;
    v_asks boolean;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = v_job;
    IF p_own IS NOT NULL AND v_calls > 0 THEN
        v_in := j.input_tokens + (p_made->>'input')::float8;
        v_out := j.output_tokens + (p_made->>'output')::float8;
        v_passed := planq_passed('{request_limit,input_tokens_limit,output_tokens_limit,total_tokens_limit}',
            ARRAY[(p_own->>'request_limit')::float8, (p_own->>'input_tokens_limit')::float8,
                  (p_own->>'output_tokens_limit')::float8, (p_own->>'total_tokens_limit')::float8],
            ARRAY[j.model_calls + (p_made->>'calls')::float8, v_in, v_out, v_in + v_out],
            ARRAY[v_calls, v_asked, v_least, v_asked + v_least]);
        IF v_passed IS NOT NULL THEN
            RETURN v_passed;
        END IF;
        v_reply := floor(least(v_reply, (p_own->>'output_tokens_limit')::float8 - v_out,
            (p_own->>'total_tokens_limit')::float8 - v_in - v_out - v_asked));
    END IF;
    IF j.budget IS NULL THEN
        RETURN json_build_object('reply_tokens', CASE WHEN v_calls > 0 THEN v_reply::bigint END);
    END IF;
    v_root := coalesce(j.root_job_id, j.id);
    v_asks := coalesce((j.budget->>'ask')::boolean, false);
    INSERT INTO budgets (root_job_id, tenant_id) VALUES (v_root, j.tenant_id) ON CONFLICT DO NOTHING;
    SELECT * INTO b FROM budgets WHERE root_job_id = v_root FOR UPDATE;
    -- By its own: another attempt may have reserved while this one waited for its turn.
    IF v_attempt >= 0 AND NOT planq_has_claim(v_job, (p_holder->>'round')::int, v_index, v_attempt) THEN
        RETURN '{"late": true}';
    END IF;
    -- What is used and what is held are read in one statement: a call that is recorded meanwhile is in one of them, and
    -- not in both.
    SELECT t.tokens + v_made_tokens AS tokens, t.cost + (p_made->>'cost')::float8 AS cost,
           t.calls + (p_made->>'calls')::float8 AS calls, t.steps, h.tokens AS held_tokens, h.cost AS held_cost,
           h.calls AS held_calls, h.steps AS held_steps INTO u
    FROM planq_tree_used(v_root) t, (
        SELECT coalesce(sum(q.tokens), 0)::float8 AS tokens, coalesce(sum(q.cost_usd), 0)::float8 AS cost,
               coalesce(sum(q.model_calls), 0)::float8 AS calls, coalesce(sum(q.steps), 0)::float8 AS steps
        FROM budget_holds q
        WHERE q.root_job_id = v_root AND (q.job_id, q.index) <> (v_job, v_index) AND planq_is_held(q)
    ) h;
    v_rate := CASE WHEN u.tokens > 0 THEN u.cost / u.tokens ELSE 0 END;
    v_asked_usd := coalesce((p_wanted->>'asked_usd')::float8, v_rate * v_asked);
    v_token_usd := coalesce((p_wanted->>'token_usd')::float8, v_rate);
    v_most := ARRAY[(j.budget->>'max_tokens')::float8, (j.budget->>'max_cost_usd')::float8,
                    (j.budget->>'max_model_calls')::float8, (j.budget->>'max_steps')::float8];
    v_used := ARRAY[u.tokens + u.held_tokens, u.cost + u.held_cost, u.calls + u.held_calls, u.steps + u.held_steps];
    -- A call costs something, if only a little, so that none is begun where the money is spent.
    v_next := ARRAY[(v_asked + v_least) * sign(v_calls),
                    greatest(v_asked_usd + v_token_usd * v_least, 1e-9) * sign(v_calls), v_calls, v_steps];
    v_passed := planq_passed(v_names, v_most, v_used, v_next);
    IF v_passed IS NOT NULL THEN
        RETURN v_passed;
    END IF;
    IF v_calls > 0 THEN
        v_reply := floor(least(v_reply, v_most[1] - v_used[1] - v_asked,
            CASE WHEN v_token_usd > 0 THEN (v_most[2] - v_used[2] - v_asked_usd) / v_token_usd END));
    END IF;
    SELECT max((c.used + c.next) / c.most) INTO v_share FROM unnest(v_most, v_used, v_next) AS c (most, used, next);
    -- Paused already: by a call of this very holder whose answer was lost, or by another one at the same time.
    IF v_share >= (j.budget->>'soft')::float8 AND b.warned_at IS NOT NULL AND v_may_ask AND v_asks
       AND EXISTS (SELECT FROM jobs WHERE id = v_root AND paused_at IS NOT NULL) THEN
        RETURN json_build_object('paused', true);
    END IF;
    IF v_share >= (j.budget->>'soft')::float8 AND b.warned_at IS NULL THEN
        -- Its events are told by whoever holds the job's row, so that those who follow them miss none.
        PERFORM FROM jobs WHERE id = v_root FOR NO KEY UPDATE;
        IF NOT EXISTS (SELECT FROM events WHERE job_id = v_root AND kind = 'budget_warning') THEN
            PERFORM planq_tell(b.tenant_id, v_root, 'budget_warning', json_build_object(
                'soft', j.budget->'soft', 'tokens', u.tokens, 'cost_usd', u.cost, 'model_calls', u.calls,
                'steps', u.steps, 'by', v_job));
        END IF;
        -- Where the tree is to ask and this stage cannot wait, the next one that can does.
        IF v_may_ask OR NOT v_asks THEN
            UPDATE budgets SET warned_at = now() WHERE root_job_id = v_root;
        END IF;
        IF v_may_ask AND v_asks AND (planq_pause_job(v_root, b.tenant_id)->>'landed')::boolean THEN
            RETURN json_build_object('paused', true);
        END IF;
    END IF;
    IF v_attempt >= 0 THEN
        INSERT INTO budget_holds (job_id, index, root_job_id, round, attempt, call_id, tokens, cost_usd, model_calls,
                                  steps)
        VALUES (v_job, v_index, v_root, (p_holder->>'round')::int, v_attempt, (p_holder->>'call')::uuid,
                v_made_tokens + CASE WHEN v_calls > 0 THEN v_asked + v_reply ELSE 0 END,
                (p_made->>'cost')::float8 + CASE WHEN v_calls > 0 THEN v_asked_usd + v_token_usd * v_reply ELSE 0 END,
                (p_made->>'calls')::int + v_calls, v_steps)
        ON CONFLICT (job_id, index) DO UPDATE SET round = excluded.round, attempt = excluded.attempt,
            call_id = excluded.call_id, tokens = excluded.tokens, cost_usd = excluded.cost_usd,
            model_calls = excluded.model_calls, steps = excluded.steps, owed_until = NULL;
    END IF;
    RETURN json_build_object('reply_tokens', CASE WHEN v_calls > 0 THEN v_reply::bigint END);
END $$;

-- As a worker of release 0005 asks: it names no call and no price, and for a step (-1) it holds nothing.
CREATE OR REPLACE FUNCTION planq_reserve(
    p_job uuid, p_attempt int, p_asked float8, p_reply float8, p_least float8, p_calls int, p_steps int, p_made json,
    p_own json, p_may_ask boolean
) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    RETURN planq_reserve(
        json_build_object('job', p_job, 'round', 0, 'index', -1, 'attempt', p_attempt),
        json_build_object('asked', p_asked, 'reply', p_reply, 'least', p_least, 'calls', p_calls, 'steps', p_steps,
                          'may_ask', p_may_ask), p_made, p_own);
END $$;

-- As in 0001, and a call that has an id is recorded once, however often: whoever repeats a commit whose answer was lost
-- names the same ids. The job's row is locked first, so that a repeat waits for what it repeats.
CREATE OR REPLACE FUNCTION planq_record_calls(p_job uuid, p_calls json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_calls IS NULL OR json_array_length(p_calls) = 0 THEN
        RETURN;
    END IF;
    PERFORM FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    WITH calls AS (
        SELECT c.* FROM json_to_recordset(p_calls) AS c (
            id uuid, purpose text, model text, attempts int, latency_ms int, input_tokens int, output_tokens int,
            cost_usd numeric, error text, exchange text
        ) WHERE NOT EXISTS (SELECT FROM model_calls m WHERE m.job_id = p_job AND m.call_id = c.id)
    ), kept AS (
        INSERT INTO model_calls (tenant_id, job_id, round, purpose, model, attempts, latency_ms, input_tokens,
                                 output_tokens, cost_usd, error, exchange, call_id)
        SELECT j.tenant_id, j.id, j.round, c.purpose, c.model, c.attempts, c.latency_ms, c.input_tokens,
               c.output_tokens, c.cost_usd, c.error::json, c.exchange::json, c.id
        FROM calls c, jobs j WHERE j.id = p_job
    )
    UPDATE jobs j SET
        model_calls = j.model_calls + t.n,
        input_tokens = j.input_tokens + t.input_tokens,
        output_tokens = j.output_tokens + t.output_tokens,
        cost_usd = CASE WHEN t.cost IS NULL THEN j.cost_usd ELSE coalesce(j.cost_usd, 0) + t.cost END
    FROM (SELECT count(*)::int AS n, sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
                 sum(cost_usd) AS cost FROM calls HAVING count(*) > 0) t
    WHERE j.id = p_job;
END $$;

-- As in 0003, with the ids of the calls.
CREATE OR REPLACE FUNCTION planq_insert_calls(p_tenant text, p_job uuid, p_round int, p_calls json) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO model_calls (tenant_id, job_id, round, purpose, model, attempts, latency_ms, input_tokens,
                             output_tokens, cost_usd, error, exchange, call_id)
    SELECT p_tenant, p_job, p_round, c.purpose, c.model, c.attempts, c.latency_ms, c.input_tokens, c.output_tokens,
           c.cost_usd, c.error::json, c.exchange::json, c.id
    FROM json_to_recordset(p_calls) AS c (
        id uuid, purpose text, model text, attempts int, latency_ms int, input_tokens int, output_tokens int,
        cost_usd numeric, error text, exchange text);
END $$;

-- As in 0005; what open calls of these jobs may have cost stays held for a while.
CREATE OR REPLACE FUNCTION planq_cancel_tree(p_above uuid[], p_jobs uuid[]) RETURNS uuid[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_unfinished CONSTANT text[] := '{queued,planning,executing,input_required,responding}';
    v_above uuid[] := p_above;
    v_ids uuid[];
    v_ended uuid[] := '{}';
BEGIN
    LOOP
        WITH RECURSIVE tree (id) AS (
            SELECT unnest(p_jobs || v_above)
            UNION
            SELECT c.id FROM tree t JOIN jobs c ON c.parent_job_id = t.id AND c.status = ANY (v_unfinished)
        )
        SELECT array_agg(l.id) INTO v_ids FROM (
            SELECT id FROM jobs WHERE id IN (SELECT t.id FROM tree t) AND id <> ALL (p_above)
              AND status = ANY (v_unfinished)
            ORDER BY id FOR NO KEY UPDATE
        ) l;
        EXIT WHEN v_ids IS NULL;
        PERFORM planq_owe(v_ids);
        UPDATE steps SET status = 'cancelled', finished_at = clock_timestamp(), wake_at = NULL, deadline = NULL,
            question = NULL
        WHERE job_id = ANY (v_ids) AND status IN ('pending', 'ready', 'running', 'waiting');
        UPDATE jobs SET status = 'cancelled', finished_at = clock_timestamp(), stage_worker = NULL, is_gathered = true,
            cancel_requested_at = now(), wake_at = NULL, deadline = NULL, paused_at = NULL, open_steps = 0,
            open_questions = 0
        WHERE id = ANY (v_ids);
        INSERT INTO events (tenant_id, job_id, kind)
        SELECT tenant_id, id, 'job_cancelled' FROM jobs WHERE id = ANY (v_ids) ORDER BY id;
        v_ended := v_ended || v_ids;
        v_above := p_above || v_ended;
    END LOOP;
    RETURN v_ended;
END $$;

-- As in 0005, with the same.
CREATE OR REPLACE FUNCTION planq_cut_off(p_job uuid, p_status text, p_error json) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    v_tenant text;
BEGIN
    PERFORM planq_owe(ARRAY[p_job]);
    UPDATE steps SET status = 'cancelled', finished_at = clock_timestamp(), wake_at = NULL, deadline = NULL,
        question = NULL
    WHERE job_id = p_job AND status IN ('pending', 'ready', 'running', 'waiting');
    UPDATE jobs SET status = p_status, error = p_error, finished_at = clock_timestamp(), stage_worker = NULL,
        cancel_requested_at = CASE WHEN p_status = 'cancelled' THEN now() END,
        wake_at = NULL, deadline = NULL, paused_at = NULL, open_steps = 0, open_questions = 0
    WHERE id = p_job RETURNING tenant_id INTO v_tenant;
    PERFORM planq_tell(v_tenant, p_job, 'job_' || p_status, p_error);
    RETURN ARRAY[p_job] || planq_cancel_tree(ARRAY[p_job], '{}');
END $$;

-- As in 0005, with the same for its steps.
CREATE OR REPLACE FUNCTION planq_expire_plan(p_job uuid, p_error json) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    v_closed int;
    v_failed int;
    v_children uuid[];
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status NOT IN ('executing', 'input_required') OR j.paused_at IS NOT NULL
       OR j.deadline IS NULL OR j.deadline > now() THEN
        RETURN false;
    END IF;
    PERFORM planq_owe(ARRAY[p_job]);
    WITH closed AS (
        UPDATE steps SET
            status = CASE status WHEN 'pending' THEN 'skipped' ELSE 'failed' END,
            error = CASE status WHEN 'pending' THEN NULL ELSE p_error END,
            output = NULL,
            question = NULL,
            finished_at = clock_timestamp(),
            wake_at = NULL,
            deadline = NULL
        WHERE job_id = p_job AND round = j.round AND status IN ('pending', 'ready', 'running', 'waiting')
        RETURNING steps.status, steps.children
    )
    SELECT count(*), count(*) FILTER (WHERE closed.status = 'failed'),
           (SELECT array_agg(c) FROM closed d CROSS JOIN LATERAL unnest(d.children) AS c)
    INTO v_closed, v_failed, v_children FROM closed;
    IF v_children IS NOT NULL THEN
        PERFORM planq_drop_children(v_children);
    END IF;
    PERFORM planq_close_steps(p_job, v_closed, v_failed);
    PERFORM planq_tell(j.tenant_id, p_job, 'plan_expired', p_error);
    RETURN true;
END $$;
