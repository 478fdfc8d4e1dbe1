-- The clock, and the periods that transitions and the sweeper count in, each named once.
--
-- Nothing else asks PostgreSQL for the time, so a test that replaces the first two functions moves it for all: leases,
-- deadlines, retries and what is recorded. Both are inlined where they are called, and cost nothing. Columns keep now()
-- as their default, because no table may depend on a function that is made anew.

-- When the present transaction began: by this time it is decided what is due, has run out or is alive.
CREATE FUNCTION planq_now() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT now() $$;

-- The time at this moment, which goes on within a transaction: when something began or ended.
CREATE FUNCTION planq_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT clock_timestamp() $$;

-- A new UUIDv7 (RFC 9562), which PostgreSQL makes itself from 18 on: the first 48 bits of a random UUIDv4 become the
-- milliseconds since 1970, and its version 4 becomes 7.
CREATE FUNCTION planq_new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(
        set_bit(set_bit(
            overlay(
                uuid_send(gen_random_uuid())
                PLACING substring(int8send(floor(extract(epoch FROM planq_clock()) * 1000)::bigint) FROM 3) FROM 1 FOR 6
            ), 52, 1
        ), 53, 1), 'hex'
    )::uuid
$$;

-- How long a published wake-up may stay unclaimed before the sweeper publishes it again. No lease: no worker has claimed it.
CREATE FUNCTION planq_wake_grace() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '15 seconds' $$;

-- How long after its publication a wake-up is looked at again, when it has been published `p_wakes` times: twice as long
-- each time, so that a long queue is not flooded with copies.
CREATE FUNCTION planq_wake_pause(p_wakes int) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT least(planq_wake_grace() * 2 ^ least(greatest(p_wakes - 1, 0), 10), interval '10 minutes')
$$;

-- How long a wake-up may be on its way from a queue to a claim: a second, for what waits in an empty queue has got lost.
CREATE FUNCTION planq_claim_grace() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '1 second' $$;

-- When a child job is to begin that is held back: a time that every client can read, as it cannot `infinity`.
CREATE FUNCTION planq_never() RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$ SELECT timestamptz '9999-01-01 00:00Z' $$;

-- How long a suspect waits for a worker in quarantine. After that any worker claims it, so that nothing waits for ever where
-- each worker left has a process for each step.
CREATE FUNCTION planq_quarantine() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '30 minutes' $$;

-- The least of the ids that are made at a time, or later: those of version 7 begin with their milliseconds.
CREATE FUNCTION planq_first_id(p_at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(greatest(0, floor(1000 * extract(epoch FROM p_at)))::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- Since when a tenant keeps jobs that ended in a status: the days of its configuration, else `p_seconds`. Null: for ever.
CREATE FUNCTION planq_kept_since(p_config json, p_status text, p_seconds float8) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT planq_now() - make_interval(
        secs => coalesce(86400 * (p_config->'retention'->>(p_status || '_days'))::float8, p_seconds))
$$;

-- The commit of this transaction does not wait for the disk: the server writes it within 0.6 s, or with the next commit that waits,
-- because the log is written in order. A crash of the server may lose it; the death of any other process cannot. Only what can be
-- done again without anybody noticing may be lost: the claim of a stage, and the results of `pure` steps that begin nothing but
-- `pure` steps or a stage. A plan is flushed, so an attempt that was lost and is made again has the same tool and arguments, and
-- the worker that owns the attempt now concludes it (docs/decisions.md, D107).
CREATE FUNCTION planq_flush_later() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
END $$;
