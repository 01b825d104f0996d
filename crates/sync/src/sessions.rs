//! Sync sessions: begin, upload, download, end.
//!
//! A session holds what the device may see and its transfer counts. It is in memory only: the number of the last edit
//! is stored with the rows, and the read position is in the device's cursor.

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
    replica::{
        BATCH_CHARS_MAX, Begin, BeginResponse, BlockEnd, CollectionShape, EDITS_MAX, EditLog, FieldShape, Met, Refused,
        SentEdit, Uploaded,
    },
    time::Timestamp,
};
use tocsin_store::{
    collections::{
        AuthorNumber, BlockRequest, DeviceNumber, HistoryPoint, KeyNumber, PastSession, ReadCollection, ReplicaCursor,
        ReplicaDevice, SessionCounts,
    },
    error::StoreError,
    sqlite::collections::RowTransaction,
};

use crate::{
    Device, PoolStatus, Replicas, SyncError,
    catalogue::{Collections, Ready},
    devices::random,
    programs::{ConflictDecisions, PendingConflicts, UnresolvedConflicts},
    reconcile::{EditOutcome, Editor},
};

/// Idle timeout of a session.
pub const IDLE_MAX: Duration = Duration::from_secs(900);
/// Maximum rows of a downloaded block.
pub const ROWS_MAX: usize = 5_000;
/// Size at which a downloaded block is full, in unpacked bytes.
pub const BYTES_MAX: usize = 1 << 20;

/// An active session.
#[derive(Debug, Clone)]
pub struct Session {
    /// Id.
    pub id: Arc<str>,
    /// Device.
    pub device: Arc<ReplicaDevice>,
    /// Start.
    pub began_at: Timestamp,
    /// Last request of the device.
    pub last_request_at: Timestamp,
    /// Transfer counts so far.
    pub tally: SessionCounts,
    /// Rows that the device may see.
    view: Arc<View>,
    /// Position at which the device's edits continue.
    lineage: Arc<Mutex<Lineage>>,
    /// Held by the request in progress.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// Position at which the edits of a replica copy continue.
#[derive(Debug, Clone, Default)]
struct Lineage {
    /// Last batches of the copy that the server may know, newest first.
    batches: Vec<String>,
    /// The server was restored, so a client without batches may lack edits that only the lost state had.
    may_skip: bool,
}

/// Parts of a device's state that belong to this server's history.
#[derive(Debug, Clone, Copy)]
struct KnownHistory {
    /// The cursor.
    cursor: bool,
    /// The point after its last edits.
    point: bool,
}

/// Rows that a device may see.
#[derive(Debug)]
struct View {
    /// Change sequence of the records at which this was computed.
    as_of: ChangeSequence,
    generation: u32,
    /// Keys, ascending.
    held: Vec<KeyNumber>,
}

/// Active sessions, one per device.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<DeviceNumber, Session>>);

impl Sessions {
    pub(crate) fn drop_of(&self, device: DeviceNumber) {
        self.0.lock().remove(&device);
    }

    /// The session of a device. Sessions of other devices count as missing.
    fn find(&self, device: &Device, id: &str) -> Result<Session, SyncError> {
        let found = self.0.lock().get(&device.0.number).filter(|session| &*session.id == id).cloned();
        found.ok_or_else(|| SyncError::Missing(format!("the session `{id}`")))
    }

    fn record(&self, session: &Session, now: Timestamp, update: impl FnOnce(&mut SessionCounts)) {
        if let Some(kept) = self.0.lock().get_mut(&session.device.number).filter(|kept| kept.id == session.id) {
            kept.last_request_at = now;
            update(&mut kept.tally);
        }
    }
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

/// Collections that a device may use.
pub(crate) fn usable<'a>(device: &ReplicaDevice, collections: &'a Collections) -> impl Iterator<Item = &'a Ready> {
    let only = device.collections.clone();
    collections.iter().filter(move |ready| only.as_ref().is_none_or(|only| only.contains(&ready.name)))
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

/// Maximum batches of a session that can be continued.
const LINEAGE_MAX: usize = 4;

/// Maximum edit number: larger ones fit neither into a signed column nor, by far, into a replica.
const EDIT_NUMBER_MAX: u64 = i64::MAX.cast_unsigned();

fn check_batches(edits: &[SentEdit]) -> Result<(), SyncError> {
    if let Some(bad) = edits.iter().map(SentEdit::n).find(|n| !(1..=EDIT_NUMBER_MAX).contains(n)) {
        return Err(SyncError::from(
            Problem::new(Code::OutOfRange, "n", format!("is {bad}; edits are counted from 1 to {EDIT_NUMBER_MAX}"))
                .param("least", 1)
                .param("most", EDIT_NUMBER_MAX),
        ));
    }
    edits.iter().filter_map(SentEdit::batch).try_for_each(|batch| check_batch("batch", batch))
}

fn check_batch(path: &str, batch: &str) -> Result<(), SyncError> {
    let fits = (1..=BATCH_CHARS_MAX).contains(&batch.len())
        && batch.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if fits {
        return Ok(());
    }
    let message = format!("must be 1 to {BATCH_CHARS_MAX} letters, digits, `-` and `_`; use a random id");
    Err(SyncError::from(Problem::new(Code::InvalidFormat, path, message).param("format", "batch_id")))
}

/// The batch of edits being applied.
struct OpenBatch<'a> {
    id: &'a str,
    author: AuthorNumber,
    /// Last applied edit; `None`: the batch is new.
    upto: Option<u64>,
    is_changed: bool,
}

