//! Messages are taken from where they are: folders, brokers, tables.
//!
//! A location of a receive port is a source that gives messages as they come. What it took goes through the steps and the
//! routes of its port as what is sent there does, and is stored in one commit with how far the location has come; only then
//! the far side hears of it. Where a sender would be refused, a location waits with what it holds in its hand and takes
//! nothing more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_delivery::Clock;
use tocsin_model::{
    exchange::{Exchange, Location, MessageKind, ReceivePort, ServiceWindow, ThrottleReason, TrackPoint},
    id::Name,
    time::Timestamp,
};
use tocsin_sources::{
    Context, Gives, Message, OpenSource, Portion, Refusal, Setting, Trouble,
    supervise::{Health, Host, Running as Runs, Taken, keep_refused},
};
use tocsin_store::{
    error::StoreError,
    spool::{Beside, LocationKey, NewMessage, TakenMessage},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Exchanges, Running,
    flow::Brake,
    operate::OperateError,
    pipeline::Parcel,
    promote,
    receive::{Incoming, as_it_came},
    track::Seen,
};

/// The header that names the location of a message, for properties.
const LOCATION_HEADER: &str = "tocsin-location";
/// Most bytes that the messages of one portion become; those beyond wait for an operator as they came.
const BYTES_MAX: usize = 128 << 20;
/// The longest that a location waits before it looks whether there is room: an operator may have made some.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The longest that nobody looks at the clock.
const LOOK_MAX: Duration = Duration::from_secs(3_600);

/// How a location is doing, and what it did since it runs in this process.
#[derive(Debug, Clone, PartialEq)]
pub struct LocationStatus {
    /// Whose it is.
    pub key: LocationKey,
    /// What kind of place it is.
    pub kind: Name,
    /// How it does.
    pub health: Health,
    /// Messages that it took.
    pub messages: u64,
    /// When it took the last.
    pub last_at: Option<Timestamp>,
}

/// All locations that run, by exchange.
#[derive(Default)]
pub(crate) struct Locations(Mutex<BTreeMap<Name, Vec<Runs<Taker>>>>);

impl Locations {
    /// Runs the locations of a definition in place of those of the one before. What has not changed goes on.
    pub async fn change(&self, exchanges: &Arc<Exchanges>, definition: &Exchange) {
        let mut before = self.0.lock().remove(&definition.name).unwrap_or_default();
        let mut running = Vec::new();
        let mut wanted = Vec::new();
        for (port_name, port) in &definition.receive {
            for (location, defined) in &port.locations {
                let key = LocationKey {
                    exchange: definition.name.clone(),
                    port: port_name.clone(),
                    location: location.clone(),
                };
                let work = Work::new(port, defined);
                match before.iter().position(|known| known.host.key == key && known.host.work == work) {
                    Some(at) => running.push(before.swap_remove(at)),
                    None => wanted.push((key, work)),
                }
            }
        }
        // The next begins when the one before has ended, so that no two take from the same place.
        Runs::end(before).await;
        running.extend(wanted.into_iter().map(|(key, work)| Runs::start(Taker::new(exchanges, key, work))));
        running.sort_by(|one, other| one.host.key.cmp(&other.host.key));
        self.0.lock().insert(definition.name.clone(), running);
    }

    /// Ends those of an exchange.
    pub async fn stop(&self, exchange: &Name) {
        let running = self.0.lock().remove(exchange).unwrap_or_default();
        Runs::end(running).await;
    }

    /// Ends all. What they have taken is stored, or will be taken again.
    pub async fn stop_all(&self) {
        let running = std::mem::take(&mut *self.0.lock());
        Runs::end(running.into_values().flatten().collect()).await;
    }
}

impl Exchanges {
    /// The locations of an exchange, by port and name.
    ///
    /// # Errors
    /// There is no such exchange.
    pub fn locations(&self, exchange: &Name) -> Result<Vec<LocationStatus>, OperateError> {
        self.running(exchange)?;
        let all = self.locations.0.lock();
        Ok(all.get(exchange).into_iter().flatten().map(|runs| runs.host.status()).collect())
    }

