//! The tables of `records.db`, as steps that only go forward.

/// The steps. One that has been released is never changed; a new one is added.
pub(in crate::sqlite) const MIGRATIONS: &[&str] = &[
    r#"
-- Numbers that were given out, and how many there are: one row, changed by every commit that changes either.
CREATE TABLE books (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    subscriber INTEGER NOT NULL,        -- the last number given; numbers are never used twice
    subscription INTEGER NOT NULL,
    change INTEGER NOT NULL,
    trimmed INTEGER NOT NULL,           -- changes up to this one are not kept any more
    subscribers INTEGER NOT NULL,       -- how many there are
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
    address_hash INTEGER NOT NULL,      -- an index of 64-bit numbers is smaller and quicker than one of addresses
    state INTEGER NOT NULL,             -- 0 active, 1 disabled, 2 bounced
    PRIMARY KEY (subscriber, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX devices_by_address ON devices (address_hash);

-- A class has a small number, so that millions of subscriptions do not repeat its name.
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
-- Finds those of a subscriber, and keeps keys unique; null keys are all different.
CREATE UNIQUE INDEX subscriptions_by_subscriber ON subscriptions (subscriber, class, key);
-- Finds those of a class in the order of their numbers. New ones are appended to it, which is cheap.
CREATE INDEX subscriptions_by_class ON subscriptions (class);

CREATE TABLE changes (
    sequence INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL,              -- 0 application, 1 subscriber, 2 subscriptions, 3 API key
    name TEXT,                          -- the application
    first INTEGER,                      -- the subscriber, or the first subscription
    last INTEGER,                       -- the last subscription
    before TEXT                         -- of a subscriber: the channels of its active devices by name, null if disabled
) STRICT;
-- Subscriptions as they were before a change or removal, so that the state as of an earlier change can be told.
CREATE TABLE before_images (
    sequence INTEGER NOT NULL,
    subscription INTEGER NOT NULL,
    class INTEGER NOT NULL,
    matched INTEGER NOT NULL,           -- whether it and its subscriber were enabled
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
-- What a subscription asks for beside its parameters: a filter as `dialect:text`, a schedule as text of RFC 5545.
ALTER TABLE subscriptions ADD COLUMN filter TEXT;
ALTER TABLE subscriptions ADD COLUMN schedule TEXT;
ALTER TABLE before_images ADD COLUMN filter TEXT;
ALTER TABLE before_images ADD COLUMN schedule TEXT;
"#,
    r#"
-- Saved filters over subscribers. A change of one is of kind 5 in the feed, with its filter as it was as `before`.
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
-- Images from which the whole state as of an earlier change can be told. Those before this step could not tell all, so the
-- feed begins anew. In `changes` there is one more kind: 4 subscriptions that were made, `first` to `last`.
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
-- The schedules of a class, each with its zone, and who follows which: the index by which due subscriptions are found.
CREATE TABLE schedules (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- rises, so that a follower finds what is new
    class INTEGER NOT NULL,
    text TEXT NOT NULL,
    made_at INTEGER NOT NULL,
    UNIQUE (class, text)
) STRICT;
CREATE TABLE scheduled (
    subscription INTEGER PRIMARY KEY,
    schedule INTEGER NOT NULL,
    since INTEGER NOT NULL,             -- events accepted before are not its
    joined INTEGER NOT NULL             -- the change by which it came to this schedule
) STRICT;
CREATE INDEX scheduled_by_schedule ON scheduled (schedule);
"#,
    r#"
-- While there are segments, changes of what they ask of a subscriber are told: kind 6, with the subscriber as it was.
CREATE INDEX changes_of_segments ON changes (name) WHERE kind = 5;
CREATE INDEX changes_of_profiles ON changes (first) WHERE kind = 6;
"#,
    r#"
-- The keys that sign links and return addresses are made from it.
ALTER TABLE installation ADD COLUMN secret BLOB CHECK (length(secret) = 32);
"#,
    r#"
-- What a subscriber wants to be told, and when not: a JSON object; null if nothing is said.
ALTER TABLE subscribers ADD COLUMN preferences TEXT;
"#,
    r#"
-- What is known against addresses and devices. A change is of kind 7 in the feed, with the targets as JSON in `before`.
CREATE TABLE suppressions (
    target TEXT PRIMARY KEY,            -- `address/<protocol>/<address>` or `device/<subscriber>/<device>`
    address TEXT,                       -- of a device: it holds only for this address
    cause TEXT NOT NULL,
    in_force INTEGER NOT NULL,
    origin TEXT NOT NULL,
    detail TEXT NOT NULL,
    notification TEXT,
    bounces TEXT NOT NULL,              -- the soft bounces that count, as JSON
    since INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX suppressions_that_end ON suppressions (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX changes_of_suppressions ON changes (sequence) WHERE kind = 7;
"#,
    r#"
-- Endpoints that have only failed of late; no part of the change feed.
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
-- The directory. A subscriber that was placed in its tree says where; the others stand together.
ALTER TABLE subscribers ADD COLUMN parent INTEGER;      -- the number of an entry: an object, or a subscriber below zero
ALTER TABLE subscribers ADD COLUMN rdn TEXT;
ALTER TABLE subscribers ADD COLUMN rdn_key TEXT;        -- in normal form
ALTER TABLE subscribers ADD COLUMN classes TEXT;
CREATE UNIQUE INDEX subscribers_by_place ON subscribers (parent, rdn_key) WHERE parent IS NOT NULL;
-- Entries that are no subscribers.
CREATE TABLE entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    parent INTEGER NOT NULL,            -- 0 above the first
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
-- The indexes that hold all entries.
CREATE TABLE entry_indexes (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TABLE credentials (entry INTEGER PRIMARY KEY, credential TEXT NOT NULL) STRICT;
CREATE TABLE definitions (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    identifier TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL
) STRICT;
"#,
    r#"
-- Of one that is disabled: when it is enabled by itself.
ALTER TABLE subscriptions ADD COLUMN snoozed_until INTEGER;
CREATE INDEX subscriptions_that_wake ON subscriptions (snoozed_until) WHERE snoozed_until IS NOT NULL;
"#,
    r#"
-- How many subscriptions a class has, counted as they change, so that nobody has to look through them.
CREATE TABLE subscription_counts (
    class INTEGER PRIMARY KEY,
    enabled INTEGER NOT NULL,
    disabled INTEGER NOT NULL,
    added INTEGER NOT NULL,             -- ever, those that were there at this step of the schema included
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
-- The secret of the installation, sealed; then `secret` is null.
ALTER TABLE installation ADD COLUMN sealed_secret TEXT;
"#,
    r#"
-- What changed of the directory, for those who follow it. The number 0 stands where the feed was cut.
CREATE TABLE entry_changes (place INTEGER PRIMARY KEY, entry INTEGER NOT NULL) STRICT;
"#,
    r#"
-- Subscribers that became parts of others. In `changes` there is one more kind: 8 subscriptions that went over.
CREATE TABLE merges (
    from_number INTEGER PRIMARY KEY,
    into_number INTEGER NOT NULL,
    from_id TEXT NOT NULL,
    report TEXT NOT NULL,               -- a JSON object
    at INTEGER NOT NULL,
    finished INTEGER NOT NULL           -- 0: its feed may still lie where it lay
) STRICT;
CREATE INDEX merges_by_id ON merges (from_id);
CREATE INDEX merges_unfinished ON merges (from_number) WHERE finished = 0;
"#,
    r#"
-- Most changes of kind 6 tell from here on what the change took away, and one of sixteen all that there was. No table changes.
"#,
    r#"
-- Merges are forgotten after a while, the oldest first.
CREATE INDEX merges_by_time ON merges (at) WHERE finished = 1;
"#,
    r#"
-- What tells of a profile names in `last` what told of it before, and the subscriber names the newest. So only what tells all that
-- there was needs an index; it is of kind 9 from here on.
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
-- A new subscriber comes behind all others here, too, which fills pages and leaves those before alone.
ALTER TABLE credentials RENAME TO credentials_by_entry;
CREATE TABLE credentials (
    holder INTEGER PRIMARY KEY,         -- a subscriber, or another entry below zero
    credential TEXT NOT NULL
) STRICT;
INSERT INTO credentials SELECT -entry, credential FROM credentials_by_entry ORDER BY entry DESC;
DROP TABLE credentials_by_entry;
"#,
    r#"
-- Values of objects that come and go one by one, such as the members of a group: a group of many is not written as a whole.
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
-- What stands directly below an entry, in the order of its making: a search below a small container looks only there.
CREATE INDEX subscribers_by_parent ON subscribers (parent, number);
CREATE INDEX entries_by_parent ON entries (parent, number);
"#,
    r#"
-- The resources that a key is limited to, as a list of JSON; an empty one: it is unlimited.
ALTER TABLE api_keys ADD COLUMN resources TEXT NOT NULL DEFAULT '[]';
"#,
    r#"
-- What the API can look for and few rows meet. A row that is enabled, or has no key, is in none of them.
CREATE INDEX subscriptions_by_key ON subscriptions (key) WHERE key IS NOT NULL;
CREATE INDEX subscriptions_disabled ON subscriptions (class) WHERE enabled = 0;
CREATE INDEX subscribers_disabled ON subscribers (id) WHERE enabled = 0;
"#,
];
