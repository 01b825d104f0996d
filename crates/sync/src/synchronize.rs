//! The phases of a session: begin, upload, download, end.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tocsin_model::{
    collection::Stamp,
    id::ChangeSequence,
    problem::{Code, Problem},
    replica::{Begin, BeginResponse, BlockEnd, CollectionShape, EDITS_MAX, EditLog, FieldShape, SentEdit, Uploaded},
};
use tocsin_store::{
    collections::{
        BlockRequest, DeviceNumber, HistoryPoint, KeyNumber, PastSession, ReadCollection, ReplicaCursor, ReplicaDevice,
        SessionCounts,
    },
    error::StoreError,
    sqlite::collections::RowTransaction,
};

use crate::{
    admission::PoolStatus,
    apply_edits::{check_batch, check_batches, take_in},
    catalogue::{Collections, Ready, usable},
    devices::Device,
    devices::random,
    error::{SyncError, SyncLimit},
    programs::{ConflictDecisions, PendingConflicts, UnresolvedConflicts},
    replicas::Replicas,
    sessions::{Lineage, Session, View},
};

/// Idle timeout of a session.
pub const IDLE_MAX: Duration = Duration::from_secs(900);
/// Maximum rows of a downloaded block.
pub const ROWS_MAX: usize = 5_000;
/// Size at which a downloaded block is full, in unpacked bytes.
pub const BYTES_MAX: usize = 1 << 20;
/// Maximum batches of a session that can be continued.
const LINEAGE_MAX: usize = 4;

/// Parts of a device's state that belong to this server's history.
#[derive(Debug, Clone, Copy)]
struct KnownHistory {
    /// The cursor.
    cursor: bool,
    /// The point after its last edits.
    point: bool,
}

impl Replicas {
    /// Starts a session, and ends an earlier one of the device.
    ///
    /// # Errors
    /// The device has no access any more; its cursor was not issued to it.
    pub async fn begin(&self, device: &Device, begin: Begin) -> Result<BeginResponse, SyncError> {
        let kept = &device.0;
        if kept.wipe_at.is_some() {
            return self.begin_wipe(kept, begin.wiped).await;
        }
        // They are kept with the session.
        for (path, batch) in
            begin.edits.iter().flat_map(|log| [("edits.after", &log.after), ("edits.batch", &log.batch)])
        {
            batch.as_deref().map_or(Ok(()), |batch| check_batch(path, batch))?;
        }
        let given = begin.cursor.as_deref().map(|cursor| self.seal.place(kept.number, cursor)).transpose()?;
        let is_current = self.is_of_our_history(kept.number, given.as_ref(), begin.edits.as_ref())?;
        if !(is_current.cursor && is_current.point) {
            tracing::warn!(device = %kept.id, "the device has a later state than this server, which was restored from a backup");
        }
        let given = given.map(|(place, _)| place).filter(|_| is_current.cursor);
        let collections = self.collections_of(&kept.application).await?;
        let (as_of, held) = self.held(kept, &collections).await?;
        self.follow_records(kept, &collections).await?;
        let mut state = self.store.device_state(kept.number).await?;
        if state.generation == 0 || state.keys != held {
            state.generation = self.store.put_keys(self.now(), kept.number, held.clone()).await?;
        }
        let place = match given {
            Some(place) => self.resume(kept.number, place, state.generation).await?,
            None => None,
        };
        let newest = *self.store.newest().borrow();
        let place = place.unwrap_or_else(|| ReplicaCursor::START.begin_move(state.generation, newest));
        let now = self.now();
        let is_restored = !(is_current.cursor && is_current.point);
        let (uploaded, restored) = match &begin.edits {
            None => (state.uploaded, None),
            Some(log) => {
                let uploaded = match &log.batch {
                    Some(batch) => self.store.batch_upto(kept.number, batch).await?,
                    None => 0,
                };
                (uploaded, if is_restored { Some(self.store.batches(kept.number).await?) } else { None })
            }
        };
        let log = begin.edits.unwrap_or_default();
        let lineage = Lineage { batches: log.batch.into_iter().chain(log.after).collect(), may_skip: is_restored };
        let session = Session {
            id: random::<16>()?.into(),
            device: kept.clone(),
            began_at: now,
            last_request_at: now,
            tally: SessionCounts::default(),
            view: Arc::new(View { as_of, generation: state.generation, held }),
            lineage: Arc::new(Mutex::new(lineage)),
            turn: Arc::default(),
        };
        let id = session.id.to_string();
        let before = self.sessions.0.lock().insert(kept.number, session);
        if let Some(before) = before {
            self.store_session(before, "lost").await;
        }
        Ok(BeginResponse {
            session: id,
            uploaded,
            anew: place.generation == 0,
            cursor: self.seal.cursor(kept.number, place, self.store.history().current()),
            wipe: false,
            collections: shapes(kept, &collections),
            restored,
        })
    }

