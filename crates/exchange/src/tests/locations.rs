//! Tests of receive locations: files, rows, throttling and restarts.

use std::fs;

use async_nats::jetstream;
use tocsin_model::{application::Rate, exchange::FlowSide};
use tocsin_sources::SourceState;
use tocsin_store::spool::LocationKey;
use tocsin_test_peers::{Peer, missing, reserved_port};

use super::*;
use crate::{intake::IntakeState, locations::LocationStatus};

/// An exchange that takes files and rows, and sends each to A.
struct Dock {
    exchanges: Arc<Exchanges>,
    a: FarSide,
    folder: tempfile::TempDir,
}

const FILES: &str =
    "drop: { kind: directory, options: { folder: orders, settle: 1ms, rescan: 1ms }, content_type: text/csv }";

impl Dock {
    async fn with(locations: &str) -> Dock {
        let folder = tempfile::tempdir().expect("a folder");
        let a = FarSide::start().await;
        let dock = Dock { exchanges: open(folder.path()).await, a, folder };
        dock.apply(locations).await;
        dock
    }

    fn definition(&self, locations: &str) -> String {
        format!(
            r#"
exchange: dock
properties:
  file: {{ header: file-name }}
  location: {{ header: tocsin-location }}
  order: {{ type: integer, json: $.nr }}
  subject: {{ header: subject }}
receive:
  intake:
    mode: one_way
    body_bytes: 100
    locations: {{ {locations} }}
send:
  a:
    mode: one_way
    protocol: http
    options: {{ url: "{}/{{location}}", allow_networks: [127.0.0.1] }}
    retry: []
routes:
  files: {{ when: "message.location == 'drop' && message.file.endsWith('.csv') && message.content_type == 'text/csv'", to: a }}
  rows: {{ when: "message.order > 0", to: a }}
  mails: {{ when: "message.subject == 'order' && message.content_type == 'message/rfc822'", to: a }}
"#,
            self.a.url
        )
    }

    async fn apply(&self, locations: &str) {
        self.exchanges.operations.apply(&self.definition(locations), "test").await.expect("a good definition");
    }

    fn drop_file(&self, file: &str, text: &str) {
        let (elsewhere, into) = (self.folder.path().join(file), self.folder.path().join("drop/orders"));
        fs::create_dir_all(&into).expect("made");
        fs::write(&elsewhere, text).expect("written");
        fs::rename(elsewhere, into.join(file)).expect("moved");
    }

    fn has(&self, ending: &str) -> bool {
        let names = fs::read_dir(self.folder.path().join("drop/orders")).expect("a folder");
        names.filter_map(Result::ok).any(|entry| entry.file_name().to_string_lossy().ends_with(ending))
    }

    fn status(&self) -> LocationStatus {
        self.exchanges.operations.locations(&name("dock")).expect("it runs").remove(0)
    }

