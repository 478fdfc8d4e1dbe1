-- Intake: a batch comes in, its upload ends (end_upload), and its lines are validated by the process that has taken it (take_batch).
--
--   planq_begin_batch     a batch that has no lines yet, or the one that had its idempotency key before
--   planq_hold_batch      who stores or validates its lines goes on doing so
--   planq_store_checked   lines were looked at: each is valid or invalid
--   planq_end_validation  all lines were looked at: it begins, or fails
--
-- Whoever stores lines holds the batch by `held_by` until `held_until`; what comes later than that is refused as soon as
-- another process holds it.

-- Stores a batch without lines; `p_batch` has its columns, JSON as texts. Returns it with `is_new`, or the earlier one of
-- the same idempotency key with its request's hash. An upload that was given up makes way for its repetition.
CREATE FUNCTION planq_begin_batch(p_tenant text, p_batch json, p_seconds float8)
RETURNS TABLE (id uuid, status text, request_hash text, is_new boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    g record;
BEGIN
    SELECT * INTO g FROM json_to_record(p_batch) AS a (
        id uuid, name text, metadata text, defaults text, priority text, is_strict boolean, canary int,
        idempotency_key text, request_hash text, callback_url text, budget_usd numeric, budget_tokens bigint,
        is_paused boolean, held_by uuid, discount text
    );
    DELETE FROM batches b WHERE b.tenant_id = p_tenant AND b.idempotency_key = g.idempotency_key
      AND b.status = 'uploading' AND b.held_until < planq_now();
    INSERT INTO batches AS b (
        id, tenant_id, status, name, metadata, defaults, priority, is_strict, canary, idempotency_key, request_hash,
        callback_url, budget_usd, budget_tokens, paused_at, pause_reason, held_by, held_until, discount
    ) VALUES (
        g.id, p_tenant, 'uploading', g.name, g.metadata::json, g.defaults::json, g.priority, g.is_strict, g.canary,
        g.idempotency_key, g.request_hash, g.callback_url, g.budget_usd, g.budget_tokens,
        CASE WHEN g.is_paused THEN planq_now() END, CASE WHEN g.is_paused THEN 'asked' END,
        g.held_by, planq_now() + make_interval(secs => p_seconds), g.discount
    ) ON CONFLICT (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING;
    IF FOUND THEN
        RETURN QUERY SELECT g.id, 'uploading'::text, g.request_hash, true;
    ELSE
        RETURN QUERY SELECT b.id, b.status::text, b.request_hash, false FROM batches b
        WHERE b.tenant_id = p_tenant AND b.idempotency_key = g.idempotency_key;
    END IF;
END $$;

-- Says whether a process holds a batch that stands here, which it does for so many seconds more.
CREATE FUNCTION planq_hold_batch(p_tenant text, p_batch uuid, p_holder uuid, p_status text, p_seconds float8)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE batches SET held_until = planq_now() + make_interval(secs => p_seconds)
    WHERE id = p_batch AND tenant_id = p_tenant AND status = p_status AND held_by = p_holder;
    RETURN FOUND;
END $$;

-- Stores what became of lines, one object each: the `body` (a text) of a valid one and its `parts` (a text), the `error` (a text) of another.
-- The first line with a `custom_id` has it; later ones are invalid. `p_estimate` is that of all lines up to here. Says
-- whether the process still holds the batch; else nothing is stored.
CREATE FUNCTION planq_store_checked(
    p_tenant text, p_batch uuid, p_holder uuid, p_lines json, p_estimate text, p_seconds float8
)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_looked int;
    v_valid int;
BEGIN
    IF NOT planq_hold_batch(p_tenant, p_batch, p_holder, 'validating', p_seconds) THEN
        RETURN false;
    END IF;
    WITH given AS MATERIALIZED (
        SELECT g.*, coalesce(
            (SELECT b.line FROM batch_lines b
             WHERE b.batch_id = p_batch AND b.tenant_id = p_tenant AND b.custom_id = g.custom_id),
            nullif(min(g.line) OVER (PARTITION BY g.custom_id), g.line)) AS first_line
        FROM json_to_recordset(p_lines) AS g (
            line int, custom_id text, body text, parts text, error text, reserved_usd numeric, reserved_tokens bigint
        )
    ), judged AS (
        SELECT g.line, CASE WHEN g.custom_id IS NULL OR g.first_line IS NULL THEN g.error ELSE json_build_object(
            'code', 'duplicate_custom_id', 'retryable', false,
            'message', format('line %s has the same custom_id; expected another one in each line', g.first_line),
            'details', json_build_object('custom_id', g.custom_id, 'line', g.first_line))::text END AS error,
            CASE WHEN g.first_line IS NULL THEN g.custom_id END AS custom_id,
            g.body, g.parts, g.reserved_usd, g.reserved_tokens,
            -- Each line is looked up by itself: before there are statistics, a batch is taken for a few lines, and all
            -- that are given are compared with each of them. Nobody moves a line of a batch that is held.
            (SELECT b.ctid FROM batch_lines b WHERE b.batch_id = p_batch AND b.line = g.line
                AND b.tenant_id = p_tenant AND b.status = 'received') AS place
        FROM given g
    ), stored AS (
        UPDATE batch_lines b SET
            raw = NULL, custom_id = j.custom_id, error = j.error::json,
            status = CASE WHEN j.error IS NULL THEN 'valid' ELSE 'invalid' END,
            body = CASE WHEN j.error IS NULL THEN j.body::json END,
            parts = CASE WHEN j.error IS NULL THEN j.parts::jsonb END,
            reserved_usd = CASE WHEN j.error IS NULL THEN j.reserved_usd ELSE 0 END,
            reserved_tokens = CASE WHEN j.error IS NULL THEN j.reserved_tokens ELSE 0 END
        FROM judged j WHERE b.ctid = j.place AND b.tenant_id = p_tenant
        RETURNING b.tenant_id, b.status, b.parts
    ), referred AS MATERIALIZED (
        SELECT planq_touch_payload(s.tenant_id, decode(part->>'sha256', 'hex'))
        FROM stored s CROSS JOIN LATERAL jsonb_array_elements(s.parts) part WHERE s.parts IS NOT NULL ORDER BY part->>'sha256'
    )
    SELECT count(*), count(*) FILTER (WHERE s.status = 'valid') INTO v_looked, v_valid FROM stored s
    WHERE (SELECT count(*) FROM referred) IS NOT NULL;  -- so that they are touched
    UPDATE batches SET validated_lines = validated_lines + v_looked, valid = valid + v_valid,
        invalid = invalid + v_looked - v_valid, estimate = p_estimate::json
    WHERE id = p_batch AND tenant_id = p_tenant;
    RETURN true;
END $$;

-- Ends the validation of a batch, once each line was looked at: it begins, or fails where no line is valid, or one is not
-- and it is strict; its valid lines are then cancelled. Returns where it stands, null where this process does not hold it
-- or lines are left.
CREATE FUNCTION planq_end_validation(p_tenant text, p_batch uuid, p_holder uuid) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    b batches;
    v_told text;
BEGIN
    SELECT * INTO b FROM batches
    WHERE id = p_batch AND tenant_id = p_tenant AND status = 'validating' AND held_by = p_holder FOR NO KEY UPDATE;
    IF NOT FOUND OR b.validated_lines < b.total THEN
        RETURN NULL;
    END IF;
    IF b.valid = 0 THEN
        v_told := format('none of the %s lines is valid; GET /batches/{id}/errors tells what is wrong with each', b.total);
    ELSIF b.is_strict AND b.invalid > 0 THEN
        v_told := format('%s of the %s lines are not valid, and the batch is strict; GET /batches/{id}/errors tells '
                         'what is wrong with each', b.invalid, b.total);
    END IF;
    IF v_told IS NOT NULL THEN
        UPDATE batch_lines SET status = 'cancelled', finished_at = planq_now()
        WHERE batch_id = p_batch AND tenant_id = p_tenant AND status = 'valid';
    END IF;
    UPDATE batches SET
        status = CASE WHEN v_told IS NULL THEN 'in_progress' ELSE 'failed' END,
        cancelled = CASE WHEN v_told IS NULL THEN 0 ELSE b.valid END,
        error = CASE WHEN v_told IS NOT NULL THEN json_build_object(
            'code', 'invalid_lines', 'message', v_told, 'retryable', false,
            'details', json_build_object('invalid', b.invalid, 'total', b.total)) END,
        paused_at = CASE WHEN v_told IS NULL THEN b.paused_at END,
        pause_reason = CASE WHEN v_told IS NULL THEN b.pause_reason END,
        validated_at = planq_now(), finished_at = CASE WHEN v_told IS NOT NULL THEN planq_now() END,
        held_by = NULL, held_until = NULL
    WHERE id = p_batch AND tenant_id = p_tenant
    RETURNING status INTO b.status;
    RETURN b.status;
END $$;
