-- Rates of messages: see planq_admit_message.

-- name: forget_rate_marks
-- Removes what has left the windows of tenants that send no more.
DELETE FROM rate_marks WHERE let_in_at <= planq_now() - make_interval(secs => %(window_seconds)s)
