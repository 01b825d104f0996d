//! Tables of `sync.db`, as forward-only migrations.

/// Migrations. A released one is never changed; new ones are appended.
pub(in crate::sqlite) const MIGRATIONS: &[&str] = &[
    r#"
-- The last stamp, the stamp up to which removals are no longer known, and counts: one row.
CREATE TABLE books (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    sequence INTEGER NOT NULL,
    forgotten INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    removed INTEGER NOT NULL
) STRICT;
INSERT INTO books VALUES (1, 0, 0, 0, 0);

CREATE TABLE collections (
    number INTEGER PRIMARY KEY,
    application TEXT NOT NULL,
    name TEXT NOT NULL,
    partition TEXT NOT NULL,            -- the partitioning that was last applied
    UNIQUE (application, name)
) STRICT;
CREATE TABLE keys (number INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT;

CREATE TABLE rows (
    number INTEGER PRIMARY KEY,
    collection INTEGER NOT NULL,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,           -- stamps
    sequence INTEGER NOT NULL,
    author INTEGER NOT NULL,
    seen INTEGER NOT NULL,
    body TEXT,                          -- a JSON object; null if it was removed
    columns TEXT,
    keys BLOB NOT NULL,                 -- 4 bytes each, big-endian, ascending
    UNIQUE (collection, id)
) STRICT;
CREATE INDEX rows_that_are_gone ON rows (sequence) WHERE body IS NULL;
-- Rows whose keys depend on other rows.
CREATE TABLE joins (
    collection INTEGER NOT NULL,        -- the other row
    id TEXT NOT NULL,
    row INTEGER NOT NULL,
    PRIMARY KEY (collection, id, row)
) STRICT, WITHOUT ROWID;
CREATE INDEX joins_by_row ON joins (row);

-- The rows of each key in order of change. The changes for a device are one range for each of its keys.
CREATE TABLE present (
    key INTEGER NOT NULL,
    sequence INTEGER NOT NULL,          -- of the row
    row INTEGER NOT NULL,
    first INTEGER NOT NULL,             -- the stamp since which devices with the key may know the row
    PRIMARY KEY (key, sequence)
) STRICT, WITHOUT ROWID;
-- Rows that were removed, or removed from the key.
CREATE TABLE absent (
    key INTEGER NOT NULL,
    sequence INTEGER NOT NULL,          -- the stamp of the removal
    row INTEGER NOT NULL,
    first INTEGER NOT NULL,
    PRIMARY KEY (key, sequence)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX absent_by_row ON absent (row, key);
CREATE INDEX absent_by_time ON absent (sequence);

CREATE TABLE devices (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    application TEXT NOT NULL,
    subscriber TEXT NOT NULL,
    subscriber_number INTEGER NOT NULL,
    name TEXT NOT NULL,
    collections TEXT,                   -- a JSON list
    may_write INTEGER NOT NULL,
    hash BLOB NOT NULL,
    created_at INTEGER NOT NULL,        -- times are microseconds since 1970
    expires_at INTEGER,
    wipe_at INTEGER,
    wiped_at INTEGER,
    uploaded INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE generations (
    device INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    keys BLOB NOT NULL,
    PRIMARY KEY (device, generation)
) STRICT, WITHOUT ROWID;

CREATE TABLE conflicts (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    collection INTEGER NOT NULL,
    row TEXT NOT NULL,
    at INTEGER NOT NULL,
    device INTEGER NOT NULL,
    resolver TEXT NOT NULL,
    winner TEXT NOT NULL,
    base TEXT NOT NULL,
    server TEXT NOT NULL,
    client TEXT NOT NULL,
    reverted_at INTEGER
) STRICT;
CREATE INDEX conflicts_by_collection ON conflicts (collection, number);
CREATE INDEX conflicts_by_time ON conflicts (at);
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    device INTEGER NOT NULL,
    began_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    tally TEXT NOT NULL                 -- a JSON object
) STRICT;
CREATE INDEX sessions_by_device ON sessions (device, number);
CREATE INDEX sessions_by_time ON sessions (ended_at);
"#,
    r#"
-- Events raised by changes of rows, in the order of the changes.
CREATE TABLE raised (
    application TEXT NOT NULL,
    stamp INTEGER NOT NULL,             -- of the change
    class TEXT NOT NULL,
    event TEXT NOT NULL,                -- a JSON object
    PRIMARY KEY (application, stamp)
) STRICT, WITHOUT ROWID;
-- The stamp up to which events were accepted.
CREATE TABLE raisers (application TEXT PRIMARY KEY, upto INTEGER NOT NULL) STRICT, WITHOUT ROWID;
ALTER TABLE books ADD COLUMN raised INTEGER NOT NULL DEFAULT 0;
"#,
    r#"
-- The periods of the server, one for each start. The state of a device is valid only up to the end of its period here: a
-- server that was restored from a backup has other periods after the backup.
CREATE TABLE periods (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,            -- random
    began INTEGER NOT NULL              -- the last stamp before it
) STRICT;
-- Edit batches of devices. Batches of one author are in order.
CREATE TABLE batches (
    device INTEGER NOT NULL,
    batch TEXT NOT NULL,
    place INTEGER NOT NULL,             -- the order in which the batches of a device arrived
    author INTEGER NOT NULL,
    upto INTEGER NOT NULL,              -- the last edit that was applied
    PRIMARY KEY (device, batch)
) STRICT, WITHOUT ROWID;
-- Further copies of a device's replica: each is a separate author.
CREATE TABLE authors (number INTEGER PRIMARY KEY AUTOINCREMENT, device INTEGER NOT NULL) STRICT;
"#,
    crate::sqlite::audit::SCHEMA,
];
