-- Message: what is written in a conversation becomes a job, joins one, or answers what a job asks.
--
-- planq_receive_messages  messages of several conversations in one commit
--   planq_receive_message   stores an inbound message with its job, or adds it to a job that is there:
--     planq_begin_conversation, planq_continue_conversation
-- planq_answer_by_message stores one that answers what a step of the active turn has asked
--   planq_other_agent       the agent of the turn, where the message was checked for another one
--   planq_place_message     decides which, by what the conversation is doing and by its policy
--   planq_miss_question     notes one that fits nothing of that; after a second one the question is put again
--
-- conversation.sql says in which order rows are locked.

-- MessageReceived, many times: `p_arrivals` lists {message, job}, each as planq_receive_message takes them, ordered by
-- conversation. Returns what that returns, in the same order.
CREATE FUNCTION planq_receive_messages(p_arrivals json) RETURNS TABLE (received json) LANGUAGE plpgsql AS $$
DECLARE
    r record;
    v_ids uuid[];
BEGIN
    IF json_array_length(p_arrivals) > 1 THEN
        -- All that the messages may move is locked before any of them does: else a conversation's row and its turns would be
        -- locked after the turns of another one, against the order in which turns end.
        SELECT array_agg(l.id) INTO v_ids FROM (
            SELECT c.id FROM conversations c WHERE c.id = ANY (ARRAY(
                SELECT planq_named_conversation(json_populate_record(NULL::planq_message, a.message))
                FROM json_array_elements(p_arrivals) e CROSS JOIN LATERAL json_to_record(e.value) AS a (message json)))
            ORDER BY c.id FOR NO KEY UPDATE
        ) l;
        PERFORM FROM jobs WHERE conversation_id = ANY (v_ids) AND parent_job_id IS NULL
          AND planq_is_unfinished(status)
        ORDER BY id FOR NO KEY UPDATE;
    END IF;
    FOR r IN SELECT json_populate_record(NULL::planq_message, a.message) AS message, a.job FROM json_array_elements(p_arrivals) e
             CROSS JOIN LATERAL json_to_record(e.value) AS a (message json, job json) LOOP
        received := planq_receive_message(r.message, r.job);
        RETURN NEXT;
    END LOOP;
END $$;

