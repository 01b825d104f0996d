//! Devices that bring edits and take rows: all in the same second, or again and again.

use std::{io::Write, time::Instant};

use futures_util::future::try_join_all;
use reqwest::{Method, header::CONTENT_TYPE};
use serde_json::{Value, json};
use tocsin_model::replica::Begin;
use tocsin_replica::{Home, Link, LinkError, http::HttpLink};

use super::{Bench, Measuring, accept_single};
use crate::{
    bench::{
        context::{Context, Scratch},
        figure::{Figure, Samples, rounded},
        peers::{SYNC_SERVERS, sync_server},
        probe::Tally,
        server::Server,
    },
    failure::{Failure, Outcome},
};

/// All at once.
pub const STORM: Bench = Bench {
    name: "sync.storm800",
    about: "seconds until the slowest of 800 devices is done that all begin at once, 600 edits and 600 rows each",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(storm(context)) },
};

/// The work of the peers.
pub const ROWS: Bench = Bench {
    name: "sync.rows",
    about: "rows/s of 800 devices at once, 50 edits and 200 rows each; peers: pouchdb-server, Kinto",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(rows(context)) },
};

/// What a device carries in a session.
#[derive(Debug, Clone, Copy)]
pub struct Errand {
    /// Edits that go up.
    pub up: usize,
    /// Rows that come down.
    pub down: usize,
    /// Bytes of a row's text.
    text: usize,
    /// Whether the texts are words; those of one letter pack to next to nothing.
    has_words: bool,
}

/// Half of the rows go up, half come down, each of about 116 bytes.
pub const HALVES: Errand = Errand { up: 600, down: 600, text: 90, has_words: false };

/// The same with rows of words, as people write them.
pub(in crate::bench) const HALVES_OF_WORDS: Errand = Errand { has_words: true, ..HALVES };

/// What somebody brings who has been away for a moment.
pub(in crate::bench) const FEW: Errand = Errand { up: 30, down: 0, text: 90, has_words: false };

/// What the drivers of the peers carry; their rows have about 230 bytes.
const AS_PEERS: Errand = Errand { up: 50, down: 200, text: 200, has_words: false };

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

impl Errand {
    /// Bytes that a session carries: each row has some 26 beside its text.
    pub fn bytes(self) -> f64 {
        ((self.up + self.down) * (self.text + 26)) as f64
    }

    /// The text of a row: of this letter, or the words of this number.
    fn text_of(self, letter: &str, number: usize) -> String {
        match self.has_words {
            true => accept_single::words(&mut fastrand::Rng::with_seed(number as u64), self.text),
            false => letter.repeat(self.text),
        }
    }
}

/// A server and its devices.
pub struct Field {
    /// The server.
    pub server: Server,
    pub(super) devices: Vec<Device>,
    errand: Errand,
    /// Rows are changed in each turn, so that there is something to take.
    turn: usize,
    _folder: Scratch,
}

/// A device that keeps nothing but its place.
pub(in crate::bench) struct Device {
    owner: String,
    link: HttpLink,
    http: reqwest::Client,
    token: String,
    errand: Errand,
    cursor: Option<String>,
    edits: u64,
    /// Whether it edits the rows that others edit too.
    meets_others: bool,
}

/// What a session came to.
#[derive(Default)]
pub struct Session {
    pub(super) seconds: f64,
    pub(super) taken: usize,
    /// How often it was told to come again.
    sent_away: usize,
    /// How often its link broke.
    pub(super) broken: usize,
    /// Edits that met others.
    pub(super) met: usize,
}

impl Field {
    /// With so many devices that have nothing yet.
    ///
    /// # Errors
    /// The server refuses something.
    pub async fn prepare(context: &Context, count: usize, errand: Errand) -> Outcome<Field> {
        Field::prepare_with(context, count, errand, &[]).await
    }

    /// The same on a server with variables of its own.
    ///
    /// # Errors
    /// The server refuses something.
    pub async fn prepare_with(
        context: &Context,
        count: usize,
        errand: Errand,
        variables: &[(&str, &str)],
    ) -> Outcome<Field> {
        let folder = context.folder()?;
        let server = Server::start_with(context, folder.path(), variables).await?;
        let devices = devices_of(&server, count, errand).await?;
        Ok(Field { server, devices, errand, turn: 0, _folder: folder })
    }

    /// Changes the rows that devices will take.
    ///
    /// # Errors
    /// The server refuses a row.
    pub async fn change_rows(&mut self) -> Outcome {
        self.turn += 1;
        for device in &self.devices {
            let line = |row: usize| {
                let text = self.errand.text_of("x", self.turn * self.errand.down + row);
                let row = json!({"id": format!("{}-down-{row}", device.owner), "row": {"owner": device.owner, "text": text, "turn": self.turn}});
                format!("{row}\n")
            };
            let path = "/v1/applications/field/collections/rows/rows";
            let request = self.server.client().request(Method::POST, path).header(CONTENT_TYPE, "application/x-ndjson");
            self.server.client().send(request.body((0..self.errand.down).map(line).collect::<String>())).await?;
        }
        Ok(())
    }

