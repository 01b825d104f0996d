//! Message tracking: copies of bodies at tracking points, and the property index, written to their own store.
//!
//! Best effort; delivery never waits for it. Entries go to a bounded queue, and one task writes them in blocks. Entries
//! beyond the bound are dropped and counted. A crash loses bodies of the last tenth of a second; properties are read
//! again from the spool at the next start.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tocsin_model::{
    exact_json::Exact,
    exchange::{JsonPath, Route, TrackPlace, TrackPoint, TrackSwitch, Tracking},
    id::{MessageId, Name},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    sqlite::tracking::SqliteTracking,
    tracking::{BodyChange, Entries, IndexedProperties, NewBlock, Packer, PlainBodies, TrackedBody},
};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{compile::CompiledExchange, groups::Workers};

/// Maximum entries in the queue.
const WAITING_MAX: usize = 16_384;
/// Maximum bytes of their bodies.
const WAITING_BYTES_MAX: usize = 32 << 20;
/// A block is written at this size without further delay. It is small enough for the processor's own cache, since it is
/// read again at once.
const BLOCK_BYTES: usize = 512 << 10;
/// Delay during which entries are collected for one block.
const LINGER: Duration = Duration::from_millis(100);
/// Bodies up to this size are copied. A body is a slice of its read buffer, and would keep the whole buffer in memory.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// Largest body that is parsed for redaction.
const REDACTED_BYTES_MAX: usize = 4 << 20;
/// Replacement for redacted values.
const STRUCK: &str = "***";

/// Effective tracking of the ports and routes of an exchange.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ActiveTracking {
    receive: BTreeMap<Name, Arc<Tracking>>,
    send: BTreeMap<Name, Arc<Tracking>>,
    /// Only routes that track anything.
    routes: BTreeMap<Name, Arc<Tracking>>,
}

/// Tracking settings of operators, which override definitions.
pub(crate) type TrackingSwitches = HashMap<(Name, TrackPlace), TrackSwitch>;

impl ActiveTracking {
    /// Combines the definition with the operators' settings.
    pub fn new(compiled: &CompiledExchange, switches: &TrackingSwitches) -> ActiveTracking {
        let exchange = &compiled.definition.name;
        let set_at = |place: TrackPlace| switches.get(&(exchange.clone(), place));
        let switched = |set: Option<&TrackSwitch>, defined: &Tracking| match set {
            Some(TrackSwitch { points, sample_percent }) => {
                Tracking { points: points.clone(), sample_percent: *sample_percent, ..defined.clone() }
            }
            None => defined.clone(),
        };
        let now = |port: &Name, defined: &Tracking| {
            let set = set_at(TrackPlace::Ports(port.clone())).or_else(|| set_at(TrackPlace::Exchange));
            (port.clone(), Arc::new(switched(set, defined)))
        };
        let of_route = |name: &Name, route: &Route| {
            let tracking = switched(set_at(TrackPlace::Route(name.clone())), &route.tracking);
            (!tracking.points.is_empty()).then(|| (name.clone(), Arc::new(tracking)))
        };
        let definition = &compiled.definition;
        ActiveTracking {
            receive: definition.receive.iter().map(|(name, port)| now(name, &port.tracking)).collect(),
            send: definition.send.iter().map(|(name, port)| now(name, &port.tracking)).collect(),
            routes: definition.routes.iter().filter_map(|(name, route)| of_route(name, route)).collect(),
        }
    }

    /// Tracking of a receive port, if any.
    pub fn of_receive(&self, port: &Name) -> Option<Arc<Tracking>> {
        self.receive.get(port).filter(|tracking| !tracking.points.is_empty()).cloned()
    }

    /// Tracking of a send port, if any.
    pub fn of_send(&self, port: &Name) -> Option<Arc<Tracking>> {
        self.send.get(port).filter(|tracking| !tracking.points.is_empty()).cloned()
    }

    /// Whether any route tracks its messages.
    pub fn has_routes(&self) -> bool {
        !self.routes.is_empty()
    }

    /// Tracking of a route, if any.
    pub fn of_route(&self, route: &Name) -> Option<Arc<Tracking>> {
        self.routes.get(route).cloned()
    }

    /// The routes that track their messages.
    pub fn of_routes(&self) -> impl Iterator<Item = (&Name, &Tracking)> {
        self.routes.iter().map(|(name, tracking)| (name, &**tracking))
    }

