-- Conversation: messages of one thread become jobs that begin one after the other; a job of one that no other job made is a turn.
--
-- planq_receive_messages  messages of several conversations in one commit: planq_lock_conversations
--   planq_receive_message   stores an inbound message with its job, or adds it to a job that is there
-- planq_answer_by_message stores one that answers what a step of the active turn has asked
--   planq_other_agent       the agent of the turn, where the message was checked for another one
--   planq_place_message     decides which, by what the conversation is doing and by its policy
--   planq_extend_job        adds a message to the input of a job that has not begun
--   planq_miss_question     notes one that fits nothing of that; after a second one the question is put again
-- planq_settle_turn       a turn has ended: what it came to is written down, and the next one begins
--   planq_write_calls       the calls of its tools, each with its response
--   planq_settle_merging    messages that it has taken in, and those that it has not
--   planq_begin_turn        the next turn begins
-- planq_note_outcome      a call that was cut off has come to an end all the same
-- planq_erase_conversation  nothing is left of what was said and done
-- planq_merged            what a further round of a turn is shown of messages that came meanwhile
--
-- Lock order: rows of conversations, by their ids where they are several, then jobs as everywhere, then rows of messages. No transition that holds a job
-- asks for a conversation, so a turn is settled in a commit of its own (ends.sql).
-- The rows of a turn share its number `turn`; those of a message whose job is held, or that waits to be taken in, have none.
--
-- `enable_seqscan = off`: a session keeps its plans, also those that it made while the tables were all but empty (claim.sql).

-- MessageReceived, many times: `p_arrivals` lists {message, job}, each as planq_receive_message takes them, ordered by
-- conversation. Returns what that returns, in the same order.
CREATE FUNCTION planq_receive_messages(p_arrivals json) RETURNS TABLE (received json) LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    IF json_array_length(p_arrivals) > 1 THEN
        PERFORM planq_lock_conversations(p_arrivals);
    END IF;
    FOR r IN SELECT a.message, a.job FROM json_array_elements(p_arrivals) e
             CROSS JOIN LATERAL json_to_record(e.value) AS a (message json, job json) LOOP
        received := planq_receive_message(r.message, r.job);
        RETURN NEXT;
    END LOOP;
END $$;

-- Locks what messages of several conversations may move, before any of them does: else a conversation's row and its turns
-- would be locked after the turns of another one, against the order in which turns end.
CREATE FUNCTION planq_lock_conversations(p_arrivals json) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_ids uuid[];
BEGIN
    SELECT array_agg(l.id) INTO v_ids FROM (
        SELECT c.id FROM conversations c WHERE c.id = ANY (ARRAY(
            SELECT planq_named_conversation(json_populate_record(NULL::planq_message, a.message))
            FROM json_array_elements(p_arrivals) e CROSS JOIN LATERAL json_to_record(e.value) AS a (message json)))
        ORDER BY c.id FOR NO KEY UPDATE
    ) l;
    PERFORM FROM jobs WHERE conversation_id = ANY (v_ids) AND parent_job_id IS NULL
      AND planq_is_unfinished(status)
    ORDER BY id FOR NO KEY UPDATE;
END $$;

-- MessageReceived: `p_message` is a `planq_message`, `p_job` an item of planq_submit_jobs. Returns {outcome,
-- conversation_id, message_id, sequence, job_id, ended, begun: [{id, agent}, … of jobs to be woken], later: {id, agent, seconds} of one
-- that waits for further messages, policy, missed}; `rejected` and `closed`
-- have stored nothing, and neither have `asking`: a person is asked, which this may answer, and `agent`: the job is to be made for
-- another one (planq_other_agent). `missed` is the open question of the active turn behind which the message waits.
CREATE FUNCTION planq_receive_message(p_message json, p_job json) RETURNS json LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    m CONSTANT planq_message := json_populate_record(NULL::planq_message, p_message);
    c conversations;
    a planq_arrival;
    v_at uuid := planq_named_conversation(m);
    v_known json := planq_known_message(m, v_at);
    v_settled json;
    v_begun uuid[] := '{}';
    v_ended uuid[] := '{}';
    v_job uuid := p_job->>'id';
    v_active uuid;
    v_next uuid;
    v_run_at timestamptz;
    v_missed uuid;
    v_is_new boolean := false;
    v_woken json := '[]';
    v_later json;