-- MessageReceived: stores the message `m`, with the job `p_job`, a `planq_new_job` without an idempotency key, or in one that is
-- there. Returns {outcome, conversation_id, message_id, sequence, job_id, ended, begun: [{id, agent}, … of jobs to be woken],
-- later: {id, agent, seconds} of one that waits for further messages, policy, missed}; `rejected` and `closed` have stored nothing,
-- and neither have `asking`: a person is asked, which this may answer, `agent`: the job is to be made for another one
-- (planq_other_agent), and `unread`, too. `missed` is the open question of the active turn behind which the message waits.
CREATE FUNCTION planq_receive_message(m planq_message, p_job json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_at uuid := planq_named_conversation(m);
    v_received json := planq_known_message(m, v_at);
BEGIN
    IF v_received IS NULL AND v_at IS NULL THEN
        v_received := planq_begin_conversation(m, p_job);
        IF v_received IS NULL THEN  -- another message has just begun it
            v_at := planq_named_conversation(m);
        END IF;
    END IF;
    RETURN coalesce(v_received, planq_continue_conversation(v_at, m, p_job));
END $$;

-- Makes a conversation with its first message, whose job is the active turn: so its row is written once, as it is then. Returns as
-- planq_receive_message does; null, and nothing stored, where there is the conversation by now.
CREATE FUNCTION planq_begin_conversation(m planq_message, p_job json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_job CONSTANT uuid := p_job->>'id';
    c conversations;
    a planq_arrival;
    v_other CONSTANT json := planq_other_agent(c, m, p_job);
BEGIN
    IF v_other IS NOT NULL THEN
        RETURN v_other;
    END IF;
    INSERT INTO conversations AS n (id, tenant_id, channel, thread, first_source_id,
                                    last_sequence, messages_in, last_turn, last_inbound_at, active_job_id)
    VALUES (m.conversation_id, m.tenant_id, m.channel, coalesce(m.thread, m.conversation_id::text),
            CASE WHEN m.thread IS NULL THEN m.source_id END, 1, 1, 1, planq_now(), v_job)
    ON CONFLICT DO NOTHING RETURNING n.* INTO c;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    c.last_sequence := 0;
    a.outcome := 'accepted';
    a.turn := 1;
    PERFORM planq_store_message(c, m, v_job, a, NULL);
    PERFORM planq_submit_jobs(json_build_array(p_job), c.id, planq_now() + make_interval(secs => m.debounce_seconds));
    PERFORM planq_note_suspected(m, c.id, v_job);
    RETURN planq_received(c, m, a, v_job, '{}', NULL, '{}', CASE WHEN m.debounce_seconds = 0
        THEN json_build_array(json_build_object('id', v_job, 'agent', p_job->>'agent_name', 'tenant', m.tenant_id)) END);
END $$;

-- Stores a message in a conversation that is there, which it locks. Returns as planq_receive_message does.
CREATE FUNCTION planq_continue_conversation(p_conversation uuid, m planq_message, p_job json) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_job uuid := p_job->>'id';
    c conversations;
    a planq_arrival;
    v_known json;
    v_settled json;
    v_begun uuid[] := '{}';
    v_ended uuid[] := '{}';
    v_next uuid;
    v_missed uuid;
BEGIN
    SELECT * INTO c FROM conversations WHERE id = p_conversation AND tenant_id = m.tenant_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN  -- retention has just removed it: from the beginning, as the caller does then
        RAISE SQLSTATE '40001';
    END IF;
    v_known := coalesce(planq_known_message(m, c.id), planq_other_agent(c, m, p_job));
    IF v_known IS NOT NULL THEN
        RETURN v_known;
    END IF;
    -- A turn that has just ended is over, although nobody has written that down.
    v_settled := CASE WHEN c.active_job_id IS NOT NULL THEN planq_settle_turn(c.active_job_id) END;
    IF (v_settled->>'applied')::boolean THEN
        v_begun := array_remove(ARRAY[(v_settled->>'next')::uuid], NULL);
        SELECT * INTO c FROM conversations WHERE id = c.id;
    END IF;
    a := planq_place_message(c, m, p_job);
    IF a.outcome IN ('rejected', 'closed', 'asking') THEN
        RETURN planq_received(c, m, a, coalesce(a.job, v_job), v_ended, NULL, v_begun, NULL);
    END IF;
    PERFORM planq_store_message(c, m, coalesce(a.job, v_job), a, CASE WHEN a.round IS NOT NULL THEN p_job END);
    PERFORM planq_count_message(c, a, v_job);
    IF a.job IS NULL THEN
        PERFORM planq_submit_jobs(json_build_array(p_job), c.id, CASE WHEN a.begins
            THEN planq_now() + make_interval(secs => m.debounce_seconds) ELSE planq_never() END);
        IF a.interrupts THEN
            v_next := c.active_job_id;
            LOOP
                v_ended := ARRAY(
                    SELECT e::uuid FROM json_array_elements_text(planq_cancel_job(v_next, c.tenant_id)->'ended') e);
                v_next := planq_settle_turn(v_next)->>'next';
                -- It may just have ended by itself: then the one that begins after it is the one to be interrupted.
                EXIT WHEN cardinality(v_ended) > 0 OR v_next IS NULL OR v_next = v_job;
            END LOOP;
            v_begun := v_begun || array_remove(ARRAY[v_next], NULL);
        ELSIF a.begins AND m.debounce_seconds = 0 THEN
            v_begun := v_begun || v_job;
        END IF;
    END IF;
    v_job := coalesce(a.job, v_job);
    PERFORM planq_note_suspected(m, c.id, v_job);
    IF NOT (m.may_answer OR a.begins OR a.interrupts) THEN
        v_missed := planq_miss_question(c, m.user_id);
    END IF;
    RETURN planq_received(c, m, a, v_job, v_ended, v_missed, v_begun, NULL);
END $$;

-- Returns what planq_receive_message does. `c` is the conversation before the message, `p_begun` the turns that have begun, `p_woken`
-- what their wake-ups say where that is known.
CREATE FUNCTION planq_received(
    c conversations, m planq_message, a planq_arrival, p_job uuid, p_ended uuid[], p_missed uuid, p_begun uuid[],
    p_woken json
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_later json;
BEGIN
    -- Looks of their own, where they are needed: within RETURN they would be got ready for every message.
    IF cardinality(p_begun) > 0 THEN
        SELECT json_agg(json_build_object('id', o.id, 'agent', o.agent_name, 'tenant', o.tenant_id)) INTO p_woken
        FROM jobs o WHERE o.id = ANY (p_begun) AND o.tenant_id = m.tenant_id;
    END IF;
    IF m.debounce_seconds > 0 THEN
        SELECT json_build_object('id', o.id, 'agent', o.agent_name, 'tenant', o.tenant_id,
                                 'seconds', extract(epoch FROM o.run_at - planq_now())) INTO v_later
        FROM jobs o WHERE o.id = p_job AND o.tenant_id = m.tenant_id AND o.status = 'queued'
          AND o.run_at > planq_now() AND o.run_at < planq_never();
    END IF;
    RETURN json_build_object('outcome', a.outcome, 'conversation_id', c.id, 'message_id', m.id,
        'sequence', c.last_sequence + 1, 'job_id', p_job, 'ended', to_json(p_ended),
        'begun', coalesce(p_woken, '[]'), 'later', v_later, 'policy', coalesce(c.policy, m.policy), 'missed', p_missed);
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
            SELECT FROM questions WHERE id = p_id AND tenant_id = m.tenant_id AND root_job_id = c.active_job_id
        ) THEN planq_answer_question(m.tenant_id, p_id, p_answer, false, p_again, p_item) END;
    IF NOT coalesce((v_result->>'applied')::boolean, false) THEN
        RETURN json_build_object('outcome', NULL);
    END IF;
    SELECT max(turn) INTO a.turn FROM conversation_messages
    WHERE tenant_id = m.tenant_id AND conversation_id = c.id AND job_id = c.active_job_id;
    PERFORM planq_store_message(c, m, c.active_job_id, a, NULL);
    PERFORM planq_count_message(c, a, c.active_job_id);
    UPDATE conversation_messages SET answered_question_id = p_id
    WHERE conversation_id = c.id AND sequence = c.last_sequence + 1;
    PERFORM planq_note_suspected(m, c.id, c.active_job_id);
    RETURN json_build_object('outcome', 'answered', 'conversation_id', c.id, 'message_id', m.id,
        'sequence', c.last_sequence + 1, 'job_id', c.active_job_id, 'ended', '[]'::json, 'begun', '[]'::json,
        'answered', v_result,
        'question', (SELECT json_build_object('id', id, 'status', status) FROM questions WHERE id = p_id AND tenant_id = m.tenant_id));
END $$;

-- QuestionMissed: a message that was just stored in the conversation `c`, as it was before, fits nothing that the active turn
-- asks. After a second one in a row the oldest question is put again, as an outbound message: somebody who looks at a chat
-- alone may have lost sight of it. Nobody misses what is asked of others. Returns that question, null where none is open any
-- more. The caller holds the conversation.
CREATE FUNCTION planq_miss_question(c conversations, p_person text) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    q questions;
BEGIN
    SELECT * INTO q FROM questions
    WHERE root_job_id = c.active_job_id AND tenant_id = c.tenant_id AND status = 'open'
    ORDER BY planq_may_answer(questions, p_person) DESC, id LIMIT 1;
    IF FOUND AND NOT planq_may_answer(q, p_person) THEN
        RETURN q.id;
    END IF;
    IF NOT FOUND OR c.missed_question_id IS DISTINCT FROM q.id THEN
        UPDATE conversations SET missed_question_id = q.id WHERE id = c.id;
        RETURN q.id;
    END IF;
    PERFORM planq_write_outbound(c, j, c.last_sequence + 2, c.last_turn, q.message,
        json_build_object('elicitation_id', q.id, 'elicitation_kind', q.kind), q.id) FROM jobs j WHERE j.id = c.active_job_id;
    UPDATE conversations SET last_sequence = c.last_sequence + 2, messages_out = messages_out + 1,
        last_outbound_at = planq_now()
    WHERE id = c.id;
    RETURN q.id;
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
        'question', (SELECT json_build_object('id', q.id, 'status', q.status) FROM questions q
                     WHERE q.id = k.answered_question_id AND q.tenant_id = m.tenant_id),
        'is_erased', k.status = 'erased', 'differs', to_json(CASE WHEN k.status <> 'erased' THEN v_differs END),
        'ended', '[]'::json, 'begun', '[]'::json);
END $$;

-- Returns {outcome: 'agent', agent, version} where the job of a message was made for another agent, or another version, than the message
-- is for; the version is null for the newest in use. The agent is named by the message, otherwise by the conversation, otherwise
-- by its channel or tenant. The conversation keeps the version with which an agent has begun in it. Returns {outcome: 'unread'}
-- for a message with parts whose job uses planq's own rules, which read text only. Null for all others.
CREATE FUNCTION planq_other_agent(c conversations, m planq_message, p_job json) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_agent CONSTANT text := coalesce(m.named_agent, CASE WHEN NOT m.is_job THEN coalesce(c.agent, m.default_agent) END);
    v_version int;
BEGIN
    IF NOT (v_agent IS NULL AND m.agent IS NULL OR m.is_job AND m.agent IS NULL) THEN
        IF NOT (m.names_version OR coalesce(c.follows_agent, true)) THEN
            SELECT version INTO v_version FROM conversation_agents
            WHERE tenant_id = m.tenant_id AND conversation_id = c.id AND agent = v_agent;
        END IF;
        IF v_agent IS DISTINCT FROM m.agent OR v_version <> m.agent_version THEN
            RETURN json_build_object('outcome', 'agent', 'conversation_id', c.id, 'agent', v_agent, 'version', v_version);
        END IF;
    END IF;
    RETURN CASE WHEN p_job->>'parts' IS NOT NULL AND p_job->>'model' = 'offline' THEN json_build_object('outcome', 'unread') END;
END $$;

-- Decides what becomes of a message in a conversation, which the caller holds. A message that is gathered, or merges with a job that
-- has not begun, is added to that job's input here. A turn takes in only messages of its own person and agent, because its tools
-- act for that person. A message that names another agent than the one that asks is no answer. A message with parts (images,
-- files, audio) has its own turn, because only text can be added to another job's input.
CREATE FUNCTION planq_place_message(c conversations, m planq_message, p_job json) RETURNS planq_arrival LANGUAGE plpgsql AS $$
DECLARE
    v_policy CONSTANT text := CASE WHEN m.patient THEN 'queue' ELSE coalesce(c.policy, m.policy) END;
    v_may_join CONSTANT boolean := NOT m.is_job AND p_job->>'parts' IS NULL;
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
        SELECT FROM questions WHERE root_job_id = c.active_job_id AND status = 'open'
    ) THEN
        a.outcome := 'asking';
        a.job := c.active_job_id;
        RETURN a;
    END IF;
    IF v_may_join AND (m.debounce_seconds > 0 OR v_policy = 'merge') THEN
        SELECT w.job, w.turn INTO v_last, a.turn FROM planq_queued_turns(c.id) w ORDER BY w.sequence DESC LIMIT 1;
        IF FOUND AND planq_takes_in(v_last, m) THEN
            -- Nobody has begun the job, and its input does not grow too long. With a debounce it waits for the next message that
            -- long, at the latest until `debounce_most_seconds` after it was made.
            UPDATE jobs j SET input = concat_ws(E'\n', nullif(j.input, ''), p_job->>'input'), run_at = t.run_at,
                wake_at = CASE WHEN t.run_at > j.run_at THEN t.run_at ELSE j.wake_at END,
                expires_at = j.expires_at + (t.run_at - j.run_at)
            FROM (
                SELECT CASE WHEN o.run_at = planq_never() OR m.debounce_seconds = 0 THEN o.run_at
                    ELSE greatest(o.run_at, least(planq_now() + make_interval(secs => m.debounce_seconds),
                        o.created_at + make_interval(secs => m.debounce_most_seconds))) END AS run_at
                FROM jobs o WHERE o.id = v_last FOR NO KEY UPDATE
            ) t
            WHERE j.id = v_last AND j.status = 'queued' AND j.stage_attempt = 0
              AND length(j.input) + length(p_job->>'input') < 100000;
            IF FOUND THEN
                a.outcome := CASE WHEN m.debounce_seconds > 0 THEN 'gathered' ELSE 'merged' END;
                a.job := v_last;
                a.interrupts := false;
                RETURN a;
            END IF;
        END IF;
        a.turn := NULL;
    END IF;
    IF v_may_join AND v_policy = 'merge' AND a.outcome = 'accepted' AND planq_takes_in(c.active_job_id, m)
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

