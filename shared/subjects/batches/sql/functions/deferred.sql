-- Deferred: model calls of a batch's jobs wait for the provider's batches, which cost half.
--
-- planq_deferral              what is known of a job's call, for its claim
-- planq_defer_call            a stage waits for its call, which is stored to be sent
-- planq_take_provider_batch   a worker looks after a provider's batch: a new one, or one whose time has come
-- planq_keep_provider_batch   the provider has it, or the next look comes later
-- planq_settle_calls          results have come: their jobs go on
--   planq_wake_deferred         the same for jobs whose calls have results
--
-- Lock order: provider_batches, then jobs by their ids, then deferred_calls. A call is sent only after the commit by which it
-- belongs to a provider's batch, and that batch is looked for at the provider before it is sent a second time.

-- What is known of the call of a job, {status, model, result}; null for a batch without a discount.
CREATE FUNCTION planq_deferral(p_job uuid, p_batch uuid, p_resumes int) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT json_build_object('status', d.status, 'model', d.model, 'result', d.result)
        FROM batches b LEFT JOIN deferred_calls d ON d.job_id = p_job AND d.resumes = p_resumes
        WHERE b.id = p_batch AND b.discount IS NOT NULL
    );
END $$;

-- CallDeferred: the stage waits for the result of its call: `p_call` is {model, scope, body}, null where it is stored. The
-- job's time stands still meanwhile, for `p_seconds` at least. Returns whether it applied: `p_worker` must own the stage.
CREATE FUNCTION planq_defer_call(p_job uuid, p_attempt int, p_worker uuid, p_call json, p_seconds float8) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    j record;
BEGIN
    UPDATE jobs SET stage_worker = NULL, deadline = NULL, wakes = 0, run_at = planq_never(), wake_at = planq_never()
    WHERE id = p_job AND status IN ('planning', 'responding') AND stage_worker = p_worker AND stage_attempt = p_attempt
      AND batch_id IS NOT NULL
    RETURNING tenant_id, batch_id, resumes, expires_at INTO j;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_call IS NOT NULL THEN
        INSERT INTO deferred_calls AS d (job_id, tenant_id, batch_id, resumes, model, scope, body, seconds_left, created_at)
        VALUES (p_job, j.tenant_id, j.batch_id, j.resumes, p_call->>'model', p_call->>'scope', p_call->>'body',
                coalesce(extract(epoch FROM j.expires_at - planq_now())::float8, p_seconds), planq_now())
        ON CONFLICT (job_id) DO UPDATE SET resumes = excluded.resumes, model = excluded.model, scope = excluded.scope,
            body = excluded.body, seconds_left = excluded.seconds_left, created_at = excluded.created_at,
            provider_batch_id = NULL, status = 'waiting', result = NULL
        WHERE d.resumes <> excluded.resumes;
        UPDATE jobs SET expires_at = greatest(expires_at, planq_now() + make_interval(secs => p_seconds)) WHERE id = p_job;
        PERFORM planq_append_event(j.tenant_id, p_job, 'stage_deferred', json_build_object(
            'attempt', p_attempt, 'model', p_call->>'model'));
    END IF;
    -- Whoever brings results locks the job first, so they are seen here, or wake what this commit stores.
    PERFORM planq_wake_deferred(ARRAY[p_job]);
    RETURN true;
END $$;

