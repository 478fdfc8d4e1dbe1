CREATE DOMAIN job_status AS TEXT CONSTRAINT ck_job_status CHECK (VALUE IN ('queued', 'planning', 'executing', 'responding', 'completed', 'failed', 'cancelled'));

CREATE DOMAIN after_steps AS TEXT CONSTRAINT ck_after_steps CHECK (VALUE IN ('responding', 'planning', 'completed'));

CREATE DOMAIN on_failure AS TEXT CONSTRAINT ck_on_failure CHECK (VALUE IN ('fail', 'answer', 'continue', 'record'));

CREATE DOMAIN job_respond AS TEXT CONSTRAINT ck_job_respond CHECK (VALUE IN ('model', 'output', 'none'));

CREATE DOMAIN job_priority AS TEXT CONSTRAINT ck_job_priority CHECK (VALUE IN ('interactive', 'bulk'));

CREATE DOMAIN step_kind AS TEXT CONSTRAINT ck_step_kind CHECK (VALUE IN ('tool', 'agent', 'parallel', 'elicitation', 'noop', 'abort'));

CREATE DOMAIN step_pool AS TEXT CONSTRAINT ck_step_pool CHECK (VALUE ~ '^[a-z][a-z0-9_-]{0,31}$');

CREATE DOMAIN step_effect AS TEXT CONSTRAINT ck_step_effect CHECK (VALUE IN ('pure', 'read', 'idempotent', 'unsafe'));

CREATE DOMAIN step_status AS TEXT CONSTRAINT ck_step_status CHECK (VALUE IN ('pending', 'ready', 'running', 'waiting', 'succeeded', 'failed', 'skipped', 'cancelled'));

CREATE DOMAIN step_recovery AS TEXT CONSTRAINT ck_step_recovery CHECK (VALUE IN ('fail', 'ask', 'find_out'));

CREATE DOMAIN join_policy AS TEXT CONSTRAINT ck_join_policy CHECK (VALUE IN ('all', 'first_success', 'first_failure'));

CREATE DOMAIN job_act AS TEXT CONSTRAINT ck_job_act CHECK (VALUE IN ('cancel', 'pause', 'resume', 'retry'));

CREATE DOMAIN job_action_status AS TEXT CONSTRAINT ck_job_action_status CHECK (VALUE IN ('running', 'completed', 'cancelled'));

CREATE DOMAIN batch_status AS TEXT CONSTRAINT ck_batch_status CHECK (VALUE IN ('uploading', 'validating', 'in_progress', 'cancelling', 'completed', 'failed', 'cancelled'));

CREATE DOMAIN batch_discount AS TEXT CONSTRAINT ck_batch_discount CHECK (VALUE IN ('provider'));

CREATE DOMAIN batch_pause_reason AS TEXT CONSTRAINT ck_batch_pause_reason CHECK (VALUE IN ('asked', 'canary', 'budget'));

CREATE DOMAIN batch_line_status AS TEXT CONSTRAINT ck_batch_line_status CHECK (VALUE IN ('received', 'invalid', 'valid', 'admitted', 'completed', 'failed', 'cancelled'));

CREATE DOMAIN provider_batch_status AS TEXT CONSTRAINT ck_provider_batch_status CHECK (VALUE IN ('submitting', 'submitted', 'ended'));

CREATE DOMAIN deferred_call_status AS TEXT CONSTRAINT ck_deferred_call_status CHECK (VALUE IN ('waiting', 'sent', 'succeeded', 'errored', 'expired', 'canceled', 'failed'));

CREATE DOMAIN conversation_policy AS TEXT CONSTRAINT ck_conversation_policy CHECK (VALUE IN ('queue', 'reject', 'interrupt', 'merge'));

CREATE DOMAIN message_kind AS TEXT CONSTRAINT ck_message_kind CHECK (VALUE IN ('message', 'tool_call', 'tool_response'));

CREATE DOMAIN message_direction AS TEXT CONSTRAINT ck_message_direction CHECK (VALUE IN ('inbound', 'outbound', 'internal'));

CREATE DOMAIN message_status AS TEXT CONSTRAINT ck_message_status CHECK (VALUE IN ('received', 'merging', 'done', 'erased'));

CREATE DOMAIN question_kind AS TEXT CONSTRAINT ck_question_kind CHECK (VALUE IN ('form', 'approval', 'outcome', 'url'));

CREATE DOMAIN question_status AS TEXT CONSTRAINT ck_question_status CHECK (VALUE IN ('open', 'accepted', 'declined', 'cancelled', 'expired'));

CREATE DOMAIN asked_of AS TEXT CONSTRAINT ck_asked_of CHECK (VALUE IN ('anyone', 'asker', 'ids', 'operator'));

CREATE DOMAIN delivery_kind AS TEXT CONSTRAINT ck_delivery_kind CHECK (VALUE IN ('webhook', 'message'));

CREATE DOMAIN delivery_status AS TEXT CONSTRAINT ck_delivery_status CHECK (VALUE IN ('pending', 'sending', 'sent', 'uncertain', 'failed'));

CREATE SEQUENCE jobs_ended_succeeded;

CREATE SEQUENCE jobs_ended_partial;

CREATE SEQUENCE jobs_ended_incomplete;

CREATE SEQUENCE jobs_ended_failed;

CREATE SEQUENCE jobs_ended_cancelled;

CREATE TABLE plans (
    job_id UUID NOT NULL,
    round INTEGER NOT NULL,
    tenant_id TEXT NOT NULL,
    source TEXT NOT NULL,
    body JSON,
    errors JSON,
    reuse JSON,
    reply JSON,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_plans PRIMARY KEY (job_id, round)
);

