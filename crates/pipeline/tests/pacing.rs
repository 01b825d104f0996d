//! Pacing by mailbox provider through the whole flow: a mail server that defers one provider, a name server, a warm-up
//! that survives a crash.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tocsin_connect::{networks::Networks, programs::Programs};
use tocsin_delivery::{Context, TokenSigner};
use tocsin_model::{
    application::api_source,
    event::EventPacker,
    id::Name,
    subscriber::{Device, DeviceState, Profile},
    subscription::SubscriptionParams,
    time::Timestamp,
};
use tocsin_pipeline::{Parts, Pipeline, PipelineOptions, Submission, compile_text};
use tocsin_store::{
    journal::{JournalOptions, MailProviders, OpenWork},
    memory::records::MemoryRecords,
    records::{
        ApplicationStore, NewApplicationVersion, NewSubscriber, NewSubscription, SubscriberStore, SubscriptionStore,
    },
    sqlite::journal::SqliteJournal,
};
use tocsin_test_peers::{NameServer, until};
use tocsin_testkit::SimulatedClock;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

/// Recipients at each domain.
const RECIPIENTS: usize = 10;
/// Hosted by Google, by Microsoft, by the domain itself, and with a name server that fails.
const DOMAINS: [&str; 4] = ["hosted.example", "office.example", "own.example", "broken.example"];
const ZONE: &str = "hosted.example MX 10 aspmx.l.google.com.
    office.example MX 10 office-example.mail.protection.outlook.com.
    own.example MX 10 mx.own.example.
    broken.example SERVFAIL";

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// A mail server that accepts mail, except for the provider of `hosted.example` while it holds mail back.
#[derive(Default)]
struct MailServer {
    holds_back: AtomicBool,
    /// Accepted mails by domain.
    accepted: Mutex<BTreeMap<String, usize>>,
}

impl MailServer {
    async fn start() -> (Arc<MailServer>, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = Arc::new(MailServer { holds_back: AtomicBool::new(true), ..MailServer::default() });
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serving.clone();
                tokio::spawn(async move { serving.serve(stream).await.ok() });
            }
        });
        (server, port)
    }

    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let (reader, mut writer) = stream.split();
        let mut lines = BufReader::new(reader).lines();
        writer.write_all(b"220 mail.example ready\r\n").await?;
        let (mut domain, mut is_content) = (String::new(), false);
        while let Some(line) = lines.next_line().await? {
            if is_content {
                is_content = line != ".";
                if !is_content {
                    *self.accepted.lock().expect("no panic").entry(std::mem::take(&mut domain)).or_default() += 1;
                    writer.write_all(b"250 2.0.0 ok\r\n").await?;
                }
                continue;
            }
            let reply: &[u8] = match line.split([' ', ':']).next().unwrap_or_default() {
                "EHLO" => b"250-mail.example\r\n250 PIPELINING\r\n",
                "RCPT" => {
                    domain = line.rsplit_once('@').map_or("", |(_, domain)| domain.trim_end_matches('>')).to_owned();
                    if domain == DOMAINS[0] && self.holds_back.load(Ordering::SeqCst) {
                        writer.write_all(b"421 4.7.28 unusual rate of mail\r\n").await?;
                        return Ok(());
                    }
                    b"250 2.1.5 ok\r\n"
                }
                "DATA" => {
                    is_content = true;
                    b"354 go on\r\n"
                }
                "QUIT" => return Ok(()),
                _ => b"250 ok\r\n",
            };
            writer.write_all(reply).await?;
        }
        Ok(())
    }

    fn accepted(&self) -> BTreeMap<String, usize> {
        self.accepted.lock().expect("no panic").clone()
    }
}

fn definition(mail_port: u16, name_server: &NameServer) -> String {
    format!(
        r#"
application: shop
events:
  offer: {{ fields: {{ title: string }} }}
subscriptions:
  any: {{}}
notifications:
  news:
    fields: {{ title: string }}
    content: {{ templates: {{ base: {{ subject: "{{{{ title }}}}", text: "{{{{ title }}}}" }} }} }}
rules:
  every: {{ on: offer, subscription: any, notify: news }}
channels:
  mail:
    protocol: smtp
    concurrency: 4
    options:
      host: 127.0.0.1
      port: {mail_port}
      tls: off
      from: bells@example.org
      pacing:
        name_server: "{}"
        providers: {{ outlook: {{ warm_up: {{ start: 3 }} }} }}
"#,
        name_server.address()
    )
}

async fn records(definition: &str) -> Arc<MemoryRecords> {
    let records = Arc::new(MemoryRecords::new().expect("random numbers"));
    let id = |at: usize| format!("p{at:03}").parse().expect("an id");
    let person = |at: usize| {
        let address = format!("p{at}@{}", DOMAINS[at % DOMAINS.len()]);
        let device = Device { channel: name("mail"), address, state: DeviceState::Active };
        NewSubscriber {
            kept: Default::default(),
            id: id(at),
            profile: Profile::default(),
            devices: Some(vec![(name("main"), device)]),
            preferences: None,
        }
    };
    let interest = |at: usize| NewSubscription {
        application: name("shop"),
        class: name("any"),
        subscriber: id(at),
        key: None,
        device: None,
        enabled: Some(true),
        values: "{}".into(),
        terms: SubscriptionParams::default(),
    };
    let count = RECIPIENTS * DOMAINS.len();
    records.put_subscribers((0..count).map(person).collect(), Timestamp(0)).await.expect("stored");
    records.put_subscriptions((0..count).map(interest).collect(), Timestamp(0)).await.expect("stored");
    let version = NewApplicationVersion { name: &name("shop"), text: definition, author: "test", now: Timestamp(0) };
    records.put_application(version).await.expect("stored");
    records
}

