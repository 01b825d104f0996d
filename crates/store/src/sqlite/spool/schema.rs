//! Tables of `spool.db`, as forward-only migrations.

/// Migrations. A released one is never changed; new ones are appended.
pub(in crate::sqlite) const MIGRATIONS: &[&str] = &[
    r#"
CREATE TABLE exchanges (
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    text TEXT NOT NULL,
    author TEXT NOT NULL,
    applied_at INTEGER NOT NULL,        -- times are microseconds since 1970
    PRIMARY KEY (name, version)
) STRICT, WITHOUT ROWID;

-- Send ports whose state was set by an operator.
CREATE TABLE ports (
    exchange TEXT NOT NULL,
    port TEXT NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (exchange, port)
) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT: the id of a removed message is not used again.
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    exchange TEXT NOT NULL,
    port TEXT NOT NULL,
    kind INTEGER NOT NULL,              -- the position in MessageKind::ALL
    answers INTEGER,
    reply INTEGER,
    key TEXT,
    digest BLOB,
    head TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    accepted_at INTEGER NOT NULL,
    expires_at INTEGER,
    open INTEGER NOT NULL,              -- legs that are waiting or suspended
    suspended TEXT,
    ended_at INTEGER,
    ending INTEGER,                     -- the position in Ending::ALL
    kept INTEGER NOT NULL               -- microseconds after it ended
) STRICT;
CREATE UNIQUE INDEX messages_by_key ON messages (exchange, port, key) WHERE key IS NOT NULL;
CREATE INDEX messages_that_expire ON messages (expires_at) WHERE expires_at IS NOT NULL AND ending IS NULL;
CREATE INDEX messages_that_go ON messages (ended_at + kept) WHERE ended_at IS NOT NULL;
CREATE INDEX messages_suspended ON messages (id) WHERE suspended IS NOT NULL;

