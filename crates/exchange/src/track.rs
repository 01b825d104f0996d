//! Bodies at points of their ways, and the properties by which messages are found, on their way into their own store.
//!
//! Nothing waits for it: what comes is put into a queue, and one task carries it away in blocks. The queue has a bound; what
//! finds no room there is dropped and counted. What dies with the process in the tenth of a second before it is carried
//! away is lost too; properties are read again from the spool at the next start.

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
    field::Row,
    id::{MessageId, Name},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    sqlite::tracking::SqliteTracking,
    tracking::{BodyChange, Entries, Findable, NewBlock, Packer, PlainBodies, TrackedBody},
};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{Exchanges, Running, compile::Compiled, groups::Workers};

/// Entries that may wait.
const WAITING_MAX: usize = 16_384;
/// Bytes of their bodies.
const WAITING_BYTES_MAX: usize = 32 << 20;
/// With so many bytes nobody waits for more. It is written and read again within a moment: what is longer than a processor's
/// own cache takes that from all others.
const BLOCK_BYTES: usize = 512 << 10;
/// How long entries wait for others to share a block with.
const LINGER: Duration = Duration::from_millis(100);
/// Up to so many bytes a body is copied: it is a part of the buffer into which it was read, and the whole of that would
/// stay in memory for as long as the body waits.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// A larger body is not read to strike something out.
const REDACTED_BYTES_MAX: usize = 4 << 20;
/// What stands in the place of what was struck out.
const STRUCK: &str = "***";

/// What is tracked at the ports of an exchange, as it is now.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Tracks {
    receive: BTreeMap<Name, Arc<Tracking>>,
    send: BTreeMap<Name, Arc<Tracking>>,
    /// Those of routes for which anything is.
    routes: BTreeMap<Name, Arc<Tracking>>,
}

/// What is set against definitions.
pub(crate) type Switches = HashMap<(Name, TrackPlace), TrackSwitch>;

impl Tracks {
    /// As the definition says, but for what is set.
    pub fn new(compiled: &Compiled, switches: &Switches) -> Tracks {
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
        Tracks {
            receive: definition.receive.iter().map(|(name, port)| now(name, &port.tracking)).collect(),
            send: definition.send.iter().map(|(name, port)| now(name, &port.tracking)).collect(),
            routes: definition.routes.iter().filter_map(|(name, route)| of_route(name, route)).collect(),
        }
    }

    /// Of a receive port, if anything is.
    pub fn of_receive(&self, port: &Name) -> Option<Arc<Tracking>> {
        self.receive.get(port).filter(|tracking| !tracking.points.is_empty()).cloned()
    }

    /// Of a send port, if anything is.
    pub fn of_send(&self, port: &Name) -> Option<Arc<Tracking>> {
        self.send.get(port).filter(|tracking| !tracking.points.is_empty()).cloned()
    }

    /// Whether anything is tracked of the messages of some route.
    pub fn has_routes(&self) -> bool {
        !self.routes.is_empty()
    }

    /// Of the routes of whose messages anything is tracked.
    pub fn of_routes(&self) -> impl Iterator<Item = (&Name, &Tracking)> {
        self.routes.iter().map(|(name, tracking)| (name, &**tracking))
    }

    /// Of all ports, each with the points that lie there; receive ports first.
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

/// A body at a point.
pub(crate) struct Seen<'a> {
    pub exchange: &'a Name,
    pub message: MessageId,
    pub point: TrackPoint,
    pub port: &'a Name,
    /// At a send port: the leg, and which attempt it is.
    pub attempt: Option<(u32, u32)>,
    pub content_type: &'a str,
    pub body: &'a Bytes,
}

impl Exchanges {
    /// Keeps a body, if its port asks for it or a route that its message meets: `row` is what predicates see of it, if any
    /// route may ask.
    pub(crate) fn track(&self, running: &Running, seen: &Seen<'_>, row: Option<&Row>, now: Timestamp) {
        let tracks = running.tracks();
        let is_receive = TrackPoint::OF_RECEIVE.contains(&seen.point);
        let of_port = if is_receive { tracks.of_receive(seen.port) } else { tracks.of_send(seen.port) };
        let takes = |tracking: &Arc<Tracking>| tracking.takes(seen.point, seen.message);
        let tracking = of_port.filter(takes).or_else(|| {
            let met = running.compiled.routes.names(row.filter(|_| tracks.has_routes())?);
            let routes = &running.compiled.definition.routes;
            // At a send port the routes count that led there.
            let leads =
                |name: &&Name| is_receive || routes.get(*name).is_some_and(|route| route.to.contains(seen.port));
            met.into_iter().filter(leads).find_map(|name| tracks.routes.get(name).filter(|found| takes(found)).cloned())
        });
        if let Some(tracking) = tracking {
            self.tracker.take(&tracking, seen, now);
        }
    }
}

/// How much is tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrackingCounts {
    /// Entries that wait to be stored.
    pub waiting: u64,
    /// Entries since the start that found no room, or no store that takes them.
    pub dropped: u64,
    /// Bytes that are kept.
    pub bytes: u64,
}

