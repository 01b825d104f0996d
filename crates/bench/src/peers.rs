//! Peer programs: nginx responds, wrk posts, Postfix receives and sends mail, dd writes, the bare prototypes match.
//!
//! All are third-party or standalone programs. If one is missing, a message is logged and the figure has no peer.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    child_process::{Child, listens, reserve_port, run},
    context::{Context, Scratch},
    external_targets::MailServer,
};
use crate::failure::{Failure, Outcome};

/// Maximum run time of a peer.
const TIMEOUT: Duration = Duration::from_secs(600);

/// nginx that only sends empty responses, with a single process.
pub struct Nginx {
    /// Listening port.
    pub port: u16,
    _process: Child,
    _folder: Scratch,
}

impl Nginx {
    /// Starts nginx; `None` if it is not installed.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start(context: &Context) -> Outcome<Option<Self>> {
        let Some(program) = context.program("nginx") else { return Ok(None) };
        let (folder, port) = (context.folder()?, reserve_port()?);
        let at = folder.path();
        let show = at.display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("{kind}_temp_path {show}/{kind}; "))
            .collect();
        // A single process, so that killing it leaves no workers.
        let text = format!(
            "master_process off;\ndaemon off;\npid {show}/pid;\nerror_log {show}/error.log;\n\
             events {{ worker_connections 4096; multi_accept on; }}\n\
             http {{\n  access_log off; keepalive_requests 100000000; keepalive_timeout 300s; client_body_buffer_size 16k; {temporary}\n  \
             server {{ listen 127.0.0.1:{port} reuseport; location / {{ return 200; }} }}\n}}\n"
        );
        let file = at.join("nginx.conf");
        fs::write(&file, text).map_err(|error| Failure::file("write", &file, &error))?;
        let mut command = Command::new(program);
        command.arg("-e").arg(at.join("error.log")).arg("-p").arg(at).arg("-c").arg(&file);
        let mut process = Child::start(&mut command, "nginx", at.join("out.log"))?;
        process.until(Instant::now(), async || listens(port).await).await?;
        Ok(Some(Nginx { port, _process: process, _folder: folder }))
    }
}

/// Result of wrk.
#[derive(Debug, Clone, PartialEq)]
pub struct WrkResult {
    /// Number of responses.
    pub requests: u64,
    /// Responses per second.
    pub per_second: f64,
    /// Median latency in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of the latency in milliseconds.
    pub p99_ms: f64,
}

/// wrk, which posts one body repeatedly in a closed loop.
pub struct Wrk {
    program: PathBuf,
    folder: Scratch,
    script: PathBuf,
    connections: usize,
}

impl Wrk {
    /// Prepares wrk for this body and these headers; `None` if it is not installed.
    ///
    /// # Errors
    /// If its script cannot be written.
    pub fn new(context: &Context, connections: usize, headers: &[(&str, &str)], body: &[u8]) -> Outcome<Option<Self>> {
        let Some(program) = context.program("wrk") else { return Ok(None) };
        let folder = context.folder()?;
        let (script, file) = (folder.path().join("post.lua"), folder.path().join("body"));
        // A JSON string of plain ASCII is a valid Lua string.
        let quoted = |text: &str| Value::from(text).to_string();
        let mut text = format!(
            "wrk.method = \"POST\"\nlocal file = assert(io.open({}, \"rb\"))\n",
            quoted(&file.to_string_lossy())
        );
        text.push_str("wrk.body = file:read(\"*a\")\nfile:close()\n");
        for (name, value) in headers {
            text.push_str(&format!("wrk.headers[{}] = {}\n", quoted(name), quoted(value)));
        }
        fs::write(&file, body).map_err(|error| Failure::file("write", &file, &error))?;
        fs::write(&script, text).map_err(|error| Failure::file("write", &script, &error))?;
        Ok(Some(Wrk { program, folder, script, connections }))
    }

    /// Posts to `path` at a port of this machine for this time, with two threads.
    ///
    /// # Errors
    /// If wrk fails, or a response is not 2xx.
    pub async fn post(&self, port: u16, path: &str, time: Duration) -> Outcome<WrkResult> {
        self.post_to(&format!("http://127.0.0.1:{port}{path}"), time).await
    }