-- One row for each message, never changed, so that the rows that change stay small.
CREATE TABLE bodies (id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;

CREATE TABLE legs (
    message INTEGER NOT NULL,
    number INTEGER NOT NULL,
    exchange TEXT NOT NULL,
    port TEXT NOT NULL,
    replies INTEGER NOT NULL,
    state INTEGER NOT NULL,             -- the position in LegState::ALL
    attempts INTEGER NOT NULL,
    on_backup INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    tried_at INTEGER,
    said TEXT,
    PRIMARY KEY (message, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX legs_waiting ON legs (exchange, port, due_at, message, number) WHERE state = 0;
CREATE INDEX legs_suspended ON legs (message) WHERE state = 2;
"#,
    r#"
ALTER TABLE messages ADD COLUMN part_of INTEGER;
CREATE INDEX messages_of_parts ON messages (part_of) WHERE part_of IS NOT NULL;
"#,
    r#"
-- For ports that send in order: the key. For ports with priorities: the acceptance time minus the head start.
ALTER TABLE legs ADD COLUMN lane TEXT;
ALTER TABLE legs ADD COLUMN rank INTEGER;
CREATE INDEX legs_in_lanes ON legs (exchange, port, message, number, state, due_at, lane)
    WHERE lane IS NOT NULL AND state IN (0, 2);
CREATE INDEX legs_by_rank ON legs (exchange, port, rank, message, number) WHERE rank IS NOT NULL AND state = 0;
"#,
    r#"
-- Messages before an operator edited them.
CREATE TABLE originals (
    message INTEGER PRIMARY KEY,
    head TEXT NOT NULL,
    body BLOB NOT NULL,
    edited_by TEXT NOT NULL,
    edited_at INTEGER NOT NULL
) STRICT;
"#,
    r#"
-- Rates set by operators. The port is empty for the total rate of all ports.
CREATE TABLE rates (
    exchange TEXT NOT NULL,
    side TEXT NOT NULL,
    port TEXT NOT NULL,
    rate TEXT NOT NULL,
    PRIMARY KEY (exchange, side, port)
) STRICT, WITHOUT ROWID;

-- Times at which throttling began or ended, and the reasons.
CREATE TABLE throttles (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    exchange TEXT NOT NULL,
    side TEXT NOT NULL,
    port TEXT NOT NULL,
    reason TEXT NOT NULL,
    begins INTEGER NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE INDEX throttles_of_exchange ON throttles (exchange, id);
"#,
    r#"
-- Messages that wait for aggregation: a row for each group, and a row for each message.
CREATE TABLE gatherings (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    exchange TEXT NOT NULL,
    port TEXT NOT NULL,
    key TEXT NOT NULL,
    form TEXT NOT NULL,
    count INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    due_at INTEGER NOT NULL,            -- when they become one // when they are aggregated
    is_full INTEGER NOT NULL            -- nothing joins them any more // no more messages are added
) STRICT;
CREATE UNIQUE INDEX gatherings_that_take ON gatherings (exchange, port, key) WHERE is_full = 0;
CREATE INDEX gatherings_by_due ON gatherings (due_at);
CREATE TABLE gathered (message INTEGER PRIMARY KEY, gathering INTEGER NOT NULL) STRICT;
CREATE INDEX gathered_by_gathering ON gathered (gathering, message);
"#,
    r#"
-- Checkpoints of the locations of receive ports, in the format of each location type.
CREATE TABLE location_marks (
    exchange TEXT NOT NULL,
    port TEXT NOT NULL,
    location TEXT NOT NULL,
    part TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (exchange, port, location, part)
) STRICT, WITHOUT ROWID;
"#,
    r#"
-- Assignment of messages to partitions; each partition is a file with this schema. Only the first file has this row, and
-- only if there was ever a second partition.
CREATE TABLE layout (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    partitions INTEGER NOT NULL,
    dense INTEGER NOT NULL,             -- ids up to this one: first partition; others: their last four bits
    last INTEGER NOT NULL               -- the highest id of any message at the last start
) STRICT;

-- Earlier numbers of partitions, each with the last id that was assigned with it.
CREATE TABLE layouts_before (partitions INTEGER PRIMARY KEY, last INTEGER NOT NULL) STRICT;

-- Receive ports whose messages stay in one partition: messages from locations, with their marks, and messages to aggregate.
CREATE TABLE homes (
    exchange TEXT NOT NULL,
    port TEXT NOT NULL,
    partition INTEGER NOT NULL,
    PRIMARY KEY (exchange, port)
) STRICT, WITHOUT ROWID;
INSERT INTO homes SELECT exchange, port, 0 FROM location_marks UNION SELECT exchange, port, 0 FROM gatherings;
"#,
    // An insert into a table with AUTOINCREMENT writes the highest id into another table each time. Ids are assigned in
    // memory, so it is enough to record the highest id when messages are removed. The keyword affects only inserts, not
    // the file format; rebuilding the table would take time proportional to the number of messages.
    r#"
CREATE TABLE taken_ids (one INTEGER PRIMARY KEY CHECK (one = 1), last INTEGER NOT NULL) STRICT;
INSERT INTO taken_ids SELECT 1, seq FROM sqlite_sequence WHERE name = 'messages';
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, 'PRIMARY KEY AUTOINCREMENT', 'PRIMARY KEY')
    WHERE type = 'table' AND name = 'messages';
PRAGMA writable_schema = RESET;
"#,
    r#"
-- For legs whose reply comes later: the receive port through which it comes, and its correlation key.
ALTER TABLE legs ADD COLUMN through TEXT;
ALTER TABLE legs ADD COLUMN awaits TEXT;
CREATE INDEX legs_that_await ON legs (exchange, through, awaits, message, number) WHERE awaits IS NOT NULL;
CREATE INDEX legs_awaiting ON legs (due_at, message, number) WHERE state = 4;
"#,
    r#"
-- The API key that sent a message; empty if it came in another way, or before this column existed. Each sender has its
-- own idempotency keys.
ALTER TABLE messages ADD COLUMN sender TEXT NOT NULL DEFAULT '';
DROP INDEX messages_by_key;
CREATE UNIQUE INDEX messages_by_key ON messages (exchange, port, key, sender) WHERE key IS NOT NULL;

-- Attempts and operator actions, a bounded number for each message.
CREATE TABLE history (
    message INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    act INTEGER NOT NULL,               -- the position in HistoryAction::ALL
    port TEXT,
    attempt INTEGER,
    on_backup INTEGER NOT NULL,
    acted_by TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (message, number)
) STRICT, WITHOUT ROWID;
"#,
    crate::sqlite::audit::SCHEMA,
];
