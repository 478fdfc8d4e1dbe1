-- How much of a lane's work nobody claims although the sweeper has published it at least twice, the last time more than
-- %(settled_seconds)s and less than %(idle_seconds)s seconds ago. The time of publication follows from `wake_at`, which
-- planq_take_due_wakes moves by planq_wake_pause(wakes).
WITH waiting AS (
    SELECT s.wake_at, s.wakes FROM steps s JOIN jobs j ON j.id = s.job_id
    WHERE s.status IN ('ready', 'waiting') AND s.status = 'ready' AND s.lane = %(lane)s AND s.run_at <= planq_now()
      AND s.wakes >= 2 AND j.status IN ('executing', 'input_required') AND j.paused_at IS NULL
    UNION ALL
    SELECT wake_at, wakes FROM jobs
    WHERE status IN ('queued', 'planning', 'executing', 'input_required', 'responding')
      AND status IN ('queued', 'planning', 'responding') AND %(lane)s = 'io' AND stage_worker IS NULL
      AND run_at <= planq_now() AND wakes >= 2 AND paused_at IS NULL
), published AS (
    SELECT wake_at - planq_wake_pause(wakes) AS at FROM waiting
)
SELECT count(*)::int AS n FROM published
WHERE at BETWEEN planq_now() - make_interval(secs => %(idle_seconds)s)
    AND planq_now() - make_interval(secs => %(settled_seconds)s)
