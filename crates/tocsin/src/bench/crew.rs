//! One server that does everything, and users who ask it for all kinds of things, each as soon as the one before is done
//! or when it is due.

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
use tocsin_capacity::mix::Commits;
use tokio::{sync::oneshot, task::JoinSet};

use super::figures::{
    accept_single, directory, exchange_roundtrip,
    sync::{self, Device},
};
use crate::{
    bench::{
        context::{Context, Scratch},
        far_end::{FarEnd, Nature},
        ldap::{self, Act, Answer, Crowd},
        on_time,
        server::{Parts, Server},
        wire::{self, Connection},
    },
    examples::stock::SEED,
    failure::{Failure, Outcome},
};

/// What somebody may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errand {
    /// An event that concerns nobody.
    Event,
    /// Many of them.
    Events,
    /// An event of which a few readers are told by HTTP.
    Stock,
    /// An event that many readers' filters let through.
    Broadcast,
    /// A search for an entry by its name.
    Search,
    /// Another value.
    Modify,
    /// An entry.
    Add,
    /// A bind, and one back.
    Bind,
    /// A round trip through an exchange.
    Trip,
    /// A device that brings edits.
    Session,
}

impl Errand {
    /// All of them.
    pub const ALL: [Errand; 10] = [
        Errand::Event,
        Errand::Events,
        Errand::Stock,
        Errand::Broadcast,
        Errand::Search,
        Errand::Modify,
        Errand::Add,
        Errand::Bind,
        Errand::Trip,
        Errand::Session,
    ];

    /// The errand of an operation that profiles and vectors name.
    pub fn of_operation(name: &str) -> Option<Errand> {
        Some(match name {
            "accept" => Errand::Event,
            "directory.search" => Errand::Search,
            "directory.modify" | "directory.modify_add" | "directory.modify_replace" => Errand::Modify,
            "directory.add" => Errand::Add,
            "directory.bind" => Errand::Bind,
            "exchange.roundtrip" => Errand::Trip,
            "sync.session" => Errand::Session,
            _ => return None,
        })
    }

    /// What it is called in tables.
    pub fn word(self) -> &'static str {
        match self {
            Errand::Event => "event",
            Errand::Events => "events",
            Errand::Stock => "stock",
            Errand::Broadcast => "broadcast",
            Errand::Search => "search",
            Errand::Modify => "modify",
            Errand::Add => "add",
            Errand::Bind => "bind",
            Errand::Trip => "trip",
            Errand::Session => "session",
        }
    }

    /// Whose commits it waits for, and for what part of its time: who tells readers of an event waits for the commit of the
    /// event and then for much else.
    pub fn commits(self) -> Option<Commits> {
        let (writer, part) = match self {
            Errand::Search | Errand::Bind => return None,
            Errand::Event | Errand::Events => (0, 1.0),
            Errand::Stock => (0, 0.4),
            Errand::Broadcast => (0, 0.1),
            Errand::Modify | Errand::Add => (1, 1.0),
            Errand::Trip => (2, 1.0),
            Errand::Session => (3, 1.0),
        };
        Some(Commits { writer, part })
    }

    /// Whether it waits for nothing but the processor.
    pub fn only_reads(self) -> bool {
        matches!(self, Errand::Search | Errand::Bind)
    }

    /// What part of its speed the machine loses if every other operation is this one and those between only read. By
    /// `tocsin bench plan.pairs` on two cores, in three runs.
    pub fn disturbs(self) -> f64 {
        match self {
            Errand::Search | Errand::Bind | Errand::Broadcast => 0.0,
            Errand::Event => 0.5,
            Errand::Events => 0.7,
            Errand::Stock => 0.4,
            Errand::Modify => 0.6,
            Errand::Add => 0.2,
            Errand::Trip => 0.3,
            Errand::Session => 0.45,
        }
    }
}

/// Events that come together.
pub const TOGETHER: usize = 50;
/// Readers of a topic.
pub const FEW_READERS: u32 = 20;
/// Readers whose filters let the event through.
const MANY_READERS: u32 = 400;
/// How long an event may take until everybody was told.
const TOLD_WITHIN: Duration = Duration::from_secs(60);

/// An application whose readers are told by HTTP. A number in the text tells the far end which event it was.
const DEFINITION: &str = r#"
application: told
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

