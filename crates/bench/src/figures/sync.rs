//! Figures `sync.*`: devices that upload edits and download rows, all at once or repeatedly.

use std::{io::Write, time::Instant};

use futures_util::future::try_join_all;
use reqwest::{Method, header::CONTENT_TYPE};
use serde_json::{Value, json};
use tocsin_model::replica::Begin;
use tocsin_replica::{Link, LinkError, ServerCredentials, http::HttpLink};

use super::accept_single;
use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::{Context, Scratch},
        figure::{Figure, Samples, rounded},
        peers::{SYNC_SERVERS, sync_server},
        resource_usage::CostMeter,
        server::Server,
    },
};

/// Storm: all devices at once.
pub const STORM: Bench = Bench {
    name: "sync.storm800",
    about: "seconds until the last of 800 devices that start at once is done, 600 edits and 600 rows each",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(storm(context)) },
};

/// Workload of the peers.
pub const ROWS: Bench = Bench {
    name: "sync.rows",
    about: "rows/s of 800 devices at once, 50 edits and 200 rows each; peers: pouchdb-server, Kinto",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(rows(context)) },
};

/// Size of a session.
#[derive(Debug, Clone, Copy)]
pub struct SessionSize {
    /// Uploaded edits.
    pub up: usize,
    /// Downloaded rows.
    pub down: usize,
    /// Bytes of a row's text.
    text: usize,
    /// Whether the texts are words; texts of one repeated letter compress to nothing.
    has_words: bool,
}

/// Equal upload and download, rows of about 116 bytes.
pub const HALVES: SessionSize = SessionSize { up: 600, down: 600, text: 90, has_words: false };

/// Equal upload and download, with rows of words.
pub(crate) const HALVES_OF_WORDS: SessionSize = SessionSize { has_words: true, ..HALVES };

/// Small session of a device that was offline for a moment.
pub(crate) const FEW: SessionSize = SessionSize { up: 30, down: 0, text: 90, has_words: false };

/// Session of the peers' drivers; their rows have about 230 bytes.
const AS_PEERS: SessionSize = SessionSize { up: 50, down: 200, text: 200, has_words: false };

const DEFINITION: &str = "
application: field
collections:
  rows:
    fields: { owner: { type: string, required: true }, text: string, turn: integer }
    partition:
      - match: { owner: subscriber.id }
  shared:
    fields: { owner: { type: string, required: true }, text: string, turn: integer }
    partition: everyone
";

impl SessionSize {
    /// Bytes of a session: each row has about 26 bytes besides its text.
    pub fn bytes(self) -> f64 {
        ((self.up + self.down) * (self.text + 26)) as f64
    }

    /// Text of a row: this letter repeated, or the words of this number.
    fn text_of(self, letter: &str, number: usize) -> String {
        match self.has_words {
            true => accept_single::words(&mut fastrand::Rng::with_seed(number as u64), self.text),
            false => letter.repeat(self.text),
        }
    }
}

/// Server with its devices.
pub struct SyncServer {
    /// Server under test.
    pub server: Server,
    pub(super) devices: Vec<Device>,
    size: SessionSize,
    /// Rows are changed in each turn, so that there are rows to download.
    turn: usize,
    _folder: Scratch,
}

/// Device that stores nothing but its cursor.
pub(crate) struct Device {
    owner: String,
    link: HttpLink,
    http: reqwest::Client,
    token: String,
    size: SessionSize,
    cursor: Option<String>,
    edits: u64,
    /// Whether it edits rows that others edit too.
    edits_shared: bool,
}

/// Result of a session.
#[derive(Default)]
pub struct Session {
    pub(super) seconds: f64,
    pub(super) received: usize,
    /// Number of "retry later" responses.
    retries: usize,
    /// Number of connection failures.
    pub(super) failures: usize,
    /// Edits that conflicted with others.
    pub(super) conflicts: usize,
}

impl SyncServer {
    /// Starts a server with `count` new devices.
    ///
    /// # Errors
    /// If the server rejects a request.
    pub async fn prepare(context: &Context, count: usize, size: SessionSize) -> Outcome<SyncServer> {
        SyncServer::prepare_with(context, count, size, &[]).await
    }

