use std::sync::{atomic::AtomicU64, mpsc};

use super::*;
use crate::sqlite::writer::{
    errors::failed,
    free_space::FreeSpace,
    options::{Erases, LOG_STEP_BYTES},
};

const OPTIONS: Options = Options {
    page_bytes: 4_096,
    log_bytes_max: 1 << 20,
    log_step_bytes: LOG_STEP_BYTES,
    writer_cache_kib: 1_024,
    reader_cache_kib: 256,
    readers: 1,
    synced: true,
    erases: Erases::No,
    migrations: &[NOTES],
};

const NOTES: &str = "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT";

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn open(folder: &Path) -> Database {
    Database::open(&folder.join("notes.db"), &OPTIONS).expect("the file opens")
}

/// Size of the WAL; 0 without one.
fn log_bytes(folder: &Path) -> u64 {
    std::fs::metadata(folder.join("notes.db-wal")).map_or(0, |log| log.len())
}

/// Error of opening a file.
fn refusal(path: &Path, options: &Options) -> StoreError {
    Database::open(path, options).err().expect("the file is refused")
}

fn insert_note(connection: &Connection, text: &str) -> Result<(), StoreError> {
    connection.execute("INSERT INTO notes (text) VALUES (?1)", [text]).map(|_| ()).map_err(store_error)
}

async fn write_note(database: &Database, text: &'static str) -> Result<(), StoreError> {
    database.write_statement(move |connection, _| insert_note(connection, text)).await
}

async fn notes(database: &Database) -> Vec<String> {
    let read = database.read(|connection| {
        let mut statement = connection.prepare("SELECT text FROM notes ORDER BY id").map_err(store_error)?;
        let rows = statement.query_map((), |row| row.get(0)).map_err(store_error)?;
        rows.collect::<Result<_, _>>().map_err(store_error)
    });
    read.await.expect("notes are read")
}

/// Blocks the writer inside a job until it is released, so that jobs sent meanwhile form one group.
fn hold(database: &Database) -> mpsc::Sender<()> {
    let (held, is_held) = mpsc::channel();
    let (release, gone) = mpsc::channel();
    let job = move |_: &Connection, _: &mut AfterCommit| {
        held.send(()).expect("the test waits");
        gone.recv().expect("the test lets go");
        Ok(())
    };
    database.submit(Undo::Statement, None, once(job), |_| ());
    is_held.recv().expect("the writer runs the job");
    release
}

#[test]
fn a_failed_job_is_rolled_back_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = open(folder.path());
    block_on(async {
        let release = hold(&database);
        let woken = Arc::new(AtomicU64::new(0));
        let wake = || {
            let woken = woken.clone();
            move |after: &mut AfterCommit| {
                after.run(move || {
                    woken.fetch_add(1, Ordering::SeqCst);
                });
            }
        };
        let (wake_failed, wake_panicked, wake_succeeded) = (wake(), wake(), wake());
        let fails = database.write(move |connection, after| {
            wake_failed(after);
            insert_note(connection, "half of it")?;
            Err::<(), _>(StoreError::Missing("the other half".to_owned()))
        });
        let panics = database.write(move |connection, after| {
            wake_panicked(after);
            insert_note(connection, "half of it")?;
            panic!("a job panics in a test");
            #[expect(unreachable_code, reason = "gives the job its type")]
            Ok(())
        });
        let succeeds = database.write(move |connection, after| {
            wake_succeeded(after);
            insert_note(connection, "all of it")
        });
        let (first, failed, panicked, succeeded, ()) =
            tokio::join!(write_note(&database, "first"), fails, panics, succeeds, async {
                release.send(()).expect("held")
            });
        first.expect("stored");
        assert!(matches!(failed, Err(StoreError::Missing(_))));
        assert!(matches!(panicked, Err(StoreError::Unavailable(_))));
        succeeded.expect("stored");
        assert_eq!(woken.load(Ordering::SeqCst), 1, "only what was committed wakes anybody");
        assert_eq!(notes(&database).await, ["first", "all of it"]);
    });
}

