//! Broadcasts to 20,000 recipients (or `RECIPIENTS`) through the real binary: killed five times, and cancelled while
//! they run.

mod support;

use std::{
    collections::{BTreeSet, HashMap},
    sync::LazyLock,
};

use serde_json::{Value, json};
use support::{Platform, mails::Mails};

/// Recipients of a broadcast.
static RECIPIENTS: LazyLock<usize> = LazyLock::new(|| {
    let given = std::env::var("RECIPIENTS").ok();
    given.map_or(20_000, |given| given.parse().expect("RECIPIENTS is a number"))
});
/// Kills of the server during a broadcast.
const KILLS: usize = 5;
/// Notifications in flight: for each kill, at most so many mails are repeated.
const IN_FLIGHT: usize = 500;
/// Concurrent sessions of the mail channel.
const SESSIONS: usize = 4;

const APPLICATION: &str = r#"
application: shop
subscriptions: { news: { fields: { region: string }, filter: cel } }
events: { offer: { fields: { price: number } } }
channels:
  email:
    protocol: smtp
    concurrency: 4
    options:
      host: 127.0.0.1
      port: ${SINK}
      tls: off
      from: t@example.org
    retry: [1s, 1s, 5s]
"#;

async fn import(platform: &Platform, path: &str, lines: impl Iterator<Item = Value>) {
    let body: String = lines.map(|line| format!("{line}\n")).collect();
    let request = platform.request(reqwest::Method::POST, path).header("content-type", "application/x-ndjson");
    let answer = request.body(body).send().await.expect("an answer");
    let (status, text) = (answer.status(), answer.text().await.expect("a text"));
    assert!(status.is_success() && !text.contains("\"problems\""), "{status} {text}");
}

/// A server with an audience whose subscriptions have a filter each.
async fn start(mails: &Mails) -> Platform {
    let (sink, in_flight) = (mails.port.to_string(), IN_FLIGHT.to_string());
    let environment = [("SINK", sink.as_str()), ("TOCSIN_PIPELINE_IN_FLIGHT_PER_CHANNEL", in_flight.as_str())];
    let platform = Platform::start(&environment).await;
    platform.apply("shop", APPLICATION).await;
    let person = |at: usize| {
        let device = json!({"channel": "email", "address": format!("p{at}@example.org")});
        json!({"id": format!("p{at}"), "devices": {"main": device}})
    };
    import(&platform, "/v1/import/subscribers", (0..*RECIPIENTS).map(person)).await;
    let subscription = |at: usize| {
        let region = if at.is_multiple_of(2) { "east" } else { "west" };
        json!({
            "application": "shop", "class": "news", "subscriber": format!("p{at}"), "key": "k",
            "values": {"region": region}, "filter": format!("event.price < {}.5", 10 + at % 1_000),
        })
    };
    import(&platform, "/v1/import/subscriptions", (0..*RECIPIENTS).map(subscription)).await;
    platform
}

fn draft() -> Value {
    json!({
        "application": "shop", "event_class": "offer", "data": {"price": 5}, "when": "sub.region != 'north'",
        "content": {"templates": {"base": {"subject": "Offer", "text": "token: {{ subscriber.id }}\n"}}},
    })
}

async fn send(platform: &Platform) -> String {
    let (mut counted, mut after) = (0, Value::Null);
    loop {
        let (status, page) =
            platform.post("/v1/broadcasts/count", &json!({"broadcast": draft(), "after": after})).await;
        assert_eq!(status, 200, "{page}");
        counted += page["recipients"].as_u64().expect("a count");
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(counted, *RECIPIENTS as u64);
    let (status, sent) = platform.post("/v1/broadcasts", &draft()).await;
    assert_eq!(status, 202, "{sent}");
    sent["id"].as_str().expect("an id").to_owned()
}

/// Message ids of the mails by recipient.
fn ids_of(mails: &Mails) -> HashMap<String, Vec<String>> {
    mails.ids_by_token()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broadcast_killed_five_times_reaches_each_recipient_under_one_message_id() {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let mails = Mails::start().await;
    let mut platform = start(&mails).await;
    let id = send(&platform).await;
    for kill in 1..=KILLS {
        let until = kill * *RECIPIENTS / (KILLS + 1) + random.usize(0..*RECIPIENTS / 20);
        assert!(mails.wait_until(|| mails.count() >= until).await, "{until} mails before kill {kill}");
        platform.kill();
        platform.restart().await;
    }
    let tokens: BTreeSet<String> = (0..*RECIPIENTS).map(|at| format!("p{at}")).collect();
    assert!(mails.wait_for_tokens(&tokens).await, "{} of {} were reached", ids_of(&mails).len(), *RECIPIENTS);
    platform.settled().await;
    let ids = ids_of(&mails);
    let total: usize = ids.values().map(Vec::len).sum();
    for (token, ids) in &ids {
        let distinct: BTreeSet<&String> = ids.iter().collect();
        assert_eq!(distinct.len(), 1, "{token} was sent under several ids: {ids:?}");
    }
    let repeated = total - *RECIPIENTS;
    println!("{repeated} mails were repeated by {KILLS} kills");
    assert!(repeated <= KILLS * IN_FLIGHT, "{repeated}");
    let found = platform.get(&format!("/v1/broadcasts/{id}")).await;
    let many = json!(*RECIPIENTS);
    assert_eq!((&found["state"], &found["recipients"], &found["delivered"]), (&json!("done"), &many, &many), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_cancellation_of_a_broadcast_only_attempts_in_progress_are_finished() {
    let mails = Mails::start().await;
    let platform = start(&mails).await;
    let id = send(&platform).await;
    assert!(mails.wait_until(|| mails.count() >= 1_000).await, "it runs");
    let (status, cancelled) = platform.post(&format!("/v1/broadcasts/{id}/cancel"), &json!({"reason": "typo"})).await;
    let sent = mails.count();
    assert_eq!((status, &cancelled["state"]), (200, &json!("cancelled")), "{cancelled}");
    platform.settled().await;
    // A session may have sent the commands of its next mail ahead of the answer to the last one.
    let later = mails.count() - sent;
    println!("{sent} mails before the answer to the cancellation, {later} after it");
    assert!(later <= 2 * SESSIONS, "{later} mails after the answer");
    let found = platform.get(&format!("/v1/broadcasts/{id}")).await;
    let number = |name: &str| found[name].as_u64().unwrap_or(0);
    assert_eq!(number("delivered"), mails.count() as u64, "{found}");
    assert_eq!((number("waiting"), number("suspended"), number("failed")), (0, 0, 0), "{found}");
    assert_eq!(number("ended"), number("recipients") - number("delivered"), "{found}");
    let ended = platform.get(&format!("/v1/broadcasts/{id}/recipients?outcome=ended&limit=1")).await;
    assert_eq!(ended["items"][0]["reply"], "the broadcast was cancelled", "{ended}");
}
