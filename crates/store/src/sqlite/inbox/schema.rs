//! Tables of `inbox.db`, as forward-only migrations.

/// Migrations. A released one is never changed; new ones are appended.
pub(in crate::sqlite) const MIGRATIONS: &[&str] = &[
    r#"
-- The end of the sequence, the sequence up to which removals are no longer known, and counts: one row.
CREATE TABLE books (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    sequence INTEGER NOT NULL,
    forgotten INTEGER NOT NULL,
    items INTEGER NOT NULL,
    contents INTEGER NOT NULL
) STRICT;
INSERT INTO books VALUES (1, 0, 0, 0, 0);

-- Contents of items; items with the same content of the same event batch share one row.
CREATE TABLE contents (
    number INTEGER PRIMARY KEY,
    scope INTEGER,                      -- the event batch; null for a broadcast
    hash BLOB,                          -- 16 bytes of SHA-256; contents of one scope are added together, so the index grows at its end
    application TEXT NOT NULL,
    class TEXT NOT NULL,
    channel TEXT,
    body TEXT NOT NULL,                 -- a JSON object
    holders INTEGER NOT NULL            -- items and broadcasts with this content; removed at 0
) STRICT;
CREATE UNIQUE INDEX contents_by_hash ON contents (scope, hash);

-- Existing items. The rows of a feed are stored together, in order of arrival.
CREATE TABLE items (
    subscriber INTEGER NOT NULL,
    number INTEGER NOT NULL,
    batch INTEGER NOT NULL,             -- the notification
    ordinal INTEGER NOT NULL,
    content INTEGER NOT NULL,
    created_at INTEGER NOT NULL,        -- times are microseconds since 1970
    expires_at INTEGER NOT NULL,
    read_at INTEGER,
    archived_at INTEGER,
    changed INTEGER NOT NULL,           -- the sequence of its last change; `number` if there was none
    PRIMARY KEY (subscriber, number)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX items_by_notification ON items (batch, ordinal);
CREATE INDEX items_by_expiry ON items (expires_at);
CREATE INDEX items_that_changed ON items (subscriber, changed) WHERE changed <> number;
-- Number of items of each feed that is not empty.
CREATE TABLE feeds (subscriber INTEGER PRIMARY KEY, items INTEGER NOT NULL) STRICT;

-- Items removed before their expiry: they are not delivered again, and returning readers get the removal.
CREATE TABLE removed (
    subscriber INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    number INTEGER NOT NULL,
    batch INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    removed_at INTEGER NOT NULL,
    PRIMARY KEY (subscriber, changed)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX removed_by_notification ON removed (batch, ordinal);
CREATE INDEX removed_by_time ON removed (removed_at);

CREATE TABLE broadcasts (
    number INTEGER PRIMARY KEY,
    application TEXT NOT NULL,
    name TEXT NOT NULL,
    audience TEXT,                      -- a segment; null for everybody
    content INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    readers INTEGER NOT NULL,           -- number of readers
    withdrawn_at INTEGER,
    gone INTEGER NOT NULL               -- 1: no longer visible, to be removed
) STRICT;
CREATE UNIQUE INDEX broadcasts_by_name ON broadcasts (application, name) WHERE withdrawn_at IS NULL AND gone = 0;
-- State of a broadcast for a subscriber; without changes there is no row.
CREATE TABLE touches (
    subscriber INTEGER NOT NULL,
    broadcast INTEGER NOT NULL,
    read_at INTEGER,
    archived_at INTEGER,
    deleted INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    PRIMARY KEY (subscriber, broadcast)
) STRICT, WITHOUT ROWID;
CREATE INDEX touches_by_broadcast ON touches (broadcast);
"#,
    crate::sqlite::audit::SCHEMA,
];
