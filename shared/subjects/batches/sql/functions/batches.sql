-- Batch: the lines of a file become jobs, never more at once than the workers keep up with, and end with them.
--
-- planq_admit_lines    lines that wait become jobs
--   planq_choose_lines   says which: tenants take turns, and so do the batches of one
-- planq_settle_lines   jobs have ended: their lines end with them, and a batch with its last line
--   planq_end_lines      lines have ended, with these jobs
--   planq_close_batches  what follows for their batches
-- planq_fail_lost_lines   jobs are gone that somebody has deleted: their lines fail
-- planq_change_batch, planq_retry_batch   what people ask of a batch
-- planq_cancel_lines   a cancelled batch ends, bit by bit
-- planq_tell_batch     a batch has ended: whoever wants to know is told
--
-- Lock order: the rows of batches, by their ids, then jobs as everywhere, then lines. A line is changed by nobody who does
-- not hold its batch, so lines need no locks of their own. No transition that holds a job asks for a batch: what has ended
-- is settled in a commit of its own (ends.sql).

-- LinesAdmitted: makes jobs with the ids `p_ids`, as many as there is room for; one sweeper acts at a time. The queue time of
-- a job runs from now on. What a line may use up is held of its batch's budget. Returns the jobs that are to be woken.
CREATE FUNCTION planq_admit_lines(p_ids uuid[]) RETURNS TABLE (
    job_id uuid, priority text, agent_name text, tenant_id text
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_running planq_running[];
    v_lines planq_line[];
    v_items json;
    v_room int;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('planq.admit')) THEN
        RETURN;
    END IF;
    SELECT array_agg(ROW(b.id, b.tenant_id, r.lines)::planq_running) INTO v_running FROM (
        -- A job that waits for a provider's batch needs no worker.
        SELECT l.batch_id, greatest(0, count(*) - (
            SELECT count(*) FROM deferred_calls d WHERE d.batch_id = l.batch_id AND d.status IN ('waiting', 'sent')
        ))::int AS lines
        FROM batch_lines l WHERE l.status = 'admitted' GROUP BY l.batch_id
    ) r JOIN batches b ON b.id = r.batch_id;
    v_room := least(cardinality(p_ids),
        planq_window('bulk') - coalesce((SELECT sum(r.lines) FROM unnest(v_running) r), 0));
    IF v_room <= 0 THEN
        RETURN;
    END IF;
    v_lines := planq_choose_lines(v_running, v_room);
    WITH chosen AS (
        SELECT c.batch_id, c.line, p_ids[row_number() OVER (ORDER BY c.batch_id, c.line)] AS job_id FROM unnest(v_lines) c
    ), admitted AS (
        UPDATE batch_lines l SET status = 'admitted', job_id = c.job_id, tries = l.tries + 1
        FROM chosen c WHERE l.batch_id = c.batch_id AND l.line = c.line
        RETURNING l.*
    ), counted AS (
        UPDATE batches b SET admitted = b.admitted + s.lines, reserved_usd = b.reserved_usd + s.usd,
            reserved_tokens = b.reserved_tokens + s.tokens, started_at = coalesce(b.started_at, planq_now())
        FROM (
            SELECT a.batch_id, count(*) AS lines, sum(a.reserved_usd) AS usd, sum(a.reserved_tokens) AS tokens
            FROM admitted a GROUP BY a.batch_id
        ) s WHERE b.id = s.batch_id
    )
    SELECT json_agg(a.body::jsonb || jsonb_build_object('id', a.job_id, 'tenant_id', a.tenant_id, 'batch_id', a.batch_id,
                                                        'batch_line', a.line)) INTO v_items FROM admitted a;
    IF v_items IS NOT NULL THEN
        PERFORM planq_submit_jobs(v_items, NULL, NULL);
        RETURN QUERY SELECT j.id, j.priority::text, j.agent_name, j.tenant_id FROM jobs j WHERE j.id = ANY (p_ids);
    END IF;
END $$;

-- Chooses up to `p_room` lines that wait, and holds their batches; one that somebody else holds takes its turn later. The
-- tenant that has the fewest lines among the jobs comes first, of a tenant the batch, of a batch the first line. With a
-- canary only so many are admitted until somebody has looked at them.
CREATE FUNCTION planq_choose_lines(p_running planq_running[], p_room int) RETURNS planq_line[] LANGUAGE plpgsql AS $$
DECLARE
    v_batches uuid[];
    v_lines planq_line[];
