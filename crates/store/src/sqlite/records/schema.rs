//! Tables of `records.db`, as forward-only migrations.

/// Migrations. A released one is never changed; new ones are appended.
pub(in crate::sqlite) const MIGRATIONS: &[&str] = &[
    r#"
-- Id counters and row counts: one row, updated by every commit that changes them.
CREATE TABLE books (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    subscriber INTEGER NOT NULL,        -- last number assigned; numbers are never reused
    subscription INTEGER NOT NULL,
    change INTEGER NOT NULL,
    trimmed INTEGER NOT NULL,           -- changes up to this one were removed
    subscribers INTEGER NOT NULL,       -- number of rows
    devices INTEGER NOT NULL,
    subscriptions INTEGER NOT NULL
) STRICT;
INSERT INTO books VALUES (1, 0, 0, 0, 0, 0, 0, 0);

CREATE TABLE installation (one INTEGER PRIMARY KEY CHECK (one = 1), identity TEXT NOT NULL) STRICT;

CREATE TABLE applications (name TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE application_versions (
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    text TEXT NOT NULL,
    author TEXT NOT NULL,
    applied_at INTEGER NOT NULL,        -- times are microseconds since 1970
    UNIQUE (name, version)
) STRICT;

CREATE TABLE subscribers (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    enabled INTEGER NOT NULL,
    locale TEXT,
    time_zone TEXT,
    attributes TEXT,                    -- a JSON object; null if it is empty
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    revision INTEGER NOT NULL
) STRICT;

CREATE TABLE devices (
    subscriber INTEGER NOT NULL,
    name TEXT NOT NULL,
    channel TEXT NOT NULL,
    address TEXT NOT NULL,
    address_hash INTEGER NOT NULL,      -- an index of 64-bit hashes is smaller and faster than one of addresses
    state INTEGER NOT NULL,             -- 0 active, 1 disabled, 2 bounced
    PRIMARY KEY (subscriber, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX devices_by_address ON devices (address_hash);

-- Dictionary of classes, so that millions of subscriptions do not repeat a name.
CREATE TABLE classes (
    number INTEGER PRIMARY KEY,
    application TEXT NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (application, name)
) STRICT;

CREATE TABLE subscriptions (
    id INTEGER PRIMARY KEY,
    class INTEGER NOT NULL,
    subscriber INTEGER NOT NULL,
    key TEXT,
    device TEXT,
    enabled INTEGER NOT NULL,
    parameters TEXT NOT NULL,           -- a JSON object
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    revision INTEGER NOT NULL
) STRICT;
-- Finds subscriptions by subscriber, and keeps keys unique; null keys are all different.
CREATE UNIQUE INDEX subscriptions_by_subscriber ON subscriptions (subscriber, class, key);
-- Finds subscriptions by class in order of number. New ones are appended, which is cheap.
CREATE INDEX subscriptions_by_class ON subscriptions (class);

CREATE TABLE changes (
    sequence INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL,              -- 0 application, 1 subscriber, 2 subscriptions, 3 API key
    name TEXT,                          -- the application
    first INTEGER,                      -- the subscriber, or the first subscription
    last INTEGER,                       -- the last subscription
    before TEXT                         -- of a subscriber: the channels of its active devices by name, null if disabled
) STRICT;
-- Before-images of changed or removed subscriptions, to reconstruct the state at an earlier sequence.
CREATE TABLE before_images (
    sequence INTEGER NOT NULL,
    subscription INTEGER NOT NULL,
    class INTEGER NOT NULL,
    matched INTEGER NOT NULL,           -- whether the subscription and its subscriber were enabled
    parameters TEXT NOT NULL,
    channel TEXT,
    PRIMARY KEY (sequence, subscription)
) STRICT, WITHOUT ROWID;

CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    hash BLOB NOT NULL,
    description TEXT NOT NULL,
    scopes TEXT NOT NULL,               -- a JSON array
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT, WITHOUT ROWID;
"#,
    r#"
-- Optional filter of a subscription as `dialect:text`, and schedule as RFC 5545 text.
ALTER TABLE subscriptions ADD COLUMN filter TEXT;
ALTER TABLE subscriptions ADD COLUMN schedule TEXT;
ALTER TABLE before_images ADD COLUMN filter TEXT;
ALTER TABLE before_images ADD COLUMN schedule TEXT;
"#,
    r#"
-- Saved filters over subscribers. Logged as kind 5, with the former filter in `before`.
CREATE TABLE segments (
    name TEXT PRIMARY KEY,
    description TEXT,
    filter TEXT NOT NULL,               -- text of RFC 4515
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"#,
    r#"
-- Before-images with the whole row. Those before this migration were incomplete, so the
-- change log starts anew. New kind in `changes`: 4 subscriptions created, `first` to `last`.
DROP TABLE before_images;
CREATE TABLE before_images (
    sequence INTEGER NOT NULL,
    subscription INTEGER NOT NULL,
    class INTEGER NOT NULL,
    subscriber INTEGER NOT NULL,
    device TEXT,
    enabled INTEGER NOT NULL,
    parameters TEXT NOT NULL,
    filter TEXT,
    schedule TEXT,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (subscription, sequence)
) STRICT, WITHOUT ROWID;
CREATE INDEX before_images_by_sequence ON before_images (sequence);
CREATE INDEX before_images_by_subscriber ON before_images (subscriber);
DELETE FROM changes;
UPDATE books SET trimmed = change;
CREATE INDEX changes_of_subscribers ON changes (first) WHERE kind = 1;
CREATE INDEX changes_that_made ON changes (sequence) WHERE kind = 4;
"#,
    r#"
-- Schedules of a class, each with its time zone, and the subscriptions of each: the index of due subscriptions.
CREATE TABLE schedules (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- increases, so that readers find new schedules
    class INTEGER NOT NULL,
    text TEXT NOT NULL,
    made_at INTEGER NOT NULL,
    UNIQUE (class, text)
) STRICT;
CREATE TABLE scheduled (
    subscription INTEGER PRIMARY KEY,
    schedule INTEGER NOT NULL,
    since INTEGER NOT NULL,             -- it receives no events accepted before
    joined INTEGER NOT NULL             -- change by which it joined this schedule
) STRICT;
CREATE INDEX scheduled_by_schedule ON scheduled (schedule);
"#,
    r#"
-- Profile changes are logged while there are segments: kind 6, with the former profile.
CREATE INDEX changes_of_segments ON changes (name) WHERE kind = 5;
CREATE INDEX changes_of_profiles ON changes (first) WHERE kind = 6;
"#,
    r#"
-- Secret from which the keys that sign links and return addresses are derived.
ALTER TABLE installation ADD COLUMN secret BLOB CHECK (length(secret) = 32);
"#,
    r#"
-- Notification preferences: a JSON object; null if there are none.
ALTER TABLE subscribers ADD COLUMN preferences TEXT;
"#,
    r#"
-- Suppressions of addresses and devices. Logged as kind 7, with the targets as JSON in `before`.
CREATE TABLE suppressions (
    target TEXT PRIMARY KEY,            -- `address/<protocol>/<address>` or `device/<subscriber>/<device>`
    address TEXT,                       -- for a device: the only address it applies to
    cause TEXT NOT NULL,
    in_force INTEGER NOT NULL,
    origin TEXT NOT NULL,
    detail TEXT NOT NULL,
    notification TEXT,
    bounces TEXT NOT NULL,              -- soft bounces counted, as JSON
    since INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX suppressions_that_end ON suppressions (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX changes_of_suppressions ON changes (sequence) WHERE kind = 7;
"#,
    r#"
-- Endpoints whose recent deliveries all failed; not part of the change log.
CREATE TABLE failing_endpoints (
    application TEXT NOT NULL,
    channel TEXT NOT NULL,
    address TEXT NOT NULL,
    subscriber TEXT,
    device TEXT,
    since INTEGER NOT NULL,
    last INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    reason TEXT NOT NULL,
    warned_at INTEGER,
    disabled_at INTEGER,
    PRIMARY KEY (application, channel, address)
) STRICT, WITHOUT ROWID;
"#,
    r#"
-- The directory. Placement of a subscriber in the tree; null: in the default container.
ALTER TABLE subscribers ADD COLUMN parent INTEGER;      -- number of an entry: positive for objects, negative for subscribers
ALTER TABLE subscribers ADD COLUMN rdn TEXT;
ALTER TABLE subscribers ADD COLUMN rdn_key TEXT;        -- normalized
ALTER TABLE subscribers ADD COLUMN classes TEXT;
CREATE UNIQUE INDEX subscribers_by_place ON subscribers (parent, rdn_key) WHERE parent IS NOT NULL;
-- Entries that are not subscribers.
CREATE TABLE entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    parent INTEGER NOT NULL,            -- 0 for the root
    rdn TEXT NOT NULL,
    rdn_key TEXT NOT NULL,
    attributes TEXT NOT NULL,           -- a JSON object
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    UNIQUE (parent, rdn_key)
) STRICT;
CREATE TABLE entry_keys (
    name TEXT NOT NULL,                 -- the index
    key BLOB NOT NULL,
    entry INTEGER NOT NULL,
    PRIMARY KEY (name, key, entry)
) STRICT, WITHOUT ROWID;
-- Complete indexes.
CREATE TABLE entry_indexes (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TABLE credentials (entry INTEGER PRIMARY KEY, credential TEXT NOT NULL) STRICT;
CREATE TABLE definitions (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    identifier TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL
) STRICT;
"#,
    r#"
-- End of a snooze: the subscription is then enabled automatically.
ALTER TABLE subscriptions ADD COLUMN snoozed_until INTEGER;
CREATE INDEX subscriptions_that_wake ON subscriptions (snoozed_until) WHERE snoozed_until IS NOT NULL;
"#,
    r#"
-- Number of subscriptions of each class, maintained by triggers, so that no scan is needed.
CREATE TABLE subscription_counts (
    class INTEGER PRIMARY KEY,
    enabled INTEGER NOT NULL,
    disabled INTEGER NOT NULL,
    added INTEGER NOT NULL,             -- in total, including those present at this migration
    last_added_at INTEGER NOT NULL
) STRICT;
INSERT INTO subscription_counts
    SELECT class, sum(enabled), sum(1 - enabled), count(*), max(created_at) FROM subscriptions GROUP BY class;
CREATE TRIGGER subscription_added AFTER INSERT ON subscriptions BEGIN
    INSERT INTO subscription_counts VALUES (new.class, new.enabled, 1 - new.enabled, 1, new.created_at)
    ON CONFLICT (class) DO UPDATE SET enabled = enabled + new.enabled, disabled = disabled + 1 - new.enabled,
        added = added + 1, last_added_at = max(last_added_at, new.created_at);
END;
CREATE TRIGGER subscription_removed AFTER DELETE ON subscriptions BEGIN
    UPDATE subscription_counts SET enabled = enabled - old.enabled, disabled = disabled - 1 + old.enabled
    WHERE class = old.class;
END;
CREATE TRIGGER subscription_switched AFTER UPDATE OF enabled ON subscriptions WHEN old.enabled <> new.enabled BEGIN
    UPDATE subscription_counts
    SET enabled = enabled + new.enabled - old.enabled, disabled = disabled - new.enabled + old.enabled
    WHERE class = new.class;
END;
"#,
    r#"
-- Sealed secret of the installation; `secret` is then null.
ALTER TABLE installation ADD COLUMN sealed_secret TEXT;
"#,
    r#"
-- Change log of directory entries. Entry 0 marks the start of a new log.
CREATE TABLE entry_changes (place INTEGER PRIMARY KEY, entry INTEGER NOT NULL) STRICT;
"#,
    r#"
-- Merges of subscribers. New kind in `changes`: 8 subscriptions moved.
CREATE TABLE merges (
    from_number INTEGER PRIMARY KEY,
    into_number INTEGER NOT NULL,
    from_id TEXT NOT NULL,
    report TEXT NOT NULL,               -- a JSON object
    at INTEGER NOT NULL,
    finished INTEGER NOT NULL           -- 0: the inbox feed may not have been moved yet
) STRICT;
CREATE INDEX merges_by_id ON merges (from_id);
CREATE INDEX merges_unfinished ON merges (from_number) WHERE finished = 0;
"#,
    r#"
-- From here on, most changes of kind 6 hold the changed parts only, and one of sixteen the whole profile. No table changes.
"#,
    r#"
-- Merges are deleted after a year, oldest first.
CREATE INDEX merges_by_time ON merges (at) WHERE finished = 1;
"#,
    r#"
-- A profile change links to the previous one by `last`, and the subscriber to the newest by `told`. So only full
-- before-images need an index; they are of kind 9 from here on.
ALTER TABLE subscribers ADD COLUMN told INTEGER;
UPDATE changes SET last = (
        SELECT max(earlier.sequence) FROM changes earlier
        WHERE earlier.kind = 6 AND earlier.first = changes.first AND earlier.sequence < changes.sequence
    ) WHERE kind = 6;
UPDATE subscribers SET told = (SELECT max(sequence) FROM changes WHERE kind = 6 AND first = subscribers.number)
    WHERE number IN (SELECT first FROM changes WHERE kind = 6);
DROP INDEX changes_of_profiles;
UPDATE changes SET kind = 9 WHERE kind = 6 AND json_extract(before, '$.id') IS NOT NULL;
CREATE INDEX changes_of_profiles ON changes (first) WHERE kind = 9;
"#,
    r#"
-- Ordered so that new subscribers are appended, which fills pages one by one.
ALTER TABLE credentials RENAME TO credentials_by_entry;
CREATE TABLE credentials (
    holder INTEGER PRIMARY KEY,         -- the negated entry number
    credential TEXT NOT NULL
) STRICT;
INSERT INTO credentials SELECT -entry, credential FROM credentials_by_entry ORDER BY entry DESC;
DROP TABLE credentials_by_entry;
"#,
    r#"
-- Row values of objects, such as the members of a group: a change of one member does not rewrite the group.
CREATE TABLE entry_values (
    entry INTEGER NOT NULL,
    name TEXT NOT NULL,                 -- the attribute
    value TEXT NOT NULL,
    PRIMARY KEY (entry, name, value)
) STRICT, WITHOUT ROWID;
INSERT INTO entry_values
    SELECT entries.number, attribute.key, item.value
    FROM entries, json_each(entries.attributes) AS attribute,
        json_each(CASE attribute.type WHEN 'array' THEN attribute.value ELSE json_array(attribute.value) END) AS item
    WHERE attribute.key IN ('member', 'roleOccupant', 'uniqueMember') AND item.type = 'text'
    ON CONFLICT DO NOTHING;
UPDATE entries SET attributes = json_remove(attributes, '$.member', '$.roleOccupant', '$.uniqueMember')
    WHERE number IN (SELECT entry FROM entry_values);
-- Children of an entry in order of creation: a search below a small container reads only those.
CREATE INDEX subscribers_by_parent ON subscribers (parent, number);
CREATE INDEX entries_by_parent ON entries (parent, number);
"#,
    r#"
-- Resources that a key is limited to, as a JSON list; empty: unlimited.
ALTER TABLE api_keys ADD COLUMN resources TEXT NOT NULL DEFAULT '[]';
"#,
    r#"
-- Partial indexes for selective filters of the API. Enabled rows and rows without a key are in none of them.
CREATE INDEX subscriptions_by_key ON subscriptions (key) WHERE key IS NOT NULL;
CREATE INDEX subscriptions_disabled ON subscriptions (class) WHERE enabled = 0;
CREATE INDEX subscribers_disabled ON subscribers (id) WHERE enabled = 0;
"#,
    r#"
-- Latest time at which a disabled row was enabled; null: never. Scheduled rules skip events that were accepted before.
ALTER TABLE subscriptions ADD COLUMN enabled_at INTEGER;
ALTER TABLE subscribers ADD COLUMN enabled_at INTEGER;
"#,
    r#"
-- Descriptions of removed keys, which definitions, switches and messages still name as their authors.
CREATE TABLE removed_api_keys (
    id TEXT PRIMARY KEY,
    description TEXT NOT NULL
) STRICT;
"#,
    r#"
-- Order of the removals: the change that logged each. The oldest are deleted.
ALTER TABLE removed_api_keys ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0;
"#,
    r#"
-- Consent of subscriptions: 0 pending, 1 confirmed, 2 withdrawn; null: none needed. Without it `enabled` is 0.
ALTER TABLE subscriptions ADD COLUMN consent INTEGER;
CREATE TABLE consents (
    subscription INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    request INTEGER NOT NULL,           -- number of the last request; links and codes derive from it
    requested_at INTEGER NOT NULL,
    sent_at INTEGER NOT NULL,
    counted_from INTEGER NOT NULL,      -- start of the day in which messages are counted
    messages INTEGER NOT NULL,
    attempts INTEGER NOT NULL,          -- wrong codes
    expires_at INTEGER,                 -- of a pending one
    code BLOB,                          -- hash of a code chosen by another system
    channel TEXT,                       -- of the address that the message goes to
    address TEXT
) STRICT;
CREATE INDEX consents_that_end ON consents (expires_at) WHERE expires_at IS NOT NULL;
-- Texts that persons agreed to, each once.
CREATE TABLE consent_texts (number INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE consent_evidence (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    subscriber INTEGER NOT NULL,        -- 0 once the person is erased
    subscription INTEGER NOT NULL,
    class INTEGER NOT NULL,
    act TEXT NOT NULL,
    at INTEGER NOT NULL,
    way TEXT NOT NULL,
    acted_by TEXT NOT NULL,
    channel TEXT,
    address TEXT,                       -- null once the person is erased
    address_hash TEXT,
    text INTEGER,
    version TEXT,
    remote TEXT,
    proof TEXT,
    erased_at INTEGER
) STRICT;
CREATE INDEX consent_evidence_by_subscription ON consent_evidence (subscription);
CREATE INDEX consent_evidence_by_subscriber ON consent_evidence (subscriber) WHERE erased_at IS NULL;
CREATE INDEX consent_evidence_erased ON consent_evidence (erased_at) WHERE erased_at IS NOT NULL;
"#,
    r#"
-- Feedback to sent messages: bounces, complaints and replies, one row for each report.
CREATE TABLE feedback (
    number INTEGER PRIMARY KEY,
    target TEXT NOT NULL,               -- as in `suppressions`
    class TEXT NOT NULL,
    report_key TEXT NOT NULL,           -- the notification, message or event, which counts once
    reported_at INTEGER NOT NULL,
    stage TEXT NOT NULL,                -- `session` or `report`
    counts INTEGER NOT NULL,            -- 1: it counts toward the threshold of its class
    effect TEXT NOT NULL,
    origin TEXT NOT NULL,
    detail TEXT NOT NULL,
    status TEXT,
    batch INTEGER,                      -- the notification, if known
    ordinal INTEGER,
    subscriber TEXT,
    device TEXT,
    expires_at INTEGER NOT NULL,
    UNIQUE (target, class, report_key)
) STRICT;
CREATE INDEX feedback_by_target ON feedback (target, number);
CREATE INDEX feedback_by_batch ON feedback (batch, number) WHERE batch IS NOT NULL;
CREATE INDEX feedback_by_subscriber ON feedback (subscriber) WHERE subscriber IS NOT NULL;
CREATE INDEX feedback_by_expiry ON feedback (expires_at);
"#,
    r#"
-- Outbox of lifecycle events: changes of subscriptions that event classes are bound to.
CREATE TABLE lifecycle_filters (
    application TEXT NOT NULL,
    change TEXT NOT NULL,
    class TEXT NOT NULL,                -- empty: all classes
    PRIMARY KEY (application, change, class)
) STRICT, WITHOUT ROWID;
CREATE TABLE lifecycle_entries (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    application TEXT NOT NULL,
    class TEXT NOT NULL,
    change TEXT NOT NULL,
    subscriber INTEGER NOT NULL,
    at INTEGER NOT NULL,
    event TEXT NOT NULL                 -- a JSON object
) STRICT;
CREATE INDEX lifecycle_entries_by_application ON lifecycle_entries (application, position);
CREATE INDEX lifecycle_entries_by_subscriber ON lifecycle_entries (subscriber);
"#,
    r#"
-- Whether a withdrawal can be undone without another confirmation.
ALTER TABLE consents ADD COLUMN was_confirmed INTEGER NOT NULL DEFAULT 0;
UPDATE consents SET was_confirmed = 1 WHERE state = 1;
"#,
    r#"
-- Documents of NotifyBC records. Absent properties are empty texts.
CREATE TABLE notifybc_documents (
    place INTEGER PRIMARY KEY,
    collection INTEGER NOT NULL,
    id TEXT NOT NULL,
    body TEXT NOT NULL,                 -- a JSON object, without the id and the columns below
    service TEXT NOT NULL,
    channel TEXT NOT NULL,
    address TEXT NOT NULL,              -- in lower case
    address_hash INTEGER,               -- null without an address
    user_id TEXT NOT NULL,
    state TEXT NOT NULL,
    unique_key TEXT,
    subscription INTEGER,               -- the native subscription, which may be removed
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    UNIQUE (collection, id)
) STRICT;
-- Written in random order, so it has no more than it needs.
CREATE INDEX notifybc_documents_by_address ON notifybc_documents (collection, address_hash, state)
    WHERE address_hash IS NOT NULL;
CREATE INDEX notifybc_documents_by_user ON notifybc_documents (collection, user_id, id) WHERE user_id <> '';
CREATE INDEX notifybc_documents_by_service ON notifybc_documents (collection, service, state, id);
CREATE INDEX notifybc_documents_by_state ON notifybc_documents (collection, state, id);
CREATE UNIQUE INDEX notifybc_documents_by_unique ON notifybc_documents (collection, unique_key)
    WHERE unique_key IS NOT NULL;
CREATE INDEX notifybc_documents_by_subscription ON notifybc_documents (subscription) WHERE subscription IS NOT NULL;
"#,
    r#"
-- Users of the console, and their sessions.
CREATE TABLE users (
    name TEXT PRIMARY KEY,
    display_name TEXT NOT NULL,
    email TEXT,
    roles TEXT NOT NULL,                -- a JSON array
    password TEXT,                      -- an Argon2id hash
    oidc_subject TEXT,
    language TEXT,
    time_zone TEXT,
    disabled INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    last_login_at INTEGER,
    revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX users_by_oidc_subject ON users (oidc_subject) WHERE oidc_subject IS NOT NULL;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    hash BLOB NOT NULL,                 -- SHA-256 of the token
    user_name TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    last_used_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    reauthenticated_at INTEGER NOT NULL,
    address TEXT,
    user_agent TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_by_user ON sessions (user_name, last_used_at);
"#,
    crate::sqlite::audit::SCHEMA,
    r#"
-- Saved capacity profiles, and the last uses of API keys.
CREATE TABLE capacity_profiles (
    name TEXT PRIMARY KEY,
    text TEXT NOT NULL,                 -- YAML
    author TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE api_key_uses (
    id TEXT PRIMARY KEY,
    used_at INTEGER NOT NULL,
    used_from TEXT
) STRICT, WITHOUT ROWID;
"#,
];
