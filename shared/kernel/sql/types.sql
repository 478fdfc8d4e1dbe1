-- The SQL of the kernel. Every function is defined once, in the file of its idea in functions/:
--
--   submit    a request becomes a job                   wait        a step waits for a timer, or for a person
--   claim     a worker takes a stage or a step          children    a step waits for child jobs
--   plan      a plan is accepted, with its steps        budget      what a tree of jobs may use up together
--   finish    an attempt at a step ends                 control     people cancel, pause and resume
--   stage     the answer ends a job, or a stage waits   sweep       what nobody else moves
--   close     the last ended step ends its round        unlock      an ended step makes those that wait for it ready
--   ends      the end of a job, for those that wait     outcome     what a step leaves beside its row
--   load      maximum of a job and of batches at once   offers      which worker can run which step
--   events    what has happened                         progress    what running steps report
--   suspects  what was in flight in a lost worker       invariants  what a row holds in each state
--   states    sets of statuses                          clock       the time, and all periods
--
-- A subject has its functions in its own folder (shared/subjects/*/sql). The records below are for all of them.
--
-- A job moves submit -> claim -> plan -> (claim -> finish)* -> claim -> stage. `planq migrate` makes all of them anew when
-- a file has changed; queries/ holds the single statements that Python runs by name.
--
-- Rows are locked in one order, so that nobody waits in a circle: conversations and batches, by their ids; jobs by theirs, which
-- is from the outermost one down; the steps of a job in plan order; then what hangs on them. A reservation takes its tree's
-- row in `budgets` after the root job and before its own claim, and nobody else asks for one. Several payloads are not locked
-- in one transaction, as long as they were touched lately (planq_touch_payload).

-- The records that functions pass to one another. They hold nothing between transactions: no table has a column of them.

-- Model calls that a job has made, as planq_insert_calls stores them.
CREATE TYPE planq_called AS (tenant text, job uuid, round int, calls json);

-- What model calls have used. `usd` is null where nobody knows a price.
CREATE TYPE planq_spent AS (calls int, input bigint, output bigint, read bigint, write bigint, usd numeric);

-- The rounds of a job that its worker has: the first `rounds`, the last of which has the steps from `index` on, and ended at `ended`.
CREATE TYPE planq_cached AS (rounds int, index int, ended timestamptz);

-- A step, of the item `n`, and how many of the steps that it waits for have just ended.
CREATE TYPE planq_step_ref AS (n int, job uuid, round int, index int, awaited int);

-- How one attempt at a step ended, and what its worker takes over next. It has succeeded unless there is an `error`.
-- A large output comes as the `hash` of its payload (hexadecimal), its size in `bytes` and its `excerpts` instead of
-- `output`; planq_keep_outcome says what `artifact` holds. A failed step is tried again after `retry_in` seconds, `in_doubt`
-- where the attempt may have taken effect; `lost` counts a loss of its worker against it. One that is
-- `unoffered` has not begun: it waits for its tool. A `worker` that sends it must own the attempt. JSON comes as texts that hold
-- it, because functions that take JSON apart refuse \u0000.
CREATE TYPE planq_outcome AS (
    n int, job uuid, round int, index int, attempt int, output text, hash text, bytes bigint, excerpts text,
    artifact text, unit json, unit_seconds float8, error text, retry_in float8, in_doubt boolean, anew boolean, lost boolean,
    take_steps int, take_stage boolean, cached planq_cached, unoffered boolean, is_wait boolean, worker uuid
);

-- A step that was claimed.
CREATE TYPE planq_taken AS (n int, job uuid, index int, effect text, claim json);

-- A stage that was claimed.
CREATE TYPE planq_taken_stage AS (n int, claim json, attempt int);

-- A plan that was accepted: where its job stands, how many steps may be out of one with a window, and what rare plans need.
CREATE TYPE planq_accepted AS (
    n int, job uuid, tenant text, round int, steps json, status text, attempt int, is_free boolean, places int,
    ends boolean, takes_stage boolean, reuses boolean, copies boolean, made json, cached planq_cached
);

-- A job whose row is locked while steps of it end. Its window has `room` for more, null without one, while `held` steps wait.
CREATE TYPE planq_locked AS (job uuid, round int, stage_attempt int, room int, held int, is_free boolean);

-- A step that has succeeded, as number `place` of its unit.
CREATE TYPE planq_succeeded AS (
    n int, job uuid, round int, index int, place int, dependents int[], finished_at timestamptz, was_out boolean
);

-- For whom steps are unlocked: the item `n` takes up to so many over, and the window of its job has `room` and `held` steps.
CREATE TYPE planq_room AS (n int, job uuid, takes int, room int, held int);

-- A step for which `awaited` ones have ended: it `may_begin`, or waits for others. It is `held` (1), or was held before (-1). One that may
-- begin, and was neither claimed nor held, is to be published.
CREATE TYPE planq_unlocked AS (
    n int, job uuid, index int, awaited int, may_begin boolean, pool text, tool_name text, effect text, claim json, held int
);

-- What is counted off a job: steps that have ended, of which some `failed`; how many more of the others are out and held. Whoever
-- ends the round `takes_stage`, having the rounds `cached`.
CREATE TYPE planq_closing AS (
    n int, job uuid, closed int, failed int, "out" int, held int, takes_stage boolean, cached planq_cached
);

-- Where a job stands after that, and the stage that was taken over.
CREATE TYPE planq_closed AS (n int, job uuid, status text, claim json, attempt int);

-- A wake-up that is to be published: of a stage, or of a step.
CREATE TYPE planq_due_wake AS (
    kind text, job_id uuid, round int, index int, pool text, tool_name text, attempt int, priority text, agent_name text,
    root_job_id uuid, tenant_id text
);

-- What becomes of a message in its conversation: its `outcome`; the `job` that takes it in, null for one of its own; the
-- `turn` of that job where it has one; the `round` of it in which the message came, where it waits to be taken in. Its own
-- job `begins`, or is held; it `interrupts` the one that runs.
CREATE TYPE planq_arrival AS (outcome text, job uuid, turn int, round int, begins boolean, interrupts boolean);

-- An inbound message. `conversation_id` is the id of a new one, and without a `thread` there is always a new one, unless the
-- channel sends the message again; `content` and `metadata` are texts that hold JSON. It `may_answer` what a step of the
-- active turn has asked; of attempts to steer a model the kinds are `suspected`. Its job is made for the `agent` in
-- `agent_version`: `named_agent` is the one that the message itself names, with a version where it `names_version`, and
-- `default_agent` that of its channel or tenant. One that `is_job` was sent as a job, which is a turn by itself, as it is. One that
-- is `patient` waits for its turn, whatever the policy.
CREATE TYPE planq_message AS (
    id uuid, conversation_id uuid, tenant_id text, channel text, thread text, source_id text,
    idempotency_key text, request_hash text, user_id text, text text, content text, metadata text, policy text, debounce_seconds float8, debounce_most_seconds float8, may_answer boolean, suspected json, agent text, agent_version int, named_agent text, names_version boolean, default_agent text, is_job boolean, patient boolean
);

-- A job that is to be made (planq_submit_jobs), with its `plan` where it comes with one. JSON comes as texts that hold it, because
-- functions that take JSON apart refuse \u0000, but for what we have made ourselves. It expires `expires_seconds` after the time
-- at which it is to begin, or at which it was paused. It is shown the conversation `history_of`, or what `history` says. One
-- that `is_task` came by the message flow. Its first event says its `origin`, where that is more than a fork or a conversation.
-- A child job names its parent's step. The fields of its request are those of `Submission` (shared/kernel/submission.py), which
-- also writes the other lists that begin with a colon.
CREATE TYPE planq_new_job AS (
    :new_job_types, plan_source text, expires_seconds float8, paused_at timestamptz, batch_id uuid, batch_line int,
    history json, origin json, parent_job_id uuid, parent_round int, parent_step_index int, child_position int, child_key text,
    root_job_id uuid, depth int
);

-- What whoever fires a schedule has looked up for its job, and the id of its message where that is a turn.
CREATE TYPE planq_firing AS (
    job_id uuid, message_id uuid, trace_id text, metadata text, model text, agent_version int, skill_versions int[],
    strategy text, loop_block text
);

-- Who reserves: an attempt at a stage of a job (index -1) or at a step; `call` is the id under which the model call will be recorded.
CREATE TYPE planq_holder AS (job uuid, round int, index int, attempt int, call uuid);

-- What is wanted: a question of `asked` tokens, whose reply may be cut from `reply` tokens to `least`, in so many `calls`; or `steps`.
-- Where the price of the question and of each token of the reply is null, it is taken to be what the tree's tokens have cost so far.
CREATE TYPE planq_wanted AS (
    asked float8, reply float8, least float8, calls int, steps int, asked_usd float8, token_usd float8, may_ask boolean
);

-- What calls of the same claim have used that are not recorded yet.
CREATE TYPE planq_made AS (input float8, output float8, cost float8, calls int);

-- An agent's own limits, which count for its job alone.
CREATE TYPE planq_own AS (
    request_limit float8, input_tokens_limit float8, output_tokens_limit float8, total_tokens_limit float8
);

-- A line of a batch, and how many lines of a batch are unfinished jobs.
CREATE TYPE planq_line AS (batch_id uuid, line int);
CREATE TYPE planq_running AS (batch_id uuid, tenant_id text, lines int);
