//! Mixed load: one server with all features, and simulated users that run random operations in a closed or an open
//! loop.

use std::{
    collections::HashMap,
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tocsin_capacity::mix::CommitWait;
use tokio::{sync::oneshot, task::JoinSet};

use super::figures::{
    accept_single, directory, exchange_roundtrip,
    sync::{self, Device},
};
use crate::{
    examples::stock::SEED,
    failure::{Failure, Outcome},
    {
        context::{Context, Scratch},
        http_client::{self, Connection},
        ldap_client::{self, Answer, EntryRange, LdapOperation},
        precise_timer,
        server::{ChunkWriter, Server},
        test_receiver::{ReceiverSpeed, TestReceiver},
    },
};

/// Operation of the mixed load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Publish one event that matches no subscription.
    Event,
    /// Publish [`BATCH_EVENTS`] such events in one request.
    Events,
    /// Publish an event that is delivered to a few subscribers by HTTP, and wait for the deliveries.
    Stock,
    /// Publish an event that many subscribers' filters accept, and wait for the deliveries.
    Broadcast,
    /// LDAP search for an entry by its name.
    Search,
    /// LDAP modify that replaces a value.
    Modify,
    /// LDAP add.
    Add,
    /// LDAP bind as another user, and bind back.
    Bind,
    /// Request/reply round trip through an exchange.
    Trip,
    /// Sync session of a device that uploads edits.
    Session,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 10] = [
        Operation::Event,
        Operation::Events,
        Operation::Stock,
        Operation::Broadcast,
        Operation::Search,
        Operation::Modify,
        Operation::Add,
        Operation::Bind,
        Operation::Trip,
        Operation::Session,
    ];

    /// Operation with this name in profiles and cost vectors.
    pub fn by_name(name: &str) -> Option<Operation> {
        Some(match name {
            "accept" => Operation::Event,
            "directory.search" => Operation::Search,
            "directory.modify" | "directory.modify_add" | "directory.modify_replace" => Operation::Modify,
            "directory.add" => Operation::Add,
            "directory.bind" => Operation::Bind,
            "exchange.roundtrip" => Operation::Trip,
            "sync.session" => Operation::Session,
            _ => return None,
        })
    }

    /// Name in tables.
    pub fn word(self) -> &'static str {
        match self {
            Operation::Event => "event",
            Operation::Events => "events",
            Operation::Stock => "stock",
            Operation::Broadcast => "broadcast",
            Operation::Search => "search",
            Operation::Modify => "modify",
            Operation::Add => "add",
            Operation::Bind => "bind",
            Operation::Trip => "trip",
            Operation::Session => "session",
        }
    }

    /// Writer whose commits the operation waits for, and the part of its duration that this takes. A fan-out operation
    /// waits for the commit of the event and then mostly for its deliveries.
    pub fn commits(self) -> Option<CommitWait> {
        let (writer, part) = match self {
            Operation::Search | Operation::Bind => return None,
            Operation::Event | Operation::Events => (0, 1.0),
            Operation::Stock => (0, 0.4),
            Operation::Broadcast => (0, 0.1),
            Operation::Modify | Operation::Add => (1, 1.0),
            Operation::Trip => (2, 1.0),
            Operation::Session => (3, 1.0),
        };
        Some(CommitWait { writer, part })
    }

    /// Whether the operation is CPU-bound: it waits for no commit.
    pub fn is_read_only(self) -> bool {
        matches!(self, Operation::Search | Operation::Bind)
    }

    /// Relative loss of throughput if every second operation is this one and the others only read. Measured by `tocsin
    /// bench plan.pairs` on two cores, in three runs.
    pub fn write_contention(self) -> f64 {
        match self {
            Operation::Search | Operation::Bind | Operation::Broadcast => 0.0,
            Operation::Event => 0.5,
            Operation::Events => 0.7,
            Operation::Stock => 0.4,
            Operation::Modify => 0.6,
            Operation::Add => 0.2,
            Operation::Trip => 0.3,
            Operation::Session => 0.45,
        }
    }
}