#[test]
fn retryable_jobs_are_rolled_back_together_and_stored_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = open(folder.path());
    block_on(async {
        let release = hold(&database);
        let (ran, woken) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let again = |text: &'static str, end: fn() -> Result<(), StoreError>| {
            let (ran, woken) = (ran.clone(), woken.clone());
            database.write_retryable(move |connection, after| {
                ran.fetch_add(1, Ordering::SeqCst);
                let woken = woken.clone();
                after.run(move || {
                    woken.fetch_add(1, Ordering::SeqCst);
                });
                insert_note(connection, text)?;
                end()
            })
        };
        let (first, failed, panicked, second, once, third, ()) = tokio::join!(
            again("first", || Ok(())),
            again("half of it", || Err(StoreError::Missing("the other half".to_owned()))),
            again("another half", || panic!("a job panics in a test")),
            again("second", || Ok(())),
            database.write(|connection, _| insert_note(connection, "once")),
            again("third", || Ok(())),
            async { release.send(()).expect("held") }
        );
        assert!(matches!(failed, Err(StoreError::Missing(_))), "{failed:?}");
        assert!(matches!(panicked, Err(StoreError::Unavailable(_))), "{panicked:?}");
        for stored in [first, second, once, third] {
            stored.expect("stored");
        }
        assert_eq!(notes(&database).await, ["first", "second", "once", "third"], "each once, in their order");
        assert_eq!(woken.load(Ordering::SeqCst), 3, "only what was committed wakes anybody");
        assert!(ran.load(Ordering::SeqCst) > 5, "some ran again");
    });
}

#[test]
fn jobs_before_a_non_retryable_job_are_not_rolled_back_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = open(folder.path());
    block_on(async {
        let release = hold(&database);
        let (first, failed, second, ()) = tokio::join!(
            database.write_retryable(|connection, _| insert_note(connection, "first")),
            database.write(|connection, _| {
                insert_note(connection, "half of it")?;
                Err::<(), _>(StoreError::Missing("the other half".to_owned()))
            }),
            database.write_retryable(|connection, _| insert_note(connection, "second")),
            async { release.send(()).expect("held") }
        );
        assert!(matches!(failed, Err(StoreError::Missing(_))), "{failed:?}");
        first.and(second).expect("stored");
        assert_eq!(notes(&database).await, ["first", "second"]);
    });
}

/// Plan of a random job: some notes, then success, an error or a panic.
#[derive(Debug, Clone, Copy)]
struct Plan {
    undo: Undo,
    notes: usize,
    end: End,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Success,
    Error,
    Panic,
}

fn random_plan(rng: &mut fastrand::Rng) -> Plan {
    match rng
        .choice([Undo::Transaction, Undo::Transaction, Undo::Transaction, Undo::Savepoint, Undo::Statement])
        .expect("some")
    {
        // A job must not fail after its statement.
        Undo::Statement if rng.bool() => Plan { undo: Undo::Statement, notes: 0, end: End::Error },
        Undo::Statement => Plan { undo: Undo::Statement, notes: 1, end: End::Success },
        undo => {
            let end = rng.choice([End::Success, End::Success, End::Success, End::Error, End::Panic]).expect("some");
            Plan { undo, notes: rng.usize(0..4), end }
        }
    }
}

/// For any mix of jobs in a commit: the writes of each job are all stored, in order of the jobs, or none of them; its
/// after-commit actions run exactly once.
#[test]
fn each_job_of_a_commit_is_atomic() {
    let seed =
        std::env::var("TOCSIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("TOCSIN_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let database = open(folder.path());
    let mut expected = Vec::new();
    for commit in 0..100 {
        let release = hold(&database);
        let (results, received) = mpsc::channel();
        let plans: Vec<Plan> = (0..rng.usize(1..12)).map(|_| random_plan(&mut rng)).collect();
        for (place, plan) in plans.iter().copied().enumerate() {
            let done = Arc::new(AtomicU64::new(0));
            let work = {
                let done = done.clone();
                move |connection: &Connection, after: &mut AfterCommit| {
                    let done = done.clone();
                    after.run(move || {
                        done.fetch_add(1, Ordering::SeqCst);
                    });
                    for number in 0..plan.notes {
                        insert_note(connection, &format!("{commit} {place} {number}"))?;
                    }
                    match plan.end {
                        End::Success => Ok(()),
                        End::Error => Err(StoreError::Missing("its end".to_owned())),
                        End::Panic => panic!("a job panics in a test"),
                    }
                }
            };
            let results = results.clone();
            let answer = move |result: Result<(), StoreError>| {
                results.send((place, result.is_ok(), done.load(Ordering::SeqCst))).expect("the test waits");
            };
            match plan.undo {
                Undo::Transaction => database.submit(Undo::Transaction, None, work, answer),
                undo => database.submit(undo, None, once(work), answer),
            }
        }
        release.send(()).expect("held");
        for (place, plan) in plans.iter().enumerate() {
            let succeeds = plan.end == End::Success;
            let answer = received.recv().expect("an answer");
            assert_eq!(answer, (place, succeeds, u64::from(succeeds)), "commit {commit} of {plans:?}");
            let notes = (0..plan.notes).filter(|_| succeeds);
            expected.extend(notes.map(|number| format!("{commit} {place} {number}")));
        }
        assert_eq!(block_on(notes(&database)), expected, "commit {commit} of {plans:?}");
    }
    drop(database);
    assert_eq!(block_on(notes(&open(folder.path()))), expected);
}

/// A claim that a step holds until its commit can be released as soon as the caller sees the failure.
#[test]
fn a_failed_job_releases_what_it_held_before_its_caller_is_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = open(folder.path());
    let (results, received) = mpsc::channel();
    let submit = |result: Result<(), StoreError>| {
        let held = Arc::new(());
        let (claim, results) = (held.clone(), results.clone());
        let job = move |_: &Connection, after: &mut AfterCommit| {
            after.run(move || drop(claim));
            result
        };
        let answer = move |result: Result<(), StoreError>| {
            results.send((result.is_ok(), Arc::strong_count(&held))).expect("the test waits");
        };
        database.submit(Undo::Savepoint, None, once(job), answer);
    };
    submit(Ok(()));
    assert_eq!(received.recv().expect("an answer"), (true, 1));
    submit(Err(StoreError::Missing("a note".to_owned())));
    assert_eq!(received.recv().expect("an answer"), (false, 1), "the job failed");

    let release = hold(&database);
    let cause = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
    submit(Ok(()));
    submit(Err(store_error(rusqlite::Error::SqliteFailure(cause, None))));
    release.send(()).expect("held");
    for _ in 0..2 {
        assert_eq!(received.recv().expect("an answer"), (false, 1), "the commit of the group failed");
    }
}

