-- Conversation: messages of one thread (message.sql) become jobs that begin one after the other; a job of one that no other job
-- made is a turn. What a turn came to is written down for those after it (transcript.sql).
--
-- planq_settle_turn       a turn has ended: what it came to is written down, and the next one begins
--   planq_begin_turn        the next turn begins
-- planq_erase_conversation  nothing is left of what was said and done
--
-- Lock order: rows of conversations, by their ids where they are several, then jobs as everywhere, then rows of messages, then
-- schedules. No transition that holds a job asks for a conversation, so a turn is settled in a commit of its own (ends.sql).
-- The rows of a turn share its number `turn`; those of a message whose job is held, or that waits to be taken in, have none.

-- TurnEnded: writes down what a turn came to that has ended, once: the calls of its tools, the outbound message, and what it
-- used. Then the conversation's next turn begins, unless another one is active. Returns {applied, next: the job to be
-- woken, agent: that job's}; not applied where the job is no turn, has not ended, or was settled before.
CREATE FUNCTION planq_settle_turn(p_job uuid) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    c conversations;
    j jobs;
    u record;
    m record;
    v_conversation uuid;
    v_planned int;
    v_turn int;
    v_sequence bigint;
    v_next uuid;
BEGIN
    SELECT conversation_id INTO v_conversation FROM jobs
    WHERE id = p_job AND parent_job_id IS NULL AND NOT is_joined AND planq_is_ended(status);
    IF v_conversation IS NULL THEN
        RETURN json_build_object('applied', false);
    END IF;
    SELECT * INTO c FROM conversations WHERE id = v_conversation FOR NO KEY UPDATE;
    UPDATE jobs SET is_joined = true WHERE id = p_job AND NOT is_joined AND planq_is_ended(status) RETURNING * INTO j;
    IF NOT FOUND OR c.id IS NULL THEN
        RETURN json_build_object('applied', false);
    END IF;
    SELECT max(turn) INTO v_turn FROM conversation_messages WHERE job_id = p_job AND conversation_id = c.id;
    v_turn := coalesce(v_turn, c.last_turn + 1);
    UPDATE conversation_messages SET turn = v_turn, status = CASE status WHEN 'received' THEN 'done' ELSE status END
    WHERE job_id = p_job AND conversation_id = c.id AND direction = 'inbound' AND status <> 'merging';
    -- Of the messages that came while the turn ran it has taken in those that came before its last planned round. Of each of the
    -- others a job is made, which is held.
    v_planned := j.round - (EXISTS (SELECT FROM plans WHERE job_id = j.id AND round = j.round AND source = 'chained'))::int;
    UPDATE conversation_messages SET turn = v_turn, status = 'done', submission = NULL
    WHERE conversation_id = c.id AND turn IS NULL AND status = 'merging' AND job_id = j.id AND round < v_planned;
    FOR m IN SELECT sequence, submission FROM conversation_messages
             WHERE conversation_id = c.id AND turn IS NULL AND status = 'merging' AND job_id = j.id
             ORDER BY sequence LOOP
        PERFORM planq_submit_jobs(json_build_array(m.submission), c.id, planq_never());
        UPDATE conversation_messages SET status = 'received', job_id = (m.submission->>'id')::uuid, submission = NULL,
            round = NULL
        WHERE conversation_id = c.id AND sequence = m.sequence;
    END LOOP;
    v_sequence := c.last_sequence + planq_write_calls(c, j, v_turn) + 1;
    -- What the turn has used with all jobs below it, minus what earlier replies report: a turn can be resumed.
    SELECT sum(s.input)::bigint AS input, sum(s.output)::bigint AS output, sum(s.cost) AS cost INTO u FROM (
        SELECT o.input_tokens AS input, o.output_tokens AS output, o.cost_usd AS cost FROM planq_usage(p_job, true) o
        UNION ALL
        SELECT -(r.metadata->>'input_tokens')::bigint, -(r.metadata->>'output_tokens')::bigint, -(r.metadata->>'cost_usd')::numeric
        FROM conversation_messages r
        WHERE r.conversation_id = c.id AND r.job_id = p_job AND r.direction = 'outbound'
    ) s;
    PERFORM planq_write_outbound(c, j, v_sequence, v_turn, coalesce(CASE j.status WHEN 'completed' THEN coalesce(j.answer, j.preview) END, ''),
        json_build_object('job_status', j.status, 'is_preview', j.answer IS NULL AND j.preview IS NOT NULL, 'outcome', planq_outcome(j.status, j.error), 'error_code', CASE j.status
            WHEN 'cancelled' THEN 'cancelled' WHEN 'failed' THEN planq_error_code(j.error) END, 'stop_reason', j.stop_reason,
            'input_tokens', u.input, 'output_tokens', u.output, 'cost_usd', u.cost), NULL);
    UPDATE conversations SET last_sequence = v_sequence, messages_out = messages_out + 1, last_outbound_at = planq_now(),
        last_turn = greatest(last_turn, v_turn), input_tokens = input_tokens + u.input, output_tokens = output_tokens + u.output,
        cost_usd = CASE WHEN u.cost IS NULL THEN cost_usd ELSE coalesce(cost_usd, 0) + u.cost END,
        active_job_id = CASE WHEN active_job_id <> p_job THEN active_job_id END
    WHERE id = c.id;
    IF c.active_job_id IS NULL OR c.active_job_id = p_job THEN
        v_next := planq_begin_turn(c.id);
    END IF;
    RETURN json_build_object('applied', true, 'next', v_next, 'tenant', c.tenant_id,
        'agent', (SELECT agent_name FROM jobs WHERE id = v_next));