CREATE TABLE steps (
    job_id UUID NOT NULL,
    round INTEGER NOT NULL,
    index INTEGER NOT NULL,
    tenant_id TEXT NOT NULL,
    kind step_kind DEFAULT 'tool' NOT NULL,
    tool_name TEXT NOT NULL,
    pool step_pool NOT NULL,
    effect step_effect NOT NULL,
    status step_status NOT NULL,
    arguments JSON NOT NULL,
    verbatim BOOLEAN DEFAULT false NOT NULL,
    inputs INTEGER[] DEFAULT '{}' NOT NULL,
    depends_on INTEGER[] DEFAULT '{}' NOT NULL,
    dependents INTEGER[] DEFAULT '{}' NOT NULL,
    pending INTEGER DEFAULT 0 NOT NULL,
    path INTEGER DEFAULT 0 NOT NULL,
    attempt INTEGER DEFAULT 0 NOT NULL,
    retry JSON NOT NULL,
    worker_losses INTEGER DEFAULT 0 NOT NULL,
    releases INTEGER DEFAULT 0 NOT NULL,
    timeout_seconds FLOAT NOT NULL,
    worker_id UUID,
    run_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    wake_at TIMESTAMP WITH TIME ZONE,
    wakes INTEGER DEFAULT 0 NOT NULL,
    deadline TIMESTAMP WITH TIME ZONE,
    output JSON,
    payload_hash BYTEA,
    output_bytes BIGINT,
    wanted JSON,
    excerpts JSON,
    content TEXT,
    recovery step_recovery DEFAULT 'fail' NOT NULL,
    in_doubt BOOLEAN DEFAULT false NOT NULL,
    is_known BOOLEAN DEFAULT false NOT NULL,
    question_id UUID,
    asked_at TIMESTAMP WITH TIME ZONE,
    is_asked_ahead BOOLEAN DEFAULT false NOT NULL,
    waits_for join_policy,
    max_parallel INTEGER,
    note JSON,
    joined BOOLEAN DEFAULT false NOT NULL,
    children UUID[],
    open_children INTEGER,
    next_child INTEGER,
    reused_job UUID,
    reused_index INTEGER,
    origin_job UUID,
    origin_index INTEGER,
    tool_digest TEXT,
    tool_away_since TIMESTAMP WITH TIME ZONE,
    longest_seconds FLOAT,
    progress JSON,
    cost_usd NUMERIC,
    charges JSON,
    error JSON,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_steps PRIMARY KEY (job_id, index)
);

CREATE INDEX ix_steps_awaiting_tools ON steps (tool_away_since) WHERE status = 'ready' AND tool_away_since IS NOT NULL;

CREATE INDEX ix_steps_held ON steps (job_id, path DESC, index) WHERE status = 'ready' AND wake_at IS NULL;

CREATE INDEX ix_steps_origin_job ON steps (origin_job) WHERE origin_job IS NOT NULL;

CREATE INDEX ix_steps_payload_hash ON steps (payload_hash) WHERE payload_hash IS NOT NULL;

CREATE INDEX ix_steps_wake_at ON steps (wake_at) INCLUDE (status) WHERE status IN ('pending', 'ready', 'waiting');

CREATE INDEX ix_steps_worker_id ON steps (worker_id) WHERE status IN ('running');

CREATE TABLE workers (
    id UUID NOT NULL,
    name TEXT NOT NULL,
    pools TEXT[] NOT NULL,
    planners TEXT[],
    provides TEXT[],
    capacity INTEGER DEFAULT 0 NOT NULL,
    bulk_capacity INTEGER DEFAULT 0 NOT NULL,
    has_processes BOOLEAN DEFAULT false NOT NULL,
    version TEXT DEFAULT '' NOT NULL,
    functions TEXT DEFAULT '' NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    heartbeat_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    lag_ms INTEGER DEFAULT 0 NOT NULL,
    in_flight INTEGER DEFAULT 0 NOT NULL,
    late_outcomes BIGINT DEFAULT 0 NOT NULL,
    counts JSON,
    missing TEXT[],
    left_out TEXT[],
    process TEXT,
    lease_seconds DOUBLE PRECISION NOT NULL,
    only_priority TEXT,
    in_quarantine BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT pk_workers PRIMARY KEY (id)
);

CREATE TABLE model_adaptations (
    base_url TEXT NOT NULL,
    model TEXT NOT NULL,
    adaptation TEXT NOT NULL,
    refusal TEXT NOT NULL,
    learned_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_model_adaptations PRIMARY KEY (base_url, model, adaptation)
);

CREATE TABLE agents (
    tenant_id TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    document JSON NOT NULL,
    digest TEXT NOT NULL,
    skills TEXT[] DEFAULT '{}' NOT NULL,
    strategy TEXT,
    loop_block JSON,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    retired_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_agents PRIMARY KEY (tenant_id, name, version)
);

CREATE TABLE skills (
    tenant_id TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    text TEXT NOT NULL,
    digest TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    retired_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_skills PRIMARY KEY (tenant_id, name, version)
);

CREATE TABLE events (
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    sequence BIGINT GENERATED ALWAYS AS IDENTITY,
    tenant_id TEXT NOT NULL,
    job_id UUID NOT NULL,
    kind TEXT NOT NULL,
    data JSON,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_events PRIMARY KEY (xid, sequence)
);

CREATE INDEX ix_events_job_id ON events (job_id, xid);

CREATE INDEX ix_events_tenant_id ON events (tenant_id, xid);

CREATE TABLE insights (
    id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    digest TEXT NOT NULL,
    tool_name TEXT DEFAULT '' NOT NULL,
    lesson TEXT NOT NULL,
    body JSON NOT NULL,
    failing_call TEXT,
    reflection TEXT,
    reflection_job_id UUID,
    reflected_job_id UUID,
    search TSVECTOR NOT NULL,
    seen INTEGER DEFAULT 0 NOT NULL,
    against INTEGER DEFAULT 0 NOT NULL,
    calls BIGINT DEFAULT 0 NOT NULL,
    failed_calls BIGINT DEFAULT 0 NOT NULL,
    seconds FLOAT(53) DEFAULT 0 NOT NULL,
    is_pinned BOOLEAN DEFAULT false NOT NULL,
    retired_at TIMESTAMP WITH TIME ZONE,
    first_seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    last_seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_insights PRIMARY KEY (id)
);

CREATE INDEX ix_insights_expires_at ON insights (expires_at) WHERE NOT is_pinned;