    /// All ports with their tracking points; receive ports first.
    pub fn all(&self) -> impl Iterator<Item = (&Name, bool, &Tracking, Vec<TrackPoint>)> {
        let here = |tracking: &Tracking, points: [TrackPoint; 2]| {
            points.into_iter().filter(|point| tracking.points.contains(point)).collect::<Vec<_>>()
        };
        let receive = self
            .receive
            .iter()
            .map(move |(port, tracking)| (port, true, &**tracking, here(tracking, TrackPoint::OF_RECEIVE)));
        let send = self
            .send
            .iter()
            .map(move |(port, tracking)| (port, false, &**tracking, here(tracking, TrackPoint::OF_SEND)));
        receive.chain(send)
    }
}

/// A body at a tracking point.
pub(crate) struct BodyCapture<'a> {
    pub exchange: &'a Name,
    pub message: MessageId,
    pub point: TrackPoint,
    pub port: &'a Name,
    /// At a send port: the leg and the number of the attempt.
    pub attempt: Option<(u32, u32)>,
    pub content_type: &'a str,
    pub body: &'a Bytes,
}

impl BodyCapture<'_> {
    /// Whether tracking takes bodies of this point, and has sampled the message.
    pub fn is_taken_by(&self, tracking: &Arc<Tracking>) -> bool {
        tracking.takes(self.point, self.message)
    }
}

/// Counters of tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrackingCounts {
    /// Entries in the queue.
    pub waiting: u64,
    /// Entries that were dropped since the start, because the queue was full or the store failed.
    pub dropped: u64,
    /// Bytes in the store.
    pub bytes: u64,
}

/// Collects entries and writes them to the tracking store.
pub(crate) struct Tracker {
    pub store: Arc<SqliteTracking>,
    workers: Arc<Workers>,
    pub switches: RwLock<TrackingSwitches>,
    queue: Mutex<Queue>,
    /// Notified when an empty queue gets an entry.
    came: Notify,
    /// Notified when a block is full.
    enough: Notify,
    dropped: AtomicU64,
    packer: Mutex<Packer>,
}

#[derive(Default)]
struct Queue {
    /// By exchange and retention.
    groups: EntryGroups,
    entries: usize,
    bytes: usize,
    /// Waiters for the entries before them to be stored.
    flushes: Vec<oneshot::Sender<()>>,
    /// Whether the writer has stopped.
    is_closed: bool,
}

type EntryGroups = BTreeMap<(Name, Duration), EntryGroup>;

/// Entries that share blocks.
#[derive(Default)]
struct EntryGroup {
    bodies: PlainBodies,
    /// Bodies to redact, which happens off the hot path.
    unread: Vec<(TrackedBody, Arc<Tracking>)>,
    findable: Vec<IndexedProperties>,
}