BEGIN
    IF v_known IS NOT NULL THEN
        RETURN v_known;
    END IF;
    IF v_at IS NULL THEN
        v_known := planq_other_agent(c, m);
        IF v_known IS NOT NULL THEN
            RETURN v_known;
        END IF;
        -- As it is with its first message, which begins a turn: so its row is written once.
        INSERT INTO conversations AS n (id, tenant_id, channel, thread, first_source_id,
                                        last_sequence, messages_in, last_turn, last_inbound_at, active_job_id)
        VALUES (m.conversation_id, m.tenant_id, m.channel, coalesce(m.thread, m.conversation_id::text),
                CASE WHEN m.thread IS NULL THEN m.source_id END, 1, 1, 1, planq_now(), v_job)
        ON CONFLICT DO NOTHING RETURNING n.* INTO c;
        IF FOUND THEN
            v_is_new := true;
            c.last_sequence := 0;
            c.last_turn := 0;
            c.active_job_id := NULL;
        END IF;
    END IF;
    IF c.id IS NULL THEN
        v_at := coalesce(v_at, planq_named_conversation(m));
        SELECT * INTO c FROM conversations WHERE id = v_at AND tenant_id = m.tenant_id FOR NO KEY UPDATE;
        IF NOT FOUND THEN  -- retention has just removed it: from the beginning, as the caller does then
            RAISE SQLSTATE '40001';
        END IF;
        v_known := planq_known_message(m, c.id);
        IF v_known IS NOT NULL THEN
            RETURN v_known;
        END IF;
        v_known := planq_other_agent(c, m);
        IF v_known IS NOT NULL THEN
            RETURN v_known;
        END IF;
        -- A turn that has just ended is over, although nobody has written that down.
        v_settled := CASE WHEN c.active_job_id IS NOT NULL THEN planq_settle_turn(c.active_job_id) END;
        IF (v_settled->>'applied')::boolean THEN
            v_begun := array_remove(ARRAY[(v_settled->>'next')::uuid], NULL);
            SELECT * INTO c FROM conversations WHERE id = c.id;
        END IF;
    END IF;
    a := planq_place_message(c, m, p_job->>'input');
    IF a.outcome NOT IN ('rejected', 'closed', 'asking') THEN
        PERFORM planq_store_message(c, m, coalesce(a.job, v_job), a, CASE WHEN a.round IS NOT NULL THEN p_job END, v_is_new);
    END IF;
    IF a.job IS NULL AND a.outcome = 'accepted' THEN
        v_run_at := CASE WHEN a.begins THEN planq_now() + make_interval(secs => m.debounce_seconds) ELSE planq_never() END;
        PERFORM planq_submit_jobs(json_build_array(p_job), c.id, v_run_at);
        IF a.interrupts THEN
            v_active := c.active_job_id;
            LOOP
                v_ended := ARRAY(
                    SELECT e::uuid FROM json_array_elements_text(planq_cancel_job(v_active, m.tenant_id)->'ended') e);
                v_next := planq_settle_turn(v_active)->>'next';
                -- It may just have ended by itself: then the one that begins after it is the one to be interrupted.
                EXIT WHEN cardinality(v_ended) > 0 OR v_next IS NULL OR v_next = v_job;
                v_active := v_next;
            END LOOP;
            v_begun := v_begun || array_remove(ARRAY[v_next], NULL);
        ELSIF a.begins AND m.debounce_seconds = 0 THEN
            v_begun := v_begun || v_job;
        END IF;
    END IF;
    IF a.outcome NOT IN ('rejected', 'closed', 'asking') THEN
        PERFORM planq_note_suspected(m, c.id, coalesce(a.job, v_job));
        IF NOT (m.may_answer OR a.begins OR a.interrupts) THEN
            v_missed := planq_miss_question(c, m.user_id);
        END IF;
    END IF;
    -- Looks of their own, where they are needed: each within RETURN would be got ready for every message.
    IF v_is_new AND v_begun = ARRAY[v_job] AND p_job->>'idempotency_key' IS NULL THEN
        v_woken := json_build_array(json_build_object('id', v_job, 'agent', p_job->>'agent_name', 'tenant', m.tenant_id));
    ELSIF cardinality(v_begun) > 0 THEN
        SELECT coalesce(json_agg(json_build_object('id', o.id, 'agent', o.agent_name, 'tenant', o.tenant_id)), '[]') INTO v_woken
        FROM jobs o WHERE o.id = ANY (v_begun) AND o.tenant_id = m.tenant_id;
    END IF;
    IF m.debounce_seconds > 0 THEN
        SELECT json_build_object('id', o.id, 'agent', o.agent_name, 'tenant', o.tenant_id,
                                 'seconds', extract(epoch FROM o.run_at - planq_now())) INTO v_later
        FROM jobs o WHERE o.id = coalesce(a.job, v_job) AND o.tenant_id = m.tenant_id AND o.status = 'queued'
          AND o.run_at > planq_now() AND o.run_at < planq_never();
    END IF;
    RETURN json_build_object('outcome', a.outcome, 'conversation_id', c.id, 'message_id', m.id,
        'sequence', c.last_sequence + 1, 'job_id', coalesce(a.job, v_job), 'ended', to_json(v_ended),
        'begun', v_woken, 'later', v_later, 'policy', coalesce(c.policy, m.policy), 'missed', v_missed);
