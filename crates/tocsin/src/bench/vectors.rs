//! Cost vectors: operations one by one against a server of their own, at several sizes and batches; what the server used,
//! less what it uses when idle, becomes a line for each resource. Bytes on the wire are counted by themselves, through a
//! relay, since whatever stands in between would be timed too.

mod deliver; // what deliveries cost, and digests
mod format; // what formatting costs, in each language
mod relay; // counts what goes through it

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use reqwest::{Method, header::CONTENT_TYPE};
use serde_json::{Map, Value, json};
use tocsin_capacity::{
    fit::{Fit, Sample, fit, knee},
    vectors::Linear,
};

use self::relay::Relay;
use super::{
    context::Context,
    disk,
    figure::rounded,
    figures::{accept_single, directory, exchange_roundtrip, sync},
    ldap::{self, Act, Crowd},
    load::Target,
    people::USER,
    probe::Used,
    results::Run,
    server::{Parts, Server, megabytes},
    wire,
};
use crate::failure::{Failure, Outcome};

/// Connections of a load whose cost is measured: enough to share syncs, few enough to leave processors free.
const CONNECTIONS: usize = 16;
/// Less than this part of a processor is used by a server that has nothing to do.
const AT_REST: f64 = 0.05;
/// How long it may take until it has nothing to do, such as indexes to build.
const REST_MAX: Duration = Duration::from_secs(120);
/// Connections at which the rate is looked at, to find the knee.
const STEPS: [usize; 4] = [1, 4, 16, 64];
/// How long requests are counted on the wire: each has as many bytes as the next.
const COUNTED: Duration = Duration::from_millis(50);
/// Operations of the directory that are counted.
const OPERATIONS_COUNTED: u64 = 50;
/// The exchange whose far end is reached through a relay.
const WIRED: &str = "wired";

/// A measurement under way.
type Measuring<'a> = Pin<Box<dyn Future<Output = Outcome<Vec<Costed>>> + 'a>>;

/// Every operation that is measured, or counted in another.
const NAMES: [&str; 18] = [
    "accept",
    "match",
    "notify",
    "format",
    "format.jinja",
    "format.xslt",
    "deliver.file",
    "deliver.inbox",
    "deliver.http",
    "deliver.smtp",
    "deliver.digest",
    "directory.search",
    "directory.modify_add",
    "directory.modify_replace",
    "directory.add",
    "directory.bind",
    "exchange.roundtrip",
    "sync.session",
];

/// What is kept and measured.
const STORED: [&str; 2] = ["subscribers", "subscriptions"];

/// A group of operations that are measured on one server.
pub struct Group {
    /// What it is asked for by.
    pub name: &'static str,
    measure: for<'a> fn(&'a Context) -> Measuring<'a>,
}