CREATE INDEX ix_insights_failing_call ON insights (tenant_id, failing_call) WHERE failing_call IS NOT NULL;

CREATE INDEX ix_insights_listing ON insights (tenant_id, id);

CREATE INDEX ix_insights_search ON insights USING gin (search);

CREATE UNIQUE INDEX ix_insights_reflection_job_id ON insights (reflection_job_id) WHERE reflection_job_id IS NOT NULL;

CREATE UNIQUE INDEX uq_insights_digest ON insights (tenant_id, digest);

CREATE TABLE insight_offers (
    tenant_id TEXT NOT NULL,
    job_id UUID NOT NULL,
    origin_id UUID NOT NULL,
    conversation_id UUID,
    side TEXT NOT NULL,
    insight_ids UUID[] DEFAULT '{}' NOT NULL,
    tokens INTEGER DEFAULT 0 NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    is_success BOOLEAN DEFAULT false NOT NULL,
    failed_calls INTEGER DEFAULT 0 NOT NULL,
    rounds INTEGER DEFAULT 0 NOT NULL,
    seconds FLOAT(53) DEFAULT 0 NOT NULL,
    cost_usd FLOAT(53) DEFAULT 0 NOT NULL,
    used_tokens BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_insight_offers PRIMARY KEY (tenant_id, job_id)
);

CREATE INDEX ix_insight_offers_conversation_id ON insight_offers (tenant_id, conversation_id) WHERE conversation_id IS NOT NULL;

CREATE TABLE insight_cursor (
    id INTEGER NOT NULL,
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    sequence BIGINT NOT NULL,
    CONSTRAINT pk_insight_cursor PRIMARY KEY (id)
);

CREATE TABLE model_calls (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    tenant_id TEXT NOT NULL,
    job_id UUID NOT NULL,
    round INTEGER DEFAULT 0 NOT NULL,
    step_index INTEGER,
    purpose TEXT NOT NULL,
    model TEXT NOT NULL,
    attempts INTEGER DEFAULT 1 NOT NULL,
    latency_ms INTEGER DEFAULT 0 NOT NULL,
    input_tokens INTEGER DEFAULT 0 NOT NULL,
    output_tokens INTEGER DEFAULT 0 NOT NULL,
    cache_read_tokens INTEGER DEFAULT 0 NOT NULL,
    cache_write_tokens INTEGER DEFAULT 0 NOT NULL,
    cost_usd NUMERIC,
    error JSON,
    exchange JSON,
    call_id UUID,
    is_retried BOOLEAN DEFAULT false NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_model_calls PRIMARY KEY (id)
);

CREATE INDEX ix_model_calls_job_id ON model_calls (job_id);

CREATE TABLE tallies (
    name TEXT NOT NULL,
    labels TEXT[] NOT NULL,
    number NUMERIC NOT NULL,
    CONSTRAINT pk_tallies PRIMARY KEY (name, labels)
);

CREATE TABLE daily_costs (
    tenant_id TEXT NOT NULL,
    day DATE NOT NULL,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    calls BIGINT DEFAULT 0 NOT NULL,
    unpriced_calls BIGINT DEFAULT 0 NOT NULL,
    input_tokens BIGINT DEFAULT 0 NOT NULL,
    output_tokens BIGINT DEFAULT 0 NOT NULL,
    cache_read_tokens BIGINT DEFAULT 0 NOT NULL,
    cache_write_tokens BIGINT DEFAULT 0 NOT NULL,
    cost_usd NUMERIC DEFAULT 0 NOT NULL,
    CONSTRAINT pk_daily_costs PRIMARY KEY (tenant_id, day, agent, model)
);

CREATE TABLE tally_marks (
    id INTEGER NOT NULL,
    xid xid8 DEFAULT '0' NOT NULL,
    sequence BIGINT DEFAULT 0 NOT NULL,
    calls BIGINT DEFAULT 0 NOT NULL,
    drawn BIGINT DEFAULT 0 NOT NULL,
    drawn_below xid8 DEFAULT '0' NOT NULL,
    CONSTRAINT pk_tally_marks PRIMARY KEY (id)
);

CREATE TABLE report_leases (
    id INTEGER NOT NULL,
    held_by UUID NOT NULL,
    held_until TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_report_leases PRIMARY KEY (id)
);

CREATE TABLE documents (
    id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    source TEXT NOT NULL,
    title TEXT NOT NULL,
    digest TEXT NOT NULL,
    loaded_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_documents PRIMARY KEY (id)
);

CREATE UNIQUE INDEX uq_documents_source ON documents (tenant_id, source);

CREATE TABLE moments (
    tenant_id TEXT NOT NULL,
    id UUID NOT NULL,
    user_id TEXT DEFAULT '' NOT NULL,
    name TEXT NOT NULL,
    summary TEXT DEFAULT '' NOT NULL,
    body JSON,
    starts_at TIMESTAMP WITH TIME ZONE,
    ends_at TIMESTAMP WITH TIME ZONE,
    tags TEXT[] DEFAULT '{}' NOT NULL,
    search TSVECTOR GENERATED ALWAYS AS (setweight(to_tsvector('english', name), 'A') || setweight(to_tsvector('english', summary), 'B')) STORED,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_moments PRIMARY KEY (tenant_id, id)
);

CREATE INDEX ix_moments_search ON moments USING gin (search);

CREATE INDEX ix_moments_user_id ON moments (tenant_id, user_id, starts_at);

CREATE TABLE user_metadata (
    tenant_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    data JSON NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_user_metadata PRIMARY KEY (tenant_id, user_id)
);

CREATE TABLE payloads (
    hash BYTEA NOT NULL,
    tenant_id TEXT NOT NULL,
    body BYTEA,
    location TEXT,
    size BIGINT DEFAULT 0 NOT NULL,
    preview JSON,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_payloads PRIMARY KEY (hash, tenant_id)
);

CREATE INDEX ix_payloads_created_at ON payloads (created_at);

CREATE INDEX ix_payloads_location ON payloads (location) WHERE location IS NOT NULL;

ALTER TABLE payloads ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE payload_objects (
    location TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    is_doomed BOOLEAN DEFAULT false NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_payload_objects PRIMARY KEY (location)
);

