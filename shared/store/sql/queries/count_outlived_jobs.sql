-- How many jobs in one status are due to be deleted now, and when the oldest of them ended; see lock_outlived_jobs.
SELECT count(*)::int AS jobs, min(d.finished_at) AS oldest FROM tenants t CROSS JOIN LATERAL (
    SELECT d.finished_at FROM jobs d
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
) d
