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

/// A client that knows just enough of the protocol to add and to change, and to tell whether that was acknowledged.
struct Client(std::net::TcpStream);

fn value(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).expect("short");
    // The long form, so that contents of 128 bytes and more need no other.
    [&[tag, 0x81, length], content].concat()
}

impl Client {
    /// `None`: the server went before it answered.
    fn open(port: u16, key: &str) -> Option<Client> {
        let stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(support::PATIENCE)).expect("a timeout");
        let mut client = Client(stream);
        let bind = [value(2, &[3]), value(4, b"cn=admin,o=tocsin"), value(0x80, key.as_bytes())].concat();
        (client.ask(&value(0x60, &bind))? == 0).then_some(client)
    }

    /// The code of the answer; `None` if there is none.
    fn ask(&mut self, request: &[u8]) -> Option<u8> {
        use std::io::Read;
        self.0.write_all(&value(0x30, &[&value(2, &[1]), request].concat())).ok()?;
        let mut head = [0; 2];
        self.0.read_exact(&mut head).ok()?;
        let mut rest = vec![0; usize::from(head[1])];
        self.0.read_exact(&mut rest).ok()?;
        // Number, tag of the answer, and its code; all of them short.
        rest.get(7).copied()
    }

    fn add(&mut self, id: &str) -> Option<u8> {
        let attribute = |name: &str, text: &str| {
            value(0x30, &[value(4, name.as_bytes()), value(0x31, &value(4, text.as_bytes()))].concat())
        };
        let attributes = [attribute("objectClass", "account"), attribute("host", "0")].concat();
        let dn = format!("uid={id},ou=people,o=tocsin");
        self.ask(&value(0x68, &[value(4, dn.as_bytes()), value(0x30, &attributes)].concat()))
    }

    fn set(&mut self, id: &str, host: u64) -> Option<u8> {
        let values = value(0x31, &value(4, host.to_string().as_bytes()));
        let change = [value(10, &[2]), value(0x30, &[value(4, b"host"), values].concat())].concat();
        let dn = format!("uid={id},ou=people,o=tocsin");
        self.ask(&value(0x66, &[value(4, dn.as_bytes()), value(0x30, &value(0x30, &change))].concat()))
    }
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_every_acknowledged_write_is_there_after_a_kill() {
    let rounds = std::env::var("CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(5);
    let mut random = fastrand::Rng::with_seed(support::seed());
    let port = free_port();
    let mut platform = Platform::start(&[("TOCSIN_LDAP_LISTEN", &format!("127.0.0.1:{port}"))]).await;
    for round in 0..rounds {
        let key = platform.key();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (key, id) = (key.clone(), format!("w{round}-{writer}"));
                // What was acknowledged last, and what was asked for after it.
                std::thread::spawn(move || {
                    let mut acknowledged = None;
                    let Some(mut client) = Client::open(port, &key) else { return (id, acknowledged) };
                    if client.add(&id) != Some(0) {
                        return (id, acknowledged);
                    }
                    acknowledged = Some(0);
                    for host in 1.. {
                        match client.set(&id, host) {
                            Some(0) => acknowledged = Some(host),
                            Some(code) => panic!("code {code}"),
                            None => break,
                        }
                    }
                    (id, acknowledged)
                })
            })
            .collect();
        // Not a wait for anything: the kill comes at some moment.
        tokio::time::sleep(std::time::Duration::from_millis(random.u64(30..300))).await;
        platform.kill();
        let done: Vec<_> = writers.into_iter().map(|writer| writer.join().expect("a writer ends")).collect();
        platform.restart().await;
        for (id, acknowledged) in done {
            let Some(acknowledged) = acknowledged else { continue };
            let host = platform.get(&format!("/v1/subscribers/{id}")).await["attributes"]["host"].clone();
            let host: u64 = host.as_str().expect("text").parse().expect("a number");
            // The last one may have been stored without its answer.
            assert!(
                (acknowledged..=acknowledged + 1).contains(&host),
                "{id}: {acknowledged} was acknowledged, {host} is there"
            );
        }
    }
}