BEGIN
    SELECT array_agg(o.id) INTO v_batches FROM (
        SELECT b.id FROM batches b
        LEFT JOIN unnest(p_running) r ON r.batch_id = b.id
        LEFT JOIN (SELECT tenant_id, sum(lines) AS lines FROM unnest(p_running) GROUP BY tenant_id) t ON t.tenant_id = b.tenant_id
        WHERE b.status IN ('in_progress', 'cancelling') AND b.status = 'in_progress' AND b.paused_at IS NULL
          AND EXISTS (SELECT FROM batch_lines l WHERE l.batch_id = b.id AND l.status = 'valid')
          AND NOT (SELECT n.is_disabled FROM tenants n WHERE n.id = b.tenant_id)
        ORDER BY coalesce(t.lines, 0), coalesce(r.lines, 0), b.id LIMIT p_room
        FOR NO KEY UPDATE OF b SKIP LOCKED
    ) o;
    WITH held AS (
        SELECT b.*, coalesce(r.lines, 0) AS lines,
            coalesce((SELECT sum(t.lines) FROM unnest(p_running) t WHERE t.tenant_id = b.tenant_id), 0) AS tenants_lines
        FROM batches b LEFT JOIN unnest(p_running) r ON r.batch_id = b.id WHERE b.id = ANY (v_batches)
    ), offered AS (
        SELECT h.tenant_id, h.tenants_lines, l.batch_id, l.line,
            h.lines + row_number() OVER (PARTITION BY l.batch_id ORDER BY l.line) AS turn,
            coalesce(h.spent_usd + h.reserved_usd + sum(l.reserved_usd) OVER up_to <= h.budget_usd, true)
                AND coalesce(h.spent_tokens + h.reserved_tokens + sum(l.reserved_tokens) OVER up_to <= h.budget_tokens, true)
                AS is_covered
        FROM held h CROSS JOIN LATERAL (
            SELECT w.batch_id, w.line, w.reserved_usd, w.reserved_tokens FROM batch_lines w
            WHERE w.batch_id = h.id AND w.status = 'valid'
            ORDER BY w.line LIMIT greatest(0, least(p_room, h.canary - h.admitted))
        ) l
        WINDOW up_to AS (PARTITION BY l.batch_id ORDER BY l.line)
    ), fair AS (
        SELECT batch_id, line, turn,
            tenants_lines + row_number() OVER (PARTITION BY tenant_id ORDER BY turn, batch_id) AS tenants_turn
        FROM offered WHERE is_covered
    )
    SELECT array_agg(ROW(f.batch_id, f.line)::planq_line) INTO v_lines FROM (
        SELECT batch_id, line FROM fair ORDER BY tenants_turn, turn, batch_id LIMIT p_room
    ) f;
    -- A batch waits for a larger budget where its own does not cover its next line, once no line is a job whose end could give back
    -- what it has not used.
    UPDATE batches b SET paused_at = planq_now(), pause_reason = 'budget'
    FROM batch_lines l
    WHERE b.id = ANY (v_batches) AND b.status = 'in_progress' AND b.paused_at IS NULL
      AND (b.budget_usd IS NOT NULL OR b.budget_tokens IS NOT NULL) AND l.batch_id = b.id AND l.status = 'valid'
      AND l.line = (SELECT min(n.line) FROM batch_lines n WHERE n.batch_id = b.id AND n.status = 'valid')
      AND NOT EXISTS (SELECT FROM batch_lines a WHERE a.batch_id = b.id AND a.status = 'admitted')
      AND (b.spent_usd + l.reserved_usd > b.budget_usd OR b.spent_tokens + l.reserved_tokens > b.budget_tokens);
    RETURN v_lines;
END $$;

