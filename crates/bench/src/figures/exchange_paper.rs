//! Figures `exchange.*` of the messaging paper's round trip: A posts one-way, the message is routed by content to B,
//! and B's reply is routed back to A, one-way. Measures each trip by its legs, in closed and open loops, with too few
//! senders, too many receivers, and during checkpoints of the store.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use reqwest::{Method, header::CONTENT_TYPE};
use serde_json::json;
use tocsin_capacity::queue::Times;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, oneshot},
    task::JoinSet,
};

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::Context,
        figure::{Figure, Samples, rounded},
        http_client, precise_timer,
        server::Server,
    },
};

/// Full round trip.
pub const TRIP: Bench = Bench {
    name: "exchange.paper",
    about: "the paper's round trip: A one-way, routed to B, B's reply routed one-way to A; 8 users",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(trip(context)) },
};

/// Highest open-loop rate.
pub const KNEE: Bench = Bench {
    name: "exchange.knee",
    about: "the highest open-loop rate of that round trip with a mean of at most 300 ms; also 5, 7, 8, 16 and 64 users",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(knee(context)) },
};

/// Receivers and senders.
pub const SENDERS: Bench = Bench {
    name: "exchange.senders",
    about: "round trips/s with 2 receivers and 7 senders, B at 20 ms; and with 4, 5 and 6",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(senders(context)) },
};

/// Receivers that are faster than the senders.
pub const TOO_FAST: Bench = Bench {
    name: "exchange.toofast",
    about: "seconds of the slowest trip with 3 receivers that never wait and 6 senders; peer: without flow control",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(too_fast(context)) },
};

/// Latency during checkpoints.
pub const CHECKPOINTS: Bench = Bench {
    name: "exchange.checkpoints",
    about: "p99 of the round trip while the store writes a checkpoint, in an open loop; peer: between checkpoints",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(checkpoints(context)) },
};

/// Two machine sizes for the store.
pub const SMALL: Bench = Bench {
    name: "exchange.small",
    about: "round trips/s of 8 users with two threads and one reader; peer: the server's default",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(small(context)) },
};

/// Partitions of the store.
pub const PARTITIONS: Bench = Bench {
    name: "exchange.partitions",
    about: "round trips/s of 64 users with 3 partitions of the spool; peer: one; also 4 and 5",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(partitions(context, MANY_USERS)) },
};

/// Partitions with few users, where latency is the limit.
pub const PARTITIONS_FOR_FEW: Bench = Bench {
    name: "exchange.partitions.few",
    about: "the same with 8 users",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(partitions(context, USERS)) },
};

const USERS: usize = 8;
/// Enough users that latency is not the limit.
const MANY_USERS: usize = 64;
/// Time after which a trip counts as lost.
const TRIP_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum mean latency of the paper.
const MEAN_MS_MAX: f64 = 300.0;
const BODY_BYTES: usize = 1_000;

/// Timestamps of a trip's legs.
struct Trip {
    begun: Instant,
    at_b: Option<Instant>,
    left_b: Option<Instant>,
    done: Option<oneshot::Sender<Instant>>,
}

/// Receivers of both applications: `/b` replies after a latency, `/a` receives the replies.
struct TripReceivers {
    port: u16,
    trips: Arc<Mutex<HashMap<u64, Trip>>>,
    _serving: JoinSet<()>,
}

impl TripReceivers {
    async fn start(millis: u64) -> Outcome<TripReceivers> {
        let failed = |error: std::io::Error| Failure::failed("cannot open a port for the receivers").because(&error);
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let trips = Arc::<Mutex<HashMap<u64, Trip>>>::default();
        let mut serving = JoinSet::new();
        serving.spawn({
            let trips = trips.clone();
            async move {
                let mut connections = JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    connections.spawn(serve(stream, trips.clone(), millis));
                    while connections.try_join_next().is_some() {}
                }
            }
        });
        Ok(TripReceivers { port, trips, _serving: serving })
    }
}

