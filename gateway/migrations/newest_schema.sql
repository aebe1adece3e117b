CREATE TABLE accounts (
	id VARCHAR(40) NOT NULL,
	name VARCHAR(200) NOT NULL,
	created_at DATETIME NOT NULL, storage_bytes BIGINT, timezone VARCHAR(64), revision BIGINT DEFAULT '0' NOT NULL,
	CONSTRAINT pk_accounts PRIMARY KEY (id),
	CONSTRAINT uq_accounts_name UNIQUE (name)
);

CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE allowances (
	name VARCHAR(300) NOT NULL,
	level FLOAT NOT NULL,
	seen FLOAT NOT NULL,
	strict_until FLOAT NOT NULL,
	CONSTRAINT pk_allowances PRIMARY KEY (name)
);

CREATE TABLE approvals (
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	conversation VARCHAR(40) NOT NULL,
	turn VARCHAR(40) NOT NULL,
	call VARCHAR(120) NOT NULL,
	tool VARCHAR(60) NOT NULL,
	args JSON NOT NULL,
	command TEXT NOT NULL,
	digest VARCHAR(64) NOT NULL,
	state VARCHAR(20) NOT NULL,
	decided_by VARCHAR(200),
	decided_name VARCHAR(200),
	comment TEXT,
	created_at DATETIME NOT NULL,
	decided_at DATETIME, files JSON, usage JSON,
	CONSTRAINT fk_approvals_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT fk_approvals_conversation_conversations FOREIGN KEY(conversation) REFERENCES conversations (id) ON DELETE CASCADE,
	CONSTRAINT pk_approvals PRIMARY KEY (id)
);

CREATE TABLE "attempts" (
	id INTEGER NOT NULL,
	delivery VARCHAR(40) NOT NULL,
	number INTEGER NOT NULL,
	started_at DATETIME NOT NULL,
	duration_ms FLOAT,
	outcome VARCHAR(20),
	status INTEGER,
	detail TEXT,
	excerpt TEXT,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT fk_attempts_delivery_deliveries FOREIGN KEY(delivery) REFERENCES deliveries (id) ON DELETE CASCADE,
	CONSTRAINT pk_attempts PRIMARY KEY (id)
);

CREATE TABLE audit (
	position INTEGER NOT NULL,
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40),
	actor VARCHAR(80) NOT NULL,
	action VARCHAR(200) NOT NULL,
	object VARCHAR(300) NOT NULL,
	status INTEGER NOT NULL,
	address VARCHAR(80) NOT NULL,
	created_at DATETIME NOT NULL,
	CONSTRAINT pk_audit PRIMARY KEY (position),
	CONSTRAINT uq_audit_id UNIQUE (id)
);

CREATE TABLE blobs (
	sha256 VARCHAR(64) NOT NULL,
	size BIGINT NOT NULL,
	dropping BOOLEAN NOT NULL,
	touched_at DATETIME NOT NULL,
	CONSTRAINT pk_blobs PRIMARY KEY (sha256)
);

CREATE TABLE branches (
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	conversation VARCHAR(40) NOT NULL,
	turn VARCHAR(40) NOT NULL,
	turns JSON NOT NULL,
	rerun VARCHAR(40),
	"by" VARCHAR(200) NOT NULL,
	created_at DATETIME NOT NULL,
	CONSTRAINT fk_branches_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT fk_branches_conversation_conversations FOREIGN KEY(conversation) REFERENCES conversations (id) ON DELETE CASCADE,
	CONSTRAINT pk_branches PRIMARY KEY (id)
);

CREATE TABLE budget_counters (
	account VARCHAR(40) NOT NULL,
	owner VARCHAR(600) NOT NULL,
	period VARCHAR(20) NOT NULL,
	kind VARCHAR(20) NOT NULL,
	used BIGINT NOT NULL,
	reserved BIGINT NOT NULL,
	ceiling BIGINT NOT NULL,
	warned BOOLEAN NOT NULL,
	ends_at DATETIME NOT NULL,
	CONSTRAINT fk_budget_counters_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT pk_budget_counters PRIMARY KEY (account, owner, period, kind)
);

CREATE TABLE budgets (
	account VARCHAR(40) NOT NULL,
	limits JSON NOT NULL,
	CONSTRAINT fk_budgets_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT pk_budgets PRIMARY KEY (account)
);