-- LinesSettled: the ends of these jobs end their lines, and batches with their last ones; one sweeper acts at a time. Returns
-- {applied}: nobody is to be woken. A job that was resumed ends its line anew; one whose line is tried again by another job ends none.
CREATE FUNCTION planq_settle_lines(p_jobs uuid[]) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_jobs uuid[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('planq.settle')) THEN
        RETURN json_build_object('applied', false);
    END IF;
    PERFORM FROM batches WHERE id IN (SELECT batch_id FROM jobs WHERE id = ANY (p_jobs)) ORDER BY id FOR NO KEY UPDATE;
    WITH joined AS (
        UPDATE jobs SET is_joined = true
        WHERE id = ANY (p_jobs) AND batch_id IS NOT NULL AND NOT is_joined AND planq_is_ended(status)
        RETURNING id
    )
    SELECT array_agg(id) INTO v_jobs FROM joined;
    PERFORM planq_end_lines(v_jobs);
    RETURN json_build_object('applied', v_jobs IS NOT NULL);
END $$;

-- Lines of these batches have ended: a batch has completed with its last one, or waits for somebody after its canary. The
-- caller holds the batches.
CREATE FUNCTION planq_close_batches(p_batches uuid[]) RETURNS void LANGUAGE sql AS $$
    UPDATE batches SET status = 'completed', finished_at = planq_clock(), paused_at = NULL, pause_reason = NULL
    WHERE id = ANY (p_batches) AND status = 'in_progress' AND completed + failed + cancelled >= valid;
    UPDATE batches SET paused_at = planq_now(), pause_reason = 'canary'
    WHERE id = ANY (p_batches) AND status = 'in_progress' AND paused_at IS NULL AND completed + failed + cancelled >= canary;
$$;

-- LinesLost: fails the admitted lines of batches in progress whose jobs somebody has deleted, up to `p_most` of them, with
-- `p_error`; one sweeper acts at a time. What they hold of the budget is free again, for what they used of it nobody knows.
-- Returns how many these are.
CREATE FUNCTION planq_fail_lost_lines(p_most int, p_error json) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_batches uuid[];
    v_lines int;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('planq.settle')) THEN
        RETURN 0;
    END IF;
    SELECT array_agg(b.id) INTO v_batches FROM (
        SELECT id FROM batches WHERE status IN ('in_progress', 'cancelling') AND status = 'in_progress' AND EXISTS (
            SELECT FROM batch_lines l WHERE l.batch_id = batches.id AND l.status = 'admitted'
              AND NOT EXISTS (SELECT FROM jobs j WHERE j.id = l.job_id))
        ORDER BY id FOR NO KEY UPDATE
    ) b;
    WITH lost AS (
        SELECT l.batch_id, l.line, row_number() OVER (PARTITION BY l.batch_id ORDER BY l.line) + (
            SELECT coalesce(max(s.settled), 0) FROM batch_lines s WHERE s.batch_id = l.batch_id AND s.settled IS NOT NULL
        ) AS settled
        FROM batch_lines l WHERE l.batch_id = ANY (v_batches) AND l.status = 'admitted'
          AND NOT EXISTS (SELECT FROM jobs j WHERE j.id = l.job_id)
        ORDER BY l.batch_id, l.line LIMIT p_most
    ), ended AS (
        UPDATE batch_lines l SET status = 'failed', error = p_error, finished_at = planq_clock(), settled = o.settled
        FROM lost o WHERE l.batch_id = o.batch_id AND l.line = o.line
        RETURNING l.batch_id, l.reserved_usd, l.reserved_tokens
    ), counted AS (
        UPDATE batches b SET failed = b.failed + c.lines, reserved_usd = b.reserved_usd - c.usd,
            reserved_tokens = b.reserved_tokens - c.tokens
        FROM (SELECT batch_id, count(*) AS lines, sum(reserved_usd) AS usd, sum(reserved_tokens) AS tokens
              FROM ended GROUP BY batch_id) c
        WHERE b.id = c.batch_id
    )
    SELECT count(*) INTO v_lines FROM ended;
    PERFORM planq_close_batches(v_batches);
    RETURN v_lines;
END $$;

