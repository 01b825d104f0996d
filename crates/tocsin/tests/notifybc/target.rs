//! A server with the NotifyBC interface, and callers of each role.

use std::{
    fs::{self, Permissions},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::LazyLock,
};

use mail_parser::MessageParser;
use reqwest::{Client, Method, StatusCode, header::HeaderMap};
use serde_json::{Map, Value, json};
use tocsin_test_peers::reserved_port;
use tokio::{runtime::Runtime, sync::OnceCell};

use crate::support::{
    Platform,
    hooks::Hooks,
    mails::{Mail, Mails},
    until_within, wait_timeout,
};

/// Domain of inbound mail.
pub const INBOUND_DOMAIN: &str = "in.example.org";
/// Key of the SMS gateway.
pub const SWIFT_KEY: &str = "swift-key";
/// Secret that signs callbacks.
pub const CALLBACK_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// Account of the SMS gateway.
pub const SWIFT_ACCOUNT: &str = "12345";
/// Address of callers that are no administrators.
const OTHER_ADDRESS: &str = "127.0.0.2";

/// Runs a program until standard input ends, which is at the latest when this process ends; then removes its folder.
const SUPERVISOR: &str = r#"folder=$1; shift
"$@" & child=$!
read -r _
kill -TERM "$child"; wait "$child"; rm -rf "$folder""#;

/// Runtime of receivers and shared servers. It outlives the runtime of each test.
pub static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
});

/// Role of a caller.
#[derive(Debug, Clone, Copy)]
pub enum Caller<'a> {
    /// Super-admin, by address.
    Admin,
    /// Anonymous, by address.
    Anonymous,
    /// Anonymous, by a header from the address of a super-admin.
    IsAnonymous,
    /// Authenticated user, by a SiteMinder header.
    User(&'a str),
    /// Holder of an access token.
    Token(&'a str),
}

/// Answer of the server.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    /// The JSON body.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The JSON body of a 200.
    #[track_caller]
    pub fn ok(&self) -> Value {
        self.expect(200).json()
    }

    /// Checks the status.
    #[track_caller]
    pub fn expect(&self, status: u16) -> &Answer {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// Checks the status and the whole body.
    #[track_caller]
    pub fn expect_text(&self, status: u16, text: &str) {
        assert_eq!((self.status.as_u16(), self.text.as_str()), (status, text));
    }

    /// A header.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a text"))
    }
}

/// A running server with its receivers.
pub struct Target {
    /// Address with the port, without a path.
    pub host: String,
    /// Port of inbound mail.
    pub inbound: u16,
    /// Receiver of mails.
    pub mails: Mails,
    /// Receiver of SMS requests and callbacks.
    pub hooks: Hooks,
    /// Native interface.
    pub platform: Platform,
    client: Client,
    other: Client,
    process: Option<Child>,
}

/// The server of all tests that use service names and addresses of their own, and change nothing global.
pub async fn shared() -> &'static Target {
    static SHARED: OnceCell<Target> = OnceCell::const_new();
    SHARED.get_or_init(|| Target::start(json!({}))).await
}

/// A server that records skipped subscriptions, with a configured host, without unsubscription by mail, and Twilio.
pub async fn logged() -> &'static Target {
    static LOGGED: OnceCell<Target> = OnceCell::const_new();
    let start = async || {
        let twilio = json!({
            "accountSid": "AC1", "authToken": "secret", "fromNumber": "+12505550100", "apiUrlPrefix": HOOKS,
        });
        let overlay = json!({
            "httpHost": "https://notify.example.ca",
            "notification": {"logSkippedBroadcastPushDispatches": true, "broadcastSubscriberChunkSize": 2},
            "email": {"listUnsubscribeByEmail": {"enabled": false}},
            "sms": {"provider": "twilio", "providerSettings": {"twilio": twilio}},
        });
        Target::start(overlay).await
    };
    LOGGED.get_or_init(start).await
}

