//! Pacing by mailbox provider: servers that answer by the domain of the recipient, on a simulated clock, and once with
//! a real name server.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tocsin_connect::Clock;
use tocsin_model::{
    delivery_policy::Priority,
    id::Name,
    mail_provider::ProviderDay,
    receipt::{Reason, ReasonKind},
    time::Timestamp,
};
use tocsin_test_peers::NameServer;
use tokio::time::Instant;

use super::{
    scripted_server::{Drip, Last, Say, Script, Scripted, accept_all},
    *,
};
use crate::{
    channel::{Context, ProviderDays},
    queue::TAKES_NO_MORE,
    testing::multicast,
};

/// A clock that advances with the simulated time.
struct Simulated(Instant);

impl Clock for Simulated {
    fn now(&self) -> Timestamp {
        "2026-11-21T09:30:00Z".parse::<Timestamp>().expect("a time") + self.0.elapsed()
    }
}

/// Numbers of providers in memory; fails as often as wished.
#[derive(Default)]
struct Stored {
    days: Mutex<Vec<(Box<str>, ProviderDay)>>,
    failures: AtomicU32,
}

impl Stored {
    fn check(&self) -> Result<(), Reason> {
        let fails = self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if fails { Err(Reason::new(ReasonKind::Internal, "the disk is away")) } else { Ok(()) }
    }

    /// Sent mails by provider and day.
    fn sent(&self) -> Vec<(String, u32, u64)> {
        self.days.lock().iter().map(|(provider, day)| (provider.to_string(), day.day, day.sent)).collect()
    }
}

#[async_trait]
impl ProviderDays for Stored {
    async fn last_days(&self, _: &str, _: &Name) -> Result<Vec<(Box<str>, ProviderDay)>, Reason> {
        self.check()?;
        let days = self.days.lock().clone();
        Ok(days.into_iter().collect::<std::collections::BTreeMap<_, _>>().into_iter().collect())
    }

    async fn add_days(&self, _: &str, _: &Name, days: Vec<(Box<str>, ProviderDay)>) -> Result<(), Reason> {
        self.check()?;
        let mut stored = self.days.lock();
        for (provider, new) in days {
            match stored.iter_mut().find(|(known, day)| *known == provider && day.day == new.day) {
                Some((_, day)) => {
                    day.sent += new.sent;
                    day.held_back += new.held_back;
                }
                None => stored.push((provider, new)),
            }
        }
        Ok(())
    }
}

/// A channel with this pacing and four sessions.
fn open(script: Script, pacing: Value, stored: Option<Arc<Stored>>) -> (Box<dyn OpenChannel>, Arc<Scripted>) {
    let server = Scripted::new(script, None);
    let given = json!({ "host": "far.example", "from": "bells@near.example", "pacing": pacing });
    let options: SmtpOptions =
        read(given.as_object().expect("an object"), "").unwrap_or_else(|problems| panic!("{problems:?}"));
    let stored = stored.map(|stored| stored as Arc<dyn ProviderDays>);
    let context = Context { clock: Arc::new(Simulated(Instant::now())), provider_days: stored, ..context() };
    let open = super::super::start(&"mail".parse().expect("a name"), 4, &context, options, server.clone());
    (open.unwrap_or_else(|problems| panic!("{problems:?}")), server)
}

/// Addresses at these domains, in turns.
fn addresses(count: usize, domains: &[&str]) -> Vec<String> {
    (0..count).map(|number| format!("u{number}@{}", domains[number % domains.len()])).collect()
}

