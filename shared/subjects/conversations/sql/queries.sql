-- Conversations: what is read of them.

-- name: conversation_history
-- Rows of the turns before a given one, else before that of a job, newest first: turns in the order in which they began, the
-- rows of each in theirs. And who has written the first message of the job's own turn.
SELECT m.sequence, m.kind, m.direction, m.text, m.content, m.metadata, m.job_id, m.user_id,
       p.user_id AS present_user_id, p.content AS present_content, p.metadata AS present_metadata
FROM conversation_messages m
LEFT JOIN (
    SELECT o.user_id, o.content, o.metadata FROM conversation_messages o
    WHERE o.job_id = %(job_id)s AND o.tenant_id = %(tenant_id)s AND o.conversation_id = %(conversation_id)s
      AND o.direction = 'inbound' AND %(before)s::int IS NULL
    ORDER BY o.sequence LIMIT 1
) p ON true
WHERE m.conversation_id = %(conversation_id)s AND m.tenant_id = %(tenant_id)s AND m.status <> 'erased' AND m.turn < coalesce(%(before)s::int, (
    SELECT max(o.turn) FROM conversation_messages o
    WHERE o.conversation_id = %(conversation_id)s AND o.tenant_id = %(tenant_id)s AND o.job_id = %(job_id)s AND o.direction = 'inbound'))
ORDER BY m.turn DESC, m.sequence DESC LIMIT %(limit)s

-- name: questions_of_turn
-- What the steps of a turn, and of the jobs below it, ask a person and nobody has answered, oldest first.
SELECT q.id, q.kind, q.schema, q.is_secret, s.kind AS step_kind
FROM questions q JOIN steps s ON s.job_id = q.job_id AND s.tenant_id = q.tenant_id AND s.index = q.step_index
WHERE q.tenant_id = %(tenant_id)s AND q.root_job_id = %(root_job_id)s AND q.status = 'open'
  AND planq_may_answer(q, %(person)s)
ORDER BY q.id

-- name: question_before
-- The oldest open question of the turn behind which a turn waits that has not begun, and that turn; no row where there is none.
-- One that may be answered by whom that turn is for comes first.
SELECT q.id, c.active_job_id AS job_id
FROM jobs j JOIN conversations c ON c.id = j.conversation_id AND c.tenant_id = j.tenant_id
JOIN questions q ON q.root_job_id = c.active_job_id AND q.tenant_id = c.tenant_id AND q.status = 'open'
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s AND j.status = 'queued' AND j.id <> c.active_job_id
ORDER BY planq_may_answer(q, j.user_id) DESC, q.id LIMIT 1

-- name: begin_conversation
-- Stores a conversation without a message, and the version of its agent that it keeps where one is named; no row where the
-- channel has the thread.
WITH made AS (
    INSERT INTO conversations (id, tenant_id, channel, thread, policy, agent, follows_agent)
    VALUES (%(id)s, %(tenant_id)s, %(channel)s, %(thread)s, %(policy)s, %(agent)s, %(follows_agent)s)
    ON CONFLICT DO NOTHING RETURNING id
), kept AS (
    INSERT INTO conversation_agents (conversation_id, agent, tenant_id, version)
    SELECT id, %(agent)s::text, %(tenant_id)s, %(version)s::int FROM made WHERE %(version)s::int IS NOT NULL
)
SELECT id FROM made

-- name: change_conversation
-- Sets a conversation's own policy and agent, the version of it that it keeps where one is named, and whether it takes
-- messages.
WITH kept AS (
    INSERT INTO conversation_agents AS k (conversation_id, agent, tenant_id, version)
    SELECT c.id, %(agent)s::text, c.tenant_id, %(version)s::int FROM conversations c
    WHERE c.tenant_id = %(tenant_id)s AND c.id = %(id)s AND %(version)s::int IS NOT NULL
    ON CONFLICT (conversation_id, agent) DO UPDATE SET version = EXCLUDED.version
)
UPDATE conversations SET policy = %(policy)s, is_closed = %(is_closed)s, agent = %(agent)s, follows_agent = %(follows_agent)s
WHERE tenant_id = %(tenant_id)s AND id = %(id)s

-- name: list_job_messages
-- Rows of a job, oldest first; the call of its chained tool from where the job keeps it, unless its turn is written down.
SELECT id, conversation_id, channel, sequence, turn, kind, direction, status, job_id, user_id, source_id, text,
       content, metadata, created_at, answered_question_id
FROM conversation_messages WHERE tenant_id = %(tenant_id)s AND job_id = %(job_id)s
UNION ALL
SELECT NULL, NULL, NULL, m.id, NULL, m.kind, 'internal', 'done', m.job_id, '', NULL, '',
       json_build_object('id', m.call_id, 'name', m.name,
           CASE WHEN m.kind = 'tool_call' THEN 'arguments' WHEN m.is_preview THEN 'preview' ELSE 'output' END, m.content), NULL, m.created_at, NULL
FROM messages m
WHERE m.tenant_id = %(tenant_id)s AND m.job_id = %(job_id)s AND NOT EXISTS (
    SELECT FROM conversation_messages c
    WHERE c.tenant_id = m.tenant_id AND c.job_id = m.job_id AND c.direction = 'outbound'
      AND c.metadata->>'elicitation_id' IS NULL)
ORDER BY created_at, sequence

-- name: job_of_message
-- The job that answers a message.
SELECT job_id FROM conversation_messages WHERE id = %(id)s AND tenant_id = %(tenant_id)s

-- name: reply_of_job
-- What a turn was answered with; a job that was resumed has answered more than once.
SELECT id, conversation_id, channel, user_id, text, status, created_at FROM conversation_messages
WHERE job_id = %(job_id)s AND tenant_id = %(tenant_id)s AND kind = 'message' AND direction = 'outbound'
ORDER BY sequence DESC LIMIT 1
