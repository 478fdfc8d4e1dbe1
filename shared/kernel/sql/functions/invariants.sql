-- Invariants: what holds for every job and step after every statement. A statement that would break one fails with its
-- name (SQLSTATE P0004, assert_failure), and nothing of its transaction is stored.
--
-- These are triggers and no check constraints: PostgreSQL parses all constraints of a table again for each statement that
-- changes it, which cost a job of five steps 18 % more; plpgsql keeps its expressions for the session, which costs less
-- than the constraints on single columns did before. queries/broken_invariants.sql asks for what several rows have to hold.

CREATE FUNCTION planq_check_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE NEW.status
        WHEN 'queued', 'planning', 'responding' THEN
            ASSERT NEW.open_steps = 0 AND NEW.open_questions = 0 AND NEW.held_steps = 0, 'stage_with_open_steps';
            IF NEW.stage_worker IS NULL THEN
                ASSERT NEW.wake_at IS NOT NULL, 'stage_without_cause';
            ELSE
                ASSERT NEW.status <> 'queued', 'stage_held_in_vain';
                ASSERT NEW.deadline IS NOT NULL, 'without_deadline';
            END IF;
        WHEN 'executing' THEN
            ASSERT NEW.open_steps > 0, 'executing_without_steps';
            ASSERT NEW.held_steps >= 0 AND coalesce(NEW.out_steps >= 0, NEW.held_steps = 0), 'window_differs';
            ASSERT NEW.open_questions >= 0, 'questions_differ';
            -- The sweeper gives back only what is a stage: any other job would hold its worker for ever.
            ASSERT NEW.stage_worker IS NULL, 'stage_held_in_vain';
            ASSERT NEW.deadline IS NOT NULL, 'without_deadline';
        ELSE
            ASSERT NEW.open_steps = 0 AND NEW.open_questions = 0 AND NEW.held_steps = 0, 'ended_with_open_steps';
            ASSERT NEW.stage_worker IS NULL, 'stage_held_in_vain';
            ASSERT NEW.paused_at IS NULL, 'paused_after_its_end';
    END CASE;
    ASSERT (NEW.finished_at IS NOT NULL) = planq_is_ended(NEW.status), 'end_without_time';
    RETURN NULL;
END $$;

CREATE FUNCTION planq_check_step() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE NEW.status
        WHEN 'pending' THEN
            ASSERT NEW.pending > 0, 'pending_differs';
        WHEN 'ready' THEN
            ASSERT NEW.pending = 0, 'pending_differs';
        WHEN 'running' THEN
            ASSERT NEW.pending = 0, 'pending_differs';
            ASSERT NEW.attempt > 0, 'running_without_attempt';
            ASSERT NEW.deadline IS NOT NULL, 'without_deadline';
        WHEN 'waiting' THEN
            ASSERT NEW.wake_at IS NOT NULL OR (NEW.waits_for IS NOT NULL AND NOT NEW.joined), 'step_without_cause';
            ASSERT coalesce(NEW.open_children BETWEEN 0 AND cardinality(NEW.children), true), 'open_children_differ';
        ELSE
            NULL;
    END CASE;
    ASSERT (NEW.finished_at IS NOT NULL) = (NEW.status = ANY (planq_step_ended())), 'end_without_time';
    ASSERT NEW.question_id IS NULL OR NEW.status = ANY (planq_step_waiting()), 'question_without_wait';
    ASSERT NOT NEW.joined OR (NEW.children IS NOT NULL AND NEW.status <> ALL (planq_step_pending())), 'joined_without_children';
    -- A tool that cannot find out would be called, or given up, for nothing.
    ASSERT NOT NEW.in_doubt OR (NEW.effect = 'unsafe' AND NEW.recovery = 'find_out'), 'in_doubt_in_vain';
    ASSERT NEW.reused_job IS NULL OR (NEW.status = 'succeeded' AND NEW.attempt = 0), 'reused_and_run';
    RETURN NULL;
END $$;

CREATE TRIGGER planq_invariants AFTER INSERT OR UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION planq_check_job();
CREATE TRIGGER planq_invariants AFTER INSERT OR UPDATE ON steps FOR EACH ROW EXECUTE FUNCTION planq_check_step();