END $$;

-- QuestionMissed: a message that was just stored in the conversation `c`, as it was before, fits nothing that the active turn
-- asks. After a second one in a row the oldest question is put again, as an outbound message: somebody who looks at a chat
-- alone may have lost sight of it. Nobody misses what is asked of others. Returns that question, null where none is open any
-- more. The caller holds the conversation.
CREATE FUNCTION planq_miss_question(c conversations, p_person text) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    q elicitations;
    v_message CONSTANT uuid := gen_random_uuid();
BEGIN
    SELECT * INTO q FROM elicitations
    WHERE root_job_id = c.active_job_id AND tenant_id = c.tenant_id AND status = 'open'
    ORDER BY planq_may_answer(elicitations, p_person, false) DESC, id LIMIT 1;
    IF FOUND AND NOT planq_may_answer(q, p_person, false) THEN
        RETURN q.id;
    END IF;
    IF NOT FOUND OR c.missed_question_id IS DISTINCT FROM q.id THEN
        UPDATE conversations SET missed_question_id = q.id WHERE id = c.id;
        RETURN q.id;
    END IF;
    INSERT INTO conversation_messages (conversation_id, sequence, id, tenant_id, channel, direction, user_id, text, metadata,
                                       job_id, turn)
    SELECT c.id, c.last_sequence + 2, v_message, c.tenant_id, c.channel, 'outbound', j.user_id, q.message,
           json_build_object('elicitation_id', q.id, 'elicitation_kind', q.kind), j.id, c.last_turn
    FROM jobs j WHERE j.id = c.active_job_id;
    UPDATE conversations SET last_sequence = c.last_sequence + 2, messages_out = messages_out + 1,
        last_outbound_at = planq_now()
    WHERE id = c.id;
    PERFORM planq_append_event(c.tenant_id, c.active_job_id, 'outbound_message', json_build_object(
        'conversation_id', c.id, 'message_id', v_message, 'sequence', c.last_sequence + 2, 'elicitation', q.id));
    RETURN q.id;
END $$;

-- AnswerGiven by a message of the conversation whose active turn asks the question `p_id`; the other arguments are those of
-- planq_answer_question. Returns as planq_receive_message does, with what planq_answer_question returns as `answered`, and
-- {id, status} of the `question`, which a message that is known again has, too; the
-- outcome is null, and nothing stored, where the question is not open any more.
CREATE FUNCTION planq_answer_by_message(p_message json, p_id uuid, p_answer json, p_again boolean, p_item json) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    m CONSTANT planq_message := json_populate_record(NULL::planq_message, p_message);
    c conversations;
    a planq_arrival;
    v_known json;
    v_result json;
BEGIN
    SELECT * INTO c FROM conversations
    WHERE tenant_id = m.tenant_id AND channel = m.channel AND thread = m.thread FOR NO KEY UPDATE;
    v_known := planq_known_message(m, c.id);
    IF v_known IS NOT NULL THEN
        RETURN v_known;
    END IF;
    v_result := CASE WHEN NOT c.is_closed AND EXISTS (
            SELECT FROM elicitations WHERE id = p_id AND tenant_id = m.tenant_id AND root_job_id = c.active_job_id
        ) THEN planq_answer_question(m.tenant_id, p_id, p_answer, false, p_again, p_item) END;
    IF NOT coalesce((v_result->>'applied')::boolean, false) THEN
        RETURN json_build_object('outcome', NULL);
    END IF;
    SELECT max(turn) INTO a.turn FROM conversation_messages
    WHERE tenant_id = m.tenant_id AND conversation_id = c.id AND job_id = c.active_job_id;
    PERFORM planq_store_message(c, m, c.active_job_id, a, NULL, false);
    UPDATE conversation_messages SET answered_question_id = p_id
    WHERE conversation_id = c.id AND sequence = c.last_sequence + 1;
    PERFORM planq_note_suspected(m, c.id, c.active_job_id);
    RETURN json_build_object('outcome', 'answered', 'conversation_id', c.id, 'message_id', m.id,
        'sequence', c.last_sequence + 1, 'job_id', c.active_job_id, 'ended', '[]'::json, 'begun', '[]'::json,
        'answered', v_result,
        'question', (SELECT json_build_object('id', id, 'status', status) FROM elicitations WHERE id = p_id AND tenant_id = m.tenant_id));
