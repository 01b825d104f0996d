//! SIGKILL during merges of subscribers: each merge is atomic, acknowledged ones are done, and the inbox follows at the
//! next start.

mod support;

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use support::Platform;
use tokio::sync::Semaphore;

const APPLICATION: &str = r#"
application: pings
events: { ping: { fields: { token: { type: string, required: true } } } }
subscriptions: { every: { fields: { place: { type: string } } } }
notifications:
  ping:
    fields: { token: string }
    content: { templates: { base: { subject: "ping {{ token }}" } } }
rules: { everyone: { on: ping, subscription: every, notify: ping } }
channels: { bell: { protocol: inbox, options: { retention: 1h }, retry: [1s, 1s, 5s] } }
"#;

/// Pairs per round, and number of concurrent clients.
const PAIRS: usize = 40;
const CLIENTS: usize = 4;

/// Address-only subscriber, and the account of the same person.
struct Pair {
    cookie: String,
    account: String,
}

/// State of a pair.
#[derive(Debug, Clone, PartialEq)]
struct State {
    /// Devices of both, by name; none if the subscriber is gone.
    devices: [Option<Vec<String>>; 2],
    city: Value,
    /// Owner of each subscription.
    subscriptions: BTreeMap<String, String>,
    /// Number of items in the inbox of each.
    items: [usize; 2],
}

impl Pair {
    async fn make(platform: &Platform, name: &str) -> Pair {
        let pair = Pair { cookie: format!("cookie-{name}"), account: format!("account-{name}") };
        let device = |address: &str| json!({"channel": "bell", "address": address});
        let cookie = json!({"id": pair.cookie, "attributes": {"city": "Wien"},
            "devices": {"main": device("its feed"), "spare": device("another")}});
        let account = json!({"id": pair.account, "devices": {"main": device("the feed")}});
        for body in [cookie, account] {
            let (status, answer) = platform.post("/v1/subscribers", &body).await;
            assert_eq!(status, 201, "{answer}");
        }
        // The last two are equal, so that one of them is removed.
        for (subscriber, place) in [(&pair.cookie, "a"), (&pair.cookie, "b"), (&pair.cookie, "c"), (&pair.account, "c")]
        {
            let body =
                json!({"application": "pings", "class": "every", "subscriber": subscriber, "values": {"place": place}});
            let (status, answer) = platform.post("/v1/subscriptions", &body).await;
            assert_eq!(status, 201, "{answer}");
        }
        pair
    }

    async fn state(&self, platform: &Platform) -> State {
        let (mut devices, mut items, mut subscriptions) = ([None, None], [0, 0], BTreeMap::new());
        let mut city = Value::Null;
        for (at, id) in [&self.cookie, &self.account].into_iter().enumerate() {
            let path = format!("/v1/subscribers/{id}");
            let answer = platform.request(reqwest::Method::GET, &path).send().await.expect("an answer");
            if answer.status() == 404 {
                continue;
            }
            let found: Value = answer.json().await.expect("JSON");
            devices[at] = found["devices"].as_object().map(|all| all.keys().cloned().collect());
            city = found["attributes"]["city"].clone();
            let page = platform.get(&format!("/v1/subscribers/{id}/inbox?limit=100")).await;
            items[at] = page["items"].as_array().expect("a list").len();
            let page = platform.get(&format!("/v1/subscriptions?subscriber={id}&limit=100")).await;
            for found in page["items"].as_array().expect("a list") {
                subscriptions.insert(found["id"].as_str().expect("an id").to_owned(), id.clone());
            }
        }
        State { devices, city, subscriptions, items }
    }

    /// Requests the merge. `None` if the process died during the request: done or not is unknown.
    async fn merge(&self, platform: &(reqwest::Client, String, String)) -> Option<Value> {
        let (client, url, key) = platform;
        let body = json!({"from": self.cookie, "unverified": true});
        let request = client.post(format!("{url}/v1/subscribers/{}/merge", self.account)).bearer_auth(key).json(&body);
        let answer = request.send().await.ok()?;
        let status = answer.status();
        let report: Value = answer.json().await.ok()?;
        assert_eq!(status, 200, "{report}");
        Some(report)
    }
}

