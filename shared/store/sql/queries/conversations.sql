-- Conversations: what is read of them.

-- name: conversation_history
-- Rows of the turns before that of a job, newest first: turns in the order in which they began, the rows of each in theirs.
SELECT m.sequence, m.kind, m.direction, m.text, m.tokens, m.content, m.job_id
FROM conversation_messages m
WHERE m.conversation_id = %(conversation_id)s AND m.tenant_id = %(tenant_id)s AND m.turn < (
    SELECT max(o.turn) FROM conversation_messages o
    WHERE o.conversation_id = %(conversation_id)s AND o.tenant_id = %(tenant_id)s AND o.job_id = %(job_id)s AND o.direction = 'inbound')
ORDER BY m.turn DESC, m.sequence DESC LIMIT %(limit)s