CREATE INDEX ix_payload_objects_created_at ON payload_objects (created_at);

CREATE TABLE schedules (
    id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    user_id TEXT DEFAULT '' NOT NULL,
    name TEXT DEFAULT '' NOT NULL,
    agent TEXT,
    input TEXT NOT NULL,
    cron TEXT,
    timezone TEXT DEFAULT 'UTC' NOT NULL,
    strategy TEXT DEFAULT 'plan' NOT NULL,
    priority job_priority DEFAULT 'interactive' NOT NULL,
    loop_block JSON,
    model TEXT,
    limits JSON,
    budget JSON,
    tools TEXT[],
    conversation_id UUID,
    next_at TIMESTAMP WITH TIME ZONE,
    last_job_id UUID,
    error TEXT,
    is_active BOOLEAN DEFAULT true NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_schedules PRIMARY KEY (id),
    CONSTRAINT ck_schedules_next_at CHECK (next_at IS NOT NULL OR NOT is_active)
);

CREATE INDEX ix_schedules_conversation_id ON schedules (conversation_id) WHERE conversation_id IS NOT NULL;

CREATE INDEX ix_schedules_created_at ON schedules (created_at) WHERE NOT is_active;

CREATE INDEX ix_schedules_listing ON schedules (tenant_id, created_at, id);

CREATE INDEX ix_schedules_next_at ON schedules (next_at) WHERE is_active;

CREATE INDEX ix_schedules_user_id ON schedules (tenant_id, user_id) WHERE is_active;

CREATE UNLOGGED TABLE text_deltas (
    job_id UUID NOT NULL,
    attempt INTEGER NOT NULL,
    try INTEGER NOT NULL,
    start INTEGER NOT NULL,
    tenant_id TEXT NOT NULL,
    stage TEXT NOT NULL,
    text TEXT NOT NULL,
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_text_deltas PRIMARY KEY (job_id, attempt, try, start)
);

CREATE INDEX ix_text_deltas_xid ON text_deltas (xid);

CREATE UNLOGGED TABLE watches (
    job_id UUID NOT NULL,
    process UUID NOT NULL,
    until TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_watches PRIMARY KEY (job_id, process)
);

CREATE TABLE tenants (
    id TEXT NOT NULL,
    name TEXT DEFAULT '' NOT NULL,
    is_disabled BOOLEAN DEFAULT false NOT NULL,
    config JSON,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_tenants PRIMARY KEY (id)
);

CREATE INDEX ix_tenants_learning ON tenants (id) WHERE config->>'insights' IN ('shadow', 'on');

CREATE TABLE ended_sessions (
    nonce BYTEA NOT NULL,
    until TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_ended_sessions PRIMARY KEY (nonce)
);

CREATE INDEX ix_ended_sessions_until ON ended_sessions (until);

CREATE UNLOGGED TABLE tenant_places (
    tenant_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    process UUID NOT NULL,
    held INTEGER NOT NULL,
    until TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_tenant_places PRIMARY KEY (tenant_id, kind, process)
);

CREATE TABLE stored_bytes (
    tenant_id TEXT NOT NULL,
    bytes BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_stored_bytes PRIMARY KEY (tenant_id)
);

CREATE TABLE stored_byte_changes (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    tenant_id TEXT NOT NULL,
    bytes BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_stored_byte_changes PRIMARY KEY (id)
);

CREATE INDEX ix_stored_byte_changes_tenant_id ON stored_byte_changes (tenant_id);

CREATE UNLOGGED TABLE rate_marks (
    tenant_id TEXT NOT NULL,
    number BIGINT NOT NULL,
    channel TEXT NOT NULL,
    channel_number BIGINT NOT NULL,
    let_in_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_rate_marks PRIMARY KEY (tenant_id, number)
);

CREATE INDEX ix_rate_marks_channel ON rate_marks (tenant_id, channel, channel_number);

CREATE TABLE tools (
    name TEXT NOT NULL,
    definition JSON NOT NULL,
    published_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_tools PRIMARY KEY (name)
);

CREATE TABLE jobs (
    id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    parent_job_id UUID,
    parent_step_index INTEGER,
    parent_round INTEGER,
    child_position INTEGER,
    child_key TEXT,
    is_joined BOOLEAN DEFAULT false NOT NULL,
    is_untold BOOLEAN DEFAULT false NOT NULL,
    root_job_id UUID,
    depth INTEGER DEFAULT 0 NOT NULL,
    format INTEGER DEFAULT 1 NOT NULL,
    conversation_id UUID,
    history JSON,
    in_message_flow BOOLEAN DEFAULT false NOT NULL,
    batch_id UUID,
    batch_line INTEGER,
    agent_name TEXT,
    agent_version INTEGER,
    skill_versions INTEGER[],
    action TEXT,
    with_input JSON,
    strategy TEXT NOT NULL,
    loop_block JSON,
    status job_status DEFAULT 'queued' NOT NULL,
    round INTEGER DEFAULT 0 NOT NULL,
    after_steps after_steps DEFAULT 'responding' NOT NULL,
    on_failure on_failure DEFAULT 'answer' NOT NULL,
    respond job_respond DEFAULT 'model' NOT NULL,
    on_incomplete TEXT,
    model_settings JSON,
    incomplete JSON,
    rounds_deadline TIMESTAMP WITH TIME ZONE,
    stop_reason TEXT,
    model TEXT NOT NULL,
    stage_worker UUID,
    stage_attempt INTEGER DEFAULT 0 NOT NULL,
    stage_losses INTEGER DEFAULT 0 NOT NULL,
    stage_retry JSON,
    open_steps INTEGER DEFAULT 0 NOT NULL,
    places INTEGER,
    out_steps INTEGER,
    held_steps INTEGER DEFAULT 0 NOT NULL,
    failed_steps INTEGER DEFAULT 0 NOT NULL,
    halt_index INTEGER,
    limits JSON NOT NULL,
    budget JSON,
    priority job_priority DEFAULT 'interactive' NOT NULL,
    run_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    wake_at TIMESTAMP WITH TIME ZONE,
    wakes INTEGER DEFAULT 0 NOT NULL,
    deadline TIMESTAMP WITH TIME ZONE,
    cancel_requested_at TIMESTAMP WITH TIME ZONE,
    paused_at TIMESTAMP WITH TIME ZONE,
    expires_at TIMESTAMP WITH TIME ZONE,
    forked_from UUID,
    open_questions INTEGER DEFAULT 0 NOT NULL,
    resumes INTEGER DEFAULT 0 NOT NULL,
    idempotency_key TEXT,
    request_hash TEXT,
    callback_url TEXT,
    user_id TEXT DEFAULT '' NOT NULL,
    trace_id TEXT DEFAULT '' NOT NULL,
    input TEXT NOT NULL,
    parts JSONB,
    tools TEXT[],
    answer TEXT,
    preview TEXT,
    output JSON,
    chained JSON,
    error JSON,
    metadata JSON,
    model_calls INTEGER DEFAULT 0 NOT NULL,
    input_tokens BIGINT DEFAULT 0 NOT NULL,
    output_tokens BIGINT DEFAULT 0 NOT NULL,
    cache_read_tokens BIGINT DEFAULT 0 NOT NULL,
    cache_write_tokens BIGINT DEFAULT 0 NOT NULL,
    cost_usd NUMERIC,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_jobs PRIMARY KEY (id),
    CONSTRAINT fk_jobs_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id)
);

