//! Jobs of the writer: each has a savepoint of its own in the commit of its group.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use rusqlite::Connection;

use crate::{
    audit::ChangeContext,
    error::StoreError,
    sqlite::{
        audit,
        writer::errors::{fatal_reason, panicked, store_error},
    },
};

/// Actions to run after a durable commit, such as waking waiters. Dropped if the commit fails.
#[derive(Default)]
pub(crate) struct AfterCommit(Vec<Box<dyn FnOnce() + Send>>);

impl AfterCommit {
    /// Adds an action. It runs on the writer thread before the job is answered, so it must be quick.
    pub(crate) fn run(&mut self, act: impl FnOnce() + Send + 'static) {
        self.0.push(Box::new(act));
    }

    /// Counts audit entries once they are stored.
    pub(crate) fn count_audit_entries(&mut self, entries: u64) {
        if entries > 0 {
            self.run(move || metrics::counter!("tocsin_audit_entries_total").increment(entries));
        }
    }

    /// Runs or drops the actions, and with them what the job held. Before the job is answered: its caller may need
    /// that at once.
    fn end(self, is_stored: bool) {
        if is_stored {
            self.0.into_iter().for_each(|act| act());
        }
    }
}

pub(crate) type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

/// Queued write.
pub(crate) trait WriteJob: Send {
    /// Whether it can run again after a rollback.
    fn is_retryable(&self) -> bool;

    /// Runs the job. With `use_savepoint`, its changes are rolled back if it fails; otherwise the caller rolls back.
    fn run(&mut self, connection: &Connection, use_savepoint: bool) -> JobResult;

    /// Answers the caller: the result if the commit is durable, or else the error.
    fn answer(self: Box<Self>, committed: Result<(), &CommitError>);
}

/// Result of running a job.
pub(crate) enum JobResult {
    Succeeded,
    /// It returned an error or panicked.
    Failed,
    /// It hit an I/O error after which nothing can be acknowledged.
    Fatal(String),
}

/// Rollback of a failed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undo {
    /// To a savepoint.
    Savepoint,
    /// A single statement, which SQLite rolls back itself.
    Statement,
    /// The whole transaction, which then runs again.
    Transaction,
}

pub(crate) struct Job<W, T, A> {
    pub(super) work: W,
    pub(super) undo: Undo,
    /// Context of its audit entry.
    pub(super) context: Option<Arc<ChangeContext>>,
    pub(super) after: AfterCommit,
    pub(super) result: Option<Result<T, StoreError>>,
    pub(super) answer: A,
}

impl<W, T, A> WriteJob for Job<W, T, A>
where
    W: FnMut(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send,
    T: Send,
    A: FnOnce(Result<T, StoreError>) + Send,
{
    fn is_retryable(&self) -> bool {
        self.undo == Undo::Transaction
    }

    fn run(&mut self, connection: &Connection, use_savepoint: bool) -> JobResult {
        let in_savepoint = match self.undo {
            Undo::Savepoint => true,
            // With an entry, there are two statements.
            Undo::Statement => self.context.is_some(),
            Undo::Transaction => use_savepoint,
        };
        self.after = AfterCommit::default();
        let result = run_job(connection, in_savepoint, || {
            let job = || (self.work)(connection, &mut self.after);
            let (result, entries) = audit::audited(connection, self.context.as_ref(), job)?;
            self.after.count_audit_entries(entries);
            Ok(result)
        });
        let ran = match &result {
            Ok(_) => JobResult::Succeeded,
            Err(error) => fatal_reason(error).map_or(JobResult::Failed, JobResult::Fatal),
        };
        self.result = Some(result);
        ran
    }

    fn answer(self: Box<Self>, committed: Result<(), &CommitError>) {
        let Job { work, after, result, answer, .. } = *self;
        // The caller may need exclusive ownership of what the job held.
        drop(work);
        let stored = match (committed, result) {
            (Ok(()), Some(result)) => result,
            (Err(_), Some(Err(error))) => Err(error),
            (Err(commit_error), _) => Err(commit_error.to_error()),
            (Ok(()), None) => unreachable!("only what ran is committed"),
        };
        after.end(stored.is_ok());
        answer(stored);
    }
}

/// Reason of a failed commit.
pub(crate) enum CommitError {
    Full(String),
    Failed(String),
}

impl CommitError {
    fn to_error(&self) -> StoreError {
        match self {
            CommitError::Full(why) => StoreError::Full(why.clone()),
            CommitError::Failed(why) => StoreError::unavailable(why.clone()),
        }
    }
}

/// Wraps a job that runs once as one that is called once.
pub(crate) fn once<T>(
    job: impl FnOnce(&Connection, &mut AfterCommit) -> Result<T, StoreError>,
) -> impl FnMut(&Connection, &mut AfterCommit) -> Result<T, StoreError> {
    let mut job = Some(job);
    move |connection, after| job.take().expect("it runs once")(connection, after)
}

fn run_job<T>(
    connection: &Connection,
    in_savepoint: bool,
    job: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let statement = |sql: &str| run_statement(connection, sql).map_err(store_error);
    if in_savepoint {
        statement("SAVEPOINT job")?;
    }
    let result = catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|panic| Err(panicked(&panic)));
    // After some errors, SQLite has already rolled back the whole transaction, including savepoints.
    if in_savepoint && !connection.is_autocommit() {
        if result.is_err() {
            statement("ROLLBACK TO job")?;
        }
        statement("RELEASE job")?;
    }
    result
}

pub(crate) fn run_statement(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute(()).map(drop)
}
