use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tocsin_model::{
    id::SubscriberNumber,
    inbox::NewItem,
    receipt::{Reason, ReasonKind},
};

use super::send::BATCH_ITEMS;
use crate::{
    channel::{Context, FeedStore, OpenChannel, Outgoing},
    conformance::{Subject, exercise},
    testing::{channel, content_of, context, deliver, multicast, outgoing},
};

/// Records each commit, and fails a configured number of times.
#[derive(Default)]
struct Remembering {
    commits: Mutex<Vec<Vec<NewItem>>>,
    failures: Mutex<u32>,
}

#[async_trait]
impl FeedStore for Remembering {
    async fn put(&self, items: Vec<NewItem>, _: u32) -> Result<(), Reason> {
        let mut failures = self.failures.lock();
        if *failures > 0 {
            *failures -= 1;
            return Err(Reason::new(ReasonKind::Internal, "there is no room"));
        }
        self.commits.lock().push(items);
        Ok(())
    }

    async fn probe(&self) -> Result<String, Reason> {
        Ok("well".into())
    }
}

fn open(feeds: &Arc<Remembering>, options: Value) -> Box<dyn OpenChannel> {
    let context = crate::Context { feeds: Some(feeds.clone()), ..context() };
    let name = "inbox".parse().expect("a name");
    crate::open(&name, &channel("inbox", options, 8), &context).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn to(subscriber: u64, mut outgoing: Outgoing) -> Outgoing {
    outgoing.subscriber = Some(SubscriberNumber(subscriber));
    outgoing
}

#[tokio::test]
async fn waiting_items_are_stored_in_one_commit() {
    let feeds = Arc::new(Remembering::default());
    let open = open(&feeds, json!({ "retention": "30d" }));
    let mut messages: Vec<Outgoing> = (0..5).map(|number| to(number.into(), outgoing(number, "x"))).collect();
    content_of(&mut messages[1]).json = Some(
        json!({ "link": "/orders/5", "actions": [{ "label": "Pay", "link": "https://a.example" }], "n": 1 })
            .to_string(),
    );
    content_of(&mut messages[2]).json =
        Some(json!({ "link": "javascript:alert(1)", "actions": [{ "label": "", "link": "/" }] }).to_string());
    let soon = messages[3].message.formatted_at + std::time::Duration::from_secs(9);
    Arc::make_mut(&mut messages[3].message).expires_at = Some(soon);
    messages[4].subscriber = None;
    let said = deliver(&*open, messages).await;
    assert_eq!(said[..4], ["delivered in the feed"; 4]);
    assert!(said[4].starts_with("refused Unreachable"), "{}", said[4]);
    assert_eq!(open.probe().await, Ok("well".into()));
    let commits = feeds.commits.lock();
    let items: Vec<&NewItem> = commits.iter().flatten().collect();
    assert_eq!((commits.len(), items.len()), (1, 4));
    let said = &items[0].content;
    assert_eq!((said.application.as_str(), said.class.as_str()), ("quakes", "quake"));
    assert_eq!(said.wording.subject.as_deref(), Some("Earthquake near Kobe"));
    assert_eq!(Value::from(said.wording.data.clone()), json!({ "magnitude": 6.1, "place": "Kobe" }));
    assert_eq!(items[0].expires_at.to_string(), "2026-12-21T09:30:00Z");
    assert_eq!(items[3].expires_at, soon);
    let led = &items[1].content.wording;
    assert_eq!((led.link.as_deref(), led.actions.len()), (Some("/orders/5"), 1));
    assert_eq!(Value::from(led.data.clone()), json!({ "n": 1 }));
    let not_led = &items[2].content.wording;
    assert_eq!((&not_led.link, not_led.actions.len(), not_led.data.len()), (&None, 0, 2), "it stays data");
}

#[tokio::test]
async fn a_multicast_shares_one_stored_content() {
    let feeds = Arc::new(Remembering::default());
    let open = open(&feeds, json!({}));
    let messages = multicast(&["a", "b", "c"]).into_iter().zip(1..).map(|(outgoing, number)| to(number, outgoing));
    assert_eq!(deliver(&*open, messages.collect()).await, ["delivered in the feed"; 3]);
    let commits = feeds.commits.lock();
    let first = &commits[0][0].content;
    assert!(commits.iter().flatten().all(|item| Arc::ptr_eq(&item.content, first)));
}

#[tokio::test]
async fn trouble_of_the_store_is_tried_again() {
    let feeds = Arc::new(Remembering { failures: Mutex::new(1), ..Remembering::default() });
    let open = open(&feeds, json!({}));
    assert_eq!(deliver(&*open, vec![to(1, outgoing(0, "x"))]).await, ["deferred Internal there is no room"]);
    assert_eq!(deliver(&*open, vec![to(1, outgoing(0, "x"))]).await, ["delivered in the feed"]);
}

#[test]
fn options_are_checked() {
    let check = |options: Value| {
        let problems = crate::check(&"inbox".parse().expect("a name"), options.as_object().expect("an object"), "o");
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(check(json!({ "retention": "1h30m", "items_max": 10_000 })), "");
    assert_eq!(
        check(json!({ "retention": "5s", "items_max": 0, "keep": 1 })),
        "o.retention: `5s` is not a time from 1m to 3660d, such as `30d` or `12h`\n\
         o.keep: `keep` is not an option here; the options are retention, items_max\n\
         o.items_max: a feed has from 1 to 10000 items; leave it out for 1000"
    );
}

struct Conforming(Arc<Remembering>);

#[async_trait]
impl Subject for Conforming {
    async fn open(&self, context: Context) -> Box<dyn OpenChannel> {
        let context = Context { feeds: Some(self.0.clone()), ..context };
        let (name, channel) = ("inbox".parse().expect("a name"), channel("inbox", json!({}), 8));
        crate::open(&name, &channel, &context).unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    async fn open_silent(&self, _: Context) -> Option<Box<dyn OpenChannel>> {
        None
    }

    fn outgoing(&self, ordinal: u32) -> Outgoing {
        to(1, outgoing(ordinal, "a"))
    }

    fn id_of(&self, outgoing: &Outgoing) -> String {
        outgoing.id.to_string()
    }

    async fn received_ids(&self) -> Vec<String> {
        self.0.commits.lock().iter().flatten().map(|item| item.id.to_string()).collect()
    }

    fn in_flight_max(&self) -> usize {
        BATCH_ITEMS
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    exercise(&Conforming(Arc::default())).await;
}
