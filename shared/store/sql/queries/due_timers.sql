-- Waiting steps whose timer has run out.
SELECT job_id, round, index, attempt FROM steps
WHERE status = 'waiting' AND question IS NULL AND wake_at <= planq_now() ORDER BY wake_at LIMIT %(limit)s
