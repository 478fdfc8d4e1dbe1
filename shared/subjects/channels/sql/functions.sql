-- Channel: what a conversation says is written down to be sent in the commit that says it, and leaves in its order.
--
--   planq_send_messages   an outbound message of a channel that is sent to becomes a delivery, by a trigger
--                         (so does what a step of a turn asks: planq_tell_question in webhooks)
--   planq_message_body    what is sent, read from the conversation at each attempt: it may have been erased

-- MessageWritten: to be sent where its channel is one that is sent to. All of one channel share the places at its `recipient`.
CREATE FUNCTION planq_send_messages() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO deliveries (id, tenant_id, kind, channel, recipient, knows_repeats, conversation_id, message_id,
                            question_id, job_id, event, body, run_at, created_at)
    SELECT planq_new_id(), h.tenant_id, 'message', h.name, 'channel ' || h.tenant_id || ' ' || h.name, h.knows_repeats,
           NEW.conversation_id, NEW.id, (NEW.metadata->>'elicitation_id')::uuid, NEW.job_id, 'conversation.message', '',
           planq_clock(), planq_clock()
    FROM channels h WHERE h.tenant_id = NEW.tenant_id AND h.name = NEW.channel;
    RETURN NULL;
END $$;

CREATE TRIGGER planq_messages_out AFTER INSERT ON conversation_messages FOR EACH ROW
WHEN (NEW.direction = 'outbound') EXECUTE FUNCTION planq_send_messages();

-- What a delivery of a message says, as JSON; null where its conversation does not say it any more. The error code of a turn
-- without an answer is for who sends it to put into words.
CREATE FUNCTION planq_message_body(d deliveries) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT json_build_object(
            'id', d.id, 'created_at', planq_shown_time(d.created_at), 'conversation_id', c.id, 'channel', c.channel, 'thread', c.thread, 'job_id', d.job_id,
            'message_id', m.id, 'text', coalesce(m.text, q.message), 'metadata', m.metadata,
            'to', coalesce(nullif(i.user_id, ''), m.user_id, ''),
            'in_reply_to', CASE WHEN i.sequence IS NOT NULL THEN
                json_build_object('id', i.id, 'source_message_id', i.source_id, 'metadata', i.metadata) END,
            'question', CASE WHEN q.id IS NOT NULL THEN json_build_object(
                'id', q.id, 'kind', q.kind, 'status', q.status, 'message', q.message, 'schema', q.schema, 'url', q.url,
                'is_secret', q.is_secret) END)
        FROM conversations c
        LEFT JOIN conversation_messages m ON m.tenant_id = d.tenant_id AND m.id = d.message_id AND m.status <> 'erased'
        LEFT JOIN questions q ON q.tenant_id = d.tenant_id AND q.id = d.question_id
        LEFT JOIN LATERAL (
            SELECT o.sequence, o.id, o.source_id, o.metadata, o.user_id FROM conversation_messages o
            WHERE o.job_id = d.job_id AND o.tenant_id = d.tenant_id AND o.direction = 'inbound' AND o.status <> 'erased'
            ORDER BY o.sequence DESC LIMIT 1
        ) i ON true
        WHERE c.id = d.conversation_id AND c.tenant_id = d.tenant_id AND coalesce(m.id, CASE WHEN d.message_id IS NULL THEN q.id END) IS NOT NULL);
END $$;