#[test]
fn after_an_io_error_nothing_is_acknowledged() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = open(folder.path());
    block_on(async {
        write_note(&database, "before").await.expect("stored");
        let release = hold(&database);
        let breaks = database.write_statement(|_, _| {
            let cause = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
            Err::<(), _>(store_error(rusqlite::Error::SqliteFailure(cause, None)))
        });
        let (same, broken, next, ()) =
            tokio::join!(write_note(&database, "same commit"), breaks, write_note(&database, "behind it"), async {
                release.send(()).expect("held")
            });
        for answer in [same, broken, next, write_note(&database, "later").await] {
            assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        }
        assert_eq!(notes(&database).await, ["before"], "reading goes on");
    });
    let failures = failed(folder.path());
    assert!(failures.len() == 1 && failures[0].contains("notes.db"), "{failures:?}");
    drop(database);
    assert!(log_bytes(folder.path()) > 0, "only the log has what a later sync may leave out of the file");
    assert_eq!(failed(folder.path()), Vec::<String>::new());
    let database = open(folder.path());
    block_on(async {
        write_note(&database, "after a restart").await.expect("stored");
        assert_eq!(notes(&database).await, ["before", "after a restart"]);
    });
    drop(database);
    assert_eq!(log_bytes(folder.path()), 0, "otherwise all of it is in the file");
}

#[test]
fn a_full_file_refuses_writes_and_recovers() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = open(folder.path());
    let bound_pages = |pages: i64| {
        database.write_statement(move |connection, _| {
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), (), |_| Ok(())).map_err(store_error)
        })
    };
    block_on(async {
        bound_pages(20).await.expect("bounded");
        let mut stored = 0;
        let full = loop {
            let big = database.write(|connection, _| {
                insert_note(connection, "small")?;
                insert_note(connection, &"x".repeat(10_000))
            });
            match big.await {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, StoreError::Full(_)), "{full}");
        let full = database.write_retryable(|connection, _| insert_note(connection, &"x".repeat(10_000))).await;
        assert!(matches!(full, Err(StoreError::Full(_))), "{full:?}");
        assert!(stored > 0);
        assert_eq!(notes(&database).await.len(), 2 * stored, "a whole write is there, or nothing of it");
        let removed = database.write_statement(|connection, _| {
            connection.execute("DELETE FROM notes WHERE id = 1", ()).map_err(store_error)
        });
        assert_eq!(removed.await.expect("what needs no room goes on"), 1);
        bound_pages(1_000).await.expect("there is room again");
        write_note(&database, "room").await.expect("stored");
    });
}