CREATE TABLE "bundle_files" (
	record VARCHAR(40) NOT NULL,
	path VARCHAR(500) NOT NULL,
	content BLOB NOT NULL,
	sha256 VARCHAR(64) NOT NULL,
	size INTEGER NOT NULL,
	updated_at DATETIME NOT NULL,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT fk_bundle_files_record_records FOREIGN KEY(record) REFERENCES records (id) ON DELETE CASCADE,
	CONSTRAINT pk_bundle_files PRIMARY KEY (record, path)
);

CREATE TABLE "channel_notes" (
	channel VARCHAR(40) NOT NULL,
	name VARCHAR(200) NOT NULL,
	note VARCHAR(1000) NOT NULL,
	updated_at DATETIME NOT NULL,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT pk_channel_notes PRIMARY KEY (channel, name)
);

CREATE TABLE "channel_secrets" (
	channel VARCHAR(40) NOT NULL,
	name VARCHAR(200) NOT NULL,
	sealed TEXT NOT NULL,
	updated_at DATETIME NOT NULL,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT pk_channel_secrets PRIMARY KEY (channel, name)
);

CREATE TABLE conversations (
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	agent VARCHAR(40) NOT NULL,
	name VARCHAR(300),
	channel VARCHAR(40),
	address_key VARCHAR(600),
	address TEXT,
	queue_mode VARCHAR(20),
	queue_limit INTEGER,
	fence INTEGER NOT NULL,
	created_at DATETIME NOT NULL, title VARCHAR(200), room_position BIGINT, handover_by VARCHAR(200), handover_at DATETIME, carried_context JSON, direct BOOLEAN, client_state JSON, model VARCHAR(200),
	CONSTRAINT fk_conversations_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT pk_conversations PRIMARY KEY (id),
	CONSTRAINT uq_conversations_account_address_key UNIQUE (account, address_key),
	CONSTRAINT uq_conversations_account_name UNIQUE (account, name)
);

CREATE TABLE deliveries (
	position INTEGER NOT NULL,
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	event_id VARCHAR(80) NOT NULL,
	event_type VARCHAR(40) NOT NULL,
	event_time DATETIME NOT NULL,
	conversation VARCHAR(40),
	turn VARCHAR(40),
	kind VARCHAR(20) NOT NULL,
	target TEXT NOT NULL,
	destination VARCHAR(300) NOT NULL,
	part INTEGER NOT NULL,
	body BLOB NOT NULL,
	state VARCHAR(20) NOT NULL,
	attempts INTEGER NOT NULL,
	armed_at DATETIME NOT NULL,
	armed_from INTEGER NOT NULL,
	uncertain BOOLEAN NOT NULL,
	next_at DATETIME,
	platform_id VARCHAR(200),
	error TEXT,
	created_at DATETIME NOT NULL,
	updated_at DATETIME NOT NULL, ordering_key VARCHAR(320) DEFAULT '' NOT NULL,
	CONSTRAINT pk_deliveries PRIMARY KEY (position),
	CONSTRAINT uq_deliveries_event_id_kind_target_part UNIQUE (event_id, kind, target, part),
	CONSTRAINT uq_deliveries_id UNIQUE (id)
);

CREATE TABLE destinations (
	destination VARCHAR(300) NOT NULL,
	account VARCHAR(40) NOT NULL,
	held_until DATETIME,
	dead_at DATETIME,
	dead_why TEXT,
	CONSTRAINT pk_destinations PRIMARY KEY (destination)
);

CREATE TABLE "drafts" (
	message VARCHAR(80) NOT NULL,
	target TEXT NOT NULL,
	platform_id VARCHAR(200),
	busy_until DATETIME,
	claimed_at DATETIME,
	turn VARCHAR(80),
	shown TEXT,
	ended_by VARCHAR(40),
	created_at DATETIME NOT NULL,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT pk_drafts PRIMARY KEY (message, target)
);

CREATE TABLE ended_sign_ins (
	agent VARCHAR(40) NOT NULL,
	server VARCHAR(40) NOT NULL,
	person VARCHAR(600) NOT NULL,
	account VARCHAR(40) NOT NULL,
	sealed TEXT NOT NULL,
	CONSTRAINT fk_ended_sign_ins_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT pk_ended_sign_ins PRIMARY KEY (agent, server, person)
);

