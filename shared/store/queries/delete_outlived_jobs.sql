-- Deletes jobs that this transaction has locked, with everything that hangs on them; a child or a fork that was made
-- after they were found keeps its job (a statement of its own sees it).
DELETE FROM jobs j WHERE j.id = ANY (%(ids)s)
  AND NOT EXISTS (
      SELECT FROM jobs c WHERE c.parent_job_id = j.id
        AND c.status IN ('queued', 'planning', 'executing', 'input_required', 'responding'))
  AND NOT EXISTS (
      SELECT FROM jobs f WHERE f.forked_from = j.id
        AND f.status IN ('queued', 'planning', 'executing', 'input_required', 'responding'))
