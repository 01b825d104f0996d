//! Figures `notifybc.*`: the runs of NotifyBC's benchmark, by the requests of its load scripts: subscriptions, and
//! synchronous broadcasts by mail to audiences of four sizes, guaranteed or not. Import of its records.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        child_process::{reserve_port, run as run_program},
        context::Context,
        figure::{Figure, Samples, rounded},
        http_client::{self, Connection},
        mail_target::MailTarget,
        resource_usage::CostMeter,
        server::{Server, megabytes},
    },
};

/// Mails/s of NotifyBC 6.4.1 into one `smtp-sink`, on two cores with MongoDB, recorded once.
const RECORDED_MAILS: f64 = 371.0;
/// Requests in flight of `bulk-post-subs`.
const IN_FLIGHT: usize = 100;
/// Longest import and longest broadcast.
const PATIENCE: Duration = Duration::from_secs(1_800);
/// Filter of `bulk-post-subs`.
const FILTER: &str = "contains_ci(title,'vancouver') || contains_ci(title,'victoria')";

macro_rules! figures {
    ($($constant:ident $name:literal $about:literal $by_default:literal $run:expr,)*) => {
        $(
            const $constant: Bench = Bench {
                name: $name,
                about: $about,
                by_default: $by_default,
                run: |context| -> Measuring<'_> { Box::pin($run(context)) },
            };
        )*
        /// All figures of this file.
        pub const ALL: &[Bench] = &[$($constant),*];
    };
}

figures! {
    SUBSCRIBE "notifybc.subscribe" "subscriptions/s by POST /subscriptions, 100 in flight" true subscribe,
    IMPORT "notifybc.import" "subscriptions/s, 1,000,000 records of mongoexport" true import,
    TEN "notifybc.10" "mails/s of 200 synchronous broadcasts to 10" false |context| broadcast(context, 10, 200, false),
    TEN_SURE "notifybc.10.guaranteed" "the same, guaranteed" false |context| broadcast(context, 10, 200, true),
    FEW "notifybc.1k" "mails/s of 10 synchronous broadcasts to 1,000" false |context| broadcast(context, 1_000, 10, false),
    FEW_SURE "notifybc.1k.guaranteed" "the same, guaranteed" false |context| broadcast(context, 1_000, 10, true),
    MANY "notifybc.100k" "mails/s of a synchronous broadcast to 100,000" false |context| broadcast(context, 100_000, 1, false),
    MANY_SURE "notifybc.100k.guaranteed" "the same, guaranteed" false |context| broadcast(context, 100_000, 1, true),
    MOST "notifybc.1m" "mails/s of a synchronous broadcast to 1,000,000" true |context| broadcast(context, 1_000_000, 1, false),
    MOST_SURE "notifybc.1m.guaranteed" "the same, guaranteed" false |context| broadcast(context, 1_000_000, 1, true),
}

/// A server with the NotifyBC interface.
struct Target {
    server: Server,
    /// Port of the NotifyBC interface.
    port: u16,
}