    /// Whether the device's state belongs to this server's history, which is not so after a restore.
    fn is_of_our_history(
        &self,
        device: DeviceNumber,
        cursor: Option<&(ReplicaCursor, Box<str>)>,
        log: Option<&EditLog>,
    ) -> Result<KnownHistory, SyncError> {
        let place = |(place, period): &(ReplicaCursor, Box<str>)| {
            self.is_of_history(&HistoryPoint { period: period.clone(), stamp: place.newest() })
        };
        let point = match log.and_then(|log| log.point.as_deref()) {
            Some(text) => self.is_of_history(&self.seal.read_point(device, text)?),
            None => true,
        };
        Ok(KnownHistory { cursor: cursor.is_none_or(place), point })
    }

    pub(crate) fn is_of_history(&self, point: &HistoryPoint) -> bool {
        self.store.history().contains(point, *self.store.newest().borrow())
    }

    /// Handles a pending wipe: the device receives only the wipe request, and nothing after it confirmed.
    async fn begin_wipe(&self, device: &ReplicaDevice, is_done: bool) -> Result<BeginResponse, SyncError> {
        if device.wiped_at.is_some() {
            return Err(SyncError::Forbidden("the device has dropped its replica as requested".to_owned()));
        }
        if is_done {
            self.set_wipe(device, device.wipe_at, Some(self.now())).await?;
            tracing::info!(device = %device.id, "device wiped");
        }
        let (session, cursor, collections) = (String::new(), String::new(), Vec::new());
        Ok(BeginResponse { session, uploaded: 0, anew: false, cursor, wipe: true, collections, restored: None })
    }

    /// The keys of a device, ascending, and the change sequence of the records.
    pub(crate) async fn held(
        &self,
        device: &ReplicaDevice,
        collections: &Collections,
    ) -> Result<(ChangeSequence, Vec<KeyNumber>), SyncError> {
        let as_of = *self.change_log.newest_change().borrow();
        let subscriber = self.subscriber_store.subscriber(&device.subscriber).await?;
        let subscriber = subscriber.filter(|subscriber| subscriber.number == device.subscriber_number);
        let Some(subscriber) = subscriber else {
            return Err(SyncError::Forbidden(format!("the subscriber `{}` is gone", device.subscriber)));
        };
        let texts = self.keys_of_subscriber(&device.application, collections, &subscriber).await?;
        Ok((as_of, self.store.key_numbers(texts).await?))
    }

    /// Position at which a device continues; `None` if it must read everything again.
    async fn resume(
        &self,
        device: DeviceNumber,
        place: ReplicaCursor,
        generation: u32,
    ) -> Result<Option<ReplicaCursor>, SyncError> {
        let newest = *self.store.newest().borrow();
        if !place.is_known_since(self.store.forgotten()) {
            return Ok(None);
        }
        let is_current = place.generation == generation && place.moving.is_none();
        let is_next = place.moving.is_some_and(|moving| moving.to == generation);
        let is_known = place.generation == 0 || self.store.keys_of(device, place.generation).await?.is_some();
        Ok(match place.moving {
            _ if is_current || (is_next && is_known) => Some(place),
            // In the middle of another move the contents of the device are unknown.
            Some(_) => None,
            None => is_known.then(|| place.begin_move(generation, newest)),
        })
    }