END $$;

-- Begins the turn of the message that has waited longest: its time runs from now on. The caller holds the conversation,
-- which has no active turn. Returns its job, null where none waits.
CREATE FUNCTION planq_begin_turn(p_conversation uuid) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_job uuid;
    v_turn int;
BEGIN
    LOOP
        SELECT w.job INTO v_job FROM planq_queued_turns(p_conversation) w WHERE w.is_held ORDER BY w.sequence LIMIT 1;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        UPDATE jobs SET run_at = planq_now(), wake_at = planq_now() + planq_wake_grace(), wakes = 0,
            expires_at = coalesce(paused_at, planq_now()) + make_interval(secs => least(
                (limits->>'queue_timeout_seconds')::float8, (limits->>'job_timeout_seconds')::float8))
        WHERE id = v_job AND status = 'queued' AND run_at = planq_never();
        EXIT WHEN FOUND;  -- else it was cancelled just now
    END LOOP;
    UPDATE conversations SET active_job_id = v_job, last_turn = last_turn + 1 WHERE id = p_conversation
    RETURNING last_turn INTO v_turn;
    UPDATE conversation_messages SET turn = v_turn
    WHERE conversation_id = p_conversation AND turn IS NULL AND job_id = v_job AND status <> 'merging';
    RETURN v_job;
END $$;

-- The turns of a conversation that nobody has begun, with the place of the first message of each, and its turn. They are found
-- by the index on unfinished turns: a conversation may be long, and all others have queued jobs, too. The caller holds the
-- conversation.
CREATE FUNCTION planq_queued_turns(p_conversation uuid)
RETURNS TABLE (job uuid, is_held boolean, sequence bigint, turn int) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT j.id, j.run_at = planq_never(), m.sequence, m.turn
    FROM (
        SELECT id, status, run_at FROM jobs
        WHERE conversation_id = p_conversation AND parent_job_id IS NULL
          AND planq_is_unfinished(status) OFFSET 0
    ) j
    CROSS JOIN LATERAL (
        SELECT o.sequence, o.turn FROM conversation_messages o
        WHERE o.job_id = j.id AND o.conversation_id = p_conversation ORDER BY o.sequence LIMIT 1
    ) m
    WHERE j.status = 'queued';