-- Ends the lines of ended jobs, each with what its job and all below it have used, and the batches whose last lines these were. The line
-- of a plan of agents that answers `success: false` has an error. The caller holds the batches.
CREATE FUNCTION planq_end_lines(p_jobs uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_batches uuid[];
BEGIN
    WITH ends AS MATERIALIZED (
        SELECT l.batch_id, l.line, l.status AS earlier, planq_outcome(l.status, l.error) AS earlier_outcome,
            j.status, planq_outcome(j.status, o.error) AS outcome, o.error, j.finished_at,
            (SELECT coalesce(max(s.settled), 0) FROM batch_lines s WHERE s.batch_id = l.batch_id AND s.settled IS NOT NULL)
                + row_number() OVER (PARTITION BY l.batch_id ORDER BY j.finished_at, j.id) AS settled,
            l.reserved_usd, l.reserved_tokens, coalesce(l.cost_usd, 0) AS earlier_usd,
            l.input_tokens + l.output_tokens AS earlier_tokens, u.cost_usd AS usd, u.input_tokens, u.output_tokens
        FROM unnest(p_jobs) AS g (id) JOIN jobs j ON j.id = g.id
        JOIN batch_lines l ON l.batch_id = j.batch_id AND l.line = j.batch_line AND l.job_id = j.id
        CROSS JOIN LATERAL planq_usage(j.id, true) u
        CROSS JOIN LATERAL (
            SELECT coalesce(j.error, CASE WHEN j.status = 'completed' AND j.respond = 'output'
                    AND coalesce(j.answer, j.preview) ~ '^\{\s*"success"\s*:\s*false' THEN (
                SELECT json_build_object('code', 'tool_error', 'message', 'its plan of agents did not succeed', 'retryable', false,
                                         'details', json_build_object('step', s.index, 'tool_name', s.tool_name))
                FROM (SELECT index, tool_name FROM steps WHERE job_id = j.id ORDER BY index DESC LIMIT 1) s
                WHERE s.tool_name = 'cp__agent_orchestrate') END) AS error
        ) o
    ), ended AS (
        UPDATE batch_lines l SET status = e.status, error = e.error, finished_at = e.finished_at, settled = e.settled,
            cost_usd = e.usd, input_tokens = e.input_tokens, output_tokens = e.output_tokens
        FROM ends e WHERE l.batch_id = e.batch_id AND l.line = e.line
    ), counted AS (
        SELECT batch_id,
            count(*) FILTER (WHERE status = 'completed') - count(*) FILTER (WHERE earlier = 'completed') AS completed,
            count(*) FILTER (WHERE outcome = 'partial') - count(*) FILTER (WHERE earlier_outcome = 'partial') AS partial,
            count(*) FILTER (WHERE outcome = 'incomplete') - count(*) FILTER (WHERE earlier_outcome = 'incomplete') AS incomplete,
            count(*) FILTER (WHERE status = 'failed') - count(*) FILTER (WHERE earlier = 'failed') AS failed,
            count(*) FILTER (WHERE status = 'cancelled') - count(*) FILTER (WHERE earlier = 'cancelled') AS cancelled,
            coalesce(sum(reserved_usd) FILTER (WHERE earlier = 'admitted'), 0) AS held_usd,
            coalesce(sum(reserved_tokens) FILTER (WHERE earlier = 'admitted'), 0) AS held_tokens,
            sum(coalesce(usd, 0) - earlier_usd) AS usd, sum(input_tokens + output_tokens - earlier_tokens) AS tokens
        FROM ends GROUP BY batch_id
    ), changed AS (
        UPDATE batches b SET completed = b.completed + c.completed, partial = b.partial + c.partial,
            incomplete = b.incomplete + c.incomplete, failed = b.failed + c.failed, cancelled = b.cancelled + c.cancelled,
            reserved_usd = b.reserved_usd - c.held_usd, reserved_tokens = b.reserved_tokens - c.held_tokens,
            spent_usd = b.spent_usd + c.usd, spent_tokens = b.spent_tokens + c.tokens
        FROM counted c WHERE b.id = c.batch_id RETURNING b.id
    )
    SELECT array_agg(id) INTO v_batches FROM changed;
    PERFORM planq_close_batches(v_batches);
END $$;

-- CancelRequested, PauseRequested, ResumeRequested: `p_act` is `cancel`, `pause` or `resume`. A cancelled batch admits no line, and
-- planq_cancel_lines ends the rest. A paused batch admits no line, and its jobs go on. A resumed batch admits lines again, all of
-- them after a canary; `p_usd` and `p_tokens` replace the limits of its budget unless they are null. Returns {found, applied,
-- status}.
CREATE FUNCTION planq_change_batch(
    p_batch uuid, p_tenant text, p_act text, p_usd float8 DEFAULT NULL, p_tokens bigint DEFAULT NULL
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_status text;
BEGIN
    IF p_act = 'cancel' THEN
        UPDATE batches SET status = 'cancelling', cancelled_at = planq_now(), paused_at = NULL, pause_reason = NULL,
            held_by = NULL, held_until = NULL
        WHERE id = p_batch AND tenant_id = p_tenant AND status IN ('validating', 'in_progress')
        RETURNING status INTO v_status;
    ELSIF p_act = 'pause' THEN
        UPDATE batches SET paused_at = planq_now(), pause_reason = 'asked'
        WHERE id = p_batch AND tenant_id = p_tenant AND status IN ('validating', 'in_progress') AND paused_at IS NULL
        RETURNING status INTO v_status;
    ELSE
        UPDATE batches SET canary = CASE WHEN pause_reason = 'canary' THEN NULL ELSE canary END, paused_at = NULL,
            pause_reason = NULL, budget_usd = coalesce(p_usd::numeric, budget_usd), budget_tokens = coalesce(p_tokens, budget_tokens)
        WHERE id = p_batch AND tenant_id = p_tenant AND status IN ('validating', 'in_progress')
          AND (paused_at IS NOT NULL OR p_usd IS NOT NULL OR p_tokens IS NOT NULL)
        RETURNING status INTO v_status;
    END IF;
    IF FOUND THEN
        RETURN json_build_object('found', true, 'applied', true, 'status', v_status);
    END IF;
    SELECT status INTO v_status FROM batches WHERE id = p_batch AND tenant_id = p_tenant;
    RETURN json_build_object('found', FOUND, 'applied', false, 'status', v_status);
END $$;

-- Ends a part of one cancelled batch: the jobs of up to `p_most` lines and, once there are none, ten times as many lines
-- that have become no jobs; then the batch. Of `p_batch`, or of any; one that somebody else is at is passed over. What has ended by
-- itself stays as it is. Returns {applied, ended: [ids of jobs]}; not applied where nothing is left to do.
CREATE FUNCTION planq_cancel_lines(p_batch uuid, p_most int) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_batch uuid;
    v_jobs uuid[];
    v_ended uuid[];
    v_ends record;
BEGIN
    SELECT id INTO v_batch FROM batches
    WHERE status IN ('in_progress', 'cancelling') AND status = 'cancelling' AND (p_batch IS NULL OR id = p_batch)
    ORDER BY id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    IF v_batch IS NULL THEN
        RETURN json_build_object('applied', false);
    END IF;
    SELECT array_agg(l.job_id) INTO v_jobs FROM (
        SELECT n.job_id FROM batch_lines n JOIN jobs j ON j.id = n.job_id
        WHERE n.batch_id = v_batch AND n.status = 'admitted' ORDER BY n.line LIMIT p_most
    ) l;
    IF v_jobs IS NOT NULL THEN
        v_ended := planq_end_tree(NULL, NULL, NULL, v_jobs);  -- they have none above them
        UPDATE jobs SET is_joined = true WHERE id = ANY (v_jobs);
        PERFORM planq_end_lines(v_jobs);
        RETURN json_build_object('applied', true, 'ended', to_json(v_ended));
    END IF;
    -- An admitted one has no job any more: somebody has removed it by hand.
    WITH chosen AS (
        SELECT line, status, row_number() OVER (ORDER BY line) + (
            SELECT coalesce(max(s.settled), 0) FROM batch_lines s WHERE s.batch_id = v_batch AND s.settled IS NOT NULL
        ) AS settled
        FROM batch_lines WHERE batch_id = v_batch AND status IN ('received', 'valid', 'admitted')
        ORDER BY line LIMIT 10 * p_most
    ), ended AS (
        UPDATE batch_lines l SET status = 'cancelled', raw = NULL, finished_at = planq_clock(), settled = c.settled
        FROM chosen c WHERE l.batch_id = v_batch AND l.line = c.line
        RETURNING c.status, l.reserved_usd, l.reserved_tokens
    )
    SELECT count(*) AS lines, count(*) FILTER (WHERE status = 'received') AS unseen,
        coalesce(sum(reserved_usd) FILTER (WHERE status = 'admitted'), 0) AS usd,
        coalesce(sum(reserved_tokens) FILTER (WHERE status = 'admitted'), 0) AS tokens INTO v_ends FROM ended;
    -- Of what nobody has looked at, nobody will say that it is invalid.
    UPDATE batches SET cancelled = cancelled + v_ends.lines, valid = valid + v_ends.unseen,
        validated_lines = validated_lines + v_ends.unseen, reserved_usd = reserved_usd - v_ends.usd,
        reserved_tokens = reserved_tokens - v_ends.tokens
    WHERE id = v_batch;
    UPDATE batches SET status = 'cancelled', finished_at = planq_clock() WHERE id = v_batch AND v_ends.lines < 10 * p_most;
    RETURN json_build_object('applied', true, 'ended', '[]'::json);
END $$;

-- RetryRequested: the lines that have failed, or are partial, wait again, to become new jobs; what their jobs have used stays
-- spent. A batch that has completed is in progress again. A line whose job runs again since it was resumed is none of them.
-- Returns {found, applied, status, lines}: how many there are.
CREATE FUNCTION planq_retry_batch(p_batch uuid, p_tenant text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_status text;
    v_again int[];
    v_lines int;
    v_partial int;
BEGIN
    SELECT status INTO v_status FROM batches WHERE id = p_batch AND tenant_id = p_tenant FOR NO KEY UPDATE;
    IF NOT FOUND OR v_status NOT IN ('in_progress', 'completed') THEN
        RETURN json_build_object('found', FOUND, 'applied', false, 'status', v_status, 'lines', 0);
    END IF;
    -- Who resumes the job of one of them waits, and then sees that the line has gone on without it (planq_resume_job).
    SELECT array_agg(l.line) INTO v_again FROM (
        SELECT line FROM batch_lines
        WHERE batch_id = p_batch AND tenant_id = p_tenant
          AND planq_outcome(status, error) IN ('failed', 'partial')
        ORDER BY line FOR NO KEY UPDATE
    ) l;
    -- The number under which a line was settled stays, so that none is given twice.
    WITH chosen AS (
        SELECT l.line, l.status FROM batch_lines l WHERE l.batch_id = p_batch AND l.line = ANY (v_again)
          AND NOT EXISTS (SELECT FROM jobs j WHERE j.id = l.job_id AND NOT j.is_joined)
    ), again AS (
        UPDATE batch_lines l SET status = 'valid', job_id = NULL, error = NULL, finished_at = NULL, cost_usd = NULL,
            input_tokens = 0, output_tokens = 0
        FROM chosen c WHERE l.batch_id = p_batch AND l.tenant_id = p_tenant AND l.line = c.line AND l.status = c.status
        RETURNING c.status
    )
    SELECT count(*), count(*) FILTER (WHERE status = 'completed') INTO v_lines, v_partial FROM again;
    IF v_lines > 0 THEN
        UPDATE batches SET status = 'in_progress', failed = failed - (v_lines - v_partial), completed = completed - v_partial,
            partial = partial - v_partial, admitted = admitted - v_lines, finished_at = NULL
        WHERE id = p_batch AND tenant_id = p_tenant;
    END IF;
    RETURN json_build_object('found', true, 'applied', v_lines > 0, 'status',
        CASE WHEN v_lines > 0 THEN 'in_progress' ELSE v_status END, 'lines', v_lines);
END $$;

-- A batch has ended: whoever wants to know is told.
CREATE FUNCTION planq_tell_batch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM planq_add_deliveries(NEW.tenant_id, 'batch.' || NEW.status, NULL, NEW.id, NEW.callback_url, json_build_object(
        'id', NEW.id, 'status', NEW.status, 'name', NEW.name, 'metadata', planq_short(NEW.metadata), 'error', planq_short(NEW.error),
        'request_counts', json_build_object('total', NEW.valid, 'completed', NEW.completed, 'failed', NEW.failed),
        'counts', json_build_object('completed', NEW.completed, 'partial', NEW.partial, 'incomplete', NEW.incomplete,
            'failed', NEW.failed, 'cancelled', NEW.cancelled),
        'created_at', planq_shown_time(NEW.created_at), 'finished_at', planq_shown_time(NEW.finished_at)));
    RETURN NULL;
END $$;

CREATE TRIGGER planq_deliveries AFTER UPDATE OF status ON batches FOR EACH ROW
WHEN (NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL)
EXECUTE FUNCTION planq_tell_batch();
