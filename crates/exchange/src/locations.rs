//! Receive locations: take messages from folders, brokers and tables.
//!
//! A location is a source that feeds a receive port. Its messages go through the pipeline and the routes of the port.
//! They are stored in one commit with the location's checkpoint; after that the source is acknowledged. Where a sender
//! would be refused, a location pauses with its current batch.

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
use tocsin_connect::Clock;
use tocsin_model::{
    exchange::{Exchange, Location, MessageKind, ReceivePort, ServiceWindow, ThrottleReason, TrackPoint},
    id::Name,
    mark::Mark,
    time::Timestamp,
};
use tocsin_sources::{
    Message, OpenSource, RejectedItem, SourceBatch, SourceError, SourceOutput, SourceSettings,
    rejected::store_rejected,
    supervise::{Health, RunningSource, SourceHost, StoreOutcome},
};
use tocsin_store::{
    error::StoreError,
    spool::{LocationKey, NewMessage, PartitionAffinity, ReceivedMessage},
};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    admission,
    commit::{Commit, PendingBatch, routed},
    core::Core,
    flow::ThrottleRefusal,
    intake::IntakeState,
    message::{BYTES_MAX, IncomingMessage, PipelineMessage},
    process::{self, suspended_as_received},
    promote,
    receive::Intake,
    running::RunningExchange,
    track::BodyCapture,
};

/// Header with the name of the location, for properties.
const LOCATION_HEADER: &str = "tocsin-location";
/// Maximum pause before capacity is checked again, since an operator may have raised it.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Maximum time between checks of the clock.
const CHECK_MAX: Duration = Duration::from_secs(3_600);

/// Status of a location, and its counters since it was started in this process.
#[derive(Debug, Clone, PartialEq)]
pub struct LocationStatus {
    /// Exchange, port and name.
    pub key: LocationKey,
    /// The kind of source.
    pub kind: Name,
    /// Its health.
    pub health: Health,
    /// Messages taken.
    pub messages: u64,
    /// Time of the last message.
    pub last_at: Option<Timestamp>,
}

/// All running locations, by exchange.
#[derive(Default)]
pub(crate) struct Locations(Mutex<BTreeMap<Name, Vec<RunningSource<LocationReceiver>>>>);

impl Locations {
    /// Replaces the locations of an exchange by those of a new definition. Unchanged locations go on.
    pub async fn change(&self, intake: &Arc<Intake>, definition: &Exchange) {
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
        // The old location must end before its successor starts, so that no two read the same source.
        RunningSource::end(before).await;
        running.extend(
            wanted.into_iter().map(|(key, work)| RunningSource::start(LocationReceiver::new(intake, key, work))),
        );
        running.sort_by(|one, other| one.host.key.cmp(&other.host.key));
        self.0.lock().insert(definition.name.clone(), running);
    }

    /// The status of the locations of an exchange, by port and name.
    pub fn of(&self, exchange: &Name) -> Vec<LocationStatus> {
        self.0.lock().get(exchange).into_iter().flatten().map(|runs| runs.host.status()).collect()
    }

    /// The status of all locations.
    pub fn all(&self) -> Vec<LocationStatus> {
        self.0.lock().values().flatten().map(|runs| runs.host.status()).collect()
    }

    /// Stops the locations of an exchange.
    pub async fn stop(&self, exchange: &Name) {
        let running = self.0.lock().remove(exchange).unwrap_or_default();
        RunningSource::end(running).await;
    }

    /// Stops all locations. Their batches are stored, or will be read again.
    pub async fn stop_all(&self) {
        let running = std::mem::take(&mut *self.0.lock());
        RunningSource::end(running.into_values().flatten().collect()).await;
    }
}

/// The settings of a location; a change of any restarts it.
#[derive(Clone, PartialEq)]
struct Work {
    location: Location,
    /// Settings of its port.
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

    /// The reason why the location is held, if it is.
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

    /// The next time at which that can change.
    fn changes_at(&self, now: Timestamp) -> Option<Timestamp> {
        if !self.enabled || !self.location.enabled {
            return None;
        }
        self.windows().filter_map(|window| window.opens(now).or_else(|| window.closes(now))).min()
    }
}

