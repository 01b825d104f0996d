//! Sources against the real binary: SIGKILL while another process drops files; nothing is lost or repeated.

mod support;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use support::{Platform, until};
use tocsin_model::{
    event::EventBatch,
    field::{Field, FieldType, Fields},
    value::Value,
};
use tocsin_store::{
    journal::{EventLog, JournalOptions},
    sqlite::journal::SqliteJournal,
};
use tocsin_test_peers::{Peer, missing, reserved_port};

const APPLICATION: &str = r#"
application: drops
events: { drop: { fields: { token: { type: string, required: true } } } }
sources:
  files: { kind: directory, events: [drop], options: { folder: in, settle: 1ms } }
"#;

/// Drops files atomically until there are `$2`: each is written elsewhere, then moved. Every tenth is large.
const DROPPER: &str = r#"
n=0
while [ $n -lt $2 ]; do
  lines=20; [ $((n % 10)) = 0 ] && lines=3000
  seq -f "{\"token\": \"$n-%g\"}" $lines > "$1/.$n.tmp"
  mv "$1/.$n.tmp" "$1/$(printf %04d $n).ndjson"
  n=$((n + 1))
done
"#;

const FILES: usize = 60;

fn lines_of(file: usize) -> usize {
    if file.is_multiple_of(10) { 3_000 } else { 20 }
}

fn left(folder: &Path) -> usize {
    let names = fs::read_dir(folder).expect("the folder is there");
    names.filter(|entry| !entry.as_ref().expect("an entry").file_name().to_string_lossy().ends_with(".done")).count()
}