-- Stores an inbound message of the job `p_job`. The caller holds the conversation, and has looked whether it knows the source id. Of
-- an idempotency key that comes in two conversations at once one message is stored: the transaction of the second is undone, and
-- finds it when it is repeated.
CREATE FUNCTION planq_store_message(c conversations, m planq_message, p_job uuid, a planq_arrival, p_submission json)
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
    IF m.agent IS NOT NULL THEN
        -- The conversation keeps the first version of the agent that it has a turn with, or the last where it follows.
        INSERT INTO conversation_agents AS k (conversation_id, agent, tenant_id, version)
        VALUES (c.id, m.agent, m.tenant_id, m.agent_version)
        ON CONFLICT (conversation_id, agent) DO UPDATE SET version = EXCLUDED.version
        WHERE k.version <> EXCLUDED.version AND NOT m.names_version
          AND (SELECT follows_agent FROM conversations WHERE id = c.id AND tenant_id = m.tenant_id);
    END IF;
END $$;

-- Counts an inbound message that was just stored in a conversation, which the caller holds. The turn that it begins is `p_job`.
CREATE FUNCTION planq_count_message(c conversations, a planq_arrival, p_job uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE conversations SET last_sequence = c.last_sequence + 1, messages_in = messages_in + 1,
        last_inbound_at = planq_now(), last_turn = greatest(last_turn, a.turn), missed_question_id = NULL,
        active_job_id = CASE WHEN a.begins THEN p_job ELSE active_job_id END
    WHERE id = c.id;
END $$;

-- Tells of attempts to steer a model that were found in the text of a message, in the events of the job `p_job`.
CREATE FUNCTION planq_note_suspected(m planq_message, p_conversation uuid, p_job uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF m.suspected IS NOT NULL THEN
        PERFORM planq_append_event(m.tenant_id, p_job, 'injection_suspected', json_build_object(
            'conversation_id', p_conversation, 'message_id', m.id, 'kinds', m.suspected));
    END IF;
END $$;