    /// Starts a server with additional environment variables.
    ///
    /// # Errors
    /// If the server rejects a request.
    pub async fn prepare_with(
        context: &Context,
        count: usize,
        size: SessionSize,
        variables: &[(&str, &str)],
    ) -> Outcome<SyncServer> {
        let folder = context.folder()?;
        let server = Server::start_with(context, folder.path(), variables).await?;
        let devices = devices_of(&server, count, size).await?;
        Ok(SyncServer { server, devices, size, turn: 0, _folder: folder })
    }

    /// Changes the rows that the devices will download.
    ///
    /// # Errors
    /// If the server rejects a row.
    pub async fn change_rows(&mut self) -> Outcome {
        self.turn += 1;
        for device in &self.devices {
            let line = |row: usize| {
                let text = self.size.text_of("x", self.turn * self.size.down + row);
                let row = json!({"id": format!("{}-down-{row}", device.owner), "row": {"owner": device.owner, "text": text, "turn": self.turn}});
                format!("{row}\n")
            };
            let path = "/v1/applications/field/collections/rows/rows";
            let request = self.server.client().request(Method::POST, path).header(CONTENT_TYPE, "application/x-ndjson");
            self.server.client().send(request.body((0..self.size.down).map(line).collect::<String>())).await?;
        }
        Ok(())
    }

    /// Connects the devices through another port of this machine.
    pub fn use_port(&mut self, port: u16) {
        for device in &mut self.devices {
            device.link = link_to(&device.http, port, &device.token);
        }
    }

    /// Runs one session of every device concurrently. Returns the sessions and the seconds until the last one is done.
    ///
    /// # Errors
    /// If a device is refused, or does not get all rows.
    pub async fn all_at_once(&mut self) -> Outcome<(Vec<Session>, f64)> {
        let (turn, started) = (self.turn, Instant::now());
        let sessions = try_join_all(self.devices.iter_mut().map(|device| device.session(turn))).await?;
        Ok((sessions, started.elapsed().as_secs_f64()))
    }
}

/// Creates the collections and devices on a server.
///
/// # Errors
/// If the server rejects a request.
pub(crate) async fn devices_of(server: &Server, count: usize, size: SessionSize) -> Outcome<Vec<Device>> {
    server.apply("field", DEFINITION).await?;
    let subscribers = move |out: &mut crate::server::ChunkWriter| {
        (0..count).try_for_each(|number| writeln!(out, "{{\"id\":\"d{number}\"}}"))
    };
    server.import_subscribers(subscribers).await?;
    let http = reqwest::Client::builder().pool_max_idle_per_host(count).build();
    let http = http.map_err(|error| Failure::failed("no client for the devices").because(&error))?;
    let mut devices = Vec::new();
    for number in 0..count {
        let owner = format!("d{number}");
        let new = json!({"application": "field", "subscriber": owner, "name": "bench"});
        let made = server.client().post("/v1/sync/devices", &new).await?;
        let token = made["token"].as_str().unwrap_or_default().to_owned();
        let link = link_to(&http, server.port, &token);
        let http = http.clone();
        devices.push(Device { owner, link, http, token, size, cursor: None, edits: 0, edits_shared: false });
    }
    Ok(devices)
}

fn link_to(http: &reqwest::Client, port: u16, token: &str) -> HttpLink {
    let home = ServerCredentials { url: format!("http://127.0.0.1:{port}"), token: token.to_owned() };
    HttpLink::new(http.clone(), &home)
}