struct Platform {
    folder: tempfile::TempDir,
    definition: String,
    records: Arc<MemoryRecords>,
    clock: SimulatedClock,
}

impl Platform {
    async fn start(&self) -> (Arc<Pipeline>, Arc<SqliteJournal>) {
        let options = JournalOptions { free_bytes_min: 0, ..JournalOptions::default() };
        let file = self.folder.path().join("journal.db");
        let journal = Arc::new(SqliteJournal::open(file, options).await.expect("it opens"));
        let parts = Parts {
            journal: journal.clone(),
            inbox: Arc::new(tocsin_store::memory::inbox::MemoryInbox::default()),
            records: self.records.clone(),
            environment: Arc::new(|_| None),
            context: Context {
                clock: Arc::new(self.clock),
                installation: "test".to_owned(),
                data_folder: self.folder.path().to_owned(),
                networks: Networks::default(),
                token_signer: Arc::new(TokenSigner::new(&[7; 32])),
                public_url: None,
                feeds: None,
                provider_days: None,
                programs: Programs::default(),
                files: Default::default(),
                application: String::new(),
            },
            opener: Arc::new(tocsin_delivery::open),
            options: PipelineOptions::default(),
            seed: 7,
            spans: Default::default(),
        };
        (Pipeline::start(parts).await.expect("the pipeline starts"), journal)
    }

    async fn submit(&self, pipeline: &Pipeline) {
        let compiled = compile_text(&self.definition, 1, &|_| None).expect("it compiles");
        let mut packer = EventPacker::new(compiled.application.events["offer"].fields.clone());
        packer.push(&["Sale".into()]);
        let submission = Submission {
            application: name("shop"),
            version: 1,
            class: name("offer"),
            source: api_source(),
            received_at: Timestamp(0),
            events: packer.finish(),
            idempotency: None,
            marks: Vec::new(),
        };
        pipeline.accept(submission).await.expect("accepted");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_provider_holds_mail_back_and_the_others_get_theirs() {
    let (server, port) = MailServer::start().await;
    let name_server = NameServer::start(ZONE);
    let definition = definition(port, &name_server);
    let platform = Platform {
        folder: tempfile::tempdir().expect("a folder"),
        records: records(&definition).await,
        definition,
        clock: SimulatedClock::midnight(),
    };
    let (pipeline, journal) = platform.start().await;
    platform.submit(&pipeline).await;

    let expected: BTreeMap<String, usize> = [(DOMAINS[1], 3), (DOMAINS[2], RECIPIENTS), (DOMAINS[3], RECIPIENTS)]
        .map(|(domain, count)| (domain.to_owned(), count))
        .into();
    until("the others get their mail", async || server.accepted() == expected).await;
    let waiting = 2 * RECIPIENTS - 3;
    until("the rest waits in the journal", async || journal.backlog().notifications == waiting as u64).await;

    let held_back = pipeline.held_back();
    let [(application, channel, providers)] = held_back.as_slice() else { panic!("one channel: {held_back:?}") };
    assert_eq!((application.as_str(), channel.as_str(), providers.len()), ("shop", "mail", 1));
    assert_eq!((providers[0].provider.as_str(), &*providers[0].said), ("google", "421 4.7.28 unusual rate of mail"));
    assert!(providers[0].paused_for.is_some());
    let destinations = pipeline.destinations(&name("shop"), 10);
    let outlook = destinations[0].1.iter().find(|found| found.name == "outlook").expect("a provider");
    assert_eq!(outlook.reason.as_deref(), Some("3 of 3 mails of today are sent by the warm-up"));

    // The numbers of the day survive a crash: another event brings no further mail to a provider in its warm-up.
    let days = async |journal: &SqliteJournal| {
        let days = journal.last_provider_days(&name("shop"), &name("mail")).await.expect("read");
        days.into_iter().map(|(provider, day)| (provider.to_string(), day.sent, day.limit)).collect::<Vec<_>>()
    };
    let stored = [("outlook".to_owned(), 3, 3)];
    until("the numbers are stored", async || days(&journal).await == stored).await;
    pipeline.abort().await;
    drop((pipeline, journal));
    server.holds_back.store(false, Ordering::SeqCst);
    let (pipeline, journal) = platform.start().await;
    platform.submit(&pipeline).await;
    let expected: BTreeMap<String, usize> =
        [(DOMAINS[0], RECIPIENTS), (DOMAINS[1], 3), (DOMAINS[2], 2 * RECIPIENTS), (DOMAINS[3], 2 * RECIPIENTS)]
            .map(|(domain, count)| (domain.to_owned(), count))
            .into();
    until("the second event is delivered", async || server.accepted() == expected).await;
    let waiting = (waiting + RECIPIENTS) as u64;
    until("the rest waits for the next day", async || journal.backlog().notifications == waiting).await;
    assert_eq!(days(&journal).await, stored);
    assert!(pipeline.drain(Duration::from_secs(60)).await);
}