    /// All locations.
    pub fn all_locations(&self) -> Vec<LocationStatus> {
        self.locations.0.lock().values().flatten().map(|runs| runs.host.status()).collect()
    }
}

/// What a location does, as far as it must begin anew when that changes.
#[derive(Clone, PartialEq)]
struct Work {
    location: Location,
    /// Whether its port takes anything, when, and how much.
    enabled: bool,
    window: Option<ServiceWindow>,
    body_bytes_max: usize,
}

impl Work {
    fn new(port: &ReceivePort, location: &Location) -> Work {
        Work {
            location: location.clone(),
            enabled: port.enabled,
            window: port.window.clone(),
            body_bytes_max: port.body_bytes_max as usize,
        }
    }

    fn windows(&self) -> impl Iterator<Item = &ServiceWindow> {
        self.window.iter().chain(&self.location.window)
    }

    /// Why nothing is taken now, if so.
    fn holds(&self, now: Timestamp) -> Option<String> {
        if !self.location.enabled {
            return Some("it is switched off".to_owned());
        }
        if !self.enabled {
            return Some("its port is switched off".to_owned());
        }
        let opens_at = self.windows().filter_map(|window| window.opens(now)).max()?;
        Some(format!("service_window: opens at {opens_at}"))
    }

    /// When that may change.
    fn changes_at(&self, now: Timestamp) -> Option<Timestamp> {
        if !self.enabled || !self.location.enabled {
            return None;
        }
        self.windows().filter_map(|window| window.opens(now).or_else(|| window.closes(now))).min()
    }
}

/// Takes from one location.
struct Taker {
    /// Exchanges own their locations.
    exchanges: Weak<Exchanges>,
    clock: Arc<dyn Clock>,
    key: LocationKey,
    work: Work,
    health: Mutex<Health>,
    messages: AtomicU64,
    last_at: Mutex<Option<Timestamp>>,
}

impl Taker {
    fn new(exchanges: &Arc<Exchanges>, key: LocationKey, work: Work) -> Taker {
        let clock = exchanges.parts.clock.clone();
        Taker {
            exchanges: Arc::downgrade(exchanges),
            health: Mutex::new(Health::new(clock.now())),
            clock,
            key,
            work,
            messages: AtomicU64::new(0),
            last_at: Mutex::default(),
        }
    }

    fn status(&self) -> LocationStatus {
        LocationStatus {
            key: self.key.clone(),
            kind: self.work.location.kind.clone(),
            health: self.health.lock().clone(),
            messages: self.messages.load(Ordering::Relaxed),
            last_at: *self.last_at.lock(),
        }
    }

