-- Events: what has happened to a job, appended in the commit of the change that it reports.
--
-- A transition of one job calls planq_append_event; one of many jobs gathers `planq_event`s and stores them with planq_append_events.

-- Appends one event; called inside the transition that it reports.
CREATE FUNCTION planq_append_event(p_tenant text, p_job uuid, p_kind text, p_data json) RETURNS void LANGUAGE sql AS $$
    INSERT INTO events (tenant_id, job_id, kind, data) VALUES (p_tenant, p_job, p_kind, p_data)
$$;

-- Appends the events that a transition of many jobs has gathered.
CREATE FUNCTION planq_append_events(p_events planq_event[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (tenant_id, job_id, kind, data) SELECT e.tenant, e.job, e.kind, e.data FROM unnest(p_events) e;
END $$;
