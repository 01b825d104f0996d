//! Cost vectors: operations one by one against a server of their own, at several sizes and batches; what the server used,
//! less what it uses when idle, becomes a line for each resource.

use std::{
    path::Path,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use tocsin_capacity::fit::{Sample, fit, knee};

use super::{
    context::Context,
    fanout::Fanout,
    figure::rounded,
    figures::{accept_single, directory, exchange_roundtrip, sync},
    ldap::{self, Act, Crowd},
    load::Target,
    peers::Nginx,
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

/// A measurement under way.
type Measuring<'a> = Pin<Box<dyn Future<Output = Outcome<Vec<Costed>>> + 'a>>;

/// Every operation that is measured, or counted in another.
const NAMES: [&str; 13] = [
    "accept",
    "match",
    "notify",
    "format",
    "deliver.file",
    "deliver.http",
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
pub const GROUPS: [Group; 5] = [
    Group { name: "accept", measure: |context| -> Measuring<'_> { Box::pin(accept(context)) } },
    Group { name: "deliver", measure: |context| -> Measuring<'_> { Box::pin(deliver(context)) } },
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
}

/// What so many items of a size and a batch used.
struct Point {
    bytes: f64,
    batch: f64,
    items: f64,
    used: Used,
    wire_bytes: f64,
}

/// A server that is watched.
struct Watched<'a> {
    pid: u32,
    folder: &'a Path,
    /// In a second, when it has nothing to do.
    idle: Used,
}

impl<'a> Watched<'a> {
    /// Looks at it while it rests, once it does: what it still has to do after its start is not what it always does.
    async fn begin(context: &Context, server: &'a Server) -> Watched<'a> {
        let folder = server.folder.as_path();
        let started = Instant::now();
        while Watched::used_in(server, Duration::from_millis(500)).await.processor > AT_REST {
            if started.elapsed() > REST_MAX {
                context.tell("   the server does not come to rest: what it does beside the load is taken for what it always does");
                break;
            }
        }
        let idle = Watched::used_in(server, Duration::from_secs(context.size(5, 1))).await;
        Watched { pid: server.pid(), folder, idle }
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
        let (before, started) = (Used::by(self.pid, self.folder), Instant::now());
        let done = work.await?;
        let seconds = started.elapsed().as_secs_f64();
        Ok((done, Used::by(self.pid, self.folder).since(&before, &self.idle, seconds)))
    }
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
    for group in GROUPS.iter().filter(|group| names.is_empty() || names.iter().any(|name| name == group.name)) {
        context.tell(format_args!("== {}", group.name));
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
    let syncs = super::disk::syncs_per_second(folder.path(), Duration::from_secs(context.size(3, 1))).await?;
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    let mut machine = json!({
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "syncs_per_second": rounded(syncs, 4),
    });
    if let Some(kilobytes) = kilobytes {
        machine["memory_mb"] = rounded(kilobytes * 1024.0 / 1e6, 5);
    }
    Ok(machine)
}

impl Costed {
    fn line(&self, each: impl Fn(&Point) -> f64) -> (Value, f64) {
        let samples: Vec<Sample> = self
            .points
            .iter()
            .map(|point| Sample { bytes: point.bytes, batch: point.batch, each: each(point) / point.items.max(1.0) })
            .collect();
        let found = fit(&samples);
        let parts = [("batch", found.cost.batch), ("item", found.cost.item), ("kilobyte", found.cost.kilobyte)];
        let line: Map<String, Value> = parts
            .into_iter()
            .filter(|(_, part)| *part > 0.0)
            .map(|(name, part)| (name.to_owned(), rounded(part, 4)))
            .collect();
        (Value::Object(line), found.error)
    }

    fn processor(&self) -> (Value, f64) {
        self.line(|point| point.used.processor * 1e6)
    }

    fn json(&self) -> Value {
        let mut cost = Map::new();
        let mut put = |name: &str, line: Value| {
            if line.as_object().is_some_and(|line| !line.is_empty()) {
                cost.insert(name.to_owned(), line);
            }
        };
        put("processor_us", self.processor().0);
        put("disk_bytes", self.line(|point| point.used.disk_bytes).0);
        if self.points.iter().all(|point| point.used.syncs.is_some()) {
            put("syncs", self.line(|point| point.used.syncs.unwrap_or_default()).0);
        }
        put("wire_bytes", self.line(|point| point.wire_bytes).0);
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
        let (line, error) = self.processor();
        let knee = knee(&self.steps).map_or_else(|| "no knee seen".to_owned(), |rate| format!("knee at {rate:.0}/s"));
        format!("{}: processor_us {line}, misses by at most {:.0} %, {knee}", self.name, error * 100.0)
    }
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
            let wire_bytes = (load.count * target.request.len() as u64) as f64;
            points.push(Point {
                bytes: bytes as f64,
                batch: batch as f64,
                items: (load.count * batch as u64) as f64,
                used,
                wire_bytes,
            });
        }
    }
    let mut steps = Vec::new();
    for connections in STEPS {
        let (load, used) = watched.during(target(250, 1, connections).closed(time)).await?;
        steps.push((load.per_second(), used.processor * 1e6 / load.count.max(1) as f64));
    }
    let about = "an event is checked, stored durably and matched; nobody cares".to_owned();
    Ok(vec![Costed { name: "accept".to_owned(), about, role: "accept", points, steps }])
}

async fn deliver(context: &Context) -> Outcome<Vec<Costed>> {
    let messages = context.size(50_000, 500);
    let mut costed = Vec::new();
    let file = "{protocol: file, options: {path: bench.ndjson}}".to_owned();
    costed.push(deliver_by(context, "file", &file, messages, |number| format!("reader{number}")).await?);
    if let Some(nginx) = Nginx::start(context).await? {
        let channel = "{protocol: http, concurrency: 64, flow: {per_destination: 64}, options: {secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw, allow_networks: [127.0.0.0/8]}}";
        let port = nginx.port;
        let address = move |number| format!("http://127.0.0.1:{port}/hook/r{number}");
        costed.push(deliver_by(context, "http", channel, messages, address).await?);
    }
    Ok(costed)
}

async fn deliver_by(
    context: &Context,
    name: &str,
    channel: &str,
    messages: u64,
    address: impl Fn(u64) -> String + Send + 'static,
) -> Outcome<Costed> {
    let mut fanout = Fanout::start(context, channel, "", messages, address).await?;
    let mut points = Vec::new();
    fanout.tell_all(100).await?;
    for characters in [100, 400, 1_500] {
        // Told anew, since the whole of it is watched while it is told.
        let (pid, folder) = (fanout.server.pid(), fanout.server.folder.clone());
        let idle = Watched::begin(context, &fanout.server).await.idle;
        let watched = Watched { pid, folder: &folder, idle };
        let (_, used) = watched.during(fanout.tell_all(characters)).await?;
        let (bytes, items) = (characters as f64, messages as f64);
        let wire_bytes = if name == "file" { 0.0 } else { items * (bytes + 400.0) };
        points.push(Point { bytes, batch: items, items, used, wire_bytes });
    }
    let about = format!("a notification is made, formatted and delivered by {name}, with its durable receipt");
    Ok(Costed { name: format!("deliver.{name}"), about, role: "deliver", points, steps: Vec::new() })
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
        for connections in STEPS {
            let (load, used) = watched.during(ldap::flood(port, act, &crowd, connections, time)).await?;
            steps.push((load.per_second, used.processor * 1e6 / load.count.max(1) as f64));
            if connections == CONNECTIONS {
                points.push(Point { bytes: 1_000.0, batch: 1.0, items: load.count as f64, used, wire_bytes: 0.0 });
            }
        }
        costed.push(Costed { name: name.to_owned(), about: about.to_owned(), role: "directory", points, steps });
    }
    Ok(costed)
}

async fn exchange(context: &Context) -> Outcome<Vec<Costed>> {
    let folder = context.folder()?;
    let (_far, server) = exchange_roundtrip::prepare(context, folder.path()).await?;
    let watched = Watched::begin(context, &server).await;
    let time = Duration::from_millis(context.size(5_000, 300));
    exchange_roundtrip::target(&server, 100, CONNECTIONS).closed(time / 4).await?;
    let (mut points, mut steps) = (Vec::new(), Vec::new());
    for bytes in [100, 1_000, 10_000] {
        let target = exchange_roundtrip::target(&server, bytes, CONNECTIONS);
        let (load, used) = watched.during(target.closed(time)).await?;
        let (items, wire_bytes) = (load.count as f64, 2.0 * (load.count * target.request.len() as u64) as f64);
        points.push(Point { bytes: bytes as f64, batch: 1.0, items, used, wire_bytes });
    }
    for connections in STEPS {
        let (load, used) = watched.during(exchange_roundtrip::target(&server, 1_000, connections).closed(time)).await?;
        steps.push((load.per_second(), used.processor * 1e6 / load.count.max(1) as f64));
    }
    let about = "a request is stored, routed, sent, answered, and its reply stored and given back".to_owned();
    Ok(vec![Costed { name: "exchange.roundtrip".to_owned(), about, role: "exchange", points, steps }])
}

async fn sync_sessions(context: &Context) -> Outcome<Vec<Costed>> {
    let devices = context.size(64, 4);
    let mut field = sync::Field::prepare(context, devices, sync::HALVES).await?;
    field.change_rows().await?;
    field.all_at_once().await?;
    field.change_rows().await?;
    let (pid, folder) = (field.server.pid(), field.server.folder.clone());
    let idle = Watched::begin(context, &field.server).await.idle;
    let watched = Watched { pid, folder: &folder, idle };
    let (_, used) = watched.during(field.all_at_once()).await?;
    let point = Point {
        bytes: sync::HALVES.bytes(),
        batch: 1.0,
        items: devices as f64,
        used,
        wire_bytes: devices as f64 * sync::HALVES.bytes(),
    };
    let about = "a device brings 600 edits, takes at least 600 rows, and ends".to_owned();
    Ok(vec![Costed { name: "sync.session".to_owned(), about, role: "sync", points: vec![point], steps: Vec::new() }])
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
            wire_bytes: 300_000.0,
        };
        let costed = Costed {
            name: "accept".to_owned(),
            about: "an event".to_owned(),
            role: "accept",
            points: vec![point(250.0, 1.0, 100.0), point(250.0, 10.0, 19.0), point(1_000.0, 10.0, 22.0)],
            steps: vec![(10.0, 1.0), (20.0, 1.0), (21.0, 2.0)],
        };
        let mut operations = counted_elsewhere();
        operations.insert(costed.name.clone(), costed.json());
        let text = json!({"vectors": "test", "machine": {"cores": 2}, "operations": operations}).to_string();
        let vectors = tocsin_capacity::read_vectors(&text).unwrap_or_else(|problems| panic!("{problems:?}: {text}"));
        let accept = &vectors.operations["accept"];
        assert_eq!((accept.bytes, accept.batch, accept.knee), (Some((250.0, 1_000.0)), Some((1.0, 10.0)), Some(20.0)));
        let cost = accept.roles["accept"].processor;
        assert!((cost.batch - 90.0).abs() < 0.1 && (cost.kilobyte - 4.0).abs() < 0.1, "{cost:?}");
        assert!(costed.told().contains("knee at 20/s"), "{}", costed.told());
    }

    #[test]
    fn the_profile_of_the_guide_is_planned_with_what_is_measured() {
        let guide = include_str!("../../../../docs/guide/capacity.md");
        let (_, profile) = guide.split_once("```yaml\n").expect("the profile");
        let (profile, _) = profile.split_once("```").expect("its end");
        let profile = tocsin_capacity::read_profile(profile).expect("a profile");
        let cost = json!({"roles": {"work": {"processor_us": {"item": 1}}}});
        let operations: Map<String, Value> = NAMES.map(|name| (name.to_owned(), cost.clone())).into_iter().collect();
        let stored: Map<String, Value> =
            STORED.map(|name| (name.to_owned(), json!({"memory_bytes": 1}))).into_iter().collect();
        let vectors = json!({"vectors": "test", "machine": {"cores": 2}, "operations": operations, "stored": stored});
        let vectors = tocsin_capacity::read_vectors(&vectors.to_string()).expect("vectors");
        let plan = tocsin_capacity::plan(&profile, &vectors).unwrap_or_else(|problems| panic!("{problems:?}"));
        let unknown: Vec<&String> = plan.notes.iter().filter(|note| note.contains("say nothing of")).collect();
        assert_eq!(unknown.len(), 1, "mails are bounded by their connections alone: {unknown:?}");
        assert!(unknown[0].contains("`deliver.smtp`"), "{unknown:?}");
    }
}
