-- Adaptations: what models' servers refuse, and what is sent instead.
--
-- planq_learn_adaptation    stores or renews an adaptation, and deletes those that have expired

-- AdaptationLearned: the server accepted the adapted request. The row counts for `p_days`. At most `p_most` rows stay beside
-- it, the newest ones, because any caller may name a model. Returns whether the row is new or had expired.
CREATE FUNCTION planq_learn_adaptation(
    p_base_url text, p_model text, p_adaptation text, p_refusal text, p_days float8, p_most int
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_is_new boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('planq.adaptations'));  -- two that delete the same rows would deadlock
    DELETE FROM model_adaptations WHERE expires_at <= planq_now();
    DELETE FROM model_adaptations WHERE (base_url, model, adaptation) IN (
        SELECT base_url, model, adaptation FROM model_adaptations ORDER BY learned_at DESC OFFSET p_most);
    INSERT INTO model_adaptations (base_url, model, adaptation, refusal, learned_at, expires_at)
    VALUES (p_base_url, p_model, p_adaptation, p_refusal, planq_now(), planq_now() + make_interval(secs => p_days * 86400))
    ON CONFLICT (base_url, model, adaptation) DO UPDATE
    SET refusal = excluded.refusal, learned_at = excluded.learned_at, expires_at = excluded.expires_at
    RETURNING xmax = 0 INTO v_is_new;
    RETURN v_is_new;
END
$$;