impl<'a> OpenBatch<'a> {
    /// Finds a batch. A new batch belongs to the author whose last batch it continues. If that is unknown or already
    /// continued by another batch, the replica is a copy with an author of its own.
    fn open(
        ledger: &mut RowTransaction<'_>,
        device: DeviceNumber,
        id: &'a str,
        before: Option<&str>,
        lineage: &Lineage,
    ) -> Result<OpenBatch<'a>, StoreError> {
        if let Some(known) = ledger.batch(device, id)? {
            return Ok(OpenBatch { id, author: known.author, upto: Some(known.upto), is_changed: false });
        }
        let continued =
            before.into_iter().chain(lineage.batches.iter().map(String::as_str)).filter(|known| *known != id);
        let mut author = None;
        for known in continued {
            if let Some(known) = ledger.batch(device, known)? {
                author = Some(known).filter(|known| known.is_last).map(|known| known.author);
                let author = match author {
                    Some(author) => author,
                    None => ledger.make_author(device)?,
                };
                return Ok(OpenBatch { id, author, upto: None, is_changed: false });
            }
        }
        if author.is_none() && !ledger.has_batches(device)? {
            author = Some(device);
        }
        let author = match author {
            Some(author) => author,
            None => ledger.make_author(device)?,
        };
        Ok(OpenBatch { id, author, upto: None, is_changed: false })
    }

    fn close(self, ledger: &mut RowTransaction<'_>, device: DeviceNumber) -> Result<(), StoreError> {
        match self.upto {
            Some(upto) if self.is_changed => ledger.put_batch(device, self.id, self.author, upto),
            _ => Ok(()),
        }
    }
}

/// Applies edits to rows in order, and records the last one. `decided`: outcomes of edits of built-in rows. The inner
/// result holds the problem of the whole block.
#[expect(clippy::too_many_arguments, reason = "the one call is next to it, and a struct would name each of them twice")]
fn take_in(
    ledger: &mut RowTransaction<'_>,
    device: &ReplicaDevice,
    collections: &Collections,
    held: &[KeyNumber],
    edits: &[SentEdit],
    mut decided: HashMap<(Option<String>, u64), EditOutcome>,
    conflicts: &PendingConflicts,
    lineage: &Lineage,
) -> Result<Result<Uploaded, SyncError>, StoreError> {
    let counted_before = ledger.uploaded(device.number)?;
    let mut counted = counted_before;
    let mut taken = Uploaded { uploaded: counted, ..Uploaded::default() };
    let mut batch: Option<OpenBatch<'_>> = None;
    for sent in edits {
        let n = sent.n();
        let expected = match sent.batch() {
            None if n <= counted => continue,
            None => Some(counted + 1).filter(|_| !lineage.may_skip || counted != counted_before),
            Some(id) => {
                if batch.as_ref().is_none_or(|batch| batch.id != id) {
                    let before = batch.as_ref().map(|batch| batch.id);
                    if let Some(batch) = batch.take() {
                        batch.close(ledger, device.number)?;
                    }
                    batch = Some(OpenBatch::open(ledger, device.number, id, before, lineage)?);
                }
                let upto = batch.as_ref().and_then(|batch| batch.upto);
                if upto.is_some_and(|upto| n <= upto) {
                    taken.uploaded = n;
                    continue;
                }
                upto.map(|upto| upto + 1)
            }
        };
        if let Some(expected) = expected.filter(|expected| *expected != n) {
            let message = format!("is {n} where {expected} was expected; send edits in order, without gaps");
            return Ok(Err(SyncError::invalid(Code::Conflict, "n", message)));
        }
        let author = match &mut batch {
            Some(batch) if sent.batch().is_some() => {
                (batch.upto, batch.is_changed) = (Some(n), true);
                batch.author
            }
            _ => {
                if n > counted + 1 {
                    tracing::warn!(device = %device.id, from = counted + 1, to = n - 1, "the server was restored, and these edits were lost");
                }
                counted = n;
                device.number
            }
        };
        taken.uploaded = n;
        let editor =
            Editor { application: &device.application, collections, device: device.number, author, held, conflicts };
        let (outcome, fields) = match sent {
            SentEdit::Unreadable(bad) => (EditOutcome::Refused(vec![bad.problem.clone()]), Vec::new()),
            SentEdit::Edit(edit) => match usable(device, collections).find(|ready| ready.name == edit.collection) {
                Some(ready) if ready.definition.direction.is_up() && ready.definition.built_in.is_some() => {
                    let outcome = decided.remove(&(edit.batch.clone(), n));
                    (outcome.expect("each edit after the last accepted one has an outcome"), Vec::new())
                }
                Some(ready) if ready.definition.direction.is_up() => editor.apply(ledger, ready, edit)?,
                Some(_) => {
                    (EditOutcome::Refused(vec![Problem::new(Code::ReadOnly, "collection", "is read-only")]), Vec::new())
                }
                None => (
                    EditOutcome::Refused(vec![Problem::new(
                        Code::NotPermitted,
                        "collection",
                        "is not available to this device",
                    )]),
                    Vec::new(),
                ),
            },
        };
        let problems = match outcome {
            EditOutcome::Applied => {
                taken.applied += 1;
                fields
            }
            EditOutcome::Conflicted(winner) => {
                taken.conflicts.push(Met { n, winner });
                fields
            }
            EditOutcome::Refused(problems) => problems,
        };
        if !problems.is_empty() {
            taken.refused.push(Refused { n, problems });
        }
    }
    if let Some(batch) = batch {
        batch.close(ledger, device.number)?;
    }
    if counted != counted_before {
        ledger.set_uploaded(device.number, counted)?;
    }
    Ok(Ok(taken))
}