/// Writes the configuration document, and returns the environment variables of a server that uses it.
fn configure(
    folder: &Path,
    port: u16,
    smtp: (String, u16),
    is_guaranteed: bool,
) -> Outcome<[(&'static str, String); 3]> {
    let document = json!({
        "port": port,
        "host": "127.0.0.1",
        "email": {"smtp": {"host": smtp.0, "port": smtp.1, "secure": false, "ignoreTLS": true}},
        "notification": {"guaranteedBroadcastPushDispatchProcessing": is_guaranteed},
    });
    let file = folder.join("notifybc.json");
    fs::write(&file, document.to_string()).map_err(|error| Failure::file("write", &file, &error))?;
    Ok([
        ("TOCSIN_NOTIFYBC_CONFIG", file.display().to_string()),
        ("TOCSIN_HTTP_REQUESTS_PER_ADDRESS_MAX", "0".to_owned()),
        ("TOCSIN_DELIVERY_ALLOW_NETWORKS", "127.0.0.0/8".to_owned()),
    ])
}

async fn start(context: &Context, folder: &Path, smtp: (String, u16), is_guaranteed: bool) -> Outcome<Target> {
    let port = reserve_port()?;
    let variables = configure(folder, port, smtp, is_guaranteed)?;
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Ok(Target { server: Server::start_with(context, folder, &variables).await?, port })
}

/// A subscription as `mongoexport` writes it.
fn record(number: u64) -> Value {
    json!({
        "_id": {"$oid": format!("650a0000{number:016x}")}, "serviceName": "load", "channel": "email",
        "state": "confirmed", "userChannelId": format!("p{number}@example.org"), "unsubscriptionCode": "54321",
        "broadcastPushNotificationFilter": FILTER, "created": {"$date": "2024-01-01T00:00:00Z"},
        "updated": {"$date": "2024-01-01T00:00:00Z"}, "index": number,
    })
}

/// Imports some subscriptions into a new data folder. Returns the duration.
async fn import_records(context: &Context, folder: &Path, count: u64) -> Outcome<Duration> {
    let dump = folder.join("dump");
    let file = dump.join("subscription.json");
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(&dump)?;
        let mut out = BufWriter::new(File::create(&file)?);
        for number in 0..count {
            writeln!(out, "{}", record(number))?;
        }
        out.flush()
    };
    write().map_err(|error| Failure::file("write", &file, &error))?;
    let mut command = Command::new(&context.program);
    command.args(["notifybc", "import"]).arg(&dump).arg("--json").current_dir(folder).env_clear();
    command.env("HOME", folder).env("TOCSIN_DATA_FOLDER", folder.join("data")).env("TOCSIN_LOG_LEVEL", "warn");
    let begun = Instant::now();
    let report = run_program(&mut command.into(), "tocsin notifybc import", PATIENCE).await?;
    let took = begun.elapsed();
    let report: Value = serde_json::from_str(&report).unwrap_or_default();
    match report["collections"]["subscription"]["imported"].as_u64() {
        Some(imported) if imported == count => Ok(took),
        _ => Err(Failure::failed("not all records were imported").detail(report.to_string())),
    }
}

async fn import(context: &Context) -> Outcome<Figure> {
    let count = context.size(1_000_000, 3_000);
    let mut ours = Samples::default();
    for _ in context.turns() {
        let folder = context.folder()?;
        ours.push(count as f64 / import_records(context, folder.path(), count).await?.as_secs_f64());
    }
    Ok(Figure::new("subscriptions/s", ours)
        .with_condition(format!("{count} JSON lines of mongoexport, each with a filter, into an empty data folder"))
        .with_condition("from the start of the command to its end"))
}

async fn subscribe(context: &Context) -> Outcome<Figure> {
    let count = context.size(100_000, 1_000);
    let end = MailTarget::ready(context).await?;
    let folder = context.folder()?;
    let target = start(context, folder.path(), end.server.address(), false).await?;
    let mut ours = Samples::default();
    let mut tally = CostMeter::of(&target.server);
    for turn in context.turns() {
        tally.begin();
        let next = Arc::new(AtomicU64::new(0));
        let begun = Instant::now();
        let clients = (0..IN_FLIGHT).map(|_| {
            let (next, port, service) = (next.clone(), target.port, format!("load{turn}"));
            async move {
                let mut connection = Connection::open(port).await?;
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return Ok::<_, std::io::Error>(());
                    }
                    let body = json!({
                        "serviceName": service, "channel": "email", "state": "confirmed", "index": index,
                        "confirmationRequest": {"sendRequest": false}, "userChannelId": "load@example.org",
                        "broadcastPushNotificationFilter": FILTER,
                    });
                    let request =
                        http_client::post("/api/subscriptions", "", "application/json", &body.to_string().into_bytes());
                    let (status, body) = connection.exchange(&request).await?;
                    if status != 200 {
                        return Err(std::io::Error::other(format!("{status}: {}", String::from_utf8_lossy(&body))));
                    }
                }
            }
        });
        let mut running: tokio::task::JoinSet<_> = clients.collect();
        while let Some(ended) = running.join_next().await {
            let ended = ended.map_err(|error| Failure::failed("a client broke off").because(&error))?;
            ended.map_err(|error| Failure::failed("a subscription was refused").because(&error))?;
        }
        ours.push(count as f64 / begun.elapsed().as_secs_f64());
        tally.end(count as f64);
    }
    Ok(Figure::new("subscriptions/s", ours)
        .with_cost(tally.counts())
        .with_condition(format!("{count} subscriptions a turn, as bulk-post-subs posts them, each durable"))
        .with_condition(format!("{IN_FLIGHT} connections")))
}

