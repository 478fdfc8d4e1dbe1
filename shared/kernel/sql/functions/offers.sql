-- Offers: which worker can run which step, and what becomes of a step that none can run.
--
-- planq_can_run          whether a worker may claim a step: it has the tool, as the plan was checked against it if anybody has
-- planq_is_offered       whether any live worker of a pool has a tool
-- planq_hand_on_steps    what a worker may not claim: it is for others, or put aside
--
-- A step that is put aside has `tool_away_since`, and `wake_at` in the year 9999: it is ready and may be claimed, and nobody
-- publishes it until a worker has its tool (wake_offered in queries/sweep.sql). A step without a `tool_digest` needs no tool.

-- A worker of which no tool is known may claim everything, and one whose tool has other schemas than the plan was checked
-- against only where no live worker of the pool has that one.
CREATE FUNCTION planq_can_run(p_worker uuid, p_pool text, p_tool text, p_digest text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_digest text;
BEGIN
    IF p_digest IS NULL THEN
        RETURN true;
    END IF;
    SELECT digest INTO v_digest FROM worker_tools WHERE worker_id = p_worker AND name = p_tool;
    IF v_digest = p_digest THEN
        RETURN true;
    ELSIF v_digest IS NULL THEN
        RETURN NOT EXISTS (SELECT FROM worker_tools WHERE worker_id = p_worker);
    END IF;
    RETURN NOT EXISTS (
        SELECT FROM worker_tools t JOIN workers w ON w.id = t.worker_id
        WHERE t.name = p_tool AND t.digest = p_digest AND p_pool = ANY (w.pools)
          AND w.heartbeat_at > planq_now() - make_interval(secs => w.lease_seconds));
END $$;

-- A worker of which no tool is known counts as one that has it.
CREATE FUNCTION planq_is_offered(p_pool text, p_tool text, p_digest text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN p_digest IS NULL OR EXISTS (
        SELECT FROM worker_tools t JOIN workers w ON w.id = t.worker_id
        WHERE t.name = p_tool AND p_pool = ANY (w.pools)
          AND w.heartbeat_at > planq_now() - make_interval(secs => w.lease_seconds)
    ) OR EXISTS (
        SELECT FROM workers w
        WHERE p_pool = ANY (w.pools) AND w.heartbeat_at > planq_now() - make_interval(secs => w.lease_seconds)
          AND NOT EXISTS (SELECT FROM worker_tools t WHERE t.worker_id = w.id));
END $$;

-- StepPutAside: of the steps that a worker could not claim, puts those aside whose tool no live worker has. Returns the indices
-- of those that others can run: their wake-ups are to be published again.
CREATE FUNCTION planq_hand_on_steps(p_job uuid, p_round int, p_indices int[], p_worker uuid) RETURNS TABLE (index int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_ready CONSTANT text[] := planq_step_ready();
    s record;
BEGIN
    FOR s IN
        SELECT index, tenant_id, pool, tool_name, tool_digest FROM steps
        WHERE job_id = p_job AND round = p_round AND index = ANY (p_indices) AND status = ANY (v_ready)
          AND run_at <= planq_now() AND wake_at IS NOT NULL
        ORDER BY index
    LOOP
        IF planq_is_offered(s.pool, s.tool_name, s.tool_digest) THEN
            IF NOT planq_can_run(p_worker, s.pool, s.tool_name, s.tool_digest) THEN
                index := s.index;
                RETURN NEXT;
            END IF;
            CONTINUE;
        END IF;
        UPDATE steps SET tool_away_since = coalesce(tool_away_since, planq_now()), wake_at = planq_never(), wakes = 0
        WHERE job_id = p_job AND round = p_round AND index = s.index AND status = ANY (v_ready) AND wake_at < planq_never();
        IF FOUND THEN
            PERFORM planq_append_event(s.tenant_id, p_job, 'step_awaits_tool', json_build_object(
                'round', p_round, 'index', s.index, 'tool_name', s.tool_name, 'pool', s.pool));
        END IF;
    END LOOP;
END $$;