/// Events of one [`Operation::Events`] request.
pub const BATCH_EVENTS: usize = 50;
/// Subscribers of topic `few`.
pub const FEW_SUBSCRIBERS: u32 = 20;
/// Subscribers whose filters accept a broadcast.
const MANY_SUBSCRIBERS: u32 = 400;
/// Maximum time from publishing an event to its last delivery.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// Application whose subscribers get HTTP requests. The number in the text correlates a request with its event.
const DEFINITION: &str = r#"
application: mixed
events: { news: { fields: { topic: { type: string, required: true }, severity: { type: number, required: true }, text: string } } }
subscriptions:
  interest: { fields: { topic: { type: string, required: true } } }
  filtered: { filter: [cel] }
notifications:
  item: { fields: { topic: string, text: string }, batch_size: 2500, content: { templates: { base: { subject: "News of {{ topic }}", text: "{{ text }}\n" } } } }
rules:
  about: { on: news, subscription: interest, when: event.topic == sub.topic, notify: item }
  wide: { on: news, subscription: filtered, when: "event.topic == 'all'", notify: item }
channels: { out: { protocol: http, concurrency: 64, flow: { per_destination: 64 }, options: { secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw, allow_networks: [127.0.0.0/8] } } }
"#;

/// Outstanding deliveries per event, counted by the receiver.
#[derive(Default)]
pub struct OutstandingDeliveries {
    open: Mutex<HashMap<u64, (u32, oneshot::Sender<()>)>>,
    /// Deliveries received so receiver.
    pub delivered: AtomicU64,
    number: AtomicU64,
}

impl OutstandingDeliveries {
    /// Allocates a number for an event with `readers` deliveries; the channel signals the last one.
    fn expect(&self, readers: u32) -> (u64, oneshot::Receiver<()>) {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (done, wait) = oneshot::channel();
        self.open.lock().insert(number, (readers, done));
        (number, wait)
    }

    fn read(&self, body: &[u8]) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
        let Some(number) = number_in(body) else { return };
        let mut open = self.open.lock();
        let Some((left, _)) = open.get_mut(&number) else { return };
        *left -= 1;
        if *left == 0
            && let Some((_, done)) = open.remove(&number)
        {
            // The waiting user may have timed out.
            let _ = done.send(());
        }
    }
}

/// Parses the number between the first two `#`.
fn number_in(body: &[u8]) -> Option<u64> {
    let mut parts = body.split(|byte| *byte == b'#').skip(1);
    std::str::from_utf8(parts.next()?).ok()?.parse().ok()
}

/// Server with an intake, subscribers, a directory, an exchange and devices.
pub struct MixedServer {
    /// Server under test.
    pub server: Server,
    /// Outstanding deliveries.
    pub tally: Arc<OutstandingDeliveries>,
    ldap_port: u16,
    crowd: Arc<EntryRange>,
    devices: Vec<Device>,
    /// Seeds the generators of users; each user, also a reconnected one, gets its own sequence. With one seed, many
    /// short runs would draw the same operations and the same bursts.
    chance: fastrand::Rng,
    _receivers: [TestReceiver; 2],
    _folder: Scratch,
}

impl MixedServer {
    /// Starts a server with `people` directory entries, and devices for `users` users.
    ///
    /// # Errors
    /// If the server rejects a request.
    pub async fn start(context: &Context, people: u64, users: usize) -> Outcome<MixedServer> {
        let (folder, ldap_port, server) = directory::serve(context, people).await?;
        server.apply("intake", accept_single::DEFINITION).await?;
        let (receiver, tally) = start_receiver(&server, |_| ReceiverSpeed { workers: 1_000, millis: 0 }).await?;
        let answering = exchange_roundtrip::install(&server).await?;
        let devices = sync::devices_of(&server, users, sync::FEW).await?;
        let crowd = Arc::new(EntryRange::of(people));
        let chance = fastrand::Rng::with_seed(SEED);
        Ok(MixedServer {
            server,
            tally,
            ldap_port,
            crowd,
            devices,
            chance,
            _receivers: [receiver, answering],
            _folder: folder,
        })
    }

