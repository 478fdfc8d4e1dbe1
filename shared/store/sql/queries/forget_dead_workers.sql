-- Removes workers that have been silent for a day, or whose lease was ended, once nothing refers to them any more.
DELETE FROM workers w WHERE w.heartbeat_at < planq_now() - interval '1 day'
  AND NOT EXISTS (SELECT FROM steps s WHERE s.status = 'running' AND s.worker_id = w.id)
  AND NOT EXISTS (SELECT FROM jobs j WHERE j.stage_worker = w.id)
