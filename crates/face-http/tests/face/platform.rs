//! A complete in-memory platform with a real socket, for the HTTP tests.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicUsize, Ordering},
};

use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::Value as Json;
use tocsin_connect::{Clock, SystemClock, networks::Networks};
use tocsin_delivery::{Context, TokenSigner};
use tocsin_directory::{Directory, Options, access::AuthzId, entry::Shape};
use tocsin_face_http::{HttpOptions, OpenDirectory, ScimOptions};
use tocsin_feedback::return_address::Position;
use tocsin_model::{
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_pipeline::Pipeline;
use tocsin_service::{Parts, Service, ServiceError, keys, receivers::Receivers};
use tocsin_store::{
    inbox::Inbox,
    journal::JournalOptions,
    memory::{inbox::MemoryInbox, journal::MemoryJournal, records::MemoryRecords},
    records::Records,
};
use tocsin_testkit::{ScriptedChannels, SimulatedClock};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::{error_codes::check_codes, receivers::Fetched};

pub const QUAKES: &str = "
application: quakes
events:
  quake:
    fields:
      place: {type: string, required: true}
      magnitude: {type: number, required: true}
subscriptions:
  strong:
    fields:
      magnitude: {type: number, required: true}
      note: {type: string}
notifications:
  shaken:
    fields:
      place: string
    content:
      engine: jinja
      templates:
        base: {text: 'A quake at {{ place }}'}
rules:
  strong_enough:
    on: quake
    subscription: strong
    when: event.magnitude >= sub.magnitude
    notify: shaken
channels:
  mail:
    protocol: file
    options: {path: out.ndjson}
";

/// A path that no channel can open.
pub const TAKEN: &str = "taken.ndjson";

/// The system clock, which a test advances.
#[derive(Clone, Default)]
pub struct AdvancedClock(Arc<AtomicI64>);

impl AdvancedClock {
    pub fn advance(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1_000_000, Ordering::Relaxed);
    }
}

impl Clock for AdvancedClock {
    fn now(&self) -> Timestamp {
        Timestamp(SystemClock.now().0 + self.0.load(Ordering::Relaxed))
    }
}

pub struct Platform {
    pub clock: AdvancedClock,
    pub address: String,
    pub key: String,
    pub client: Client,
    pub far_ends: ScriptedChannels,
    /// Number of times that a channel was opened.
    pub opened: Arc<AtomicUsize>,
    /// The inbox into which the pipeline delivers.
    pub inbox: Arc<dyn Inbox>,
    /// The records.
    pub records: Arc<dyn Records>,
    /// The service behind the routes.
    pub service: Arc<Service>,
    /// The same subscribers as entries.
    pub directory: Directory,
    /// Requests of the receivers of webhooks.
    pub fetched: Fetched,
    /// Base URL of links.
    pub secret: [u8; 32],
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    served: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Platform {
    pub async fn start() -> Platform {
        Platform::with(HttpOptions::default(), JournalOptions::default()).await
    }

    pub async fn with(options: HttpOptions, journal: JournalOptions) -> Platform {
        Platform::build(options, journal, true).await
    }

    /// Without the routes of the directory.
    pub async fn without_directory(options: HttpOptions, journal: JournalOptions) -> Platform {
        Platform::build(options, journal, false).await
    }

    async fn build(options: HttpOptions, journal: JournalOptions, has_directory: bool) -> Platform {
        let clock = AdvancedClock::default();
        let stored = Arc::new(MemoryRecords::new().expect("records"));
        let records: Arc<dyn Records> = stored.clone();
        let directory = directory(stored).await;
        let public_url = Some("https://tocsin.example".to_owned());
        let scim = Some(ScimOptions { directory: directory.clone(), public_url });
        let exported = directory.clone();
        let open: OpenDirectory = Arc::new(move || {
            let directory = exported.clone();
            Box::pin(async move { Ok(directory) })
        });
        let entries = has_directory.then(|| directory.clone());
        let options = HttpOptions { scim, entries, directory: Some(open), ..options };
        let journal = Arc::new(MemoryJournal::new(journal));
        let inbox: Arc<dyn Inbox> = Arc::new(MemoryInbox::default());
        let key = keys::first_key::<ServiceError>(&*records, Timestamp(0), |_| Ok(())).await;
        let key = key.expect("a key").expect("the first");
        let far_ends = ScriptedChannels::new(SimulatedClock::midnight());
        let ends = far_ends.clone();
        let opened = Arc::new(AtomicUsize::new(0));
        let secret = *records.secret();
        let counted = opened.clone();
        let parts = tocsin_pipeline::Parts {
            journal: journal.clone(),
            records: records.clone(),
            inbox: inbox.clone(),
            environment: Arc::new(|_| None),
            context: Context {
                clock: Arc::new(clock.clone()),
                installation: "test".to_owned(),
                data_folder: std::path::PathBuf::new(),
                networks: Networks::default(),
                programs: Default::default(),
                files: Default::default(),
                application: String::new(),
                token_signer: Arc::new(token_signer(records.secret())),
                feeds: None,
                provider_days: None,
                public_url: Some("https://tocsin.example".to_owned()),
            },
            opener: Arc::new(move |name, channel, _| {
                if channel.options.get("path").is_some_and(|path| path == TAKEN) {
                    return Err(vec![Problem::new(Code::Duplicate, "path", "is taken")]);
                }
                counted.fetch_add(1, Ordering::Relaxed);
                Ok(ends.channel(name.as_str()))
            }),
            options: tocsin_pipeline::PipelineOptions::default(),
            seed: 7,
            spans: Default::default(),
        };
        let pipeline = Pipeline::start(parts).await.expect("a pipeline");
        let kept = records.clone();
        let service = Service::open(Parts {
            records,
            journal,
            inbox: inbox.clone(),
            pipeline,
            exchanges: None,
            free_space: None,
            saturation: None,
            version: "0.0.0-test",
        });
        let service = service.await.expect("a service");
        let behind = service.clone();
        let (fetched, public_url) = (Fetched::default(), Some("https://tocsin.example".to_owned()));
        let receivers = Receivers::new(service.clone(), Arc::new(fetched.clone()), public_url);
        let options = HttpOptions { receivers: Some(Arc::new(receivers)), ..options };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let served = tokio::spawn(tocsin_face_http::serve(listener, service, options, async {
            let _ = stopped.await;
        }));
        // The client requires a crypto provider even for plain HTTP. A second installation fails, which is harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().build().expect("a client");
        Platform {
            clock,
            address,
            key,
            client,
            far_ends,
            opened,
            inbox,
            records: kept,
            service: behind,
            directory,
            fetched,
            secret,
            stop: Some(stop),
            served,
        }
    }

    /// With the application `quakes` and the subscriber `alice`.
    pub async fn with_quakes() -> Platform {
        let platform = Platform::start().await;
        platform.apply_quakes().await;
        platform
    }

    pub async fn apply_quakes(&self) {
        let (status, body) = self.put("/v1/applications/quakes", "application/yaml", QUAKES).await;
        assert_eq!(status, 201, "{body}");
        let alice = r#"{"id":"alice","devices":{"mail":{"channel":"mail","address":"alice@example.org"}}}"#;
        let (status, body) = self.post("/v1/subscribers", "application/json", alice).await;
        assert_eq!(status, 201, "{body}");
    }

    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        self.client.request(method, format!("{}{path}", self.address)).bearer_auth(&self.key)
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Json) {
        answer(self.request("GET", path)).await
    }