/// Who has not been told yet, by event.
#[derive(Default)]
pub struct Tally {
    open: Mutex<HashMap<u64, (u32, oneshot::Sender<()>)>>,
    /// All that were told.
    pub told: AtomicU64,
    number: AtomicU64,
}

impl Tally {
    /// A number for an event of which so many will be told, and what hears when they were.
    fn expect(&self, readers: u32) -> (u64, oneshot::Receiver<()>) {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (done, wait) = oneshot::channel();
        self.open.lock().insert(number, (readers, done));
        (number, wait)
    }

    fn read(&self, body: &[u8]) {
        self.told.fetch_add(1, Ordering::Relaxed);
        let Some(number) = number_in(body) else { return };
        let mut open = self.open.lock();
        let Some((left, _)) = open.get_mut(&number) else { return };
        *left -= 1;
        if *left == 0
            && let Some((_, done)) = open.remove(&number)
        {
            // Whoever waited may have given up.
            let _ = done.send(());
        }
    }
}

/// The number between the first two `#`.
fn number_in(body: &[u8]) -> Option<u64> {
    let mut parts = body.split(|byte| *byte == b'#').skip(1);
    std::str::from_utf8(parts.next()?).ok()?.parse().ok()
}

/// A server with an intake, readers, a directory, an exchange and devices.
pub struct World {
    /// The server.
    pub server: Server,
    /// Who has been told.
    pub tally: Arc<Tally>,
    ldap_port: u16,
    crowd: Arc<Crowd>,
    devices: Vec<Device>,
    /// Of users: each has luck of its own, also one who comes again. Otherwise all of many short runs would draw the same errands,
    /// and have the same chance bursts.
    chance: fastrand::Rng,
    _far: [FarEnd; 2],
    _folder: Scratch,
}

impl World {
    /// Starts it with so many people in its directory, and devices for so many users.
    ///
    /// # Errors
    /// The server refuses something.
    pub async fn start(context: &Context, people: u64, users: usize) -> Outcome<World> {
        let (folder, ldap_port, server) = directory::serve(context, people).await?;
        server.apply("intake", accept_single::DEFINITION).await?;
        let (told, tally) = bring_readers(&server, |_| Nature { workers: 1_000, millis: 0 }).await?;
        let answering = exchange_roundtrip::bring(&server).await?;
        let devices = sync::devices_of(&server, users, sync::FEW).await?;
        let crowd = Arc::new(Crowd::of(people));
        let chance = fastrand::Rng::with_seed(SEED);
        Ok(World { server, tally, ldap_port, crowd, devices, chance, _far: [told, answering], _folder: folder })
    }

    /// Users who are ready for these errands. Each has connections of its own.
    ///
    /// # Errors
    /// The server does not take a connection.
    pub async fn users(&mut self, errands: &[Errand], count: usize) -> Outcome<Vec<User>> {
        let mut users = Vec::new();
        for _ in 0..count {
            let mut hands = Vec::new();
            for errand in errands {
                hands.push(self.hand(*errand).await?);
            }
            let ports = Ports { http: self.server.port, ldap: self.ldap_port };
            users.push(User { hands, ports, chance: self.chance.fork() });
        }
        Ok(users)
    }

    /// Takes back what users of sessions have, so that others can have it.
    pub fn dismiss(&mut self, users: Vec<User>) {
        for hand in users.into_iter().flat_map(|user| user.hands) {
            if let Hand::Session(device) = hand {
                self.devices.push(*device);
            }
        }
    }

