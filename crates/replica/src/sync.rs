//! One sync: upload first, so that no edit is lost if everything must be read again.

use rusqlite::OptionalExtension;
use tocsin_model::replica::{Begin, BeginResponse, EditLog};

use crate::{Link, LinkError, Replica, ReplicaError, schema};

/// Maximum sessions of one sync, since the visible rows can change during a download.
const SESSIONS_MAX: u32 = 8;

/// Counts of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Edits sent.
    pub sent: u64,
    /// Edits applied without a conflict.
    pub applied: u64,
    /// Edits with a conflict.
    pub conflicts: u64,
    /// Edits rejected locally or by the server, as a whole or in some fields.
    pub refused: u64,
    /// Rows received.
    pub rows: u64,
    /// Rows removed.
    pub removed: u64,
    /// Blocks, in both directions.
    pub blocks: u64,
    /// Whether everything was read again.
    pub anew: bool,
    /// Edits sent again because the server lost them by a restore from a backup.
    pub sent_again: u64,
}

/// End of a session.
enum SessionEnd {
    /// Everything was sent and received.
    Complete,
    /// Edits of a version without batches were sent; the others need another session.
    EditsPending,
}

/// Progress of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The session began.
    Began,
    /// Number of edits sent.
    Sent(u64),
    /// Number of rows received or removed.
    Received(u64),
}

impl Replica {
    /// Synchronizes the replica. An interrupted sync keeps its progress; the next one continues there.
    ///
    /// # Errors
    /// `Link` if the server is unreachable, busy or rejects; `Wiped` if it requested a wipe.
    pub async fn sync(
        &mut self,
        link: &impl Link,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Summary, ReplicaError> {
        let mut summary = Summary::default();
        for _ in 0..SESSIONS_MAX {
            match self.run_session(link, &mut summary, progress).await {
                Err(ReplicaError::Link(LinkError::SessionEnded(_))) | Ok(SessionEnd::EditsPending) => continue,
                done => return done.map(|_| summary),
            }
        }
        Err(LinkError::Broken("the rows visible to this device keep changing during the download".to_owned()).into())
    }

    async fn run_session(
        &mut self,
        link: &impl Link,
        summary: &mut Summary,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<SessionEnd, ReplicaError> {
        let is_unbatched = self.has_unbatched()?;
        let log = if is_unbatched { None } else { Some(self.edit_log()?) };
        let cursor = self.cursor()?;
        let mut begun = link.begin(&Begin { cursor: cursor.clone(), wiped: false, edits: log.clone() }).await?;
        if begun.wipe {
            self.wipe()?;
            link.begin(&Begin { cursor: None, wiped: true, edits: None }).await?;
            return Err(ReplicaError::Wiped);
        }
        let restored = begun.restored.take();
        let is_renewed = self.migrate_schema(&begun)?;
        self.record_begin(&log, &begun)?;
        // Before the outbox changes, so that the server still knows where it continues.
        if let Some(known) = restored {
            summary.sent_again += self.mark_unsent(&known)?;
        }
        if !is_unbatched {
            summary.refused += self.number_edits()?;
        }
        // Rows read earlier lack the new fields, and rows with unrecorded removals are read again.
        if cursor.is_some() && (is_renewed || self.cursor()?.is_none()) {
            begun = link.begin(&Begin { cursor: None, wiped: false, edits: log }).await?;
        }
        if begun.anew && self.cursor()?.as_ref() != Some(&begun.cursor) {
            self.begin_anew(&begun.cursor)?;
        }
        progress(Progress::Began);
        self.send(link, &begun.session, summary, progress).await?;
        summary.anew |= begun.anew;
        let mut cursor = begun.cursor;
        loop {
            let block = link.download(&begun.session, &cursor).await?;
            let (applied, end) = self.apply(&block)?;
            summary.rows += applied.rows;
            summary.removed += applied.removed;
            summary.blocks += 1;
            progress(Progress::Received(summary.rows + summary.removed));
            if !end.more {
                self.complete_download(end.seen)?;
                break;
            }
            cursor = end.cursor;
        }
        self.prune_sent()?;
        // Everything is done; the server detects a lost end by its timeout.
        match link.end(&begun.session).await {
            Err(LinkError::Refused(why)) => Err(LinkError::Refused(why).into()),
            _ if is_unbatched => Ok(SessionEnd::EditsPending),
            _ => Ok(SessionEnd::Complete),
        }
    }

    /// Records which edits the server has.
    fn record_begin(&self, log: &Option<EditLog>, begun: &BeginResponse) -> Result<(), ReplicaError> {
        match log {
            None => self.acknowledge(None, begun.uploaded),
            Some(EditLog { batch: Some(batch), .. }) => self.acknowledge(Some(batch), begun.uploaded),
            Some(_) => Ok(()),
        }
    }

    async fn send(
        &mut self,
        link: &impl Link,
        session: &str,
        summary: &mut Summary,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), ReplicaError> {
        let mut sent = 0;
        loop {
            let (lines, edits) = self.next_block()?;
            if edits == 0 {
                return Ok(());
            }
            let outcome = link.upload(session, lines).await?;
            self.record_outcome(&outcome)?;
            summary.applied += outcome.applied;
            summary.conflicts += outcome.conflicts.len() as u64;
            summary.refused += outcome.refused.len() as u64;
            summary.blocks += 1;
            summary.sent += edits;
            sent += edits;
            progress(Progress::Sent(sent));
        }
    }

    pub(crate) fn cursor(&self) -> Result<Option<String>, ReplicaError> {
        let cursor = self.connection.query_row("SELECT cursor FROM _replica", (), |row| row.get(0)).optional()?;
        Ok(cursor.flatten())
    }

    /// Migrates the tables to the server's collections. Returns whether rows must be read again.
    fn migrate_schema(&self, begun: &BeginResponse) -> Result<bool, ReplicaError> {
        let old = self.shapes()?;
        if old == begun.collections {
            return Ok(false);
        }
        let transaction = self.write_transaction()?;
        transaction.execute("UPDATE _replica SET applying = 1", ())?;
        let anew = schema::migrate(&transaction, &old, &begun.collections)?;
        let added = begun.collections.iter().any(|new| old.iter().all(|old| old.name != new.name));
        let sql = "UPDATE _replica SET applying = 0, cursor = iif(?1, NULL, cursor)";
        transaction.execute(sql, (anew || added,))?;
        transaction.commit()?;
        Ok(anew || added)
    }
}