    pub async fn post(&self, path: &str, kind: &str, body: &str) -> (StatusCode, Json) {
        answer(self.request("POST", path).header("content-type", kind).body(body.to_owned())).await
    }

    pub async fn put(&self, path: &str, kind: &str, body: &str) -> (StatusCode, Json) {
        answer(self.request("PUT", path).header("content-type", kind).body(body.to_owned())).await
    }

    /// A key with these scopes; its id and secret.
    pub async fn make_key(&self, scopes: &[&str]) -> (String, String) {
        let asked = serde_json::json!({ "scopes": scopes }).to_string();
        let (status, made) = self.post("/v1/keys", "application/json", &asked).await;
        assert_eq!(status, 201, "{made}");
        let text = |name: &str| made[name].as_str().expect("text").to_owned();
        (text("id"), text("key"))
    }

    pub async fn revoke(&self, id: &str) {
        let (status, body) = answer(self.request("DELETE", &format!("/v1/keys/{id}"))).await;
        assert_eq!(status, 204, "{body}");
    }

    /// A connection that sends what the test writes, byte for byte. Its receive buffer is small.
    pub async fn connect(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(16 * 1024).expect("a size");
        let address = self.address.trim_start_matches("http://").parse().expect("an address");
        socket.connect(address).await.expect("a connection")
    }

    /// Writes bytes to a new connection. Returns everything received until the server closes it.
    pub async fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.expect("written");
        rest(&mut stream).await
    }

    /// Stops the server and waits for its end.
    pub async fn stop(mut self) {
        let _ = self.stop.take().expect("it runs").send(());
        drop(std::mem::take(&mut self.client));
        self.served.await.expect("it does not panic").expect("it ends well");
    }
}

/// Domain of return addresses.
pub const RETURN_DOMAIN: &str = "bounces.example";

fn token_signer(secret: &[u8; 32]) -> TokenSigner {
    let base = format!("any@{RETURN_DOMAIN}");
    TokenSigner::new(secret).with_return_addresses(&base, Position::WholeLocalPart).expect("an address")
}

/// A directory over the records, whose mail addresses are devices.
async fn directory(entries: Arc<MemoryRecords>) -> Directory {
    let options = Options {
        suffix: "dc=example,dc=org".to_owned(),
        shape: Shape { devices: vec![("mail".into(), "mail".parse().expect("a name"))], ..Shape::default() },
        password_policy: vec!["to * pwdMinLength=8 pwdInHistory=1".to_owned()],
        ..Options::default()
    };
    let clock = Arc::new(|| Timestamp::from(std::time::SystemTime::now()));
    let opened = Directory::open(entries, options, clock).await.expect("a directory");
    opened.build_indexes().await.expect("indexes");
    opened
}

/// A caller with all permissions.
pub fn operator() -> AuthzId {
    AuthzId { manages: true, ..AuthzId::default() }
}

pub async fn answer(request: RequestBuilder) -> (StatusCode, Json) {
    let response = request.send().await.expect("an answer");
    let status = response.status();
    (status, json(response).await)
}

/// Reads from a connection until it is closed.
pub async fn rest(stream: &mut TcpStream) -> String {
    let mut answered = Vec::new();
    let read = async {
        let mut some = [0; 4096];
        // Closing with an unread rest of the request resets the connection; the response was received before.
        while let Ok(count @ 1..) = stream.read(&mut some).await {
            answered.extend_from_slice(&some[..count]);
        }
    };
    tokio::time::timeout(tocsin_test_peers::wait_timeout(), read).await.expect("the server closes the connection");
    String::from_utf8_lossy(&answered).into_owned()
}

/// The body as JSON; null if it is empty, text if it is not JSON.
pub async fn json(response: Response) -> Json {
    let text = response.text().await.expect("a body");
    if text.is_empty() {
        return Json::Null;
    }
    let Ok(json) = serde_json::from_str(&text) else { return Json::String(text) };
    check_codes(&json);
    json
}