    async fn hand(&mut self, errand: Errand) -> Outcome<Hand> {
        let broke = |error: std::io::Error| Failure::failed("no connection for a user").because(&error);
        let key = &self.server.key;
        let http = async || Connection::open(self.server.port).await.map_err(broke);
        let ldap = async |act: Act| {
            let connection = ldap::Connection::open(self.ldap_port).await.map_err(broke)?;
            Ok::<_, Failure>(Hand::Ldap { connection, act, crowd: self.crowd.clone() })
        };
        let events = |count| {
            let body = Value::Array(accept_single::events(count)).to_string();
            wire::post(accept_single::PATH, key, "application/json", body.as_bytes())
        };
        match errand {
            Errand::Event => Ok(Hand::Post { connection: http().await?, request: events(1) }),
            Errand::Events => Ok(Hand::Post { connection: http().await?, request: events(TOGETHER) }),
            Errand::Stock => Ok(Hand::told(&self.server, &self.tally, http().await?, "few", FEW_READERS)),
            Errand::Broadcast => Ok(Hand::told(&self.server, &self.tally, http().await?, "all", MANY_READERS)),
            Errand::Search => ldap(Act::Base).await,
            Errand::Modify => ldap(Act::ModifyReplace).await,
            Errand::Add => ldap(Act::Add).await,
            Errand::Bind => ldap(Act::Bind).await,
            Errand::Trip => {
                let request = exchange_roundtrip::target(&self.server, 1_000, 1).request;
                Ok(Hand::Post { connection: http().await?, request })
            }
            Errand::Session => {
                let device = self.devices.pop().ok_or_else(|| Failure::failed("there are not so many devices"))?;
                Ok(Hand::Session(Box::new(device)))
            }
        }
    }
}

/// A server whose readers are told by a far end of this nature, and nothing else.
pub struct Station {
    /// The server.
    pub server: Server,
    /// Who has been told.
    pub tally: Arc<Tally>,
    _far: FarEnd,
    _folder: Scratch,
}

impl Station {
    /// Starts both.
    ///
    /// # Errors
    /// The server refuses something.
    pub async fn start(context: &Context, nature: fn(Duration) -> Nature) -> Outcome<Station> {
        let folder = context.folder()?;
        let server = Server::start(context, folder.path()).await?;
        let (far, tally) = bring_readers(&server, nature).await?;
        Ok(Station { server, tally, _far: far, _folder: folder })
    }

    /// Users who tell a few readers, and wait until they were told.
    ///
    /// # Errors
    /// The server does not take a connection.
    pub async fn users(&self, count: usize) -> Outcome<Vec<User>> {
        let mut users = Vec::new();
        for number in 0..count {
            let connection = Connection::open(self.server.port).await;
            let connection = connection.map_err(|error| Failure::failed("no connection for a user").because(&error))?;
            let hand = Hand::told(&self.server, &self.tally, connection, "few", FEW_READERS);
            let ports = Ports { http: self.server.port, ldap: 0 };
            users.push(User { hands: vec![hand], ports, chance: fastrand::Rng::with_seed(number as u64) });
        }
        Ok(users)
    }
}

/// An event of a topic; the number tells which.
pub fn news(key: &str, topic: &str, number: u64) -> Vec<u8> {
    let text: String = "All the news that fits. ".chars().cycle().take(300).collect();
    let event = json!([{"topic": topic, "severity": 9.5, "text": format!("#{number}# {text}")}]);
    wire::post("/v1/applications/told/events/news", key, "application/json", event.to_string().as_bytes())
}