    /// Posts to a URL; otherwise as [`Wrk::post`].
    ///
    /// # Errors
    /// As [`Wrk::post`].
    pub async fn post_to(&self, url: &str, time: Duration) -> Outcome<WrkResult> {
        let mut command = tokio::process::Command::new(&self.program);
        command.args([
            "-t2",
            "--latency",
            &format!("-c{}", self.connections),
            &format!("-d{}s", time.as_secs().max(1)),
            "-s",
        ]);
        command.arg(&self.script).arg(url).current_dir(self.folder.path());
        parse_wrk(&run(&mut command, "wrk", TIMEOUT).await?)
    }
}

/// Parses the output of wrk.
fn parse_wrk(text: &str) -> Outcome<WrkResult> {
    let after = |start: &str| text.lines().find_map(|line| line.trim().strip_prefix(start)).map(str::trim);
    if let Some(count) = after("Non-2xx or 3xx responses:") {
        return Err(Failure::failed(format!("{count} responses were not 2xx")));
    }
    if let Some(errors) = after("Socket errors:") {
        return Err(Failure::failed(format!("connections of the load failed: {errors}")));
    }
    let found = (|| {
        let per_second = after("Requests/sec:")?.parse().ok()?;
        let requests = text.lines().find_map(|line| line.trim().split_once(" requests in "))?.0.parse().ok()?;
        Some(WrkResult {
            requests,
            per_second,
            p50_ms: milliseconds(after("50%")?)?,
            p99_ms: milliseconds(after("99%")?)?,
        })
    })();
    found.ok_or_else(|| Failure::failed("cannot parse the output of wrk").detail(text.trim().to_owned()))
}

fn milliseconds(text: &str) -> Option<f64> {
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let factor = match &text[split..] {
        "us" => 0.001,
        "ms" => 1.0,
        "s" => 1_000.0,
        "m" => 60_000.0,
        _ => return None,
    };
    Some(text[..split].parse::<f64>().ok()? * factor)
}

/// Postfix's smtp-sink, which receives mail and discards it.
pub struct SmtpSink {
    /// Listening port.
    pub port: u16,
    _process: Child,
    _folder: Scratch,
}

impl SmtpSink {
    /// Starts smtp-sink.
    ///
    /// # Errors
    /// If it is missing or does not start: without a receiver nothing can be measured.
    pub async fn start(context: &Context) -> Outcome<Self> {
        let program = context
            .program("smtp-sink")
            .ok_or_else(|| Failure::failed("smtp-sink of Postfix is needed to receive the mails"))?;
        let (folder, port) = (context.folder()?, reserve_port()?);
        let mut command = Command::new(program);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "nobody"]);
        }
        command.args([format!("127.0.0.1:{port}"), "1024".to_owned()]).current_dir("/");
        let mut process = Child::start(&mut command, "smtp-sink", folder.path().join("log"))?;
        process.until(Instant::now(), async || listens(port).await).await?;
        Ok(SmtpSink { port, _process: process, _folder: folder })
    }
}

/// Bare SMTP sink of `bench/peers/smtp`: one event loop; all replies to one read go out in one write.
pub struct BareSink {
    /// Listening port.
    pub port: u16,
    _process: Child,
    _folder: Scratch,
}

impl BareSink {
    /// Builds the sink if needed, and starts it.
    ///
    /// # Errors
    /// If it cannot be built or does not start: without a receiver nothing can be measured.
    pub async fn start(context: &Context) -> Outcome<Self> {
        let program = rust_program(context, "smtp-load", "smtp_sink").await?;
        let (folder, port) = (context.folder()?, reserve_port()?);
        let mut command = Command::new(program);
        command.args(["--port", &port.to_string()]);
        let mut process = Child::start(&mut command, "the bare sink", folder.path().join("log"))?;
        process.until(Instant::now(), async || listens(port).await).await?;
        Ok(BareSink { port, _process: process, _folder: folder })
    }
}

