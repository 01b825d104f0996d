//! Convergence under random edits of several devices, with failing links and server crashes: at the end every replica
//! equals its part of the server, and no acknowledged edit is lost.
//!
//! `SEED` repeats a case, `TOCSIN_CASES` sets the number of cases, and `TOCSIN_CLIENTS` the maximum devices (needed to
//! repeat a case, too).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fastrand::Rng;
use serde_json::{Value as Json, json};
use tocsin_replica::Replica;
use tocsin_sync::rows::RowChange;

use crate::fixture::{Faults, Phone, SyncFixture, object};

const RESOLVERS: [&str; 6] =
    ["server", "client", "first", "last", "last", "{ predicate: \"event.client.text > event.server.text\" }"];
const TEAMS: [&str; 3] = ["red", "green", "blue"];
const IDS: usize = 24;

fn definition(random: &mut Rng) -> String {
    let track = if random.bool() { "row" } else { "column" };
    let resolver = random.choice(RESOLVERS).expect("there are some");
    let merge = if random.bool() { ", text: merge" } else { "" };
    format!(
        "application: shop\ncollections:\n  notes:\n    fields: {{ owner: string, team: string, text: string, high: integer, total: integer }}\n\
         \x20   may_leave: {}\n    partition:\n      - match: {{ owner: subscriber.id }}\n      - match: {{ team: attributes.teams }}\n\
         \x20   conflicts: {{ track: {track}, resolver: {resolver}, fields: {{ total: sum, high: max{merge} }} }}\n",
        random.bool()
    )
}

/// Rows visible to a subscriber, computed independently.
fn is_of(row: &Json, subscriber: &str, teams: &BTreeSet<&str>) -> bool {
    row["owner"] == subscriber || row["team"].as_str().is_some_and(|team| teams.contains(team))
}

struct Actor {
    phone: Phone,
    subscriber: String,
}

struct Simulation {
    fixture: SyncFixture,
    actors: Vec<Actor>,
    teams: BTreeMap<String, BTreeSet<&'static str>>,
    random: Rng,
    removed: BTreeSet<String>,
    /// Sum added to the counters of permanent rows that all devices see.
    added: BTreeMap<String, i64>,
    made: usize,
}

impl Simulation {
    async fn new(seed: u64) -> Simulation {
        let mut random = Rng::with_seed(seed);
        let fixture = SyncFixture::new(&definition(&mut random)).await;
        let (mut actors, mut teams) = (Vec::new(), BTreeMap::new());
        let most = usize::try_from(number("TOCSIN_CLIENTS").unwrap_or(8)).expect("few").max(3);
        for at in 0..random.usize(3..=most) {
            let subscriber = format!("s{}", at / 2);
            if !teams.contains_key(&subscriber) {
                let own: BTreeSet<&str> = TEAMS.into_iter().filter(|_| random.bool()).collect();
                fixture.subscriber(&subscriber, json!({"teams": own, "all": true})).await;
                teams.insert(subscriber.clone(), own);
            }
            let phone = Phone::new(&fixture, &subscriber).await;
            actors.push(Actor { phone, subscriber });
        }
        let mut simulation =
            Simulation { fixture, actors, teams, random, removed: BTreeSet::new(), added: BTreeMap::new(), made: 0 };
        for at in 0..IDS {
            let row = simulation.new_row();
            simulation.fixture.put("notes", &format!("n{at}"), row).await;
        }
        for subscriber in simulation.teams.keys().cloned().collect::<Vec<_>>() {
            let id = format!("counter-{subscriber}");
            simulation.fixture.put("notes", &id, json!({"owner": subscriber, "total": 0})).await;
            simulation.added.insert(id, 0);
        }
        simulation
    }

    fn new_row(&mut self) -> Json {
        let owner = format!("s{}", self.random.usize(0..4));
        json!({"owner": owner, "team": self.random.choice(TEAMS), "text": self.text(), "total": 0, "high": 0})
    }