async fn bring_readers(server: &Server, nature: fn(Duration) -> Nature) -> Outcome<(FarEnd, Arc<Tally>)> {
    let tally = Arc::new(Tally::default());
    let reader = tally.clone();
    let far = FarEnd::that_reads(nature, Arc::new(move |body: &[u8]| reader.read(body))).await?;
    let port = far.port;
    server.apply("told", DEFINITION).await?;
    let subscribers = move |out: &mut Parts| {
        (0..MANY_READERS).try_for_each(|number| {
            let address = format!("http://127.0.0.1:{port}/hook/r{number}");
            writeln!(out, r#"{{"id":"r{number}","devices":{{"main":{{"channel":"out","address":"{address}"}}}}}}"#)
        })
    };
    server.import_subscribers(subscribers).await?;
    let few = move |out: &mut Parts| {
        (0..FEW_READERS).try_for_each(|number| {
            writeln!(
                out,
                r#"{{"application":"told","class":"interest","subscriber":"r{number}","values":{{"topic":"few"}}}}"#
            )
        })
    };
    server.import_subscriptions("told", "interest", few).await?;
    let many = move |out: &mut Parts| {
        (0..MANY_READERS).try_for_each(|number| {
            let text = format!("event.severity >= {}.5", number % 9);
            let filter = json!({"dialect": "cel", "text": text});
            writeln!(
                out,
                r#"{{"application":"told","class":"filtered","subscriber":"r{number}","values":{{}},"filter":{filter}}}"#
            )
        })
    };
    server.import_subscriptions("told", "filtered", many).await?;
    Ok((far, tally))
}

/// What a user has at hand for an errand.
enum Hand {
    Post { connection: Connection, request: Vec<u8> },
    Told { connection: Connection, key: String, topic: &'static str, readers: u32, tally: Arc<Tally> },
    Ldap { connection: ldap::Connection, act: Act, crowd: Arc<Crowd> },
    Session(Box<Device>),
}

impl Hand {
    /// For an event of a topic, of which so many are told.
    fn told(server: &Server, tally: &Arc<Tally>, connection: Connection, topic: &'static str, readers: u32) -> Hand {
        Hand::Told { connection, key: server.key.clone(), topic, readers, tally: tally.clone() }
    }

    /// Comes as for the first time: over a new connection. A device is what it was.
    async fn renew(&mut self, ports: Ports) -> std::io::Result<()> {
        match self {
            Hand::Post { connection, .. } | Hand::Told { connection, .. } => {
                *connection = Connection::open(ports.http).await?;
            }
            Hand::Ldap { connection, .. } => *connection = ldap::Connection::open(ports.ldap).await?,
            Hand::Session(_) => {}
        }
        Ok(())
    }

    /// Does it, until it is done.
    async fn once(&mut self, chance: &mut fastrand::Rng) -> Outcome {
        let broke = |error: std::io::Error| Failure::failed("a connection of the load broke").because(&error);
        match self {
            Hand::Post { connection, request } => {
                let (status, body) = connection.exchange(request).await.map_err(broke)?;
                must_be_fine(status, &body)
            }
            Hand::Told { connection, key, topic, readers, tally } => {
                let (number, told) = tally.expect(*readers);
                let (status, body) = connection.exchange(&news(key, topic, number)).await.map_err(broke)?;
                must_be_fine(status, &body)?;
                match tokio::time::timeout(TOLD_WITHIN, told).await {
                    Ok(Ok(())) => Ok(()),
                    _ => Err(Failure::failed(format!("not everybody was told of event {number} in a minute"))),
                }
            }
            Hand::Ldap { connection, act, crowd } => {
                let request = act.request(chance.u64(..crowd.count), &crowd.new, chance);
                let answer = connection.ask(&request).await.map_err(broke)?;
                if answer != (Answer { code: 0, entries: u32::from(*act == Act::Base) }) {
                    return Err(Failure::failed(format!("{act:?} was answered by {answer:?}")));
                }
                if *act == Act::Bind {
                    connection.ask(&ldap::bind(crate::bench::people::USER)).await.map_err(broke)?;
                }
                Ok(())
            }
            Hand::Session(device) => device.round(0.0).await.map(|_| ()),
        }
    }
}

/// What the server answered was 2xx.
///
/// # Errors
/// It was not; with its words.
pub fn must_be_fine(status: u16, body: &[u8]) -> Outcome {
    if (200..300).contains(&status) {
        return Ok(());
    }
    let words = String::from_utf8_lossy(body).into_owned();
    Err(Failure::failed(format!("the server answered {status}")).detail(words))
}

/// Where a server listens.
#[derive(Debug, Clone, Copy)]
struct Ports {
    http: u16,
    ldap: u16,
}

/// Somebody who runs errands, one after the other, each drawn by its share.
pub struct User {
    hands: Vec<Hand>,
    ports: Ports,
    chance: fastrand::Rng,
}

impl User {
    /// Seconds until the next errand, drawn at random around a mean: mostly short, at times long.
    pub fn think(&mut self, mean: f64) -> f64 {
        // One minus it, since the logarithm of zero is nowhere.
        -(1.0 - self.chance.f64()).ln() * mean
    }

    /// Leaves, and comes again over new connections.
    ///
    /// # Errors
    /// The server does not take one.
    pub async fn come_again(&mut self) -> Outcome {
        for hand in &mut self.hands {
            let renewed = hand.renew(self.ports).await;
            renewed.map_err(|error| Failure::failed("no connection for a user").because(&error))?;
        }
        Ok(())
    }

    /// Runs one of its errands. Gives which.
    ///
    /// # Errors
    /// It failed.
    pub async fn once(&mut self, shares: &[f64]) -> Outcome<usize> {
        let mut at = self.chance.f64() * shares.iter().sum::<f64>();
        let drawn = shares.iter().position(|share| {
            at -= share;
            at < 0.0
        });
        let drawn = drawn.unwrap_or(shares.len() - 1);
        self.hands[drawn].once(&mut self.chance).await?;
        Ok(drawn)
    }
}

/// What was seen of a load.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Seen {
    /// Errands in a second.
    pub per_second: f64,
    /// How long each took, in seconds, in order.
    pub times: Vec<f64>,
    /// Seconds that all of each errand took, and how many there were, in the order of the shares.
    pub by_errand: Vec<(f64, u64)>,
}

/// How long users are busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stint {
    /// At first, until everything is warm: nothing is counted.
    pub settles: Duration,
    /// Counted.
    pub lasts: Duration,
}

