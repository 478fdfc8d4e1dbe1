-- Insights: what was learned from jobs that have ended.
--
-- planq_learn            writes what a stretch of the event log teaches, once, whoever comes first
-- planq_find_insights    what fits a job that is to be planned, or what was chosen for it before
-- planq_forget_insights  nothing is left of what a conversation, or a tenant, has taught
--
-- A lesson holds no values. What finds it again are words of what was asked: without digits and addresses, never shown to
-- anybody, kept with the job that they are from, so that they go with it.

-- The words of a text, at most sixty, without what could be an address, a number or a name of an account.
CREATE FUNCTION planq_insight_words(p_text text) RETURNS tsvector LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_to_tsvector(array_agg(w.lexeme)), '') FROM (
        SELECT u.lexeme FROM unnest(to_tsvector('english', left(p_text, 2000))) u
        WHERE u.lexeme ~ '^[^0-9@/.:_''\\-]{2,24}$' ORDER BY u.lexeme LIMIT 60
    ) w
$$;

-- What an insight is found by beside what its jobs were asked: its tenant, as a word that no text has, and its tools.
CREATE FUNCTION planq_insight_base(p_tenant text, p_tool text, p_body json) RETURNS tsvector LANGUAGE sql IMMUTABLE AS $$
    SELECT array_to_tsvector(ARRAY['tenant ' || p_tenant])
           || planq_insight_words(regexp_replace(p_tool || ' ' || coalesce(p_body->>'tools', ''), '[^[:alpha:]]+', ' ', 'g'))
$$;