CREATE TABLE endpoints (
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	name VARCHAR(200),
	origin VARCHAR(80) NOT NULL,
	url TEXT NOT NULL,
	trusted BOOLEAN NOT NULL,
	events TEXT NOT NULL,
	conversation VARCHAR(40),
	secret BLOB NOT NULL,
	previous_secret BLOB,
	previous_until DATETIME,
	disabled_at DATETIME,
	disabled_why TEXT,
	ordered BOOLEAN DEFAULT '0' NOT NULL,
	failing_since DATETIME,
	created_at DATETIME NOT NULL,
	CONSTRAINT pk_endpoints PRIMARY KEY (id),
	CONSTRAINT uq_endpoints_account_name UNIQUE (account, name)
);

CREATE TABLE epochs (
	stream VARCHAR(40) NOT NULL,
	created VARCHAR(40) NOT NULL,
	high_water BIGINT NOT NULL,
	bumps INTEGER NOT NULL,
	CONSTRAINT pk_epochs PRIMARY KEY (stream)
);

CREATE TABLE "erasures" (
	conversation VARCHAR(40) NOT NULL,
	created_at DATETIME NOT NULL,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT pk_erasures PRIMARY KEY (conversation)
);

CREATE TABLE files (
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	conversation VARCHAR(40),
	turn VARCHAR(40),
	job VARCHAR(40),
	state VARCHAR(20) NOT NULL,
	identity VARCHAR(64) NOT NULL,
	version VARCHAR(80) NOT NULL,
	path TEXT NOT NULL,
	name VARCHAR(255) NOT NULL,
	type VARCHAR(120) NOT NULL,
	size BIGINT NOT NULL,
	sha256 VARCHAR(64),
	caption TEXT NOT NULL,
	note TEXT,
	noted_turn VARCHAR(40),
	created_at DATETIME NOT NULL, expires_at DATETIME, purpose VARCHAR(64),
	CONSTRAINT fk_files_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT fk_files_conversation_conversations FOREIGN KEY(conversation) REFERENCES conversations (id) ON DELETE CASCADE,
	CONSTRAINT pk_files PRIMARY KEY (id),
	CONSTRAINT uq_files_conversation_identity UNIQUE (conversation, identity)
);

CREATE TABLE histories (
	position INTEGER NOT NULL,
	account VARCHAR(40) NOT NULL,
	conversation VARCHAR(40) NOT NULL,
	turn VARCHAR(40),
	body BLOB NOT NULL,
	created_at DATETIME NOT NULL,
	CONSTRAINT fk_histories_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT fk_histories_conversation_conversations FOREIGN KEY(conversation) REFERENCES conversations (id) ON DELETE CASCADE,
	CONSTRAINT pk_histories PRIMARY KEY (position)
);

CREATE TABLE identities (
	account VARCHAR(40) NOT NULL,
	id VARCHAR(600) NOT NULL,
	person VARCHAR(40) NOT NULL,
	platform VARCHAR(300) NOT NULL,
	author VARCHAR(200) NOT NULL,
	name VARCHAR(200) NOT NULL,
	failures INTEGER NOT NULL,
	failed_at DATETIME,
	created_at DATETIME NOT NULL,
	CONSTRAINT fk_identities_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT fk_identities_person_persons FOREIGN KEY(person) REFERENCES persons (id) ON DELETE CASCADE,
	CONSTRAINT pk_identities PRIMARY KEY (account, id)
);

CREATE TABLE inbox (
	account VARCHAR(40) NOT NULL,
	source VARCHAR(40) NOT NULL,
	event_key VARCHAR(300) NOT NULL,
	message VARCHAR(40),
	turn VARCHAR(40),
	created_at DATETIME NOT NULL,
	CONSTRAINT pk_inbox PRIMARY KEY (account, source, event_key)
);

CREATE TABLE "inputs" (
	turn VARCHAR(40) NOT NULL,
	place INTEGER NOT NULL,
	source VARCHAR(40) NOT NULL,
	text TEXT NOT NULL,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT fk_inputs_turn_turns FOREIGN KEY(turn) REFERENCES turns (id) ON DELETE CASCADE,
	CONSTRAINT pk_inputs PRIMARY KEY (turn, place),
	CONSTRAINT uq_inputs_source UNIQUE (source)
);

CREATE TABLE installations (
	place INTEGER NOT NULL,
	id VARCHAR(40) NOT NULL,
	CONSTRAINT pk_installations PRIMARY KEY (place)
);

CREATE TABLE job_calls (
	job VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	tool VARCHAR(64) NOT NULL,
	server VARCHAR(40),
	args JSON NOT NULL,
	repeatable BOOLEAN NOT NULL,
	attempt INTEGER NOT NULL,
	CONSTRAINT fk_job_calls_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT fk_job_calls_job_jobs FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE,
	CONSTRAINT pk_job_calls PRIMARY KEY (job)
);

