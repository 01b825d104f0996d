//! Subscribers changed by LDAP and notified by the pipeline: the real binary with Debian's ldap-utils.

mod support;

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use serde_json::json;
use support::{Platform, mails::Mails};
use tocsin_test_peers::{Peer, missing, reserved_port};

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
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

async fn publish(platform: &Platform, level: i64) {
    let body = json!({"sensor": "dam", "level": level});
    let (status, answer) = platform.post("/v1/applications/gauges/events/reading", &body).await;
    assert_eq!(status, 202, "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_by_ldapmodify_affects_the_next_notification() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let (mails, port) = (Mails::start().await, reserved_port());
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
    let received: Vec<String> = mails
        .all()
        .iter()
        .map(|mail| format!("{} {}", mail.to[0], mail.header("Subject").unwrap_or_default()))
        .collect();
    assert_eq!(received, ["old@example.org dam is at 10", "new@example.org dam is at 15"]);
    // A change by the API is visible at once.
    let vera = platform.get("/v1/subscribers/vera").await;
    assert_eq!(vera["attributes"]["limit"], 15);
    let patch = platform.request(reqwest::Method::PATCH, "/v1/subscribers/vera");
    let patch = patch.header("content-type", "application/merge-patch+json").body(r#"{"attributes": {"limit": 99}}"#);
    assert!(patch.send().await.expect("an answer").status().is_success());
    let shown = ldap(&platform, port, "ldapsearch", &["-LLL", "-b", "o=tocsin", "(uid=vera)", "limit"], "");
    assert!(shown.contains("limit: 99\n"), "{shown}");
    // LDAP refuses addresses that the API refuses.
    let device = "dn: uid=vera,ou=people,o=tocsin\nchangetype: modify\nadd: tocsinDevice\ntocsinDevice: browser push active {}\n";
    let refused = run(&platform, port, "ldapmodify", &[], device);
    assert_eq!(refused.status.code(), Some(19));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("JSON.stringify(subscription)"), "{refused:?}");
    assert_eq!(platform.terminate(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_are_provisioned_by_scim_without_an_ldap_port() {
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
    assert_eq!(platform.terminate(), Some(0), "it ran until the signal");
}

/// People as LDIF, including invalid records.
fn people(count: usize) -> String {
    let mut text = "version: 1\n\n".to_owned();
    for number in 0..count {
        text += &format!(
            "dn: uid=p{number},ou=people,o=tocsin\nobjectClass: inetOrgPerson\nobjectClass: tocsinSubscriber\n\
             cn: Person {number}\nsn: {number}\nmail: p{number}@example.org\n\n"
        );
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_import_can_be_repeated_and_reports_refused_records() {
    const COUNT: usize = 2_000;
    let mut platform = Platform::start(&[]).await;
    assert_eq!(platform.terminate(), Some(0));
    let text = people(COUNT);
    // The process dies half-way: everything it reported is stored.
    let mut killed = platform.command();
    killed.args(["directory", "import", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut killed = killed.spawn().expect("the binary starts");
    let half = &text.as_bytes()[..text.len() / 2];
    killed.stdin.as_mut().expect("piped").write_all(half).expect("it reads");
    killed.kill().expect("it can be killed");
    killed.wait().expect("it ends");

    let file = platform.folder.join("people.ldif");
    let wrong = "dn: uid=nobody,ou=nowhere,o=tocsin\nobjectClass: inetOrgPerson\ncn: N\nsn: N\n\n\
                 dn: uid=bad,ou=people,o=tocsin\nobjectClass: inetOrgPerson\nobjectClass: tocsinSubscriber\ncn: B\n\n";
    std::fs::write(&file, text.clone() + wrong).expect("written");
    let import = || {
        let done = platform.command().args(["directory", "import"]).arg(&file).output().expect("the binary starts");
        let output = String::from_utf8(done.stdout).expect("text") + &String::from_utf8_lossy(&done.stderr);
        (done.status.success(), output)
    };
    let (is_fine, output) = import();
    let first_wrong = text.lines().count() + 1;
    assert!(!is_fine && output.contains("2 records were refused"), "{output}");
    assert!(output.contains(&format!("line {first_wrong}: uid=nobody,ou=nowhere,o=tocsin: ")), "{output}");
    assert!(output.contains(&format!("line {}: uid=bad,ou=people,o=tocsin: ", first_wrong + 5)), "{output}");
    let number = |before: &str| -> usize {
        let at = output.find(before).unwrap_or_else(|| panic!("{output}"));
        let digits: String = output[..at].chars().rev().take_while(|one| one.is_ascii_digit() || *one == ',').collect();
        digits.chars().rev().filter(char::is_ascii_digit).collect::<String>().parse().expect("a number")
    };
    assert_eq!(number(" records imported") + number(" entries existed already"), COUNT, "{output}");
    // All entries exist, and a third run changes nothing.
    let (_, again) = import();
    assert!(again.contains("0 records imported") && again.contains("2,000 entries existed already"), "{again}");
    let exported = platform.run(&["directory", "export", "--offline"]);
    assert_eq!(exported.matches("\nmail: p").count(), COUNT);
    platform.restart().await;
    // The server exports the same, with and without an LDAP or SCIM face.
    let through_server = platform.folder.join("all.ldif");
    platform.run(&["directory", "export", through_server.to_str().expect("a path")]);
    assert_eq!(std::fs::read_to_string(&through_server).expect("a file"), exported);
    let last = platform.get(&format!("/v1/subscribers/p{}", COUNT - 1)).await;
    assert_eq!(last["devices"]["email"]["address"], "p1999@example.org");
    assert_eq!(platform.terminate(), Some(0));
}
