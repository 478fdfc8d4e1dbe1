-- Conversations: what is read of them.

-- name: conversation_history
-- Rows of the turns before that of a job, newest first: turns in the order in which they began, the rows of each in theirs.
SELECT m.sequence, m.kind, m.direction, m.text, m.tokens, m.content, m.job_id
FROM conversation_messages m
WHERE m.conversation_id = %(conversation_id)s AND m.tenant_id = %(tenant_id)s AND m.turn < (
    SELECT max(o.turn) FROM conversation_messages o
    WHERE o.conversation_id = %(conversation_id)s AND o.tenant_id = %(tenant_id)s AND o.job_id = %(job_id)s AND o.direction = 'inbound')
ORDER BY m.turn DESC, m.sequence DESC LIMIT %(limit)s

-- name: questions_of_turn
-- What the steps of a turn, and of the jobs below it, ask and nobody has answered, oldest first.
SELECT e.id, e.kind, e.schema, s.kind AS step_kind
FROM elicitations e JOIN steps s ON s.job_id = e.job_id AND s.tenant_id = e.tenant_id AND s.index = e.step_index
WHERE e.tenant_id = %(tenant_id)s AND e.root_job_id = %(root_job_id)s AND e.status = 'open'
ORDER BY e.id