CREATE TABLE "job_progress" (
	job VARCHAR(40) NOT NULL,
	event VARCHAR(40) NOT NULL,
	reports INTEGER NOT NULL,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT fk_job_progress_job_jobs FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE,
	CONSTRAINT pk_job_progress PRIMARY KEY (job)
);

CREATE TABLE jobs (
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	conversation VARCHAR(40) NOT NULL,
	turn VARCHAR(40) NOT NULL,
	agent VARCHAR(40) NOT NULL,
	asker VARCHAR(200) NOT NULL,
	command TEXT NOT NULL,
	provider VARCHAR(40) NOT NULL,
	sandbox VARCHAR(200) NOT NULL,
	sandbox_record VARCHAR(40),
	workspace VARCHAR(40),
	state VARCHAR(20) NOT NULL,
	reason VARCHAR(80),
	token_digest BLOB NOT NULL,
	token_sealed BLOB NOT NULL,
	spawned_at DATETIME,
	stop_requested_at DATETIME,
	exit_code INTEGER,
	output TEXT NOT NULL,
	truncated BOOLEAN NOT NULL,
	unreachable_since DATETIME,
	created_at DATETIME NOT NULL,
	finished_at DATETIME, replica VARCHAR(80),
	CONSTRAINT fk_jobs_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT fk_jobs_conversation_conversations FOREIGN KEY(conversation) REFERENCES conversations (id) ON DELETE CASCADE,
	CONSTRAINT pk_jobs PRIMARY KEY (id)
);

CREATE TABLE keys (
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	name VARCHAR(200) NOT NULL,
	scopes JSON NOT NULL,
	digest BLOB NOT NULL,
	created_at DATETIME NOT NULL,
	revoked_at DATETIME, expires_at DATETIME, subject VARCHAR(255),
	CONSTRAINT fk_keys_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT pk_keys PRIMARY KEY (id),
	CONSTRAINT uq_keys_digest UNIQUE (digest)
);

CREATE TABLE marks (
	name VARCHAR(40) NOT NULL,
	sealed TEXT NOT NULL,
	CONSTRAINT pk_marks PRIMARY KEY (name)
);

CREATE TABLE "mcp_prompts" (
	agent VARCHAR(40) NOT NULL,
	server VARCHAR(40) NOT NULL,
	person VARCHAR(600) NOT NULL,
	commands JSON NOT NULL,
	updated_at DATETIME NOT NULL,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT fk_mcp_prompts_agent_records FOREIGN KEY(agent) REFERENCES records (id) ON DELETE CASCADE,
	CONSTRAINT pk_mcp_prompts PRIMARY KEY (agent, server, person)
);

CREATE TABLE "mcp_sign_ins" (
	agent VARCHAR(40) NOT NULL,
	server VARCHAR(40) NOT NULL,
	person VARCHAR(600) NOT NULL,
	sealed TEXT NOT NULL,
	claimed_until DATETIME,
	updated_at DATETIME NOT NULL,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT fk_mcp_sign_ins_agent_records FOREIGN KEY(agent) REFERENCES records (id) ON DELETE CASCADE,
	CONSTRAINT pk_mcp_sign_ins PRIMARY KEY (agent, server, person)
);

CREATE TABLE memories (
	position INTEGER NOT NULL,
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	scope VARCHAR(20) NOT NULL,
	subject VARCHAR(600) NOT NULL,
	text TEXT NOT NULL,
	words TEXT NOT NULL,
	created_by VARCHAR(200) NOT NULL,
	created_at DATETIME NOT NULL,
	updated_at DATETIME NOT NULL,
	CONSTRAINT fk_memories_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT pk_memories PRIMARY KEY (position),
	CONSTRAINT uq_memories_id UNIQUE (id)
);

CREATE TRIGGER memories_changed AFTER UPDATE OF account, words ON memories BEGIN INSERT INTO memory_words (memory_words, rowid, account, words) VALUES ('delete', old.position, old.account, old.words); INSERT INTO memory_words (rowid, account, words) VALUES (new.position, new.account, new.words); END;

CREATE TRIGGER memories_deleted AFTER DELETE ON memories BEGIN INSERT INTO memory_words (memory_words, rowid, account, words) VALUES ('delete', old.position, old.account, old.words); END;

CREATE TRIGGER memories_inserted AFTER INSERT ON memories BEGIN INSERT INTO memory_words (rowid, account, words) VALUES (new.position, new.account, new.words); END;

