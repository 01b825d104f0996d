//! An erased person leaves nothing in the data folder but the evidence that the law asks for, also if the server is
//! killed meanwhile.

mod support;

use std::{collections::BTreeSet, path::Path};

use serde_json::{Value, json};
use support::mails::Mails;
use tocsin_test_peers::{reserved_port, until};

const APPLICATION: &str = r#"
application: shop
events:
  order:
    fields: { customer: { type: string, required: true }, note: string, amount: integer }
    chronicles: { bought: { by: customer, of: event.note } }
  joined: { on: subscription.confirmed }
  person_changed: { on: subscriber.changed }
  device_added: { on: device.added }
  device_confirmed: { on: device.confirmed }
subscriptions:
  orders:
    fields: { customer: string, street: string }
    consent: { skip: [import, api], text: I want to know about my orders. }
notifications:
  receipt:
    fields: { note: string, street: string }
    content: { templates: { base: { subject: Order, text: "{{ note }} {{ street }}\n" } } }
rules:
  bought:
    on: order
    subscription: orders
    when: event.customer == sub.customer
    notify: receipt
    with: { street: sub.street }
  later:
    on: order
    subscription: orders
    when: event.customer == sub.customer
    notify: receipt
    after: 3d
    key: event.customer
    cancel_on: { order: event.note }
channels:
  email:
    protocol: smtp
    options: { host: 127.0.0.1, port: "${SINK}", tls: "off", from: t@example.org }
  bell: { protocol: inbox }
collections:
  visits:
    fields: { owner: { type: string, required: true }, what: string }
    partition:
      - match: { owner: subscriber.id }
"#;

/// The files of a folder that have a text.
fn files_with(folder: &Path, needle: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.append(&mut files_with(&path, needle));
            continue;
        }
        // A log can end between the listing and the read.
        let bytes = std::fs::read(&path).unwrap_or_default();
        if bytes.windows(needle.len()).any(|window| window.eq_ignore_ascii_case(needle.as_bytes())) {
            found.insert(path.file_name().expect("a name").display().to_string());
        }
    }
    found
}

/// A server with a directory, and mails that it delivers.
struct Shop {
    platform: support::Platform,
    mails: Mails,
    _folder: tempfile::TempDir,
}

impl Shop {
    async fn open() -> Shop {
        let folder = tempfile::tempdir().expect("a folder");
        let mails = Mails::start().await;
        let port = reserved_port();
        let settings = format!("[ldap]\nsuffix = \"dc=example\"\nlisten = \"127.0.0.1:{port}\"\n");
        std::fs::write(folder.path().join("tocsin.toml"), settings).expect("written");
        let sink = mails.port.to_string();
        let platform = support::Platform::start_in(folder.path(), &[("SINK", &sink)]).await;
        platform.apply("shop", APPLICATION).await;
        Shop { platform, mails, _folder: folder }
    }

    async fn expect(&self, status: u16, path: &str, body: Value) -> Value {
        let (found, answer) = self.platform.post(path, &body).await;
        assert_eq!(found, status, "{path}: {answer}");
        answer
    }

    async fn put(&self, path: &str, body: Value) {
        let answer = self.platform.request(reqwest::Method::PUT, path).json(&body).send().await.expect("an answer");
        let status = answer.status();
        assert!(status.is_success(), "{path}: {status} {}", answer.text().await.unwrap_or_default());
    }

