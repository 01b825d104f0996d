//! Cost vectors: each operation is measured on its own server at several sizes and batches. The server's usage minus
//! its idle usage is fitted to a line per resource. Wire bytes are counted separately through a relay, because a relay
//! would distort the timing.

mod cost; // cost of an operation: samples, fitted lines, JSON
mod deliver; // cost of deliveries and digests
mod format; // cost of formatting, by language
mod relay; // byte-counting TCP relay

use std::{path::Path, pin::Pin, sync::Arc, time::Duration};

use reqwest::{Method, header::CONTENT_TYPE};
use serde_json::{Map, Value, json};

use self::{
    cost::{CostSample, ObservedServer, OperationCost},
    relay::Relay,
};
use super::{
    context::Context,
    disk,
    figure::rounded,
    figures::{accept_single, directory, exchange_roundtrip, sync},
    http_client,
    ldap_client::{self, EntryRange, LdapOperation},
    ldap_fixture::USER,
    load::Target,
    run::Run,
    server::{ChunkWriter, Server, megabytes},
};
use crate::failure::{Failure, Outcome};

/// Connections of a load whose cost is measured: enough to share syncs, few enough to leave CPU free.
const CONNECTIONS: usize = 16;
/// Connection counts at which the rate is measured, to find the knee.
const STEPS: [usize; 4] = [1, 4, 16, 64];
/// Duration of counting wire bytes: all requests have the same size.
const COUNTED: Duration = Duration::from_millis(50);
/// Number of directory operations whose wire bytes are counted.
const OPERATIONS_COUNTED: u64 = 50;
/// Exchange whose receiver is behind a relay.
const WIRED: &str = "wired";

/// Running measurement.
type Measuring<'a> = Pin<Box<dyn Future<Output = Outcome<Vec<OperationCost>>> + 'a>>;

/// Operations that are measured, or counted in another one.
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

/// Kinds of records whose storage is measured.
const STORED: [&str; 2] = ["subscribers", "subscriptions"];

/// Group of operations that are measured on one server.
pub struct Group {
    /// Name for selection.
    pub name: &'static str,
    measure: for<'a> fn(&'a Context) -> Measuring<'a>,
}