-- InsightsLearned: takes the cursor on from one event to another, and writes what the jobs between have taught: `p_lessons`,
-- the calls that `p_worked`, and what became of jobs for which insights were chosen (`p_ends`). An insight that is seen again
-- is counted once for each job. A lesson with a `reflection`, an item of planq_submit_jobs, asks a model about it, once: where
-- nobody has asked before, of twenty at most; `p_told` is what such jobs have answered. An insight expires `p_days` after it was last seen; of a tenant the `p_most` seen last are kept, and
-- what is pinned. Changes nothing, and says so by false, where somebody else has taken the cursor on.
CREATE FUNCTION planq_learn(
    p_xid text, p_sequence bigint, p_to_xid text, p_to_sequence bigint, p_lessons json, p_worked json, p_ends json, p_told json,
    p_days float8, p_most int
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_expires timestamptz := date_trunc('day', planq_now() + make_interval(secs => p_days * 86400)) + interval '1 day';
    v_alive uuid[];
    v_touched uuid[];
    v_asking json;
BEGIN
    UPDATE insight_cursor SET xid = p_to_xid::xid8, sequence = p_to_sequence
    WHERE id = 1 AND xid = p_xid::xid8 AND sequence = p_sequence;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE insight_offers o SET ended_at = planq_now(), is_success = e.is_success, failed_calls = e.failed_calls,
        rounds = e.rounds, seconds = e.seconds, cost_usd = e.cost_usd, used_tokens = e.used_tokens
    FROM json_to_recordset(p_ends) AS e (
        tenant text, job uuid, is_success boolean, failed_calls int, rounds int, seconds float8, cost_usd float8, used_tokens bigint)
    WHERE o.tenant_id = e.tenant AND o.job_id = e.job;
    UPDATE insights i SET against = i.against + w.times
    FROM (
        SELECT g.tenant, g.call, count(*)::int AS times FROM json_to_recordset(p_worked) AS g (tenant text, call text)
        GROUP BY g.tenant, g.call
    ) w
    WHERE i.tenant_id = w.tenant AND i.failing_call = w.call;
    -- An erasure holds the conversation's row: it comes before this, and is seen, or after it, and finds what is written here.
    PERFORM FROM conversations c
    JOIN json_to_recordset(p_lessons) AS g (tenant text, conversation uuid) ON c.id = g.conversation AND c.tenant_id = g.tenant
    ORDER BY c.id FOR SHARE OF c;
    v_alive := ARRAY(
        SELECT DISTINCT j.id FROM json_to_recordset(p_lessons) AS g (tenant text, job uuid)
        JOIN jobs j ON j.id = g.job AND j.tenant_id = g.tenant
        WHERE (SELECT true FROM conversation_messages m
               WHERE m.job_id = coalesce(j.root_job_id, j.id) AND m.tenant_id = j.tenant_id AND m.status = 'erased'
               LIMIT 1) IS NULL);
    INSERT INTO insights (id, tenant_id, kind, digest, tool_name, lesson, body, failing_call, search, first_seen_at, expires_at)
    SELECT DISTINCT ON (g.tenant, g.digest) g.id, g.tenant, g.kind, g.digest, g.tool, g.lesson, g.body, g.failing_call,
           planq_insight_base(g.tenant, g.tool, g.body), planq_now(), v_expires
    FROM json_to_recordset(p_lessons) AS g (
        id uuid, tenant text, kind text, digest text, tool text, lesson text, body json, failing_call text, job uuid)
    WHERE g.job = ANY (v_alive)
    ORDER BY g.tenant, g.digest, g.id
    ON CONFLICT (tenant_id, digest) DO NOTHING;
    UPDATE insights i SET reflection = t.reflection
    FROM json_to_recordset(p_told) AS t (tenant text, job uuid, reflection text)
    WHERE i.tenant_id = t.tenant AND i.reflection_job_id = t.job;
    WITH asked AS (
        SELECT DISTINCT ON (g.tenant, g.digest) g.tenant, g.digest, g.job, g.reflection
        FROM json_to_recordset(p_lessons) AS g (tenant text, digest text, job uuid, reflection json)
        JOIN insights i ON i.tenant_id = g.tenant AND i.digest = g.digest
        WHERE g.reflection IS NOT NULL AND g.job = ANY (v_alive) AND i.reflection_job_id IS NULL AND i.retired_at IS NULL
        ORDER BY g.tenant, g.digest, g.job LIMIT 20
    ), marked AS (
        UPDATE insights i SET reflection_job_id = (a.reflection->>'id')::uuid, reflected_job_id = a.job
        FROM asked a WHERE i.tenant_id = a.tenant AND i.digest = a.digest AND i.reflection_job_id IS NULL
        RETURNING a.reflection
    )
    SELECT json_agg(m.reflection) INTO v_asking FROM marked m;
    IF v_asking IS NOT NULL THEN
        PERFORM planq_submit_jobs(v_asking, NULL, NULL);
    END IF;
    WITH told AS MATERIALIZED (
        SELECT i.id, i.tenant_id, g.job, g.conversation, g.round, g.index, g.calls, g.failed_calls, g.seconds,
               planq_insight_words(g.goal) AS words
        FROM json_to_recordset(p_lessons) AS g (
            tenant text, digest text, job uuid, conversation uuid, round int, index int, calls int, failed_calls int,
            seconds float8, goal text)
        JOIN insights i ON i.tenant_id = g.tenant AND i.digest = g.digest
        WHERE g.job = ANY (v_alive)
    ), fresh AS (
        INSERT INTO insight_sources (insight_id, job_id, tenant_id, conversation_id, round, step_index, words, seen_at)
        SELECT t.id, t.job, t.tenant_id, t.conversation, t.round, t.index, t.words, planq_now() FROM told t
        ON CONFLICT DO NOTHING
        RETURNING insight_id, job_id
    ), counted AS (
        SELECT t.id, count(*)::int AS times, sum(t.calls) AS calls, sum(t.failed_calls) AS failed_calls, sum(t.seconds) AS seconds,
               string_agg(array_to_string(tsvector_to_array(t.words), ' '), ' ') AS words
        FROM told t JOIN fresh f ON f.insight_id = t.id AND f.job_id = t.job GROUP BY t.id
    ), touched AS (
        UPDATE insights i SET seen = i.seen + c.times, calls = i.calls + c.calls, failed_calls = i.failed_calls + c.failed_calls,
            seconds = i.seconds + c.seconds, last_seen_at = planq_now(), expires_at = v_expires,
            search = planq_insight_search(i.search, c.words)
        FROM counted c WHERE i.id = c.id RETURNING i.id
    )
    SELECT array_agg(id) INTO v_touched FROM touched;
    DELETE FROM insight_sources s
    WHERE s.insight_id = ANY (v_touched) AND s.job_id < (
        SELECT o.job_id FROM insight_sources o WHERE o.insight_id = s.insight_id ORDER BY o.job_id DESC OFFSET 19 LIMIT 1)
      AND NOT EXISTS (SELECT FROM insights i WHERE i.id = s.insight_id AND i.reflected_job_id = s.job_id);
    DELETE FROM insights d
    WHERE NOT d.is_pinned AND d.id IN (
        SELECT o.id FROM (SELECT DISTINCT i.tenant_id FROM insights i WHERE i.id = ANY (v_touched)) t
        CROSS JOIN LATERAL (
            SELECT i.id FROM insights i WHERE i.tenant_id = t.tenant_id
            ORDER BY i.is_pinned DESC, i.last_seen_at DESC, i.id DESC OFFSET p_most
        ) o);
    RETURN true;
END $$;

-- The words by which an insight is found once further ones are added; more than 200 take none in, and where nothing is new
-- the value stays the same, so that no index has to be changed.
CREATE FUNCTION planq_insight_search(p_search tsvector, p_words text) RETURNS tsvector LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN length(p_search) > 200 OR tsvector_to_array(p_search) @> w.words THEN p_search
                ELSE p_search || array_to_tsvector(w.words) END
    FROM (SELECT coalesce(array_agg(DISTINCT u) FILTER (WHERE u <> ''), '{}') AS words
          FROM unnest(string_to_array(p_words, ' ')) u) w
$$;

-- What fits a job: {origin, mine: null | {side, ids}, found: [{id, lesson, reflection, body, seen}]}. `origin` is the request that it goes
-- back to, over the jobs above it and those that it was forked from. `mine` is what was chosen for it before, as `found` then,
-- without what was removed since. Else `found` are the tenant's insights with words of the text, on these tools or on none:
-- pinned ones first, then those with most of the words, of the same those that were seen last.
CREATE FUNCTION planq_find_insights(p_tenant text, p_job uuid, p_text text, p_tools text[], p_limit int) RETURNS json
LANGUAGE plpgsql STABLE AS $$
DECLARE
    o insight_offers;
    v_origin uuid;
    v_any tsquery;
    v_found json;
BEGIN
    SELECT * INTO o FROM insight_offers WHERE tenant_id = p_tenant AND job_id = p_job;
    IF FOUND THEN
        v_found := (
            SELECT json_agg(json_build_object(
                'id', i.id, 'lesson', i.lesson, 'reflection', i.reflection, 'body', i.body, 'seen', i.seen) ORDER BY u.n)
            FROM unnest(o.insight_ids) WITH ORDINALITY u (id, n) JOIN insights i ON i.id = u.id AND i.tenant_id = p_tenant);
        RETURN json_build_object('origin', o.origin_id, 'mine', json_build_object('side', o.side, 'ids', o.insight_ids),
                                 'found', coalesce(v_found, '[]'));
    END IF;
    v_any := (SELECT string_agg(quote_literal(w.lexeme), ' | ')::tsquery FROM unnest(planq_insight_words(p_text)) w);
    IF v_any IS NOT NULL THEN
        v_found := (
            SELECT json_agg(json_build_object(
                'id', f.id, 'lesson', f.lesson, 'reflection', f.reflection, 'body', f.body, 'seen', f.seen) ORDER BY f.n)
            FROM (
                SELECT i.id, i.lesson, i.reflection, i.body, i.seen, row_number() OVER (
                    ORDER BY i.is_pinned DESC,
                        ts_rank(i.search, v_any) * CASE i.kind WHEN 'correction' THEN 3 WHEN 'failure' THEN 2 ELSE 1 END DESC,
                        i.last_seen_at DESC, i.id DESC) AS n
                FROM insights i
                WHERE i.tenant_id = p_tenant AND i.search @@ (quote_literal('tenant ' || p_tenant)::tsquery && v_any)
                  AND i.retired_at IS NULL AND (i.is_pinned OR i.expires_at > planq_now()) AND i.seen > i.against
                  AND (i.tool_name = '' OR i.tool_name = ANY (p_tools))
                ORDER BY n LIMIT p_limit
            ) f);
    END IF;
    IF v_found IS NOT NULL THEN
        WITH RECURSIVE back (id, depth) AS (
            SELECT coalesce(j.root_job_id, j.id), 0 FROM jobs j WHERE j.id = p_job AND j.tenant_id = p_tenant
            UNION ALL
            SELECT coalesce(f.root_job_id, f.id), b.depth + 1 FROM back b
            JOIN jobs j ON j.id = b.id AND j.tenant_id = p_tenant
            JOIN jobs f ON f.id = j.forked_from AND f.tenant_id = p_tenant
            WHERE b.depth < 50
        )
        SELECT b.id INTO v_origin FROM back b ORDER BY b.depth DESC LIMIT 1;
    END IF;
    RETURN json_build_object('origin', coalesce(v_origin, p_job), 'mine', NULL, 'found', coalesce(v_found, '[]'));
END $$;

-- InsightsForgotten: nothing is left of what a tenant's conversation has taught, or (null) all of the tenant, nor of what was
-- chosen for its jobs. What others have taught, too, stays, without its words and its count, nor what a model said of its job.
CREATE FUNCTION planq_forget_insights(p_tenant text, p_conversation uuid) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_count int;
BEGIN
    DELETE FROM insight_offers
    WHERE tenant_id = p_tenant AND (p_conversation IS NULL OR conversation_id = p_conversation);
    IF p_conversation IS NULL THEN
        DELETE FROM insights WHERE tenant_id = p_tenant;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        RETURN v_count;
    END IF;
    WITH gone AS (
        DELETE FROM insight_sources WHERE tenant_id = p_tenant AND conversation_id = p_conversation RETURNING insight_id, job_id
    ), less AS (
        SELECT g.insight_id, count(*)::int AS times, array_agg(g.job_id) AS jobs FROM gone g GROUP BY g.insight_id
    ), left_over AS (
        SELECT l.insight_id, l.times, l.jobs,
               (SELECT string_agg(array_to_string(tsvector_to_array(s.words), ' '), ' ') FROM insight_sources s
                WHERE s.insight_id = l.insight_id AND s.tenant_id = p_tenant AND s.job_id <> ALL (l.jobs)) AS words
        FROM less l
    ), kept AS (
        UPDATE insights i SET seen = greatest(i.seen - l.times, 1),
            reflection = CASE WHEN i.reflected_job_id = ANY (l.jobs) THEN NULL ELSE i.reflection END,
            reflection_job_id = CASE WHEN i.reflected_job_id = ANY (l.jobs) THEN NULL ELSE i.reflection_job_id END,
            reflected_job_id = CASE WHEN i.reflected_job_id = ANY (l.jobs) THEN NULL ELSE i.reflected_job_id END,
            search = planq_insight_search(planq_insight_base(i.tenant_id, i.tool_name, i.body), l.words)
        FROM left_over l WHERE i.id = l.insight_id AND i.tenant_id = p_tenant AND l.words IS NOT NULL
    ), removed AS (
        DELETE FROM insights i USING left_over l
        WHERE i.id = l.insight_id AND i.tenant_id = p_tenant AND l.words IS NULL RETURNING i.id
    )
    SELECT count(*) INTO v_count FROM removed;
    RETURN v_count;
END $$;