    fn labels(&self) -> [(&'static str, String); 3] {
        let LocationKey { exchange, port, location } = &self.key;
        [("exchange", exchange.to_string()), ("port", port.to_string()), ("location", location.to_string())]
    }

    fn exchanges(&self) -> Result<Arc<Exchanges>, Trouble> {
        self.exchanges.upgrade().ok_or_else(|| Trouble::of("the exchanges are stopping"))
    }

    /// Keeps what cannot be taken in a file beside the data, before the location forgets it.
    async fn keep_refused(&self, refused: Vec<Refusal>) -> Result<(), Trouble> {
        let Some(last) = refused.last() else { return Ok(()) };
        let LocationKey { exchange, port, location } = &self.key;
        let (count, reason) = (refused.len() as u64, last.reason.clone());
        tracing::warn!(%exchange, %port, %location, count, reason, "some of what came is not taken");
        let name = format!("{exchange}.{port}.{location}");
        keep_refused(&self.exchanges()?.parts.data_folder, name, refused, self.clock.now()).await?;
        metrics::counter!("exchange_location_refused_total", &self.labels()).increment(count);
        Ok(())
    }

    /// Waits until as many messages may come in, each counted where an operator has set a rate.
    async fn let_in(&self, exchanges: &Exchanges, count: usize) -> Result<(), Trouble> {
        for _ in 0..count {
            loop {
                let running = self.running(exchanges)?;
                match exchanges.check_room(&running, &self.key.port, self.clock.now()) {
                    Ok(()) => break,
                    Err(brake) => self.pause(brake).await,
                }
            }
        }
        Ok(())
    }

    fn running(&self, exchanges: &Exchanges) -> Result<Arc<Running>, Trouble> {
        let gone = || Trouble::of(format!("the exchange `{}` does not run", self.key.exchange));
        exchanges.find(&self.key.exchange).ok_or_else(gone)
    }

    /// Takes nothing more for a while, and says why.
    async fn pause(&self, Brake { code, reason, retry_after }: Brake) {
        let why = format!("{}: {reason}", code.word());
        if self.health.lock().wait(why, self.clock.now()) {
            let LocationKey { exchange, port, location } = &self.key;
            tracing::warn!(%exchange, %port, %location, %code, reason, "a location waits");
        }
        tokio::time::sleep(retry_after.min(PAUSE_MAX)).await;
    }

    /// Does the steps of the port to messages, and waits while a send port has too much to do for them.
    async fn prepare(
        &self,
        exchanges: &Exchanges,
        messages: &[Message],
    ) -> Result<(Arc<Running>, Vec<TakenMessage>), Trouble> {
        loop {
            let (running, now) = (self.running(exchanges)?, self.clock.now());
            let taken = self.work_on(exchanges, &running, messages, now).await?;
            let legs = taken.iter().flat_map(routed).flat_map(|message| &message.legs);
            let ports: BTreeSet<&Name> = legs.map(|leg| &leg.port).collect();
            match exchanges.check_queues(&running, ports.into_iter(), now) {
                Ok(()) => return Ok((running, taken)),
                Err(brake) => self.pause(brake).await,
            }
        }
    }

    /// Waits for something for as long as the source may run.
    async fn unless_over<T>(&self, stop: &CancellationToken, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            () = self.until(false) => None,
            done = work => Some(done),
        }
    }

    fn count(&self, count: usize, since: Option<Timestamp>) {
        let (now, count) = (self.clock.now(), count as u64);
        self.health.lock().taken(since, now);
        self.messages.fetch_add(count, Ordering::Relaxed);
        *self.last_at.lock() = Some(now);
        let (exchange, port) = (self.key.exchange.to_string(), self.key.port.to_string());
        let labels = [("exchange", exchange), ("port", port), ("result", "new".to_owned())];
        metrics::counter!("exchange_received_total", &labels).increment(count);
        metrics::counter!("exchange_location_messages_total", &self.labels()).increment(count);
        if let Some(since) = since {
            metrics::histogram!("exchange_location_lag_seconds", &self.labels()).record(now.since(since));
        }
    }

    async fn work_on(
        &self,
        exchanges: &Exchanges,
        running: &Running,
        messages: &[Message],
        now: Timestamp,
    ) -> Result<Vec<TakenMessage>, Trouble> {
        let gone = || Trouble::of(format!("the receive port `{}` does not exist any more", self.key.port));
        let port = running.compiled.definition.receive.get(&self.key.port).ok_or_else(gone)?;
        // One commit holds them and how far the location has come.
        let (exchange, spool) = (&self.key.exchange, &exchanges.parts.spool);
        let together = &running.compiled.together;
        let beside = if together.is_empty() { Beside::Port } else { Beside::Ports(together) };
        let home = spool.partition_for(exchange, &self.key.port, beside).await;
        let home = home.map_err(|error| Trouble::new("messages cannot be stored", error))?;
        let (mut taken, mut bytes) = (Vec::with_capacity(messages.len()), 0);
        let stuck = |mut raw: Parcel, reason| {
            let whole =
                exchanges.new_message(running, home, &self.key.port, MessageKind::OneWay, raw.body.clone(), now);
            raw.trace = exchanges.spans.enter(&raw.headers, whole.id);
            as_it_came(running, whole, &raw, reason)
        };
        for message in messages {
            let raw = self.parcel(message);
            let most = port.body_bytes_max as usize;
            if raw.body.len() > most {
                let reason =
                    format!("its body has {} bytes, and `body_bytes` of the port allows {most}", raw.body.len());
                taken.push(stuck(raw, reason));
                continue;
            }
            let Parcel { content_type, headers, body, .. } = raw.clone();
            let incoming = Incoming { content_type, headers, body, ..Incoming::default() };
            let worked = exchanges.take_in(running, home, (&self.key.port, port), incoming, now).await;
            let made: usize = routed(&worked).map(|message| message.body.len()).sum();
            if bytes + made > BYTES_MAX && made > raw.body.len() {
                let reason = format!("what came with it became more than {BYTES_MAX} bytes; resume it");
                taken.push(stuck(raw, reason));
                continue;
            }
            bytes += made;
            taken.push(worked);
        }
        Ok(taken)
    }