    /// A life with a mark in everything that is stored of the person.
    async fn live(&self, mark: &str) {
        let (id, address) = (format!("ann-{mark}"), format!("ann.{mark}@example.org"));
        let device = |address: &str| json!({"channel": "email", "address": address});
        let person = |street: &str| {
            json!({
                "id": id, "attributes": {"street": format!("{street} {mark}")},
                "devices": {
                    "mail": device(&address), "bell": {"channel": "bell", "address": id},
                    "old": device(&format!("old.{mark}@example.org")),
                },
            })
        };
        self.expect(201, "/v1/subscribers", person("First Street")).await;
        self.put(&format!("/v1/subscribers/{id}"), person("Needle Street")).await;
        let subscription = |device: &str| {
            json!({
                "application": "shop", "class": "orders", "subscriber": id, "device": device,
                "key": format!("key {mark} {device}"), "values": {"customer": id, "street": format!("street {mark}")},
                "consent": {"state": "confirmed", "proof": format!("call {mark}"), "remote": "192.0.2.77"},
            })
        };
        self.expect(201, "/v1/subscriptions", subscription("mail")).await;
        self.expect(201, "/v1/subscriptions", subscription("bell")).await;
        let before = self.mails.count();
        let order = json!({"customer": id, "note": format!("secret {mark}"), "amount": 3});
        self.expect(202, "/v1/applications/shop/events/order", order).await;
        let other = json!({"customer": "bob", "note": "of bob", "amount": 4});
        self.expect(202, "/v1/applications/shop/events/order", other).await;
        assert!(self.mails.wait_until(|| self.mails.count() > before).await, "the mail arrives");
        let path = format!("/v1/subscribers/{id}/inbox");
        until("the item is in the inbox", async || {
            let found = self.platform.get(&path).await;
            found["items"].as_array().is_some_and(|items| !items.is_empty())
        })
        .await;
        let report = json!({
            "kind": "bounce", "protocol": "smtp", "address": address, "permanent": true,
            "detail": format!("550 <{address}> {mark}"),
        });
        self.expect(200, "/v1/suppressions/reports", json!({"reports": [report]})).await;
        let phone = json!({"application": "shop", "subscriber": id, "name": format!("phone {mark}")});
        self.expect(201, "/v1/sync/devices", phone).await;
        let row = json!({"owner": id, "what": format!("row {mark}")});
        self.put(&format!("/v1/applications/shop/collections/visits/rows/v-{mark}"), row).await;
        self.platform.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erased_person_is_in_no_file_and_its_export_has_all_before() {
    let shop = Shop::open().await;
    let Shop { platform, .. } = &shop;
    let (mark, other) = ("zq7f3a91x", "zq5b2c44x");
    shop.live(mark).await;
    shop.live(other).await;
    let folder = platform.folder.clone();
    let before = files_with(&folder, mark);
    for file in ["records.db", "journal.db", "inbox.db", "sync.db"] {
        assert!(before.iter().any(|found| found.starts_with(file)), "{file} has nothing: {before:?}");
    }

    let export = platform.get(&format!("/v1/subscribers/ann-{mark}/export")).await;
    let has = |part: &str| export[part].to_string().contains(mark);
    for part in [
        "subscriber",
        "subscriptions",
        "consents",
        "suppressions",
        "feedback",
        "inbox",
        "events",
        "notifications",
        "rows",
        "delayed",
    ] {
        assert!(has(part), "{part} of the export: {}", export[part]);
    }
    assert!(!export.to_string().contains(other), "nothing of others");
    let evidence = platform.get("/v1/subscriptions/s-1/consent").await;
    let hash = |found: &Value| found["evidence"][0]["address_hash"].clone();

    let path = format!("/v1/subscribers/ann-{mark}/erase");
    shop.expect(204, &path, json!({})).await;
    assert_eq!(files_with(&folder, mark), BTreeSet::new());
    assert!(!files_with(&folder, "192.0.2.77").is_empty(), "the network address of the other person stays");
    shop.expect(404, &path, json!({})).await;

    // The evidence is kept without the person; others have all of theirs.
    let left = platform.get("/v1/subscriptions/s-1/consent").await;
    assert_eq!(hash(&left), hash(&evidence));
    assert!(left.to_string().contains("I want to know"), "{left}");
    let found = platform.get(&format!("/v1/subscribers/ann-{other}/export")).await;
    assert_eq!(found["notifications"].as_array().expect("a list").len(), 2);
    let entries = platform.get("/v1/applications/shop/chronicles/order/bought").await.to_string();
    assert!(entries.contains(other) && entries.contains("bob"), "{entries}");

    // Nothing comes back: the server goes on, and starts again.
    shop.live("zq8d1e22x").await;
    assert_eq!(files_with(&folder, mark), BTreeSet::new());
    let mut shop = shop;
    assert_eq!(shop.platform.terminate(), Some(0));
    shop.platform.restart().await;
    assert_eq!(files_with(&folder, mark), BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erasure_that_is_killed_completes_after_the_restart() {
    let mut shop = Shop::open().await;
    let mut random = fastrand::Rng::with_seed(support::seed());
    for round in 0..8 {
        let mark = format!("zq{round}f3a91x");
        shop.live(&mark).await;
        let (client, key) = (shop.platform.client.clone(), shop.platform.key());
        let path = format!("{}/v1/subscribers/ann-{mark}/erase", shop.platform.url);
        let request = client.post(&path).bearer_auth(&key).json(&json!({})).send();
        // The kill comes at any moment of the request, or after it.
        let limit = std::time::Duration::from_micros(random.u64(500..60_000));
        let answered = tokio::time::timeout(limit, request).await;
        shop.platform.kill();
        shop.platform.restart().await;
        if answered.is_err() {
            // The request may not have been stored: it is repeated, as a client would.
            let (status, answer) = shop.platform.post(&format!("/v1/subscribers/ann-{mark}/erase"), &json!({})).await;
            assert!(matches!(status, 202 | 204 | 404), "{status} {answer}");
        }
        let folder = shop.platform.folder.clone();
        until("nothing is left of the person", async || files_with(&folder, &mark).is_empty()).await;
    }
}
