//! Writes the rows of a commit, and updates the counters with them.

use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use hashbrown::HashSet;
use rusqlite::{Connection, OptionalExtension};
use tocsin_model::{
    id::{EventBatchId, Name, NotificationBatchId, WorkItemId},
    notification::NotificationHead,
    receipt::{Attempt, pack_attempts},
    time::Timestamp,
};

use crate::{
    error::StoreError,
    journal::{
        Claim, FiringStatus, Step, Suspension, WorkState,
        activity::{BatchProgress, MinuteSums, ProgressUpdate},
        quanta::Quantum,
        work_state::priority_number,
    },
    sqlite::{
        journal::{
            activity::{self, StreamKey},
            context::JournalContext,
            counters::{CounterValues, Last},
            packing::{Body, pack_body, pack_numbers, pack_ordinals, unpack_numbers, unpack_ordinals},
            quanta,
            views::{CHUNK_BITS, NUMBER_MAX},
        },
        writer::{AfterCommit, store_error},
    },
};

/// Writes the rows of one transaction and counts them.
pub struct RowWriter<'a> {
    pub(super) connection: &'a Connection,
    pub(super) shared: &'a JournalContext,
    pub(super) time: Timestamp,
    pub(super) tally: CounterValues,
    pub(super) sums: MinuteSums<StreamKey>,
    /// Whether numbers were assigned: the last numbers must be stored even if the counts did not change.
    pub(super) numbered: bool,
}

impl<'a> RowWriter<'a> {
    /// `time` marks everything as matched or closed.
    pub fn new(connection: &'a Connection, shared: &'a JournalContext, time: Timestamp) -> Self {
        RowWriter {
            connection,
            shared,
            time,
            tally: CounterValues::default(),
            sums: MinuteSums::default(),
            numbered: false,
        }
    }

    /// Stores the counts. After the commit, the counters in memory are updated and waiting workers wake.
    pub fn store_counts(
        self,
        after: &mut AfterCommit,
        oldest_event: Option<Option<Timestamp>>,
        brings_work: bool,
    ) -> Result<(), StoreError> {
        let (shared, tally) = (self.shared.clone(), self.tally);
        activity::write(self.connection, self.sums)?;
        if self.numbered || tally != CounterValues::default() {
            shared.counters.store(self.connection, tally)?;
        }
        after.run(move || {
            shared.counters.add(tally, oldest_event);
            if brings_work {
                shared.arrivals.work();
            }
        });
        Ok(())
    }

    pub(super) fn number(&mut self, last: &AtomicU64) -> u64 {
        self.numbered = true;
        Last::next(last)
    }

    pub(super) fn execute(&self, sql: &str, params: impl rusqlite::Params) -> Result<usize, StoreError> {
        self.connection.prepare_cached(sql).and_then(|mut statement| statement.execute(params)).map_err(store_error)
    }

    pub(super) fn find<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl FnOnce(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, StoreError> {
        self.connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_row(params, read).optional())
            .map_err(store_error)
    }

    pub(super) fn add_batch(
        &mut self,
        head: &NotificationHead,
        count: u32,
        packed: &PackedBatch,
        matched_now: &HashSet<EventBatchId>,
    ) -> Result<NotificationBatchId, StoreError> {
        let id = self.number(&self.shared.counters.last.notification_batch);
        let [application, rule, class, event_class, channel] = packed.names;
        self.execute(
            "INSERT INTO notification_batches
                 (id, application, version, rule, class, event_class, channel, matched_at, accepted_at, expires_at,
                  notifications, bytes, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            (
                id,
                application,
                head.version,
                rule,
                class,
                event_class,
                channel,
                head.matched_at.0,
                head.accepted_at.0,
                head.expires_at.map(|at| at.0),
                count,
                packed.body.bytes,
                &packed.body.stored[..],
            ),
        )?;
        self.execute(
            "INSERT INTO notification_states (id, open, closed_at, events, application, class)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            (
                id,
                count,
                (count == 0).then_some(self.time.0),
                pack_numbers(packed.events.iter().map(|event| event.0)),
                application,
                class,
            ),
        )?;
        self.sums.add_notifications(&StreamKey::notifications(packed.names), head, count);
        for event in &packed.events {
            self.execute("INSERT INTO links (event_batch, notification_batch) VALUES (?1, ?2)", (event.0, id))?;
            if count > 0 && !matched_now.contains(event) {
                self.execute("UPDATE event_matched SET open = open + 1, closed_at = NULL WHERE id = ?1", [event.0])?;
            }
        }
        self.tally.notification_batches += 1;
        self.tally.notifications += i64::from(count);
        Ok(NotificationBatchId(id))
    }