    /// A message as the steps of a port take it.
    fn parcel(&self, message: &Message) -> Parcel {
        let content_type = match (&self.work.location.content_type, message.content_type.is_empty()) {
            (Some(usual), true) => usual.clone(),
            _ => message.content_type.clone(),
        };
        let mut headers = vec![(LOCATION_HEADER.to_owned(), self.key.location.to_string())];
        headers.extend(message.headers.iter().filter(|(name, _)| name != LOCATION_HEADER).cloned());
        Parcel { content_type, headers, body: message.body.clone(), ..Parcel::default() }
    }

    /// Keeps bodies as they came, where they are tracked.
    fn track(
        &self,
        exchanges: &Exchanges,
        running: &Running,
        messages: &[Message],
        stored: &[TakenMessage],
        now: Timestamp,
    ) {
        let tracks = running.tracks();
        if tracks.of_receive(&self.key.port).is_none() && !tracks.has_routes() {
            return;
        }
        for (message, TakenMessage { whole, .. }) in messages.iter().zip(stored) {
            let raw = self.parcel(message);
            let NewMessage { port, kind, head, body, .. } = whole;
            let row = tracks.has_routes().then(|| promote::row(&running.compiled, port, *kind, head, body.len()));
            let seen = Seen {
                exchange: &self.key.exchange,
                message: whole.id,
                point: TrackPoint::Received,
                port: &self.key.port,
                attempt: None,
                content_type: &raw.content_type,
                body: &raw.body,
            };
            exchanges.track(running, &seen, row.as_ref(), now);
        }
    }
}

/// What has legs: a message, or its parts.
fn routed(taken: &TakenMessage) -> impl Iterator<Item = &NewMessage> {
    let TakenMessage { whole, parts, .. } = taken;
    parts.as_deref().unwrap_or(std::slice::from_ref(whole)).iter()
}

impl Exchanges {
    /// Stores messages that a location took, and sends them on their ways. Gives them.
    async fn store_taken(
        self: &Arc<Self>,
        running: &Arc<Running>,
        key: LocationKey,
        taken: Vec<TakenMessage>,
        marks: Vec<tocsin_model::mark::Mark>,
    ) -> Result<Vec<TakenMessage>, StoreError> {
        let (exchanges, running) = (self.clone(), running.clone());
        // Whoever waits for it may go away meanwhile.
        let storing = self.tasks.spawn(async move {
            let ways: Vec<NewMessage> = taken.iter().flat_map(routed).cloned().collect();
            let _announced = running.announce(&ways);
            if let Some(due_at) = exchanges.parts.spool.accept_taken(key, taken.clone(), marks).await? {
                exchanges.gatherings.expect(due_at);
            }
            for TakenMessage { whole, parts, .. } in &taken {
                for message in std::iter::once(whole).chain(parts.iter().flatten()) {
                    exchanges.let_be_found(&running, message.id, &message.head, message.accepted_at);
                }
            }
            ways.iter().for_each(|message| exchanges.begin(&running, message));
            Ok(taken)
        });
        storing.await.map_err(StoreError::unavailable)?
    }
}

