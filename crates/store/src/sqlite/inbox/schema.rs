//! The tables of `inbox.db`, as steps that only go forward.

/// The steps. One that has been released is never changed; a new one is added.
pub(in crate::sqlite) const MIGRATIONS: &[&str] = &[r#"
-- The end of the sequence, up to where it is not known any more what was removed, and how much there is: one row.
CREATE TABLE books (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    sequence INTEGER NOT NULL,
    forgotten INTEGER NOT NULL,
    items INTEGER NOT NULL,
    contents INTEGER NOT NULL
) STRICT;
INSERT INTO books VALUES (1, 0, 0, 0, 0);

-- What items say, once for all that say the same of the same events.
CREATE TABLE contents (
    number INTEGER PRIMARY KEY,
    scope INTEGER,                      -- the event batch; null for a broadcast
    hash BLOB,                          -- 16 bytes of SHA-256; in a scope they come about together, so the index grows at its end
    application TEXT NOT NULL,
    class TEXT NOT NULL,
    channel TEXT,
    body TEXT NOT NULL,                 -- a JSON object
    holders INTEGER NOT NULL            -- items and broadcasts that say it; without any it goes
) STRICT;
CREATE UNIQUE INDEX contents_by_hash ON contents (scope, hash);

-- Only what is there. A feed lies together, in the order in which it came.
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
    changed INTEGER NOT NULL,           -- the place of its last change; `number` if there was none
    PRIMARY KEY (subscriber, number)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX items_by_notification ON items (batch, ordinal);
CREATE INDEX items_by_expiry ON items (expires_at);
CREATE INDEX items_that_changed ON items (subscriber, changed) WHERE changed <> number;
-- How many items each feed has, if any.
CREATE TABLE feeds (subscriber INTEGER PRIMARY KEY, items INTEGER NOT NULL) STRICT;

-- What was removed before its time: it does not come back, and readers who were away are told.
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
    readers INTEGER NOT NULL,           -- how many have read it
    withdrawn_at INTEGER,
    gone INTEGER NOT NULL               -- 1: nobody need be told any more; it waits for its removal
) STRICT;
CREATE UNIQUE INDEX broadcasts_by_name ON broadcasts (application, name) WHERE withdrawn_at IS NULL AND gone = 0;
-- What somebody did with a broadcast. Whoever did nothing has no row.
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
"#];