END $$;

-- Tells which agent a message of the conversation `c` is for, where its job was made for another one or another version:
-- {outcome: 'agent', agent, version}, the version null for the newest in use. The nearest names it: the message, the
-- conversation, its channel or tenant. The conversation keeps the version with which an agent has begun in it.
CREATE FUNCTION planq_other_agent(c conversations, m planq_message) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_agent CONSTANT text := coalesce(m.named_agent, CASE WHEN NOT m.is_job THEN coalesce(c.agent, m.default_agent) END);
    v_version int;
BEGIN
    IF v_agent IS NULL AND m.agent IS NULL OR m.is_job AND m.agent IS NULL THEN
        RETURN NULL;
    END IF;
    IF NOT (m.names_version OR coalesce(c.follows_agent, true)) THEN
        SELECT version INTO v_version FROM conversation_agents
        WHERE tenant_id = m.tenant_id AND conversation_id = c.id AND agent = v_agent;
    END IF;
    RETURN CASE WHEN v_agent IS DISTINCT FROM m.agent OR v_version <> m.agent_version
        THEN json_build_object('outcome', 'agent', 'conversation_id', c.id, 'agent', v_agent, 'version', v_version) END;
END $$;

-- Keeps the version of the agent that a message has a turn with: the first one, or the last where the conversation follows.
CREATE FUNCTION planq_keep_agent(p_conversation uuid, m planq_message) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF m.agent IS NOT NULL THEN
        INSERT INTO conversation_agents AS k (conversation_id, agent, tenant_id, version)
        VALUES (p_conversation, m.agent, m.tenant_id, m.agent_version)
        ON CONFLICT (conversation_id, agent) DO UPDATE SET version = EXCLUDED.version
        WHERE k.version <> EXCLUDED.version AND NOT m.names_version
          AND (SELECT follows_agent FROM conversations WHERE id = p_conversation AND tenant_id = m.tenant_id);
    END IF;
END $$;