    /// Creates users that can run these operations. Each user has its own connections.
    ///
    /// # Errors
    /// If the server refuses a connection.
    pub async fn users(&mut self, operations: &[Operation], count: usize) -> Outcome<Vec<User>> {
        let mut users = Vec::new();
        for _ in 0..count {
            let mut clients = Vec::new();
            for operation in operations {
                clients.push(self.client(*operation).await?);
            }
            let ports = Ports { http: self.server.port, ldap: self.ldap_port };
            users.push(User { clients, ports, chance: self.chance.fork() });
        }
        Ok(users)
    }

    /// Returns the devices of these users, so that others can use them.
    pub fn release_users(&mut self, users: Vec<User>) {
        for client in users.into_iter().flat_map(|user| user.clients) {
            if let OperationClient::Session(device) = client {
                self.devices.push(*device);
            }
        }
    }

    async fn client(&mut self, operation: Operation) -> Outcome<OperationClient> {
        let broke = |error: std::io::Error| Failure::failed("no connection for a user").because(&error);
        let key = &self.server.key;
        let http = async || Connection::open(self.server.port).await.map_err(broke);
        let ldap = async |act: LdapOperation| {
            let connection = ldap_client::Connection::open(self.ldap_port).await.map_err(broke)?;
            Ok::<_, Failure>(OperationClient::Ldap { connection, act, crowd: self.crowd.clone() })
        };
        let events = |count| {
            let body = Value::Array(accept_single::events(count)).to_string();
            http_client::post(accept_single::PATH, key, "application/json", body.as_bytes())
        };
        match operation {
            Operation::Event => Ok(OperationClient::Post { connection: http().await?, request: events(1) }),
            Operation::Events => Ok(OperationClient::Post { connection: http().await?, request: events(BATCH_EVENTS) }),
            Operation::Stock => {
                Ok(OperationClient::publish(&self.server, &self.tally, http().await?, "few", FEW_SUBSCRIBERS))
            }
            Operation::Broadcast => {
                Ok(OperationClient::publish(&self.server, &self.tally, http().await?, "all", MANY_SUBSCRIBERS))
            }
            Operation::Search => ldap(LdapOperation::Base).await,
            Operation::Modify => ldap(LdapOperation::ModifyReplace).await,
            Operation::Add => ldap(LdapOperation::Add).await,
            Operation::Bind => ldap(LdapOperation::Bind).await,
            Operation::Trip => {
                let request = exchange_roundtrip::target(&self.server, 1_000, 1).request;
                Ok(OperationClient::Post { connection: http().await?, request })
            }
            Operation::Session => {
                let device =
                    self.devices.pop().ok_or_else(|| Failure::failed("too few devices for the users of this load"))?;
                Ok(OperationClient::Session(Box::new(device)))
            }
        }
    }
}

/// Server whose subscribers are served by one receiver with configurable speed.
pub struct DeliveryServer {
    /// Server under test.
    pub server: Server,
    /// Outstanding deliveries.
    pub tally: Arc<OutstandingDeliveries>,
    _receivers: TestReceiver,
    _folder: Scratch,
}

impl DeliveryServer {
    /// Starts the server and the receiver.
    ///
    /// # Errors
    /// If the server rejects a request.
    pub async fn start(context: &Context, nature: fn(Duration) -> ReceiverSpeed) -> Outcome<DeliveryServer> {
        let folder = context.folder()?;
        let server = Server::start(context, folder.path()).await?;
        let (receiver, tally) = start_receiver(&server, nature).await?;
        Ok(DeliveryServer { server, tally, _receivers: receiver, _folder: folder })
    }

    /// Creates users that publish to a few subscribers and wait for the deliveries.
    ///
    /// # Errors
    /// If the server refuses a connection.
    pub async fn users(&self, count: usize) -> Outcome<Vec<User>> {
        let mut users = Vec::new();
        for number in 0..count {
            let connection = Connection::open(self.server.port).await;
            let connection = connection.map_err(|error| Failure::failed("no connection for a user").because(&error))?;
            let client = OperationClient::publish(&self.server, &self.tally, connection, "few", FEW_SUBSCRIBERS);
            let ports = Ports { http: self.server.port, ldap: 0 };
            users.push(User { clients: vec![client], ports, chance: fastrand::Rng::with_seed(number as u64) });
        }
        Ok(users)
    }
}

