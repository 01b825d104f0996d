use std::ops::Range;

use async_trait::async_trait;
use serde_json::{Value as Json, json};
use tocsin_model::mark::Mark;

use crate::{
    conformance::{Oversize, Subject, exercise, silent_server},
    page_server::{Page, polled},
    testing::Harness,
};

fn quakes(of: &[(&str, f64, u32)]) -> String {
    let item =
        |(id, mag, updated): &(&str, f64, u32)| json!({"id": id, "properties": {"mag": mag, "updated": updated}});
    json!({"type": "FeatureCollection", "features": of.iter().map(item).collect::<Vec<_>>()}).to_string()
}

#[tokio::test]
async fn new_and_changed_items_are_taken_once() {
    let fields = json!({"id": "id", "magnitude": "properties.mag"});
    let options = json!({"items": "features", "fields": fields, "key": "id", "version": "properties.updated"});
    let (page, mut harness) = polled("poll", options).await;
    *page.text.lock().await = quakes(&[("a", 1.0, 1), ("b", 2.0, 1)]);
    assert_eq!(harness.take().await, [r#"{"id":"a","magnitude":1.0}"#, r#"{"id":"b","magnitude":2.0}"#]);
    assert!(harness.take().await.is_empty(), "nothing is new");
    assert_eq!(*page.answers.lock().await, [200, 304]);

    // A crash before the commit, and one after it.
    *page.text.lock().await = quakes(&[("a", 1.0, 1), ("b", 2.5, 22), ("c", 3.0, 1)]);
    assert_eq!(harness.next().await.events.count(), 2);
    harness.crash();
    let batch = harness.next().await;
    harness.commit(batch.marks);
    harness.crash();
    assert!(harness.take().await.is_empty());
    assert_eq!(page.answers.lock().await.last(), Some(&304));

    *page.text.lock().await = quakes(&[("bad", 1.0, 1)]).replace("1.0", "true");
    let batch = harness.next().await;
    assert_eq!((batch.events.count(), batch.refused.len()), (0, 1));
    assert_eq!(batch.refused[0].reason, "magnitude: should be a number, not a boolean");
}

#[tokio::test]
async fn d_keys_of_different_types_are_different_items() {
    let options = json!({"fields": {"id": "name"}, "key": "id"});
    let (page, mut harness) = polled("poll", options).await;
    *page.text.lock().await = r#"[{"id": 1, "name": "number"}, {"id": "1", "name": "text"}, {"id": true, "name": "yes"},
        {"id": "true", "name": "word"}, {"id": 18446744073709551617, "name": "a"}, {"id": 18446744073709551618, "name": "b"}]"#
        .to_owned();
    let ids = ["number", "text", "yes", "word", "a", "b"].map(|id| format!(r#"{{"id":"{id}"}}"#));
    assert_eq!(harness.take().await, ids);
    harness.crash();
    harness.marks.retain(|mark| &*mark.part != "validators");
    assert!(harness.take().await.is_empty(), "nothing is new after a restart");

    // An older version stored the number and the text under one key, whichever was first.
    let of = |id: &str, name: &str| format!(r#"{{"id": {id}, "name": "{name}"}}"#);
    let version = |text: &str| crate::seen_items::hash(&[text.as_bytes()]);
    harness.crash();
    harness.marks = [("1", of("1", "number")), ("x", of("\"x\"", "other"))]
        .map(|(key, text)| {
            Mark::set(format!("item:{key}"), json!({"version": version(&text)}).to_string().into_bytes())
        })
        .to_vec();
    *page.text.lock().await = format!("[{}, {}, {}]", of("\"1\"", "text"), of("\"x\"", "other"), of("1", "number"));
    assert!(harness.take().await.is_empty(), "the stored keys get their types first");
    harness.crash();
    assert_eq!(harness.take().await, [r#"{"id":"text"}"#]);
    harness.crash();
    harness.marks.retain(|mark| &*mark.part != "validators");
    assert!(harness.take().await.is_empty());
}

#[tokio::test]
async fn feed_items_are_new_once() {
    let fields = json!({"id": "id", "tags": "categories"});
    let (page, mut harness) = polled("feed", json!({"fields": fields})).await;
    let feed = |items: &[(&str, &str)]| {
        let item = |(id, date): &(&str, &str)| format!("<item><guid>{id}</guid><pubDate>{date}</pubDate></item>");
        format!("<rss><channel>{}</channel></rss>", items.iter().map(item).collect::<String>())
    };
    *page.text.lock().await = feed(&[("1", "x"), ("2", "x")]);
    assert_eq!(harness.take().await, [r#"{"id":"1"}"#, r#"{"id":"2"}"#]);
    // Changed items are ignored unless requested; an item absent for one poll is not new.
    *page.text.lock().await = feed(&[("1", "changed")]);
    assert!(harness.take().await.is_empty());
    *page.text.lock().await = feed(&[("1", "changed"), ("2", "x"), ("3", "x")]);
    assert_eq!(harness.take().await, [r#"{"id":"3"}"#]);

    let (page, mut harness) = polled("feed", json!({"fields": {"id": "change"}, "updates": true})).await;
    *page.text.lock().await = feed(&[("1", "x")]);
    assert_eq!(harness.take().await, [r#"{"id":"new"}"#]);
    *page.text.lock().await = feed(&[("1", "later")]);
    assert_eq!(harness.take().await, [r#"{"id":"updated"}"#]);
}

#[tokio::test]
async fn errors_of_a_page_are_reported() {
    let (page, mut harness) = polled("poll", json!({"page_bytes_max": 100})).await;
    *page.text.lock().await = "busy".to_owned();
    let error = harness.try_next().await.expect_err("busy");
    assert_eq!(error.retry_after.map(|wait| wait.as_secs()), Some(17));
    assert!(error.text.ends_with("/page answers 503 Service Unavailable"), "{error}");
    *page.text.lock().await = "x".repeat(1_000);
    assert!(harness.try_next().await.expect_err("long").text.contains("longer than 100 bytes"));
    *page.text.lock().await = "[1, ".to_owned();
    assert!(harness.try_next().await.expect_err("broken").text.contains("not a JSON document"));
}

#[tokio::test]
async fn d_retry_after_of_a_page_is_read_in_each_form() {
    let (page, mut harness) = polled("poll", json!({})).await;
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(600);
    let later = later.to_zoned(jiff::tz::TimeZone::UTC);
    for form in ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"] {
        *page.text.lock().await = format!("wish:{}", later.strftime(form));
        let wait = harness.try_next().await.expect_err("busy").retry_after.expect("a wish");
        assert!((500..=600).contains(&wait.as_secs()), "{form}: {wait:?}");
    }
    for (wish, expected) in [("99999999999999999999", Some(3_600)), ("soon", None), ("-1", None)] {
        *page.text.lock().await = format!("wish:{wish}");
        let wait = harness.try_next().await.expect_err("busy").retry_after;
        assert_eq!(wait.map(|wait| wait.as_secs()), expected, "{wish}");
    }
}

#[tokio::test]
async fn private_addresses_must_be_allowed() {
    let (_page, harness) = polled("poll", json!({})).await;
    let mut options = harness.options.clone();
    options["allow_networks"] = json!([]);
    let refused = |options: &Json| {
        let mut harness = Harness::new("poll", options.clone());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| harness.open())).is_err()
    };
    assert!(refused(&options), "an address as such");
    options["url"] = json!(options["url"].as_str().expect("text").replace("127.0.0.1", "localhost"));
    let mut harness = Harness::new("poll", options);
    let error = harness.try_next().await.expect_err("a name that leads there");
    assert!(error.text.contains("a loopback address"), "{error}");
}

#[tokio::test]
async fn d_a_page_that_cannot_be_read_is_not_an_empty_one() {
    for (format, good, wrong) in [
        (
            "json",
            r#"[{"id": "a"}]"#,
            vec!["<!DOCTYPE html><html>503</html>", "", "[{\"id\": \"b\"}", "{\"error\": \"x\"}", "[5]"],
        ),
        ("ndjson", "{\"id\": \"a\"}\n", vec![" <HTML><body>503</body></HTML>", "Service Unavailable", "{\"id\""]),
        ("csv", "id\na\n", vec!["<html></html>", "", "Service Unavailable\n", "id\n\"bbb"]),
        ("xml", "<r><i><id>a</id></i></r>", vec!["<html><body/></html>", "", "<r><i><id>b</id></i>", "<error/>"]),
    ] {
        let items = if format == "xml" { "/r/i" } else { "" };
        let options = json!({"format": format, "items": items, "key": "id", "retention": 0});
        let (page, mut harness) = polled("poll", options).await;
        *page.text.lock().await = good.to_owned();
        assert_eq!(harness.take().await, [r#"{"id":"a"}"#], "{format}");
        for wrong in wrong {
            *page.text.lock().await = wrong.to_owned();
            match harness.try_next().await {
                Err(_) => {}
                Ok(batch) => {
                    assert!(batch.events.count() == 0 && !batch.refused.is_empty(), "{format} {wrong:?}");
                    harness.commit(batch.marks);
                }
            }
            harness.crash();
            *page.text.lock().await = good.to_owned();
            assert!(harness.take().await.is_empty(), "{format} {wrong:?}: it is known still");
        }
    }
}

#[tokio::test]
async fn d_an_invalid_item_does_not_stop_others() {
    for (format, text) in [
        ("json", format!(r#"[{{"id": "a"}}, {{"id": 5}}, "x", {{"id": "{}"}}, {{"id": "b"}}]"#, "y".repeat(200))),
        ("ndjson", format!("{{\"id\": \"a\"}}\n{{\"id\"\n5\n{{\"id\": \"{}\"}}\n{{\"id\": \"b\"}}\n", "y".repeat(200))),
        ("csv", "id,magnitude\na,1\nx\n7,much\n\"q\",1,2\nb,2\n".to_owned()),
        (
            "xml",
            "<r><i><id>a</id></i><i><magnitude>x</magnitude></i><i/><i><id>c</id><more/></i><i><id>b</id></i></r>"
                .to_owned(),
        ),
    ] {
        let items = if format == "xml" { "/r/i" } else { "" };
        let (page, mut harness) =
            polled("poll", json!({"format": format, "items": items, "item_bytes_max": 100})).await;
        *page.text.lock().await = text;
        let batch = harness.next().await;
        let events = crate::testing::shown(&batch.events);
        let ids: Vec<&str> = events.iter().map(|event| &event[..9]).collect();
        assert_eq!(ids, [r#"{"id":"a""#, r#"{"id":"b""#], "{format}");
        assert_eq!(batch.refused.len(), 3, "{format}: {:?}", batch.refused);
    }
}

#[tokio::test]
async fn d_validators_of_another_page_do_not_apply() {
    let (page, mut harness) = polled("poll", json!({"key": "id"})).await;
    *page.text.lock().await = r#"[{"id": "1", "magnitude": 1}]"#.to_owned();
    assert_eq!(harness.take().await.len(), 1);
    // Other options parse the page again, although it has not changed.
    harness.options["headers"] = json!({"accept": "application/json"});
    harness.crash();
    assert!(harness.take().await.is_empty());
    assert_eq!(*page.answers.lock().await, [200, 200]);
    assert!(harness.take().await.is_empty());
    assert_eq!(*page.answers.lock().await, [200, 200, 304]);
    // An item of another page with the same key is another item, if its content differs.
    let (other, elsewhere) = polled("poll", json!({"key": "id"})).await;
    *other.text.lock().await = r#"[{"id": "1", "magnitude": 2}, {"id": "1", "magnitude": 2}]"#.to_owned();
    harness.options["updates"] = json!(false);
    harness.options["url"] = elsewhere.options["url"].clone();
    harness.crash();
    assert_eq!(harness.take().await, [r#"{"id":"1","magnitude":2.0}"#]);
    assert_eq!(other.answers.lock().await.first(), Some(&200));
    // A change of the version rule is not a change of items.
    harness.options["updates"] = json!(true);
    harness.options["version"] = json!("magnitude");
    harness.crash();
    assert!(harness.take().await.is_empty());
    *other.text.lock().await = r#"[{"id": "1", "magnitude": 3}]"#.to_owned();
    assert_eq!(harness.take().await, [r#"{"id":"1","magnitude":3.0}"#]);
}

#[tokio::test]
async fn d_a_common_guid_is_not_an_identity() {
    let (page, mut harness) = polled("feed", json!({"fields": {"id": "title"}})).await;
    let feed = |titles: &[&str]| {
        let item = |title: &&str| format!("<item><guid>same</guid><title>{title}</title></item>");
        format!("<rss><channel>{}</channel></rss>", titles.iter().map(item).collect::<String>())
    };
    *page.text.lock().await = feed(&["a"]);
    assert_eq!(harness.take().await, [r#"{"id":"a"}"#]);
    *page.text.lock().await = feed(&["b", "a", "b"]);
    assert_eq!(harness.take().await, [r#"{"id":"b"}"#]);
    *page.text.lock().await = feed(&["ccc", "b", "a"]);
    assert_eq!(harness.take().await, [r#"{"id":"ccc"}"#]);
    harness.crash();
    *page.text.lock().await = feed(&["d", "ccc"]);
    assert_eq!(harness.take().await, [r#"{"id":"d"}"#]);
    *page.text.lock().await = feed(&["ee"]);
    assert_eq!(harness.take().await, [r#"{"id":"ee"}"#], "also where it is alone");
}

#[tokio::test]
async fn d_a_feed_rejects_invalid_items_only() {
    let fields = json!({"id": "id", "tags": "categories"});
    let (page, mut harness) = polled("feed", json!({"fields": fields})).await;
    *page.text.lock().await = r#"{"version": "https://jsonfeed.org/version/1.1", "items":
        [{"id": "1", "tags": ["x"]}, 5, {"content_text": "neither id nor link nor title"}, {"id": 2}]}"#
        .to_owned();
    let batch = harness.next().await;
    let events = crate::testing::shown(&batch.events);
    assert_eq!(events, [r#"{"id":"1","tags":["x"]}"#, r#"{"id":"2"}"#]);
    assert_eq!(batch.refused.len(), 2, "{:?}", batch.refused);
    harness.commit(batch.marks);
    *page.text.lock().await = "<html><body>Busy</body></html>".to_owned();
    let error = harness.try_next().await.expect_err("no feed").text;
    assert!(error.contains("is an HTML page and no feed"), "{error}");
}

/// The page of the present source, and its items.
#[derive(Default)]
struct Conforming {
    page: Page,
    items: Vec<Json>,
}

impl Conforming {
    async fn add(&mut self, items: impl IntoIterator<Item = Json>) {
        self.items.extend(items);
        *self.page.text.lock().await = Json::from(self.items.clone()).to_string();
    }
}

#[async_trait(?Send)]
impl Subject for Conforming {
    async fn harness(&mut self) -> Harness {
        let (page, harness) = polled("poll", json!({"key": "id", "item_bytes_max": 1_000})).await;
        *page.text.lock().await = "[]".to_owned();
        *self = Conforming { page, items: Vec::new() };
        harness
    }

    async fn put(&mut self, numbers: Range<u32>) {
        self.add(numbers.map(|number| json!({"id": format!("q{number}")}))).await;
    }

    async fn put_oversize(&mut self, number: u32) -> Oversize {
        self.add([json!({"id": format!("q{number}"), "tags": ["x".repeat(2_000)]})]).await;
        Oversize::Rejected
    }

    async fn silent(&mut self) -> Option<Json> {
        let url = format!("http://{}/page", silent_server().await);
        Some(json!({"url": url, "timeout": "200ms", "every": "1ms", "allow_networks": ["127.0.0.1"]}))
    }
}

#[tokio::test]
async fn it_conforms() {
    exercise(&mut Conforming::default()).await;
}