#[test]
fn too_many_waiting_writes_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = open(folder.path());
    let release = hold(&database);
    let (answer, answers) = mpsc::channel();
    for _ in 0..WAITING_WRITES_MAX {
        let answer = answer.clone();
        let job = |connection: &Connection, _: &mut AfterCommit| insert_note(connection, "waits");
        database.submit(Undo::Statement, None, job, move |result| answer.send(result).expect("counted"));
    }
    assert!(matches!(block_on(write_note(&database, "one too many")), Err(StoreError::Full(_))));
    release.send(()).expect("held");
    drop((answer, database));
    assert_eq!(answers.iter().filter(Result::is_ok).count(), WAITING_WRITES_MAX, "dropping waits for them");
    assert_eq!(block_on(notes(&open(folder.path()))).len(), WAITING_WRITES_MAX);
}

#[test]
fn the_wal_stays_short() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = open(folder.path());
    block_on(async {
        for _ in 0..100 {
            database
                .write_statement(|connection, _| insert_note(connection, &"x".repeat(200_000)))
                .await
                .expect("stored");
        }
    });
    let log_bytes = log_bytes(folder.path());
    assert!(log_bytes < 3 * OPTIONS.log_bytes_max, "{log_bytes}");
}

#[test]
fn one_process_at_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = open(folder.path());
    let refused = refusal(&folder.path().join("notes.db"), &OPTIONS);
    assert!(refused.to_string().contains("another process uses"), "{refused}");
    drop(database);
    open(folder.path());
}

#[test]
fn a_database_that_is_gone_or_empty_is_not_replaced_by_a_new_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notes.db");
    drop(open(folder.path()));
    for lose in [|path: &Path| std::fs::remove_file(path), |path: &Path| std::fs::write(path, "")] {
        let whole = std::fs::read(&path).expect("it was created");
        lose(&path).expect("lost");
        let refused = refusal(&path, &OPTIONS);
        assert!(matches!(&refused, StoreError::Damaged(why) if why.contains("missing or empty")), "{refused:?}");
        std::fs::write(&path, whole).expect("restored");
        drop(open(folder.path()));
    }
    // Files whose data may be lost, such as tracking, are created again.
    std::fs::remove_file(&path).expect("lost");
    drop(Database::open(&path, &Options { synced: false, ..OPTIONS }).expect("a new one"));
    // The operator's decision.
    std::fs::remove_file(&path).expect("lost");
    std::fs::remove_file(folder.path().join("notes.db.lock")).expect("removed");
    drop(open(folder.path()));
}

#[test]
fn only_its_owner_reads_a_new_database() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let database = open(folder.path());
    block_on(write_note(&database, "a")).expect("written");
    for entry in std::fs::read_dir(folder.path()).expect("a folder") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("metadata").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", entry.path().display());
    }
}

#[test]
fn a_schema_only_migrates_forward() {
    let folder = tempfile::tempdir().expect("a folder");
    block_on(write_note(&open(folder.path()), "kept")).expect("stored");
    let newer = Options { migrations: const { &[NOTES, "ALTER TABLE notes ADD COLUMN author TEXT"] }, ..OPTIONS };
    let path = folder.path().join("notes.db");
    let database = Database::open(&path, &newer).expect("a step forward");
    assert_eq!(block_on(notes(&database)), ["kept"]);
    drop(database);
    let refused = refusal(&path, &OPTIONS);
    assert!(refused.to_string().contains("newer version of Tocsin (its schema is 2, this one knows 1)"), "{refused}");
}

#[test]
fn a_failed_migration_leaves_the_file_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    block_on(write_note(&open(folder.path()), "kept")).expect("stored");
    let broken = Options { migrations: const { &[NOTES, "DELETE FROM notes; SELECT * FROM nothing"] }, ..OPTIONS };
    refusal(&folder.path().join("notes.db"), &broken);
    assert_eq!(block_on(notes(&open(folder.path()))), ["kept"]);
}

#[test]
fn another_kind_of_file_is_damaged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notes.db");
    std::fs::write(&path, "a letter to my aunt, long enough to be taken for a header".repeat(100)).expect("written");
    let refused = refusal(&path, &OPTIONS);
    assert!(matches!(refused, StoreError::Damaged(_)), "{refused:?}");
}

#[test]
fn readers_do_not_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = open(folder.path());
    assert!(block_on(database.read(|connection| insert_note(connection, "sneaked in"))).is_err());
    assert!(block_on(notes(&database)).is_empty());
}

#[test]
fn intake_stops_before_the_disk_is_full() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notes.db");
    FreeSpace::of(&path, 0).check().expect("switched off");
    FreeSpace::of(&path, 1).check().expect("a byte is free");
    assert!(matches!(FreeSpace::of(&path, u64::MAX).check(), Err(StoreError::Full(_))));
}