/// Request that publishes a numbered event of a topic.
pub fn news(key: &str, topic: &str, number: u64) -> Vec<u8> {
    let text: String = "All the news that fits. ".chars().cycle().take(300).collect();
    let event = json!([{"topic": topic, "severity": 9.5, "text": format!("#{number}# {text}")}]);
    http_client::post("/v1/applications/mixed/events/news", key, "application/json", event.to_string().as_bytes())
}

async fn start_receiver(
    server: &Server,
    nature: fn(Duration) -> ReceiverSpeed,
) -> Outcome<(TestReceiver, Arc<OutstandingDeliveries>)> {
    let tally = Arc::new(OutstandingDeliveries::default());
    let reader = tally.clone();
    let receiver = TestReceiver::with_reader(nature, Arc::new(move |body: &[u8]| reader.read(body))).await?;
    let port = receiver.port;
    server.apply("mixed", DEFINITION).await?;
    let subscribers = move |out: &mut ChunkWriter| {
        (0..MANY_SUBSCRIBERS).try_for_each(|number| {
            let address = format!("http://127.0.0.1:{port}/hook/r{number}");
            writeln!(out, r#"{{"id":"r{number}","devices":{{"main":{{"channel":"out","address":"{address}"}}}}}}"#)
        })
    };
    server.import_subscribers(subscribers).await?;
    let few = move |out: &mut ChunkWriter| {
        (0..FEW_SUBSCRIBERS).try_for_each(|number| {
            writeln!(
                out,
                r#"{{"application":"mixed","class":"interest","subscriber":"r{number}","values":{{"topic":"few"}}}}"#
            )
        })
    };
    server.import_subscriptions("mixed", "interest", few).await?;
    let many = move |out: &mut ChunkWriter| {
        (0..MANY_SUBSCRIBERS).try_for_each(|number| {
            let text = format!("event.severity >= {}.5", number % 9);
            let filter = json!({"dialect": "cel", "text": text});
            writeln!(
                out,
                r#"{{"application":"mixed","class":"filtered","subscriber":"r{number}","values":{{}},"filter":{filter}}}"#
            )
        })
    };
    server.import_subscriptions("mixed", "filtered", many).await?;
    Ok((receiver, tally))
}

/// Client state of a user for one operation.
enum OperationClient {
    Post {
        connection: Connection,
        request: Vec<u8>,
    },
    Publish {
        connection: Connection,
        key: String,
        topic: &'static str,
        readers: u32,
        tally: Arc<OutstandingDeliveries>,
    },
    Ldap {
        connection: ldap_client::Connection,
        act: LdapOperation,
        crowd: Arc<EntryRange>,
    },
    Session(Box<Device>),
}

impl OperationClient {
    /// Client that publishes to `topic` and waits for `readers` deliveries.
    fn publish(
        server: &Server,
        tally: &Arc<OutstandingDeliveries>,
        connection: Connection,
        topic: &'static str,
        readers: u32,
    ) -> OperationClient {
        OperationClient::Publish { connection, key: server.key.clone(), topic, readers, tally: tally.clone() }
    }

    /// Reconnects, as a new user would. A device keeps its state.
    async fn reconnect(&mut self, ports: Ports) -> std::io::Result<()> {
        match self {
            OperationClient::Post { connection, .. } | OperationClient::Publish { connection, .. } => {
                *connection = Connection::open(ports.http).await?;
            }
            OperationClient::Ldap { connection, .. } => *connection = ldap_client::Connection::open(ports.ldap).await?,
            OperationClient::Session(_) => {}
        }
        Ok(())
    }

    /// Runs the operation to completion.
    async fn once(&mut self, chance: &mut fastrand::Rng) -> Outcome {
        let broke = |error: std::io::Error| Failure::failed("a connection of the load broke").because(&error);
        match self {
            OperationClient::Post { connection, request } => {
                let (status, body) = connection.exchange(request).await.map_err(broke)?;
                check_status(status, &body)
            }
            OperationClient::Publish { connection, key, topic, readers, tally } => {
                let (number, delivered) = tally.expect(*readers);
                let (status, body) = connection.exchange(&news(key, topic, number)).await.map_err(broke)?;
                check_status(status, &body)?;
                match tokio::time::timeout(DELIVERY_TIMEOUT, delivered).await {
                    Ok(Ok(())) => Ok(()),
                    _ => Err(Failure::failed(format!(
                        "event {number} was not delivered to all subscribers within a minute"
                    ))),
                }
            }
            OperationClient::Ldap { connection, act, crowd } => {
                let request = act.request(chance.u64(..crowd.count), &crowd.new, chance);
                let answer = connection.ask(&request).await.map_err(broke)?;
                if answer != (Answer { code: 0, entries: u32::from(*act == LdapOperation::Base) }) {
                    return Err(Failure::failed(format!("{act:?} was answered by {answer:?}")));
                }
                if *act == LdapOperation::Bind {
                    connection.ask(&ldap_client::bind(crate::ldap_fixture::USER)).await.map_err(broke)?;
                }
                Ok(())
            }
            OperationClient::Session(device) => device.round(0.0).await.map(|_| ()),
        }
    }
}

/// Checks that the response status is 2xx.
///
/// # Errors
/// The status is not 2xx; the error contains the body.
pub fn check_status(status: u16, body: &[u8]) -> Outcome {
    if (200..300).contains(&status) {
        return Ok(());
    }
    let words = String::from_utf8_lossy(body).into_owned();
    Err(Failure::failed(format!("the server answered {status}")).detail(words))
}

/// Ports of a server.
#[derive(Debug, Clone, Copy)]
struct Ports {
    http: u16,
    ldap: u16,
}

/// Simulated user: runs random operations sequentially, each drawn by its share.
pub struct User {
    clients: Vec<OperationClient>,
    ports: Ports,
    chance: fastrand::Rng,
}

impl User {
    /// Think time in seconds until the next operation: exponentially distributed around the mean.
    pub fn think(&mut self, mean: f64) -> f64 {
        // 1 - x, since ln(0) is not finite.
        -(1.0 - self.chance.f64()).ln() * mean
    }

    /// Closes all connections and opens new ones.
    ///
    /// # Errors
    /// If the server refuses a connection.
    pub async fn reconnect(&mut self) -> Outcome {
        for client in &mut self.clients {
            let renewed = client.reconnect(self.ports).await;
            renewed.map_err(|error| Failure::failed("no connection for a user").because(&error))?;
        }
        Ok(())
    }

    /// Runs one random operation. Returns its index.
    ///
    /// # Errors
    /// If the operation fails.
    pub async fn once(&mut self, shares: &[f64]) -> Outcome<usize> {
        let mut at = self.chance.f64() * shares.iter().sum::<f64>();
        let drawn = shares.iter().position(|share| {
            at -= share;
            at < 0.0
        });
        let drawn = drawn.unwrap_or(shares.len() - 1);
        self.clients[drawn].once(&mut self.chance).await?;
        Ok(drawn)
    }
}

/// Result of a load.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MixedLoadResult {
    /// Completed operations per second.
    pub per_second: f64,
    /// Duration of each operation in seconds, sorted.
    pub times: Vec<f64>,
    /// Sum of seconds and count for each operation, in the order of the shares.
    pub by_operation: Vec<(f64, u64)>,
}

