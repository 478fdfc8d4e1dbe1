-- Transcript: what stands in a conversation of the turns that have ended, and what later ones are shown of it.
--
-- planq_write_calls       the calls of a turn's tools, each with its response
-- planq_write_outbound    what a turn says
-- planq_note_outcome      a call that was cut off has come to an end all the same
-- planq_history_until_now, planq_history_of_child   which turns a job is shown
-- planq_merged            what a further round of a turn is shown of messages that came meanwhile

-- Writes down the tool calls of a turn, each with its response; what is too long is cut, under `preview`. The response to a call that was
-- cut off stays unknown until planq_note_outcome. A chained tool's call is written as its job keeps it. The caller holds the
-- conversation, and has marked the job as settled. Returns the number of rows.
CREATE FUNCTION planq_write_calls(c conversations, j jobs, p_turn int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_rows int;
BEGIN
    WITH calls AS (
        SELECT s.index, planq_call_id(s.job_id, s.index) AS id, s.tool_name AS name,
               a.key AS arguments_key, a.value AS arguments, o.key, o.value,
               CASE WHEN s.status = 'cancelled' THEN json_build_object('unknown', s.attempt) END AS metadata
        FROM steps s LEFT JOIN payloads p ON p.tenant_id = s.tenant_id AND p.hash = s.payload_hash
        CROSS JOIN LATERAL planq_transcript_field('arguments', s.arguments) a
        CROSS JOIN LATERAL planq_transcript_field(CASE WHEN s.payload_hash IS NULL THEN 'output' ELSE 'preview' END,
            CASE WHEN s.payload_hash IS NULL THEN coalesce(s.output, 'null') ELSE to_json(planq_preview_text(p.preview)) END) f
        CROSS JOIN LATERAL (
            SELECT CASE s.status WHEN 'succeeded' THEN f.key ELSE 'error' END AS key, CASE s.status
                WHEN 'succeeded' THEN f.value
                WHEN 'failed' THEN planq_short_error(s.error)
                WHEN 'cancelled' THEN json_build_object('code', 'outcome_unknown', 'message',
                    'the turn was ended while this call ran; whether it took effect is unknown')
                ELSE json_build_object('code', 'skipped', 'message', 'the call was given up before it came to anything')
                END AS value
        ) o
        WHERE s.job_id = j.id AND (s.attempt > 0 OR s.status IN ('succeeded', 'failed')) AND s.kind <> 'noop'
          AND NOT EXISTS (
              SELECT FROM plans r JOIN messages k ON k.job_id = r.job_id
              WHERE r.job_id = s.job_id AND r.round = s.round AND r.source = 'chained')
        ORDER BY s.index LIMIT 500
    ), parts AS (
        SELECT index, 1::bigint AS part, 'tool_call' AS kind, NULL::json AS metadata,
               json_build_object('id', id, 'name', name, arguments_key, arguments) AS content FROM calls
        UNION ALL
        SELECT index, 2, 'tool_response', metadata, json_build_object('id', id, 'name', name, key, value) FROM calls
        UNION ALL
        SELECT 2147483647, m.id, m.kind, NULL, json_build_object('id', m.call_id, 'name', m.name, f.key, f.value)
        FROM messages m CROSS JOIN LATERAL planq_transcript_field(
            CASE WHEN m.kind = 'tool_call' THEN 'arguments' WHEN m.is_preview THEN 'preview' ELSE 'output' END, m.content) f
        WHERE m.job_id = j.id
    )
    INSERT INTO conversation_messages (conversation_id, sequence, id, tenant_id, channel, kind, direction, user_id, content,
                                       metadata, job_id, turn)
    SELECT c.id, c.last_sequence + row_number() OVER (ORDER BY p.index, p.part), gen_random_uuid(), c.tenant_id, c.channel,
           p.kind, 'internal', j.user_id, p.content, p.metadata, j.id, p_turn
    FROM parts p;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END $$;

-- Writes down what the turn `j` says, its answer or the question `p_question` once more, and tells of it in the job's events. The caller
-- holds the conversation, and counts the message.
CREATE FUNCTION planq_write_outbound(
    c conversations, j jobs, p_sequence bigint, p_turn int, p_text text, p_metadata json, p_question uuid
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_message CONSTANT uuid := gen_random_uuid();
BEGIN
    INSERT INTO conversation_messages (conversation_id, sequence, id, tenant_id, channel, direction, user_id, text, metadata,
                                       job_id, turn)
    VALUES (c.id, p_sequence, v_message, c.tenant_id, c.channel, 'outbound', j.user_id, p_text, p_metadata, j.id, p_turn);
    PERFORM planq_append_event(c.tenant_id, j.id, 'outbound_message', CASE WHEN p_question IS NULL
        THEN json_build_object('conversation_id', c.id, 'message_id', v_message, 'sequence', p_sequence)
        ELSE json_build_object('conversation_id', c.id, 'message_id', v_message, 'sequence', p_sequence, 'elicitation', p_question)
        END);
END $$;

-- The id under which the call of a step stands in a conversation: at most 40 letters, digits and underscores, which every
-- provider takes.
CREATE FUNCTION planq_call_id(p_job uuid, p_index int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT replace(p_job::text, '-', '') || '_' || p_index
$$;

-- A field of a transcript: `p_key` and a value that is short enough to be kept there, else `preview` and the beginning of its text.
CREATE FUNCTION planq_transcript_field(p_key text, p_value json) RETURNS TABLE (key text, value json) LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN t.is_short THEN p_key ELSE 'preview' END, CASE WHEN t.is_short THEN p_value ELSE to_json(
        left(p_value::text, 8000) || '... [' || length(p_value::text) || ' characters in all]') END
    FROM (SELECT length(p_value::text) <= 8000 AS is_short) t
$$;

-- An error that is short enough to be kept in a conversation; else its code, and the beginning of its text.
CREATE FUNCTION planq_short_error(p_error json) RETURNS json LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE f.key WHEN 'preview' THEN json_build_object('code', planq_error_code(p_error), 'preview', f.value) ELSE f.value END
    FROM planq_transcript_field('error', p_error) f
$$;

-- The code of an error. It is read from the text: taking JSON apart that holds the character NUL is an error.
CREATE FUNCTION planq_error_code(p_error json) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(p_error::text FROM '"code"\s*:\s*"([a-z0-9_]+)"')
$$;

-- OutcomeNoted: a call whose turn was cancelled while it ran has ended after that, as `p_key` (`output`, `preview` or `error`) says. It
-- changes nothing of the job, only what the turns after it are shown, once. Returns whether it applied.
CREATE FUNCTION planq_note_outcome(p_job uuid, p_index int, p_attempt int, p_key text, p_value json) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    f record;
BEGIN
    IF p_key = 'error' THEN
        SELECT 'error' AS key, planq_short_error(p_value) AS value INTO f;
    ELSE
        SELECT * INTO f FROM planq_transcript_field(
            p_key, CASE p_key WHEN 'preview' THEN to_json(planq_preview_text(p_value)) ELSE p_value END);
    END IF;
    UPDATE conversation_messages SET metadata = json_build_object('came_late', true),
        content = json_build_object('id', content->'id', 'name', content->'name', f.key, f.value)
    WHERE job_id = p_job AND status = 'done' AND CASE WHEN kind = 'tool_response' THEN
        metadata->>'unknown' = p_attempt::text AND content->>'id' = planq_call_id(p_job, p_index) END;
    RETURN FOUND;
END $$;

-- What a job that reads a conversation is shown of it, now and at every attempt: the turns before the one that runs.
CREATE FUNCTION planq_history_until_now(p_tenant text, p_conversation uuid) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT json_build_object('of', c.id, 'form', 'full', 'before', coalesce((
            SELECT min(m.turn) FROM conversation_messages m
            WHERE m.job_id = c.active_job_id AND m.tenant_id = c.tenant_id AND m.conversation_id = c.id), c.last_turn + 1))
        FROM conversations c WHERE c.id = p_conversation AND c.tenant_id = p_tenant);
END $$;

-- What a child job of the job `j` is shown in that form: the turns that its root is shown. Null where that has none.
CREATE FUNCTION planq_history_of_child(j jobs, p_form text) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF j.history IS NOT NULL THEN
        RETURN json_build_object('of', j.history->>'of', 'form', p_form, 'before', (j.history->>'before')::int);
    END IF;
    RETURN (
        SELECT json_build_object('of', j.conversation_id, 'form', p_form, 'before', max(m.turn))
        FROM conversation_messages m
        WHERE m.job_id = coalesce(j.root_job_id, j.id) AND m.tenant_id = j.tenant_id AND m.direction = 'inbound'
          AND m.conversation_id = j.conversation_id
        HAVING max(m.turn) IS NOT NULL);
END $$;

-- The messages that came before round `p_round` of a turn while it ran, as its planner is shown them: {round, text}.
CREATE FUNCTION planq_merged(p_conversation uuid, p_job uuid, p_round int) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT json_agg(json_build_object('round', m.round, 'text', m.text) ORDER BY m.sequence)
        FROM conversation_messages m
        WHERE m.conversation_id = p_conversation AND m.turn IS NULL AND m.status = 'merging' AND m.job_id = p_job
          AND m.round < p_round);
END $$;