/// Runs one location.
struct LocationReceiver {
    /// Weak, so that a location does not keep a stopped intake.
    intake: Weak<Intake>,
    clock: Arc<dyn Clock>,
    state: watch::Receiver<IntakeState>,
    key: LocationKey,
    work: Work,
    health: Mutex<Health>,
    messages: AtomicU64,
    last_at: Mutex<Option<Timestamp>>,
}

impl LocationReceiver {
    fn new(intake: &Arc<Intake>, key: LocationKey, work: Work) -> LocationReceiver {
        let clock = intake.core.parts.clock.clone();
        LocationReceiver {
            intake: Arc::downgrade(intake),
            state: intake.state.subscribe(),
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

    fn core(&self) -> Result<Arc<Core>, SourceError> {
        let intake = self.intake.upgrade().ok_or_else(|| SourceError::of("the exchanges are stopping"))?;
        Ok(intake.core.clone())
    }

    /// Saves rejected items to a file in the data folder, before the source forgets them.
    async fn save_rejected(&self, refused: Vec<RejectedItem>) -> Result<(), SourceError> {
        let Some(last) = refused.last() else { return Ok(()) };
        let LocationKey { exchange, port, location } = &self.key;
        let (count, reason) = (refused.len() as u64, last.reason.clone());
        tracing::warn!(%exchange, %port, %location, count, reason, "some items were rejected");
        let name = format!("{exchange}.{port}.{location}");
        store_rejected(&self.core()?.parts.data_folder, name, refused, self.clock.now()).await?;
        metrics::counter!("tocsin_exchange_location_refused_total", &self.labels()).increment(count);
        Ok(())
    }

    /// Waits until this number of messages is admitted by flow control; each counts against an operator's rate.
    async fn admit(&self, core: &Core, count: usize) -> Result<(), SourceError> {
        for _ in 0..count {
            loop {
                let running = self.running(core)?;
                match admission::check_admission(core, &running, &self.key.port, self.clock.now()) {
                    Ok(()) => break,
                    Err(refusal) => self.pause(refusal).await,
                }
            }
        }
        Ok(())
    }

    fn running(&self, core: &Core) -> Result<Arc<RunningExchange>, SourceError> {
        let gone = || SourceError::of(format!("the exchange `{}` does not run", self.key.exchange));
        core.find(&self.key.exchange).ok_or_else(gone)
    }

    /// Pauses, and reports why in the health.
    async fn pause(&self, ThrottleRefusal { code, reason, retry_after }: ThrottleRefusal) {
        let why = format!("{}: {reason}", code.word());
        if self.health.lock().wait(why, self.clock.now()) {
            let LocationKey { exchange, port, location } = &self.key;
            tracing::warn!(%exchange, %port, %location, %code, reason, "a location is paused");
        }
        tokio::time::sleep(retry_after.min(PAUSE_MAX)).await;
    }

    /// Runs the pipeline and routes on messages; pauses while a target send port is overloaded.
    async fn prepare(
        &self,
        core: &Core,
        messages: &[Message],
    ) -> Result<(Arc<RunningExchange>, Vec<ReceivedMessage>), SourceError> {
        loop {
            let (running, now) = (self.running(core)?, self.clock.now());
            let taken = self.process_batch(core, &running, messages, now).await?;
            let legs = taken.iter().flat_map(routed).flat_map(|message| &message.legs);
            let ports: BTreeSet<&Name> = legs.map(|leg| &leg.port).collect();
            match admission::check_queues(&running, ports.into_iter(), now) {
                Ok(()) => return Ok((running, taken)),
                Err(refusal) => self.pause(refusal).await,
            }
        }
    }

    /// Runs `work` until the source must stop; `None` if it must.
    async fn unless_stopped<T>(&self, stop: &CancellationToken, work: impl Future<Output = T>) -> Option<T> {
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
        metrics::counter!("tocsin_exchange_received_total", &labels).increment(count);
        metrics::counter!("tocsin_exchange_location_messages_total", &self.labels()).increment(count);
        if let Some(since) = since {
            metrics::histogram!("tocsin_exchange_location_lag_seconds", &self.labels()).record(now.since(since));
        }
    }

    async fn process_batch(
        &self,
        core: &Core,
        running: &RunningExchange,
        messages: &[Message],
        now: Timestamp,
    ) -> Result<Vec<ReceivedMessage>, SourceError> {
        let gone = || SourceError::of(format!("the receive port `{}` does not exist any more", self.key.port));
        let port = running.compiled.definition.receive.get(&self.key.port).ok_or_else(gone)?;
        // Messages and checkpoint share a commit, so one partition.
        let (exchange, spool) = (&self.key.exchange, &core.parts.spool);
        let colocated_ports = &running.compiled.colocated_ports;
        let beside = if colocated_ports.is_empty() {
            PartitionAffinity::Port
        } else {
            PartitionAffinity::Ports(colocated_ports)
        };
        let home = spool.partition_for(exchange, &self.key.port, beside).await;
        let home = home.map_err(|error| SourceError::new("messages cannot be stored", error))?;
        let (mut taken, mut bytes) = (Vec::with_capacity(messages.len()), 0);
        let stuck = |mut raw: PipelineMessage, reason| {
            let whole = core.new_message(running, home, &self.key.port, MessageKind::OneWay, raw.body.clone(), now);
            raw.trace = core.spans.trace_of_received(&raw.headers, whole.id);
            suspended_as_received(running, whole, &raw, reason)
        };
        for message in messages {
            let raw = self.pipeline_message(message);
            let most = port.body_bytes_max as usize;
            if raw.body.len() > most {
                let reason =
                    format!("its body has {} bytes, and `body_bytes` of the port allows {most}", raw.body.len());
                taken.push(stuck(raw, reason));
                continue;
            }
            let PipelineMessage { content_type, headers, body, .. } = raw.clone();
            let incoming = IncomingMessage { content_type, headers, body, ..IncomingMessage::default() };
            let worked = process::receive(core, running, home, (&self.key.port, port), incoming, now).await;
            let made: usize = routed(&worked).map(|message| message.body.len()).sum();
            if bytes + made > BYTES_MAX && made > raw.body.len() {
                let reason = format!("its batch became larger than {BYTES_MAX} bytes; resume it to process it alone");
                taken.push(stuck(raw, reason));
                continue;
            }
            bytes += made;
            taken.push(worked);
        }
        Ok(taken)
    }

    /// Converts a source's message for the pipeline.
    fn pipeline_message(&self, message: &Message) -> PipelineMessage {
        let content_type = match (&self.work.location.content_type, message.content_type.is_empty()) {
            (Some(usual), true) => usual.clone(),
            _ => message.content_type.clone(),
        };
        let mut headers = vec![(LOCATION_HEADER.to_owned(), self.key.location.to_string())];
        headers.extend(message.headers.iter().filter(|(name, _)| name != LOCATION_HEADER).cloned());
        PipelineMessage { content_type, headers, body: message.body.clone(), ..PipelineMessage::default() }
    }

    /// Tracks the bodies in their received form.
    fn track(
        &self,
        core: &Core,
        running: &RunningExchange,
        messages: &[Message],
        stored: &[ReceivedMessage],
        now: Timestamp,
    ) {
        let tracks = running.tracks();
        if tracks.of_receive(&self.key.port).is_none() && !tracks.has_routes() {
            return;
        }
        for (message, ReceivedMessage { whole, .. }) in messages.iter().zip(stored) {
            let raw = self.pipeline_message(message);
            let NewMessage { port, kind, head, body, .. } = whole;
            let row =
                tracks.has_routes().then(|| promote::row(&running.compiled.schema, port, *kind, head, body.len()));
            let captured = BodyCapture {
                exchange: &self.key.exchange,
                message: whole.id,
                point: TrackPoint::Received,
                port: &self.key.port,
                attempt: None,
                content_type: &raw.content_type,
                body: &raw.body,
            };
            core.track(running, &captured, row.as_ref(), now);
        }
    }
}

/// Stores messages of a location, which are dispatched after the commit. Returns them.
async fn store_batch(
    core: &Arc<Core>,
    running: &Arc<RunningExchange>,
    location: LocationKey,
    messages: Vec<ReceivedMessage>,
    marks: Vec<Mark>,
) -> Result<Vec<ReceivedMessage>, StoreError> {
    let (done, stored) = oneshot::channel();
    let _reservation = core.reserve_legs(running, messages.iter().flat_map(routed));
    let batch = PendingBatch { running: running.clone(), location, messages, marks, done, _reservation };
    // The waiting task can be cancelled in the meantime.
    let committing = core.clone();
    core.tasks.spawn(async move { committing.commit(Commit::Batch(Box::new(batch))).await });
    stored.await.map_err(StoreError::unavailable)?
}

#[async_trait]
impl SourceHost for LocationReceiver {
    fn health(&self) -> &Mutex<Health> {
        &self.health
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn jitter(&self) -> f64 {
        fastrand::f64()
    }

    fn hold_reason(&self) -> Option<String> {
        let hold = self.state.borrow().hold.clone();
        hold.or_else(|| self.work.holds(self.clock.now()))
    }

    async fn until(&self, may: bool) {
        let mut state = self.state.clone();
        loop {
            state.mark_unchanged();
            if self.hold_reason().is_none() == may {
                return;
            }
            let now = self.clock.now();
            let changes_at = self.work.changes_at(now);
            let change = async {
                match changes_at {
                    Some(at) => tokio::time::sleep(at.since(now).min(CHECK_MAX)).await,
                    // A new definition starts a new location.
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = change => {}
                Ok(()) = state.changed() => {}
            }
        }
    }

    async fn open(&self) -> Result<Box<dyn OpenSource>, SourceError> {
        let core = self.core()?;
        let marks = core.parts.spool.location_marks(self.key.clone()).await;
        let marks = marks.map_err(|error| SourceError::new("its marks cannot be read", error))?;
        let LocationKey { exchange, port, location } = &self.key;
        let setting = SourceSettings {
            application: exchange.clone(),
            name: location.clone(),
            // Distinct from all source names of applications.
            remote_name: format!("tocsin:{exchange}:{port}:{location}"),
            output: SourceOutput::Messages { bytes_max: self.work.body_bytes_max },
            options: self.work.location.options.clone(),
            context: core.source_context(),
        };
        tocsin_sources::open(self.work.location.kind.as_str(), setting, marks).map_err(|problems| {
            let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
            SourceError::of(shown.join("; "))
        })
    }

    async fn take(&self, portion: SourceBatch, stop: &CancellationToken) -> Result<StoreOutcome, SourceError> {
        let SourceBatch { messages, marks, since, refused, .. } = portion;
        self.save_rejected(refused).await?;
        if messages.is_empty() && marks.is_empty() {
            return Ok(StoreOutcome::Stored);
        }
        let core = self.core()?;
        let Some(room) = self.unless_stopped(stop, self.admit(&core, messages.len())).await else {
            return Ok(StoreOutcome::NotNow);
        };
        room?;
        loop {
            let Some(prepared) = self.unless_stopped(stop, self.prepare(&core, &messages)).await else {
                return Ok(StoreOutcome::NotNow);
            };
            let (running, taken) = prepared?;
            // Not cancelled: the next start of the source must find this checkpoint.
            let now = self.clock.now();
            match store_batch(&core, &running, self.key.clone(), taken, marks.clone()).await {
                Ok(stored) => {
                    self.track(&core, &running, &messages, &stored, now);
                    for (message, ReceivedMessage { whole, .. }) in messages.iter().zip(&stored) {
                        core.spans.received(whole, &message.headers, now, self.clock.now());
                    }
                    break;
                }
                Err(StoreError::Full(reason)) => {
                    let refusal =
                        running.flow.throttle(None, ThrottleReason::Disk, reason, Duration::from_secs(1), now);
                    if self.unless_stopped(stop, self.pause(refusal)).await.is_none() {
                        return Ok(StoreOutcome::NotNow);
                    }
                }
                Err(error) => return Err(SourceError::new("messages cannot be stored", error)),
            }
        }
        if !messages.is_empty() {
            self.count(messages.len(), since);
        }
        Ok(StoreOutcome::Stored)
    }

    fn report_error(&self, error: &SourceError, failures: u32) {
        let LocationKey { exchange, port, location } = &self.key;
        tracing::warn!(%exchange, %port, %location, failures, reason = error.text, "a location failed");
        metrics::counter!("tocsin_exchange_location_failures_total", &self.labels()).increment(1);
    }
}