/// Phases of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadPhases {
    /// Warm-up, not measured.
    pub warm_up: Duration,
    /// Measured phase.
    pub measured: Duration,
}

/// Closed loop: each user starts its next operation as soon as the previous one completes. Counts operations that start
/// after the warm-up, until the user's last operation ends, so that an operation may be longer than the measured phase.
///
/// # Errors
/// If an operation fails.
pub async fn closed(users: Vec<User>, shares: &[f64], stint: LoadPhases) -> Outcome<(MixedLoadResult, Vec<User>)> {
    let (started, shares) = (Instant::now(), Arc::<[f64]>::from(shares));
    let (settled, over) = (started + stint.warm_up, started + stint.warm_up + stint.measured);
    let mut running = JoinSet::new();
    for mut user in users {
        let shares = shares.clone();
        running.spawn(async move {
            while Instant::now() < settled {
                user.once(&shares).await?;
            }
            let (counted, mut times) = (Instant::now(), Vec::new());
            loop {
                let begun = Instant::now();
                let operation = user.once(&shares).await?;
                let ended = Instant::now();
                times.push((operation, (ended - begun).as_secs_f64()));
                if ended > over {
                    let rate = times.len() as f64 / (ended - counted).as_secs_f64();
                    return Ok::<_, Failure>(FinishedUser { user, times, rate });
                }
            }
        });
    }
    all_of(running).await
}

