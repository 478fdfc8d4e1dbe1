-- Jobs in one status that ended more than `seconds` ago, oldest first, locked until the transaction ends; those that
-- somebody holds are passed over. At most `limit` jobs, and no more once those found have `most_steps` steps.
-- Ids sort by the time they were made and a job ends after that, so only the old end of ix_jobs_status_listing is
-- looked at: nothing at all when nothing is due. A child job stays until its parent is gone.
SELECT j.id FROM jobs j
WHERE j.status = %(status)s AND j.finished_at < planq_now() - make_interval(secs => %(seconds)s) AND j.id IN (
    SELECT sized.id FROM (
        SELECT old.id, sum(s.steps) OVER (ORDER BY old.id) - s.steps AS steps_before
        FROM (
            SELECT o.id FROM tenants t CROSS JOIN LATERAL (
                SELECT d.id FROM jobs d
                WHERE d.tenant_id = t.id AND d.status = %(status)s
                  AND d.id < (lpad(to_hex(greatest(0, floor(1000 * extract(epoch FROM
                                planq_now() - make_interval(secs => %(seconds)s))))::bigint), 12, '0') || repeat('0', 20))::uuid
                  AND d.finished_at < planq_now() - make_interval(secs => %(seconds)s)
                  AND (SELECT p.id FROM jobs p WHERE p.id = d.parent_job_id) IS NULL
                  AND NOT EXISTS (
                      SELECT FROM jobs c WHERE c.parent_job_id = d.id
                        AND c.status IN ('queued', 'planning', 'executing', 'input_required', 'responding'))
                  AND NOT EXISTS (
                      SELECT FROM jobs f WHERE f.forked_from = d.id
                        AND f.status IN ('queued', 'planning', 'executing', 'input_required', 'responding'))
                ORDER BY d.id LIMIT %(limit)s
            ) o
            ORDER BY o.id LIMIT %(limit)s
        ) old
        CROSS JOIN LATERAL (SELECT count(*) AS steps FROM steps s WHERE s.job_id = old.id) s
    ) sized
    WHERE sized.steps_before < %(most_steps)s
)
FOR UPDATE SKIP LOCKED
