-- Batches as their callers see them, and what their intake looks for.

-- name: received_lines
-- As many as are to be looked at together, one in any case.
SELECT line, raw FROM (
    SELECT line, raw, sum(octet_length(raw)) OVER (ORDER BY line) AS bytes, row_number() OVER (ORDER BY line) AS n
    FROM (
        SELECT line, raw FROM batch_lines
        WHERE batch_id = %(id)s AND tenant_id = %(tenant_id)s AND status = 'received' AND line > %(after)s
        ORDER BY line LIMIT %(limit)s
    ) l
) m WHERE bytes <= %(bytes)s OR n = 1 ORDER BY line

-- name: due_batches
-- Whether a batch waits for a process that stores or validates its lines.
SELECT EXISTS (
    SELECT FROM batches WHERE status IN ('uploading', 'validating') AND held_until <= planq_now()
) AS is_due

-- name: end_upload
-- Ends an upload of %(total)s lines, of which %(invalid)s were refused: they wait to be validated. No change where another
-- process holds it.
UPDATE batches SET status = 'validating', total = %(total)s, invalid = %(invalid)s, validated_lines = %(invalid)s,
    held_by = NULL, held_until = planq_now()
WHERE id = %(id)s AND tenant_id = %(tenant_id)s AND status = 'uploading' AND held_by = %(holder)s

-- name: take_batch
-- A process begins to validate the lines of the oldest batch that nobody holds, or goes on where another process was lost; no row
-- where there is none.
UPDATE batches b SET held_by = %(holder)s, held_until = planq_now() + make_interval(secs => %(seconds)s)
FROM (
    SELECT w.id FROM batches w WHERE w.status = 'validating' AND w.held_until <= planq_now()
    ORDER BY w.held_until LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
) free
WHERE b.id = free.id
RETURNING b.id, b.tenant_id, b.defaults, b.priority, b.estimate

-- name: drop_upload
-- Removes an upload that its process gives up.
DELETE FROM batches
WHERE id = %(id)s AND tenant_id = %(tenant_id)s AND status = 'uploading' AND held_by = %(holder)s

-- name: drop_abandoned_uploads
-- Removes uploads whose process is gone.
DELETE FROM batches WHERE status = 'uploading' AND held_until < planq_now()

-- name: intake_of_tenant
-- How many batches of a tenant are being stored, and how many lines of it have not ended.
SELECT coalesce(sum((status = 'uploading' AND held_until > planq_now())::int), 0)::int AS uploads,
       coalesce(sum(greatest(total - invalid - completed - failed - cancelled, 0)), 0)::bigint AS lines
FROM (
    SELECT status, held_until, total, invalid, completed, failed, cancelled FROM batches
    WHERE tenant_id = %(tenant_id)s AND status IN ('uploading', 'validating')
    UNION ALL
    SELECT status, held_until, total, invalid, completed, failed, cancelled FROM batches
    WHERE tenant_id = %(tenant_id)s AND status IN ('in_progress', 'cancelling')
) b

-- name: calls_of_provider_batch
-- The requests of a provider's batch that was not sent.
SELECT job_id, body FROM deferred_calls
WHERE provider_batch_id = %(id)s AND tenant_id = %(tenant_id)s AND body IS NOT NULL ORDER BY job_id

-- name: sweep_look/batches
SELECT 'batches', NULL, NULL WHERE EXISTS (
    SELECT FROM batches b
    WHERE b.status IN ('in_progress', 'cancelling') AND (b.status = 'cancelling' OR (b.paused_at IS NULL AND (
        SELECT true FROM batch_lines l WHERE l.batch_id = b.id AND l.status = 'valid' ORDER BY l.line LIMIT 1)))
)

-- name: sweep_look/provider_batches
-- Calls that wait for others are looked at, too: planq_take_provider_batch knows for how long.
SELECT 'provider_batches', NULL, NULL WHERE EXISTS (
    SELECT FROM provider_batches
    WHERE status <> 'ended' AND next_look_at <= planq_now() AND coalesce(held_until <= planq_now(), true)
) OR EXISTS (SELECT FROM deferred_calls WHERE status = 'waiting')

-- name: tidy_deferred_results
-- Removes results of calls whose jobs have ended: what is kept of a reply is the record of its call.
UPDATE deferred_calls SET result = NULL WHERE result IS NOT NULL AND job_id IN (
    SELECT d.job_id FROM deferred_calls d JOIN jobs j ON j.id = d.job_id
    WHERE d.result IS NOT NULL AND NOT planq_is_unfinished(j.status) LIMIT 10000)

-- name: tidy_lost_lines
-- Fails admitted lines whose jobs somebody has deleted.
SELECT planq_fail_lost_lines(1000, json_build_object('code', 'job_deleted', 'message',
    'the job of this line was deleted before it had ended; retry the batch', 'retryable', true, 'details', '{}'::json))