CREATE VIRTUAL TABLE memory_words USING fts5(account, words, content='memories', content_rowid='position', tokenize='unicode61 remove_diacritics 0');

CREATE TABLE "messages" (
	position INTEGER NOT NULL,
	id VARCHAR(40) NOT NULL,
	conversation VARCHAR(40) NOT NULL,
	turn VARCHAR(40),
	role VARCHAR(20) NOT NULL,
	author VARCHAR(200) NOT NULL,
	text TEXT NOT NULL,
	attachments JSON NOT NULL,
	platform_id VARCHAR(200),
	created_at DATETIME NOT NULL,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT fk_messages_conversation_conversations FOREIGN KEY(conversation) REFERENCES conversations (id) ON DELETE CASCADE,
	CONSTRAINT pk_messages PRIMARY KEY (position),
	CONSTRAINT uq_messages_id UNIQUE (id)
);

CREATE TABLE "outbox" (
	event_id VARCHAR(80) NOT NULL,
	conversation VARCHAR(40) NOT NULL,
	n INTEGER NOT NULL,
	type VARCHAR(40) NOT NULL,
	turn VARCHAR(40),
	body BLOB NOT NULL,
	created_at DATETIME NOT NULL,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT fk_outbox_conversation_streams FOREIGN KEY(conversation) REFERENCES streams (conversation) ON DELETE CASCADE,
	CONSTRAINT pk_outbox PRIMARY KEY (event_id),
	CONSTRAINT uq_outbox_conversation_n UNIQUE (conversation, n)
);

CREATE TABLE "pairings" (
	channel VARCHAR(40) NOT NULL,
	person VARCHAR(200) NOT NULL,
	code VARCHAR(20),
	name VARCHAR(200) NOT NULL,
	address TEXT,
	paired_at DATETIME,
	expires_at DATETIME,
	created_at DATETIME NOT NULL,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT pk_pairings PRIMARY KEY (channel, person)
);

CREATE TABLE persons (
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	subject VARCHAR(600) NOT NULL,
	code_digest VARCHAR(64),
	code_expires_at DATETIME,
	created_at DATETIME NOT NULL, budget JSON,
	CONSTRAINT fk_persons_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT pk_persons PRIMARY KEY (id),
	CONSTRAINT uq_persons_account_subject UNIQUE (account, subject)
);

CREATE TABLE records (
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	kind VARCHAR(20) NOT NULL,
	name VARCHAR(200) NOT NULL,
	config JSON NOT NULL,
	secrets JSON NOT NULL,
	managed BOOLEAN NOT NULL,
	created_at DATETIME NOT NULL,
	updated_at DATETIME NOT NULL, applied JSON,
	CONSTRAINT fk_records_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT pk_records PRIMARY KEY (id),
	CONSTRAINT uq_records_account_kind_name UNIQUE (account, kind, name)
);

CREATE TABLE replies (
	account VARCHAR(40) NOT NULL,
	idempotency_key VARCHAR(200) NOT NULL,
	digest VARCHAR(64) NOT NULL,
	status INTEGER,
	body BLOB,
	holder VARCHAR(80),
	created_at DATETIME NOT NULL,
	CONSTRAINT pk_replies PRIMARY KEY (account, idempotency_key)
);

CREATE TABLE room_messages (
	position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	account VARCHAR(40) NOT NULL,
	room VARCHAR(600) NOT NULL,
	event_key VARCHAR(300) NOT NULL,
	thread VARCHAR(200) NOT NULL,
	platform_id VARCHAR(200) NOT NULL,
	kind VARCHAR(20) NOT NULL,
	author VARCHAR(200) NOT NULL,
	name VARCHAR(200) NOT NULL,
	text TEXT NOT NULL,
	sent_at DATETIME NOT NULL,
	created_at DATETIME NOT NULL, files JSON,
	CONSTRAINT fk_room_messages_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT uq_room_messages_room_event_key UNIQUE (room, event_key)
);

CREATE TABLE routes (
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	conversation VARCHAR(40) NOT NULL,
	turn VARCHAR(40),
	kind VARCHAR(20) NOT NULL,
	target TEXT NOT NULL,
	created_at DATETIME NOT NULL,
	CONSTRAINT pk_routes PRIMARY KEY (id),
	CONSTRAINT uq_routes_conversation_turn_kind_target UNIQUE (conversation, turn, kind, target)
);