#[async_trait]
impl Host for Taker {
    fn health(&self) -> &Mutex<Health> {
        &self.health
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn luck(&self) -> f64 {
        fastrand::f64()
    }

    fn holds(&self) -> Option<String> {
        self.work.holds(self.clock.now())
    }

    async fn until(&self, may: bool) {
        while self.holds().is_none() != may {
            let now = self.clock.now();
            match self.work.changes_at(now) {
                Some(at) => tokio::time::sleep(at.since(now).min(LOOK_MAX)).await,
                // Another definition begins anew.
                None => std::future::pending().await,
            }
        }
    }

    async fn open(&self) -> Result<Box<dyn OpenSource>, Trouble> {
        let exchanges = self.exchanges()?;
        let marks = exchanges.parts.spool.location_marks(self.key.clone()).await;
        let marks = marks.map_err(|error| Trouble::new("its marks cannot be read", error))?;
        let LocationKey { exchange, port, location } = &self.key;
        let setting = Setting {
            application: exchange.clone(),
            name: location.clone(),
            // No source of an application is called so.
            far_name: format!("tocsin:{exchange}:{port}:{location}"),
            gives: Gives::Messages { bytes_max: self.work.body_bytes_max },
            options: self.work.location.options.clone(),
            context: Context {
                clock: self.clock.clone(),
                data_folder: exchanges.parts.data_folder.clone(),
                networks: exchanges.parts.networks.clone(),
                programs: exchanges.parts.programs.clone(),
                files: exchanges.parts.files.clone(),
                folders: exchanges.parts.folders.clone(),
                listeners: exchanges.parts.listeners.clone(),
            },
        };
        tocsin_sources::open(self.work.location.kind.as_str(), setting, marks).map_err(|problems| {
            let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
            Trouble::of(shown.join("; "))
        })
    }

    async fn take(&self, portion: Portion, stop: &CancellationToken) -> Result<Taken, Trouble> {
        let Portion { messages, marks, since, refused, .. } = portion;
        self.keep_refused(refused).await?;
        if messages.is_empty() && marks.is_empty() {
            return Ok(Taken::Stored);
        }
        let exchanges = self.exchanges()?;
        let Some(room) = self.unless_over(stop, self.let_in(&exchanges, messages.len())).await else {
            return Ok(Taken::NotNow);
        };
        room?;
        loop {
            let Some(prepared) = self.unless_over(stop, self.prepare(&exchanges, &messages)).await else {
                return Ok(Taken::NotNow);
            };
            let (running, taken) = prepared?;
            // Not given up half-way: whoever opens the source next must find these marks.
            let now = self.clock.now();
            match exchanges.store_taken(&running, self.key.clone(), taken, marks.clone()).await {
                Ok(stored) => {
                    self.track(&exchanges, &running, &messages, &stored, now);
                    for (message, TakenMessage { whole, .. }) in messages.iter().zip(&stored) {
                        exchanges.spans.received(whole, &message.headers, now, self.clock.now());
                    }
                    break;
                }
                Err(StoreError::Full(reason)) => {
                    let brake = running.flow.brake(None, ThrottleReason::Disk, reason, Duration::from_secs(1), now);
                    if self.unless_over(stop, self.pause(brake)).await.is_none() {
                        return Ok(Taken::NotNow);
                    }
                }
                Err(error) => return Err(Trouble::new("messages cannot be stored", error)),
            }
        }
        if !messages.is_empty() {
            self.count(messages.len(), since);
        }
        Ok(Taken::Stored)
    }

    fn troubled(&self, trouble: &Trouble, failures: u32) {
        let LocationKey { exchange, port, location } = &self.key;
        tracing::warn!(%exchange, %port, %location, failures, reason = trouble.text, "a location is in trouble");
        metrics::counter!("exchange_location_failures_total", &self.labels()).increment(1);
    }
}
