-- The lanes with work that was published more than planq_claim_grace() ago, is not yet due again, and is unclaimed.
SELECT 'io' AS lane WHERE EXISTS (
    SELECT FROM jobs
    WHERE wake_at <= now() + planq_wake_pause(2) - planq_claim_grace()
      AND wake_at - planq_wake_pause(wakes) <= now() - planq_claim_grace()
      AND status IN ('queued', 'planning', 'executing', 'input_required', 'responding')
      AND status IN ('queued', 'planning', 'responding')
      AND run_at <= now() AND stage_worker IS NULL AND paused_at IS NULL
)
UNION
SELECT DISTINCT s.lane FROM steps s JOIN jobs j ON j.id = s.job_id
WHERE s.status IN ('ready', 'waiting') AND s.status = 'ready'
  AND s.wake_at <= now() + planq_wake_pause(2) - planq_claim_grace()
  AND s.wake_at - planq_wake_pause(s.wakes) <= now() - planq_claim_grace()
  AND s.run_at <= now() AND j.paused_at IS NULL