    fn text(&mut self) -> String {
        let words = ["milk", "bread", "eggs", "tea", "salt"];
        (0..self.random.usize(1..5))
            .map(|_| *self.random.choice(words.iter()).expect("words"))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// A device edits its file, online or offline.
    fn edit(&mut self, at: usize) {
        if self.actors[at].phone.replica.shapes().expect("read").is_empty() {
            return;
        }
        let text = self.text();
        let number = self.random.i64(1..50);
        let (subscriber, made) = (self.actors[at].subscriber.clone(), self.made);
        let ids: Vec<String> =
            self.actors[at].phone.ids("notes").into_iter().filter(|id| !id.starts_with("counter")).collect();
        let counter = format!("counter-{subscriber}");
        let team = self.random.choice(TEAMS).expect("teams");
        let sql = match (self.random.u8(0..10), self.random.choice(&ids)) {
            (0 | 1, _) => {
                self.made += 1;
                format!(
                    "INSERT INTO notes (id, owner, text, total) VALUES ('m{made}', '{subscriber}', '{text}', {number})"
                )
            }
            (2, Some(id)) => format!("DELETE FROM notes WHERE id = '{id}'"),
            (3, Some(id)) => format!("UPDATE notes SET team = '{team}' WHERE id = '{id}'"),
            (4, Some(id)) => format!("UPDATE notes SET high = {number} WHERE id = '{id}'"),
            (5 | 6, _) if self.actors[at].phone.ids("notes").contains(&counter) => {
                *self.added.get_mut(&counter).expect("there") += number;
                format!("UPDATE notes SET total = total + {number} WHERE id = '{counter}'")
            }
            (_, Some(id)) => {
                format!("UPDATE notes SET text = '{text}', total = coalesce(total, 0) + 1 WHERE id = '{id}'")
            }
            _ => return,
        };
        self.actors[at].phone.run(&sql);
    }

    /// The API writes rows, or subscribers join and leave teams.
    async fn write_on_the_server(&mut self) {
        let id = format!("n{}", self.random.usize(0..IDS));
        match self.random.u8(0..6) {
            0 => {
                self.fixture.change("notes", &id, RowChange::Remove).await;
                self.removed.insert(id);
            }
            1 => {
                let subscriber = format!("s{}", self.random.usize(0..self.teams.len()));
                let own: BTreeSet<&str> = TEAMS.into_iter().filter(|_| self.random.bool()).collect();
                self.fixture.subscriber(&subscriber, json!({"teams": own})).await;
                self.teams.insert(subscriber, own);
            }
            _ if self.fixture.row("notes", &id).await.is_some() => {
                let team = self.random.choice(TEAMS);
                let text = self.text();
                self.fixture.change("notes", &id, RowChange::Patch(object(json!({"team": team, "text": text})))).await;
            }
            _ => {}
        }
    }

    /// A device is online for a while; the link may fail at any call.
    async fn connect(&mut self, at: usize, chance: f64) {
        let seed = self.random.u64(..);
        let actor = &mut self.actors[at];
        let link = self.fixture.link(&actor.phone.token);
        *link.faults.lock().expect("not poisoned") = Faults { chance, random: Some(Rng::with_seed(seed)) };
        let done = actor.phone.replica.sync(&link, &mut |_| ()).await;
        let sent = std::mem::take(&mut *link.sent.lock().expect("not poisoned"));
        // The rows just received must belong to the device, since nothing was written meanwhile.
        let teams = &self.teams[&actor.subscriber];
        for (_, id, _, body) in sent.iter().filter(|(_, _, _, body)| body.is_some()) {
            let body = Json::Object(body.clone().expect("there"));
            assert!(is_of(&body, &actor.subscriber, teams), "{id} was sent to {}: {body}", actor.subscriber);
        }
        assert!(chance > 0.0 || done.is_ok(), "{done:?}");
    }

    /// The program on a device crashes and restarts.
    fn crash(&mut self, at: usize) {
        let path = self.actors[at].phone.path.clone();
        self.actors[at].phone.replica = Replica::open(&path).expect("opens");
    }

    async fn check(&mut self) {
        for _ in 0..2 {
            for at in 0..self.actors.len() {
                self.connect(at, 0.0).await;
            }
        }
        let all = self.fixture.rows("notes").await;
        for actor in &self.actors {
            let teams = &self.teams[&actor.subscriber];
            let mut expected = all.clone();
            expected.retain(|_, row| is_of(row, &actor.subscriber, teams));
            assert_eq!(actor.phone.rows("notes"), expected, "the replica of {}", actor.subscriber);
        }
        for id in &self.removed {
            assert!(!all.contains_key(id), "{id} came back");
        }
        for (id, added) in &self.added {
            assert_eq!(all[id]["total"], *added, "what was added to {id}");
        }
    }
}

/// A number from an environment variable.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

async fn run(seed: u64, steps: usize) {
    let mut simulation = Simulation::new(seed).await;
    for _ in 0..steps {
        let at = simulation.random.usize(0..simulation.actors.len());
        simulation.fixture.pass(Duration::from_millis(simulation.random.u64(0..5_000)));
        match simulation.random.u8(0..20) {
            0..=8 => simulation.edit(at),
            9..=12 => {
                let chance = *simulation.random.choice(&[0.0, 0.1, 0.3]).expect("some");
                simulation.connect(at, chance).await;
            }
            13 => simulation.crash(at),
            14 if simulation.random.bool() => simulation.fixture = simulation.fixture.restart().await,
            _ => simulation.write_on_the_server().await,
        }
    }
    simulation.check().await;
}

#[tokio::test]
async fn replicas_converge_to_their_parts() {
    let seeds = match number("SEED") {
        Some(seed) => vec![seed],
        None => (0..number("TOCSIN_CASES").unwrap_or(4)).map(|_| fastrand::u64(..)).collect(),
    };
    for seed in seeds {
        println!("SEED={seed}");
        run(seed, 250).await;
    }
}