    async fn until(&self, holds: impl Fn(&Dock) -> bool) {
        let waiting = async {
            while !holds(self) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(wait_timeout(), waiting).await.unwrap_or_else(|_| panic!("{:?}", self.status()));
    }

    async fn restart(&mut self) {
        restart(&mut self.exchanges, self.folder.path()).await;
    }
}

#[tokio::test]
async fn files_become_messages_and_get_a_name_that_says_so() {
    let mut dock = Dock::with(FILES).await;
    dock.drop_file("1.csv", "a;b");
    assert_eq!(dock.a.asked_times(1).await[0].body, "a;b");
    dock.until(|dock| dock.has(".done")).await;
    dock.drop_file("2.csv", &"x".repeat(101));
    dock.until(|dock| dock.has(".err.json")).await;
    dock.restart().await;
    dock.drop_file("3.csv", "c");
    let asked = dock.a.asked_times(2).await;
    assert_eq!((asked.len(), &*asked[1].body, &*asked[1].path), (2, "c", "/drop"));
    // It is counted after it was stored, and that is before it leaves.
    dock.until(|dock| dock.status().messages == 1).await;
    assert_eq!(dock.status().health.state, SourceState::Running);
    // Nothing leads it anywhere.
    dock.drop_file("4.txt", "d");
    dock.until(|dock| dock.status().messages == 2).await;
    let filter = MessageFilter { standing: Some(MessageStatus::Suspended), ..MessageFilter::default() };
    assert_eq!(dock.exchanges.operations.messages(filter, None, 10).await.expect("read").len(), 1);
}

#[tokio::test]
async fn a_closed_intake_holds_locations_until_it_opens() {
    let dock = Dock::with(FILES).await;
    dock.until(|dock| dock.status().health.state == SourceState::Running).await;
    let hold = Some("`role:sources` is paused".to_owned());
    dock.exchanges.intake.set_state(IntakeState { hold, ..IntakeState::default() });
    dock.until(|dock| dock.status().health.state == SourceState::Held).await;
    dock.drop_file("1.csv", "a;b");
    assert_eq!(dock.status().messages, 0);
    dock.exchanges.intake.set_state(IntakeState::default());
    assert_eq!(dock.a.asked_times(1).await[0].body, "a;b");
}

#[tokio::test]
async fn a_database_that_nobody_opened_is_trouble_and_told() {
    let dock = Dock::with("").await;
    let file = dock.folder.path().join("rows.db");
    let rows = rusqlite::Connection::open(&file).expect("a file");
    rows.execute_batch("CREATE TABLE box (nr INTEGER PRIMARY KEY, place TEXT); INSERT INTO box VALUES (7, 'Kobe')")
        .expect("filled");
    let options = format!(
        "{{ database: 'sqlite:{}', query: 'SELECT * FROM box WHERE nr > :mark', mark: nr, start: '0' }}",
        file.display()
    );
    // A database in a folder that nobody opened.
    dock.apply(&format!("rows: {{ kind: query, options: {options} }}")).await;
    dock.until(|dock| dock.status().health.state == SourceState::BackingOff).await;
    let reason = dock.status().health.reason.expect("a reason");
    assert!(reason.contains("allow_folders"), "{reason}");
    assert_eq!(dock.a.all().len(), 0);
}

/// A mail of so few bytes that the port takes it.
const MAIL: &str = "Message-ID: <1@a>\r\nSubject: order\r\n\r\nseven\r\n";

/// Whether curl, which sends a mail, is content. It connects again while nobody listens.
async fn curl(dock: &Dock, port: u16, mail: &str) -> bool {
    let file = dock.folder.path().join("mail");
    fs::write(&file, mail).expect("written");
    let sent = tokio::process::Command::new(Peer::Curl.path())
        .args(["-s", "--retry", "20", "--retry-connrefused", "--retry-delay", "1", "--max-time", "50"])
        .args(["--mail-from", "a@example.org", "--mail-rcpt", "orders@example.org", "--upload-file"])
        .arg(file)
        .arg(format!("smtp://127.0.0.1:{port}/example.org"))
        .status();
    sent.await.expect("curl runs").success()
}

#[tokio::test]
async fn mails_are_routed_and_their_senders_hear_when_they_are_stored() {
    if missing(&[Peer::Curl]) {
        return;
    }
    let port = reserved_port();
    let mails =
        format!("post: {{ kind: mail, options: {{ listen: '127.0.0.1:{port}', recipients: ['*@example.org'] }} }}");
    let mut dock = Dock::with(&mails).await;
    assert!(curl(&dock, port, MAIL).await);
    let asked = &dock.a.asked_times(1).await[0];
    assert_eq!((&*asked.path, &*asked.body), ("/post", MAIL));
    assert!(!curl(&dock, port, &format!("{MAIL}{}", "x".repeat(100))).await, "it is longer than its port takes");

    // Who did not hear the answer sends it once more.
    dock.restart().await;
    assert!(curl(&dock, port, MAIL).await);
    assert!(curl(&dock, port, &MAIL.replace("<1@", "<2@")).await);
    let asked = dock.a.asked_times(2).await;
    assert_eq!((asked.len(), &*asked[1].body), (2, &*MAIL.replace("<1@", "<2@")));

    // While an operator's rate is zero, nothing is acknowledged.
    let rate = "0".parse::<Rate>().expect("a rate");
    let (exchange, intake) = (dock_name(), name("intake"));
    let set = dock.exchanges.operations.set_rate(&exchange, FlowSide::Publishing, Some(&intake), Some(rate));
    set.await.expect("set");
    let held = MAIL.replace("<1@", "<3@");
    let sending = curl(&dock, port, &held);
    let looking = async {
        dock.until(|dock| dock.status().health.state == SourceState::Waiting).await;
        dock.apply("").await;
    };
    assert!(!tokio::join!(sending, looking).0);
    assert_eq!(dock.a.all().len(), 2);
}

/// A broker with the stream ORDERS, and a connection to it.
async fn broker(folder: &Path) -> (tokio::process::Child, jetstream::Context, String) {
    let port = reserved_port();
    let server = tokio::process::Command::new(Peer::Nats.path())
        .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
        .arg(folder)
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("nats-server starts");
    let address = format!("nats://127.0.0.1:{port}");
    let starting = async {
        loop {
            // It listens some time.
            let Ok(client) = async_nats::connect(&address).await else { continue };
            let config = jetstream::stream::Config {
                name: "ORDERS".into(),
                subjects: vec!["orders.>".into()],
                ..Default::default()
            };
            let context = jetstream::new(client);
            if context.create_stream(config).await.is_ok() {
                return context;
            }
        }
    };
    let context = tokio::time::timeout(wait_timeout(), starting).await.expect("in time");
    (server, context, address)
}

#[tokio::test]
async fn messages_of_a_broker_are_routed_and_told_once_over_a_restart() {
    if missing(&[Peer::Nats]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, context, address) = broker(folder.path()).await;
    let publish = async |body: &str| {
        let sent = context.publish("orders.new", body.to_owned().into()).await.expect("sent");
        sent.await.expect("kept");
    };
    publish(r#"{"nr": 1}"#).await;
    let bus = format!("bus: {{ kind: nats, options: {{ servers: ['{address}'], stream: ORDERS }} }}");
    let mut dock = Dock::with(&bus).await;
    let asked = &dock.a.asked_times(1).await[0];
    assert_eq!((&*asked.path, &*asked.body), ("/bus", r#"{"nr": 1}"#));
    dock.restart().await;
    publish("no order").await;
    publish(r#"{"nr": 2}"#).await;
    let asked = dock.a.asked_times(2).await;
    assert_eq!((asked.len(), &*asked[1].body), (2, r#"{"nr": 2}"#));
    dock.until(|dock| dock.status().messages == 2).await;
    let filter = MessageFilter { standing: Some(MessageStatus::Suspended), ..MessageFilter::default() };
    assert_eq!(
        dock.exchanges.operations.messages(filter, None, 10).await.expect("read").len(),
        1,
        "nothing leads it anywhere"
    );
    let mut stream = context.get_stream("ORDERS").await.expect("there");
    let acknowledged = async {
        loop {
            let info = stream.info().await.expect("asked");
            assert_eq!((info.state.messages, info.state.consumer_count), (3, 1));
            let mut consumer: jetstream::consumer::PullConsumer =
                stream.get_consumer("tocsin:dock:intake:bus").await.expect("a location has one");
            if consumer.info().await.expect("asked").ack_floor.stream_sequence == 3 {
                return;
            }
        }
    };
    tokio::time::timeout(wait_timeout(), acknowledged)
        .await
        .expect("the broker gets acknowledgements after all are stored");
}

#[tokio::test]
async fn an_operator_and_a_switch_slow_locations_down() {
    let dock = Dock::with(FILES).await;
    let intake = name("intake");
    let rate = |text: &str| Some(text.parse::<Rate>().expect("a rate"));
    let exchange = dock_name();
    let set = |rate| dock.exchanges.operations.set_rate(&exchange, FlowSide::Publishing, Some(&intake), rate);
    set(rate("0")).await.expect("set");
    dock.drop_file("1.csv", "held");
    dock.until(|dock| dock.status().health.state == SourceState::Waiting).await;
    let status = dock.status();
    assert!(status.health.reason.as_deref().is_some_and(|reason| reason.starts_with("operator:")), "{status:?}");
    assert!(!dock.has(".done"));
    // A location that waits ends at once, and what it held is taken by the next.
    set(None).await.expect("set");
    dock.apply(&FILES.replace("kind:", "enabled: false, kind:")).await;
    dock.until(|dock| dock.status().health.state == SourceState::Held).await;
    assert_eq!((dock.a.all().len(), dock.status().messages), (0, 0));
    dock.apply(FILES).await;
    assert_eq!(dock.a.asked_times(1).await[0].body, "held");
}

fn dock_name() -> Name {
    name("dock")
}

#[tokio::test]
async fn invalid_locations_are_reported() {
    let dock = Dock::with("").await;
    for (locations, expected) in [
        ("a: { kind: http }", "is not a kind of location"),
        ("a: { kind: directory }", "receive.intake.locations.a.options.folder"),
        ("a: { kind: directory, options: { folder: x, items: y } }", "is for events"),
        ("a: { kind: query, options: { database: 'oracle://a' } }", "is not the address of a database"),
        ("a: { kind: kafka, options: { topics: [b] } }", "receive.intake.locations.a.options.servers"),
        ("a: { kind: mail, options: { listen: '127.0.0.1:2525' } }", "receive.intake.locations.a.options.recipients"),
        ("a: { kind: nats, options: { servers: ['nats://a'], stream: b }, content_type: x }", "is not a media type"),
        ("a: { kind: mqtt, options: { host: a, topics: ['a#'] } }", "is not a valid topic filter"),
    ] {
        let problems = dock.exchanges.operations.compile(&dock.definition(locations)).err().expect("a problem");
        let found = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        assert!(found.contains(expected), "{locations}: {found}");
    }
}

#[tokio::test]
async fn a_location_whose_folder_is_not_open_is_reported_by_the_check() {
    let dock = Dock::with("").await;
    let elsewhere = tempfile::tempdir().expect("a folder");
    let text = dock.definition(&format!(
        "open: {{ kind: directory, options: {{ folder: orders }} }}, \
         closed: {{ kind: directory, options: {{ folder: '{}' }} }}",
        elsewhere.path().display()
    ));
    let operations = &dock.exchanges.operations;
    let compiled = operations.compile(&text).expect("a good definition");
    let closed = operations.locations_not_allowed(&text, &compiled);
    let found: Vec<&str> = closed.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(found, ["receive.intake.locations.closed.options.folder"]);
    assert!(closed[0].message.contains("sources.allow_folders") && closed[0].line.is_some(), "{closed:?}");
}

#[tokio::test]
async fn marks_are_of_one_location_and_go_with_the_exchange() {
    let dock = Dock::with(FILES).await;
    dock.drop_file("1.csv", "a");
    dock.a.asked_times(1).await;
    let key = |location: &str| LocationKey { exchange: dock_name(), port: name("intake"), location: name(location) };
    let marks = dock.exchanges.core.parts.spool.location_marks(key("other")).await.expect("read");
    assert!(marks.is_empty());
    let open = async {
        while dock.exchanges.operations.remove(&dock_name()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(wait_timeout(), open).await.expect("in time");
    assert!(dock.exchanges.core.parts.spool.location_marks(key("drop")).await.expect("read").is_empty());
}
