//! Tables of the journal. Large bodies are written once into tables of their own and never rewritten; the state that
//! changes is in small rows.
//!
//! Row numbers are assigned by the journal and never reused, not even after a row was pruned. Times are microseconds
//! since 1970. A body is compressed if it is shorter than its `bytes` column says.

pub(in crate::sqlite) const MIGRATIONS: &[&str] = &[
    "
-- Increases with each opening; the high bits of every fencing token.
CREATE TABLE epoch (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL) STRICT;
INSERT INTO epoch VALUES (1, 0);

-- Dictionary: names of applications, classes, rules, sources and channels.
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;

-- Backlog, totals and last assigned numbers; updated in the commit of what they count.
CREATE TABLE tally (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    event_batches INTEGER NOT NULL DEFAULT 0,
    events INTEGER NOT NULL DEFAULT 0,
    notification_batches INTEGER NOT NULL DEFAULT 0,
    notifications INTEGER NOT NULL DEFAULT 0,
    delivered INTEGER NOT NULL DEFAULT 0,
    deferred INTEGER NOT NULL DEFAULT 0,
    refused INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0,
    suspended INTEGER NOT NULL DEFAULT 0,
    ended INTEGER NOT NULL DEFAULT 0,
    waiting_batches INTEGER NOT NULL DEFAULT 0,
    waiting_events INTEGER NOT NULL DEFAULT 0,
    waiting_bytes INTEGER NOT NULL DEFAULT 0,
    failed_batches INTEGER NOT NULL DEFAULT 0,
    waiting_notifications INTEGER NOT NULL DEFAULT 0,
    work_items INTEGER NOT NULL DEFAULT 0,
    suspended_notifications INTEGER NOT NULL DEFAULT 0,
    last_event_batch INTEGER NOT NULL DEFAULT 0,
    last_notification_batch INTEGER NOT NULL DEFAULT 0,
    last_work INTEGER NOT NULL DEFAULT 0,
    last_suspension INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO tally (one) VALUES (1);

CREATE TABLE event_batches (
    id INTEGER PRIMARY KEY,
    application INTEGER NOT NULL,
    version INTEGER NOT NULL,
    class INTEGER NOT NULL,
    source INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    accepted_at INTEGER NOT NULL,
    events INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;

-- Each event batch is in exactly one of these three tables.
CREATE TABLE event_waiting (
    id INTEGER PRIMARY KEY,
    events INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    accepted_at INTEGER NOT NULL
) STRICT;
CREATE TABLE event_failed (id INTEGER PRIMARY KEY, application INTEGER NOT NULL, reason TEXT NOT NULL) STRICT;
-- `open` counts its notification batches that are not closed.
CREATE TABLE event_matched (
    id INTEGER PRIMARY KEY,
    matched_at INTEGER NOT NULL,
    open INTEGER NOT NULL,
    closed_at INTEGER
) STRICT;
CREATE INDEX event_closed ON event_matched (closed_at) WHERE closed_at IS NOT NULL;

CREATE TABLE idempotency (
    key BLOB PRIMARY KEY,
    content BLOB NOT NULL,
    batch INTEGER NOT NULL,
    until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_until ON idempotency (until);

CREATE TABLE notification_batches (
    id INTEGER PRIMARY KEY,
    application INTEGER NOT NULL,
    version INTEGER NOT NULL,
    rule INTEGER NOT NULL,
    class INTEGER NOT NULL,
    event_class INTEGER NOT NULL,
    channel INTEGER NOT NULL,
    matched_at INTEGER NOT NULL,
    accepted_at INTEGER NOT NULL,
    expires_at INTEGER,
    notifications INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
-- `open` counts the notifications without a closing attempt; `events` lists their event batches.
CREATE TABLE notification_states (
    id INTEGER PRIMARY KEY,
    open INTEGER NOT NULL,
    closed_at INTEGER,
    events BLOB NOT NULL
) STRICT;
CREATE INDEX notification_closed ON notification_states (closed_at) WHERE closed_at IS NOT NULL;
CREATE TABLE links (
    event_batch INTEGER NOT NULL,
    notification_batch INTEGER NOT NULL,
    PRIMARY KEY (event_batch, notification_batch)
) STRICT, WITHOUT ROWID;

-- `open` counts unfinished notifications, `done` lists finished ones. NULL `ordinals` means the whole batch.
CREATE TABLE work (
    id INTEGER PRIMARY KEY,
    batch INTEGER NOT NULL,
    application INTEGER NOT NULL,
    channel INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    notifications INTEGER NOT NULL,
    open INTEGER NOT NULL,
    ordinals BLOB,
    done BLOB
) STRICT;
CREATE INDEX work_due ON work (application, channel, due_at);
CREATE INDEX work_of_batch ON work (batch);

-- The id is the batch number, shifted left, plus the position of the chunk in the batch.
CREATE TABLE receipts (id INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, body BLOB NOT NULL) STRICT;

CREATE TABLE suspensions (
    id INTEGER PRIMARY KEY,
    batch INTEGER NOT NULL,
    application INTEGER NOT NULL,
    channel INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    since INTEGER NOT NULL,
    notifications INTEGER NOT NULL,
    ordinals BLOB NOT NULL,
    reason TEXT NOT NULL
) STRICT;
CREATE INDEX suspensions_of_batch ON suspensions (batch);
",
    "
-- Failed or skipped firings of a rule for a batch, or for an unbroken run of batches that began with `run`.
CREATE TABLE firings (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    application TEXT NOT NULL,
    rule TEXT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    batches INTEGER NOT NULL,
    run INTEGER,
    since INTEGER NOT NULL
) STRICT;
CREATE INDEX firings_of_run ON firings (application, rule, run) WHERE run IS NOT NULL;
CREATE TABLE rule_stops (
    application TEXT NOT NULL,
    rule TEXT NOT NULL,
    \"by\" TEXT NOT NULL,
    reason TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (application, rule)
) STRICT, WITHOUT ROWID;
",
    "
-- Progress of rule schedules: the last due time processed, and the event batch after which the next run
-- begins.
CREATE TABLE schedule_runs (
    application TEXT NOT NULL,
    rule TEXT NOT NULL,
    schedule TEXT NOT NULL,
    due_at INTEGER NOT NULL,
    after INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    skipped_at INTEGER,
    PRIMARY KEY (application, rule, schedule)
) STRICT, WITHOUT ROWID;
",
    "
-- Snapshot sequences: event batches from `first` on see the records up to the change `sees`. A row only where it differs
-- from the batch before; batches before the first row have no sequence.
CREATE TABLE places (first INTEGER PRIMARY KEY, sees INTEGER NOT NULL) STRICT;
",
    "
-- Change sequence of the records at the last run of a schedule.
ALTER TABLE schedule_runs ADD COLUMN seen INTEGER NOT NULL DEFAULT 0;
",
    "
-- Rule state, in pages that only the matcher can read. The number is an unsigned 64-bit integer.
CREATE TABLE states (
    id INTEGER PRIMARY KEY,
    application TEXT NOT NULL,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX states_of ON states (application, name, number);
",
    "
-- Chronicle values read for the events of a batch, in a form that only the matcher can read. Compressed like bodies.
CREATE TABLE event_chronicles (id INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, body BLOB NOT NULL) STRICT;
",
    "
-- Scheduling state of work: priority (0: urgent, 2: normal), end of the digest window, number of failed channels of the
-- fallback chain, start of the present channel, and the content that an operator put in its place.
ALTER TABLE work ADD COLUMN priority INTEGER NOT NULL DEFAULT 2;
ALTER TABLE work ADD COLUMN window_end INTEGER;
ALTER TABLE work ADD COLUMN fallback INTEGER NOT NULL DEFAULT 0;
ALTER TABLE work ADD COLUMN since INTEGER;
ALTER TABLE work ADD COLUMN edit TEXT;
DROP INDEX work_due;
CREATE INDEX work_due ON work (application, channel, priority, due_at);
CREATE INDEX work_gathering ON work (application, channel, window_end) WHERE window_end IS NOT NULL;
ALTER TABLE suspensions ADD COLUMN priority INTEGER NOT NULL DEFAULT 2;
ALTER TABLE suspensions ADD COLUMN window_end INTEGER;
ALTER TABLE suspensions ADD COLUMN fallback INTEGER NOT NULL DEFAULT 0;
ALTER TABLE suspensions ADD COLUMN edit TEXT;
",
    "
-- Resend requests, and the batch up to which they are processed.
CREATE TABLE resends (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    request TEXT NOT NULL,
    \"by\" TEXT NOT NULL,
    asked_at INTEGER NOT NULL,
    reached INTEGER NOT NULL,
    last INTEGER NOT NULL,
    notifications INTEGER NOT NULL,
    done_at INTEGER
) STRICT;
",
    "
-- Checkpoints of sources, in parts that only the source can read.
CREATE TABLE source_marks (
    application INTEGER NOT NULL,
    source INTEGER NOT NULL,
    part TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (application, source, part)
) STRICT, WITHOUT ROWID;
",
    "
-- Streams with per-minute activity counters. Kind 0: events (application, class, source); 1: notifications
-- (application, rule, class, event class, channel); 2: failed and skipped firings (application, rule).
CREATE TABLE streams (
    id INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL,
    application INTEGER NOT NULL,
    b INTEGER NOT NULL,
    c INTEGER NOT NULL,
    d INTEGER NOT NULL,
    e INTEGER NOT NULL,
    UNIQUE (kind, application, b, c, d, e)
) STRICT;
CREATE TABLE activity (
    stream INTEGER NOT NULL,
    minute INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (stream, minute)
) STRICT, WITHOUT ROWID;
INSERT INTO streams (kind, application, b, c, d, e) SELECT DISTINCT 0, application, class, source, 0, 0 FROM event_batches;
INSERT INTO streams (kind, application, b, c, d, e)
    SELECT DISTINCT 1, application, rule, class, event_class, channel FROM notification_batches;

-- Quanta: runs of the matcher.
CREATE TABLE quanta (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    started_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX quanta_ended ON quanta (ended_at);

-- Delivery progress of a batch. Attempts before this migration are not counted.
ALTER TABLE notification_states ADD COLUMN application INTEGER NOT NULL DEFAULT 0;
ALTER TABLE notification_states ADD COLUMN class INTEGER NOT NULL DEFAULT 0;
ALTER TABLE notification_states ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE notification_states ADD COLUMN delivered INTEGER NOT NULL DEFAULT 0;
ALTER TABLE notification_states ADD COLUMN failed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE notification_states ADD COLUMN first_sent_at INTEGER;
ALTER TABLE notification_states ADD COLUMN last_answered_at INTEGER;
UPDATE notification_states SET application = b.application, class = b.class
    FROM notification_batches b WHERE b.id = notification_states.id;
CREATE INDEX notification_failed ON notification_states (id) WHERE failed > 0;

-- Each class has a retention of its own.
DROP INDEX notification_closed;
CREATE INDEX notification_closed ON notification_states (application, class, closed_at) WHERE closed_at IS NOT NULL;
ALTER TABLE event_waiting ADD COLUMN application INTEGER NOT NULL DEFAULT 0;
ALTER TABLE event_waiting ADD COLUMN class INTEGER NOT NULL DEFAULT 0;
UPDATE event_waiting SET application = b.application, class = b.class
    FROM event_batches b WHERE b.id = event_waiting.id;
ALTER TABLE event_matched ADD COLUMN application INTEGER NOT NULL DEFAULT 0;
ALTER TABLE event_matched ADD COLUMN class INTEGER NOT NULL DEFAULT 0;
UPDATE event_matched SET application = b.application, class = b.class
    FROM event_batches b WHERE b.id = event_matched.id;
DROP INDEX event_closed;
CREATE INDEX event_closed ON event_matched (application, class, closed_at) WHERE closed_at IS NOT NULL;

-- Components that an operator paused or disabled.
CREATE TABLE switches (
    component TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    \"by\" TEXT NOT NULL,
    reason TEXT NOT NULL,
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
",
    "
-- Trace contexts of the events of a batch, if any.
CREATE TABLE event_traces (id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
",
    "
-- Notification batches that a scheduled run made from other events, by the event batch of its due time; deleted with it.
CREATE TABLE run_links (
    run INTEGER NOT NULL,
    notification_batch INTEGER NOT NULL,
    PRIMARY KEY (run, notification_batch)
) STRICT, WITHOUT ROWID;
",
    "
-- Finds waiting batches by class while other classes are paused.
CREATE INDEX event_waiting_class ON event_waiting (application, class, id);
",
    "
-- Broadcasts: messages of people to an audience. `queued`: an event for the next part is in the journal. The counts
-- are of notification batches that retention has deleted.
CREATE TABLE broadcasts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    application TEXT NOT NULL,
    draft TEXT NOT NULL,
    \"by\" TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    starts_at INTEGER NOT NULL,
    state TEXT NOT NULL,
    queued INTEGER NOT NULL,
    version INTEGER,
    started_at INTEGER,
    reached INTEGER NOT NULL,
    examined INTEGER NOT NULL,
    matched_at INTEGER,
    changed_at INTEGER NOT NULL,
    changed_by TEXT NOT NULL,
    reason TEXT,
    recipients INTEGER NOT NULL,
    delivered INTEGER NOT NULL,
    failed INTEGER NOT NULL
) STRICT;
CREATE INDEX broadcasts_startable ON broadcasts (starts_at)
    WHERE state IN ('scheduled', 'running') AND queued = 0 AND matched_at IS NULL;
CREATE TABLE broadcast_batches (notification_batch INTEGER PRIMARY KEY, broadcast INTEGER NOT NULL) STRICT;
CREATE INDEX broadcast_batches_of ON broadcast_batches (broadcast, notification_batch);
",
    "
-- Notifications of delayed rules that wait. `run` is the event batch of the due time; 0: not due.
CREATE TABLE delayed (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    application INTEGER NOT NULL,
    rule INTEGER NOT NULL,
    event_batch INTEGER NOT NULL,
    event INTEGER NOT NULL,
    subscription INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    key TEXT,
    run INTEGER NOT NULL,
    UNIQUE (application, rule, event_batch, event, subscription)
) STRICT;
CREATE INDEX delayed_due ON delayed (application, run, due_at, rule);
CREATE INDEX delayed_rules ON delayed (application, rule, run, due_at);
CREATE INDEX delayed_keys ON delayed (application, rule, key) WHERE key IS NOT NULL;
CREATE INDEX delayed_subscriptions ON delayed (subscription);
CREATE INDEX delayed_runs ON delayed (run) WHERE run > 0;
CREATE TABLE delayed_counts (application INTEGER PRIMARY KEY, waiting INTEGER NOT NULL) STRICT;
",
    "
-- Mails to mailbox providers by day; no `daily_limit`: no limit.
CREATE TABLE provider_days (
    application TEXT NOT NULL,
    channel TEXT NOT NULL,
    provider TEXT NOT NULL,
    day INTEGER NOT NULL,
    daily_limit INTEGER,
    sent INTEGER NOT NULL,
    held_back INTEGER NOT NULL,
    PRIMARY KEY (application, channel, provider, day)
) STRICT, WITHOUT ROWID;
",
    "
-- Erasures of persons that are not finished. `person` is a JSON list of the id, the names and the subscriptions; null
-- once only free parts of the file are to be overwritten.
CREATE TABLE erasures (
    subscriber INTEGER PRIMARY KEY,
    person TEXT,
    asked_at INTEGER NOT NULL,
    last_event INTEGER NOT NULL,
    events INTEGER NOT NULL,
    notifications INTEGER NOT NULL
) STRICT;
-- Fills free pages while they are overwritten.
CREATE TABLE fill (number INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
",
    crate::sqlite::audit::SCHEMA,
];