impl State {
    /// Expected state after the merge. The account is newer, so its own subscription is the last.
    fn merged(&self, account: &str) -> State {
        let mut kept: Vec<&String> = self.subscriptions.keys().collect();
        kept.sort_by_key(|id| id[2..].parse::<u64>().expect("a number"));
        // Of the two equal ones the account's remains.
        let double = kept.remove(2);
        assert_ne!(self.subscriptions[double], *account);
        State {
            devices: [None, Some(["main", "main_2", "spare"].map(str::to_owned).to_vec())],
            city: json!("Wien"),
            subscriptions: kept.into_iter().map(|id| (id.clone(), account.to_owned())).collect(),
            items: [0, self.items[0] + self.items[1]],
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_merge_is_atomic() {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let mut platform = Platform::start(&[]).await;
    platform.apply("pings", APPLICATION).await;
    let rounds = std::env::var("CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(6);
    let (mut done, mut undone, mut acknowledged) = (0, 0, 0);
    for round in 0..rounds {
        let mut pairs = Vec::new();
        for number in 0..PAIRS {
            pairs.push(Pair::make(&platform, &format!("{round}-{number}")).await);
        }
        let event = json!({"token": format!("of round {round}")});
        assert_eq!(platform.post("/v1/applications/pings/events/ping", &event).await.0, 202);
        platform.settled().await;
        let mut before = Vec::new();
        for pair in &pairs {
            before.push(pair.state(&platform).await);
        }
        assert!(before.iter().all(|state| state.items[0] > 0 && state.subscriptions.len() == 4), "{:?}", before[0]);

        let asked = (platform.client.clone(), platform.url.clone(), platform.key());
        let answered = Arc::new(Semaphore::new(0));
        let reporter = answered.clone();
        let merging = tokio::spawn(async move {
            let (asked, reporter) = (&asked, &reporter);
            let clients = pairs.chunks(PAIRS / CLIENTS).map(|own| async move {
                let mut answers = Vec::new();
                for pair in own {
                    answers.push(pair.merge(asked).await);
                    reporter.add_permits(1);
                }
                answers
            });
            let answers = futures_util::future::join_all(clients).await.concat();
            (pairs, answers)
        });
        // Some have responses, some are in progress, and some have not started.
        let target = random.usize(1..=PAIRS / 2) as u32;
        answered.acquire_many(target).await.expect("it stays open").forget();
        platform.kill();
        let (pairs, answers) = merging.await.expect("the client task succeeds");
        platform.restart().await;
        for ((pair, answer), before) in pairs.iter().zip(answers).zip(before) {
            let found = pair.state(&platform).await;
            let merged = before.merged(&pair.account);
            match (found == before, answer) {
                (true, None) => undone += 1,
                (true, Some(report)) => panic!("{}: {report} was the response, {found:?} is stored", pair.cookie),
                (false, answer) => {
                    assert_eq!(found, merged, "{}", pair.cookie);
                    done += 1;
                    acknowledged += usize::from(answer.is_some());
                }
            }
            // A repeated request gets the same result, or completes the merge.
            let asked = (platform.client.clone(), platform.url.clone(), platform.key());
            let report = pair.merge(&asked).await.expect("an answer");
            assert_eq!(report["again"], found != before, "{report}");
            assert_eq!((&report["subscriptions"], &report["double_subscriptions"]), (&json!(2), &json!(1)), "{report}");
            assert_eq!(pair.state(&platform).await, merged, "{}", pair.cookie);
        }
    }
    println!("{done} merges were done when the process died, {acknowledged} of them acknowledged; {undone} were not");
    assert!(done > 0 && undone > 0, "the kills came too early or too late");
}