END $$;

-- EraseRequested: removes all texts of a conversation that came up to message `p_until` (null: up to now), after the unfinished
-- turns of these were cancelled; what is counted stays, and so do the ids by which the channel knows its messages. Its reminders go. So
-- many turns or messages at a time: the caller asks again, with the `until` and `after` of the answer, until it `is_done`.
-- Returns {until, after, is_done, ended: the ids of all jobs that this ended}, null where the tenant has no such conversation.
CREATE FUNCTION planq_erase_conversation(
    p_conversation uuid, p_tenant text, p_until bigint, p_after bigint, p_turns int, p_messages int
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    c conversations;
    v_until bigint;
    v_last bigint;
    v_jobs uuid[];
    v_ended uuid[] := '{}';
    v_job uuid;
BEGIN
    SELECT * INTO c FROM conversations WHERE id = p_conversation AND tenant_id = p_tenant FOR NO KEY UPDATE;
    IF c.id IS NULL THEN
        RETURN NULL;
    END IF;
    v_until := coalesce(p_until, c.last_sequence);
    -- What waits to be taken in becomes no job, and those that are held end before the active one: none of them begins.
    UPDATE conversation_messages SET status = 'erased', submission = NULL, turn = c.last_turn
    WHERE conversation_id = c.id AND tenant_id = p_tenant AND sequence <= v_until AND status = 'merging';
    v_jobs := ARRAY(
        SELECT j.id FROM jobs j
        WHERE j.conversation_id = c.id AND j.tenant_id = p_tenant AND j.parent_job_id IS NULL
          AND planq_is_unfinished(j.status)
          AND EXISTS (SELECT FROM conversation_messages m
                      WHERE m.job_id = j.id AND m.conversation_id = c.id AND m.sequence <= v_until)
        ORDER BY j.run_at DESC, j.id LIMIT p_turns);
    PERFORM planq_lock_lineages(v_jobs);
    FOREACH v_job IN ARRAY v_jobs LOOP
        v_ended := v_ended || ARRAY(
            SELECT e::uuid FROM json_array_elements_text(planq_cancel_job(v_job, p_tenant)->'ended') e);
        PERFORM planq_settle_turn(v_job);
    END LOOP;
    IF cardinality(v_jobs) = p_turns THEN
        RETURN json_build_object('until', v_until, 'after', p_after, 'is_done', false, 'ended', to_json(v_ended));
    END IF;
    PERFORM planq_settle_turn(c.active_job_id);
    -- No turn that has ended makes one any more.
    DELETE FROM schedules WHERE conversation_id = c.id AND tenant_id = p_tenant;
    WITH page AS MATERIALIZED (
        SELECT m.sequence FROM conversation_messages m
        WHERE m.conversation_id = c.id AND m.tenant_id = p_tenant AND m.sequence > p_after AND (m.sequence <= v_until OR EXISTS (
            SELECT FROM conversation_messages o
            WHERE o.job_id = m.job_id AND o.conversation_id = c.id AND o.sequence <= v_until))
        ORDER BY m.sequence LIMIT p_messages
    ), gone AS (
        UPDATE conversation_messages d SET text = '', content = NULL, metadata = NULL, user_id = '', request_hash = NULL,
            status = 'erased'
        FROM page p WHERE d.conversation_id = c.id AND d.sequence = p.sequence
    )
    SELECT CASE WHEN count(*) = p_messages THEN max(p.sequence) END INTO v_last FROM page p;
    IF v_last IS NULL THEN
        PERFORM planq_forget_insights(p_tenant, c.id);
    END IF;
    RETURN json_build_object('until', v_until, 'after', v_last, 'is_done', v_last IS NULL, 'ended', to_json(v_ended));
END $$;