CREATE TABLE sandbox_leases (
	label VARCHAR(120) NOT NULL,
	holder VARCHAR(80),
	fence INTEGER NOT NULL,
	expires_at DATETIME NOT NULL,
	CONSTRAINT pk_sandbox_leases PRIMARY KEY (label)
);

CREATE TABLE sandboxes (
	label VARCHAR(120) NOT NULL,
	account VARCHAR(40) NOT NULL,
	scope VARCHAR(20) NOT NULL,
	conversation VARCHAR(40) NOT NULL,
	agent VARCHAR(40) NOT NULL,
	person VARCHAR(200) NOT NULL,
	record VARCHAR(40),
	workspace VARCHAR(40),
	provider VARCHAR(40) NOT NULL,
	persistent BOOLEAN NOT NULL,
	status VARCHAR(20) NOT NULL,
	sandbox VARCHAR(200),
	paused BOOLEAN NOT NULL,
	lock_version INTEGER NOT NULL,
	boot INTEGER NOT NULL,
	seconds FLOAT NOT NULL,
	active_since DATETIME,
	made_at DATETIME,
	used_at DATETIME NOT NULL,
	changed_at DATETIME NOT NULL,
	idle_timeout FLOAT NOT NULL,
	max_lifetime FLOAT NOT NULL,
	snapshot VARCHAR(300),
	snapshot_at DATETIME,
	CONSTRAINT fk_sandboxes_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT pk_sandboxes PRIMARY KEY (label)
);

CREATE TABLE schedules (
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	conversation VARCHAR(40) NOT NULL,
	kind VARCHAR(20) NOT NULL,
	text TEXT NOT NULL,
	at DATETIME,
	every_seconds BIGINT,
	cron VARCHAR(100),
	timezone VARCHAR(64) NOT NULL,
	missed VARCHAR(20) NOT NULL,
	state VARCHAR(20) NOT NULL,
	next_at DATETIME,
	last_at DATETIME,
	last_turn VARCHAR(40),
	fired INTEGER NOT NULL,
	note VARCHAR(300) NOT NULL,
	created_by VARCHAR(200) NOT NULL,
	created_at DATETIME NOT NULL, heartbeat BOOLEAN DEFAULT 0 NOT NULL,
	CONSTRAINT fk_schedules_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT fk_schedules_conversation_conversations FOREIGN KEY(conversation) REFERENCES conversations (id) ON DELETE CASCADE,
	CONSTRAINT pk_schedules PRIMARY KEY (id)
);

CREATE TABLE "steps" (
	turn VARCHAR(40) NOT NULL,
	step_key VARCHAR(120) NOT NULL,
	position INTEGER NOT NULL,
	tool VARCHAR(60) NOT NULL,
	args JSON NOT NULL,
	state VARCHAR(20) NOT NULL,
	result JSON,
	started_at DATETIME NOT NULL,
	finished_at DATETIME,
	account VARCHAR(40) NOT NULL,
	CONSTRAINT fk_steps_turn_turns FOREIGN KEY(turn) REFERENCES turns (id) ON DELETE CASCADE,
	CONSTRAINT pk_steps PRIMARY KEY (turn, step_key)
);

CREATE TABLE streams (
	conversation VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	agent VARCHAR(40) NOT NULL,
	last_n INTEGER NOT NULL,
	relayed_n INTEGER NOT NULL,
	last_seq BIGINT NOT NULL, active_at DATETIME DEFAULT '1970-01-01 00:00:00.000000' NOT NULL,
	CONSTRAINT pk_streams PRIMARY KEY (conversation)
);

CREATE TABLE triggers (
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	conversation VARCHAR(40) NOT NULL,
	template TEXT NOT NULL,
	sealed TEXT NOT NULL,
	created_by VARCHAR(200) NOT NULL,
	created_at DATETIME NOT NULL,
	CONSTRAINT fk_triggers_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT fk_triggers_conversation_conversations FOREIGN KEY(conversation) REFERENCES conversations (id) ON DELETE CASCADE,
	CONSTRAINT pk_triggers PRIMARY KEY (id)
);