/// Sends mails of 1 KB with nodemailer's connection pool. Returns mails/s; `None` if it is not set up.
///
/// # Errors
/// If nodemailer fails.
pub async fn nodemailer(context: &Context, port: u16, connections: u32, mails: u64) -> Outcome<Option<f64>> {
    let folder = context.peers_folder.join("npm/nodemailer");
    if !folder.join("node_modules").is_dir() {
        context.log("   nodemailer is missing: `bench/peers/smtp/setup.sh` sets it up");
        return Ok(None);
    }
    let Some(program) = context.program("node") else { return Ok(None) };
    let mut command = tokio::process::Command::new(program);
    command.arg(folder.join("send.js")).args([port.to_string(), connections.to_string(), mails.to_string()]);
    let _turn = context.progress.peer_turn("nodemailer");
    let text = run(&mut command, "nodemailer", TIMEOUT).await?;
    let printed = text.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = printed.and_then(|line| line["per_s"].as_f64());
    found
        .map(Some)
        .ok_or_else(|| Failure::failed("cannot parse the output of nodemailer").detail(text.trim().to_owned()))
}

/// Workload for smtp-source.
#[derive(Debug, Clone, Copy)]
pub struct SmtpSourceLoad {
    /// Number of mails of 1 KB.
    pub mails: u64,
    /// Number of sessions, which stay open.
    pub sessions: u32,
    /// Recipients per mail.
    pub recipients: u32,
}

impl SmtpSourceLoad {
    /// Mails to one recipient each over 10 sessions.
    pub fn of(mails: u64) -> SmtpSourceLoad {
        SmtpSourceLoad { mails, sessions: 10, recipients: 1 }
    }
}

/// Sends mail to this server with Postfix's smtp-source. Returns mails/s over its whole run time; `None` if it is
/// missing.
///
/// # Errors
/// If smtp-source fails.
pub async fn smtp_source(context: &Context, to: &MailServer, source: SmtpSourceLoad) -> Outcome<Option<f64>> {
    let SmtpSourceLoad { mails, sessions, recipients } = source;
    let Some(program) = context.program("smtp-source") else { return Ok(None) };
    let mut command = tokio::process::Command::new(program);
    command.args(["-d", "-l", "1024", "-s", &sessions.to_string(), "-r", &recipients.to_string()]);
    if context.targets.smtp.is_some() {
        // By default it uses addresses at this machine's name, which a server that checks addresses may reject.
        command.args(["-f", "news@example.org", "-t", "reader@example.org"]);
    }
    command.args(["-m", &mails.to_string(), &format!("inet:{to}")]);
    let _turn = context.progress.peer_turn("smtp-source");
    let started = Instant::now();
    run(&mut command, "smtp-source", TIMEOUT).await?;
    Ok(Some(mails as f64 / started.elapsed().as_secs_f64()))
}

/// Sync servers for offline devices, as `bench/peers/sync` runs them.
pub const SYNC_SERVERS: [&str; 2] = ["pouchdb-server", "kinto"];

/// Runs one of these servers with 800 devices that start at once (32 if quick). Returns rows/s; `None` if it is not set
/// up, fails, does not finish within ten minutes, or a device misses rows.
pub async fn sync_server(context: &Context, name: &str) -> Option<f64> {
    if !context.peers_folder.join("bin/sync_load").is_file() {
        context.log(format_args!("   {name} is missing: `bench/peers/sync/setup.sh` sets it up"));
        return None;
    }
    let mut command = tokio::process::Command::new(context.peers_source.join("sync/run.sh"));
    command.args(context.quick.then_some("quick")).arg(name).env("ROUNDS", "1").env("PEERS_DIR", &context.peers_folder);
    let _turn = context.progress.peer_turn(name);
    let text = match run(&mut command, name, TIMEOUT).await {
        Ok(text) => text,
        Err(failure) => {
            context.log(format_args!("   not measured: {failure}"));
            return None;
        }
    };
    let printed = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = printed.filter(|line| line["work"] == "sync.rows").find_map(|line| line["value"].as_f64());
    if found.is_none() {
        context.log(format_args!("   {name} printed no rate: run `bench/peers/sync/run.sh {name}` for the reason"));
    }
    found
}

