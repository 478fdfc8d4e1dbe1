-- Rates of messages: see planq_admit_message.

-- name: admit_messages
-- Lets each message in or refuses it, one after the other as they are given: those of a tenant stand together.
SELECT verdict.allowed, verdict.now, verdict.used, verdict.frees_at, verdict.channel_used, verdict.channel_frees_at
FROM unnest(%(tenant_ids)s::text[], %(channels)s::text[], %(limits)s::int[], %(channel_limits)s::int[])
     WITH ORDINALITY AS message (tenant_id, channel, most, channel_most, place)
CROSS JOIN LATERAL planq_admit_message(message.tenant_id, message.channel, message.most, message.channel_most,
                                       make_interval(secs => %(window_seconds)s)) AS verdict
ORDER BY message.place;

-- name: forget_rate_marks
-- Removes what has left the windows of tenants that send no more.
DELETE FROM rate_marks WHERE let_in_at <= planq_now() - make_interval(secs => %(window_seconds)s)