/// Carries entries away.
pub(crate) struct Tracker {
    pub store: Arc<SqliteTracking>,
    workers: Arc<Workers>,
    pub switches: RwLock<Switches>,
    queue: Mutex<Queue>,
    /// Something came into an empty queue.
    came: Notify,
    /// Nobody should wait for more.
    enough: Notify,
    dropped: AtomicU64,
    packer: Mutex<Packer>,
}

#[derive(Default)]
struct Queue {
    /// By their exchange, and for how long they are kept.
    groups: Groups,
    entries: usize,
    bytes: usize,
    /// Who waits until all that came before them is stored.
    flushes: Vec<oneshot::Sender<()>>,
    /// Nobody carries away any more.
    is_closed: bool,
}

type Groups = BTreeMap<(Name, Duration), Group>;

/// What goes into the same blocks.
#[derive(Default)]
struct Group {
    bodies: PlainBodies,
    /// Those of which something is struck out, which takes its time.
    unread: Vec<(TrackedBody, Arc<Tracking>)>,
    findable: Vec<Findable>,
}

impl Tracker {
    /// Reads what is set.
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

    /// Takes a body, if its message is among those that are tracked at this point.
    pub fn take(&self, tracking: &Arc<Tracking>, seen: &Seen<'_>, at: Timestamp) {
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

    /// Lets a message be found by these properties.
    pub fn index(&self, exchange: &Name, findable: Findable, kept: Duration) {
        self.push(exchange, kept, 0, |group| {
            group.findable.push(findable);
            0
        });
    }

    /// Takes an entry that has up to so many bytes; `push` gives how many they are.
    fn push(&self, exchange: &Name, kept: Duration, bytes_max: usize, push: impl FnOnce(&mut Group) -> usize) {
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

    /// Whether there is room for many more, so that what can wait does not drop what cannot.
    pub fn is_idle(&self) -> bool {
        self.queue.lock().entries < WAITING_MAX / 4
    }

    /// Waits until all that has come so far is stored, or dropped.
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
        // Dropped if nobody carries away any more.
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
        metrics::counter!("exchange_tracking_dropped_total", "reason" => reason).increment(many);
    }

    /// Carries entries away until `stopping`, and then what is left.
    pub async fn run(self: Arc<Self>, clock: Arc<dyn tocsin_delivery::Clock>, stopping: CancellationToken) {
        let mut emptied = Groups::new();
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
            // They look at what is stored now; one that has given up does not.
            for done in flushes {
                let _ = done.send(());
            }
            if is_closed {
                return;
            }
        }
    }

    /// Gives the groups back, empty, with the memory that they have.
    async fn carry(self: &Arc<Self>, mut groups: Groups, many: u64, now: Timestamp) -> Groups {
        let _worker = self.workers.enter().await;
        let tracker = self.clone();
        let packing = tokio::task::spawn_blocking(move || {
            let blocks = blocks(&mut groups, now, &mut tracker.packer.lock());
            (blocks, groups)
        });
        let (kept, emptied) = match packing.await {
            Ok((blocks, emptied)) => (self.store.keep(blocks).await, emptied),
            Err(error) => (Err(StoreError::unavailable(error)), Groups::new()),
        };
        match kept {
            Ok(0) => {}
            Ok(gone) => metrics::counter!("exchange_tracking_removed_total").increment(gone),
            Err(StoreError::Full(_)) => self.count_dropped(many, "disk"),
            Err(error) => {
                tracing::error!(%error, "what was tracked cannot be stored");
                self.count_dropped(many, "store");
            }
        }
        metrics::gauge!("exchange_tracking_bytes").set(self.store.bytes() as f64);
        emptied
    }
}

/// Blocks of what goes at the same time. Leaves the groups empty, and only those that had something.
fn blocks(groups: &mut Groups, now: Timestamp, packer: &mut Packer) -> Vec<NewBlock> {
    let mut blocks = Vec::new();
    groups.retain(|(exchange, kept), Group { bodies, unread, findable }| {
        for (body, tracking) in unread.drain(..) {
            bodies.push(&shown(body, &tracking));
        }
        let before = blocks.len();
        let mut block = |entries| blocks.push(NewBlock { exchange: exchange.clone(), goes_at: now + *kept, entries });
        if !bodies.is_empty() {
            block(Entries::Bodies(bodies.pack(packer)));
        }
        if !findable.is_empty() {
            block(Entries::Findable(std::mem::take(findable)));
        }
        blocks.len() > before
    });
    blocks
}

/// A body as people may see it.
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

/// No more of a body than is kept.
fn cut(mut tracked: TrackedBody, tracking: &Tracking) -> TrackedBody {
    let most = tracking.body_bytes_max as usize;
    if tracked.body.len() > most {
        tracked.body.truncate(most);
        tracked.change = Some(BodyChange::Cut);
    }
    tracked
}

/// A body without what is struck out; `Some(None)` if there was nothing of it. `None` if it is no JSON, or too large.
fn redacted(body: &[u8], paths: &[JsonPath]) -> Option<Option<Bytes>> {
    if body.len() > REDACTED_BYTES_MAX {
        return None;
    }
    let mut json = Exact::read(body).ok()?;
    let with = Exact::Literal(serde_json::Value::from(STRUCK).to_string().into());
    // All of them, also behind the first that is there.
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
    fn bodies_are_cut_and_secrets_are_struck_out() {
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
