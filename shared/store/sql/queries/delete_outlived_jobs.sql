-- Deletes jobs that this transaction has locked, with everything that hangs on them; a child or a fork that was made
-- after they were found keeps its job (a statement of its own sees it). Yields their ids.
-- An artifact that another job names too, since it took the outcome over, is handed to the newest such job instead: its
-- row is the only one of that id, so it cannot be copied when the outcome is. Where all of them are being deleted as
-- well, here or by somebody else, its job stays for a later batch. The lock is one that nobody waits for, so that two
-- processes cannot wait for each other.
WITH holders AS (
    SELECT a.tenant_id, a.id, a.version, a.job_id, h.job_id AS holder, h.index
    FROM artifacts a
    JOIN jobs d ON d.id = a.job_id
    JOIN steps o ON o.job_id = d.id AND o.round = d.round AND o.index = a.step_index
    JOIN steps h ON h.origin_job = coalesce(o.origin_job, o.job_id)
                AND h.origin_index = coalesce(o.origin_index, o.index) AND h.job_id <> a.job_id
    WHERE a.job_id = ANY (%(ids)s)
), kept AS (
    SELECT k.id FROM jobs k WHERE k.id IN (SELECT holder FROM holders) AND k.id <> ALL (%(ids)s)
    FOR KEY SHARE SKIP LOCKED
), heirs AS (
    SELECT DISTINCT ON (tenant_id, id, version) * FROM holders WHERE holder IN (SELECT id FROM kept)
    ORDER BY tenant_id, id, version, holder DESC
), gone AS (
    DELETE FROM jobs j WHERE j.id = ANY (%(ids)s)
      AND NOT EXISTS (
          SELECT FROM jobs c WHERE c.parent_job_id = j.id
            AND c.status IN ('queued', 'planning', 'executing', 'input_required', 'responding'))
      AND NOT EXISTS (
          SELECT FROM jobs f WHERE f.forked_from = j.id
            AND f.status IN ('queued', 'planning', 'executing', 'input_required', 'responding'))
      AND NOT EXISTS (
          SELECT FROM holders o WHERE o.job_id = j.id
            AND (o.tenant_id, o.id, o.version) NOT IN (SELECT tenant_id, id, version FROM heirs))
    RETURNING j.id
), handed_over AS (
    UPDATE artifacts a SET job_id = h.holder, step_index = h.index
    FROM heirs h JOIN gone ON gone.id = h.job_id
    WHERE a.tenant_id = h.tenant_id AND a.id = h.id AND a.version = h.version
)
SELECT id FROM gone