impl Tracker {
    /// Reads the operators' settings.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn new(store: Arc<SqliteTracking>, workers: Arc<Workers>) -> Result<Tracker, StoreError> {
        let set = store.switches().await?.into_iter().map(|set| ((set.exchange, set.place), set.switch)).collect();
        Ok(Tracker {
            store,
            workers,
            switches: RwLock::new(set),
            queue: Mutex::default(),
            came: Notify::new(),
            enough: Notify::new(),
            dropped: AtomicU64::new(0),
            packer: Mutex::default(),
        })
    }

    /// Queues a body, if its message is sampled at this point.
    pub fn take(&self, tracking: &Arc<Tracking>, seen: &BodyCapture<'_>, at: Timestamp) {
        if !tracking.takes(seen.point, seen.message) {
            return;
        }
        let is_unread = !tracking.redact.is_empty() && !seen.body.is_empty();
        let tracked = TrackedBody {
            message: seen.message,
            point: seen.point,
            port: seen.port.clone(),
            attempt: seen.attempt,
            at,
            content_type: seen.content_type.to_owned(),
            bytes: seen.body.len() as u64,
            change: None,
            body: match seen.body.len() {
                0..=COPIED_BYTES_MAX if is_unread => Bytes::copy_from_slice(seen.body),
                _ => seen.body.clone(),
            },
        };
        let tracked = if is_unread { tracked } else { cut(tracked, tracking) };
        let bytes = tracked.body.len();
        self.push(seen.exchange, tracking.kept, bytes, |group| {
            if is_unread {
                group.unread.push((tracked, tracking.clone()));
                bytes
            } else {
                group.bodies.push(&tracked)
            }
        });
    }

    /// Adds a message to the property index.
    pub fn index(&self, exchange: &Name, findable: IndexedProperties, kept: Duration) {
        self.push(exchange, kept, 0, |group| {
            group.findable.push(findable);
            0
        });
    }

    /// Queues an entry of at most `bytes_max` bytes; `push` returns its actual size.
    fn push(&self, exchange: &Name, kept: Duration, bytes_max: usize, push: impl FnOnce(&mut EntryGroup) -> usize) {
        let mut queue = self.queue.lock();
        if queue.is_closed || queue.entries >= WAITING_MAX || queue.bytes + bytes_max > WAITING_BYTES_MAX {
            drop(queue);
            return self.count_dropped(1, "queue");
        }
        let bytes = push(queue.groups.entry((exchange.clone(), kept)).or_default());
        let was_below = queue.bytes < BLOCK_BYTES;
        queue.bytes += bytes;
        queue.entries += 1;
        if queue.entries == 1 {
            self.came.notify_one();
        }
        if was_below && queue.bytes >= BLOCK_BYTES {
            self.enough.notify_one();
        }
    }

    /// Whether the queue is mostly empty, so that low-priority entries do not displace others.
    pub fn is_idle(&self) -> bool {
        self.queue.lock().entries < WAITING_MAX / 4
    }

    /// Waits until all entries so far are stored or dropped.
    pub async fn flush(&self) {
        let (done, stored) = oneshot::channel();
        {
            let mut queue = self.queue.lock();
            if queue.is_closed {
                return;
            }
            queue.flushes.push(done);
        }
        self.came.notify_one();
        self.enough.notify_one();
        // An error means that the writer has stopped.
        let _ = stored.await;
    }

    pub fn counts(&self) -> TrackingCounts {
        TrackingCounts {
            waiting: self.queue.lock().entries as u64,
            dropped: self.dropped.load(Ordering::Relaxed),
            bytes: self.store.bytes(),
        }
    }

    fn count_dropped(&self, many: u64, reason: &'static str) {
        self.dropped.fetch_add(many, Ordering::Relaxed);
        metrics::counter!("tocsin_exchange_tracking_dropped_total", "reason" => reason).increment(many);
    }

    /// Writes entries until `stopping`, then the remaining ones.
    pub async fn run(self: Arc<Self>, clock: Arc<dyn tocsin_connect::Clock>, stopping: CancellationToken) {
        let mut emptied = EntryGroups::new();
        loop {
            tokio::select! {
                () = self.came.notified() => {}
                () = stopping.cancelled() => {}
            }
            tokio::select! {
                () = tokio::time::sleep(LINGER) => {}
                () = self.enough.notified() => {}
                () = stopping.cancelled() => {}
            }
            let is_closed = stopping.is_cancelled();
            let next = Queue { is_closed, groups: std::mem::take(&mut emptied), ..Queue::default() };
            let Queue { groups, entries, flushes, .. } = std::mem::replace(&mut *self.queue.lock(), next);
            if entries > 0 {
                emptied = self.carry(groups, entries as u64, clock.now()).await;
            }
            // The waiters read the store now; a waiter that timed out is ignored.
            for done in flushes {
                let _ = done.send(());
            }
            if is_closed {
                return;
            }
        }
    }

    /// Writes the groups; returns them empty, with their allocated memory.
    async fn carry(self: &Arc<Self>, mut groups: EntryGroups, many: u64, now: Timestamp) -> EntryGroups {
        let _worker = self.workers.enter().await;
        let tracker = self.clone();
        let packing = tokio::task::spawn_blocking(move || {
            let blocks = blocks(&mut groups, now, &mut tracker.packer.lock());
            (blocks, groups)
        });
        let (kept, emptied) = match packing.await {
            Ok((blocks, emptied)) => (self.store.store_blocks(blocks).await, emptied),
            Err(error) => (Err(StoreError::unavailable(error)), EntryGroups::new()),
        };
        match kept {
            Ok(0) => {}
            Ok(gone) => metrics::counter!("tocsin_exchange_tracking_removed_total").increment(gone),
            Err(StoreError::Full(_)) => self.count_dropped(many, "disk"),
            Err(error) => {
                tracing::error!(%error, "tracked bodies cannot be stored");
                self.count_dropped(many, "store");
            }
        }
        metrics::gauge!("tocsin_exchange_tracking_bytes").set(self.store.bytes() as f64);
        emptied
    }
}

