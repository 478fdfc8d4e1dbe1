-- Tally: what `/metrics` counts for the whole installation, in rows that only grow.
--
--   planq_tally         adds up what the log and the records of model calls have got since it looked last
--   planq_costs         what a tenant's days cost, by what somebody asks
--   planq_keep_counts   keeps what a worker has counted whose row goes
--
-- Nothing is written where work is done: what has happened stands in events and model calls anyway, and is read once, behind
-- the commits. So no kill of a worker loses a count, and none is counted twice: mark and tallies move in one transaction.

-- Adds up to `p_limit` events, and as many model calls, to the tallies. Returns how many of what there was more it has read:
-- `p_limit` where there may be more, 0 where somebody else does it just now.
--
-- A number of a sequence is drawn before its row is committed, so the calls up to one are all there only once each
-- transaction has ended that ran when it was drawn. Whoever draws one has locked a job before, and so has a number of its own.
CREATE FUNCTION planq_tally(p_limit int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_drawn bigint;
    v_now pg_snapshot;
    v_below xid8;
    v_is_quiet boolean;
    v_calls bigint;
    v_last record;
    m tally_marks;
BEGIN
    SELECT CASE WHEN q.is_called THEN q.last_value ELSE 0 END INTO v_drawn FROM model_calls_id_seq q;
    -- Before this transaction has a number itself, which would be in it.
    v_now := pg_current_snapshot();
    v_below := pg_snapshot_xmin(v_now);
    v_is_quiet := v_below = pg_snapshot_xmax(v_now);
    SELECT * INTO m FROM tally_marks WHERE id = 1;
    IF m.calls >= v_drawn AND NOT EXISTS (
        SELECT FROM events e WHERE (e.xid, e.sequence) > (m.xid, m.sequence) AND e.xid < v_below
    ) THEN
        RETURN 0;
    END IF;
    SELECT * INTO m FROM tally_marks WHERE id = 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    v_calls := CASE WHEN v_is_quiet THEN greatest(m.drawn, v_drawn) WHEN v_below >= m.drawn_below THEN m.drawn ELSE m.calls END;
    v_calls := least(v_calls, m.calls + p_limit);
    SELECT * INTO v_last FROM planq_tally_events(m.xid, m.sequence, v_below, p_limit);
    PERFORM planq_tally_calls(m.calls, v_calls);
    UPDATE tally_marks SET
        xid = coalesce(v_last.xid, m.xid), sequence = coalesce(v_last.sequence, m.sequence),
        calls = greatest(m.calls, v_calls),
        drawn = CASE WHEN v_is_quiet OR v_below >= m.drawn_below THEN greatest(m.drawn, v_drawn) ELSE m.drawn END,
        drawn_below = CASE WHEN v_is_quiet OR v_below >= m.drawn_below THEN pg_snapshot_xmax(v_now) ELSE m.drawn_below END
    WHERE id = 1;
    RETURN greatest(coalesce(v_last.n, 0), v_calls - m.calls);
END $$;

-- The bucket of a histogram into which a time falls: its upper bound, as `TIMES_SECONDS` has them; a time that equals one is in it.
CREATE FUNCTION planq_bucket(p_seconds float8) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce((ARRAY['0.05', '0.1', '0.25', '0.5', '1', '2.5', '5', '10', '30', '60', '300', '1800', '7200'])[
        1 + width_bucket(p_seconds - 1e-7, ARRAY[0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200]::float8[])], '+Inf')
$$;

-- Counts the events behind a place in the log, of transactions below `p_below`. Returns the place of the last one and how many
-- they are, nulls for none.
--
-- Steps are counted with the end of their job, in one look at all of them: what was skipped or cancelled has no event. Of a job
-- that was resumed these are the steps which have ended since its end before, and the costs are those of the attempts that
-- have begun since: a step has the sum of all its attempts. How
-- long a stage or a plan took is the time since the event that began it, which is found from the job's last ones.
CREATE FUNCTION planq_tally_events(p_xid xid8, p_sequence bigint, p_below xid8, p_limit int)
RETURNS TABLE (xid xid8, sequence bigint, n bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH taken AS MATERIALIZED (
        SELECT e.xid, e.sequence, e.job_id, e.kind, e.created_at FROM events e
        WHERE (e.xid, e.sequence) > (p_xid, p_sequence) AND e.xid < p_below ORDER BY e.xid, e.sequence LIMIT p_limit
    ), begun AS MATERIALIZED (
        SELECT j.priority, j.in_message_flow AND j.parent_job_id IS NULL AS is_task
        FROM taken t JOIN jobs j ON j.id = t.job_id WHERE t.kind = 'job_submitted'
    ), ended AS MATERIALIZED (
        SELECT j.id, j.tenant_id, j.priority, planq_outcome(j.status, j.error) AS outcome, j.in_message_flow AND j.parent_job_id IS NULL AS is_task,
            j.conversation_id IS NOT NULL AND j.parent_job_id IS NULL AS is_turn,
            extract(epoch FROM j.started_at - j.created_at)::float8 AS queued,
            extract(epoch FROM j.finished_at - j.created_at)::float8 AS seconds,
            j.resumes > 0 AS is_resumed, t.xid, t.sequence, b.xid AS earlier_xid, b.sequence AS earlier_sequence, b.created_at AS earlier_end
        FROM taken t JOIN jobs j ON j.id = t.job_id LEFT JOIN LATERAL (
            SELECT b.xid, b.sequence, b.created_at FROM events b
            WHERE j.resumes > 0 AND b.job_id = j.id AND b.xid <= t.xid AND (b.xid < t.xid OR b.sequence < t.sequence)
              AND b.kind IN ('job_completed', 'job_failed', 'job_cancelled')
            ORDER BY b.xid DESC, b.sequence DESC LIMIT 1
        ) b ON true
        WHERE t.kind IN ('job_completed', 'job_failed', 'job_cancelled')
    ), done AS MATERIALIZED (
        SELECT s.tool_name, s.cost_usd, s.kind, s.pool, s.status, s.reused_job IS NULL AND NOT s.is_known AS is_own, e.is_resumed,
            extract(epoch FROM s.finished_at - s.started_at)::float8 AS seconds
        FROM ended e JOIN steps s ON s.job_id = e.id WHERE e.earlier_end IS NULL OR s.finished_at > e.earlier_end
    ), charged AS (
        SELECT d.tool_name, d.cost_usd AS usd FROM done d WHERE NOT d.is_resumed
        UNION ALL
        SELECT s.tool_name, (s.charges->>b.attempt)::numeric
        FROM ended e CROSS JOIN LATERAL (
            SELECT (o.data->>'index')::int AS index, o.data->>'attempt' AS attempt FROM events o
            WHERE o.job_id = e.id AND o.kind = 'step_started' AND (o.xid, o.sequence) < (e.xid, e.sequence)
              AND (e.earlier_xid IS NULL OR (o.xid, o.sequence) > (e.earlier_xid, e.earlier_sequence)) OFFSET 0
        ) b JOIN steps s ON s.job_id = e.id AND s.index = b.index
        WHERE e.is_resumed
    ), priced AS MATERIALIZED (
        -- A tool has its name as long as fewer than two hundred have: servers may offer ever new ones.
        SELECT p.usd, CASE WHEN p.is_named OR row_number() OVER (PARTITION BY p.is_named ORDER BY p.tool_name) + k.named <= 200
            THEN p.tool_name ELSE 'other' END AS tool
        FROM (
            SELECT c.tool_name, sum(c.usd) AS usd, EXISTS (
                SELECT FROM tallies t WHERE t.name = 'tool_cost' AND t.labels = ARRAY[c.tool_name]) AS is_named
            FROM charged c WHERE c.usd > 0 GROUP BY c.tool_name
        ) p CROSS JOIN (SELECT count(*) AS named FROM tallies t WHERE t.name = 'tool_cost') k
    ), spans AS MATERIALIZED (
        SELECT CASE WHEN p.kind = 'plan_accepted' AND t.kind IN ('stage_started', 'job_completed', 'job_failed') THEN 'plan_execution'
                    WHEN p.stage = 'planning' AND t.kind IN ('plan_accepted', 'plan_refused', 'job_completed') AND NOT EXISTS (
                        SELECT FROM plans l WHERE l.job_id = t.job_id AND l.round = 0 AND l.source = 'caller') THEN 'planning'
                    WHEN p.stage = 'responding' AND t.kind = 'job_completed' THEN 'answer' END AS name,
            extract(epoch FROM t.created_at - p.created_at)::float8 AS seconds
        FROM (
            SELECT * FROM taken WHERE kind IN (
                'stage_started', 'plan_accepted', 'plan_refused', 'job_completed', 'job_failed')
        ) t CROSS JOIN LATERAL (
            SELECT b.kind, b.data->>'stage' AS stage, b.created_at FROM events b
            WHERE b.job_id = t.job_id AND b.xid <= t.xid AND (b.xid < t.xid OR b.sequence < t.sequence)
              AND b.kind IN ('stage_started', 'plan_accepted')
            ORDER BY b.xid DESC, b.sequence DESC LIMIT 1
        ) p
    ), times (name, labels, seconds) AS MATERIALIZED (
        SELECT 'queue', ARRAY[e.priority::text], e.queued FROM ended e WHERE e.queued IS NOT NULL
        UNION ALL
        SELECT 'job', ARRAY[e.priority::text], e.seconds FROM ended e
        UNION ALL
        SELECT 'step', ARRAY[d.pool::text], d.seconds FROM done d WHERE d.is_own AND d.seconds IS NOT NULL
        UNION ALL
        SELECT s.name, '{}', s.seconds FROM spans s WHERE s.name IS NOT NULL
    ), counted (name, labels, number) AS (
        SELECT 'jobs_created', ARRAY[b.priority::text], count(*) FROM begun b GROUP BY b.priority
        UNION ALL
        SELECT 'tasks_created', '{}', count(*) FROM begun b WHERE b.is_task HAVING count(*) > 0
        UNION ALL
        SELECT 'tasks_ended', ARRAY[e.outcome], count(*) FROM ended e WHERE e.is_task GROUP BY e.outcome
        UNION ALL
        SELECT 'turns_ended', ARRAY[e.outcome], count(*) FROM ended e WHERE e.is_turn GROUP BY e.outcome
        UNION ALL
        SELECT 'insights_chosen', ARRAY[o.side], count(*)
        FROM ended e JOIN insight_offers o ON o.tenant_id = e.tenant_id AND o.job_id = e.id GROUP BY o.side
        UNION ALL
        SELECT 'plans_created', ARRAY[CASE t.kind WHEN 'plan_accepted' THEN 'accepted' ELSE 'refused' END], count(*)
        FROM taken t WHERE t.kind IN ('plan_accepted', 'plan_refused', 'guide_failed') GROUP BY t.kind
        UNION ALL
        SELECT 'outbound_messages', '{}', count(*) FROM taken t WHERE t.kind = 'outbound_message' HAVING count(*) > 0
        UNION ALL
        SELECT 'steps_ended', ARRAY[d.kind::text, d.pool::text, d.status::text], count(*) FROM done d WHERE d.is_own
        GROUP BY d.kind, d.pool, d.status
        UNION ALL
        SELECT 'tool_cost', ARRAY[p.tool], sum(p.usd) FROM priced p GROUP BY p.tool
        UNION ALL
        SELECT t.name || '_seconds', t.labels || planq_bucket(t.seconds), count(*) FROM times t
        GROUP BY t.name, t.labels, planq_bucket(t.seconds)
        UNION ALL
        SELECT t.name || '_seconds_sum', t.labels, sum(greatest(t.seconds, 0))::numeric FROM times t GROUP BY t.name, t.labels
    ), added AS (
        INSERT INTO tallies AS a (name, labels, number)
        SELECT c.name, c.labels, sum(c.number) FROM counted c GROUP BY c.name, c.labels ORDER BY c.name, c.labels
        ON CONFLICT (name, labels) DO UPDATE SET number = a.number + excluded.number
    )
    SELECT t.xid, t.sequence, (SELECT count(*) FROM taken) FROM taken t ORDER BY t.xid DESC, t.sequence DESC LIMIT 1;
END $$;

-- Counts the model calls with ids above `p_after`, up to `p_until`. A model has a label of its own once it has answered, as long as
-- there are fewer than a hundred: anybody may name models that there are not.
CREATE FUNCTION planq_tally_calls(p_after bigint, p_until bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_known text[] := ARRAY(SELECT t.labels[1] FROM tallies t WHERE t.name = 'llm_model');
    v_new text[];
BEGIN
    v_new := ARRAY(
        SELECT c.model FROM model_calls c
        WHERE c.id > p_after AND c.id <= p_until AND c.error IS NULL AND length(c.model) <= 200 AND c.model <> ALL (v_known)
        GROUP BY c.model ORDER BY min(c.id) LIMIT 100 - cardinality(v_known));
    v_known := v_known || v_new;
    WITH calls AS MATERIALIZED (
        SELECT CASE WHEN c.model = ANY (v_known) THEN c.model ELSE 'other' END AS model, c.purpose, c.input_tokens,
            c.tenant_id, (c.created_at AT TIME ZONE 'UTC')::date AS day,
            coalesce((SELECT j.agent_name FROM jobs j WHERE j.id = c.job_id), '') AS agent,
            c.output_tokens, c.cache_read_tokens, c.cache_write_tokens, c.cost_usd, c.latency_ms / 1000.0 AS seconds,
            CASE WHEN c.error IS NULL THEN 'succeeded'
                 ELSE coalesce(substring(c.error::text FROM '^\{"code": ?"([a-z_]{1,40})"'), 'failed') END AS outcome
        FROM model_calls c WHERE c.id > p_after AND c.id <= p_until
    ), counted (name, labels, number) AS (
        SELECT 'llm_model', ARRAY[n.model], 1::numeric FROM unnest(v_new) AS n (model)
        UNION ALL
        SELECT 'llm_calls', ARRAY[c.model, c.purpose, c.outcome], count(*) FROM calls c GROUP BY 2
        UNION ALL
        SELECT 'llm_tokens', ARRAY[c.model, 'input'], sum(c.input_tokens) FROM calls c GROUP BY 2
        UNION ALL
        SELECT 'llm_tokens', ARRAY[c.model, 'output'], sum(c.output_tokens) FROM calls c GROUP BY 2
        UNION ALL
        SELECT 'llm_cache_tokens', ARRAY[c.model, 'read'], sum(c.cache_read_tokens) FROM calls c GROUP BY 2
        HAVING sum(c.cache_read_tokens) > 0
        UNION ALL
        SELECT 'llm_cache_tokens', ARRAY[c.model, 'write'], sum(c.cache_write_tokens) FROM calls c GROUP BY 2
        HAVING sum(c.cache_write_tokens) > 0
        UNION ALL
        SELECT 'llm_cost', ARRAY[c.model], sum(c.cost_usd) FROM calls c WHERE c.cost_usd IS NOT NULL GROUP BY 2
        UNION ALL
        SELECT 'llm_seconds', ARRAY[c.model, planq_bucket(c.seconds::float8)], count(*) FROM calls c GROUP BY 2
        UNION ALL
        SELECT 'llm_seconds_sum', ARRAY[c.model], sum(c.seconds) FROM calls c GROUP BY 2
    ), costs AS (
        INSERT INTO daily_costs AS d (tenant_id, day, agent, model, calls, unpriced_calls, input_tokens, output_tokens,
                                      cache_read_tokens, cache_write_tokens, cost_usd)
        SELECT c.tenant_id, c.day, c.agent, c.model, count(*),
            count(*) FILTER (WHERE c.cost_usd IS NULL AND c.input_tokens + c.output_tokens > 0),
            sum(c.input_tokens), sum(c.output_tokens), sum(c.cache_read_tokens), sum(c.cache_write_tokens),
            coalesce(sum(c.cost_usd), 0)
        FROM calls c GROUP BY c.tenant_id, c.day, c.agent, c.model ORDER BY c.tenant_id, c.day, c.agent, c.model
        ON CONFLICT (tenant_id, day, agent, model) DO UPDATE SET
            calls = d.calls + excluded.calls, unpriced_calls = d.unpriced_calls + excluded.unpriced_calls,
            input_tokens = d.input_tokens + excluded.input_tokens,
            output_tokens = d.output_tokens + excluded.output_tokens,
            cache_read_tokens = d.cache_read_tokens + excluded.cache_read_tokens,
            cache_write_tokens = d.cache_write_tokens + excluded.cache_write_tokens,
            cost_usd = d.cost_usd + excluded.cost_usd
    )
    INSERT INTO tallies AS a (name, labels, number)
    SELECT c.name, c.labels, sum(c.number) FROM counted c GROUP BY c.name, c.labels ORDER BY c.name, c.labels
    ON CONFLICT (name, labels) DO UPDATE SET number = a.number + excluded.number;
END $$;

-- What a tenant's days from `p_from` to `p_to` cost, both of them among these, by `day`, `agent`, `model` or `tenant`; of one agent
-- or model where these are given. As many rows are read as there are agents and models a day, however many jobs there were.
CREATE FUNCTION planq_costs(p_tenant text, p_by text, p_from date, p_to date, p_agent text, p_model text)
RETURNS TABLE (name text, calls bigint, unpriced_calls bigint, input_tokens bigint, output_tokens bigint,
               cache_read_tokens bigint, cache_write_tokens bigint, cost_usd numeric)
LANGUAGE sql STABLE AS $$
    SELECT CASE p_by WHEN 'day' THEN d.day::text WHEN 'agent' THEN d.agent WHEN 'model' THEN d.model ELSE d.tenant_id END,
        sum(d.calls)::bigint, sum(d.unpriced_calls)::bigint, sum(d.input_tokens)::bigint, sum(d.output_tokens)::bigint,
        sum(d.cache_read_tokens)::bigint, sum(d.cache_write_tokens)::bigint, sum(d.cost_usd)
    FROM daily_costs d
    WHERE d.tenant_id = p_tenant AND d.day BETWEEN p_from AND p_to
      AND (p_agent IS NULL OR d.agent = p_agent) AND (p_model IS NULL OR d.model = p_model)
    GROUP BY 1
$$;

-- Keeps what a worker has counted, once, in the commit that removes its row: a sum of workers and tallies never falls. Those who
-- remove rows do so one after the other, for each locks several tallies.
CREATE FUNCTION planq_keep_counts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM tally_marks WHERE id = 1 FOR UPDATE;
    INSERT INTO tallies AS a (name, labels, number)
    SELECT c.labels[1], c.labels[2:], sum(c.number) FROM (
        SELECT ARRAY(
            SELECT l.label FROM json_array_elements_text(e.counted) WITH ORDINALITY AS l (label, place)
            WHERE l.place < json_array_length(e.counted) ORDER BY l.place
        ) AS labels, (e.counted->>-1)::numeric AS number
        FROM json_array_elements(OLD.counts) AS e (counted)
        UNION ALL
        SELECT ARRAY['late'], OLD.late_outcomes WHERE OLD.late_outcomes > 0
    ) c GROUP BY c.labels ORDER BY c.labels
    ON CONFLICT (name, labels) DO UPDATE SET number = a.number + excluded.number;
    RETURN NULL;
END $$;

CREATE TRIGGER planq_keep_counts AFTER DELETE ON workers FOR EACH ROW
WHEN (OLD.counts IS NOT NULL OR OLD.late_outcomes > 0) EXECUTE FUNCTION planq_keep_counts();