async fn deliver_to(open: &dyn OpenChannel, addresses: &[String]) -> Vec<String> {
    deliver(open, &addresses.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// The results for one domain, each with its number.
fn counts(addresses: &[String], shown: &[String], domain: &str) -> Vec<(String, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    let of_domain = addresses.iter().zip(shown).filter(|(address, _)| address.ends_with(domain));
    of_domain.for_each(|(_, shown)| *counts.entry(shown.clone()).or_default() += 1);
    counts.into_iter().collect()
}

/// Whether Gmail holds mail back in `google_holds_back`.
static HOLDS_BACK: AtomicBool = AtomicBool::new(true);

fn google_holds_back(connection: u32, mail: u32, heard: &str) -> super::scripted_server::Act {
    match heard {
        heard if heard.ends_with("@gmail.com>") && HOLDS_BACK.load(Ordering::SeqCst) => {
            Last("421-4.7.28 Our system has detected an unusual rate of mail.\r\n421 4.7.28 gsmtp")
        }
        _ => accept_all(connection, mail, heard),
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_holds_mail_back_delays_no_other() {
    HOLDS_BACK.store(true, Ordering::SeqCst);
    let (open, server) = open(google_holds_back, json!({}), None);
    let addresses = addresses(120, &["gmail.com", "outlook.com", "gmx.de"]);
    let begin = Instant::now();
    let shown = deliver_to(&*open, &addresses).await;
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert_eq!(counts(&addresses, &shown, "outlook.com"), [(OK.to_owned(), 40)]);
    assert_eq!(counts(&addresses, &shown, "gmx.de"), [(OK.to_owned(), 40)]);
    let said = "421 4.7.28 Our system has detected an unusual rate of mail. 4.7.28 gsmtp";
    let google = counts(&addresses, &shown, "gmail.com");
    let tried = google.iter().find(|(shown, _)| *shown == format!("deferred Answer {said}")).map_or(0, |found| found.1);
    let untried = google.iter().find(|(shown, _)| *shown == format!("deferred Untried {TAKES_NO_MORE}"));
    assert!((1..=10).contains(&tried), "{google:?}");
    assert_eq!(untried.map(|found| found.1), Some(40 - tried), "the others are no attempts: {google:?}");

    // Mails for it wait in the journal, others are taken.
    let wait = open.hold("x@gmail.com", Priority::Normal).expect("a pause");
    assert!(wait >= Duration::from_secs(50), "{wait:?}");
    assert_eq!(open.hold("x@outlook.com", Priority::Normal), None);
    let held_back = open.held_back();
    assert_eq!(held_back.len(), 1);
    assert_eq!((held_back[0].provider.as_str(), held_back[0].said.as_str()), ("google", said));
    assert!(held_back[0].paused_for.is_some_and(|pause| pause <= Duration::from_secs(66)));
    let shown = open.destinations(10);
    assert_eq!(
        (shown[0].name.as_str(), shown[0].state.word(), shown[0].reason.as_deref()),
        ("google", "paused", Some(said))
    );
    assert_eq!(open.down(), None, "the server works");

    // After the pause one mail tests it, and is held back: the next pause is longer.
    tokio::time::advance(wait + Duration::from_secs(10)).await;
    assert_eq!(open.hold("x@gmail.com", Priority::Normal), None);
    let mails = server.mails.load(Ordering::SeqCst);
    let gmail = self::addresses(5, &["gmail.com"]);
    let shown = deliver_to(&*open, &gmail).await;
    assert_eq!(shown.iter().filter(|shown| shown.contains("4.7.28")).count(), 1, "{shown:?}");
    assert_eq!(server.mails.load(Ordering::SeqCst), mails + 1);
    let longer = open.held_back()[0].paused_for.expect("a pause");
    assert!(longer > Duration::from_secs(100), "{longer:?}");

    // It accepts mail again, and recovers.
    HOLDS_BACK.store(false, Ordering::SeqCst);
    tokio::time::advance(longer).await;
    for _ in 0..60 {
        assert!(deliver_to(&*open, &gmail).await.iter().all(|shown| shown == OK));
        tokio::time::advance(Duration::from_secs(61)).await;
    }
    assert_eq!(open.held_back(), []);
    assert_eq!(
        open.destinations(10).iter().find(|found| found.name == "google").and_then(|found| found.reason.clone()),
        None
    );
    open.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_about_one_mailbox_slows_nothing_down() {
    let script: Script = |connection, mail, heard| match heard {
        "RCPT TO:<u0@gmail.com>" => Say("452 4.2.2 The email account that you tried to reach is over quota."),
        _ => accept_all(connection, mail, heard),
    };
    let (open, _) = open(script, json!({}), None);
    let shown = deliver_to(&*open, &addresses(3, &["gmail.com"])).await;
    assert!(
        shown[0].starts_with("deferred Answer 452 4.2.2") && shown[1..].iter().all(|shown| shown == OK),
        "{shown:?}"
    );
    assert_eq!((open.held_back(), open.hold("x@gmail.com", Priority::Normal)), (vec![], None));
}

#[tokio::test(start_paused = true)]
async fn a_slow_provider_leaves_sessions_to_the_others() {
    let script: Script = |connection, mail, heard| match heard {
        heard if heard.starts_with("RCPT") && heard.ends_with("@gmail.com>") => Drip("250 ok"),
        _ => accept_all(connection, mail, heard),
    };
    let (open, _) = open(script, json!({}), None);
    let (slow, _slow_answers) = mpsc::channel(64);
    let mails = |domain: &str| {
        addresses(30, &[domain]).iter().enumerate().map(|(number, address)| outgoing(number as u32, address)).collect()
    };
    open.send_all(mails("gmail.com"), &slow).await;
    // All sessions that it may have wait for it.
    tokio::time::advance(Duration::from_secs(1)).await;
    let begin = Instant::now();
    for domain in ["outlook.com", "gmx.de"] {
        let (answers, mut answered) = mpsc::channel(64);
        open.send_all(mails(domain), &answers).await;
        for _ in 0..30 {
            assert_eq!(show(&answered.recv().await.expect("an answer").disposition), OK);
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn each_provider_has_its_own_rate() {
    let pacing = json!({
        "rate": { "messages": 10, "per": "1s" },
        "providers": { "google": { "rate": { "messages": 1, "per": "1s" } } },
    });
    let (open, server) = open(accept_all, pacing, None);
    let times = async |domain: &str| {
        let begin = Instant::now();
        let (answers, mut answered) = mpsc::channel(16);
        let addresses = addresses(11, &[domain]);
        let mails = addresses.iter().enumerate().map(|(number, address)| outgoing(number as u32, address));
        open.send_all(mails.collect(), &answers).await;
        for _ in 0..11 {
            assert_eq!(show(&answered.recv().await.expect("an answer").disposition), OK);
        }
        begin.elapsed().as_millis()
    };
    let (google, outlook) = tokio::join!(times("gmail.com"), times("outlook.com"));
    assert!((10_000..10_100).contains(&google), "{google}");
    assert!((1_000..1_100).contains(&outlook), "{outlook}");
    assert_eq!(server.mails.load(Ordering::SeqCst), 22);
}

#[tokio::test(start_paused = true)]
async fn mails_above_the_rate_wait_in_the_journal_in_their_order() {
    let pacing = json!({ "rate": { "messages": 1, "per": "10s" } });
    let (open, _) = open(accept_all, pacing, None);
    let (answers, _answered) = mpsc::channel(64);
    let mails = (0..32).map(|number| outgoing(number, &format!("u{number}@gmail.com"))).collect();
    open.send_all(mails, &answers).await;
    // The queue of the provider is full. Further mails become due one after the other, in slots of half a minute.
    let waits: Vec<u64> =
        (0..30).map(|_| open.hold("x@gmail.com", Priority::Normal).expect("it is full").as_secs()).collect();
    assert!(waits.is_sorted() && waits.iter().all(|wait| (100..=930).contains(wait)), "{waits:?}");
    let mut slots = waits.clone();
    slots.dedup();
    assert!((8..=12).contains(&slots.len()), "three mails a slot: {waits:?}");
    assert_eq!(open.hold("x@outlook.com", Priority::Normal), None);
}

#[tokio::test(start_paused = true)]
async fn a_warm_up_bounds_the_mails_of_a_day_over_restarts() {
    let pacing = || json!({ "providers": { "google": { "warm_up": { "start": 5, "growth": 2.0, "until": 1000 } } } });
    let stored = Arc::new(Stored::default());
    let (first, _) = open(accept_all, pacing(), Some(stored.clone()));
    let gmail = addresses(8, &["gmail.com"]);
    let shown = deliver_to(&*first, &gmail).await;
    let taken = |shown: &[String]| shown.iter().filter(|shown| *shown == OK).count();
    assert_eq!(taken(&shown), 5, "{shown:?}");
    assert!(
        deliver_to(&*first, &addresses(20, &["outlook.com"])).await.iter().all(|shown| shown == OK),
        "others have none"
    );
    let reason = first.destinations(10).into_iter().find(|found| found.name == "google").and_then(|found| found.reason);
    assert_eq!(reason.as_deref(), Some("5 of 5 mails of today are sent by the warm-up"));
    first.close().await;
    let day = stored.sent()[0].1;
    assert_eq!(stored.sent(), [("google".to_owned(), day, 5)]);

    // After a restart nothing leaves before the numbers are read, and then nothing more on this day.
    stored.failures.store(3, Ordering::SeqCst);
    let (second, server) = open(accept_all, pacing(), Some(stored.clone()));
    assert!(second.hold("x@gmail.com", Priority::Normal).is_none(), "the provider is not known yet");
    let begin = Instant::now();
    assert_eq!(deliver_to(&*second, &gmail[..1]).await, [format!("deferred Untried {TAKES_NO_MORE}")]);
    assert!(begin.elapsed() >= Duration::from_secs(2), "the store failed three times: {:?}", begin.elapsed());
    assert_eq!(server.mails.load(Ordering::SeqCst), 0);
    let wait = second.hold("x@gmail.com", Priority::Normal).expect("nothing more today");
    assert!((Duration::from_secs(3_600)..=Duration::from_secs(3_660)).contains(&wait), "{wait:?}");
    second.close().await;

    // Its clock begins on the same day; half a day later is the next one.
    let (third, _) = open(accept_all, pacing(), Some(stored.clone()));
    tokio::time::advance(Duration::from_secs(15 * 3_600)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let gmail = addresses(15, &["gmail.com"]);
    let shown = deliver_to(&*third, &gmail).await;
    assert_eq!(taken(&shown), 10, "twice as many: {shown:?}");
    third.close().await;
    assert_eq!(stored.sent(), [("google".to_owned(), day, 5), ("google".to_owned(), day + 1, 10)]);
}

#[tokio::test(start_paused = true)]
async fn numbers_that_cannot_be_stored_are_stored_later() {
    let stored = Arc::new(Stored::default());
    let (open, _) = open(accept_all, json!({ "warm_up": { "start": 50 } }), Some(stored.clone()));
    deliver_to(&*open, &addresses(3, &["gmail.com"])).await;
    stored.failures.store(2, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(stored.sent(), [], "the store fails");
    deliver_to(&*open, &addresses(2, &["gmail.com", "small.example"])).await;
    open.close().await;
    let mut sent = stored.sent();
    sent.sort();
    let sent: Vec<(&str, u64)> = sent.iter().map(|(provider, _, sent)| (provider.as_str(), *sent)).collect();
    assert_eq!(sent, [("google", 4), ("other", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_multicast_is_one_mail_for_each_provider() {
    let (open, server) = open(accept_all, json!({}), None);
    let addresses = ["a@gmail.com", "b@outlook.com", "c@googlemail.com", "d@outlook.com", "e@own.example"];
    assert_eq!(deliver_all(&*open, multicast(&addresses)).await, [OK; 5]);
    open.close().await;
    let seen = server.seen.lock();
    assert_eq!(seen.contents.len(), 3);
    let mut mails: Vec<Vec<&str>> = Vec::new();
    for heard in &seen.heard {
        match heard.strip_prefix("RCPT TO:") {
            Some(to) => mails.last_mut().expect("a mail").push(to),
            None if heard.starts_with("MAIL") => mails.push(Vec::new()),
            None => {}
        }
    }
    // Sessions run at the same time, so each mail is compared by itself.
    let has = |mail: &[&str]| mails.iter().any(|found| found == mail);
    assert!(has(&["<a@gmail.com>", "<c@googlemail.com>"]) && has(&["<b@outlook.com>", "<d@outlook.com>"]), "{mails:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reported_delay_lowers_the_rate_of_its_provider() {
    let (open, _) = open(accept_all, json!({ "rate": { "messages": 10, "per": "1s" } }), None);
    deliver_to(&*open, &addresses(2, &["gmail.com", "outlook.com"])).await;
    open.note_delay("u7@gmail.com", "451 4.7.1 deferred for four hours");
    let found = open.held_back();
    assert_eq!((found[0].provider.as_str(), found[0].paused_for), ("google", None));
    assert_eq!(found[0].interval, Some(Duration::from_millis(200)));
    assert_eq!(found.len(), 1);
}

#[tokio::test]
async fn domains_are_grouped_by_a_real_name_server() {
    let zone = "hosted.example MX 10 aspmx.l.google.com.\nown.example MX 10 mx.own.example.\nslow.example SERVFAIL";
    let name_server = NameServer::start(zone);
    let script: Script = |connection, mail, heard| match heard {
        heard if heard.contains("@hosted.example>") || heard.contains("@gmail.com>") => {
            Say("450 4.7.28 Gmail has detected an unusual rate of mail")
        }
        _ => accept_all(connection, mail, heard),
    };
    let pacing = json!({ "name_server": name_server.address().to_string() });
    let (open, _) = open(script, pacing, None);
    let addresses = addresses(8, &["hosted.example", "own.example", "gmail.com", "slow.example"]);
    let shown = deliver_to(&*open, &addresses).await;
    for domain in ["own.example", "slow.example"] {
        assert_eq!(counts(&addresses, &shown, domain), [(OK.to_owned(), 2)]);
    }
    assert!(shown.iter().any(|shown| shown.contains("4.7.28")), "{shown:?}");
    let held_back = open.held_back();
    assert_eq!(held_back.iter().map(|found| found.provider.as_str()).collect::<Vec<_>>(), ["google"]);
    assert!(open.hold("x@hosted.example", Priority::Normal).is_some(), "the domain is a part of the provider");
    assert!(open.hold("x@own.example", Priority::Normal).is_none());
    open.close().await;
}