/// A server without guarantee, bounces and inbound domain, with Vonage, and with a limited rate of mails.
pub async fn lean() -> &'static Target {
    static LEAN: OnceCell<Target> = OnceCell::const_new();
    let vonage = json!({"apiKey": "key", "apiSecret": "secret", "from": "12505550100", "apiUrlPrefix": HOOKS});
    let overlay = json!({
        "notification": {"guaranteedBroadcastPushDispatchProcessing": false, "logSkippedBroadcastPushDispatches": true},
        "email": {
            "bounce": {"enabled": false},
            "inboundSmtpServer": {"domain": ""},
            "throttle": {"enabled": true, "max": 4, "duration": 1000},
        },
        "sms": {"provider": "vonage", "providerSettings": {"vonage": vonage}},
    });
    LEAN.get_or_init(|| Target::start(overlay)).await
}

/// A server whose jobs run every second.
pub async fn with_jobs() -> &'static Target {
    static JOBS: OnceCell<Target> = OnceCell::const_new();
    let every_second = json!({"timeSpec": "* * * * * *"});
    let names = ["purgeData", "dispatchLiveNotifications", "checkRssConfigUpdates", "deleteBounces"];
    let jobs: Map<String, Value> = names.map(|name| (name.to_owned(), every_second.clone())).into_iter().collect();
    JOBS.get_or_init(|| Target::start(json!({"cron": jobs}))).await
}

/// Stands for the address of the receiver of requests in a document.
const HOOKS: &str = "http://hooks.invalid";

/// A file of a data folder.
struct DataFile {
    path: PathBuf,
    permissions: Permissions,
    bytes: Vec<u8>,
}

/// Fills a data folder with that of a server which has made its key pair. This takes seconds, so it is done once.
pub async fn fill_data_folder(folder: &Path) {
    static FILES: OnceCell<Vec<DataFile>> = OnceCell::const_new();
    let start = || async {
        let start = || RUNTIME.block_on(first_start());
        RUNTIME.spawn_blocking(start).await.expect("the server starts")
    };
    for DataFile { path, permissions, bytes } in FILES.get_or_init(start).await {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(&path, bytes).expect("written");
        fs::set_permissions(&path, permissions.clone()).expect("set");
    }
}

