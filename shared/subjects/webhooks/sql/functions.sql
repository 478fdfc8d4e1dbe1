-- Delivery: what has to leave the house is written in the commit of what it tells, and sent by a worker.
--
--   planq_add_deliveries    one delivery for each endpoint of the tenant that wants the event, one for the callback
--   planq_tell_end          does so for a job that has ended, by a trigger: however a job ends
--   planq_tell_question     does so for a job that waits for a person, by a trigger
--   planq_claim_deliveries  a worker takes deliveries that are due, or whose worker is lost
--   planq_end_delivery      an attempt has ended, fenced by its number
--   planq_redeliver         a delivery that waits, or has ended, is sent at once

-- Stores the deliveries of an event: one for each endpoint of the tenant that wants it, and one for `p_callback` unless that is null. A
-- tenant's callbacks at one host are one recipient. Endpoints get events of batches, not of their jobs. `p_data`, at most 20 kB, is
-- sent with the type and the time. Returns the number of deliveries.
CREATE FUNCTION planq_add_deliveries(
    p_tenant text, p_event text, p_job uuid, p_batch uuid, p_callback text, p_data json
) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_now CONSTANT timestamptz := planq_clock();
    v_wanted CONSTANT text[] := ARRAY[p_event, split_part(p_event, '.', 1) || '.*'];
    v_body text;
    v_count int;
BEGIN
    v_body := json_build_object('type', p_event, 'timestamp', planq_shown_time(v_now), 'data', p_data)::text;
    INSERT INTO deliveries (id, tenant_id, endpoint_id, target, recipient, job_id, batch_id, event, body, run_at, created_at)
    SELECT planq_new_id(), p_tenant, r.endpoint, r.target, r.recipient, p_job, p_batch, p_event, v_body, v_now, v_now
    FROM (
        SELECT e.id AS endpoint, NULL AS target, e.id::text AS recipient FROM (
            -- One that is being removed or disabled is passed over: nobody's end waits for that. Who disables or removes one
            -- that is taken here waits for this commit, and finds the delivery.
            SELECT id FROM endpoints
            WHERE tenant_id = p_tenant AND NOT is_disabled AND events && v_wanted AND (p_job IS NULL OR p_batch IS NULL)
            FOR SHARE SKIP LOCKED
        ) e
        UNION ALL
        SELECT NULL, p_callback, p_tenant || ' ' || coalesce(substring(p_callback FROM '^https?://([^/?#]+)'), '')
        WHERE p_callback IS NOT NULL
    ) r;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- A time as receivers read it: RFC 3339, in UTC.