/// Measures `broadcasts` synchronous broadcasts to `people` subscriptions, one after the other.
async fn broadcast(context: &Context, people: u64, broadcasts: u64, is_guaranteed: bool) -> Outcome<Figure> {
    let (people, broadcasts) = match context.quick {
        true => (people.min(2_000), broadcasts.min(2)),
        false => (people, broadcasts),
    };
    let end = MailTarget::ready(context).await?;
    let folder = context.folder()?;
    import_records(context, folder.path(), people).await?;
    let target = start(context, folder.path(), end.server.address(), is_guaranteed).await?;
    let client = reqwest::Client::builder()
        .timeout(PATIENCE)
        .build()
        .map_err(|error| Failure::failed("there is no client").because(&error))?;
    let url = format!("http://127.0.0.1:{}/api/notifications", target.port);
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    let mut tally = CostMeter::of(&target.server);
    for _ in context.turns() {
        tally.begin();
        let begun = Instant::now();
        for _ in 0..broadcasts {
            let notification = notification();
            let answer = client.post(&url).json(&notification).send().await;
            let answer = answer.map_err(|error| Failure::failed("no answer to a broadcast").because(&error))?;
            let status = answer.status();
            let record: Value = answer.json().await.unwrap_or_default();
            let failed = record["dispatch"]["failed"].as_array().map_or(0, Vec::len);
            if !status.is_success() || record["state"] != "sent" || failed > 0 {
                let detail = format!("{status}, state {}, {failed} failed", record["state"]);
                return Err(Failure::failed("a broadcast failed").detail(detail));
            }
        }
        ours.push((people * broadcasts) as f64 / begun.elapsed().as_secs_f64());
        peer.push(RECORDED_MAILS);
        tally.end((people * broadcasts) as f64);
    }
    let delivered = target.server.delivered().await?;
    let expected = people * broadcasts * ours.len() as u64;
    if delivered != expected {
        return Err(Failure::failed(format!("{delivered} mails were delivered; expected {expected}")));
    }
    Ok(Figure::new("messages/s", ours)
        .with_peer("NotifyBC 6.4.1, recorded", peer)
        .with_cost(tally.counts())
        .with_condition(format!("{people} subscriptions, each with the filter of bulk-post-subs"))
        .with_condition(format!("{broadcasts} broadcasts a turn, each answered when all mails were accepted"))
        .with_condition(format!("into {}", end.name))
        .with_condition(if is_guaranteed { "guaranteed" } else { "not guaranteed" })
        .with_condition(format!("peak memory {} MB", rounded(megabytes(target.server.peak_bytes()), 3))))
}

/// The notification of `curl-ntf.sh`, with a text of our own of the same length.
fn notification() -> Value {
    let description: String = "All the news that fits. ".chars().cycle().take(480).collect();
    json!({
        "serviceName": "load",
        "message": {
            "from": "no_reply@example.org",
            "subject": "{title}",
            "htmlBody": "{description}<p><a href='{link}'>link</a><a href='{unsubscription_url}'>unsubscribe</a></p>",
        },
        "channel": "email",
        "isBroadcast": true,
        "data": {
            "title": "News from Victoria", "description": description, "pubDate": "2017-07-20T16:18:04.000Z",
            "link": "http://example.org/news", "guid": "12356",
        },
    })
}