/// Each user begins the next errand as soon as one is done, for this time, and ends the one that is under way. What began after all had
/// settled counts, until the end of a user's last errand, so that errands may be longer than the time.
///
/// # Errors
/// An errand failed.
pub async fn closed(users: Vec<User>, shares: &[f64], stint: Stint) -> Outcome<(Seen, Vec<User>)> {
    let (started, shares) = (Instant::now(), Arc::<[f64]>::from(shares));
    let (settled, over) = (started + stint.settles, started + stint.settles + stint.lasts);
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
                let errand = user.once(&shares).await?;
                let ended = Instant::now();
                times.push((errand, (ended - begun).as_secs_f64()));
                if ended > over {
                    let rate = times.len() as f64 / (ended - counted).as_secs_f64();
                    return Ok::<_, Failure>(Returned { user, times, rate });
                }
            }
        });
    }
    all_of(running).await
}

/// So many errands in a second for this time, at random moments; each is begun when it is due, or as soon after as a user is free, and
/// takes from the moment at which it was due. Those count that are due after all had settled.
///
/// # Errors
/// An errand failed.
pub async fn open(mut users: Vec<User>, shares: &[f64], rate: f64, stint: Stint) -> Outcome<(Seen, Vec<User>)> {
    let (settles, lasts) = (stint.settles.as_secs_f64(), stint.lasts.as_secs_f64());
    let mut chance = users.first_mut().map_or_else(|| fastrand::Rng::with_seed(SEED), |user| user.chance.fork());
    let mut due = Vec::new();
    let mut at = 0.0;
    while at < settles + lasts {
        due.push(at);
        // One minus it, since the logarithm of zero is nowhere.
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
                    let lasted = (started.elapsed().as_secs_f64() - settles).max(lasts);
                    let rate = times.len() as f64 / lasted;
                    return Ok::<_, Failure>(Returned { user, times, rate });
                };
                let due = started + Duration::from_secs_f64(*after);
                on_time::until(due).await;
                let errand = user.once(&shares).await?;
                if *after >= settles {
                    times.push((errand, due.elapsed().as_secs_f64()));
                }
            }
        });
    }
    all_of(running).await
}

/// A user who is done.
struct Returned {
    user: User,
    /// Which errand, and how long it took.
    times: Vec<(usize, f64)>,
    /// Errands in a second.
    rate: f64,
}

async fn all_of(mut running: JoinSet<Outcome<Returned>>) -> Outcome<(Seen, Vec<User>)> {
    let (mut users, mut seen) = (Vec::new(), Seen::default());
    while let Some(ended) = running.join_next().await {
        let Returned { user, times, rate } =
            ended.map_err(|error| Failure::failed("a user broke off").because(&error))??;
        seen.by_errand.resize(seen.by_errand.len().max(user.hands.len()), (0.0, 0));
        users.push(user);
        for (errand, time) in times {
            seen.times.push(time);
            let (sum, count) = &mut seen.by_errand[errand];
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
    fn the_far_end_knows_the_event_by_its_number() {
        let tally = Tally::default();
        let (number, mut told) = tally.expect(2);
        let body = format!(r##"{{"data":{{"text":"#{number}# All the news"}}}}"##);
        assert_eq!(number_in(body.as_bytes()), Some(number));
        tally.read(body.as_bytes());
        assert!(told.try_recv().is_err());
        tally.read(body.as_bytes());
        assert!(told.try_recv().is_ok() && tally.open.lock().is_empty());
        tally.read(b"nothing that counts");
        assert_eq!(tally.told.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn the_definition_is_in_order() {
        let problems = tocsin_pipeline::compile_text(DEFINITION, 1, &|_| None).err();
        assert!(problems.is_none(), "{problems:?}");
    }
}