CREATE TABLE turns (
	position INTEGER NOT NULL,
	id VARCHAR(40) NOT NULL,
	account VARCHAR(40) NOT NULL,
	conversation VARCHAR(40) NOT NULL,
	agent VARCHAR(40) NOT NULL,
	"trigger" VARCHAR(20) NOT NULL,
	message VARCHAR(40),
	job VARCHAR(40),
	asker VARCHAR(200) NOT NULL,
	input TEXT NOT NULL,
	state VARCHAR(20) NOT NULL,
	attempt INTEGER NOT NULL,
	crashes INTEGER NOT NULL,
	runner VARCHAR(80),
	cancel BOOLEAN NOT NULL,
	cancel_why VARCHAR(40),
	mode VARCHAR(20),
	merged_into VARCHAR(40),
	retried_as VARCHAR(40),
	notify BOOLEAN NOT NULL,
	output TEXT,
	error TEXT,
	paused BLOB,
	usage JSON,
	created_at DATETIME NOT NULL,
	next_at DATETIME,
	started_at DATETIME,
	finished_at DATETIME, origin JSON, context JSON, request JSON, model VARCHAR(200),
	CONSTRAINT fk_turns_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT fk_turns_conversation_conversations FOREIGN KEY(conversation) REFERENCES conversations (id) ON DELETE CASCADE,
	CONSTRAINT pk_turns PRIMARY KEY (position),
	CONSTRAINT uq_turns_id UNIQUE (id),
	CONSTRAINT uq_turns_job UNIQUE (job)
);

CREATE TABLE usage (
	id VARCHAR(60) NOT NULL,
	account VARCHAR(40) NOT NULL,
	agent VARCHAR(40) NOT NULL,
	conversation VARCHAR(40) NOT NULL,
	kind VARCHAR(20) NOT NULL,
	what VARCHAR(200) NOT NULL,
	reason VARCHAR(40) NOT NULL,
	seconds FLOAT NOT NULL,
	requests BIGINT NOT NULL,
	input_tokens BIGINT NOT NULL,
	output_tokens BIGINT NOT NULL,
	micros BIGINT NOT NULL,
	started_at DATETIME NOT NULL,
	ended_at DATETIME NOT NULL, reserved JSON, reserved_until DATETIME,
	CONSTRAINT fk_usage_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT pk_usage PRIMARY KEY (id)
);

CREATE TABLE usage_totals (
	account VARCHAR(40) NOT NULL,
	agent VARCHAR(40) NOT NULL,
	seconds FLOAT NOT NULL,
	requests BIGINT NOT NULL,
	input_tokens BIGINT NOT NULL,
	output_tokens BIGINT NOT NULL,
	micros BIGINT NOT NULL, deleted_name VARCHAR(200),
	CONSTRAINT fk_usage_totals_account_accounts FOREIGN KEY(account) REFERENCES accounts (id) ON DELETE CASCADE,
	CONSTRAINT pk_usage_totals PRIMARY KEY (account, agent)
);

CREATE INDEX ix_approvals_account ON approvals (account);

CREATE INDEX ix_approvals_conversation ON approvals (conversation);

CREATE INDEX ix_approvals_pending ON approvals (created_at) WHERE state = 'pending';

CREATE INDEX ix_approvals_turn ON approvals (turn);

CREATE INDEX ix_attempts_delivery ON attempts (delivery);

CREATE INDEX ix_audit_account ON audit (account);

CREATE INDEX ix_audit_created_at ON audit (created_at);

CREATE INDEX ix_blobs_dropping ON blobs (sha256) WHERE dropping;

CREATE INDEX ix_blobs_touched_at ON blobs (touched_at);

CREATE INDEX ix_branches_account ON branches (account);

CREATE INDEX ix_branches_conversation ON branches (conversation, created_at);

CREATE INDEX ix_budget_counters_ends_at ON budget_counters (ends_at);

CREATE INDEX ix_channel_notes_updated_at ON channel_notes (updated_at);

CREATE INDEX ix_conversations_account ON conversations (account);

CREATE INDEX ix_conversations_unnamed ON conversations (created_at) WHERE name IS NULL AND channel IS NULL;

CREATE INDEX ix_deliveries_account ON deliveries (account);

CREATE INDEX ix_deliveries_approvals ON deliveries (destination, platform_id) WHERE event_type = 'approval.requested';

CREATE INDEX ix_deliveries_conversation ON deliveries (conversation);

CREATE INDEX ix_deliveries_event_id ON deliveries (event_id);

CREATE INDEX ix_deliveries_failed ON deliveries (state) WHERE state IN ('ambiguous', 'dead');

CREATE INDEX ix_deliveries_messages ON deliveries (destination, platform_id) WHERE event_type = 'message.completed' AND platform_id IS NOT NULL;

CREATE INDEX ix_deliveries_open ON deliveries (destination, position) WHERE state IN ('pending', 'sending', 'retrying', 'parked');

CREATE INDEX ix_deliveries_turn ON deliveries (turn);

