-- Removes schedules that are over and older than any job that could still ask for them.
DELETE FROM schedules WHERE id IN (
    SELECT id FROM schedules WHERE NOT is_active AND created_at < planq_now() - interval '30 days'
    ORDER BY created_at LIMIT 1000
)
