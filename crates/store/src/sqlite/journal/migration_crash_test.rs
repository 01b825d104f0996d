//! Crash test of migrations: a killed migration is complete or undone, and continues at the next opening.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rusqlite::Connection;

use super::{FILE, MIGRATIONS};
use crate::sqlite::writer::{Database, with_suffix};

/// Environment variable with the path of the child's file.
const VARIABLE: &str = "TOCSIN_TEST_MIGRATES";
const ROWS: u64 = 4_000;
const KILLS: usize = 20;

/// File of the first schema version, with rows.
fn old_file(path: &Path) {
    let connection = Connection::open(path).expect("it opens");
    connection.execute_batch("PRAGMA journal_mode = WAL; BEGIN").expect("begun");
    connection.execute_batch(MIGRATIONS[0]).expect("the first step");
    connection
        .execute_batch("INSERT INTO names VALUES (1, 'stock'), (2, 'trade'), (3, 'api'), (4, 'mail')")
        .expect("names");
    let body = vec![7u8; 600];
    for id in 1..=ROWS {
        connection
            .execute("INSERT INTO event_batches VALUES (?1, 1, 1, 2, 3, ?1, ?1, 4, 600, ?2)", (id, &body))
            .and_then(|_| connection.execute("INSERT INTO event_matched VALUES (?1, ?1, 0, ?1)", [id]))
            .and_then(|_| {
                let sql = "INSERT INTO notification_batches VALUES (?1, 1, 1, 2, 2, 2, 4, ?1, ?1, NULL, 1, 600, ?2)";
                connection.execute(sql, (id, &body))
            })
            .and_then(|_| connection.execute("INSERT INTO notification_states VALUES (?1, 0, ?1, x'02')", [id]))
            .expect("a row");
    }
    connection.execute_batch("PRAGMA user_version = 1; COMMIT").expect("stored");
}

/// Child process: migrates the file named by its environment, if any.
#[test]
fn the_child_migrates() {
    if let Some(path) = std::env::var_os(VARIABLE) {
        Database::open(&PathBuf::from(path), &FILE).expect("it migrates");
    }
}

fn migrate(path: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "sqlite::journal::migration_crash_test::the_child_migrates"])
        .env(VARIABLE, path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process")
}

fn log_bytes(path: &Path) -> u64 {
    std::fs::metadata(with_suffix(path, "-wal")).map_or(0, |found| found.len())
}

/// Schema version of a file, after an integrity check.
fn version(path: &Path) -> usize {
    let connection = Connection::open(path).expect("it opens");
    let sound: String = connection.query_row("PRAGMA integrity_check", (), |row| row.get(0)).expect("examined");
    assert_eq!(sound, "ok");
    let count = |sql: &str| connection.query_row::<u64, _, _>(sql, (), |row| row.get(0)).expect("counted");
    for table in ["event_batches", "event_matched", "notification_batches", "notification_states"] {
        assert_eq!(count(&format!("SELECT count(*) FROM {table}")), ROWS, "{table}");
    }
    let version = count("PRAGMA user_version") as usize;
    if version == MIGRATIONS.len() {
        assert_eq!(count("SELECT count(*) FROM event_matched WHERE application = 1 AND class = 2"), ROWS);
        assert_eq!(count("SELECT count(*) FROM notification_states WHERE application = 1 AND class = 2"), ROWS);
        assert_eq!(count("SELECT count(*) FROM streams"), 2);
    }
    version
}

#[test]
fn slow_a_killed_migration_is_complete_or_undone() {
    let folder = tempfile::tempdir().expect("a folder");
    let old = folder.path().join("old.db");
    old_file(&old);
    let seed =
        std::env::var("TOCSIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("TOCSIN_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut seen = std::collections::BTreeSet::new();
    for turn in 0..KILLS {
        let path = folder.path().join(format!("{turn}.db"));
        std::fs::copy(&old, &path).expect("copied");
        // Kills the child when its WAL has reached a random size, and a little later.
        let (far, later) = (random.u64(..3 << 20), random.u32(..200_000));
        let mut child = migrate(&path);
        while log_bytes(&path) < far && child.try_wait().expect("asked").is_none() {
            std::thread::yield_now();
        }
        (0..later).for_each(|_| std::hint::spin_loop());
        let _ = child.kill();
        child.wait().expect("it ended");
        seen.insert(version(&path));
        drop(Database::open(&path, &FILE).expect("it goes on"));
        assert_eq!(version(&path), MIGRATIONS.len());
    }
    println!("killed at the versions {seen:?}");
}