impl Device {
    async fn session(&mut self, turn: usize) -> Outcome<Session> {
        let (started, mut retries, mut received) = (Instant::now(), 0, 0);
        let begin = Begin { cursor: self.cursor.clone(), wiped: false, edits: None };
        let begun = with_retries(&mut retries, || self.link.begin(&begin)).await?;
        let edits = self.block(turn);
        let uploaded = with_retries(&mut retries, || self.link.upload(&begun.session, edits.clone())).await?;
        self.edits += self.size.up as u64;
        if uploaded.uploaded != self.edits || !uploaded.refused.is_empty() {
            return Err(Failure::failed(format!("{}: {} edits were sent, {uploaded:?}", self.owner, self.edits)));
        }
        let mut cursor = begun.cursor;
        loop {
            let block = with_retries(&mut retries, || self.link.download(&begun.session, &cursor)).await?;
            let mut lines: Vec<&[u8]> = block.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
            let last: Value = lines.pop().and_then(|line| serde_json::from_slice(line).ok()).unwrap_or_default();
            received += lines.len();
            cursor = last["cursor"].as_str().unwrap_or_default().to_owned();
            if last["more"] != true {
                break;
            }
        }
        with_retries(&mut retries, || self.link.end(&begun.session)).await?;
        self.cursor = Some(cursor);
        let down = self.size.down;
        if received < down {
            return Err(Failure::failed(format!("{} received {received} rows; expected {down}", self.owner)));
        }
        Ok(Session { seconds: started.elapsed().as_secs_f64(), received, retries, ..Session::default() })
    }

    /// Makes it edit the shared rows.
    pub(super) fn edit_shared(&mut self) {
        self.edits_shared = true;
    }

    /// Session that edits the same rows as the previous one and downloads them again. The connection breaks after a
    /// response with this probability; then the session restarts until it is complete.
    pub(crate) async fn round(&mut self, breaks: f64) -> Outcome<Session> {
        let (started, mut session) = (Instant::now(), Session::default());
        let (edits, upto) = (self.same_rows(), self.edits + self.size.up as u64);
        let is_broken = || fastrand::f64() < breaks;
        'anew: loop {
            let begin = Begin { cursor: self.cursor.clone(), wiped: false, edits: None };
            let begun = with_retries(&mut session.retries, || self.link.begin(&begin)).await?;
            if is_broken() {
                session.failures += 1;
                continue;
            }
            // Edits that arrived before the connection broke are skipped.
            let sent = with_retries(&mut session.retries, || self.link.upload(&begun.session, edits.clone())).await?;
            if sent.uploaded != upto || !sent.refused.is_empty() {
                return Err(Failure::failed(format!("{}: edits up to {upto} were sent, {sent:?}", self.owner)));
            }
            session.conflicts += sent.conflicts.len();
            if is_broken() {
                session.failures += 1;
                continue;
            }
            let mut cursor = begun.cursor;
            loop {
                let read = || self.link.download(&begun.session, &cursor);
                let block = with_retries(&mut session.retries, read).await?;
                let mut lines: Vec<&[u8]> =
                    block.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
                let last: Value = lines.pop().and_then(|line| serde_json::from_slice(line).ok()).unwrap_or_default();
                session.received += lines.len();
                cursor = last["cursor"].as_str().unwrap_or_default().to_owned();
                self.cursor = Some(cursor.clone());
                if last["more"] != true {
                    break;
                }
                if is_broken() {
                    session.failures += 1;
                    continue 'anew;
                }
            }
            with_retries(&mut session.retries, || self.link.end(&begun.session)).await?;
            break;
        }
        self.edits = upto;
        session.seconds = started.elapsed().as_secs_f64();
        Ok(session)
    }

    fn same_rows(&self) -> Vec<u8> {
        let (collection, of) = if self.edits_shared { ("shared", "all") } else { ("rows", self.owner.as_str()) };
        let edit = |row: usize| {
            let n = self.edits + row as u64 + 1;
            let text = self.size.text_of("z", n as usize);
            // Identical edits would not conflict.
            let own: String = self.owner.chars().chain(text.chars().skip(self.owner.chars().count())).collect();
            let text = if self.edits_shared { own } else { text };
            json!({
                "n": n, "collection": collection, "id": format!("{of}-{row}"), "base": "0", "seen": "0",
                "set": {"owner": of, "text": text, "turn": n},
            })
        };
        (0..self.size.up).map(|row| format!("{}\n", edit(row))).collect::<String>().into_bytes()
    }

    /// New rows each time, so that no edit conflicts.
    fn block(&self, turn: usize) -> Vec<u8> {
        let edit = |row: usize| {
            let text = self.size.text_of("y", turn * self.size.up + row);
            json!({
                "n": self.edits + row as u64 + 1, "collection": "rows", "id": format!("{}-up-{turn}-{row}", self.owner),
                "base": "0", "seen": "0", "set": {"owner": self.owner, "text": text, "turn": turn},
            })
        };
        (0..self.size.up).map(|row| format!("{}\n", edit(row))).collect::<String>().into_bytes()
    }
}