    /// Lets the devices come by another port of this machine.
    pub fn come_by(&mut self, port: u16) {
        for device in &mut self.devices {
            device.link = link_to(&device.http, port, &device.token);
        }
    }

    /// One session of every device, all at once. Gives the sessions, and the seconds until the last was done.
    ///
    /// # Errors
    /// A device was refused, or not told all that there is.
    pub async fn all_at_once(&mut self) -> Outcome<(Vec<Session>, f64)> {
        let (turn, started) = (self.turn, Instant::now());
        let sessions = try_join_all(self.devices.iter_mut().map(|device| device.session(turn))).await?;
        Ok((sessions, started.elapsed().as_secs_f64()))
    }
}

/// Brings the collections and so many devices into a server.
///
/// # Errors
/// The server refuses something.
pub(in crate::bench) async fn devices_of(server: &Server, count: usize, errand: Errand) -> Outcome<Vec<Device>> {
    server.apply("field", DEFINITION).await?;
    let subscribers = move |out: &mut crate::bench::server::Parts| {
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
        devices.push(Device { owner, link, http, token, errand, cursor: None, edits: 0, meets_others: false });
    }
    Ok(devices)
}

fn link_to(http: &reqwest::Client, port: u16, token: &str) -> HttpLink {
    let home = Home { url: format!("http://127.0.0.1:{port}"), token: token.to_owned() };
    HttpLink::new(http.clone(), &home)
}

impl Device {
    async fn session(&mut self, turn: usize) -> Outcome<Session> {
        let (started, mut sent_away, mut taken) = (Instant::now(), 0, 0);
        let begin = Begin { cursor: self.cursor.clone(), wiped: false, edits: None };
        let begun = patiently(&mut sent_away, || self.link.begin(&begin)).await?;
        let edits = self.block(turn);
        let uploaded = patiently(&mut sent_away, || self.link.upload(&begun.session, edits.clone())).await?;
        self.edits += self.errand.up as u64;
        if uploaded.uploaded != self.edits || !uploaded.refused.is_empty() {
            return Err(Failure::failed(format!("{}: {} edits were sent, {uploaded:?}", self.owner, self.edits)));
        }
        let mut cursor = begun.cursor;
        loop {
            let block = patiently(&mut sent_away, || self.link.download(&begun.session, &cursor)).await?;
            let mut lines: Vec<&[u8]> = block.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
            let last: Value = lines.pop().and_then(|line| serde_json::from_slice(line).ok()).unwrap_or_default();
            taken += lines.len();
            cursor = last["cursor"].as_str().unwrap_or_default().to_owned();
            if last["more"] != true {
                break;
            }
        }
        patiently(&mut sent_away, || self.link.end(&begun.session)).await?;
        self.cursor = Some(cursor);
        let down = self.errand.down;
        if taken < down {
            return Err(Failure::failed(format!("{} was told {taken} rows, and there are {down}", self.owner)));
        }
        Ok(Session { seconds: started.elapsed().as_secs_f64(), taken, sent_away, ..Session::default() })
    }

    /// It edits the same rows as others do that were told so.
    pub(super) fn meet_others(&mut self) {
        self.meets_others = true;
    }

    /// A session in which it edits the same rows as in the one before, and is given them back. Its link breaks after an answer
    /// by this chance; then it begins again, until it is done.
    pub(in crate::bench) async fn round(&mut self, breaks: f64) -> Outcome<Session> {
        let (started, mut session) = (Instant::now(), Session::default());
        let (edits, upto) = (self.same_rows(), self.edits + self.errand.up as u64);
        let is_broken = || fastrand::f64() < breaks;
        'anew: loop {
            let begin = Begin { cursor: self.cursor.clone(), wiped: false, edits: None };
            let begun = patiently(&mut session.sent_away, || self.link.begin(&begin)).await?;
            if is_broken() {
                session.broken += 1;
                continue;
            }
            // Edits that came before the link broke are passed over.
            let sent = patiently(&mut session.sent_away, || self.link.upload(&begun.session, edits.clone())).await?;
            if sent.uploaded != upto || !sent.refused.is_empty() {
                return Err(Failure::failed(format!("{}: edits up to {upto} were sent, {sent:?}", self.owner)));
            }
            session.met += sent.conflicts.len();
            if is_broken() {
                session.broken += 1;
                continue;
            }
            let mut cursor = begun.cursor;
            loop {
                let read = || self.link.download(&begun.session, &cursor);
                let block = patiently(&mut session.sent_away, read).await?;
                let mut lines: Vec<&[u8]> =
                    block.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
                let last: Value = lines.pop().and_then(|line| serde_json::from_slice(line).ok()).unwrap_or_default();
                session.taken += lines.len();
                cursor = last["cursor"].as_str().unwrap_or_default().to_owned();
                self.cursor = Some(cursor.clone());
                if last["more"] != true {
                    break;
                }
                if is_broken() {
                    session.broken += 1;
                    continue 'anew;
                }
            }
            patiently(&mut session.sent_away, || self.link.end(&begun.session)).await?;
            break;
        }
        self.edits = upto;
        session.seconds = started.elapsed().as_secs_f64();
        Ok(session)
    }

    fn same_rows(&self) -> Vec<u8> {
        let (collection, of) = if self.meets_others { ("shared", "all") } else { ("rows", self.owner.as_str()) };
        let edit = |row: usize| {
            let n = self.edits + row as u64 + 1;
            let text = self.errand.text_of("z", n as usize);
            // What all say alike would be no conflict.
            let own: String = self.owner.chars().chain(text.chars().skip(self.owner.chars().count())).collect();
            let text = if self.meets_others { own } else { text };
            json!({
                "n": n, "collection": collection, "id": format!("{of}-{row}"), "base": "0", "seen": "0",
                "set": {"owner": of, "text": text, "turn": n},
            })
        };
        (0..self.errand.up).map(|row| format!("{}\n", edit(row))).collect::<String>().into_bytes()
    }

    /// New rows each time, so that no edit meets another.
    fn block(&self, turn: usize) -> Vec<u8> {
        let edit = |row: usize| {
            let text = self.errand.text_of("y", turn * self.errand.up + row);
            json!({
                "n": self.edits + row as u64 + 1, "collection": "rows", "id": format!("{}-up-{turn}-{row}", self.owner),
                "base": "0", "seen": "0", "set": {"owner": self.owner, "text": text, "turn": turn},
            })
        };
        (0..self.errand.up).map(|row| format!("{}\n", edit(row))).collect::<String>().into_bytes()
    }
}

