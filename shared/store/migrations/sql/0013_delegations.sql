-- Steps that delegate have a time of their own, with all that they delegate (release 0013).

-- As in 0005, and within what the step gets: its child jobs are as old as the delegation.
CREATE OR REPLACE FUNCTION planq_begin_next(j jobs, s steps) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_left CONSTANT float8 := planq_time_left(j.deadline, j.expires_at, j.paused_at);
    v_next int := s.next_child;
    v_child uuid;
BEGIN
    WHILE v_child IS NULL AND v_next < cardinality(s.children) LOOP
        v_next := v_next + 1;
        UPDATE jobs c SET run_at = now(), wake_at = now() + planq_wake_grace(), wakes = 0,
            limits = planq_child_limits(c.limits, l.seconds),
            expires_at = coalesce(c.paused_at, now()) + make_interval(secs => greatest(l.seconds, 0.001))
        FROM (
            SELECT o.id, least((o.limits->>'job_timeout_seconds')::float8, v_left,
                s.timeout_seconds - extract(epoch FROM coalesce(o.paused_at, now()) - o.created_at)::float8) AS seconds
            FROM jobs o WHERE o.id = s.children[v_next]
        ) l
        WHERE c.id = l.id AND c.status = 'queued' AND c.run_at = planq_never()
        RETURNING c.id INTO v_child;
    END LOOP;
    UPDATE steps SET next_child = v_next WHERE job_id = s.job_id AND round = s.round AND index = s.index;
    RETURN v_child;
END $$;