/// Retries as long as the server responds "retry later".
async fn with_retries<T, Asked: Future<Output = Result<T, LinkError>>>(
    retries: &mut usize,
    mut ask: impl FnMut() -> Asked,
) -> Outcome<T> {
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(LinkError::Busy(wait)) => {
                *retries += 1;
                tokio::time::sleep(wait).await;
            }
            Err(error) => return Err(Failure::failed(format!("a device could not sync: {error:?}"))),
        }
    }
}

async fn storm(context: &Context) -> Outcome<Figure> {
    let count = context.size(800, 20);
    let mut field = SyncServer::prepare(context, count, HALVES).await?;
    let (mut ours, mut conditions) = (Samples::default(), Vec::new());
    for _ in context.turns() {
        field.change_rows().await?;
        let (sessions, seconds) = field.all_at_once().await?;
        ours.push(seconds);
        conditions.push(fairness(&sessions));
    }
    Ok(Figure::new("s", ours).with_condition(described(count, HALVES)).with_condition(conditions.join("; ")))
}

fn described(count: usize, size: SessionSize) -> String {
    let SessionSize { up, down, text, .. } = size;
    format!(
        "{count} devices at once, {up} edits up and at least {down} rows down each, about {} bytes a row",
        text + 26
    )
}

/// Longest and mean session, and the number of "retry later" responses.
fn fairness(sessions: &[Session]) -> String {
    let times: Vec<f64> = sessions.iter().map(|session| session.seconds).collect();
    let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
    let longest = times.iter().copied().fold(0.0, f64::max);
    let away: usize = sessions.iter().map(|session| session.retries).sum();
    let received: usize = sessions.iter().map(|session| session.received).sum();
    format!(
        "sessions longest {} s, mean {} s, {} retries requested, {received} rows received",
        rounded(longest, 3),
        rounded(mean, 3),
        away
    )
}

/// Alternates with the peers. A session also returns the device's own edits, which no peer sends, so only the planned
/// rows are counted.
async fn rows(context: &Context) -> Outcome<Figure> {
    let count = context.size(800, 32);
    let mut field = SyncServer::prepare(context, count, AS_PEERS).await?;
    field.change_rows().await?;
    field.all_at_once().await?;
    let carried = (count * (AS_PEERS.up + AS_PEERS.down)) as f64;
    let (mut ours, mut conditions, mut tally) = (Samples::default(), Vec::new(), CostMeter::of(&field.server));
    let mut peers: Vec<(&str, Samples)> = SYNC_SERVERS.map(|name| (name, Samples::default())).into();
    let mut slower = Vec::new();
    for _ in context.turns() {
        field.change_rows().await?;
        tally.begin();
        let (sessions, seconds) = field.all_at_once().await?;
        tally.end(carried);
        ours.push(carried / seconds);
        conditions.push(fairness(&sessions));
        for (name, samples) in &mut peers {
            samples.extend(sync_server(context, name).await);
        }
        // A peer takes minutes, so only the best of the first turn runs again.
        peers.sort_by(|one, other| other.1.median().total_cmp(&one.1.median()));
        for (name, samples) in peers.split_off(1) {
            let rate =
                if samples.is_empty() { "not measured".to_owned() } else { rounded(samples.median(), 4).to_string() };
            slower.push(format!("{name} {rate}"));
        }
    }
    let (name, best) = peers.pop().expect("there is at least one peer");
    Ok(Figure::new("rows/s", ours)
        .with_peer(name, best)
        .with_cost(tally.counts())
        .with_condition(described(count, AS_PEERS))
        .with_condition(conditions.join("; "))
        .with_condition(format!("only in the first turn: {}", slower.join(", "))))
}
