//! Subscribers changed by LDAP, told by the flow: the real binary, and Debian's ldap-utils.

mod support;

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use serde_json::json;
use support::{Platform, free_port, mails::Mails};

const APPLICATION: &str = r#"
application: gauges
events:
  reading:
    fields:
      sensor: {type: string, required: true}
      level: {type: integer, required: true}
subscriptions:
  watch:
    fields:
      sensor: {type: string, required: true}
attributes:
  limit: integer
notifications:
  over:
    fields: {sensor: string, level: integer}
    content:
      engine: jinja
      templates:
        base:
          subject: '{{ sensor }} is at {{ level }}'
          text: 'Your limit was passed.'
rules:
  passed:
    on: reading
    subscription: watch
    when: event.sensor == sub.sensor && event.level >= subscriber.attributes.limit
    notify: over
channels:
  email:
    protocol: smtp
    options:
      host: 127.0.0.1
      port: ${SMTP_PORT}
      tls: 'off'
      from: Gauges <gauges@example.org>
"#;

/// Runs a program of ldap-utils as the operator.
fn ldap(platform: &Platform, port: u16, program: &str, arguments: &[&str], input: &str) -> String {
    let done = run(platform, port, program, arguments, input);
    assert!(done.status.success(), "{program} {input}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

fn run(platform: &Platform, port: u16, program: &str, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(program)
        .args(["-x", "-H", &format!("ldap://127.0.0.1:{port}"), "-D", "cn=admin,o=tocsin", "-w", &platform.key()])
        .args(arguments)
        .env("LDAPNOINIT", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{error}: install ldap-utils by scripts/setup test"));
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

async fn publish(platform: &Platform, level: i64) {
    let body = json!({"sensor": "dam", "level": level});
    let (status, answer) = platform.post("/v1/applications/gauges/events/reading", &body).await;
    assert_eq!(status, 202, "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ldapmodify_changes_decides_the_next_notification() {
    let (mails, port) = (Mails::start().await, free_port());
    let listen = format!("127.0.0.1:{port}");
    let environment = [("SMTP_PORT", mails.port.to_string()), ("TOCSIN_LDAP_LISTEN", listen)];
    let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut platform = Platform::start(&environment).await;
    platform.apply("gauges", APPLICATION).await;
    ldap(
        &platform,
        port,
        "ldapmodify",
        &[],
        "dn: cn=subschema\nchangetype: modify\nadd: attributeTypes\nattributeTypes: ( 2.25.9.1 NAME 'limit' EQUALITY integerMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.27 SINGLE-VALUE )\n",
    );
    ldap(
        &platform,
        port,
        "ldapadd",
        &[],
        "dn: uid=vera,ou=people,o=tocsin\nobjectClass: inetOrgPerson\nobjectClass: tocsinSubscriber\ncn: Vera\nsn: Muster\nmail: old@example.org\nlimit: 10\n",
    );
    let subscription =
        json!({"application": "gauges", "class": "watch", "subscriber": "vera", "values": {"sensor": "dam"}});
    let (status, answer) = platform.post("/v1/subscriptions", &subscription).await;
    assert_eq!(status, 201, "{answer}");
    publish(&platform, 10).await;
    assert!(mails.wait_until(|| mails.count() >= 1).await);
    ldap(
        &platform,
        port,
        "ldapmodify",
        &[],
        "dn: uid=vera,ou=people,o=tocsin\nchangetype: modify\nreplace: mail\nmail: new@example.org\n-\nincrement: limit\nlimit: 5\n",
    );
    publish(&platform, 14).await;
    publish(&platform, 15).await;
    assert!(mails.wait_until(|| mails.count() >= 2).await);
    let told: Vec<String> = mails
        .all()
        .iter()
        .map(|mail| format!("{} {}", mail.to[0], mail.header("Subject").unwrap_or_default()))
        .collect();
    assert_eq!(told, ["old@example.org dam is at 10", "new@example.org dam is at 15"]);
    // And what the API changes is seen at once.
    let vera = platform.get("/v1/subscribers/vera").await;
    assert_eq!(vera["attributes"]["limit"], 15);
    let patch = platform.request(reqwest::Method::PATCH, "/v1/subscribers/vera");
    let patch = patch.header("content-type", "application/merge-patch+json").body(r#"{"attributes": {"limit": 99}}"#);
    assert!(patch.send().await.expect("an answer").status().is_success());
    let shown = ldap(&platform, port, "ldapsearch", &["-LLL", "-b", "o=tocsin", "(uid=vera)", "limit"], "");
    assert!(shown.contains("limit: 99\n"), "{shown}");
    // Nor is an address taken here that the API would refuse.
    let device = "dn: uid=vera,ou=people,o=tocsin\nchangetype: modify\nadd: tocsinDevice\ntocsinDevice: browser push active {}\n";
    let refused = run(&platform, port, "ldapmodify", &[], device);
    assert_eq!(refused.status.code(), Some(19));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("JSON.stringify(subscription)"), "{refused:?}");
    assert_eq!(platform.terminate(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_are_provisioned_without_a_port_for_ldap() {
    let mut platform = Platform::start(&[("TOCSIN_LDAP_SCIM", "true")]).await;
    let ann = json!({
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"],
        "userName": "ann", "name": {"familyName": "Lee"}, "emails": [{"value": "ann@example.org"}],
    });
    let (status, made) = platform.post("/scim/v2/Users", &ann).await;
    assert_eq!((status, &made["userName"]), (201, &json!("ann")), "{made}");
    let found = platform.get("/scim/v2/Users?filter=userName%20eq%20%22ann%22").await;
    assert_eq!((&found["totalResults"], &found["Resources"][0]["id"]), (&json!(1), &made["id"]), "{found}");
    assert_eq!(platform.get("/v1/subscribers/ann").await["id"], "ann");
    assert_eq!(platform.terminate(), Some(0), "it ran until it was told to end");
}
