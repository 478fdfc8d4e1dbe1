-- States: which statuses of a job are ends, and which are not.
--
-- Both questions are inlined where they are asked, so the planner sees the list itself, and matches the partial indexes on
-- it. Those have the list as a literal (UNFINISHED_JOB and ENDED_JOB in tables.py): no table may depend on a function that is
-- made anew.

-- Whether a job has not ended.
CREATE FUNCTION planq_is_unfinished(p_status text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_status = ANY (planq_unfinished())
$$;

-- Whether a job has ended.
CREATE FUNCTION planq_is_ended(p_status text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_status IN ('completed', 'failed', 'cancelled')
$$;

-- The statuses of a job that has not ended. A statement that looks up jobs by their ids takes this list from a variable: else it
-- may be planned, while there are few jobs, as a look at all that are unfinished, and a session keeps its plans.
CREATE FUNCTION planq_unfinished() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT '{queued,planning,executing,responding}'::text[]
$$;