/// Tokens of all events in a journal, in the order of acceptance.
async fn tokens(data: &Path, source: &str) -> Vec<String> {
    let field = Field {
        name: "token".parse().expect("a name"),
        kind: FieldType::String,
        required: true,
        default: Value::Null,
        description: None,
    };
    let fields = Fields::new(vec![field]);
    let journal = SqliteJournal::open(data.join("journal.db"), JournalOptions::default()).await.expect("it opens");
    let mut batches: Vec<EventBatch> = Vec::new();
    loop {
        let before = batches.last().map(|batch| batch.id);
        let page = journal.event_batches(before, 100).await.expect("read");
        if page.is_empty() {
            break;
        }
        // Lists do not contain the events.
        for (listed, _) in page {
            let (batch, _) = journal.event_batch(listed.id).await.expect("read").expect("it is there");
            batches.push(batch);
        }
    }
    let token = |batch: &EventBatch, at: u32| match &batch.events.row(&fields, at).expect("a row")[0] {
        Value::Text(text) => text.to_string(),
        other => panic!("{other:?}"),
    };
    batches.reverse();
    assert!(batches.iter().all(|batch| batch.source.as_str() == source), "each names its source");
    batches.iter().flat_map(|batch| (0..batch.events.count()).map(|at| token(batch, at)).collect::<Vec<_>>()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_files_dropped_during_kills_are_processed_once_and_in_order() {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let mut platform = Platform::start(&[]).await;
    platform.apply("drops", APPLICATION).await;
    let folder = platform.folder.join("drop/in");
    until("the folder is created", async || folder.exists()).await;
    let mut dropper = Command::new("sh")
        .args(["-c", DROPPER, "dropper"])
        .arg(&folder)
        .arg(FILES.to_string())
        .spawn()
        .expect("a shell");
    let mut kills = 0;
    let deadline = tokio::time::Instant::now() + support::wait_timeout();
    loop {
        tokio::time::sleep(Duration::from_millis(random.u64(5..60))).await;
        let dropped = dropper.try_wait().expect("it can be asked").is_some();
        if dropped && left(&folder) == 0 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{} files are left", left(&folder));
        // Later the intervals grow, so that progress is guaranteed.
        if kills < 25 {
            platform.kill();
            platform.restart().await;
            kills += 1;
        }
    }
    platform.kill();
    println!("{kills} kills");
    let found = tokens(&platform.folder, "files").await;
    let expected: Vec<String> =
        (0..FILES).flat_map(|file| (1..=lines_of(file)).map(move |line| format!("{file}-{line}"))).collect();
    let mut sorted = found.clone();
    sorted.sort();
    let mut wanted = expected.clone();
    wanted.sort();
    assert_eq!(sorted.len(), wanted.len());
    assert!(sorted == wanted, "each once");
    // Within a file the order is that of its lines.
    for file in 0..FILES {
        let of_file: Vec<&String> = found.iter().filter(|token| token.starts_with(&format!("{file}-"))).collect();
        let in_order: Vec<String> = (1..=lines_of(file)).map(|line| format!("{file}-{line}")).collect();
        assert!(of_file.iter().copied().eq(in_order.iter()), "file {file}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sources_of_an_application_are_shown() {
    let mut platform = Platform::start(&[]).await;
    platform.apply("drops", APPLICATION).await;
    let mut shown = serde_json::Value::Null;
    until("the source runs", async || {
        shown = platform.get("/v1/applications/drops/sources").await;
        shown["items"][0]["state"] == "running"
    })
    .await;
    assert_eq!((&shown["items"][0]["source"], &shown["items"][0]["class"]), (&"files".into(), &"drop".into()));
    let (status, problem) =
        platform.post("/v1/applications/drops/events/drop?source=files", &serde_json::json!({})).await;
    assert_eq!(status, 422, "others may not submit in its name: {problem}");
    let bad = APPLICATION.replace("settle: 1ms", "setle: 1ms, fields: {tokn: a}");
    let request = platform.request(reqwest::Method::POST, "/v1/applications/check");
    let answer = request.header("content-type", "application/yaml").body(bad).send().await.expect("an answer");
    let text = answer.text().await.expect("a body");
    assert!(text.contains("did you mean `settle`?"), "{text}");
    platform.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_week_of_quakes_comes_through_a_folder() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quakes");
    let folder = tempfile::tempdir().expect("a folder");
    let copied = Command::new("cp").arg("-r").arg(&example).arg(folder.path()).status().expect("cp runs");
    assert!(copied.success());
    let definition = folder.path().join("quakes/application.yaml");
    let page = fs::read_to_string(example.join("README.md")).expect("its page");
    let sources = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("its sources");
    let text = fs::read_to_string(&definition).expect("its definition");
    fs::write(&definition, format!("{text}\n{sources}")).expect("written");

    let mut platform = Platform::start(&[]).await;
    platform.run(&["apply", definition.to_str().expect("text"), "--yes"]);
    let drop = platform.folder.join("drop/quakes");
    until("the folder is created", async || drop.exists()).await;
    fs::copy(example.join("usgs-earthquakes-week.geojson"), drop.join(".week")).expect("copied");
    fs::rename(drop.join(".week"), drop.join("week.geojson")).expect("moved");
    until("the file is processed", async || left(&drop) == 0).await;
    let shown = platform.get("/v1/applications/quakes/sources").await;
    assert_eq!((&shown["items"][0]["events"], &shown["items"][0]["batches"]), (&1_707.into(), &2.into()), "{shown}");
    platform.terminate();
}

/// Kills the platform at seeded random times until `is_enough`.
async fn kill_until(platform: &mut Platform, mut is_enough: impl AsyncFnMut(&Platform) -> bool) {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let deadline = tokio::time::Instant::now() + support::wait_timeout();
    let mut kills = 0;
    while !is_enough(platform).await {
        assert!(tokio::time::Instant::now() < deadline, "no progress within the deadline");
        tokio::time::sleep(Duration::from_millis(random.u64(5..150))).await;
        // Later the intervals grow, so that progress is guaranteed.
        if kills < 15 {
            platform.kill();
            platform.restart().await;
            kills += 1;
        }
    }
    platform.kill();
    println!("{kills} kills");
}

/// Number of events in the journal. The counters of a source restart with each process, so its batches are counted.
async fn accepted(platform: &Platform) -> usize {
    let (mut events, mut before) = (0, String::new());
    loop {
        let page = platform.get(&format!("/v1/event-batches?limit=100{before}")).await;
        let items = page["items"].as_array().expect("a list").clone();
        events += items.iter().map(|item| item["events"].as_u64().expect("a number")).sum::<u64>();
        match items.last() {
            Some(last) if items.len() == 100 => before = format!("&before={}", last["id"].as_str().expect("an id")),
            _ => return usize::try_from(events).expect("it fits"),
        }
    }
}

/// Checks that the journal has exactly these tokens, each once.
async fn check_tokens(platform: &Platform, source: &str, mut wanted: Vec<String>) {
    let mut found = tokens(&platform.folder, source).await;
    found.sort();
    wanted.sort();
    assert_eq!(found.len(), wanted.len());
    assert!(found == wanted, "each once");
}

/// Sends mails as a mail server does: repeats each until it is accepted.
const MAILER: &str = r#"
n=0
while [ $n -lt $4 ]; do
  printf 'Subject: %s-%s\r\nMessage-ID: <%s.%s@example.org>\r\n\r\nhello\r\n' $2 $n $2 $n > "$3/$2"
  until curl -s --mail-from a@example.org --mail-rcpt b@example.org --upload-file "$3/$2" "smtp://127.0.0.1:$1"; do sleep 0.02; done
  n=$((n + 1))
done
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_mails_sent_during_kills_are_events_once() {
    if missing(&[Peer::Curl]) {
        return;
    }
    const MAILERS: usize = 3;
    const MAILS: usize = 60;
    let mut platform = Platform::start(&[]).await;
    let port = reserved_port();
    let definition = format!(
        "application: drops\nevents: {{ drop: {{ fields: {{ token: {{ type: string, required: true }} }} }} }}\nsources:\n  \
         mails: {{ kind: mail, events: [drop], options: {{ listen: '127.0.0.1:{port}', recipients: ['*'], fields: {{ token: subject }} }} }}\n"
    );
    platform.apply("drops", &definition).await;
    let folder = tempfile::tempdir().expect("a folder");
    let mailer = |number: usize| {
        let mut shell = Command::new("sh");
        shell.args(["-c", MAILER, "mailer", &port.to_string(), &number.to_string()]).arg(folder.path());
        shell.arg(MAILS.to_string()).spawn().expect("a shell")
    };
    let mut mailers: Vec<_> = (0..MAILERS).map(mailer).collect();
    let ended = async |_: &Platform| mailers.iter_mut().all(|mailer| mailer.try_wait().expect("asked").is_some());
    kill_until(&mut platform, ended).await;
    let wanted = (0..MAILERS).flat_map(|mailer| (0..MAILS).map(move |mail| format!("{mailer}-{mail}")));
    check_tokens(&platform, "mails", wanted.collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_kafka_messages_written_during_kills_are_processed_once() {
    if missing(&[Peer::Kafka]) {
        return;
    }
    const PORTIONS: usize = 30;
    const MESSAGES: usize = 40;
    let broker_folder = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    fs::write(broker_folder.path().join("certificate.pem"), made.cert.pem()).expect("written");
    fs::write(broker_folder.path().join("key.pem"), made.signing_key.serialize_pem()).expect("written");
    let mut broker = Command::new("java")
        .args(["-Xmx384m", "-cp", &format!("{}/*", Peer::Kafka.path().display())])
        .arg(support::repository("crates/sources/testdata/kafka/Broker.java"))
        .arg(broker_folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("java starts");
    let mut answers = BufReader::new(broker.stdout.take().expect("it is piped")).lines();
    let mut input = broker.stdin.take().expect("it is piped");
    let ready = answers.next().expect("the broker starts").expect("text");
    let port = ready.split(' ').next().expect("a port").to_owned();
    let mut command_broker = move |command: String| {
        writeln!(input, "{command}").expect("it listens");
        let answer = answers.next().expect("it answers").expect("text");
        assert!(!answer.starts_with("failed"), "{command}: {answer}");
    };
    command_broker("create kills 3".to_owned());

    let mut platform = Platform::start(&[]).await;
    let definition = format!(
        "application: drops\nevents: {{ drop: {{ fields: {{ token: {{ type: string, required: true }} }} }} }}\nsources:\n  \
         messages: {{ kind: kafka, events: [drop], options: {{ brokers: ['127.0.0.1:{port}'], topics: [kills], fields: {{ token: id }} }} }}\n"
    );
    platform.apply("drops", &definition).await;
    let writer = std::thread::spawn(move || {
        for portion in 0..PORTIONS {
            let packing = ["none", "gzip", "snappy", "lz4", "zstd"][portion % 5];
            let first = portion * MESSAGES;
            command_broker(format!("send kills {} {packing} {first} {}", portion % 3, first + MESSAGES));
        }
        command_broker
    });
    let all = PORTIONS * MESSAGES;
    kill_until(&mut platform, async |platform: &Platform| writer.is_finished() && accepted(platform).await >= all)
        .await;
    // The broker ends with its input.
    drop(writer.join().expect("the writer succeeds"));
    broker.wait().expect("it ends");
    check_tokens(&platform, "messages", (0..all).map(|number| format!("q{number}")).collect()).await;
}

/// Application with one source.
fn with_source(source: &str) -> String {
    format!(
        "application: drops\nevents: {{ drop: {{ fields: {{ token: {{ type: string, required: true }} }} }} }}\nsources:\n  \
         {source}\n"
    )
}

/// Writes rows into a table while the platform, which reads them by this source, is killed.
async fn rows_are_events_once(name: &str, source: impl Fn(&Path) -> String) {
    const ROWS: usize = 2_000;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rows.db");
    let rows = rusqlite::Connection::open(&file).expect("a file");
    rows.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE drops (nr INTEGER PRIMARY KEY, token TEXT)")
        .expect("made");
    let opened = folder.path().to_string_lossy().into_owned();
    let mut platform = Platform::start(&[("TOCSIN_SOURCES_ALLOW_FOLDERS", &opened)]).await;
    platform.apply("drops", &with_source(&source(&file))).await;
    let writer = std::thread::spawn(move || {
        rows.busy_timeout(support::wait_timeout()).expect("set");
        for number in 0..ROWS {
            let sql = "INSERT INTO drops (nr, token) VALUES (?1, ?2)";
            rows.execute(sql, (number as i64 + 1, format!("r{number}"))).expect("written");
        }
    });
    kill_until(&mut platform, async |platform: &Platform| writer.is_finished() && accepted(platform).await >= ROWS)
        .await;
    writer.join().expect("the writer succeeds");
    check_tokens(&platform, name, (0..ROWS).map(|number| format!("r{number}")).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_query_rows_written_during_kills_are_processed_once() {
    let source = |file: &Path| {
        format!(
            "rows: {{ kind: query, events: [drop], options: {{ database: 'sqlite:{}', query: 'SELECT nr, token FROM drops \
             WHERE nr > :mark ORDER BY nr', mark: nr, start: '0', every: 1ms, fields: {{ token: token }} }} }}",
            file.display()
        )
    };
    rows_are_events_once("rows", source).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_outbox_rows_written_during_kills_are_processed_once() {
    let source = |file: &Path| {
        format!(
            "box: {{ kind: outbox, events: [drop], options: {{ database: 'sqlite:{}', table: drops, key: nr, every: 1ms, \
             fields: {{ token: token }} }} }}",
            file.display()
        )
    };
    rows_are_events_once("box", source).await;
}

/// Starts an installed server and waits until its log has this text. Returns the lines before it.
fn started(mut command: Command, ready: &str) -> (Child, Vec<String>) {
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut log = BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
    let mut said = Vec::new();
    for line in log.by_ref() {
        let is_ready = line.contains(ready);
        said.push(line);
        if is_ready {
            break;
        }
    }
    // If the output is not read, the server blocks.
    std::thread::spawn(move || log.for_each(drop));
    (child, said)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_nats_messages_written_during_kills_are_processed_once() {
    if missing(&[Peer::Nats]) {
        return;
    }
    const MESSAGES: usize = 1_000;
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(Peer::Nats.path());
    command.args(["-a", "127.0.0.1", "-p", "-1", "-js", "-sd"]).arg(folder.path());
    let (mut server, said) = started(command, "Server is ready");
    let at = "Listening for client connections on ";
    let address = said.iter().find_map(|line| Some(line.split_once(at)?.1.trim().to_owned())).expect("an address");
    let address = format!("nats://{address}");
    let context = async_nats::jetstream::new(async_nats::connect(&address).await.expect("a connection"));
    let config = async_nats::jetstream::stream::Config {
        name: "DROPS".into(),
        subjects: vec!["drops".into()],
        ..Default::default()
    };
    let stream = context.create_stream(config).await.expect("a stream");
    // Messages in flight to a killed server are redelivered after a second.
    let consumer = async_nats::jetstream::consumer::pull::Config {
        durable_name: Some("drops".to_owned()),
        ack_wait: Duration::from_secs(1),
        ..Default::default()
    };
    stream.create_consumer(consumer).await.expect("a consumer");
    let mut platform = Platform::start(&[]).await;
    let options = format!("{{ servers: ['{address}'], stream: DROPS, consumer: drops }}");
    let source = format!("bus: {{ kind: nats, events: [drop], options: {options} }}");
    platform.apply("drops", &with_source(&source)).await;
    let writer = tokio::spawn(async move {
        for number in 0..MESSAGES {
            let body = format!("{{\"token\": \"m{number}\"}}");
            context.publish("drops", body.into()).await.expect("sent").await.expect("kept");
        }
    });
    kill_until(&mut platform, async |platform: &Platform| writer.is_finished() && accepted(platform).await >= MESSAGES)
        .await;
    writer.await.expect("the writer succeeds");
    check_tokens(&platform, "bus", (0..MESSAGES).map(|number| format!("m{number}")).collect()).await;
    server.kill().expect("it can be killed");
    server.wait().expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_mosquitto_messages_written_during_kills_are_processed_once() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    use rumqttc::v5::{
        AsyncClient, Event, MqttOptions,
        mqttbytes::{QoS, v5::Packet},
    };
    const MESSAGES: usize = 1_000;
    let folder = tempfile::tempdir().expect("a folder");
    let (port, file) = (reserved_port(), folder.path().join("mosquitto.conf"));
    let lines = "allow_anonymous true\nmax_queued_messages 10000\nlog_dest stderr";
    fs::write(&file, format!("listener {port} 127.0.0.1\n{lines}\n")).expect("a file");
    let mut command = Command::new(Peer::Mosquitto.path());
    command.args(["-v", "-c"]).arg(&file);
    let (mut broker, _) = started(command, " running");
    let publish = async move |texts: Vec<String>| {
        let mut options = MqttOptions::new("writer", "127.0.0.1", port);
        options.set_keep_alive(Duration::from_secs(60));
        let (client, mut events) = AsyncClient::new(options, texts.len().max(1));
        let mut open = texts.len();
        for text in texts {
            client
                .publish("drops", QoS::AtLeastOnce, false, format!("{{\"token\": \"{text}\"}}"))
                .await
                .expect("asked");
        }
        while open > 0 {
            if let Event::Incoming(Packet::PubAck(_)) = events.poll().await.expect("a connection") {
                open -= 1;
            }
        }
    };
    let mut platform = Platform::start(&[]).await;
    let options = format!("{{ host: 127.0.0.1, port: {port}, topics: [drops] }}");
    let source = format!("bus: {{ kind: mqtt, events: [drop], options: {options} }}");
    platform.apply("drops", &with_source(&source)).await;
    // The session begins with the subscription, so the first message is repeated until one arrives.
    let deadline = tokio::time::Instant::now() + support::wait_timeout();
    while accepted(&platform).await == 0 {
        assert!(tokio::time::Instant::now() < deadline, "nothing arrives");
        publish(vec!["first".to_owned()]).await;
    }
    let writer = tokio::spawn(async move {
        for portion in 0..20 {
            let numbers = portion * MESSAGES / 20..(portion + 1) * MESSAGES / 20;
            publish(numbers.map(|number| format!("m{number}")).collect()).await;
        }
    });
    // The number of first messages that arrived is unknown.
    kill_until(&mut platform, async |platform: &Platform| writer.is_finished() && accepted(platform).await > MESSAGES)
        .await;
    writer.await.expect("the writer succeeds");
    let deadline = tokio::time::Instant::now() + support::wait_timeout();
    let mut found = loop {
        let mut found = tokens(&platform.folder, "bus").await;
        let stored = found.len();
        found.retain(|token| token != "first");
        if found.len() >= MESSAGES {
            break found;
        }
        assert!(tokio::time::Instant::now() < deadline, "{} of {MESSAGES} are stored", found.len());
        platform.restart().await;
        until("more messages are stored", async || accepted(&platform).await > stored).await;
        platform.kill();
    };
    found.sort();
    let mut wanted: Vec<String> = (0..MESSAGES).map(|number| format!("m{number}")).collect();
    wanted.sort();
    assert!(found == wanted, "each once");
    broker.kill().expect("it can be killed");
    broker.wait().expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applying_a_source_without_permission_is_a_warning() {
    let platform = Platform::start(&[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("app.yaml");
    let source = "mails: { kind: mail, events: [drop], options: { listen: '0.0.0.0:2525', recipients: ['*'], fields: { token: subject } } }";
    fs::write(&file, with_source(source)).expect("written");
    let file = file.to_str().expect("a path");
    for arguments in [&["check", file][..], &["apply", file, "--dry-run"], &["apply", file, "--yes"]] {
        let output = platform.run(arguments);
        assert!(
            output.contains("a source may not listen at 0.0.0.0:2525") && output.contains("allow_listen"),
            "{output}"
        );
    }
}
