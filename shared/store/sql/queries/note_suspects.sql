-- Notes who was in flight with whom in a lost worker (a JSON array), once for each attempt: who comes later has seen less.
INSERT INTO suspects (tenant_id, job_id, round, index, attempt, lane, group_id, company, delays)
SELECT j.tenant_id, s.*
FROM json_to_recordset(%(suspects)s) AS s (
    job_id uuid, round int, index int, attempt int, lane text, group_id uuid, company int, delays boolean
) JOIN jobs j ON j.id = s.job_id
ORDER BY s.job_id, s.round, s.index
ON CONFLICT (job_id, round, index) DO UPDATE SET attempt = excluded.attempt, lane = excluded.lane,
    group_id = excluded.group_id, company = excluded.company, delays = excluded.delays, noted_at = planq_now(),
    due_at = NULL, taken_until = NULL
WHERE suspects.attempt < excluded.attempt