    /// Adds a work item; without ordinals it covers the whole batch.
    #[expect(clippy::too_many_arguments, reason = "they are the columns of a row")]
    pub fn add_work(
        &mut self,
        batch: NotificationBatchId,
        (application, channel): (i64, i64),
        attempts: u32,
        due_at: Timestamp,
        notifications: usize,
        ordinals: Option<&[u8]>,
        work_state: &WorkState,
    ) -> Result<(), StoreError> {
        let id = self.number(&self.shared.counters.last.work);
        self.execute(
            "INSERT INTO work (id, batch, application, channel, attempts, due_at, notifications, open, ordinals, priority,
                 window_end, fallback, since, edit)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            (
                id,
                batch.0,
                application,
                channel,
                attempts,
                due_at.0,
                notifications,
                ordinals,
                priority_number(work_state.priority),
                work_state.window.map(|at| at.0),
                work_state.fallback,
                work_state.since.map(|at| at.0),
                work_state.edit.as_deref(),
            ),
        )?;
        self.tally.work_items += 1;
        self.tally.waiting_notifications += notifications as i64;
        Ok(())
    }

    pub(super) fn add_suspension(
        &mut self,
        batch: NotificationBatchId,
        channel_ordinals: &ChannelOrdinals,
        attempts: u32,
        reason: &str,
        since: Timestamp,
        work_state: &WorkState,
    ) -> Result<u64, StoreError> {
        let id = self.number(&self.shared.counters.last.suspension);
        self.execute(
            "INSERT INTO suspensions
                 (id, batch, application, channel, attempts, since, notifications, ordinals, reason, priority, window_end,
                  fallback, edit)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            (
                id,
                batch.0,
                channel_ordinals.application,
                channel_ordinals.channel,
                attempts,
                since.0,
                channel_ordinals.notifications,
                &channel_ordinals.ordinals,
                reason,
                priority_number(work_state.priority),
                work_state.window.map(|at| at.0),
                work_state.fallback,
                work_state.edit.as_deref(),
            ),
        )?;
        self.tally.suspended_notifications += channel_ordinals.notifications as i64;
        Ok(id)
    }

    /// Adds a new suspension. Returns its number.
    pub fn suspend(&mut self, lane: (i64, i64), suspension: &Suspension) -> Result<u64, StoreError> {
        let (application, channel) = lane;
        let ordinals = pack_ordinals(&suspension.ordinals);
        let channel_ordinals =
            ChannelOrdinals { application, channel, notifications: suspension.ordinals.len(), ordinals };
        let Suspension { batch, attempts, reason, since, work_state, .. } = suspension;
        self.add_suspension(*batch, &channel_ordinals, *attempts, reason, *since, work_state)
    }

    /// Removes a suspension.
    pub fn remove_suspension(&mut self, id: u64, notifications: usize) -> Result<(), StoreError> {
        self.execute("DELETE FROM suspensions WHERE id = ?1", [id])?;
        self.tally.suspended_notifications -= notifications as i64;
        Ok(())
    }

    /// Keeps only the notifications `left` in a suspension.
    pub fn shrink_suspension(&mut self, id: u64, left: &[u32], before: usize) -> Result<(), StoreError> {
        let sql = "UPDATE suspensions SET ordinals = ?2, notifications = ?3 WHERE id = ?1";
        self.execute(sql, (id, pack_ordinals(left), left.len()))?;
        self.tally.suspended_notifications -= (before - left.len()) as i64;
        Ok(())
    }

    /// Marks a run of consecutive batches as matched, with a fixed number of statements.
    pub(super) fn mark_matched(&mut self, run: &[Claim<EventBatchId>]) -> Result<(), StoreError> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
        let range = (first.id.0, last.id.0);
        let (batches, events, bytes): (usize, i64, i64) = self
            .find(
                "SELECT count(*), coalesce(sum(events), 0), coalesce(sum(bytes), 0) FROM event_waiting
                 WHERE id BETWEEN ?1 AND ?2",
                range,
                |row| row.try_into(),
            )?
            .unwrap_or_default();
        // An earlier step of the same group commit may have finished some.
        if batches < run.len() {
            return Err(StoreError::Fenced(first.id.to_string()));
        }
        self.execute(
            "INSERT INTO event_matched (id, matched_at, open, closed_at, application, class)
             SELECT id, ?3, 0, ?3, application, class FROM event_waiting WHERE id BETWEEN ?1 AND ?2",
            (range.0, range.1, self.time.0),
        )?;
        self.execute("DELETE FROM event_waiting WHERE id BETWEEN ?1 AND ?2", range)?;
        self.execute(
            "UPDATE event_matched SET open = linked.batches, closed_at = NULL
             FROM (SELECT event_batch, count(*) AS batches
                   FROM links JOIN notification_states ON notification_states.id = notification_batch
                   WHERE event_batch BETWEEN ?1 AND ?2 AND closed_at IS NULL GROUP BY event_batch) linked
             WHERE event_matched.id = linked.event_batch",
            range,
        )?;
        self.tally.waiting_batches -= run.len() as i64;
        self.tally.waiting_events -= events;
        self.tally.waiting_bytes -= bytes;
        Ok(())
    }

    pub(super) fn keep_chronicled(&mut self, id: EventBatchId, body: &Body) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO event_chronicles (id, bytes, body) VALUES (?1, ?2, ?3)";
        self.execute(sql, (id.0, body.bytes, &body.stored[..])).map(|_| ())
    }

    pub(super) fn mark_failed(&mut self, claim: Claim<EventBatchId>, reason: &str) -> Result<(), StoreError> {
        self.stop_waiting(claim)?;
        self.execute(
            "INSERT INTO event_failed (id, application, reason)
             SELECT id, application, ?2 FROM event_batches WHERE id = ?1",
            (claim.id.0, reason),
        )?;
        self.tally.failed_batches += 1;
        Ok(())
    }

    pub(super) fn stop_waiting(&mut self, claim: Claim<EventBatchId>) -> Result<(), StoreError> {
        // An earlier step of the same group commit may have finished it.
        let (events, bytes): (i64, i64) = self
            .find("DELETE FROM event_waiting WHERE id = ?1 RETURNING events, bytes", [claim.id.0], |row| {
                row.try_into()
            })?
            .ok_or_else(|| StoreError::Fenced(claim.id.to_string()))?;
        self.tally.waiting_batches -= 1;
        self.tally.waiting_events -= events;
        self.tally.waiting_bytes -= bytes;
        Ok(())
    }

    /// Closes an event batch that waits or failed without matching it.
    pub fn close_unmatched(&mut self, id: EventBatchId) -> Result<(), StoreError> {
        let waiting: Option<(i64, i64)> =
            self.find("DELETE FROM event_waiting WHERE id = ?1 RETURNING events, bytes", [id.0], |row| row.try_into())?;
        match waiting {
            Some((events, bytes)) => {
                self.tally.waiting_batches -= 1;
                self.tally.waiting_events -= events;
                self.tally.waiting_bytes -= bytes;
            }
            None => self.tally.failed_batches -= self.execute("DELETE FROM event_failed WHERE id = ?1", [id.0])? as i64,
        }
        // A scheduled run may have made notifications of its events.
        let open = "SELECT count(*) FROM links JOIN notification_states ON notification_states.id = notification_batch
            WHERE event_batch = ?1 AND closed_at IS NULL";
        let open: i64 = self.find(open, [id.0], |row| row.get(0))?.unwrap_or(0);
        self.execute(
            "INSERT INTO event_matched (id, matched_at, open, closed_at, application, class)
             SELECT id, ?2, ?3, ?4, application, class FROM event_batches WHERE id = ?1",
            (id.0, self.time.0, open, (open == 0).then_some(self.time.0)),
        )
        .map(|_| ())
    }

    /// Returns up to `limit` failed batches of an application to matching.
    pub fn rematch(&mut self, application: i64, limit: usize) -> Result<usize, StoreError> {
        let sql = "SELECT id FROM event_failed WHERE application = ?1 ORDER BY id LIMIT ?2";
        let ids = super::views::collect(self.connection, sql, (application, limit), |row| {
            row.get::<_, u64>(0).map_err(store_error)
        })?;
        for id in &ids {
            self.execute("DELETE FROM event_failed WHERE id = ?1", [id])?;
            let (events, bytes): (i64, i64) = self
                .find(
                    "INSERT INTO event_waiting (id, events, bytes, accepted_at, application, class)
                     SELECT id, events, bytes, accepted_at, application, class FROM event_batches WHERE id = ?1
                     RETURNING events, bytes",
                    [id],
                    |row| row.try_into(),
                )?
                .ok_or_else(|| StoreError::Damaged(format!("{} failed and is gone", EventBatchId(*id))))?;
            self.tally.failed_batches -= 1;
            self.tally.waiting_batches += 1;
            self.tally.waiting_events += events;
            self.tally.waiting_bytes += bytes;
        }
        Ok(ids.len())
    }

    /// Records the notifications of an item that this step completed, so that they are not claimed again.
    pub(super) fn mark_progress(&mut self, claim: Claim<WorkItemId>, step: &Step) -> Result<(), StoreError> {
        type Item = (u64, u32, u32, i64, Option<Vec<u8>>, Option<Vec<u8>>);
        let item: Option<Item> = self.find(
            "SELECT batch, attempts, notifications, open, ordinals, done FROM work WHERE id = ?1",
            [claim.id.0],
            |row| row.try_into(),
        )?;
        // An earlier step of the same group commit may have finished it.
        let Some((batch, attempts, notifications, open, ordinals, done)) = item else {
            return Err(StoreError::Fenced(claim.id.to_string()));
        };
        let ordinals = ordinals.map(|packed| unpack_ordinals(&packed)).transpose()?;
        let is_of_item = |ordinal: &u32| match &ordinals {
            Some(ordinals) => ordinals.binary_search(ordinal).is_ok(),
            None => *ordinal < notifications,
        };
        let attempts_total = step
            .receipts
            .iter()
            .filter(|chunk| chunk.batch.0 == batch)
            .flat_map(|chunk| &*chunk.attempts)
            .filter(|attempt| attempt.number > attempts)
            .map(|attempt| attempt.ordinal)
            .filter(is_of_item);
        let before = done.map(|packed| unpack_ordinals(&packed)).transpose()?.unwrap_or_default();
        let mut done: Vec<u32> = before.iter().copied().chain(attempts_total).collect();
        done.sort_unstable();
        done.dedup();
        let more = (done.len() - before.len()) as i64;
        if more > 0 {
            self.execute(
                "UPDATE work SET done = ?2, open = ?3 WHERE id = ?1",
                (claim.id.0, pack_ordinals(&done), open - more),
            )?;
            self.tally.waiting_notifications -= more;
        }
        Ok(())
    }

    /// Removes a work item.
    pub fn finish(&mut self, claim: Claim<WorkItemId>) -> Result<(), StoreError> {
        let open: i64 = self
            .find("DELETE FROM work WHERE id = ?1 RETURNING open", [claim.id.0], |row| row.get(0))?
            .ok_or_else(|| StoreError::Fenced(claim.id.to_string()))?;
        self.tally.work_items -= 1;
        self.tally.waiting_notifications -= open;
        Ok(())
    }

    /// Records attempts.
    pub fn add_receipts(
        &mut self,
        batch: NotificationBatchId,
        channel: i64,
        attempts: &[Attempt],
    ) -> Result<(), StoreError> {
        self.record(&pack_chunk(batch, Some(channel), attempts), attempts)
    }

    pub(super) fn record(&mut self, chunk: &PackedChunk, attempts: &[Attempt]) -> Result<(), StoreError> {
        let Some(advance) = ProgressUpdate::of(attempts) else { return Ok(()) };
        if chunk.batch.0 > NUMBER_MAX {
            return Err(StoreError::Missing(chunk.batch.to_string()));
        }
        self.execute(
            "INSERT INTO receipts (id, bytes, body)
             SELECT coalesce(max(id), ?1) + 1, ?3, ?4 FROM receipts WHERE id > ?1 AND id < ?2",
            (chunk.batch.0 << CHUNK_BITS, (chunk.batch.0 + 1) << CHUNK_BITS, chunk.body.bytes, &chunk.body.stored[..]),
        )?;
        for attempt in attempts {
            self.tally.attempts[attempt.outcome as usize] += 1;
        }
        self.advance(chunk, &advance, attempts)
    }

    /// Updates the progress of a batch; its last notification closes the batch, and possibly its event batches.
    pub(super) fn advance(
        &mut self,
        chunk: &PackedChunk,
        advance: &ProgressUpdate,
        attempts: &[Attempt],
    ) -> Result<(), StoreError> {
        type State = (i64, Option<i64>, u64, i64, i64);
        let state: Option<State> = self.find(
            "UPDATE notification_states
             SET open = CASE WHEN closed_at IS NULL THEN max(0, open - ?2) ELSE open END,
                 attempts = attempts + ?3, delivered = delivered + ?4, failed = failed + ?5,
                 first_sent_at = min(coalesce(first_sent_at, ?6), ?6),
                 last_answered_at = max(coalesce(last_answered_at, ?7), ?7)
             WHERE id = ?1 RETURNING open, closed_at, attempts, first_sent_at, last_answered_at",
            (
                chunk.batch.0,
                advance.closing,
                advance.attempts,
                advance.delivered,
                advance.failed,
                advance.first_sent_at.0,
                advance.last_answered_at.0,
            ),
            |row| row.try_into(),
        )?;
        let Some((open, closed_at, attempts_total, first_sent_at, last_answered_at)) = state else { return Ok(()) };
        let closes = open == 0 && closed_at.is_none() && advance.closing > 0;
        if closes {
            self.close(chunk.batch)?;
        }
        type Head = ([i64; 5], i64, i64);
        let head: Option<Head> = self.find(
            "SELECT application, rule, class, event_class, channel, matched_at, accepted_at FROM notification_batches
             WHERE id = ?1",
            [chunk.batch.0],
            |row| {
                let names = [row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?];
                Ok((names, row.get(5)?, row.get(6)?))
            },
        )?;
        let Some((names, matched_at, accepted_at)) = head else { return Ok(()) };
        let [application, rule, class, event_class, channel] = names;
        let by = StreamKey::notifications([application, rule, class, event_class, chunk.channel.unwrap_or(channel)]);
        let progress = BatchProgress {
            matched_at: Timestamp(matched_at),
            accepted_at: Timestamp(accepted_at),
            is_first: attempts_total == advance.attempts,
            closed: closes.then_some((Timestamp(first_sent_at), Timestamp(last_answered_at))),
        };
        self.sums.add_attempts(&by, &StreamKey::notifications(names), &progress, attempts);
        Ok(())
    }

    pub(super) fn close(&mut self, batch: NotificationBatchId) -> Result<(), StoreError> {
        let events: Option<Vec<u8>> = self.find(
            "UPDATE notification_states SET closed_at = ?2 WHERE id = ?1 RETURNING events",
            (batch.0, self.time.0),
            |row| row.get(0),
        )?;
        for event in unpack_numbers(&events.unwrap_or_default())? {
            self.execute(
                "UPDATE event_matched SET open = open - 1, closed_at = CASE WHEN open <= 1 THEN ?2 END WHERE id = ?1",
                (event, self.time.0),
            )?;
        }
        Ok(())
    }

    /// Counts matched batches and firings, and stores the quantum.
    pub(super) fn record_matching(
        &mut self,
        step: &Step,
        first_batch: Option<NotificationBatchId>,
    ) -> Result<(), StoreError> {
        let number = |name: &Name| self.shared.names.find(name).unwrap_or(0);
        for firing in &step.firings {
            let stream = StreamKey::firings(number(&firing.application), number(&firing.rule));
            self.sums.add_missed_firing(&stream, firing.status == FiringStatus::Failed, firing.at);
        }
        let Some(quantum) = &step.quantum else { return Ok(()) };
        for taken in &quantum.batches {
            let stream = StreamKey::events(number(&taken.application), number(&taken.class), number(&taken.source));
            let has_failed = step.failed.iter().any(|(claim, _)| claim.id == taken.id);
            self.sums.add_matched(&stream, quantum, taken.accepted_at, has_failed);
        }
        match Quantum::of(0, step, first_batch) {
            Some(quantum) => quanta::add(self.connection, &quantum),
            None => Ok(()),
        }
    }
}

pub(super) struct PackedBatch {
    pub(super) names: [i64; 5],
    pub(super) events: Vec<EventBatchId>,
    pub(super) body: Body,
}

pub(super) struct PackedChunk {
    pub(super) batch: NotificationBatchId,
    /// Number of the channel used.
    pub(super) channel: Option<i64>,
    pub(super) body: Body,
}

/// Packed ordinals with the numbers of their channel.
pub(super) struct ChannelOrdinals {
    pub(super) application: i64,
    pub(super) channel: i64,
    pub(super) notifications: usize,
    pub(super) ordinals: Vec<u8>,
}

pub(super) fn pack_chunk(batch: NotificationBatchId, channel: Option<i64>, attempts: &[Attempt]) -> PackedChunk {
    PackedChunk { batch, channel, body: pack_body(Bytes::from(pack_attempts(attempts))) }
}