/// All groups.
pub const GROUPS: [Group; 6] = [
    Group { name: "accept", measure: |context| -> Measuring<'_> { Box::pin(accept(context)) } },
    Group { name: "format", measure: |context| -> Measuring<'_> { Box::pin(format::measure(context)) } },
    Group { name: "deliver", measure: |context| -> Measuring<'_> { Box::pin(deliver::measure(context)) } },
    Group { name: "directory", measure: |context| -> Measuring<'_> { Box::pin(directory_operations(context)) } },
    Group { name: "exchange", measure: |context| -> Measuring<'_> { Box::pin(exchange(context)) } },
    Group { name: "sync", measure: |context| -> Measuring<'_> { Box::pin(sync_sessions(context)) } },
];

/// Wire bytes of one request and response of this load, plus the traffic through the relay `behind` the server.
async fn wire_each(target: Target, behind: Option<&Relay>) -> Outcome<f64> {
    let front = Relay::to(target.port).await?;
    let before = behind.map_or(0, Relay::bytes);
    let target = Target { port: front.port, connections: 1, ..target };
    let load = target.closed(COUNTED).await?;
    let bytes = front.bytes() + behind.map_or(0, Relay::bytes) - before;
    Ok(bytes as f64 / load.count.max(1) as f64)
}

/// Measures these groups, or all, and returns the cost vectors as JSON.
///
/// # Errors
/// If a group is unknown or cannot be measured.
pub async fn measure(context: &Context, names: &[String], run: &Run) -> Outcome<String> {
    if let Some(unknown) = names.iter().find(|name| GROUPS.iter().all(|group| group.name != **name)) {
        let known = GROUPS.map(|group| group.name).join(", ");
        return Err(Failure::usage(format!("unknown group `{unknown}`; expected one of {known}")));
    }
    let mut operations = counted_elsewhere();
    let is_wanted = |group: &&Group| names.is_empty() || names.iter().any(|name| name == group.name);
    let groups: Vec<&Group> = GROUPS.iter().filter(is_wanted).collect();
    for (at, group) in groups.iter().enumerate() {
        context.progress.begin(group.name, at + 1, groups.len());
        context.log(format_args!("== {} ({} of {})", group.name, at + 1, groups.len()));
        for costed in (group.measure)(context).await? {
            context.log(format_args!("   {}", costed.summary()));
            debug_assert!(NAMES.contains(&costed.name.as_str()), "{} is missing in NAMES", costed.name);
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

/// Steps of an event whose cost is included in another operation.
fn counted_elsewhere() -> Map<String, Value> {
    let nothing = |about: &str| json!({"about": about, "roles": {}});
    [
        ("match", "counted in `accept`: matching; the notifications are counted in `deliver`"),
        ("notify", "counted in `deliver`"),
        ("format", "counted in `deliver`, for a short Jinja text"),
    ]
    .into_iter()
    .map(|(name, about)| (name.to_owned(), nothing(about)))
    .collect()
}

/// Resources of this machine, as far as they can be determined.
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

async fn accept(context: &Context) -> Outcome<Vec<OperationCost>> {
    let folder = context.folder()?;
    let server = Server::start(context, folder.path()).await?;
    server.apply("intake", accept_single::DEFINITION).await?;
    let watched = ObservedServer::begin(context, &server).await;
    let time = Duration::from_millis(context.size(3_000, 200));
    let target = |bytes: usize, batch: usize, connections: usize| {
        let body = Value::Array(accept_single::events_of(batch, bytes)).to_string();
        let request = http_client::post(accept_single::PATH, &server.key, "application/json", body.as_bytes());
        Target { port: server.port, request, connections }
    };
    let mut points = Vec::new();
    for bytes in context.size(vec![100, 250, 1_000, 2_000], vec![250, 1_000]) {
        for batch in context.size(vec![1, 10, 100, 1_000], vec![1, 100]) {
            let target = target(bytes, batch, CONNECTIONS);
            target.closed(time / 4).await?;
            let (load, used) = watched.during(target.closed(time)).await?;
            points.push(CostSample {
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
    let about = "an event is validated, stored durably and matched, without a match";
    Ok(vec![OperationCost { steps, ..OperationCost::new("accept", about, "accept", points) }])
}

async fn directory_operations(context: &Context) -> Outcome<Vec<OperationCost>> {
    let count = context.size(100_000, 500);
    let (_folder, port, server) = directory::serve(context, count).await?;
    let watched = ObservedServer::begin(context, &server).await;
    let (crowd, time) = (Arc::new(EntryRange::of(count)), Duration::from_millis(context.size(5_000, 300)));
    ldap_client::closed_loop(port, LdapOperation::Base, &crowd, CONNECTIONS, time).await?;
    let mut costed = Vec::new();
    for (name, about, act) in [
        ("directory.search", "search for an entry of 20 attributes by name", LdapOperation::Base),
        ("directory.modify_add", "modify that adds a value, durable", LdapOperation::ModifyAdd),
        ("directory.modify_replace", "modify that replaces a value, durable", LdapOperation::ModifyReplace),
        ("directory.add", "add of an entry of 20 attributes, durable", LdapOperation::Add),
        ("directory.bind", "bind with a password under a fast hash, and bind back", LdapOperation::Bind),
    ] {
        let mut steps = Vec::new();
        let mut points = Vec::new();
        let wire_each = directory_wire_each(port, act, &crowd).await?;
        for connections in STEPS {
            let (load, used) = watched.during(ldap_client::closed_loop(port, act, &crowd, connections, time)).await?;
            steps.push((load.per_second, used.processor * 1e6 / load.count.max(1) as f64));
            if connections == CONNECTIONS {
                points.push(CostSample { bytes: 1_000.0, batch: 1.0, items: load.count as f64, used, wire_each });
            }
        }
        costed.push(OperationCost { steps, ..OperationCost::new(name, about, "directory", points) });
    }
    Ok(costed)
}

/// Wire bytes of one operation and its responses.
async fn directory_wire_each(port: u16, act: LdapOperation, crowd: &EntryRange) -> Outcome<f64> {
    let broke = |error: std::io::Error| Failure::failed("a connection of the load broke").because(&error);
    let relay = Relay::to(port).await?;
    let mut connection = ldap_client::Connection::open(relay.port).await.map_err(broke)?;
    // Seeded differently from all loads, so that no value is added twice.
    let mut chance = fastrand::Rng::with_seed(u64::MAX);
    let before = relay.bytes();
    for _ in 0..OPERATIONS_COUNTED {
        let request = act.request(chance.u64(..crowd.count), &crowd.new, &mut chance);
        let answer = connection.ask(&request).await.map_err(broke)?;
        if answer.code != 0 {
            return Err(Failure::failed(format!("{act:?} was answered by {answer:?}")));
        }
        if act == LdapOperation::Bind {
            connection.ask(&ldap_client::bind(USER)).await.map_err(broke)?;
        }
    }
    Ok((relay.bytes() - before) as f64 / OPERATIONS_COUNTED as f64)
}

async fn exchange(context: &Context) -> Outcome<Vec<OperationCost>> {
    let folder = context.folder()?;
    let (far, server) = exchange_roundtrip::prepare(context, folder.path()).await?;
    let behind = Relay::to(far.port).await?;
    let request = server.client().request(Method::PUT, &format!("/v1/exchanges/{WIRED}"));
    let wired = exchange_roundtrip::definition(WIRED, behind.port);
    server.client().send(request.header(CONTENT_TYPE, "application/yaml").body(wired)).await?;
    let watched = ObservedServer::begin(context, &server).await;
    let time = Duration::from_millis(context.size(5_000, 300));
    exchange_roundtrip::target(&server, 100, CONNECTIONS).closed(time / 4).await?;
    let (mut points, mut steps) = (Vec::new(), Vec::new());
    for bytes in [100, 1_000, 10_000] {
        let target = exchange_roundtrip::target(&server, bytes, CONNECTIONS);
        let (load, used) = watched.during(target.closed(time)).await?;
        let wired = exchange_roundtrip::target_of(WIRED, &server, bytes, 1);
        let wire_each = wire_each(wired, Some(&behind)).await?;
        points.push(CostSample { bytes: bytes as f64, batch: 1.0, items: load.count as f64, used, wire_each });
    }
    for connections in STEPS {
        let (load, used) = watched.during(exchange_roundtrip::target(&server, 1_000, connections).closed(time)).await?;
        steps.push((load.per_second(), used.processor * 1e6 / load.count.max(1) as f64));
    }
    let about = "a request is stored, routed and sent; its reply is stored and returned";
    Ok(vec![OperationCost { steps, ..OperationCost::new("exchange.roundtrip", about, "exchange", points) }])
}

async fn sync_sessions(context: &Context) -> Outcome<Vec<OperationCost>> {
    let devices = context.size(64, 4);
    let mut field = sync::SyncServer::prepare(context, devices, sync::HALVES_OF_WORDS).await?;
    field.change_rows().await?;
    field.all_at_once().await?;
    field.change_rows().await?;
    let watched = ObservedServer::begin(context, &field.server).await;
    let (_, used) = watched.during(field.all_at_once()).await?;
    field.change_rows().await?;
    let relay = Relay::to(field.server.port).await?;
    field.use_port(relay.port);
    field.all_at_once().await?;
    let items = devices as f64;
    let wire_each = relay.bytes() as f64 / items;
    let point = CostSample { bytes: sync::HALVES_OF_WORDS.bytes(), batch: 1.0, items, used, wire_each };
    let about = "a device uploads 600 edits and downloads at least 600 rows; blocks are compressed on the wire";
    Ok(vec![OperationCost::new("sync.session", about, "sync", vec![point])])
}

/// Memory and disk bytes per subscriber and per subscription, and the base memory in megabytes of an empty server.
async fn stored(context: &Context) -> Outcome<(Value, f64)> {
    let count = context.size(200_000_u32, 1_000);
    let folder = context.folder()?;
    let server = Server::start(context, folder.path()).await?;
    server.apply("stock", super::stock_workload::DEFINITION).await?;
    let size = || (server.resident_bytes() as f64, bytes_below(&server.folder));
    let empty = size();
    let subscribers =
        move |out: &mut ChunkWriter| crate::examples::stock::write_subscribers(out, count, "http://127.0.0.1:9/hook");
    server.import_subscribers(subscribers).await?;
    let people = size();
    let orders = move |out: &mut ChunkWriter| {
        let market = crate::examples::stock::Market::new(crate::examples::stock::SEED);
        crate::examples::stock::write_subscriptions(out, market.orders(count, super::stock_workload::ORDERS_EACH))
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
    let orders = count * f64::from(super::stock_workload::ORDERS_EACH);
    let measured = [each(people, empty, count), each(all, people, orders)];
    let stored: Map<String, Value> = STORED.map(str::to_owned).into_iter().zip(measured).collect();
    let stored = Value::Object(stored);
    Ok((stored, megabytes(empty.0 as u64)))
}

/// Total bytes of the files in a folder, recursively.
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
    use crate::resource_usage::ResourceUsage;

    #[test]
    fn the_planner_reads_the_measured_vectors() {
        let point = |bytes: f64, batch: f64, micros: f64| CostSample {
            bytes,
            batch,
            items: 1_000.0,
            used: ResourceUsage { processor: micros * 1e-3, disk_bytes: 4_096_000.0, syncs: Some(500.0) },
            // Headers and response of 400 bytes, plus the event.
            wire_each: 400.0 / batch + bytes,
        };
        let points = vec![point(250.0, 1.0, 100.0), point(250.0, 10.0, 19.0), point(1_000.0, 10.0, 22.0)];
        let steps = vec![(10.0, 1.0), (20.0, 1.0), (21.0, 2.0)];
        let costed = OperationCost { steps, ..OperationCost::new("accept", "an event", "accept", points) };
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
        assert!(costed.summary().contains("knee at 20/s"), "{}", costed.summary());
    }

    /// Plans a profile with vectors of all measured operations.
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
    fn the_profile_of_the_guide_is_planned_with_measured_operations() {
        let guide = include_str!("../../../docs/guide/capacity.md");
        let (_, profile) = guide.split_once("```yaml\n").expect("the profile");
        let (profile, _) = profile.split_once("```").expect("its end");
        let plan = planned(profile);
        assert!(plan.notes.iter().all(|note| !note.contains("do not contain")), "{:?}", plan.notes);
        let missing: Vec<&str> = NAMES.into_iter().filter(|name| !guide.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "missing in the guide: {missing:?}");
    }

    #[test]
    fn a_profile_can_use_every_measured_operation() {
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
    fn a_further_notification_costs_the_item_term_of_its_digest() {
        // A message of 50 us, 5 us for each notification, and 2 us per kilobyte of it.
        let point = |count: f64, bytes: f64| CostSample {
            bytes,
            batch: count,
            items: count * 1e6,
            used: ResourceUsage { processor: 50.0 + count * (5.0 + 0.002 * bytes), ..ResourceUsage::default() },
            wire_each: 0.0,
        };
        let points = [1.0, 5.0, 20.0].into_iter().flat_map(|count| [point(count, 100.0), point(count, 400.0)]);
        let costed = deliver::digest_item_cost(points.collect());
        let json = costed.json();
        let cost = &json["roles"]["deliver"]["processor_us"];
        assert!((cost["item"].as_f64().expect("a cost") - 5.0).abs() < 1e-6, "{json}");
        assert_eq!((cost.as_object().expect("parts").len(), &json["batch"]), (1, &json!([1.0, 20.0])), "{json}");
    }
}
