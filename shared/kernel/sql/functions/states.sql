-- States: which statuses of jobs and steps belong together. No other file lists them.
--
-- All are inlined where they are called, so the planner sees the list itself, and matches the partial indexes on it. Those
-- have the list as a literal (shared/kernel/tables.py): no table may depend on a function that is made anew.

-- The format of a job's stored documents (plan, limits, loop block) that this release writes, and the newest that it reads. A release
-- that changes one so that older ones cannot read it raises this. Their workers leave such jobs to its own.
CREATE FUNCTION planq_format() RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT 1 $$;

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

-- The statuses of a step, by what it needs to move on. A transition names a single one only to write it.
--   pending    waits for other steps of its round
--   ready      may be claimed, unless it is held
--   running    is owned by an attempt
--   waiting    waits for a timer, a person or child jobs, and no attempt owns it
--   ended      moves on only where a person resumes its job
--   unstarted  has not begun, so it can be skipped
--   idle       has not ended, and no attempt owns it
--   movable    has not ended, and waits for no other step
CREATE FUNCTION planq_step_pending() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$ SELECT '{pending}'::text[] $$;
CREATE FUNCTION planq_step_ready() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$ SELECT '{ready}'::text[] $$;
CREATE FUNCTION planq_step_running() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$ SELECT '{running}'::text[] $$;
CREATE FUNCTION planq_step_waiting() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$ SELECT '{waiting}'::text[] $$;
CREATE FUNCTION planq_step_ended() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT '{succeeded,failed,skipped,cancelled}'::text[]
$$;
CREATE FUNCTION planq_step_unstarted() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT planq_step_pending() || planq_step_ready()
$$;
CREATE FUNCTION planq_step_idle() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT planq_step_unstarted() || planq_step_waiting()
$$;
CREATE FUNCTION planq_step_movable() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT planq_step_ready() || planq_step_running() || planq_step_waiting()
$$;
CREATE FUNCTION planq_step_unfinished() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT planq_step_pending() || planq_step_movable()
$$;