/// All of them.
pub const GROUPS: [Group; 6] = [
    Group { name: "accept", measure: |context| -> Measuring<'_> { Box::pin(accept(context)) } },
    Group { name: "format", measure: |context| -> Measuring<'_> { Box::pin(format::measure(context)) } },
    Group { name: "deliver", measure: |context| -> Measuring<'_> { Box::pin(deliver::measure(context)) } },
    Group { name: "directory", measure: |context| -> Measuring<'_> { Box::pin(directory_operations(context)) } },
    Group { name: "exchange", measure: |context| -> Measuring<'_> { Box::pin(exchange(context)) } },
    Group { name: "sync", measure: |context| -> Measuring<'_> { Box::pin(sync_sessions(context)) } },
];

/// An operation and all that was measured of it.
struct Costed {
    name: String,
    about: String,
    role: &'static str,
    points: Vec<Point>,
    /// Rates and the microseconds of processor that one cost there.
    steps: Vec<(f64, f64)>,
    /// What of the line is its own; the rest is counted in another operation.
    own: fn(Linear) -> Linear,
}

/// What so many items of a size and a batch used.
struct Point {
    bytes: f64,
    batch: f64,
    items: f64,
    used: Used,
    /// Bytes on the wire for each of them.
    wire_each: f64,
}

/// A server that is watched.
struct Watched {
    pid: u32,
    folder: PathBuf,
    /// In a second, when it has nothing to do.
    idle: Used,
}

impl Watched {
    /// Looks at it while it rests, once it does: what it still has to do after its start is not what it always does.
    async fn begin(context: &Context, server: &Server) -> Watched {
        let started = Instant::now();
        while Watched::used_in(server, Duration::from_millis(500)).await.processor > AT_REST {
            if started.elapsed() > REST_MAX {
                context.tell("   the server does not come to rest: what it does beside the load is taken for what it always does");
                break;
            }
        }
        let idle = Watched::used_in(server, Duration::from_secs(context.size(5, 1))).await;
        Watched { pid: server.pid(), folder: server.folder.clone(), idle }
    }

    /// What the server uses in a second of this time.
    async fn used_in(server: &Server, time: Duration) -> Used {
        let before = Used::by(server.pid(), &server.folder);
        tokio::time::sleep(time).await;
        let used = Used::by(server.pid(), &server.folder).since(&before, &Used::default(), time.as_secs_f64());
        used.per_second(time.as_secs_f64())
    }

    /// What the server used meanwhile.
    async fn during<T>(&self, work: impl Future<Output = Outcome<T>>) -> Outcome<(T, Used)> {
        let (before, started) = (Used::by(self.pid, &self.folder), Instant::now());
        let done = work.await?;
        let seconds = started.elapsed().as_secs_f64();
        Ok((done, Used::by(self.pid, &self.folder).since(&before, &self.idle, seconds)))
    }
}

/// Bytes on the wire of one request of this load and its answer, with those at `behind`: what it brings about behind the
/// server.
async fn wire_each(target: Target, behind: Option<&Relay>) -> Outcome<f64> {
    let front = Relay::to(target.port).await?;
    let before = behind.map_or(0, Relay::bytes);
    let target = Target { port: front.port, connections: 1, ..target };
    let load = target.closed(COUNTED).await?;
    let bytes = front.bytes() + behind.map_or(0, Relay::bytes) - before;
    Ok(bytes as f64 / load.count.max(1) as f64)
}

/// Measures these groups, or all, and gives the text of the vectors.
///
/// # Errors
/// A group is unknown or cannot be measured.
pub async fn measure(context: &Context, names: &[String], run: &Run) -> Outcome<String> {
    if let Some(unknown) = names.iter().find(|name| GROUPS.iter().all(|group| group.name != **name)) {
        let known = GROUPS.map(|group| group.name).join(", ");
        return Err(Failure::usage(format!("there is no group `{unknown}`; there are {known}")));
    }
    let mut operations = counted_elsewhere();
    let is_wanted = |group: &&Group| names.is_empty() || names.iter().any(|name| name == group.name);
    let groups: Vec<&Group> = GROUPS.iter().filter(is_wanted).collect();
    for (at, group) in groups.iter().enumerate() {
        context.progress.begin(group.name, at + 1, groups.len());
        context.tell(format_args!("== {} ({} of {})", group.name, at + 1, groups.len()));
        for costed in (group.measure)(context).await? {
            context.tell(format_args!("   {}", costed.told()));
            debug_assert!(NAMES.contains(&costed.name.as_str()), "{} stands in no list", costed.name);
            operations.insert(costed.name.clone(), costed.json());
        }
    }
    let (stored, base) = stored(context).await?;
    let text = json!({
        "vectors": format!("measured {}", run.at),
        "version": run.version,
        "measured": format!("{}; {}", run.machine, run.settings),
        "machine": machine(context).await?,
        "base_memory_mb": rounded(base, 4),
        "operations": operations,
        "stored": stored,
    });
    Ok(serde_json::to_string_pretty(&text).expect("plain data") + "\n")
}

/// Steps of an event whose cost is a part of another's.
fn counted_elsewhere() -> Map<String, Value> {
    let nothing = |about: &str| json!({"about": about, "roles": {}});
    [
        ("match", "counted in `accept`: finding out whom an event concerns; what it makes is in `deliver`"),
        ("notify", "counted in the deliveries"),
        ("format", "counted in the deliveries, of a short text in Jinja"),
    ]
    .into_iter()
    .map(|(name, about)| (name.to_owned(), nothing(about)))
    .collect()
}

/// What this machine has, as far as it can be found out.
async fn machine(context: &Context) -> Outcome<Value> {
    let folder = context.folder()?;
    let time = Duration::from_secs(context.size(3, 1));
    let syncs = disk::syncs_per_second(folder.path(), time).await?;
    let megabytes = disk::megabytes_per_second(folder.path(), time).await?;
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    let mut machine = json!({
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "syncs_per_second": rounded(syncs, 4),
        "disk_mb_per_second": rounded(megabytes, 4),
    });
    if let Some(kilobytes) = kilobytes {
        machine["memory_mb"] = rounded(kilobytes * 1024.0 / 1e6, 5);
    }
    Ok(machine)
}

impl Costed {
    /// An operation of which all is its own, and no knee was looked for.
    fn new(name: impl Into<String>, about: impl Into<String>, role: &'static str, points: Vec<Point>) -> Costed {
        Costed { name: name.into(), about: about.into(), role, points, steps: Vec::new(), own: |cost| cost }
    }

    /// The line of a resource, of which each point says how much one took.
    fn line(&self, each: impl Fn(&Point) -> f64) -> Fit {
        let samples: Vec<Sample> = self
            .points
            .iter()
            .map(|point| Sample { bytes: point.bytes, batch: point.batch, each: each(point) })
            .collect();
        let found = fit(&samples);
        Fit { cost: (self.own)(found.cost), ..found }
    }

    fn processor(&self) -> Fit {
        self.line(|point| point.used.processor * 1e6 / point.items.max(1.0))
    }

    fn json(&self) -> Value {
        let mut cost = Map::new();
        let mut put = |name: &str, line: Fit| {
            let parts = parts(line.cost);
            if !parts.is_empty() {
                cost.insert(name.to_owned(), Value::Object(parts));
            }
        };
        put("processor_us", self.processor());
        put("disk_bytes", self.line(|point| point.used.disk_bytes / point.items.max(1.0)));
        if self.points.iter().all(|point| point.used.syncs.is_some()) {
            put("syncs", self.line(|point| point.used.syncs.unwrap_or_default() / point.items.max(1.0)));
        }
        put("wire_bytes", self.line(|point| point.wire_each));
        let range = |value: fn(&Point) -> f64| {
            let values = || self.points.iter().map(value);
            json!([values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max)])
        };
        let mut operation = json!({
            "about": self.about,
            "roles": { self.role: cost },
            "bytes": range(|point| point.bytes),
            "batch": range(|point| point.batch),
        });
        if let Some(knee) = knee(&self.steps) {
            operation["knee_per_second"] = rounded(knee, 4);
        }
        operation
    }

    /// For whoever waits.
    fn told(&self) -> String {
        let (processor, wire) = (self.processor(), self.line(|point| point.wire_each));
        let knee = match (knee(&self.steps), self.steps.is_empty()) {
            (Some(rate), _) => format!("knee at {rate:.0}/s"),
            (None, false) => "no knee seen".to_owned(),
            (None, true) => "no knee looked for".to_owned(),
        };
        let told = |name: &str, line: &Fit| {
            format!("{name} {}, misses by at most {:.0} %", Value::Object(parts(line.cost)), line.error * 100.0)
        };
        format!("{}: {}; {}; {knee}", self.name, told("processor_us", &processor), told("wire_bytes", &wire))
    }
}

/// The parts of a line that are any.
fn parts(cost: Linear) -> Map<String, Value> {
    let parts = [("batch", cost.batch), ("item", cost.item), ("kilobyte", cost.kilobyte)];
    parts.into_iter().filter(|(_, part)| *part > 0.0).map(|(name, part)| (name.to_owned(), rounded(part, 4))).collect()
}

async fn accept(context: &Context) -> Outcome<Vec<Costed>> {
    let folder = context.folder()?;
    let server = Server::start(context, folder.path()).await?;
    server.apply("intake", accept_single::DEFINITION).await?;
    let watched = Watched::begin(context, &server).await;
    let time = Duration::from_millis(context.size(3_000, 200));
    let target = |bytes: usize, batch: usize, connections: usize| {
        let body = Value::Array(accept_single::events_of(batch, bytes)).to_string();
        let request = wire::post(accept_single::PATH, &server.key, "application/json", body.as_bytes());
        Target { port: server.port, request, connections }
    };
    let mut points = Vec::new();
    for bytes in context.size(vec![100, 250, 1_000, 2_000], vec![250, 1_000]) {
        for batch in context.size(vec![1, 10, 100, 1_000], vec![1, 100]) {
            let target = target(bytes, batch, CONNECTIONS);
            target.closed(time / 4).await?;
            let (load, used) = watched.during(target.closed(time)).await?;
            points.push(Point {
                bytes: bytes as f64,
                batch: batch as f64,
                items: (load.count * batch as u64) as f64,
                used,
                wire_each: wire_each(target, None).await? / batch as f64,
            });
        }
    }
    let mut steps = Vec::new();
    for connections in STEPS {
        let (load, used) = watched.during(target(250, 1, connections).closed(time)).await?;
        steps.push((load.per_second(), used.processor * 1e6 / load.count.max(1) as f64));
    }
    let about = "an event is checked, stored durably and matched; nobody cares";
    Ok(vec![Costed { steps, ..Costed::new("accept", about, "accept", points) }])
}

async fn directory_operations(context: &Context) -> Outcome<Vec<Costed>> {
    let count = context.size(100_000, 500);
    let (_folder, port, server) = directory::serve(context, count).await?;
    let watched = Watched::begin(context, &server).await;
    let (crowd, time) = (Arc::new(Crowd::of(count)), Duration::from_millis(context.size(5_000, 300)));
    ldap::flood(port, Act::Base, &crowd, CONNECTIONS, time).await?;
    let mut costed = Vec::new();
    for (name, about, act) in [
        ("directory.search", "a search for an entry of 20 attributes by its name", Act::Base),
        ("directory.modify_add", "a value more, durable", Act::ModifyAdd),
        ("directory.modify_replace", "another value, durable", Act::ModifyReplace),
        ("directory.add", "an entry of 20 attributes, durable", Act::Add),
        ("directory.bind", "a bind by a password with a fast hash, and one back", Act::Bind),
    ] {
        let mut steps = Vec::new();
        let mut points = Vec::new();
        let wire_each = directory_wire_each(port, act, &crowd).await?;
        for connections in STEPS {
            let (load, used) = watched.during(ldap::flood(port, act, &crowd, connections, time)).await?;
            steps.push((load.per_second, used.processor * 1e6 / load.count.max(1) as f64));
            if connections == CONNECTIONS {
                points.push(Point { bytes: 1_000.0, batch: 1.0, items: load.count as f64, used, wire_each });
            }
        }
        costed.push(Costed { steps, ..Costed::new(name, about, "directory", points) });
    }
    Ok(costed)
}

/// Bytes on the wire of one operation and its answers.
async fn directory_wire_each(port: u16, act: Act, crowd: &Crowd) -> Outcome<f64> {
    let broke = |error: std::io::Error| Failure::failed("a connection of the load broke").because(&error);
    let relay = Relay::to(port).await?;
    let mut connection = ldap::Connection::open(relay.port).await.map_err(broke)?;
    // Other numbers than those of any load, or a value might be added that is there.
    let mut chance = fastrand::Rng::with_seed(u64::MAX);
    let before = relay.bytes();
    for _ in 0..OPERATIONS_COUNTED {
        let request = act.request(chance.u64(..crowd.count), &crowd.new, &mut chance);
        let answer = connection.ask(&request).await.map_err(broke)?;
        if answer.code != 0 {
            return Err(Failure::failed(format!("{act:?} was answered by {answer:?}")));
        }
        if act == Act::Bind {
            connection.ask(&ldap::bind(USER)).await.map_err(broke)?;
        }
    }
    Ok((relay.bytes() - before) as f64 / OPERATIONS_COUNTED as f64)
}

async fn exchange(context: &Context) -> Outcome<Vec<Costed>> {
    let folder = context.folder()?;
    let (far, server) = exchange_roundtrip::prepare(context, folder.path()).await?;
    let behind = Relay::to(far.port).await?;
    let request = server.client().request(Method::PUT, &format!("/v1/exchanges/{WIRED}"));
    let wired = exchange_roundtrip::definition(WIRED, behind.port);
    server.client().send(request.header(CONTENT_TYPE, "application/yaml").body(wired)).await?;
    let watched = Watched::begin(context, &server).await;
    let time = Duration::from_millis(context.size(5_000, 300));
    exchange_roundtrip::target(&server, 100, CONNECTIONS).closed(time / 4).await?;
    let (mut points, mut steps) = (Vec::new(), Vec::new());
    for bytes in [100, 1_000, 10_000] {
        let target = exchange_roundtrip::target(&server, bytes, CONNECTIONS);
        let (load, used) = watched.during(target.closed(time)).await?;
        let wired = exchange_roundtrip::target_of(WIRED, &server, bytes, 1);
        let wire_each = wire_each(wired, Some(&behind)).await?;
        points.push(Point { bytes: bytes as f64, batch: 1.0, items: load.count as f64, used, wire_each });
    }
    for connections in STEPS {
        let (load, used) = watched.during(exchange_roundtrip::target(&server, 1_000, connections).closed(time)).await?;
        steps.push((load.per_second(), used.processor * 1e6 / load.count.max(1) as f64));
    }
    let about = "a request is stored, routed, sent, answered, and its reply stored and given back";
    Ok(vec![Costed { steps, ..Costed::new("exchange.roundtrip", about, "exchange", points) }])
}

async fn sync_sessions(context: &Context) -> Outcome<Vec<Costed>> {
    let devices = context.size(64, 4);
    let mut field = sync::Field::prepare(context, devices, sync::HALVES_OF_WORDS).await?;
    field.change_rows().await?;
    field.all_at_once().await?;
    field.change_rows().await?;
    let watched = Watched::begin(context, &field.server).await;
    let (_, used) = watched.during(field.all_at_once()).await?;
    field.change_rows().await?;
    let relay = Relay::to(field.server.port).await?;
    field.come_by(relay.port);
    field.all_at_once().await?;
    let items = devices as f64;
    let wire_each = relay.bytes() as f64 / items;
    let point = Point { bytes: sync::HALVES_OF_WORDS.bytes(), batch: 1.0, items, used, wire_each };
    let about = "a device brings 600 edits, takes at least 600 rows, and ends; blocks of words are packed on the wire";
    Ok(vec![Costed::new("sync.session", about, "sync", vec![point])])
}

/// What subscribers and subscriptions take in memory and on disk, and megabytes of memory of a server that has none.
async fn stored(context: &Context) -> Outcome<(Value, f64)> {
    let count = context.size(200_000_u32, 1_000);
    let folder = context.folder()?;
    let server = Server::start(context, folder.path()).await?;
    server.apply("stock", super::market::DEFINITION).await?;
    let size = || (server.resident_bytes() as f64, bytes_below(&server.folder));
    let empty = size();
    let subscribers =
        move |out: &mut Parts| crate::examples::stock::write_subscribers(out, count, "http://127.0.0.1:9/hook");
    server.import_subscribers(subscribers).await?;
    let people = size();
    let orders = move |out: &mut Parts| {
        let market = crate::examples::stock::Market::new(crate::examples::stock::SEED);
        crate::examples::stock::write_subscriptions(out, market.orders(count, super::market::ORDERS_EACH))
    };
    server.import_subscriptions("stock", "order", orders).await?;
    let all = size();
    let each = |after: (f64, f64), before: (f64, f64), count: f64| {
        json!({
            "memory_bytes": rounded((after.0 - before.0).max(0.0) / count, 3),
            "disk_bytes": rounded((after.1 - before.1).max(0.0) / count, 3),
        })
    };
    let count = f64::from(count);
    let orders = count * f64::from(super::market::ORDERS_EACH);
    let measured = [each(people, empty, count), each(all, people, orders)];
    let stored: Map<String, Value> = STORED.map(str::to_owned).into_iter().zip(measured).collect();
    let stored = Value::Object(stored);
    Ok((stored, megabytes(empty.0 as u64)))
}

/// Bytes of the files in a folder and below it.
fn bytes_below(folder: &Path) -> f64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len() as f64,
        Err(_) => 0.0,
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_read_by_the_planner() {
        let point = |bytes: f64, batch: f64, micros: f64| Point {
            bytes,
            batch,
            items: 1_000.0,
            used: Used { processor: micros * 1e-3, disk_bytes: 4_096_000.0, syncs: Some(500.0) },
            // A head and an answer of 400 bytes, and what the event says.
            wire_each: 400.0 / batch + bytes,
        };
        let points = vec![point(250.0, 1.0, 100.0), point(250.0, 10.0, 19.0), point(1_000.0, 10.0, 22.0)];
        let steps = vec![(10.0, 1.0), (20.0, 1.0), (21.0, 2.0)];
        let costed = Costed { steps, ..Costed::new("accept", "an event", "accept", points) };
        let mut operations = counted_elsewhere();
        operations.insert(costed.name.clone(), costed.json());
        let text = json!({"vectors": "test", "machine": {"cores": 2}, "operations": operations}).to_string();
        let vectors = tocsin_capacity::read_vectors(&text).unwrap_or_else(|problems| panic!("{problems:?}: {text}"));
        let accept = &vectors.operations["accept"];
        assert_eq!((accept.bytes, accept.batch, accept.knee), (Some((250.0, 1_000.0)), Some((1.0, 10.0)), Some(20.0)));
        let cost = accept.roles["accept"].processor;
        assert!((cost.batch - 90.0).abs() < 0.1 && (cost.kilobyte - 4.0).abs() < 0.1, "{cost:?}");
        let wire = accept.roles["accept"].wire;
        assert_eq!((wire.batch, wire.item, wire.kilobyte), (400.0, 0.0, 1_000.0));
        assert!(costed.told().contains("knee at 20/s"), "{}", costed.told());
    }

    /// A profile, planned with vectors of all that is measured.
    fn planned(profile: &str) -> tocsin_capacity::Plan {
        let profile =
            tocsin_capacity::read_profile(profile).unwrap_or_else(|problems| panic!("{problems:?}: {profile}"));
        let cost = json!({"roles": {"work": {"processor_us": {"item": 1}}}});
        let operations: Map<String, Value> = NAMES.map(|name| (name.to_owned(), cost.clone())).into_iter().collect();
        let stored: Map<String, Value> =
            STORED.map(|name| (name.to_owned(), json!({"memory_bytes": 1}))).into_iter().collect();
        let vectors = json!({"vectors": "test", "machine": {"cores": 2}, "operations": operations, "stored": stored});
        let vectors = tocsin_capacity::read_vectors(&vectors.to_string()).expect("vectors");
        tocsin_capacity::plan(&profile, &vectors).unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    #[test]
    fn the_profile_of_the_guide_is_planned_with_what_is_measured() {
        let guide = include_str!("../../../../docs/guide/capacity.md");
        let (_, profile) = guide.split_once("```yaml\n").expect("the profile");
        let (profile, _) = profile.split_once("```").expect("its end");
        let plan = planned(profile);
        assert!(plan.notes.iter().all(|note| !note.contains("say nothing of")), "{:?}", plan.notes);
        let missing: Vec<&str> = NAMES.into_iter().filter(|name| !guide.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "the guide lists no {missing:?}");
    }

    #[test]
    fn all_that_is_measured_can_be_asked_for() {
        for name in NAMES {
            let profile =
                format!("profile: a\noperations: {{ work: {{ operation: {name}, rate: {{ count: 1, per: 1s }} }} }}\n");
            assert_eq!(planned(&profile).operations[0].operation, name);
        }
        let mails = "profile: a\nevents: { news: { rate: { count: 1, per: 1s }, digest: 4, format: format.xslt, channels: { mail: 50, inbox: 50 } } }\nchannels: { mail: {}, inbox: {} }\n";
        let plan = planned(mails);
        let asked: Vec<&str> = plan.operations.iter().map(|done| done.operation.as_str()).collect();
        let expected = ["accept", "match", "notify", "format.xslt", "deliver.digest", "deliver.inbox", "deliver.mail"];
        assert_eq!((asked, plan.notes.len()), (expected.to_vec(), 0), "{:?}", plan.notes);
    }

    #[test]
    fn what_a_further_notification_costs_is_a_part_of_what_its_digest_does() {
        // A message of 50 us, 5 us for each notification, and 2 us for a kilobyte of it.
        let point = |told: f64, bytes: f64| Point {
            bytes,
            batch: told,
            items: told * 1e6,
            used: Used { processor: 50.0 + told * (5.0 + 0.002 * bytes), ..Used::default() },
            wire_each: 0.0,
        };
        let points = [1.0, 5.0, 20.0].into_iter().flat_map(|told| [point(told, 100.0), point(told, 400.0)]);
        let costed = deliver::further(points.collect());
        let json = costed.json();
        let cost = &json["roles"]["deliver"]["processor_us"];
        assert!((cost["item"].as_f64().expect("a cost") - 5.0).abs() < 1e-6, "{json}");
        assert_eq!((cost.as_object().expect("parts").len(), &json["batch"]), (1, &json!([1.0, 20.0])), "{json}");
    }
}