-- Stores an inbound message of the job `p_job` and counts it. The caller holds the conversation, and has looked whether it
-- knows the source id; one that `p_is_new` was written with the counts. Of an idempotency key that comes in two conversations at once one message is stored: the transaction
-- of the second is undone, and finds it when it is repeated.
CREATE FUNCTION planq_store_message(c conversations, m planq_message, p_job uuid, a planq_arrival, p_submission json,
                                    p_is_new boolean)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO conversation_messages (
        conversation_id, sequence, id, tenant_id, channel, direction, source_id, idempotency_key,
        request_hash, user_id, text, content, metadata, job_id, turn, round, status, submission
    ) VALUES (
        c.id, c.last_sequence + 1, m.id, m.tenant_id, m.channel, 'inbound', m.source_id,
        m.idempotency_key, m.request_hash, m.user_id, m.text, m.content::json, m.metadata::json, p_job, a.turn, a.round,
        CASE WHEN a.round IS NULL THEN 'received' ELSE 'merging' END, p_submission
    ) ON CONFLICT (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the message has just come in another conversation, too' USING ERRCODE = 'serialization_failure';
    END IF;
    PERFORM planq_keep_agent(c.id, m);
    IF NOT p_is_new THEN
        UPDATE conversations SET last_sequence = c.last_sequence + 1, messages_in = messages_in + 1,
            last_inbound_at = planq_now(), last_turn = greatest(last_turn, a.turn), missed_question_id = NULL,
            active_job_id = CASE WHEN a.begins THEN p_job ELSE active_job_id END
        WHERE id = c.id;
    END IF;
END $$;

-- Tells of attempts to steer a model that were found in the text of a message, in the events of the job `p_job`.
CREATE FUNCTION planq_note_suspected(m planq_message, p_conversation uuid, p_job uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF m.suspected IS NOT NULL THEN
        PERFORM planq_append_event(m.tenant_id, p_job, 'injection_suspected', json_build_object(
            'conversation_id', p_conversation, 'message_id', m.id, 'kinds', m.suspected));
    END IF;
END $$;

-- The conversation to which a message belongs: that of its thread, or without one that which the same message has begun;
-- null where there is none yet.
CREATE FUNCTION planq_named_conversation(m planq_message) RETURNS uuid LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF m.thread IS NOT NULL THEN
        RETURN (SELECT id FROM conversations WHERE tenant_id = m.tenant_id AND channel = m.channel AND thread = m.thread);
    ELSIF m.source_id IS NOT NULL THEN
        RETURN (SELECT id FROM conversations
                WHERE tenant_id = m.tenant_id AND channel = m.channel AND first_source_id = m.source_id);
    END IF;
    RETURN NULL;
END $$;

-- What a message came to that was sent before: under its idempotency key, or under its source id in the conversation
-- `p_conversation`; null where it is new. `differs` names the fields that are not as they were then, as far as
-- that is still known.
CREATE FUNCTION planq_known_message(m planq_message, p_conversation uuid) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    k conversation_messages;
    v_differs text[];
BEGIN
    IF m.idempotency_key IS NOT NULL THEN
        SELECT * INTO k FROM conversation_messages WHERE tenant_id = m.tenant_id AND idempotency_key = m.idempotency_key;
        v_differs := CASE WHEN k.request_hash <> m.request_hash THEN ARRAY['Idempotency-Key'] END;
    END IF;
    IF k.id IS NULL AND m.source_id IS NOT NULL THEN
        SELECT * INTO k FROM conversation_messages
        WHERE tenant_id = m.tenant_id AND conversation_id = p_conversation AND source_id = m.source_id;
        v_differs := array_remove(ARRAY[CASE WHEN k.user_id <> m.user_id THEN 'from.external_id' END,
                                        CASE WHEN k.text <> m.text THEN 'content.text' END], NULL);
    END IF;
    IF k.id IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN json_build_object('outcome', 'duplicate', 'conversation_id', k.conversation_id,
        'message_id', k.id, 'sequence', k.sequence, 'job_id', k.job_id,
        'question', (SELECT json_build_object('id', e.id, 'status', e.status) FROM elicitations e
                     WHERE e.id = k.answered_question_id AND e.tenant_id = m.tenant_id),
        'is_erased', k.status = 'erased', 'differs', to_json(CASE WHEN k.status <> 'erased' THEN v_differs END),
        'ended', '[]'::json, 'begun', '[]'::json);
END $$;

-- Decides what becomes of a message in a conversation whose row the caller holds. A message that comes while others are
-- gathered, or while it would merge with a job that has not begun, is added to that job's input here. No turn of one agent
-- takes in a message for another one, nor that of one person what another one says, for its tools act for the one. A message that
-- names another agent than the one that asks is no answer.
CREATE FUNCTION planq_place_message(c conversations, m planq_message, p_input text) RETURNS planq_arrival LANGUAGE plpgsql AS $$
DECLARE
    v_policy CONSTANT text := CASE WHEN m.patient THEN 'queue' ELSE coalesce(c.policy, m.policy) END;
    a planq_arrival;
    v_last uuid;
BEGIN
    a.begins := c.active_job_id IS NULL;
    a.interrupts := NOT a.begins AND v_policy = 'interrupt';
    a.outcome := CASE WHEN c.is_closed THEN 'closed' WHEN NOT a.begins AND v_policy = 'reject' THEN 'rejected' ELSE 'accepted' END;
    a.turn := CASE WHEN a.begins THEN c.last_turn + 1 END;
    IF a.begins OR c.is_closed THEN
        RETURN a;
    END IF;
    IF m.may_answer AND (m.named_agent IS NULL OR planq_is_of_agent(c.active_job_id, m)) AND EXISTS (
        SELECT FROM elicitations WHERE root_job_id = c.active_job_id AND status = 'open'
    ) THEN
        a.outcome := 'asking';
        a.job := c.active_job_id;
        RETURN a;
    END IF;
    IF NOT m.is_job AND (m.debounce_seconds > 0 OR v_policy = 'merge') THEN
        SELECT w.job, w.turn INTO v_last, a.turn FROM planq_queued_turns(c.id) w ORDER BY w.sequence DESC LIMIT 1;
        IF FOUND AND planq_takes_in(v_last, m)
           AND planq_extend_job(v_last, p_input, m.debounce_seconds, m.debounce_most_seconds) THEN
            a.outcome := CASE WHEN m.debounce_seconds > 0 THEN 'gathered' ELSE 'merged' END;
            a.job := v_last;
            a.interrupts := false;
            RETURN a;
        END IF;
        a.turn := NULL;
    END IF;
    IF NOT m.is_job AND v_policy = 'merge' AND a.outcome = 'accepted' AND planq_takes_in(c.active_job_id, m)
       AND (v_last IS NULL OR planq_takes_in(v_last, m)) THEN  -- else it would go before what waits
        a.outcome := 'merged';
        a.job := c.active_job_id;
        SELECT round INTO a.round FROM jobs WHERE id = c.active_job_id FOR NO KEY UPDATE;
    END IF;
    RETURN a;
END $$;

-- Whether a job may take a message in: it is of the same person and agent, and is no reminder that was fired last.
CREATE FUNCTION planq_takes_in(p_job uuid, m planq_message) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN planq_is_of_agent(p_job, m) AND EXISTS (
        SELECT FROM jobs j WHERE j.id = p_job AND j.tenant_id = m.tenant_id AND j.user_id = m.user_id
          AND NOT EXISTS (
            SELECT FROM schedules s WHERE s.conversation_id = j.conversation_id AND s.last_job_id = j.id));
END $$;

-- Whether a job is one of the agent, in the version, that a message is for, and was not sent as a job with more than words.
CREATE FUNCTION planq_is_of_agent(p_job uuid, m planq_message) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM jobs WHERE id = p_job AND tenant_id = m.tenant_id
          AND agent_name IS NOT DISTINCT FROM m.agent AND agent_version IS NOT DISTINCT FROM m.agent_version
          AND action IS NULL AND with_input IS NULL AND tools IS NULL)
      AND NOT EXISTS (SELECT FROM plans WHERE job_id = p_job AND tenant_id = m.tenant_id AND source = 'caller');
END $$;

-- The turns of a conversation that nobody has begun, with the place of the first message of each, and its turn. They are found
-- by the index on unfinished turns: a conversation may be long, and all others have queued jobs, too.
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

-- Adds a message to the input of a job that nobody has begun, unless that grows too long. With a debounce the job waits
-- that long for the next one, at the latest until `p_most` seconds after it was made. Returns whether it applied.
CREATE FUNCTION planq_extend_job(p_job uuid, p_input text, p_debounce float8, p_most float8) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE jobs j SET input = j.input || E'\n' || p_input, run_at = t.run_at,
        wake_at = CASE WHEN t.run_at > j.run_at THEN t.run_at ELSE j.wake_at END,
        expires_at = j.expires_at + (t.run_at - j.run_at)
    FROM (
        SELECT CASE WHEN o.run_at = planq_never() OR p_debounce = 0 THEN o.run_at ELSE greatest(o.run_at, least(
            planq_now() + make_interval(secs => p_debounce), o.created_at + make_interval(secs => p_most))) END AS run_at
        FROM jobs o WHERE o.id = p_job FOR NO KEY UPDATE
    ) t
    WHERE j.id = p_job AND j.status = 'queued' AND j.stage_attempt = 0
      AND length(j.input) + length(p_input) < 100000;
    RETURN FOUND;
END $$;

-- TurnEnded: writes down what a turn came to that has ended, once: the calls of its tools, the outbound message, and what it
-- used. Then the conversation's next turn begins, unless another one is active. Returns {applied, next: the job to be
-- woken, agent: that job's}; not applied where the job is no turn, has not ended, or was settled before.
CREATE FUNCTION planq_settle_turn(p_job uuid) RETURNS json LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    c conversations;
    j jobs;
    u record;
    v_conversation uuid;
    v_turn int;
    v_sequence bigint;
    v_message CONSTANT uuid := gen_random_uuid();
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
    PERFORM planq_settle_merging(c.id, j, v_turn);
    v_sequence := c.last_sequence + planq_write_calls(c, j, v_turn) + 1;
    u := planq_turn_usage(p_job, c.id);
    INSERT INTO conversation_messages (conversation_id, sequence, id, tenant_id, channel, direction, user_id, text, metadata,
                                       job_id, turn)
    VALUES (c.id, v_sequence, v_message, c.tenant_id, c.channel, 'outbound', j.user_id, coalesce(CASE j.status WHEN 'completed' THEN j.answer END, ''),
            json_build_object('job_status', j.status, 'outcome', planq_outcome(j.status, j.error), 'error_code', CASE j.status
                WHEN 'cancelled' THEN 'cancelled' WHEN 'failed' THEN planq_error_code(j.error) END, 'stop_reason', j.stop_reason,
                'input_tokens', u.input, 'output_tokens', u.output, 'cost_usd', u.cost), p_job, v_turn);
    UPDATE conversations SET last_sequence = v_sequence, messages_out = messages_out + 1, last_outbound_at = planq_now(),
        last_turn = greatest(last_turn, v_turn), input_tokens = input_tokens + u.input, output_tokens = output_tokens + u.output,
        cost_usd = CASE WHEN u.cost IS NULL THEN cost_usd ELSE coalesce(cost_usd, 0) + u.cost END,
        active_job_id = CASE WHEN active_job_id <> p_job THEN active_job_id END
    WHERE id = c.id;
    IF c.active_job_id IS NULL OR c.active_job_id = p_job THEN
        v_next := planq_begin_turn(c.id);
    END IF;
    PERFORM planq_append_event(c.tenant_id, p_job, 'outbound_message', json_build_object(
        'conversation_id', c.id, 'message_id', v_message, 'sequence', v_sequence));
    RETURN json_build_object('applied', true, 'next', v_next, 'tenant', c.tenant_id,
        'agent', (SELECT agent_name FROM jobs WHERE id = v_next));
END $$;

-- Messages that came while a turn ran: it has taken in those that came before its last planned round, and of each of the
-- others a job is made, which is held. The caller holds the conversation.
CREATE FUNCTION planq_settle_merging(p_conversation uuid, j jobs, p_turn int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    m record;
    v_planned CONSTANT int := j.round - (EXISTS (
        SELECT FROM plans WHERE job_id = j.id AND round = j.round AND source = 'chained'))::int;
BEGIN
    UPDATE conversation_messages SET turn = p_turn, status = 'done', submission = NULL
    WHERE conversation_id = p_conversation AND turn IS NULL AND status = 'merging' AND job_id = j.id AND round < v_planned;
    FOR m IN SELECT sequence, submission FROM conversation_messages
             WHERE conversation_id = p_conversation AND turn IS NULL AND status = 'merging' AND job_id = j.id
             ORDER BY sequence LOOP
        PERFORM planq_submit_jobs(json_build_array(m.submission), p_conversation, planq_never());
        UPDATE conversation_messages SET status = 'received', job_id = (m.submission->>'id')::uuid, submission = NULL,
            round = NULL
        WHERE conversation_id = p_conversation AND sequence = m.sequence;
    END LOOP;
END $$;

-- Writes down the calls of tools that a turn has begun, each with its response; of a large output its preview, what is too
-- long cut. A call that was cut off has none: whether it took effect stays unknown, until somebody tells
-- (planq_note_outcome). A chained tool's call is written as its job keeps it. Returns how many rows these are.
CREATE FUNCTION planq_write_calls(c conversations, j jobs, p_turn int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_rows int;
BEGIN
    WITH calls AS (
        SELECT s.index, planq_call_id(s.job_id, s.index) AS id, s.tool_name AS name,
               planq_capped_json(s.arguments) AS arguments, o.key, o.value,
               CASE WHEN s.status = 'cancelled' THEN json_build_object('unknown', s.attempt) END AS metadata
        FROM steps s LEFT JOIN payloads p ON p.tenant_id = s.tenant_id AND p.hash = s.payload_hash
        CROSS JOIN LATERAL planq_call_outcome(s, p.preview) o
        WHERE s.job_id = j.id AND (s.attempt > 0 OR s.status IN ('succeeded', 'failed')) AND s.kind <> 'noop'
          AND NOT EXISTS (
              SELECT FROM plans r JOIN messages k ON k.job_id = r.job_id
              WHERE r.job_id = s.job_id AND r.round = s.round AND r.source = 'chained')
        ORDER BY s.index LIMIT 500
    ), parts AS (
        SELECT index, 1::bigint AS part, 'tool_call' AS kind, NULL::json AS metadata,
               json_build_object('id', id, 'name', name, 'arguments', arguments) AS content FROM calls
        UNION ALL
        SELECT index, 2, 'tool_response', metadata, json_build_object('id', id, 'name', name, key, value) FROM calls
        UNION ALL
        SELECT 2147483647, m.id, m.kind, NULL, json_build_object('id', m.call_id, 'name', m.name,
            CASE m.kind WHEN 'tool_call' THEN 'arguments' ELSE 'output' END, planq_capped_json(m.content))
        FROM messages m WHERE m.job_id = j.id
    )
    INSERT INTO conversation_messages (conversation_id, sequence, id, tenant_id, channel, kind, direction, user_id, content,
                                       metadata, job_id, turn)
    SELECT c.id, c.last_sequence + row_number() OVER (ORDER BY p.index, p.part), gen_random_uuid(), c.tenant_id, c.channel,
           p.kind, 'internal', j.user_id, p.content, p.metadata, j.id, p_turn
    FROM parts p;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END $$;

-- How the call of a step ended, as the response to it says: `output` or `error`, and the value.
CREATE FUNCTION planq_call_outcome(s steps, p_preview json) RETURNS TABLE (key text, value json) LANGUAGE sql STABLE AS $$
    SELECT CASE s.status WHEN 'succeeded' THEN 'output' ELSE 'error' END, CASE s.status
        WHEN 'succeeded' THEN planq_capped_json(coalesce(s.output, p_preview, 'null'))
        WHEN 'failed' THEN planq_capped_json(s.error)
        WHEN 'cancelled' THEN json_build_object('code', 'outcome_unknown', 'message',
            'the turn was ended while this call ran; whether it took effect is unknown')
        ELSE json_build_object('code', 'skipped', 'message', 'the call was given up before it came to anything') END
$$;

-- JSON that is short enough to be kept in a conversation; else the beginning of its text.
CREATE FUNCTION planq_capped_json(p_value json) RETURNS json LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN length(p_value::text) <= 8000 THEN p_value ELSE to_json(
        left(p_value::text, 8000) || '... [' || length(p_value::text) || ' characters in all]') END
$$;

-- The code of an error. It is read from the text: taking JSON apart that holds the character NUL is an error.
CREATE FUNCTION planq_error_code(p_error json) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(p_error::text FROM '"code"\s*:\s*"([a-z0-9_]+)"')
$$;

-- What a turn has used with all jobs below it, as far as no earlier outbound message of it says so: it may have been resumed.
CREATE FUNCTION planq_turn_usage(p_job uuid, p_conversation uuid) RETURNS TABLE (input bigint, output bigint, cost numeric)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE tree (id) AS (
        SELECT p_job
        UNION
        SELECT c.id FROM tree t JOIN jobs c ON c.parent_job_id = t.id
    ), used AS (
        SELECT j.input_tokens AS i, j.output_tokens AS o, j.cost_usd AS c FROM tree t JOIN jobs j ON j.id = t.id
        UNION ALL
        SELECT -(m.metadata->>'input_tokens')::bigint, -(m.metadata->>'output_tokens')::bigint,
               -(m.metadata->>'cost_usd')::numeric
        FROM conversation_messages m
        WHERE m.conversation_id = p_conversation AND m.job_id = p_job AND m.direction = 'outbound'
    )
    SELECT coalesce(sum(i), 0)::bigint, coalesce(sum(o), 0)::bigint, sum(c) FROM used;
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

-- OutcomeNoted: a call whose turn was cancelled while it ran has ended after that, as `p_key` (`output` or `error`) says. It
-- changes nothing of the job, only what the turns after it are shown, once. Returns whether it applied.
CREATE FUNCTION planq_note_outcome(p_job uuid, p_index int, p_attempt int, p_key text, p_value json) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE conversation_messages SET metadata = json_build_object('came_late', true),
        content = json_build_object('id', content->'id', 'name', content->'name', p_key, planq_capped_json(p_value))
    WHERE job_id = p_job AND status = 'done' AND CASE WHEN kind = 'tool_response' THEN
        metadata->>'unknown' = p_attempt::text AND content->>'id' = planq_call_id(p_job, p_index) END;
    RETURN FOUND;
END $$;

-- The id under which the call of a step stands in a conversation: at most 40 letters, digits and underscores, which every
-- provider takes.
CREATE FUNCTION planq_call_id(p_job uuid, p_index int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT replace(p_job::text, '-', '') || '_' || p_index
$$;

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

-- The messages that came before round `p_round` of a turn while it ran, as its planner is shown them: {round, text}.
CREATE FUNCTION planq_merged(p_conversation uuid, p_job uuid, p_round int) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT json_agg(json_build_object('round', m.round, 'text', m.text) ORDER BY m.sequence)
        FROM conversation_messages m
        WHERE m.conversation_id = p_conversation AND m.turn IS NULL AND m.status = 'merging' AND m.job_id = p_job
          AND m.round < p_round);
END $$;