-- Lets those of `p_jobs` go on that wait and have a result, with the time that they had left. The caller holds the jobs.
CREATE FUNCTION planq_wake_deferred(p_jobs uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE jobs j SET run_at = planq_now(), wake_at = planq_now(), wakes = 0,
        expires_at = planq_now() + make_interval(secs => greatest(d.seconds_left, 60))
    FROM deferred_calls d
    WHERE j.id = ANY (p_jobs) AND d.job_id = j.id AND d.resumes = j.resumes AND d.status NOT IN ('waiting', 'sent')
      AND j.status IN ('planning', 'responding') AND j.stage_worker IS NULL AND j.run_at = planq_never();
END $$;

-- ProviderBatchTaken: `p_worker` holds a provider's batch for `p_hold_seconds`: one that is due, otherwise a new one with the id `p_id`,
-- whose calls have waited for others for `p_collect_seconds`. `has_jobs` says whether a job still waits for it. No row where
-- nothing is to be done.
CREATE FUNCTION planq_take_provider_batch(
    p_id uuid, p_worker uuid, p_hold_seconds float8, p_collect_seconds float8, p_most int, p_most_bytes bigint
) RETURNS TABLE (
    id uuid, tenant_id text, model text, scope text, status text, provider_id text, handle text, lines int, tries int,
    created_at timestamptz, is_cancelled boolean, has_jobs boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_id uuid;
    v_jobs uuid[];
    g record;
BEGIN
    SELECT b.id INTO v_id FROM provider_batches b
    WHERE b.status <> 'ended' AND b.next_look_at <= planq_now() AND coalesce(b.held_until <= planq_now(), true)
    ORDER BY b.next_look_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    -- Calls that wait become a new one: up to `p_most` of one batch, model and scope, or as many as have `p_most_bytes`.
    IF v_id IS NULL AND pg_try_advisory_xact_lock(hashtext('planq.provider_batches')) THEN
        -- Of jobs that have ended nothing is sent any more.
        UPDATE deferred_calls d SET status = 'canceled', body = NULL FROM jobs j
        WHERE d.status = 'waiting' AND j.id = d.job_id AND NOT planq_is_unfinished(j.status);
        SELECT tenant_id, batch_id, model, scope INTO g FROM deferred_calls WHERE status = 'waiting'
        GROUP BY tenant_id, batch_id, model, scope
        HAVING count(*) >= p_most OR min(created_at) <= planq_now() - make_interval(secs => p_collect_seconds)
        ORDER BY min(created_at) LIMIT 1;
        IF FOUND THEN
            SELECT array_agg(c.job_id) INTO v_jobs FROM (
                SELECT job_id, row_number() OVER up_to AS n, sum(octet_length(body)) OVER up_to AS bytes
                FROM deferred_calls
                WHERE status = 'waiting' AND tenant_id = g.tenant_id AND batch_id = g.batch_id AND model = g.model AND scope = g.scope
                WINDOW up_to AS (ORDER BY created_at, job_id)
            ) c WHERE c.n = 1 OR (c.n <= p_most AND c.bytes <= p_most_bytes);
            INSERT INTO provider_batches (id, tenant_id, batch_id, model, scope, lines, next_look_at, created_at)
            VALUES (p_id, g.tenant_id, g.batch_id, g.model, g.scope, cardinality(v_jobs), planq_now(), planq_now());
            UPDATE deferred_calls SET status = 'sent', provider_batch_id = p_id WHERE job_id = ANY (v_jobs);
            v_id := p_id;
        END IF;
    END IF;
    RETURN QUERY
    UPDATE provider_batches b SET held_by = p_worker, held_until = planq_now() + make_interval(secs => p_hold_seconds),
        tries = b.tries + (b.status = 'submitting')::int
    WHERE b.id = v_id
    RETURNING b.id, b.tenant_id, b.model, b.scope, b.status::text, b.provider_id, b.handle, b.lines, b.tries, b.created_at,
        b.cancelled_at IS NOT NULL, EXISTS (
            SELECT FROM deferred_calls d JOIN jobs j ON j.id = d.job_id
            WHERE d.provider_batch_id = b.id AND d.status = 'sent' AND planq_is_unfinished(j.status));
END $$;

-- ProviderBatchKept: it is looked at again after `p_seconds`, by anybody. Where the provider has it, `p_provider_id` and `p_handle`
-- say so, and the requests need not be kept. `p_is_cancelled` where the provider was asked to cancel it. Returns whether
-- `p_worker` held it.
CREATE FUNCTION planq_keep_provider_batch(
    p_id uuid, p_worker uuid, p_provider_id text, p_handle text, p_is_cancelled boolean, p_error text, p_seconds float8
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE provider_batches SET
        status = CASE WHEN p_provider_id IS NULL THEN status ELSE 'submitted' END,
        provider_id = coalesce(p_provider_id, provider_id), handle = coalesce(p_handle, handle), error = p_error,
        submitted_at = CASE WHEN p_provider_id IS NULL THEN submitted_at ELSE coalesce(submitted_at, planq_clock()) END,
        cancelled_at = CASE WHEN p_is_cancelled THEN coalesce(cancelled_at, planq_clock()) ELSE cancelled_at END,
        next_look_at = planq_now() + make_interval(secs => p_seconds), held_by = NULL, held_until = NULL
    WHERE id = p_id AND held_by = p_worker AND status <> 'ended';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE deferred_calls SET body = NULL WHERE p_provider_id IS NOT NULL AND provider_batch_id = p_id AND body IS NOT NULL;
    RETURN true;
END $$;

-- CallsSettled: stores results, [{job, status, result}], and lets their jobs go on. With `p_rest` no further ones come: the
-- other calls of the batch end so, with `p_rest_result`, and it has ended. A result that is stored stays. Returns whether
-- `p_worker` held it.
CREATE FUNCTION planq_settle_calls(
    p_id uuid, p_worker uuid, p_results json, p_rest text, p_rest_result text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_jobs uuid[];
BEGIN
    UPDATE provider_batches SET status = CASE WHEN p_rest IS NULL THEN status ELSE 'ended' END,
        ended_at = CASE WHEN p_rest IS NULL THEN ended_at ELSE planq_clock() END, error = p_rest_result
    WHERE id = p_id AND held_by = p_worker AND status <> 'ended';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT array_agg(d.job_id) INTO v_jobs FROM deferred_calls d
    WHERE d.provider_batch_id = p_id AND d.status = 'sent'
      AND (p_rest IS NOT NULL OR d.job_id IN (SELECT (r->>'job')::uuid FROM json_array_elements(p_results) r));
    PERFORM FROM jobs WHERE id = ANY (v_jobs) ORDER BY id FOR NO KEY UPDATE;
    UPDATE deferred_calls d SET status = r.status, result = r.result, body = NULL
    FROM json_to_recordset(p_results) AS r (job uuid, status text, result text)
    WHERE d.job_id = r.job AND d.provider_batch_id = p_id AND d.status = 'sent';
    UPDATE deferred_calls d SET status = p_rest, result = p_rest_result, body = NULL
    WHERE p_rest IS NOT NULL AND d.provider_batch_id = p_id AND d.status = 'sent';
    PERFORM planq_wake_deferred(v_jobs);
    RETURN true;
END $$;
