-- Rates: how many messages a tenant may send within a sliding window, where no Valkey or Redis counts them.
--
-- planq_admit_message   a message is let in, and counts in both windows, or it is refused and counts in none
--
-- `rate_marks` has a row for each message that counts. Those of a tenant are numbered without a gap, and so are those of
-- each of its channels: how many count is seen from the first and the last number, however many there are.

-- Lets a message in or refuses it; all of one tenant take turns, and others do not wait for them. The marks that have left
-- the window go first, with what a clock that was put back since has left in the future.
-- Returns one row (allowed, now, and of each window how many messages count and when that frees a place: a full window's
-- next one, or when the oldest message leaves), times as Unix times.
CREATE FUNCTION planq_admit_message(
    p_tenant text, p_channel text, p_tenant_limit int, p_channel_limit int, p_window interval
)
RETURNS TABLE (allowed boolean, now float8, used int, frees_at float8, channel_used int, channel_frees_at float8)
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_first bigint;
    v_last bigint;
    v_channel_first bigint;
    v_channel_last bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('planq.rates'), hashtext(p_tenant));
    v_now := planq_clock();  -- after the turn has come: marks are in the order of their times
    SELECT number INTO v_first FROM rate_marks
    WHERE tenant_id = p_tenant AND let_in_at > v_now - p_window AND let_in_at <= v_now ORDER BY number LIMIT 1;
    DELETE FROM rate_marks WHERE tenant_id = p_tenant AND (v_first IS NULL OR number < v_first);
    SELECT max(number) INTO v_last FROM rate_marks WHERE tenant_id = p_tenant;
    SELECT min(channel_number), max(channel_number) INTO v_channel_first, v_channel_last FROM rate_marks
    WHERE tenant_id = p_tenant AND channel = p_channel;
    used := coalesce(v_last - v_first + 1, 0);
    channel_used := coalesce(v_channel_last - v_channel_first + 1, 0);
    allowed := used < p_tenant_limit AND channel_used < p_channel_limit;
    IF allowed THEN
        v_last := coalesce(v_last, 0) + 1;
        v_channel_last := coalesce(v_channel_last, 0) + 1;
        INSERT INTO rate_marks (tenant_id, number, channel, channel_number, let_in_at)
        VALUES (p_tenant, v_last, p_channel, v_channel_last, v_now);
        used := used + 1;
        channel_used := channel_used + 1;
        v_first := coalesce(v_first, v_last);
        v_channel_first := coalesce(v_channel_first, v_channel_last);
    END IF;
    now := extract(epoch FROM v_now);
    SELECT extract(epoch FROM let_in_at + p_window) INTO frees_at FROM rate_marks
    WHERE tenant_id = p_tenant AND number = v_first + greatest(used - p_tenant_limit, 0);
    SELECT extract(epoch FROM let_in_at + p_window) INTO channel_frees_at FROM rate_marks
    WHERE tenant_id = p_tenant AND channel = p_channel
      AND channel_number = v_channel_first + greatest(channel_used - p_channel_limit, 0);
    frees_at := coalesce(frees_at, now);
    channel_frees_at := coalesce(channel_frees_at, now);
    RETURN NEXT;
END $$;