CREATE INDEX ix_jobs_asking ON jobs (id) WHERE open_questions > 0;

CREATE INDEX ix_jobs_awaiting_models ON jobs (tenant_id) WHERE stage_retry IS NOT NULL AND status IN ('queued', 'planning', 'executing', 'responding');

CREATE INDEX ix_jobs_deadline ON jobs (deadline) WHERE status = 'executing' AND deadline IS NOT NULL AND paused_at IS NULL;

CREATE INDEX ix_jobs_expires_at ON jobs (expires_at) WHERE status IN ('queued', 'planning', 'executing', 'responding') AND paused_at IS NULL;

CREATE INDEX ix_jobs_forked_from ON jobs (forked_from) WHERE forked_from IS NOT NULL AND status IN ('queued', 'planning', 'executing', 'responding');

CREATE INDEX ix_jobs_holding ON jobs (id) WHERE held_steps > 0;

CREATE INDEX ix_jobs_listing ON jobs (tenant_id, id);

CREATE INDEX ix_jobs_message_flow ON jobs (tenant_id, id) WHERE in_message_flow AND parent_job_id IS NULL;

CREATE INDEX ix_jobs_parent_job_id ON jobs (parent_job_id) WHERE parent_job_id IS NOT NULL;

CREATE INDEX ix_jobs_parts ON jobs USING gin (parts jsonb_path_ops) WHERE parts IS NOT NULL;

CREATE INDEX ix_jobs_pins ON jobs (tenant_id, agent_name, coalesce(agent_version, 0), coalesce(skill_versions, '{}')) WHERE agent_name IS NOT NULL;

CREATE INDEX ix_jobs_stage_worker ON jobs (stage_worker) WHERE stage_worker IS NOT NULL;

CREATE INDEX ix_jobs_status_listing ON jobs (tenant_id, status, strategy, id);

CREATE INDEX ix_jobs_turns ON jobs (conversation_id) WHERE conversation_id IS NOT NULL AND parent_job_id IS NULL AND status IN ('queued', 'planning', 'executing', 'responding');

CREATE INDEX ix_jobs_unserved ON jobs (finished_at) WHERE (is_untold OR NOT is_joined AND coalesce(parent_job_id, conversation_id, batch_id) IS NOT NULL) AND status IN ('completed', 'failed', 'cancelled');

CREATE INDEX ix_jobs_wake_at ON jobs (wake_at) INCLUDE (status, priority) WHERE status IN ('queued', 'planning', 'executing', 'responding');

CREATE UNIQUE INDEX uq_jobs_idempotency_key ON jobs (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE worker_tools (
    worker_id UUID NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    version TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_worker_tools PRIMARY KEY (worker_id, name),
    CONSTRAINT fk_worker_tools_worker_id FOREIGN KEY(worker_id) REFERENCES workers (id) ON DELETE CASCADE
);

CREATE INDEX ix_worker_tools_name ON worker_tools (name);

CREATE TABLE job_actions (
    id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    act job_act NOT NULL,
    status job_action_status DEFAULT 'running' NOT NULL,
    filter JSON NOT NULL,
    repeat_unsafe BOOLEAN DEFAULT false NOT NULL,
    after_job UUID NOT NULL,
    done INTEGER DEFAULT 0 NOT NULL,
    unchanged INTEGER DEFAULT 0 NOT NULL,
    refused INTEGER DEFAULT 0 NOT NULL,
    problems JSON,
    held_by UUID,
    held_until TIMESTAMP WITH TIME ZONE,
    idempotency_key TEXT,
    request_hash TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_job_actions PRIMARY KEY (id),
    CONSTRAINT fk_job_actions_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id)
);

CREATE INDEX ix_job_actions_listing ON job_actions (tenant_id, id);

CREATE INDEX ix_job_actions_running ON job_actions (id) WHERE status = 'running';

