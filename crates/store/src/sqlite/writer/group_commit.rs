//! Group commit: the writer thread commits the jobs that wait in one transaction.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
};

use crossbeam_channel::{Receiver, Sender};
use rusqlite::Connection;

use crate::{
    error::StoreError,
    sqlite::writer::{
        checkpoints::{WalState, checkpoint},
        errors::{FileHealth, is_busy, store_error},
        jobs::{CommitError, JobResult, WriteJob, run_statement},
        options::GROUP_JOBS_MAX,
        scheduling,
    },
};

pub(crate) struct Writer {
    pub(super) connection: Connection,
    pub(super) health: Arc<FileHealth>,
    pub(super) log: Arc<WalState>,
    pub(super) log_pages_max: u64,
    pub(super) step_pages: u64,
    pub(super) rest_pages: u64,
    pub(super) wake_up: Sender<()>,
    /// Pages in the WAL when the checkpointer was last woken.
    pub(super) woken_at: u64,
}

type Group = VecDeque<Box<dyn WriteJob>>;

impl Writer {
    pub(crate) fn run(mut self, jobs: &Receiver<Box<dyn WriteJob>>) {
        scheduling::request_short_slices();
        let mut group = Group::new();
        while let Ok(first) = jobs.recv() {
            group.push_back(first);
            group.extend(jobs.try_iter().take(GROUP_JOBS_MAX));
            while !group.is_empty() {
                self.commit(&mut group);
                if self.health.check().is_err() {
                    // Unanswered jobs are dropped, and their callers get the reason. Jobs queued before the failure
                    // was known would otherwise wait forever in the channel.
                    drop((self, group));
                    jobs.iter().for_each(drop);
                    return;
                }
            }
            self.checkpoint_wal();
        }
    }

    /// Runs a group in one transaction and answers each job after the commit. Jobs left in the group did not run and
    /// need a transaction of their own.
    fn commit(&self, group: &mut Group) {
        if let Err(error) = self.begin() {
            return self.refuse(group, error);
        }
        let mut done = Vec::with_capacity(group.len());
        // Becomes true with the first job that cannot run again.
        let mut use_savepoint = false;
        // Whether no job has changed anything in the transaction: its rollback undoes the next job alone.
        let mut is_unchanged = true;
        while let Some(mut job) = group.pop_front() {
            use_savepoint |= !job.is_retryable();
            let ran = job.run(&self.connection, use_savepoint && !is_unchanged);
            done.push(job);
            match ran {
                JobResult::Fatal(why) => {
                    self.health.fail(why);
                    break;
                }
                JobResult::Failed if !use_savepoint && !is_unchanged => {
                    (use_savepoint, is_unchanged) = (true, true);
                    done.drain(..).rev().for_each(|job| group.push_front(job));
                    if let Err(error) = self.restart_transaction() {
                        return self.refuse(group, error);
                    }
                }
                // After some errors, SQLite has already rolled back the whole transaction.
                _ if self.connection.is_autocommit() => break,
                JobResult::Failed if is_unchanged => {
                    if let Err(error) = self.restart_transaction() {
                        done.drain(..).rev().for_each(|job| group.push_front(job));
                        return self.refuse(group, error);
                    }
                }
                JobResult::Succeeded => is_unchanged = false,
                JobResult::Failed => {}
            }
        }
        let committed = if self.health.check().is_err() {
            Err(CommitError::Failed(self.health.reason()))
        } else if self.connection.is_autocommit() {
            Err(CommitError::Full("another write of the same commit filled the disk".to_owned()))
        } else {
            run_statement(&self.connection, "COMMIT").map_err(|error| self.commit_error(error))
        };
        if committed.is_err() && !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        if let Err(CommitError::Full(_)) = committed {
            // After a checkpoint, the WAL restarts within the space that it has.
            self.checkpoint();
        }
        for job in done {
            job.answer(committed.as_ref().copied());
        }
    }

    fn begin(&self) -> rusqlite::Result<()> {
        run_statement(&self.connection, "BEGIN IMMEDIATE")
    }

    /// Rolls back all jobs and begins again.
    fn restart_transaction(&self) -> rusqlite::Result<()> {
        if !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK")?;
        }
        self.begin()
    }

    /// Answers jobs for which no transaction could begin.
    fn refuse(&self, group: &mut Group, error: rusqlite::Error) {
        let commit_error = self.commit_error(error);
        for job in group.drain(..) {
            job.answer(Err(&commit_error));
        }
    }

    fn checkpoint(&self) {
        if let Err(StoreError::Unavailable(error)) = checkpoint(&self.connection) {
            self.health.fail(format!("a checkpoint failed: {error}"));
        }
    }

    /// Classifies a failed BEGIN or COMMIT.
    fn commit_error(&self, error: rusqlite::Error) -> CommitError {
        let busy = is_busy(&error);
        match store_error(error) {
            StoreError::Full(why) => CommitError::Full(why),
            error => {
                if !busy {
                    self.health.fail(format!("a commit failed: {error}"));
                }
                CommitError::Failed(error.to_string())
            }
        }
    }

    /// Wakes the checkpointer in steps; completes the checkpoint when the WAL is long enough to restart, which
    /// requires that nothing is appended meanwhile.
    fn checkpoint_wal(&mut self) {
        let pages = self.log.pages.load(Ordering::Relaxed);
        if pages < self.woken_at {
            self.woken_at = 0;
        }
        let is_long = pages >= self.log_pages_max;
        // A restarted WAL is shorter than what was copied of the former one.
        let copied = Some(self.log.copied.load(Ordering::Relaxed)).filter(|copied| *copied <= pages).unwrap_or(0);
        if is_long && (pages - copied <= self.rest_pages || pages >= 2 * self.log_pages_max) {
            self.checkpoint();
        } else if (is_long || pages - self.woken_at >= self.step_pages) && self.wake_up.try_send(()).is_ok() {
            self.woken_at = pages;
        }
    }
}