async fn serve(mut stream: TcpStream, trips: Arc<Mutex<HashMap<u64, Trip>>>, millis: u64) {
    let _ = stream.set_nodelay(true);
    let mut unread = Vec::with_capacity(4096);
    loop {
        let Some((head, length)) = http_client::complete_request(&unread) else {
            match stream.read_buf(&mut unread).await {
                Ok(1..) => continue,
                _ => return,
            }
        };
        let is_b = unread.starts_with(b"POST /b");
        let number = trip_of(&unread[head..length]);
        unread.drain(..length);
        let answer = if is_b {
            note(&trips, number, |trip| trip.at_b = trip.at_b.or(Some(Instant::now())));
            if millis > 0 {
                tokio::time::sleep(Duration::from_millis(millis)).await;
            }
            note(&trips, number, |trip| trip.left_b = Some(Instant::now()));
            let body = format!("{{\"trip\":{number},\"reply\":true}}");
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        } else {
            let now = Instant::now();
            note(&trips, number, |trip| {
                if let Some(done) = trip.done.take() {
                    // The waiting user may have timed out.
                    let _ = done.send(now);
                }
            });
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned()
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn note(trips: &Mutex<HashMap<u64, Trip>>, number: u64, what: impl FnOnce(&mut Trip)) {
    if let Some(trip) = trips.lock().get_mut(&number) {
        what(trip);
    }
}

/// Parses the number after `"trip":`.
fn trip_of(body: &[u8]) -> u64 {
    const NAME: &[u8] = b"\"trip\":";
    let at = body.windows(NAME.len()).position(|window| window == NAME).map_or(body.len(), |at| at + NAME.len());
    let digits = body[at..].iter().skip_while(|byte| **byte == b' ').take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

fn definition(port: u16, senders: usize, flow: &str) -> String {
    let options = |path: &str| format!("{{ url: \"http://127.0.0.1:{port}/{path}\", allow_networks: [127.0.0.1] }}");
    format!(
        "exchange: paper
properties: {{ type: $.type, trip: {{ type: integer, json: $.trip }} }}
{flow}
receive: {{ a: {{ mode: one_way }} }}
send:
  b: {{ mode: request, protocol: http, options: {}, concurrency: {senders}, retry: [] }}
  back: {{ mode: one_way, protocol: http, options: {}, concurrency: 64, retry: [] }}
routes:
  to_b: {{ when: \"message.kind != 'reply' && message.type == 'order'\", to: b }}
  to_a: {{ when: \"message.kind == 'reply'\", to: back }}
",
        options("b"),
        options("a")
    )
}

/// Results of trips.
#[derive(Default)]
struct TripResults {
    /// Seconds of the legs and of the whole trip.
    request: Vec<f64>,
    response: Vec<f64>,
    whole: Vec<f64>,
    /// Arrival times of the replies.
    back: Vec<Instant>,
    lost: u64,
    /// Refused messages, by reason.
    refused: BTreeMap<String, u64>,
    seconds: f64,
}

impl TripResults {
    fn per_second(&self) -> f64 {
        self.whole.len() as f64 / self.seconds.max(1e-9)
    }

    fn mean_ms(&self) -> f64 {
        millis(&self.whole).mean()
    }

    /// Completed trips per second of the run.
    fn bins(&self) -> Vec<f64> {
        let Some(first) = self.back.iter().min() else { return Vec::new() };
        let mut bins: BTreeMap<u64, f64> = BTreeMap::new();
        for back in &self.back {
            *bins.entry((*back - *first).as_secs()).or_default() += 1.0;
        }
        // The last second is incomplete.
        let whole = bins.len().saturating_sub(1).max(1);
        bins.into_values().take(whole).collect()
    }

    fn words(&self) -> String {
        let leg = |name: &str, seconds: &[f64]| {
            let times = millis(seconds);
            let of = |fraction| rounded(times.quantile(fraction), 3);
            format!("{name}: mean {} ms, p50 {}, p95 {}, p99 {}", rounded(times.mean(), 3), of(0.5), of(0.95), of(0.99))
        };
        let bins: Samples = self.bins().into_iter().collect();
        let mut words = vec![
            leg("round trip", &self.whole),
            leg("request leg", &self.request),
            leg("response leg", &self.response),
            format!("{} to {} trips per second, median {}", bins.low(), bins.high(), bins.median()),
        ];
        words.extend(self.refused.iter().map(|(reason, count)| format!("{count} refused by {reason}")));
        if self.lost > 0 {
            words.push(format!("{} trips LOST", self.lost));
        }
        words.join("; ")
    }
}

fn millis(seconds: &[f64]) -> Times {
    seconds.iter().map(|seconds| seconds * 1e3).collect()
}

/// Server with the exchange, and both receivers.
struct PaperExchange {
    ends: TripReceivers,
    server: Server,
    next: AtomicU64,
}

impl PaperExchange {
    async fn start(
        context: &Context,
        folder: &Path,
        senders: usize,
        millis: u64,
        variables: &[(&str, &str)],
    ) -> Outcome<PaperExchange> {
        let ends = TripReceivers::start(millis).await?;
        let server = Server::start_with(context, folder, variables).await?;
        let rig = PaperExchange { ends, server, next: AtomicU64::new(1) };
        rig.apply(senders, "").await?;
        Ok(rig)
    }

    async fn apply(&self, senders: usize, flow: &str) -> Outcome {
        let request = self.server.client().request(Method::PUT, "/v1/exchanges/paper");
        let request = request.header(CONTENT_TYPE, "application/yaml");
        self.server.client().send(request.body(definition(self.ends.port, senders, flow))).await?;
        Ok(())
    }

    /// Posts a message. Returns a channel that signals A's reply, or the reason of a refusal.
    async fn post(
        &self,
        connection: &mut http_client::Connection,
        begun: Instant,
    ) -> Outcome<Result<(u64, oneshot::Receiver<Instant>), String>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (done, came) = oneshot::channel();
        let trip = Trip { begun, at_b: None, left_b: None, done: Some(done) };
        self.ends.trips.lock().insert(number, trip);
        let text: String = "The text of the order. ".chars().cycle().take(BODY_BYTES).collect();
        let body = json!({"type": "order", "trip": number, "text": text}).to_string();
        let request =
            http_client::post("/v1/exchanges/paper/receive/a", &self.server.key, "application/json", body.as_bytes());
        let broke = |error: std::io::Error| Failure::failed("a connection of the load broke").because(&error);
        let (status, answer) = connection.exchange(&request).await.map_err(broke)?;
        if status == 202 {
            return Ok(Ok((number, came)));
        }
        self.ends.trips.lock().remove(&number);
        let problem: serde_json::Value = serde_json::from_slice(&answer).unwrap_or_default();
        match problem["reason"].as_str() {
            Some(reason) if status == 503 => Ok(Err(reason.to_owned())),
            _ => Err(Failure::failed(format!("the server answered {status}")).detail(problem.to_string())),
        }
    }

    /// Waits for the end of a trip and records its times.
    async fn follow(&self, number: u64, came: oneshot::Receiver<Instant>, results: &Mutex<TripResults>) {
        let back = tokio::time::timeout(TRIP_TIMEOUT, came).await;
        let trip = self.ends.trips.lock().remove(&number);
        let mut results = results.lock();
        match (back, trip) {
            (Ok(Ok(back)), Some(Trip { begun, at_b: Some(at_b), left_b: Some(left_b), .. })) => {
                results.request.push((at_b - begun).as_secs_f64());
                results.response.push((back - left_b).as_secs_f64());
                results.whole.push((back - begun).as_secs_f64());
                results.back.push(back);
            }
            _ => results.lost += 1,
        }
    }

    async fn connect(&self) -> Outcome<http_client::Connection> {
        let broke = |error: std::io::Error| Failure::failed("a connection of the load broke").because(&error);
        http_client::Connection::open(self.server.port).await.map_err(broke)
    }

    /// Closed loop: each user waits for the end of its trip before the next.
    async fn closed(&self, users: usize, time: Duration) -> Outcome<TripResults> {
        let (started, results) = (Instant::now(), Mutex::new(TripResults::default()));
        let user = |_| async {
            let mut connection = self.connect().await?;
            while started.elapsed() < time {
                match self.post(&mut connection, Instant::now()).await? {
                    Ok((number, came)) => self.follow(number, came, &results).await,
                    Err(reason) => {
                        *results.lock().refused.entry(reason).or_default() += 1;
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
            Ok::<_, Failure>(())
        };
        futures_util::future::try_join_all((0..users).map(user)).await?;
        Ok(TripResults { seconds: started.elapsed().as_secs_f64(), ..results.into_inner() })
    }

    /// Open loop at `rate` trips per second, or as fast as the receivers accept. Trips overlap, and their times count
    /// from when they were due.
    async fn open(self: &Arc<Self>, rate: Option<f64>, receivers: usize, time: Duration) -> Outcome<TripResults> {
        let (started, results) = (Instant::now(), Arc::new(Mutex::new(TripResults::default())));
        let (due, room) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(1_000_000)));
        let all = rate.map(|rate| (rate * time.as_secs_f64()) as u64);
        let receiver = |_| {
            let (results, due, room) = (results.clone(), due.clone(), room.clone());
            async move {
                let mut connection = self.connect().await?;
                let mut following = JoinSet::new();
                loop {
                    let number = due.fetch_add(1, Ordering::Relaxed);
                    let mut begun = Instant::now();
                    match (rate, all) {
                        (Some(rate), Some(all)) if number < all => {
                            begun = started + Duration::from_secs_f64(number as f64 / rate);
                            precise_timer::until(begun).await;
                        }
                        (None, _) if started.elapsed() < time => {}
                        _ => break,
                    }
                    match self.post(&mut connection, begun).await? {
                        Ok((number, came)) => {
                            let (rig, results) = (self.clone(), results.clone());
                            let place = room.clone().acquire_owned().await;
                            following.spawn(async move {
                                rig.follow(number, came, &results).await;
                                drop(place);
                            });
                        }
                        Err(reason) => {
                            *results.lock().refused.entry(reason).or_default() += 1;
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                    }
                }
                following.join_all().await;
                Ok::<_, Failure>(())
            }
        };
        futures_util::future::try_join_all((0..receivers).map(receiver)).await?;
        let results = std::mem::take(&mut *results.lock());
        let seconds = match results.back.iter().max() {
            Some(last) => (*last - started).as_secs_f64(),
            None => started.elapsed().as_secs_f64(),
        };
        Ok(TripResults { seconds, ..results })
    }
}

async fn trip(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let rig = PaperExchange::start(context, folder.path(), 32, 0, &[]).await?;
    let time = Duration::from_secs(context.size(36, 2));
    rig.closed(USERS, time / 6).await?;
    let (mut ours, mut conditions) = (Samples::default(), Vec::new());
    for _ in context.turns() {
        let trips = rig.closed(USERS, time).await?;
        ours.push(trips.per_second());
        conditions.push(trips.words());
    }
    Ok(Figure::new("round trips/s", ours)
        .with_condition(format!("{USERS} users without pauses, {BODY_BYTES} bytes, B replies at once"))
        .with_condition("message and reply durable before they are sent; four HTTP requests per trip")
        .with_condition(conditions.join("; ")))
}

/// Smallest part of the offered rate that counts as reached.
const RATE_REACHED_MIN: f64 = 0.98;

async fn knee(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let rig = Arc::new(PaperExchange::start(context, folder.path(), 32, 0, &[]).await?);
    let time = Duration::from_secs(context.size(10, 1));
    rig.closed(USERS, time / 2).await?;
    let mut users = Vec::new();
    for many in [5, 7, 8, 16, 64] {
        let trips = rig.closed(many, time).await?;
        users.push(format!("{many} users {}/s at {} ms", rounded(trips.per_second(), 4), rounded(trips.mean_ms(), 3)));
    }
    let (mut ours, mut conditions) = (Samples::default(), Vec::new());
    for _ in context.turns() {
        // Doubles the rate until it is too high, then bisects.
        let (mut good, mut bad, mut best) = (0.0, None::<f64>, String::new());
        for _ in 0..context.size(12, 4) {
            let rate = match bad {
                None => f64::max(good * 2.0, 100.0),
                Some(bad) => (good + bad) / 2.0,
            };
            let trips = rig.open(Some(rate), 64, time).await?;
            let refused: u64 = trips.refused.values().sum();
            let is_reached = trips.per_second() >= rate * RATE_REACHED_MIN;
            if is_reached && trips.mean_ms() <= MEAN_MS_MAX && refused == 0 && trips.lost == 0 {
                let reached = rounded(trips.per_second(), 4);
                (good, best) = (rate, format!("{reached}/s reached; {}", trips.words()));
            } else {
                bad = Some(rate);
            }
        }
        ours.push(good);
        conditions.push(best);
    }
    Ok(Figure::new("round trips/s", ours)
        .with_condition(format!(
            "open loop, 64 connections, {BODY_BYTES} bytes, mean at most {MEAN_MS_MAX} ms, none refused, at least {} % reached",
            RATE_REACHED_MIN * 100.0
        ))
        .with_condition(conditions.join("; "))
        .with_condition(format!("closed: {}", users.join(", "))))
}

/// Latency of B in milliseconds in the figures with few senders.
const SLOW_B: u64 = 20;

async fn senders(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let rig = Arc::new(PaperExchange::start(context, folder.path(), 4, SLOW_B, &[]).await?);
    let time = Duration::from_secs(context.size(10, 1));
    let (mut ours, mut conditions) = (Samples::default(), Vec::new());
    for turn in context.turns() {
        for many in [4, 5, 6, 7] {
            rig.apply(many, "").await?;
            let trips = rig.open(None, 2, time).await?;
            if many == 7 {
                ours.push(trips.per_second());
            }
            if turn == 1 {
                conditions.push(format!("{many} senders {}/s, {}", rounded(trips.per_second(), 4), trips.words()));
            }
        }
    }
    Ok(Figure::new("round trips/s", ours)
        .with_condition(format!("2 receivers that never wait, B takes {SLOW_B} ms"))
        .with_condition(conditions.join("; ")))
}

async fn too_fast(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let rig = Arc::new(PaperExchange::start(context, folder.path(), 6, SLOW_B, &[]).await?);
    let time = Duration::from_secs(context.size(10, 2));
    let slowest = |results: &TripResults| results.whole.iter().copied().fold(0.0, f64::max);
    let (mut ours, mut without, mut conditions) = (Samples::default(), Samples::default(), Vec::new());
    for _ in context.turns() {
        rig.apply(6, "flow: { wait: 1s }").await?;
        let slowed = rig.open(None, 3, time).await?;
        ours.push(slowest(&slowed));
        conditions.push(slowed.words());
        rig.apply(6, "flow: { wait: 7d }").await?;
        // Shorter, so that all messages can be sent before a timeout.
        without.push(slowest(&rig.open(None, 3, time / 8).await?));
    }
    Ok(Figure::new("s", ours)
        .with_peer("without flow control, for an eighth of the time", without)
        .with_condition(format!("3 receivers that only pause 100 ms after a refusal, 6 senders, B takes {SLOW_B} ms"))
        .with_condition("flow.wait 1 s")
        .with_condition(conditions.join("; ")))
}

async fn checkpoints(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let rig = Arc::new(PaperExchange::start(context, folder.path(), 32, 0, &[]).await?);
    let time = Duration::from_secs(context.size(30, 2));
    let rate = rig.closed(64, time / 6).await?.per_second() * 0.6;
    let file = rig.server.folder.join("spool.db");
    let (mut during, mut between, mut conditions) = (Samples::default(), Samples::default(), Vec::new());
    for _ in context.turns() {
        let marks = Arc::<Mutex<Vec<Instant>>>::default();
        let watching = tokio::spawn(watch(file.clone(), marks.clone()));
        let trips = rig.open(Some(rate), 64, time).await?;
        watching.abort();
        let marks = marks.lock();
        let is_marked = |back: Instant| {
            let at = marks.partition_point(|mark| *mark < back);
            marks.get(at).is_some_and(|mark| *mark - back <= WATCHED_EVERY)
        };
        let (in_one, outside): (Vec<_>, Vec<_>) =
            trips.back.iter().zip(&trips.whole).partition(|(back, _)| is_marked(**back));
        let p99 = |part: Vec<(&Instant, &f64)>| {
            let seconds: Vec<f64> = part.into_iter().map(|(_, seconds)| *seconds).collect();
            (!seconds.is_empty()).then(|| millis(&seconds).quantile(0.99))
        };
        conditions.push(format!("{} checkpoints, {} of {} trips", marks.len(), in_one.len(), trips.whole.len()));
        if conditions.len() == 1 {
            conditions.push(format!("p99 ms of each second (checkpoints): {}", time_line(&trips, &marks)));
        }
        during.extend(p99(in_one));
        between.extend(p99(outside));
    }
    Ok(Figure::new("ms", during)
        .with_peer("between checkpoints", between)
        .with_condition(format!(
            "open loop at {rate:.0}/s, 60 % of 64 users, a checkpoint wherever the store's file was written"
        ))
        .with_condition(conditions.join("; ")))
}

/// p99 of each second of a load, with its number of checkpoints.
fn time_line(trips: &TripResults, marks: &[Instant]) -> String {
    let Some(first) = trips.back.iter().min() else { return String::new() };
    let mut seconds: BTreeMap<u64, (Vec<f64>, usize)> = BTreeMap::new();
    let second = |at: &Instant| at.saturating_duration_since(*first).as_secs();
    for (back, whole) in trips.back.iter().zip(&trips.whole) {
        seconds.entry(second(back)).or_default().0.push(*whole);
    }
    for mark in marks {
        seconds.entry(second(mark)).or_default().1 += 1;
    }
    let cell = |(whole, marks): (Vec<f64>, usize)| format!("{} ({marks})", rounded(millis(&whole).quantile(0.99), 3));
    seconds.into_values().map(cell).collect::<Vec<_>>().join(" ")
}

/// Interval of checking the file's modification time.
const WATCHED_EVERY: Duration = Duration::from_millis(10);

/// Records when a file was written.
async fn watch(file: std::path::PathBuf, marks: Arc<Mutex<Vec<Instant>>>) {
    let written = || std::fs::metadata(&file).and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut last = written();
    loop {
        tokio::time::sleep(WATCHED_EVERY).await;
        let now = written();
        if now != last {
            marks.lock().push(Instant::now());
            last = now;
        }
    }
}

async fn small(context: &Context) -> Outcome<Figure> {
    let time = Duration::from_secs(context.size(10, 1));
    let (few, usual) = (context.folder()?, context.folder()?);
    let variables = [("TOCSIN_RUNTIME_THREADS", "2"), ("TOCSIN_SPOOL_READERS", "1")];
    let few = PaperExchange::start(context, few.path(), 32, 0, &variables).await?;
    let usual = PaperExchange::start(context, usual.path(), 32, 0, &[]).await?;
    let (mut ours, mut peer, mut conditions) = (Samples::default(), Samples::default(), Vec::new());
    for _ in context.turns() {
        let trips = few.closed(USERS, time).await?;
        ours.push(trips.per_second());
        conditions.push(trips.words());
        peer.push(usual.closed(USERS, time).await?.per_second());
    }
    Ok(Figure::new("round trips/s", ours)
        .with_peer("the server's default number of threads", peer)
        .with_condition(format!("{USERS} users without pauses"))
        .with_condition(conditions.join("; ")))
}

/// Numbers of stores in the paper.
const STORES: [(usize, &str); 4] = [(1, "1"), (3, "3"), (4, "4"), (5, "5")];

async fn partitions(context: &Context, users: usize) -> Outcome<Figure> {
    let time = Duration::from_millis(context.size(10_000, 250));
    let (mut ours, mut one, mut conditions) = (Samples::default(), Samples::default(), Vec::new());
    for turn in context.turns() {
        let mut words = Vec::new();
        // One server at a time: idle ones would write checkpoints during the measurement.
        for (count, text) in STORES {
            let folder = context.folder()?;
            let rig = PaperExchange::start(context, folder.path(), 32, 0, &[("TOCSIN_SPOOL_PARTITIONS", text)]).await?;
            rig.closed(users, time / 5).await?;
            let trips = rig.closed(users, time).await?;
            match count {
                1 => one.push(trips.per_second()),
                3 => ours.push(trips.per_second()),
                _ => {}
            }
            let (p50, p99) = (millis(&trips.whole).quantile(0.5), millis(&trips.whole).quantile(0.99));
            words.push(format!(
                "{count} partitions {}/s, p50 {} ms, p99 {} ms, {} lost",
                rounded(trips.per_second(), 4),
                rounded(p50, 3),
                rounded(p99, 3),
                trips.lost
            ));
        }
        conditions.push(format!("turn {turn}: {}", words.join(", ")));
    }
    Ok(Figure::new("round trips/s", ours)
        .with_peer("one partition", one)
        .with_condition(format!("{users} users without pauses, {BODY_BYTES} bytes, B replies at once, 3 partitions"))
        .with_condition(conditions.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trip_number_is_parsed_from_the_body() {
        for (body, number) in [("{\"trip\":17,\"x\":1}", 17), ("{\"trip\": 4}", 4), ("{}", 0), ("{\"trip\":", 0)] {
            assert_eq!(trip_of(body.as_bytes()), number, "{body}");
        }
    }
}