/// Packs groups into blocks by expiry. Leaves the groups empty, and drops those that had nothing.
fn blocks(groups: &mut EntryGroups, now: Timestamp, packer: &mut Packer) -> Vec<NewBlock> {
    let mut blocks = Vec::new();
    groups.retain(|(exchange, kept), EntryGroup { bodies, unread, findable }| {
        for (body, tracking) in unread.drain(..) {
            bodies.push(&shown(body, &tracking));
        }
        let before = blocks.len();
        let mut block = |entries| blocks.push(NewBlock { exchange: exchange.clone(), goes_at: now + *kept, entries });
        if !bodies.is_empty() {
            block(Entries::Bodies(bodies.pack(packer)));
        }
        if !findable.is_empty() {
            block(Entries::Properties(std::mem::take(findable)));
        }
        blocks.len() > before
    });
    blocks
}

/// The redacted and truncated body.
fn shown(tracked: TrackedBody, tracking: &Tracking) -> TrackedBody {
    let (mut body, mut change) = (tracked.body, None);
    if !tracking.redact.is_empty() && !body.is_empty() {
        (body, change) = match redacted(&body, &tracking.redact) {
            Some(Some(struck)) => (struck, Some(BodyChange::Redacted)),
            Some(None) => (body, None),
            None => (Bytes::new(), Some(BodyChange::Withheld)),
        };
    }
    cut(TrackedBody { body, change, ..tracked }, tracking)
}

/// Truncates a body to the configured size.
fn cut(mut tracked: TrackedBody, tracking: &Tracking) -> TrackedBody {
    let most = tracking.body_bytes_max as usize;
    if tracked.body.len() > most {
        tracked.body.truncate(most);
        tracked.change = Some(BodyChange::Cut);
    }
    tracked
}

/// The redacted body; `Some(None)` if nothing had to be redacted. `None` if the body is not JSON or is too large.
fn redacted(body: &[u8], paths: &[JsonPath]) -> Option<Option<Bytes>> {
    if body.len() > REDACTED_BYTES_MAX {
        return None;
    }
    let mut json = Exact::read(body).ok()?;
    let with = Exact::Literal(serde_json::Value::from(STRUCK).to_string().into());
    // Replaces all paths; `any` would stop at the first.
    let struck = paths.iter().filter(|path| path.replace(&mut json, &with)).count() > 0;
    Some(struck.then(|| json.to_string().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, redact: &[&str], most: u32, expected: (&str, Option<BodyChange>)) {
        let redact = redact.iter().map(|path| path.parse().expect("a path")).collect();
        let tracking = Tracking { redact, body_bytes_max: most, ..Tracking::default() };
        let tracked = TrackedBody {
            message: MessageId(1),
            point: TrackPoint::Received,
            port: "p".parse().expect("a name"),
            attempt: None,
            at: Timestamp(0),
            content_type: String::new(),
            bytes: body.len() as u64,
            change: None,
            body: Bytes::copy_from_slice(body.as_bytes()),
        };
        let shown = shown(tracked, &tracking);
        assert_eq!((std::str::from_utf8(&shown.body).expect("text"), shown.change), expected);
        assert_eq!(shown.bytes, body.len() as u64);
    }

    #[test]
    fn bodies_are_truncated_and_secrets_redacted() {
        use BodyChange::{Cut, Redacted, Withheld};
        check("hello", &[], 5, ("hello", None));
        check("hello", &[], 4, ("hell", Some(Cut)));
        check(r#"{"a":1,"card":{"pin":1}}"#, &["$.card.pin"], 99, (r#"{"a":1,"card":{"pin":"***"}}"#, Some(Redacted)));
        check(r#"{"a": 1}"#, &["$.card.pin"], 99, (r#"{"a": 1}"#, None));
        check(r#"{"card":1}"#, &["$.card"], 9, (r#"{"card":""#, Some(Cut)));
        check("<card>1</card>", &["$.card"], 99, ("", Some(Withheld)));
        check("", &["$.card"], 99, ("", None));
    }
}
