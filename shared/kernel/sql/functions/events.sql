-- Events: what has happened to a job, appended in the commit of the change that it reports.
--
-- A transition of one job calls planq_append_event; one of many jobs inserts the events beside the rows that it moves.

-- Appends one event; called inside the transition that it reports.
CREATE FUNCTION planq_append_event(p_tenant text, p_job uuid, p_kind text, p_data json) RETURNS void LANGUAGE sql AS $$
    INSERT INTO events (tenant_id, job_id, kind, data) VALUES (p_tenant, p_job, p_kind, p_data)
$$;

-- The data of the event of a stage and of a step that was claimed, and of a step that has succeeded. Most events are of these kinds, and what
-- json_build_object writes is a fifth blanks, so both are put together as texts.
CREATE FUNCTION planq_stage_told(p_stage text, p_attempt int) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT ('{"stage":"' || p_stage || '","attempt":' || p_attempt::text || '}')::json
$$;

CREATE FUNCTION planq_start_told(p_round int, p_index int, p_attempt int, p_tool_name text, p_worker uuid) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT ('{"round":' || p_round::text || ',"index":' || p_index::text || ',"attempt":' || p_attempt::text
        || ',"tool_name":' || to_json(p_tool_name)::text || ',"worker_id":' || coalesce(to_json(p_worker)::text, 'null') || '}')::json
$$;

CREATE FUNCTION planq_success_told(p_round int, p_index int, p_attempt int) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT ('{"round":' || p_round::text || ',"index":' || p_index::text || ',"attempt":' || p_attempt::text || ',"error":null}')::json
$$;

-- What a job that has ended came to (Outcome): with an error one that has completed answers from what there was, or its answer
-- was cut off (AnswerIncomplete). That is seen in the error's text, for an error may hold \u0000. Null before the end.
CREATE FUNCTION planq_outcome(p_status text, p_error json) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_status <> 'completed' THEN CASE WHEN p_status IN ('failed', 'cancelled') THEN p_status END
                WHEN p_error IS NULL THEN 'succeeded'
                WHEN p_error::text ~ '^\{"code": ?"answer_incomplete"' THEN 'incomplete' ELSE 'partial' END
$$;

-- Counts a job that ends, in the sequence of its outcome: commits do not wait for each other there, and no row is written.
CREATE FUNCTION planq_count_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM nextval(('jobs_ended_' || planq_outcome(NEW.status, NEW.error))::regclass);
    RETURN NULL;
END $$;

-- Deferred: what is undone has ended nothing, and nobody takes back what a sequence has counted.
CREATE CONSTRAINT TRIGGER planq_count_end AFTER UPDATE OF status ON jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN (NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL) EXECUTE FUNCTION planq_count_end();

-- The data of the event of an end: the outcome, and what stands in the error. An error may hold \u0000, so it is put together
-- as text.
CREATE FUNCTION planq_end_told(p_status text, p_error json) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT (format('{"outcome":"%s"', planq_outcome(p_status, p_error)) || coalesce(',' || substr(p_error::text, 2), '}'))::json
$$;

-- The error of the first step of a job's plan that has failed for good, with its place: {step, tool_name, ...}; null where none
-- has. What was known when the plan was accepted is no failure, and a chained tool has a round, and a place for its error, of
-- its own.
CREATE FUNCTION planq_first_failure(p_job uuid) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT (format('{"step":%s,"tool_name":%s,', s.index, to_json(s.tool_name)) || substr(s.error::text, 2))::json
            FROM steps s WHERE s.job_id = p_job AND s.round = 0 AND s.status = 'failed' AND NOT s.is_known
            ORDER BY s.index LIMIT 1);
END $$;

-- How the data of an event about a step begins, by which such events are found: they may hold \u0000, and nothing of that can
-- be taken apart. The rest is an object that is not empty.
CREATE FUNCTION planq_place(p_round int, p_index int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT format('{"round":%s,"index":%s,', p_round, p_index)
$$;

-- Appends an event about a step, `p_data` beside its place, where the job has not ended and there is none of its kind about
-- that step. Says whether it did. The job is locked first, so that a repeat waits for what it repeats.
CREATE FUNCTION planq_note_step(p_job uuid, p_round int, p_index int, p_kind text, p_data json) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_tenant text;
BEGIN
    SELECT tenant_id INTO v_tenant FROM jobs WHERE id = p_job AND finished_at IS NULL FOR NO KEY UPDATE;
    IF NOT FOUND OR EXISTS (
        SELECT FROM events
        WHERE job_id = p_job AND kind = p_kind AND starts_with(data::text, planq_place(p_round, p_index))
    ) THEN
        RETURN false;
    END IF;
    PERFORM planq_append_event(v_tenant, p_job, p_kind,
                               (planq_place(p_round, p_index) || substr(p_data::text, 2))::json);
    RETURN true;
END $$;