    /// Applies edits in one transaction. Edits received before are skipped.
    ///
    /// # Errors
    /// `Busy`; `Missing` if there is no such session; `Invalid` if there is a gap before them; `Expired` if the visible
    /// rows changed since the session began.
    pub async fn upload(
        self: &Arc<Self>,
        device: &Device,
        session: &str,
        edits: impl FnOnce() -> Result<(Vec<SentEdit>, u64), Vec<Problem>>,
    ) -> Result<Uploaded, SyncError> {
        let session = self.sessions.find(device, session)?;
        let _turn = self.lock_session(&session)?;
        if !device.0.may_write {
            return Err(SyncError::Forbidden("the token of this device is read-only".to_owned()));
        }
        let collections = self.collections_of(&device.0.application).await?;
        self.check_view(&session, &collections).await?;
        let (edits, bytes, mut waited) = {
            let slot = self.admission.uploads.acquire(&device.0.application, None).await?;
            let (edits, bytes) = edits().map_err(SyncError::Invalid)?;
            (edits, bytes, slot.waited)
        };
        if edits.len() > EDITS_MAX {
            return Err(SyncError::from(
                Problem::new(Code::TooMany, "", format!("has {} edits; the maximum is {EDITS_MAX}", edits.len()))
                    .param("given", edits.len())
                    .param("limit", EDITS_MAX),
            ));
        }
        check_batches(&edits)?;
        // The collection of the first edit stands for the block in the fair queue.
        let about = edits.iter().find_map(|sent| match sent {
            SentEdit::Edit(edit) => Some(edit.collection.clone()),
            SentEdit::Unreadable(_) => None,
        });
        let edits = Arc::new(edits);
        let lineage = session.lineage.lock().clone();
        let (mut decisions, began) = (ConflictDecisions::default(), Instant::now());
        let (taken, follows) = loop {
            let slot = self.admission.reconciles.acquire(&device.0.application, about.as_ref()).await?;
            waited += slot.waited;
            let decided = self.edit_records(&session.device, &collections, &edits, lineage.may_skip).await?;
            let follows = !decided.is_empty();
            let (kept, view, known) = (session.device.clone(), session.view.clone(), collections.clone());
            let (sent, ruled, from) = (edits.clone(), decisions.clone(), lineage.clone());
            let open = Arc::new(Mutex::new(UnresolvedConflicts::default()));
            let asked = open.clone();
            let job = move |ledger: &mut RowTransaction<'_>| {
                let conflicts = PendingConflicts::new(ruled);
                let taken = take_in(ledger, &kept, &known, &view.held, &sent, decided, &conflicts, &from)?;
                *asked.lock() = conflicts.open();
                // The transaction is rolled back until programs have decided and texts are merged.
                if asked.lock().is_empty() { Ok(taken) } else { Err(StoreError::Changed("an edit".to_owned())) }
            };
            let taken = self.store.write(self.now(), job).await;
            drop(slot);
            let questions = std::mem::take(&mut *open.lock());
            if questions.is_empty() {
                break (taken?, follows);
            }
            // The pool slot is free while programs run and texts are merged.
            self.resolve_conflicts(&device.0.application, &collections, questions, &mut decisions, began).await?;
        };
        let mut taken = taken?;
        if let Some(batch) = edits.last().and_then(SentEdit::batch) {
            let mut lineage = session.lineage.lock();
            lineage.batches.retain(|known| known != batch);
            lineage.batches.insert(0, batch.to_owned());
            lineage.batches.truncate(LINEAGE_MAX);
            let point =
                HistoryPoint { period: self.store.history().current().into(), stamp: *self.store.newest().borrow() };
            taken.point = self.seal.point(session.device.number, &point);
        }
        if follows {
            self.follow_records(&session.device, &collections).await?;
        }
        let conflicts = taken.conflicts.len() as u64;
        let edits = edits.len() as u64;
        metrics::counter!("tocsin_sync_edits_total", "outcome" => "applied").increment(taken.applied);
        metrics::counter!("tocsin_sync_edits_total", "outcome" => "conflict").increment(conflicts);
        metrics::counter!("tocsin_sync_edits_total", "outcome" => "refused").increment(taken.refused.len() as u64);
        self.sessions.record(&session, self.now(), |tally| {
            tally.edits += edits;
            tally.conflicts += conflicts;
            tally.refused += taken.refused.len() as u64;
            tally.bytes_up += bytes;
            tally.waited_ms += u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        });
        Ok(taken)
    }

    /// Reads the block after a cursor. `pack` receives its lines and appends its end.
    ///
    /// # Errors
    /// `Busy`; `Missing` if there is no such session; `Expired` if the visible rows changed since the session began.
    pub async fn download<T>(
        &self,
        device: &Device,
        session: &str,
        cursor: &str,
        pack: impl FnOnce(Vec<u8>, BlockEnd) -> (T, u64),
    ) -> Result<T, SyncError> {
        let session = self.sessions.find(device, session)?;
        let _turn = self.lock_session(&session)?;
        let kept = &session.device;
        let (place, period) = self.seal.place(kept.number, cursor)?;
        if !self.is_of_history(&HistoryPoint { period, stamp: place.newest() }) {
            return Err(SyncError::Expired("the server was restored from an older backup: begin again".to_owned()));
        }
        let collections = self.collections_of(&kept.application).await?;
        self.check_view(&session, &collections).await?;
        let generation = place.moving.map_or(place.generation, |moving| moving.to);
        if generation != session.view.generation || !place.is_known_since(self.store.forgotten()) {
            return Err(SyncError::Expired("the cursor is older than the session: begin again with it".to_owned()));
        }
        let held_before = match place.moving {
            Some(_) if place.generation > 0 => self.store.keys_of(kept.number, place.generation).await?,
            _ => Some(Vec::new()),
        };
        let held_before =
            held_before.ok_or_else(|| SyncError::Expired("the cursor is too old: begin again".to_owned()))?;
        let slot = self.admission.downloads.acquire(&device.0.application, None).await?;
        let (rows_max, bytes_max, held) = (ROWS_MAX, BYTES_MAX, session.view.held.clone());
        let collections = usable(kept, &collections).filter(|ready| ready.definition.direction.is_down());
        let read = |ready: &Ready| {
            (ready.number, ReadCollection { name: ready.name.as_str().into(), fields: ready.definition.fields.clone() })
        };
        let collections = collections.map(read).collect();
        let request = BlockRequest { cursor: place, collections, held, held_before, rows_max, bytes_max };
        let block = self.store.read_block(request).await?;
        let seen = if block.more { Stamp(0) } else { block.cursor.sequence };
        let end = BlockEnd {
            cursor: self.seal.cursor(kept.number, block.cursor, self.store.history().current()),
            seen,
            more: block.more,
        };
        let (packed, bytes) = pack(block.lines, end);
        let waited = u64::try_from(slot.waited.as_millis()).unwrap_or(u64::MAX);
        drop(slot);
        metrics::counter!("tocsin_sync_rows_total", "fate" => "sent").increment(block.rows);
        metrics::counter!("tocsin_sync_rows_total", "fate" => "gone").increment(block.removed);
        self.sessions.record(&session, self.now(), |tally| {
            tally.rows += block.rows;
            tally.removed += block.removed;
            tally.bytes_down += bytes;
            tally.waited_ms += waited;
        });
        Ok(packed)
    }

    /// Ends a session. Returns its transfer counts.
    ///
    /// # Errors
    /// `Missing` if there is no such session.
    pub async fn end(&self, device: &Device, session: &str) -> Result<SessionCounts, SyncError> {
        self.sessions.find(device, session)?;
        let ended = self.sessions.0.lock().remove(&device.0.number);
        let tally = ended.as_ref().map(|session| session.tally).unwrap_or_default();
        if let Some(ended) = ended {
            self.store_session(ended, "done").await;
        }
        Ok(tally)
    }

    /// Active sessions, oldest first.
    pub fn active_sessions(&self) -> Vec<Session> {
        let mut active: Vec<Session> = self.sessions.0.lock().values().cloned().collect();
        active.sort_by_key(|session| (session.began_at, session.device.number));
        active
    }

    /// Ended sessions of one device or of all, newest first, each with its number and device id.
    ///
    /// # Errors
    /// `Missing` if there is no such device.
    pub async fn past_sessions(
        &self,
        device: Option<&str>,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, String, PastSession)>, SyncError> {
        let number = device.map(|id| self.find_device(id)).transpose()?.map(|device| device.number);
        let found = self.store.sessions(number, before, limit).await?;
        let ids: HashMap<DeviceNumber, Arc<ReplicaDevice>> =
            self.devices.all().into_iter().map(|device| (device.number, device)).collect();
        let named = found.into_iter().map(|(number, past)| {
            let device = ids.get(&past.device).map_or_else(String::new, |device| device.id.to_string());
            (number, device, past)
        });
        Ok(named.collect())
    }

    /// Status of the pools.
    pub fn pools(&self) -> [PoolStatus; 3] {
        [self.admission.uploads.status(), self.admission.reconciles.status(), self.admission.downloads.status()]
    }

    pub(crate) async fn end_idle_sessions(&self) {
        let before = self.now() - IDLE_MAX;
        let idle: Vec<Session> = self
            .sessions
            .0
            .lock()
            .extract_if(|_, session| session.last_request_at < before)
            .map(|(_, idle)| idle)
            .collect();
        for session in idle {
            self.store_session(session, "lost").await;
        }
    }

    /// Stores an ended session. A failure is logged only.
    async fn store_session(&self, session: Session, outcome: &'static str) {
        let now = self.now();
        metrics::counter!("tocsin_sync_sessions_total", "outcome" => outcome).increment(1);
        metrics::histogram!("tocsin_sync_session_duration_seconds").record(now.since(session.began_at).as_secs_f64());
        let (device, began_at, tally) = (session.device.number, session.began_at, session.tally);
        let past = PastSession { device, began_at, ended_at: now, outcome: outcome.into(), tally };
        if let Err(error) = self.store.put_session(past).await {
            tracing::warn!(%error, "an ended session could not be stored");
        }
    }

    /// One request of a session at a time, so that a device has one slot in every queue.
    fn lock_session(&self, session: &Session) -> Result<tokio::sync::OwnedMutexGuard<()>, SyncError> {
        session.turn.clone().try_lock_owned().map_err(|_| SyncError::Busy {
            limit: SyncLimit::Session,
            reason: "another request of this session is in progress".to_owned(),
            retry_after: Duration::from_millis(500).mul_f64(1.0 + 4.0 * fastrand::f64()),
            position: 0,
        })
    }

    /// Checks that the visible rows are still those of the session's start.
    async fn check_view(&self, session: &Session, collections: &Collections) -> Result<(), SyncError> {
        if *self.change_log.newest_change().borrow() == session.view.as_of {
            return Ok(());
        }
        let (as_of, held) = self.held(&session.device, collections).await?;
        if held != session.view.held {
            self.sessions.drop_of(session.device.number);
            return Err(SyncError::Expired("the rows visible to the device have changed: begin again".to_owned()));
        }
        if let Some(kept) = self.sessions.0.lock().get_mut(&session.device.number).filter(|kept| kept.id == session.id)
        {
            kept.view = Arc::new(View { as_of, held, generation: session.view.generation });
        }
        Ok(())
    }
}

fn shapes(device: &ReplicaDevice, collections: &Collections) -> Vec<CollectionShape> {
    let shape = |ready: &Ready| CollectionShape {
        name: ready.name.clone(),
        fields: ready
            .definition
            .fields
            .iter()
            .map(|field| FieldShape { name: field.name.clone(), kind: field.kind })
            .collect(),
        direction: ready.definition.direction,
    };
    usable(device, collections).map(shape).collect()
}