/// The data folder of a server after its first start.
async fn first_start() -> Vec<DataFile> {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let (document, data) = (temporary.path().join("notifybc.json"), temporary.path().join("data"));
    let port = reserved_port();
    fs::write(&document, json!({"host": "127.0.0.1", "port": port}).to_string()).expect("written");
    let document = document.to_str().expect("a text");
    let mut platform = Platform::start_in(&data, &[("TOCSIN_NOTIFYBC_CONFIG", document)]).await;
    let health = format!("http://127.0.0.1:{port}/api/health");
    until_within(wait_timeout() * 6, "the server is healthy", async || {
        platform.client.get(&health).send().await.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
    assert_eq!(platform.terminate(), Some(0));
    let (mut files, mut folders) = (Vec::new(), vec![data.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let permissions = fs::metadata(&path).expect("a file").permissions();
            let bytes = fs::read(&path).expect("a file");
            files.push(DataFile { path: path.strip_prefix(&data).expect("below").to_owned(), permissions, bytes });
        }
    }
    files
}

/// Merges an object over another.
fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (name, value) in over {
                merge(base.entry(name).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over,
    }
}

impl Target {
    /// Starts a server with a document that is merged over that of the tests.
    pub async fn start(overlay: Value) -> Target {
        let folder = tempfile::tempdir().expect("a temporary folder").keep();
        fill_data_folder(&folder.join("data")).await;
        let start = move || RUNTIME.block_on(Target::start_here(folder, overlay));
        RUNTIME.spawn_blocking(start).await.expect("the server starts")
    }

    async fn start_here(folder: PathBuf, overlay: Value) -> Target {
        let (mails, hooks) = (Mails::start().await, Hooks::start("{\"messages\":[{\"status\":\"0\"}]}").await);
        let (port, inbound) = (reserved_port(), reserved_port());
        let mut document = json!({
            "host": "127.0.0.1",
            "port": port,
            "siteMinderReverseProxyIps": [OTHER_ADDRESS],
            "tocsin": {"callbackSecret": CALLBACK_SECRET},
            "email": {
                "smtp": {"host": "127.0.0.1", "port": mails.port, "secure": false, "pool": true},
                "inboundSmtpServer": {
                    "domain": format!("{INBOUND_DOMAIN}, second.example.org"),
                    "listeningSmtpPort": inbound,
                    "options": {"host": "127.0.0.1"},
                },
                "bounce": {"unsubThreshold": 2},
            },
            "sms": {
                "provider": "swift",
                "providerSettings": {"swift": {
                    "apiUrlPrefix": format!("http://127.0.0.1:{}/swift/", hooks.port),
                    "accountKey": SWIFT_ACCOUNT,
                    "notifyBCSwiftKey": SWIFT_KEY,
                }},
                "throttle": {"enabled": false},
            },
        });
        merge(&mut document, overlay);
        let file = folder.join("notifybc.json");
        let document = document.to_string().replace(HOOKS, &format!("http://127.0.0.1:{}", hooks.port));
        fs::write(&file, document).expect("written");
        let file = file.to_str().expect("a text");
        let platform = Platform::prepare(
            folder.join("data"),
            &[
                ("TOCSIN_NOTIFYBC_CONFIG", file),
                ("TOCSIN_NOTIFYBC_STRICT", "true"),
                ("TOCSIN_DELIVERY_ALLOW_NETWORKS", "127.0.0.0/8"),
                ("TOCSIN_HTTP_REQUESTS_PER_ADDRESS_MAX", "0"),
            ],
        );
        let server = platform.command();
        let mut command = Command::new("sh");
        command.args(["-c", SUPERVISOR, "sh"]).arg(&folder).arg(server.get_program()).arg("serve").env_clear();
        command.envs(server.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let log = if std::env::var_os("TEST_LOG").is_some() { Stdio::inherit() } else { Stdio::null() };
        let process = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn().expect("it starts");
        // No connection may outlive the runtime of a test.
        let builder = || {
            let no_redirects = reqwest::redirect::Policy::none();
            Client::builder().timeout(wait_timeout()).pool_max_idle_per_host(0).redirect(no_redirects)
        };
        let other = builder().local_address(Some(OTHER_ADDRESS.parse().expect("an address")));
        let target = Target {
            host: format!("127.0.0.1:{port}"),
            inbound,
            mails,
            hooks,
            platform,
            client: builder().build().expect("a client"),
            other: other.build().expect("a client"),
            process: Some(process),
        };
        let ready = format!("http://{}/api/health", target.host);
        until_within(wait_timeout() * 3, "the server is healthy", async || {
            target.client.get(&ready).send().await.is_ok_and(|answer| answer.status() == 200)
        })
        .await;
        target
    }

    /// URL of a path below the prefix.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/api{path}", self.host)
    }

    /// Request of a caller to a path below the prefix.
    pub fn request(&self, caller: Caller<'_>, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let client = match caller {
            Caller::Admin | Caller::IsAnonymous => &self.client,
            _ => &self.other,
        };
        let request = client.request(method, self.url(path));
        match caller {
            Caller::Admin | Caller::Anonymous => request,
            Caller::IsAnonymous => request.header("is_anonymous", "true"),
            Caller::User(name) => request.header("SM_UNIVERSALID", name),
            Caller::Token(token) => request.header("authorization", token),
        }
    }

    /// Calls a route below the prefix.
    pub async fn call(&self, caller: Caller<'_>, method: &str, path: &str, body: Option<Value>) -> Answer {
        let request = self.request(caller, method, path);
        self.send(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await
    }

    /// GET by the super-admin with one parameter, which is encoded.
    pub async fn query(&self, path: &str, name: &str, value: &str) -> Answer {
        let value: String = url::form_urlencoded::byte_serialize(value.as_bytes()).collect();
        self.call(Caller::Admin, "GET", &format!("{path}?{name}={value}"), None).await
    }

    /// Sends a request.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let answer = request.send().await.expect("an answer");
        let (status, headers) = (answer.status(), answer.headers().clone());
        Answer { status, headers, text: answer.text().await.expect("a text") }
    }

    /// GET by the super-admin.
    pub async fn get(&self, path: &str) -> Value {
        self.call(Caller::Admin, "GET", path, None).await.ok()
    }

    /// POST by the super-admin.
    pub async fn post(&self, path: &str, body: Value) -> Value {
        self.call(Caller::Admin, "POST", path, Some(body)).await.ok()
    }

    /// The subscription as a super-admin sees it.
    pub async fn subscription(&self, id: &str) -> Value {
        let found = self.get(&format!("/subscriptions?filter={{\"where\":{{\"id\":\"{id}\"}}}}")).await;
        found[0].clone()
    }

    /// The notification as a super-admin sees it.
    pub async fn notification(&self, id: &str) -> Value {
        self.get(&format!("/notifications/{id}")).await
    }

    /// Stores a confirmed e-mail subscription with more members; no message is sent.
    pub async fn subscribe(&self, service: &str, address: &str, more: Value) -> Value {
        let mut body = json!({
            "serviceName": service, "channel": "email", "userChannelId": address, "state": "confirmed",
            "confirmationRequest": {"sendRequest": false},
        });
        merge(&mut body, more);
        self.post("/subscriptions", body).await
    }

    /// Sets the `subscription` configuration of a service.
    pub async fn configure(&self, service: &str, value: Value) {
        let body = json!({"name": "subscription", "serviceName": service, "value": value});
        self.post("/configurations", body).await;
    }

    /// Sends a synchronous e-mail broadcast with more members; returns the final record.
    pub async fn broadcast(&self, service: &str, more: Value) -> Value {
        let mut body = json!({
            "serviceName": service, "channel": "email", "isBroadcast": true,
            "message": {"from": "sender@example.org", "subject": "subject", "textBody": "text"},
        });
        merge(&mut body, more);
        self.post("/notifications", body).await
    }

    /// Mails to an address so far.
    pub fn mails_to(&self, address: &str) -> Vec<Received> {
        let mails = self.mails.all().into_iter().filter(|mail| mail.to.iter().any(|to| to == address));
        mails.map(Received).collect()
    }

    /// The only mail to an address so far.
    #[track_caller]
    pub fn mail_to(&self, address: &str) -> Received {
        let mut mails = self.mails_to(address);
        assert_eq!(mails.len(), 1, "mails to {address}");
        mails.remove(0)
    }

    /// Waits for this number of mails to an address.
    pub async fn wait_for_mails(&self, address: &str, count: usize) -> Vec<Received> {
        let arrived = self.mails.wait_until(|| self.mails_to(address).len() >= count).await;
        let mails = self.mails_to(address);
        assert!(arrived, "{count} mails to {address}, only {}", mails.len());
        mails
    }

    /// Bodies of the requests to a path of the receiver, in order.
    pub fn hooks_at(&self, path: &str) -> Vec<(HeaderMap, Value)> {
        let at = self.hooks.all().into_iter().filter(|(uri, ..)| uri == path);
        at.map(|(_, headers, body)| (headers, serde_json::from_slice(&body).unwrap_or_default())).collect()
    }

    /// Ends the server.
    fn end(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.stdin.take());
            let _ = process.wait();
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
    }
}

