-- Schedule: a time has come, and a job is made.
--
-- planq_fire_schedule   makes it, as a turn where the schedule was asked for in a conversation
--
-- All jobs of a schedule share its budget: each gets what is left after the one before it.
--
-- Lock order: the row of the conversation, then jobs as everywhere, then the schedule. No transition of a job asks for a schedule.

-- ScheduleFired: makes the job of a due schedule, and moves the schedule on, in one commit. `p_given` is a `planq_firing`; `p_next_at` is
-- null where the schedule is over. An agent has its own strategy, and its own loop block within the policy of the job that asked.
-- The job of a reminder, which was asked for in a conversation, is a turn there, for the person of the reminder: it waits for the
-- turns before it, whatever the policy. Returns {outcome, begun: [{id, agent, tenant}, … of jobs to be woken]}; null where it was
-- fired already, or its agent has just got another version. With the outcome `closed` or `gone` nothing is stored, because the
-- conversation takes no messages.
CREATE FUNCTION planq_fire_schedule(
    p_tenant text, p_schedule uuid, p_due_at timestamptz, p_next_at timestamptz, p_given json
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    g CONSTANT planq_firing := json_populate_record(NULL::planq_firing, p_given);
    s schedules;
    c conversations;
    m planq_message;
    v_job json;
    v_fired json;
BEGIN
    SELECT * INTO c FROM conversations WHERE tenant_id = p_tenant AND id = (
        SELECT o.conversation_id FROM schedules o WHERE o.id = p_schedule AND o.tenant_id = p_tenant) FOR NO KEY UPDATE;
    -- Who fires a reminder holds the conversation, so the schedule is looked at anew.
    SELECT * INTO s FROM schedules WHERE id = p_schedule AND tenant_id = p_tenant AND is_active AND next_at = p_due_at;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF s.conversation_id IS NOT NULL AND coalesce(c.is_closed, true) THEN
        RETURN json_build_object('outcome', CASE WHEN c.id IS NULL THEN 'gone' ELSE 'closed' END);
    END IF;
    s.budget := planq_budget_left(s.budget, s.last_job_id);
    v_job := json_build_object('id', g.job_id, 'tenant_id', s.tenant_id, 'strategy', coalesce(g.strategy, s.strategy),
        'model', g.model, 'limits', s.limits::text, 'tools', to_json(s.tools), 'metadata', g.metadata, 'input', s.input,
        'user_id', s.user_id, 'trace_id', g.trace_id, 'agent_name', s.agent, 'agent_version', g.agent_version,
        'skill_versions', to_json(g.skill_versions), 'budget', s.budget::text, 'priority', s.priority,
        'origin', json_strip_nulls(json_build_object('conversation_id', s.conversation_id, 'schedule', s.id)),
        'loop_block', CASE WHEN s.agent IS NULL THEN s.loop_block::text ELSE g.loop_block END,
        'expires_seconds', least((s.limits->>'queue_timeout_seconds')::float8, (s.limits->>'job_timeout_seconds')::float8));
    IF s.conversation_id IS NULL THEN
        PERFORM planq_submit_jobs(json_build_array(v_job), NULL, NULL);
        v_fired := json_build_object('outcome', 'accepted', 'begun', json_build_array(
            json_build_object('id', g.job_id, 'agent', s.agent, 'tenant', s.tenant_id)));
    ELSE
        m.id := g.message_id;
        m.conversation_id := c.id;
        m.tenant_id := c.tenant_id;
        m.channel := c.channel;
        m.thread := c.thread;
        m.user_id := s.user_id;
        m.text := s.input;
        m.metadata := g.metadata;
        m.policy := 'queue';
        m.debounce_seconds := 0;
        m.debounce_most_seconds := 0;
        m.may_answer := false;
        m.agent := s.agent;
        m.agent_version := g.agent_version;
        m.named_agent := s.agent;
        m.names_version := false;
        m.is_job := true;
        m.patient := true;
        v_fired := planq_receive_message(m, v_job);
        IF v_fired->>'outcome' <> 'accepted' THEN
            RETURN NULL;
        END IF;
    END IF;
    UPDATE schedules SET budget = s.budget, next_at = p_next_at, is_active = p_next_at IS NOT NULL, last_job_id = g.job_id
    WHERE id = p_schedule AND tenant_id = p_tenant AND is_active AND next_at = p_due_at;
    IF NOT FOUND THEN  -- it was fired or deleted just now: nothing of this has happened
        RAISE SQLSTATE '40001';
    END IF;
    RETURN v_fired;
END $$;
