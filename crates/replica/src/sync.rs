//! One sync, from its begin to its end: edits first, so that none is lost when all has to be read anew.

use rusqlite::OptionalExtension;
use tocsin_model::replica::{Begin, Begun, EditLog};

use crate::{Link, LinkError, Replica, ReplicaError, schema};

/// Sessions that one sync may take: what a device may see can change while it reads.
const SESSIONS_MAX: u32 = 8;

/// What a sync did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Edits that were sent.
    pub sent: u64,
    /// Edits that were sent and stay.
    pub applied: u64,
    /// Those that met others.
    pub conflicts: u64,
    /// The edits that were refused, here or by the server, as a whole or some of their fields.
    pub refused: u64,
    /// Rows that came.
    pub rows: u64,
    /// Rows that went.
    pub removed: u64,
    /// Blocks, both ways.
    pub blocks: u64,
    /// Whether all was read anew.
    pub anew: bool,
    /// Edits that were sent again, because the server was restored from a backup that did not have them.
    pub sent_again: u64,
}

/// The end of a session.
enum Ended {
    /// All was sent and read.
    Whole,
    /// Edits of a version without batches were sent; the rest needs a session of its own.
    WithEditsLeft,
}

/// How far a sync has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The session began.
    Began,
    /// So many edits were sent.
    Sent(u64),
    /// So many rows came or went.
    Received(u64),
}

impl Replica {
    /// Synchronises. What was done before it breaks off is done; the next one goes on there.
    ///
    /// # Errors
    /// `Link` if the server cannot be reached, is busy or refuses; `Wiped` if it told the replica to drop what it has.
    pub async fn sync(
        &mut self,
        link: &impl Link,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Summary, ReplicaError> {
        let mut summary = Summary::default();
        for _ in 0..SESSIONS_MAX {
            match self.run_session(link, &mut summary, progress).await {
                Err(ReplicaError::Link(LinkError::Over(_))) | Ok(Ended::WithEditsLeft) => continue,
                done => return done.map(|_| summary),
            }
        }
        Err(LinkError::Broken("what this device may see changes all the time".to_owned()).into())
    }

    async fn run_session(
        &mut self,
        link: &impl Link,
        summary: &mut Summary,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Ended, ReplicaError> {
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
        let is_renewed = self.follow_shapes(&begun)?;
        self.note_begun(&log, &begun)?;
        // Before the log changes, so that the server still knows where it continues.
        if let Some(known) = restored {
            summary.sent_again += self.send_again(&known)?;
        }
        if !is_unbatched {
            summary.refused += self.number_edits()?;
        }
        // Rows that were read before lack the fields that are new, and removals that were found are read again.
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
                self.settle(end.seen)?;
                break;
            }
            cursor = end.cursor;
        }
        self.prune_sent()?;
        // All is done; a server that does not hear of it notices by itself.
        match link.end(&begun.session).await {
            Err(LinkError::Refused(why)) => Err(LinkError::Refused(why).into()),
            _ if is_unbatched => Ok(Ended::WithEditsLeft),
            _ => Ok(Ended::Whole),
        }
    }

    /// Notes which edits the server has.
    fn note_begun(&self, log: &Option<EditLog>, begun: &Begun) -> Result<(), ReplicaError> {
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
            self.note_outcome(&outcome)?;
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

    /// Makes the tables as the collections are. Gives whether rows have to be read anew for it.
    fn follow_shapes(&self, begun: &Begun) -> Result<bool, ReplicaError> {
        let old = self.shapes()?;
        if old == begun.collections {
            return Ok(false);
        }
        let transaction = self.writing()?;
        transaction.execute("UPDATE _replica SET applying = 1", ())?;
        let anew = schema::follow(&transaction, &old, &begun.collections)?;
        let added = begun.collections.iter().any(|new| old.iter().all(|old| old.name != new.name));
        let sql = "UPDATE _replica SET applying = 0, cursor = iif(?1, NULL, cursor)";
        transaction.execute(sql, (anew || added,))?;
        transaction.commit()?;
        Ok(anew || added)
    }
}