/// A received mail.
#[derive(Debug)]
pub struct Received(pub Mail);

impl Received {
    fn parsed(&self) -> mail_parser::Message<'_> {
        MessageParser::new().parse(self.0.text.as_bytes()).expect("a mail")
    }

    /// Header as it is on the wire, unfolded.
    pub fn header(&self, name: &str) -> String {
        self.0.header(name).unwrap_or_default()
    }

    /// Decoded subject.
    pub fn subject(&self) -> String {
        self.parsed().subject().unwrap_or_default().to_owned()
    }

    /// Decoded plain text, if there is one.
    pub fn text(&self) -> Option<String> {
        self.part(|part| matches!(part.body, mail_parser::PartType::Text(_)))
    }

    /// Decoded HTML, if there is one.
    pub fn html(&self) -> Option<String> {
        self.part(|part| matches!(part.body, mail_parser::PartType::Html(_)))
    }

    fn part(&self, is_kind: impl Fn(&mail_parser::MessagePart<'_>) -> bool) -> Option<String> {
        let parsed = self.parsed();
        let part = parsed.parts.iter().find(|part| is_kind(part))?;
        Some(part.text_contents()?.replace("\r\n", "\n").trim_end().to_owned())
    }
}

/// Id of a record.
#[track_caller]
pub fn id(record: &Value) -> String {
    record["id"].as_str().unwrap_or_else(|| panic!("an id: {record}")).to_owned()
}

/// Text of a member.
#[track_caller]
pub fn text(record: &Value, pointer: &str) -> String {
    record.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{pointer}: {record}")).to_owned()
}

/// The texts of a list, in order of the texts.
#[track_caller]
pub fn sorted(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten();
    let mut texts: Vec<String> = texts.map(|item| item.as_str().expect("a text").to_owned()).collect();
    texts.sort();
    texts
}