/// Comes again when it is told to.
async fn patiently<T, Asked: Future<Output = Result<T, LinkError>>>(
    sent_away: &mut usize,
    mut ask: impl FnMut() -> Asked,
) -> Outcome<T> {
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(LinkError::Busy(wait)) => {
                *sent_away += 1;
                tokio::time::sleep(wait).await;
            }
            Err(error) => return Err(Failure::failed(format!("a device could not synchronise: {error:?}"))),
        }
    }
}

async fn storm(context: &Context) -> Outcome<Figure> {
    let count = context.size(800, 20);
    let mut field = Field::prepare(context, count, HALVES).await?;
    let (mut ours, mut told) = (Samples::default(), Vec::new());
    for _ in context.turns() {
        field.change_rows().await?;
        let (sessions, seconds) = field.all_at_once().await?;
        ours.push(seconds);
        told.push(fairness(&sessions));
    }
    Ok(Figure::new("s", ours).under(described(count, HALVES)).under(told.join("; ")))
}

fn described(count: usize, errand: Errand) -> String {
    let Errand { up, down, text, .. } = errand;
    format!(
        "{count} devices at once, {up} edits up and at least {down} rows down each, about {} bytes a row",
        text + 26
    )
}

/// The longest, the mean, and how often devices were sent away.
fn fairness(sessions: &[Session]) -> String {
    let times: Vec<f64> = sessions.iter().map(|session| session.seconds).collect();
    let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
    let longest = times.iter().copied().fold(0.0, f64::max);
    let away: usize = sessions.iter().map(|session| session.sent_away).sum();
    let taken: usize = sessions.iter().map(|session| session.taken).sum();
    format!(
        "sessions longest {} s, mean {} s, {} times told to come again, {taken} rows told",
        rounded(longest, 3),
        rounded(mean, 3),
        away
    )
}

/// Ours and the peers take turns. What a session takes beyond the rows that others changed is its own edits given back,
/// which no peer tells; so only the errand's rows are counted.
async fn rows(context: &Context) -> Outcome<Figure> {
    let count = context.size(800, 32);
    let mut field = Field::prepare(context, count, AS_PEERS).await?;
    field.change_rows().await?;
    field.all_at_once().await?;
    let carried = (count * (AS_PEERS.up + AS_PEERS.down)) as f64;
    let (mut ours, mut told, mut tally) = (Samples::default(), Vec::new(), Tally::of(&field.server));
    let mut peers: Vec<(&str, Samples)> = SYNC_SERVERS.map(|name| (name, Samples::default())).into();
    let mut slower = Vec::new();
    for _ in context.turns() {
        field.change_rows().await?;
        tally.begin();
        let (sessions, seconds) = field.all_at_once().await?;
        tally.end(carried);
        ours.push(carried / seconds);
        told.push(fairness(&sessions));
        for (name, samples) in &mut peers {
            samples.extend(sync_server(context, name).await);
        }
        // One takes minutes, so only the best of the first turn runs again.
        peers.sort_by(|one, other| other.1.median().total_cmp(&one.1.median()));
        for (name, samples) in peers.split_off(1) {
            let rate = if samples.is_empty() { "no rate".to_owned() } else { rounded(samples.median(), 4).to_string() };
            slower.push(format!("{name} {rate}"));
        }
    }
    let (name, best) = peers.pop().expect("the best is kept");
    Ok(Figure::new("rows/s", ours)
        .beside(name, best)
        .counted(&tally)
        .under(described(count, AS_PEERS))
        .under(told.join("; "))
        .under(format!("in the first turn also {}", slower.join(", "))))
}