/// Writes this many bytes into this folder with dd, in blocks of 1 MiB with one sync. Returns bytes/s; `None` if it is
/// missing.
///
/// # Errors
/// If dd fails.
pub async fn dd(context: &Context, folder: &Path, bytes: u64) -> Outcome<Option<f64>> {
    let Some(program) = context.program("dd") else { return Ok(None) };
    let file = folder.join("dd");
    let mut command = tokio::process::Command::new(program);
    command.args(["if=/dev/zero", "bs=1M", "iflag=count_bytes", "conv=fdatasync", &format!("count={bytes}")]);
    command.arg(format!("of={}", file.display()));
    let _turn = context.progress.peer_turn("dd");
    let started = Instant::now();
    let done = run(&mut command, "dd", TIMEOUT).await;
    let seconds = started.elapsed().as_secs_f64();
    let _ = fs::remove_file(&file);
    done.map(|_| Some(bytes as f64 / seconds))
}

/// Bare prototype of the stock matching: no parsing, no updates, no rules; the upper bound set by memory.
pub struct StockPrototype {
    program: PathBuf,
    data: PathBuf,
}

impl StockPrototype {
    /// Builds the prototype and its data if needed; `None` if that fails.
    pub async fn prepare(context: &Context, subscribers: u32) -> Option<Self> {
        match Self::try_prepare(context, subscribers).await {
            Ok(limit) => Some(limit),
            Err(failure) => {
                context.log(format_args!("   the bare prototype cannot run: {failure}"));
                None
            }
        }
    }

    async fn try_prepare(context: &Context, subscribers: u32) -> Outcome<Self> {
        let program = rust_program(context, "limit", "stock").await?;
        let data = generated(context, "stock", &[subscribers, 5, 10]).await?;
        Ok(StockPrototype { program, data })
    }

    /// Runs one round over ten batches on one thread with this many copies of the subscriptions. Returns matches/s and
    /// the matches of ten batches.
    ///
    /// # Errors
    /// If the prototype fails.
    pub async fn round(&self, copies: u32) -> Outcome<(f64, u64)> {
        let mut command = tokio::process::Command::new(&self.program);
        command.arg("--data").arg(&self.data).args(["--rounds", "1"]);
        command.args(["--copies", &copies.to_string()]);
        let text = run(&mut command, "the bare prototype", TIMEOUT).await?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let found = lines
            .filter(|line| line["mode"] == "ids" && line["threads"] == 1)
            .find_map(|line| Some((line["median"].as_f64()?, line["matches"].as_u64()?)));
        found.ok_or_else(|| {
            Failure::failed("cannot parse the output of the bare prototype").detail(text.trim().to_owned())
        })
    }
}

/// Path of a program of a peer package, built if needed.
async fn rust_program(context: &Context, package: &str, name: &str) -> Outcome<PathBuf> {
    let target = context.peers_folder.join("target");
    let program = target.join("release").join(name);
    if !program.is_file() {
        let manifest = context.peers_source.join("Cargo.toml");
        if !manifest.is_file() {
            return Err(Failure::failed(format!(
                "its sources are not in {}; name them with --peers",
                context.peers_source.display()
            )));
        }
        let cargo = context.program("cargo").ok_or_else(|| Failure::failed("cargo is needed to build it"))?;
        context.log(format_args!("   building the peers' package `{package}`"));
        let mut command = tokio::process::Command::new(cargo);
        command.args(["build", "--quiet", "--release", "--locked", "-p", package, "--manifest-path"]);
        command.arg(manifest).arg("--target-dir").arg(&target);
        run(&mut command, "cargo", TIMEOUT).await?;
    }
    Ok(program)
}

/// Folder of a workload's data, generated if needed as `bench/peers/matching/run.py` does.
///
/// # Errors
/// If the data cannot be generated.
pub async fn generated(context: &Context, workload: &str, scale: &[u32]) -> Outcome<PathBuf> {
    let data = context.peers_folder.join("data").join(if context.quick { "quick" } else { "full" }).join(workload);
    if !data.join(".done").exists() {
        let mut command = tokio::process::Command::new(rust_program(context, "limit", "generate").await?);
        command.arg(workload).arg(&data).args(scale.iter().map(u32::to_string));
        run(&mut command, "the generator of the workload", TIMEOUT).await?;
        fs::write(data.join(".done"), "").map_err(|error| Failure::file("write to", &data, &error))?;
    }
    Ok(data)
}