/// Open loop: operations are due at random times (Poisson process) with this mean rate. Each starts when due, or as
/// soon after as a user is free. Its duration counts from the due time. Counts operations that are due after the
/// warm-up.
///
/// # Errors
/// If an operation fails.
pub async fn open(
    mut users: Vec<User>,
    shares: &[f64],
    rate: f64,
    stint: LoadPhases,
) -> Outcome<(MixedLoadResult, Vec<User>)> {
    let (warm_up, measured) = (stint.warm_up.as_secs_f64(), stint.measured.as_secs_f64());
    let mut chance = users.first_mut().map_or_else(|| fastrand::Rng::with_seed(SEED), |user| user.chance.fork());
    let mut due = Vec::new();
    let mut at = 0.0;
    while at < warm_up + measured {
        due.push(at);
        // 1 - x, since ln(0) is not finite.
        at -= (1.0 - chance.f64()).ln() / rate.max(1e-3);
    }
    let (due, shares, next) = (Arc::<[f64]>::from(due), Arc::<[f64]>::from(shares), Arc::new(AtomicU64::new(0)));
    let started = Instant::now();
    let mut running = JoinSet::new();
    for mut user in users {
        let (due, shares, next) = (due.clone(), shares.clone(), next.clone());
        running.spawn(async move {
            let mut times = Vec::new();
            loop {
                let Some(after) = due.get(next.fetch_add(1, Ordering::Relaxed) as usize) else {
                    let lasted = (started.elapsed().as_secs_f64() - warm_up).max(measured);
                    let rate = times.len() as f64 / lasted;
                    return Ok::<_, Failure>(FinishedUser { user, times, rate });
                };
                let due = started + Duration::from_secs_f64(*after);
                precise_timer::until(due).await;
                let operation = user.once(&shares).await?;
                if *after >= warm_up {
                    times.push((operation, due.elapsed().as_secs_f64()));
                }
            }
        });
    }
    all_of(running).await
}

/// Finished user with its measurements.
struct FinishedUser {
    user: User,
    /// Index and duration of each operation.
    times: Vec<(usize, f64)>,
    /// Operations per second.
    rate: f64,
}

async fn all_of(mut running: JoinSet<Outcome<FinishedUser>>) -> Outcome<(MixedLoadResult, Vec<User>)> {
    let (mut users, mut seen) = (Vec::new(), MixedLoadResult::default());
    while let Some(ended) = running.join_next().await {
        let FinishedUser { user, times, rate } =
            ended.map_err(|error| Failure::failed("a user task panicked").because(&error))??;
        seen.by_operation.resize(seen.by_operation.len().max(user.clients.len()), (0.0, 0));
        users.push(user);
        for (operation, time) in times {
            seen.times.push(time);
            let (sum, count) = &mut seen.by_operation[operation];
            (*sum, *count) = (*sum + time, *count + 1);
        }
        seen.per_second += rate;
    }
    seen.times.sort_by(f64::total_cmp);
    Ok((seen, users))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_correlated_with_its_event_by_the_number() {
        let tally = OutstandingDeliveries::default();
        let (number, mut delivered) = tally.expect(2);
        let body = format!(r##"{{"data":{{"text":"#{number}# All the news"}}}}"##);
        assert_eq!(number_in(body.as_bytes()), Some(number));
        tally.read(body.as_bytes());
        assert!(delivered.try_recv().is_err());
        tally.read(body.as_bytes());
        assert!(delivered.try_recv().is_ok() && tally.open.lock().is_empty());
        tally.read(b"nothing that counts");
        assert_eq!(tally.delivered.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn the_definition_compiles() {
        let problems = tocsin_pipeline::compile_text(DEFINITION, 1, &|_| None).err();
        assert!(problems.is_none(), "{problems:?}");
    }
}