CREATE FUNCTION planq_shown_time(p_time timestamptz) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT to_char(p_time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- JSON that goes along where it is short; null in the place of what is longer. It is never taken apart: `\u0000` stays.
CREATE FUNCTION planq_short(p_json json) RETURNS json LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN octet_length(p_json::text) <= 8000 THEN p_json END
$$;

-- Stores the deliveries of a job's end, in its commit. A fault undoes no end, so that no model is called again: it marks the job with
-- `is_untold`, and removing the mark (planq_serve_ends) tries again.
CREATE FUNCTION planq_tell_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Looked at without a call: every job passes here, and most tenants have no endpoint.
    IF NEW.callback_url IS NULL AND NOT EXISTS (SELECT FROM endpoints WHERE tenant_id = NEW.tenant_id AND NOT is_disabled) THEN
        RETURN NULL;
    END IF;
    BEGIN
        PERFORM planq_add_deliveries(
            NEW.tenant_id, 'job.' || NEW.status, NEW.id, NEW.batch_id, NEW.callback_url, json_build_object(
                'id', NEW.id, 'status', NEW.status, 'outcome', planq_outcome(NEW.status, NEW.error), 'stop_reason', NEW.stop_reason,
                'error', planq_short(NEW.error), 'incomplete', CASE WHEN planq_outcome(NEW.status, NEW.error) = 'incomplete'
                    THEN NEW.error->'details' END, 'metadata', planq_short(NEW.metadata), 'conversation_id', NEW.conversation_id,
                'created_at', planq_shown_time(NEW.created_at), 'finished_at', planq_shown_time(NEW.finished_at)));
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'nobody was told of the end of job %: %', NEW.id, SQLERRM;
        UPDATE jobs SET is_untold = true WHERE id = NEW.id AND tenant_id = NEW.tenant_id;
    END;
    RETURN NULL;
END $$;

CREATE TRIGGER planq_deliveries AFTER UPDATE OF status, is_untold ON jobs FOR EACH ROW
WHEN (NEW.finished_at IS NOT NULL AND (OLD.finished_at IS NULL OR OLD.is_untold AND NOT NEW.is_untold)
      AND NEW.parent_job_id IS NULL AND (NEW.batch_id IS NULL OR NEW.callback_url IS NOT NULL))
EXECUTE FUNCTION planq_tell_end();

-- Stores the deliveries of a question, and sends it over the channel of the conversation whose turn the outermost job is.
CREATE FUNCTION planq_tell_question() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    j record;
BEGIN
    SELECT callback_url, metadata, batch_id, conversation_id INTO j FROM jobs
    WHERE id = NEW.root_job_id AND tenant_id = NEW.tenant_id;
    PERFORM planq_add_deliveries(
        NEW.tenant_id, 'job.input_required', NEW.root_job_id, j.batch_id, j.callback_url, json_build_object(
            'id', NEW.root_job_id, 'status', 'input_required', 'elicitation_id', NEW.id, 'kind', NEW.kind,
            'asking_job_id', NEW.job_id, 'metadata', planq_short(j.metadata)));
    INSERT INTO deliveries (id, tenant_id, kind, channel, recipient, knows_repeats, conversation_id, question_id, job_id,
                            event, body, run_at, created_at)
    SELECT planq_new_id(), h.tenant_id, 'message', h.name, 'channel ' || h.tenant_id || ' ' || h.name, h.knows_repeats,
           c.id, NEW.id, NEW.root_job_id, 'conversation.question', '', planq_clock(), planq_clock()
    FROM conversations c JOIN channels h ON h.tenant_id = NEW.tenant_id AND h.name = c.channel
    WHERE c.id = j.conversation_id AND c.tenant_id = NEW.tenant_id;
    RETURN NULL;
END $$;

CREATE TRIGGER planq_deliveries AFTER INSERT ON questions FOR EACH ROW
WHEN (NEW.status = 'open') EXECUTE FUNCTION planq_tell_question();

-- A worker takes deliveries that are due, longest due first, none of the recipients `p_except`: of these it sends enough
-- already. Due again is what a worker has sent for `p_hold` seconds, or whose worker has no lease any more; it may have
-- arrived, and is sent again under the same id. Of one whose receiver would not know that for a repeat it is a doubt.
-- Of one conversation the oldest goes first, and what follows once it has ended.
CREATE FUNCTION planq_claim_deliveries(
    p_worker uuid, p_limit int, p_except text[], p_lease float8, p_hold float8
) RETURNS TABLE (
    id uuid, tenant_id text, endpoint_id uuid, target text, recipient text, event text, body text, attempt int, earlier int,
    kind text, channel text, channel_kind text, config json, parts int, is_doubtful boolean, age float8
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_due uuid[];
BEGIN
    UPDATE deliveries d SET run_at = planq_now()
    WHERE d.status = 'sending' AND d.run_at > planq_now() AND NOT EXISTS (
        SELECT FROM workers w WHERE w.id = d.worker_id AND w.heartbeat_at > planq_now() - make_interval(secs => p_lease));
    v_due := ARRAY(
        SELECT d.id FROM deliveries d
        WHERE d.status IN ('pending', 'sending') AND d.run_at <= planq_now() AND d.recipient <> ALL (p_except)
          AND NOT EXISTS (
            SELECT FROM deliveries b
            WHERE b.conversation_id = d.conversation_id AND b.tenant_id = d.tenant_id AND b.status IN ('pending', 'sending')
              AND (b.created_at, b.id) < (d.created_at, d.id))
          AND NOT EXISTS (
            SELECT FROM channels h WHERE h.tenant_id = d.tenant_id AND h.name = d.channel AND h.paused_until > planq_now())
        ORDER BY d.run_at LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED);
    PERFORM planq_drop_deliveries(ARRAY(
        SELECT d.id FROM deliveries d JOIN endpoints e ON e.id = d.endpoint_id WHERE d.id = ANY (v_due) AND e.is_disabled));
    RETURN QUERY
    WITH taken AS (
        UPDATE deliveries d SET status = 'sending', attempt = d.attempt + 1, worker_id = p_worker,
            doubts = d.doubts + (o.status = 'sending' AND NOT d.knows_repeats)::int,
            run_at = planq_now() + make_interval(secs => p_hold)
        FROM deliveries o
        WHERE d.id = ANY (v_due) AND d.status IN ('pending', 'sending') AND o.id = d.id
        RETURNING d AS made, o.status = 'sending' AND NOT d.knows_repeats AS is_doubtful
    )
    SELECT (t.made).id, (t.made).tenant_id, (t.made).endpoint_id, coalesce(e.url, (t.made).target), (t.made).recipient,
           (t.made).event, CASE (t.made).kind WHEN 'message' THEN coalesce(planq_message_body(t.made)::text, '') ELSE (t.made).body END,
           (t.made).attempt, (t.made).earlier, (t.made).kind::text, (t.made).channel, h.kind::text, h.config, (t.made).parts, t.is_doubtful,
           extract(epoch FROM planq_now() - (t.made).created_at)::float8
    FROM taken t
    LEFT JOIN endpoints e ON e.id = (t.made).endpoint_id
    LEFT JOIN channels h ON h.tenant_id = (t.made).tenant_id AND h.name = (t.made).channel;
END $$;

-- An attempt at a delivery has ended: it is sent, or tried again in `p_again` seconds, or has failed; where nobody knows
-- (`p_is_uncertain`) that is a doubt, and where it is not tried again it ends so. One whose receiver asked for a wait (`p_is_wait`)
-- does not count. Where the receiver is gone for ever
-- (`p_gone`) its endpoint is disabled, and what waits for that fails. A channel is sent nothing for `p_pause` seconds; a
-- `p_problem` of it is noted, and whoever wants to know is told once, until a message is sent again. Returns whether it applied: a newer attempt may have been made, or the endpoint removed.
CREATE FUNCTION planq_end_delivery(
    p_id uuid, p_attempt int, p_is_sent boolean, p_again float8, p_response_status int, p_error json, p_gone boolean,
    p_is_uncertain boolean, p_pause float8, p_external text, p_problem text, p_is_wait boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    d record;
BEGIN
    UPDATE deliveries SET
        status = CASE WHEN p_is_sent THEN 'sent' WHEN p_again IS NOT NULL THEN 'pending'
                      WHEN p_is_uncertain THEN 'uncertain' ELSE 'failed' END,
        run_at = planq_now() + make_interval(secs => coalesce(p_again, 0)), worker_id = NULL,
        response_status = p_response_status, error = p_error, external_id = coalesce(p_external, external_id),
        doubts = doubts + p_is_uncertain::int, earlier = earlier + (p_is_wait AND p_again IS NOT NULL)::int,
        finished_at = CASE WHEN p_is_sent OR p_again IS NULL THEN planq_clock() END
    WHERE id = p_id AND status = 'sending' AND attempt = p_attempt
    RETURNING tenant_id, endpoint_id, channel INTO d;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_gone AND d.endpoint_id IS NOT NULL THEN
        UPDATE endpoints SET is_disabled = true, updated_at = planq_now(),
            disabled_reason = 'it answered 410 Gone on ' || planq_shown_time(planq_now())
        WHERE id = d.endpoint_id AND tenant_id = d.tenant_id AND NOT is_disabled;
        PERFORM planq_drop_waiting(d.tenant_id, d.endpoint_id);
    END IF;
    IF d.channel IS NOT NULL AND p_problem IS NOT NULL THEN
        PERFORM planq_add_deliveries(d.tenant_id, 'channel.problem', NULL, NULL, NULL, json_build_object(
            'channel', h.name, 'kind', h.kind, 'problem', p_problem))
        FROM channels h WHERE h.tenant_id = d.tenant_id AND h.name = d.channel AND h.problem IS NULL FOR UPDATE;
    END IF;
    IF d.channel IS NOT NULL AND (p_pause IS NOT NULL OR p_problem IS NOT NULL OR p_is_sent) THEN
        UPDATE channels SET problem = CASE WHEN NOT p_is_sent THEN coalesce(p_problem, problem) END,
            paused_until = coalesce(greatest(paused_until, planq_now() + make_interval(secs => p_pause)), paused_until)
        WHERE tenant_id = d.tenant_id AND name = d.channel
          AND (p_pause IS NOT NULL OR problem IS DISTINCT FROM p_problem);
    END IF;
    RETURN true;
END $$;

-- What waits for an endpoint that is disabled has failed, up to 1000 of it; what is being sent ends by itself, and the rest fails
-- when it is due. Returns how many deliveries have.
CREATE FUNCTION planq_drop_waiting(p_tenant text, p_endpoint uuid) RETURNS int LANGUAGE sql AS $$
    SELECT planq_drop_deliveries(ARRAY(
        SELECT d.id FROM deliveries d JOIN endpoints e ON e.id = d.endpoint_id
        WHERE d.tenant_id = p_tenant AND d.endpoint_id = p_endpoint AND d.status IN ('pending', 'sending') AND d.status = 'pending'
          AND e.is_disabled
        ORDER BY d.run_at LIMIT 1000))
$$;

-- These deliveries have failed if they wait: their endpoint is told nothing any more. Returns how many have.
CREATE FUNCTION planq_drop_deliveries(p_ids uuid[]) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_count int;
BEGIN
    UPDATE deliveries SET status = 'failed', finished_at = planq_clock(), error = json_build_object(
        'code', 'endpoint_disabled', 'message', 'its endpoint was disabled before it could be sent', 'retryable', false,
        'details', json_build_object())
    WHERE id = ANY (p_ids) AND status = 'pending';
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Sends a delivery at once, under the id that it has: one that waits for its next attempt, with those that are left, and one
-- that has ended as if it were new. Returns {found, applied, status}: one that is being sent, or whose endpoint is disabled,
-- is left alone.
CREATE FUNCTION planq_redeliver(p_tenant text, p_id uuid) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    d record;
    v_is_disabled boolean;
BEGIN
    SELECT status, endpoint_id INTO d FROM deliveries WHERE id = p_id AND tenant_id = p_tenant FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN json_build_object('found', false, 'applied', false);
    END IF;
    v_is_disabled := EXISTS (SELECT FROM endpoints WHERE id = d.endpoint_id AND tenant_id = p_tenant AND is_disabled);
    IF d.status = 'sending' OR v_is_disabled THEN
        RETURN json_build_object('found', true, 'applied', false, 'status', d.status, 'is_disabled', v_is_disabled);
    END IF;
    IF d.status = 'pending' THEN
        UPDATE deliveries SET run_at = least(run_at, planq_now()) WHERE id = p_id AND tenant_id = p_tenant;
        RETURN json_build_object('found', true, 'applied', true, 'status', 'pending', 'is_disabled', false);
    END IF;
    UPDATE deliveries SET status = 'pending', earlier = attempt, run_at = planq_now(), finished_at = NULL, error = NULL,
        response_status = NULL
    WHERE id = p_id AND tenant_id = p_tenant;
    RETURN json_build_object('found', true, 'applied', true, 'status', 'pending', 'is_disabled', false);
END $$;