/// Evaluates the filters of `n` subscribers one by one with the jmespath crate; distinct filters are precompiled.
/// Returns subscribers/s over all events and the number of matches; `None` if it cannot be built here.
///
/// # Errors
/// If the program fails.
pub async fn jmespath(context: &Context, filters: &Path, events: &Path, n: u32) -> Outcome<Option<(f64, u64)>> {
    let program = match rust_program(context, "engines", "expressions").await {
        Ok(program) => program,
        Err(failure) => {
            context.log(format_args!("   the jmespath crate cannot run: {failure}"));
            return Ok(None);
        }
    };
    let mut command = tokio::process::Command::new(program);
    command.args(["--engine", "jmespath", "--all", "1", "--n", &n.to_string()]);
    command.arg("--filters").arg(filters).arg("--events").arg(events);
    let _turn = context.progress.peer_turn("jmespath");
    let text = run(&mut command, "jmespath", TIMEOUT).await?;
    let line = text.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = line.and_then(|line| Some((line["median"].as_f64()?, line["matches"].as_u64()?)));
    found.map(Some).ok_or_else(|| {
        Failure::failed("cannot parse the output of the jmespath program").detail(text.trim().to_owned())
    })
}

/// Result of event-ruler.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRulerResult {
    /// Events per second: slowest, median and fastest round.
    pub per_second: [f64; 3],
    /// Number of patterns loaded within the time limit.
    pub patterns: u64,
    /// Heap bytes per pattern.
    pub bytes_each: f64,
    /// Number of events per round.
    pub events: u64,
    /// Number of matches of these events.
    pub matches: u64,
}

/// Runs event-ruler on `n` patterns of a file; events are flattened before its clock starts. `None` if it is not set
/// up.
///
/// # Errors
/// If event-ruler fails.
pub async fn event_ruler(
    context: &Context,
    patterns: &Path,
    events: &Path,
    n: usize,
) -> Outcome<Option<EventRulerResult>> {
    let jars = context.peers_folder.join("maven/event-ruler");
    if !jars.join("Patterns.class").is_file() {
        context.log("   event-ruler is missing: `bench/peers/matching/setup.sh` sets it up");
        return Ok(None);
    }
    let Some(java) = context.program("java") else { return Ok(None) };
    let mut command = tokio::process::Command::new(java);
    command.args(["-Xmx10g", "-XX:+UseParallelGC", "-XX:+ExitOnOutOfMemoryError", "-cp"]);
    command.arg(format!("{0}/*:{0}", jars.display())).arg("Patterns").arg(patterns).arg(events);
    command.args([&n.to_string(), "240", "flat"]);
    let _turn = context.progress.peer_turn("event-ruler");
    let text = run(&mut command, "event-ruler", TIMEOUT).await?;
    let printed = text.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let ruled = printed.as_ref().and_then(|line| {
        let number = |key: &str| line[key].as_f64();
        let patterns = line["n"].as_u64()?;
        Some(EventRulerResult {
            per_second: [number("low")?, number("median")?, number("high")?],
            patterns,
            bytes_each: number("mb")? * f64::from(1 << 20) / patterns.max(1) as f64,
            events: line["events"].as_u64()?,
            matches: line["matches"].as_u64()?,
        })
    });
    ruled
        .map(Some)
        .ok_or_else(|| Failure::failed("cannot parse the output of event-ruler").detail(text.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "Running 1s test @ http://127.0.0.1:45999/notify
  2 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   723.93us  430.27us   9.70ms   92.05%
    Req/Sec    45.53k     3.13k   50.60k    61.90%
  Latency Distribution
     50%  650.00us
     75%  823.00us
     90%    1.10ms
     99%    2.15ms
  95133 requests in 1.10s, 17.60MB read
Requests/sec:  86485.85
Transfer/sec:     16.00MB
";

    #[test]
    fn the_output_of_wrk_is_parsed() {
        let load = parse_wrk(PRINTED).expect("understood");
        assert_eq!(load, WrkResult { requests: 95_133, per_second: 86_485.85, p50_ms: 0.65, p99_ms: 2.15 });
        let refused = PRINTED.replace("Requests/sec", "  Non-2xx or 3xx responses: 17\nRequests/sec");
        assert_eq!(parse_wrk(&refused).expect_err("refused").message, "17 responses were not 2xx");
        assert!(!parse_wrk("").expect_err("unknown").message.is_empty());
    }
}
