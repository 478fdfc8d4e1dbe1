-- Retention: what has been kept for long enough and is needed by nobody (queries/retention.sql removes it).
--
--   planq_purgeable_jobs   jobs that have ended
--   planq_old_versions     versions of agents and skills
--   planq_delete_parts     what is deleted with jobs, where no foreign key does it

-- Jobs of a tenant in one status and of one strategy that ended before `p_since`, in the order of their ids, behind `p_after`.
-- Ids sort by the time they were made and a job ends after that, so only the old end of ix_jobs_status_listing is looked
-- at: nothing at all when nothing is due. A child job stays until its parent is gone, a turn until it is settled, the job of
-- a line until its batch is gone. Inlined where it is called.
CREATE FUNCTION planq_purgeable_jobs(
    p_tenant text, p_status text, p_strategy text, p_since timestamptz, p_after uuid, p_limit bigint
) RETURNS TABLE (id uuid, finished_at timestamptz) LANGUAGE sql STABLE AS $$
    SELECT d.id, d.finished_at FROM jobs d
    WHERE d.tenant_id = p_tenant AND d.status = p_status AND d.strategy = p_strategy
      AND d.id > p_after AND d.id < planq_first_id(p_since) AND d.finished_at < p_since
      AND (SELECT p.id FROM jobs p WHERE p.id = d.parent_job_id) IS NULL
      AND (d.conversation_id IS NULL OR d.parent_job_id IS NOT NULL OR d.is_joined)
      AND (d.batch_id IS NULL OR NOT EXISTS (SELECT FROM batches b WHERE b.id = d.batch_id))
      AND NOT EXISTS (
          SELECT FROM jobs c WHERE c.parent_job_id = d.id
            AND planq_is_unfinished(c.status))
      AND NOT EXISTS (
          SELECT FROM jobs f WHERE f.forked_from = d.id
            AND planq_is_unfinished(f.status))
    ORDER BY d.id LIMIT p_limit
$$;

-- Versions of a tenant's agents and skills after which another one was stored before `p_since`, and which no job pins, nor
-- a conversation keeps; at most `p_limit` of either. The newest version of a name always stays: its number is given once.
-- Who pins takes the newest version, but for a fork, whose source stays until it is a job itself. The lines of a batch, and a
-- message that merges, pin for jobs that are still to be made: what a later version replaced after the oldest of these was
-- stored stays as well.
CREATE FUNCTION planq_old_versions(p_tenant text, p_since timestamptz, p_limit bigint)
RETURNS TABLE (kind text, name text, version int) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE until AS (
        SELECT CASE WHEN p_since IS NOT NULL THEN least(p_since,
            (SELECT b.created_at FROM batches b WHERE b.tenant_id = p_tenant ORDER BY b.id LIMIT 1),
            (SELECT min(m.created_at) FROM conversation_messages m WHERE m.tenant_id = p_tenant AND m.status = 'merging')
        ) END AS at
    ), agents_left AS (
        SELECT a.name, a.version FROM agents a
        WHERE a.tenant_id = p_tenant AND (
            SELECT n.created_at FROM agents n WHERE n.tenant_id = p_tenant AND n.name = a.name AND n.version > a.version
            ORDER BY n.version LIMIT 1) < (SELECT at FROM until)
    ), skills_left AS (
        SELECT s.name, s.version FROM skills s
        WHERE s.tenant_id = p_tenant AND (
            SELECT n.created_at FROM skills n WHERE n.tenant_id = p_tenant AND n.name = s.name AND n.version > s.version
            ORDER BY n.version LIMIT 1) < (SELECT at FROM until)
    ), pins AS (  -- each combination once, by as many looks into ix_jobs_pins
        (SELECT j.agent_name, coalesce(j.agent_version, 0) AS agent_version, coalesce(j.skill_versions, '{}') AS skill_versions
         FROM jobs j WHERE j.tenant_id = p_tenant AND j.agent_name IS NOT NULL AND EXISTS (SELECT FROM skills_left)
         ORDER BY 1, 2, 3 LIMIT 1)
        UNION ALL
        SELECT n.* FROM pins p CROSS JOIN LATERAL (
            SELECT j.agent_name, coalesce(j.agent_version, 0), coalesce(j.skill_versions, '{}')
            FROM jobs j WHERE j.tenant_id = p_tenant AND j.agent_name IS NOT NULL
              AND (j.agent_name, coalesce(j.agent_version, 0), coalesce(j.skill_versions, '{}'))
                  > (p.agent_name, p.agent_version, p.skill_versions)
            ORDER BY 1, 2, 3 LIMIT 1) n
    ), pinned_skills AS MATERIALIZED (
        SELECT l.name, p.skill_versions[l.place] AS version FROM pins p
        JOIN agents a ON a.tenant_id = p_tenant AND a.name = p.agent_name AND a.version = p.agent_version
        CROSS JOIN unnest(a.skills) WITH ORDINALITY AS l (name, place)
    )
    (SELECT 'agent', a.name, a.version FROM agents_left a
     WHERE NOT EXISTS (
         SELECT FROM jobs j WHERE j.tenant_id = p_tenant AND j.agent_name = a.name AND coalesce(j.agent_version, 0) = a.version)
       AND NOT EXISTS (
         SELECT FROM conversation_agents k WHERE k.tenant_id = p_tenant AND k.agent = a.name AND k.version = a.version)
     LIMIT p_limit)
    UNION ALL
    (SELECT 'skill', s.name, s.version FROM skills_left s
     WHERE NOT EXISTS (SELECT FROM pinned_skills p WHERE p.name = s.name AND p.version = s.version)
     LIMIT p_limit)
$$;

-- Deletes the steps, plans, events and model calls of deleted jobs. A foreign key would read and lock the job for each of these
-- rows, 17 times for a job of three steps. Whoever inserts one holds its job, or its step and inserts an event: steps are deleted
-- before events, so that this waits for such a commit, and then sees its event.
CREATE FUNCTION planq_delete_parts() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_jobs uuid[] := ARRAY(SELECT id FROM deleted);
BEGIN
    DELETE FROM steps WHERE job_id = ANY (v_jobs);
    DELETE FROM plans WHERE job_id = ANY (v_jobs);
    DELETE FROM events WHERE job_id = ANY (v_jobs);
    DELETE FROM model_calls WHERE job_id = ANY (v_jobs);
    RETURN NULL;
END $$;

CREATE TRIGGER planq_delete_parts AFTER DELETE ON jobs REFERENCING OLD TABLE AS deleted
FOR EACH STATEMENT EXECUTE FUNCTION planq_delete_parts();