CREATE UNIQUE INDEX uq_job_actions_idempotency_key ON job_actions (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE batches (
    id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    status batch_status DEFAULT 'uploading' NOT NULL,
    name TEXT DEFAULT '' NOT NULL,
    metadata JSON,
    defaults JSON,
    priority job_priority DEFAULT 'bulk' NOT NULL,
    is_strict BOOLEAN DEFAULT false NOT NULL,
    canary INTEGER,
    discount batch_discount,
    idempotency_key TEXT,
    request_hash TEXT,
    callback_url TEXT,
    total INTEGER DEFAULT 0 NOT NULL,
    validated_lines INTEGER DEFAULT 0 NOT NULL,
    invalid INTEGER DEFAULT 0 NOT NULL,
    valid INTEGER DEFAULT 0 NOT NULL,
    admitted INTEGER DEFAULT 0 NOT NULL,
    completed INTEGER DEFAULT 0 NOT NULL,
    partial INTEGER DEFAULT 0 NOT NULL,
    incomplete INTEGER DEFAULT 0 NOT NULL,
    failed INTEGER DEFAULT 0 NOT NULL,
    cancelled INTEGER DEFAULT 0 NOT NULL,
    budget_usd NUMERIC,
    budget_tokens BIGINT,
    reserved_usd NUMERIC DEFAULT 0 NOT NULL,
    reserved_tokens BIGINT DEFAULT 0 NOT NULL,
    spent_usd NUMERIC DEFAULT 0 NOT NULL,
    spent_tokens BIGINT DEFAULT 0 NOT NULL,
    paused_at TIMESTAMP WITH TIME ZONE,
    pause_reason batch_pause_reason,
    error JSON,
    estimate JSON,
    held_by UUID,
    held_until TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    validated_at TIMESTAMP WITH TIME ZONE,
    started_at TIMESTAMP WITH TIME ZONE,
    cancelled_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_batches PRIMARY KEY (id),
    CONSTRAINT fk_batches_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id)
);

CREATE INDEX ix_batches_finished_at ON batches (finished_at) WHERE finished_at IS NOT NULL;

CREATE INDEX ix_batches_held_until ON batches (held_until) WHERE status IN ('uploading', 'validating');

CREATE INDEX ix_batches_listing ON batches (tenant_id, id);

CREATE INDEX ix_batches_unfinished ON batches (id) WHERE status IN ('in_progress', 'cancelling');

CREATE UNIQUE INDEX uq_batches_idempotency_key ON batches (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE conversations (
    id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    thread TEXT NOT NULL,
    first_source_id TEXT,
    policy conversation_policy,
    is_closed BOOLEAN DEFAULT false NOT NULL,
    agent TEXT,
    follows_agent BOOLEAN DEFAULT false NOT NULL,
    active_job_id UUID,
    missed_question_id UUID,
    last_sequence BIGINT DEFAULT 0 NOT NULL,
    last_turn INTEGER DEFAULT 0 NOT NULL,
    messages_in BIGINT DEFAULT 0 NOT NULL,
    messages_out BIGINT DEFAULT 0 NOT NULL,
    input_tokens BIGINT DEFAULT 0 NOT NULL,
    output_tokens BIGINT DEFAULT 0 NOT NULL,
    cost_usd NUMERIC,
    last_inbound_at TIMESTAMP WITH TIME ZONE,
    last_outbound_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_conversations PRIMARY KEY (id),
    CONSTRAINT fk_conversations_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id)
);

CREATE INDEX ix_conversations_listing ON conversations (tenant_id, id);

CREATE UNIQUE INDEX uq_conversations_first_source_id ON conversations (tenant_id, channel, first_source_id) WHERE first_source_id IS NOT NULL;

CREATE UNIQUE INDEX uq_conversations_thread ON conversations (tenant_id, channel, thread);

CREATE TABLE insight_sources (
    insight_id UUID NOT NULL,
    job_id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    conversation_id UUID,
    round INTEGER,
    step_index INTEGER,
    words TSVECTOR NOT NULL,
    seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_insight_sources PRIMARY KEY (insight_id, job_id),
    CONSTRAINT fk_insight_sources_insight_id FOREIGN KEY(insight_id) REFERENCES insights (id) ON DELETE CASCADE
);

CREATE INDEX ix_insight_sources_conversation_id ON insight_sources (tenant_id, conversation_id) WHERE conversation_id IS NOT NULL;

CREATE TABLE passages (
    document_id UUID NOT NULL,
    position INTEGER NOT NULL,
    tenant_id TEXT NOT NULL,
    heading TEXT DEFAULT '' NOT NULL,
    body TEXT NOT NULL,
    search TSVECTOR GENERATED ALWAYS AS (setweight(to_tsvector('english', heading), 'A') || setweight(to_tsvector('english', body), 'B')) STORED,
    CONSTRAINT pk_passages PRIMARY KEY (document_id, position),
    CONSTRAINT fk_passages_document_id FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE
);

CREATE INDEX ix_passages_search ON passages USING gin (search);

CREATE INDEX ix_passages_tenant_id ON passages (tenant_id);

CREATE TABLE api_keys (
    id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    name TEXT DEFAULT '' NOT NULL,
    prefix TEXT NOT NULL,
    digest BYTEA NOT NULL,
    scopes TEXT[] NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE,
    revoked_at TIMESTAMP WITH TIME ZONE,
    last_used_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_api_keys PRIMARY KEY (id),
    CONSTRAINT fk_api_keys_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id)
);

CREATE INDEX ix_api_keys_listing ON api_keys (tenant_id, id);

CREATE UNIQUE INDEX uq_api_keys_digest ON api_keys (digest);

CREATE TABLE tenant_secrets (
    tenant_id TEXT NOT NULL,
    name TEXT NOT NULL,
    key_id TEXT NOT NULL,
    sealed BYTEA NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_tenant_secrets PRIMARY KEY (tenant_id, name),
    CONSTRAINT fk_tenant_secrets_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id)
);

CREATE TABLE endpoints (
    id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    url TEXT NOT NULL,
    events TEXT[] NOT NULL,
    description TEXT DEFAULT '' NOT NULL,
    is_disabled BOOLEAN DEFAULT false NOT NULL,
    disabled_reason TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_endpoints PRIMARY KEY (id),
    CONSTRAINT fk_endpoints_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id)
);

CREATE INDEX ix_endpoints_listing ON endpoints (tenant_id, id);

CREATE TABLE channels (
    tenant_id TEXT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    config JSON NOT NULL,
    knows_repeats BOOLEAN DEFAULT false NOT NULL,
    secret_hash TEXT,
    paused_until TIMESTAMP WITH TIME ZONE,
    problem TEXT,
    polled_by UUID,
    polled_until TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_channels PRIMARY KEY (tenant_id, name),
    CONSTRAINT fk_channels_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id)
);