CREATE INDEX ix_destinations_dead ON destinations (destination) WHERE dead_at IS NOT NULL;

CREATE INDEX ix_drafts_created_at ON drafts (created_at);

CREATE INDEX ix_drafts_turn ON drafts (turn);

CREATE INDEX ix_ended_sign_ins_account ON ended_sign_ins (account);

CREATE INDEX ix_endpoints_account ON endpoints (account);

CREATE INDEX ix_files_account ON files (account);

CREATE INDEX ix_files_created_at ON files (created_at);

CREATE INDEX ix_files_expires ON files (expires_at) WHERE expires_at IS NOT NULL;

CREATE INDEX ix_files_job ON files (job) WHERE job IS NOT NULL;

CREATE INDEX ix_files_sha256 ON files (sha256);

CREATE INDEX ix_files_turn ON files (turn);

CREATE INDEX ix_histories_account ON histories (account);

CREATE INDEX ix_histories_conversation ON histories (conversation, position);

CREATE INDEX ix_identities_person ON identities (person);

CREATE INDEX ix_inbox_created_at ON inbox (created_at);

CREATE INDEX ix_job_calls_account ON job_calls (account);

CREATE INDEX ix_jobs_account ON jobs (account);

CREATE INDEX ix_jobs_conversation ON jobs (conversation);

CREATE INDEX ix_jobs_state ON jobs (state, sandbox);

CREATE INDEX ix_keys_account ON keys (account);

CREATE INDEX ix_keys_expires_at ON keys (expires_at);

CREATE INDEX ix_memories_subject ON memories (account, scope, subject);

CREATE INDEX ix_messages_conversation ON messages (conversation, position);

CREATE INDEX ix_messages_platform_id ON messages (platform_id, conversation);

CREATE INDEX ix_messages_turn ON messages (turn);

CREATE INDEX ix_outbox_created_at ON outbox (created_at);

CREATE INDEX ix_outbox_turn ON outbox (turn);

CREATE INDEX ix_pairings_requests ON pairings (expires_at) WHERE paired_at IS NULL;

CREATE INDEX ix_persons_budget ON persons (account) WHERE budget is not null;

CREATE INDEX ix_persons_code ON persons (account, code_digest);

CREATE INDEX ix_records_account ON records (account);

CREATE INDEX ix_records_kind ON records (kind, id);

CREATE INDEX ix_replies_created_at ON replies (created_at);

CREATE INDEX ix_room_messages_account ON room_messages (account);

CREATE INDEX ix_room_messages_created_at ON room_messages (created_at);

CREATE INDEX ix_room_messages_room ON room_messages (room, position);

CREATE INDEX ix_routes_conversation ON routes (conversation);

CREATE INDEX ix_routes_turn ON routes (turn) WHERE turn IS NOT NULL;

CREATE INDEX ix_sandbox_leases_expires_at ON sandbox_leases (expires_at);

CREATE INDEX ix_sandboxes_account ON sandboxes (account);

CREATE INDEX ix_sandboxes_sandbox ON sandboxes (sandbox, provider);

CREATE INDEX ix_schedules_account ON schedules (account);

CREATE INDEX ix_schedules_conversation ON schedules (conversation);

CREATE INDEX ix_schedules_ended ON schedules (last_at) WHERE state = 'ended';

CREATE INDEX ix_schedules_next_at ON schedules (next_at);

CREATE INDEX ix_streams_account ON streams (account);

CREATE INDEX ix_streams_activity ON streams (account, active_at, conversation);

CREATE INDEX ix_streams_behind ON streams (conversation) WHERE relayed_n < last_n;

CREATE INDEX ix_triggers_account ON triggers (account);

CREATE INDEX ix_triggers_conversation ON triggers (conversation);

CREATE INDEX ix_turns_account ON turns (account);

CREATE INDEX ix_turns_dead ON turns (conversation) WHERE state = 'failed' AND retried_as IS NULL AND substr(error, 1, 10) = 'given up: ';

CREATE INDEX ix_turns_open ON turns (conversation, position) WHERE state IN ('queued', 'running', 'waiting');

CREATE INDEX ix_turns_queue ON turns (conversation, state, position);

CREATE INDEX ix_usage_account ON usage (account, ended_at);

CREATE INDEX ix_usage_conversation ON usage (conversation);

CREATE INDEX ix_usage_ended_at ON usage (ended_at);

CREATE INDEX ix_usage_reserved_until ON usage (reserved_until) WHERE reserved_until is not null
