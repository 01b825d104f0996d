//! `tocsin doctor --domain` against a server and a name server on loopback.

mod support;

use std::process::Output;

use serde_json::Value;
use support::Platform;
use tocsin_test_peers::NameServer;

/// An application with a mail channel that signs.
const APPLICATION: &str = r#"application: news
events: { item: { fields: { title: { type: string, required: true } } } }
subscriptions: { every: { fields: {} } }
notifications:
  item: { fields: { title: string }, content: { templates: { base: { subject: item, text: "{{ title }}" } } } }
rules: { everyone: { on: item, subscription: every, notify: item } }
channels:
  mail:
    protocol: smtp
    options:
      host: 127.0.0.1
      from: News <news@example.org>
      return_path: bounces@bounce.example.org
      dkim: [ { selector: t1, key: "${DKIM}" } ]
"#;

fn doctor(platform: &Platform, zone: &NameServer, arguments: &[&str]) -> Output {
    let server = zone.address().to_string();
    let mut command = platform.command();
    command.args(["doctor", "--domain", "example.org", "--ip", "192.0.2.10", "--dns", &server]).args(arguments);
    command.output().expect("the command runs")
}

/// The records to publish of all failed checks, as lines of the name server.
fn published(output: &Output) -> Vec<String> {
    let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = printed["findings"].as_array().expect("findings").iter();
    let failed = findings.filter(|finding| finding["level"] == "fail");
    let records = failed.flat_map(|finding| finding["publish"].as_array().cloned().unwrap_or_default());
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    records
        .map(|record| format!("{} {} {}", text(&record["name"]), text(&record["type"]), text(&record["value"])))
        .collect()
}

/// A new domain is ready after the printed records are published, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_domain_is_ready_once_the_printed_records_are_published() {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key").serialize_pem();
    let platform = Platform::start(&[("DKIM", &key)]).await;
    platform.apply("news", APPLICATION).await;
    let senders = platform.get("/v1/applications/news/mail-senders").await;
    let sender = &senders["items"][0];
    assert_eq!(
        (&sender["from_domain"], &sender["return_domain"]),
        (&"example.org".into(), &"bounce.example.org".into())
    );
    let record = sender["dkim"][0]["record"].as_str().expect("a record").to_owned();
    assert!(!senders.to_string().contains("PRIVATE"), "{senders}");

    let zone = NameServer::start("");
    let first = doctor(&platform, &zone, &["--json"]);
    assert_eq!(first.status.code(), Some(1), "{}", String::from_utf8_lossy(&first.stdout));
    let mut records = published(&first);
    assert!(records.contains(&format!("t1._domainkey.example.org. TXT \"{record}\"")), "{records:?}");
    // The first round publishes the mail exchangers; the second gives their hosts an address.
    let mut last = first;
    for _ in 0..3 {
        zone.set(&records.join("\n"));
        last = doctor(&platform, &zone, &["--json"]);
        let more: Vec<String> = published(&last).into_iter().filter(|record| !records.contains(record)).collect();
        if more.is_empty() {
            break;
        }
        records.extend(more.into_iter().map(|record| record.replace("<its address>", "192.0.2.10")));
    }
    let text = String::from_utf8_lossy(&last.stdout).into_owned();
    assert_eq!(last.status.code(), Some(0), "{text}\n{records:#?}");

    // Without the key record, it is not ready.
    zone.set(&records.iter().filter(|record| !record.starts_with("t1.")).cloned().collect::<Vec<_>>().join("\n"));
    let without = doctor(&platform, &zone, &[]);
    let text = String::from_utf8_lossy(&without.stdout).into_owned();
    assert_eq!(without.status.code(), Some(1), "{text}");
    assert!(
        text.contains("fail  dkim t1._domainkey.example.org: there is no key record: the name does not exist"),
        "{text}"
    );
    assert!(text.contains(&format!("publish: t1._domainkey.example.org. TXT \"{record}\"")), "{text}");
    assert!(String::from_utf8_lossy(&without.stderr).contains("1 check failed"), "{text}");
}