CREATE TABLE budgets (
    root_job_id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    warned_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_budgets PRIMARY KEY (root_job_id),
    CONSTRAINT fk_budgets_root_job_id FOREIGN KEY(root_job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE TABLE budget_holds (
    job_id UUID NOT NULL,
    index INTEGER DEFAULT -1 NOT NULL,
    root_job_id UUID NOT NULL,
    round INTEGER DEFAULT 0 NOT NULL,
    attempt INTEGER NOT NULL,
    call_id UUID,
    tokens BIGINT NOT NULL,
    cost_usd NUMERIC DEFAULT 0 NOT NULL,
    model_calls INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    owed_until TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_budget_holds PRIMARY KEY (job_id, index),
    CONSTRAINT fk_budget_holds_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_budget_holds_root_job_id ON budget_holds (root_job_id);

CREATE TABLE suspects (
    job_id UUID NOT NULL,
    round INTEGER NOT NULL,
    index INTEGER NOT NULL,
    tenant_id TEXT NOT NULL,
    attempt INTEGER DEFAULT 0 NOT NULL,
    pool TEXT NOT NULL,
    group_id UUID,
    company INTEGER DEFAULT 0 NOT NULL,
    losses INTEGER DEFAULT 1 NOT NULL,
    delays BOOLEAN DEFAULT false NOT NULL,
    noted_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_suspects PRIMARY KEY (job_id, round, index),
    CONSTRAINT fk_suspects_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE TABLE batch_lines (
    batch_id UUID NOT NULL,
    line INTEGER NOT NULL,
    tenant_id TEXT NOT NULL,
    custom_id TEXT,
    status batch_line_status DEFAULT 'received' NOT NULL,
    raw TEXT,
    body JSON,
    parts JSONB,
    job_id UUID,
    tries INTEGER DEFAULT 0 NOT NULL,
    error JSON,
    reserved_usd NUMERIC DEFAULT 0 NOT NULL,
    reserved_tokens BIGINT DEFAULT 0 NOT NULL,
    cost_usd NUMERIC,
    input_tokens BIGINT DEFAULT 0 NOT NULL,
    output_tokens BIGINT DEFAULT 0 NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    settled BIGINT,
    CONSTRAINT pk_batch_lines PRIMARY KEY (batch_id, line),
    CONSTRAINT fk_batch_lines_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id) ON DELETE CASCADE
);

CREATE INDEX ix_batch_lines_admitted ON batch_lines (batch_id, line) WHERE status = 'admitted';

CREATE INDEX ix_batch_lines_errors ON batch_lines (batch_id, line) WHERE error IS NOT NULL;

CREATE INDEX ix_batch_lines_parts ON batch_lines USING gin (parts jsonb_path_ops) WHERE parts IS NOT NULL;

CREATE INDEX ix_batch_lines_settled ON batch_lines (batch_id, settled) WHERE settled IS NOT NULL;

CREATE INDEX ix_batch_lines_waiting ON batch_lines (batch_id, line) WHERE status = 'valid';

CREATE UNIQUE INDEX uq_batch_lines_custom_id ON batch_lines (batch_id, custom_id) WHERE custom_id IS NOT NULL;

CREATE TABLE provider_batches (
    id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    batch_id UUID NOT NULL,
    model TEXT NOT NULL,
    scope TEXT NOT NULL,
    status provider_batch_status DEFAULT 'submitting' NOT NULL,
    provider_id TEXT,
    handle TEXT,
    lines INTEGER DEFAULT 0 NOT NULL,
    tries INTEGER DEFAULT 0 NOT NULL,
    error TEXT,
    next_look_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    held_by UUID,
    held_until TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    submitted_at TIMESTAMP WITH TIME ZONE,
    cancelled_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_provider_batches PRIMARY KEY (id),
    CONSTRAINT fk_provider_batches_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id) ON DELETE CASCADE
);

CREATE INDEX ix_provider_batches_batch_id ON provider_batches (batch_id);

CREATE INDEX ix_provider_batches_next_look_at ON provider_batches (next_look_at) WHERE status <> 'ended';

CREATE TABLE deferred_calls (
    job_id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    batch_id UUID NOT NULL,
    provider_batch_id UUID,
    resumes INTEGER DEFAULT 0 NOT NULL,
    model TEXT NOT NULL,
    scope TEXT NOT NULL,
    body TEXT,
    status deferred_call_status DEFAULT 'waiting' NOT NULL,
    result TEXT,
    seconds_left DOUBLE PRECISION NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_deferred_calls PRIMARY KEY (job_id),
    CONSTRAINT fk_deferred_calls_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_deferred_calls_open ON deferred_calls (batch_id) WHERE status IN ('waiting', 'sent');

CREATE INDEX ix_deferred_calls_provider_batch_id ON deferred_calls (provider_batch_id);

CREATE INDEX ix_deferred_calls_results ON deferred_calls (job_id) WHERE result IS NOT NULL;

CREATE INDEX ix_deferred_calls_waiting ON deferred_calls (batch_id, model, scope, created_at) WHERE status = 'waiting';

CREATE TABLE conversation_agents (
    conversation_id UUID NOT NULL,
    agent TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    CONSTRAINT pk_conversation_agents PRIMARY KEY (conversation_id, agent),
    CONSTRAINT fk_conversation_agents_conversation_id FOREIGN KEY(conversation_id) REFERENCES conversations (id) ON DELETE CASCADE
);

CREATE INDEX ix_conversation_agents_version ON conversation_agents (tenant_id, agent, version);

CREATE TABLE conversation_messages (
    conversation_id UUID NOT NULL,
    sequence BIGINT NOT NULL,
    id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    kind message_kind DEFAULT 'message' NOT NULL,
    direction message_direction NOT NULL,
    source_id TEXT,
    idempotency_key TEXT,
    request_hash TEXT,
    answered_question_id UUID,
    user_id TEXT DEFAULT '' NOT NULL,
    text TEXT DEFAULT '' NOT NULL,
    content JSON,
    metadata JSON,
    job_id UUID,
    turn INTEGER,
    round INTEGER,
    submission JSON,
    status message_status DEFAULT 'done' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_conversation_messages PRIMARY KEY (conversation_id, sequence),
    CONSTRAINT fk_conversation_messages_conversation_id FOREIGN KEY(conversation_id) REFERENCES conversations (id) ON DELETE CASCADE
);

CREATE INDEX ix_conversation_messages_job_id ON conversation_messages (job_id) WHERE job_id IS NOT NULL;

CREATE INDEX ix_conversation_messages_merging ON conversation_messages (tenant_id) WHERE status = 'merging';

CREATE INDEX ix_conversation_messages_turn ON conversation_messages (conversation_id, turn, sequence);

CREATE UNIQUE INDEX uq_conversation_messages_id ON conversation_messages (tenant_id, id);

CREATE UNIQUE INDEX uq_conversation_messages_idempotency_key ON conversation_messages (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE UNIQUE INDEX uq_conversation_messages_source_id ON conversation_messages (conversation_id, source_id) WHERE source_id IS NOT NULL;

CREATE TABLE messages (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    tenant_id TEXT NOT NULL,
    job_id UUID NOT NULL,
    kind TEXT NOT NULL,
    call_id TEXT,
    name TEXT,
    content JSON,
    is_preview BOOLEAN DEFAULT false NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_messages PRIMARY KEY (id),
    CONSTRAINT fk_messages_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_messages_job_id ON messages (job_id, id);

CREATE TABLE tracebacks (
    job_id UUID NOT NULL,
    round INTEGER NOT NULL,
    index INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    text TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_tracebacks PRIMARY KEY (job_id, round, index, attempt),
    CONSTRAINT fk_tracebacks_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE TABLE artifacts (
    tenant_id TEXT NOT NULL,
    id TEXT NOT NULL,
    version INTEGER DEFAULT 1 NOT NULL,
    job_id UUID NOT NULL,
    step_index INTEGER,
    tool_name TEXT,
    skill_id TEXT,
    type TEXT,
    metadata JSON,
    body JSON,
    payload_hash BYTEA,
    media_type TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_artifacts PRIMARY KEY (tenant_id, id, version),
    CONSTRAINT fk_artifacts_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_artifacts_job_id ON artifacts (job_id);

CREATE INDEX ix_artifacts_payload_hash ON artifacts (payload_hash) WHERE payload_hash IS NOT NULL;

CREATE TABLE questions (
    id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    job_id UUID NOT NULL,
    root_job_id UUID NOT NULL,
    in_message_flow BOOLEAN DEFAULT false NOT NULL,
    round INTEGER NOT NULL,
    step_index INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    ordinal INTEGER DEFAULT 0 NOT NULL,
    kind question_kind NOT NULL,
    status question_status DEFAULT 'open' NOT NULL,
    message TEXT NOT NULL,
    schema JSON,
    url TEXT,
    details JSON,
    default_content JSON,
    state JSON,
    asked_of asked_of DEFAULT 'anyone' NOT NULL,
    asked_ids TEXT[],
    content JSON,
    reason TEXT,
    answered_by TEXT,
    answered_key TEXT,
    answered_key_id UUID,
    channel TEXT,
    is_spent BOOLEAN DEFAULT false NOT NULL,
    is_secret BOOLEAN DEFAULT false NOT NULL,
    call_sha256 TEXT,
    waiting_since TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    answered_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_questions PRIMARY KEY (id),
    CONSTRAINT fk_questions_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_questions_asking ON questions (root_job_id, id) WHERE status = 'open';

CREATE INDEX ix_questions_closed ON questions (tenant_id, status, id) WHERE status <> 'open';

CREATE INDEX ix_questions_job_id ON questions (job_id, step_index);

CREATE INDEX ix_questions_listing ON questions (tenant_id, id);

CREATE INDEX ix_questions_message_flow ON questions (tenant_id, id) WHERE in_message_flow;

CREATE INDEX ix_questions_open ON questions (tenant_id, id) WHERE status = 'open';

CREATE INDEX ix_questions_root_job_id ON questions (root_job_id, id);

CREATE TABLE deliveries (
    id UUID NOT NULL,
    tenant_id TEXT NOT NULL,
    kind delivery_kind DEFAULT 'webhook' NOT NULL,
    endpoint_id UUID,
    target TEXT,
    channel TEXT,
    conversation_id UUID,
    message_id UUID,
    question_id UUID,
    recipient TEXT NOT NULL,
    job_id UUID,
    batch_id UUID,
    event TEXT NOT NULL,
    body TEXT NOT NULL,
    status delivery_status DEFAULT 'pending' NOT NULL,
    attempt INTEGER DEFAULT 0 NOT NULL,
    earlier INTEGER DEFAULT 0 NOT NULL,
    knows_repeats BOOLEAN DEFAULT true NOT NULL,
    parts INTEGER DEFAULT 0 NOT NULL,
    doubts INTEGER DEFAULT 0 NOT NULL,
    run_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    worker_id UUID,
    external_id TEXT,
    response_status INTEGER,
    error JSON,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_deliveries PRIMARY KEY (id),
    CONSTRAINT fk_deliveries_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id),
    CONSTRAINT fk_deliveries_endpoint_id FOREIGN KEY(endpoint_id) REFERENCES endpoints (id) ON DELETE CASCADE
);

CREATE INDEX ix_deliveries_endpoint_id ON deliveries (endpoint_id);

CREATE INDEX ix_deliveries_finished_at ON deliveries (finished_at) WHERE finished_at IS NOT NULL;

CREATE INDEX ix_deliveries_job_id ON deliveries (job_id) WHERE job_id IS NOT NULL;

CREATE INDEX ix_deliveries_listing ON deliveries (tenant_id, id);

CREATE INDEX ix_deliveries_not_sent ON deliveries (tenant_id, status, id) WHERE status IN ('uncertain', 'failed');

CREATE INDEX ix_deliveries_order ON deliveries (conversation_id, created_at, id) WHERE status IN ('pending', 'sending');

CREATE INDEX ix_deliveries_run_at ON deliveries (run_at) WHERE status IN ('pending', 'sending');

CREATE INDEX ix_deliveries_worker_id ON deliveries (worker_id) WHERE status = 'sending';
