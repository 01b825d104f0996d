//! HTTP requests of exchanges, with the complete response returned.
//!
//! Uses the connections, network policy and status classification of the `http` channel, but not its formatting of
//! contents and devices.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use http::{HeaderName, HeaderValue, Method};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use tocsin_connect::{
    Clock,
    files::Files,
    networks::{Network, Networks},
    options::{Options, Wait, read},
    tls,
};
use tocsin_model::{
    problem::{Code, Problem},
    receipt::{Disposition, Reason, ReasonKind},
};
use tokio::time::timeout;

use super::{
    connect::{Connections, NoResponse, Target, TcpDial},
    exchange::ResponseLimits,
    options::RequestMethod,
    request::Request,
    response::by_status,
    sign::Signer,
};

/// Longest `Retry-After` that is respected.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

/// Header fields that are written here.
const OWN_HEADERS: [&str; 4] = ["host", "content-length", "transfer-encoding", "connection"];

/// Options of a send port with the protocol `http`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CallOptions {
    /// The URL. `{NAME}` is the property of the message, escaped. A URL that is only `{NAME}` is the property itself,
    /// so that a message can name its destination, within the permitted networks.
    pub url: String,
    /// The method.
    pub method: RequestMethod,
    /// Further header fields for every request; `{NAME}` is the property of the message.
    pub headers: BTreeMap<String, String>,
    /// Headers of the message to forward, besides its `Content-Type`.
    pub forward: Vec<String>,
    /// Secret that signs requests (Standard Webhooks): `whsec_` and 24 to 64 bytes in base64.
    pub secret: Option<String>,
    /// Timeout of the whole request: name resolution, connection, encryption and the complete response.
    pub timeout: Wait,
    /// An idle connection is closed after this time.
    pub idle_timeout: Wait,
    /// Most bytes of a response; a longer one counts as a failure.
    pub reply_bytes: usize,
    /// Non-public networks that may be connected to: `10.0.0.0/8`, `127.0.0.1`.
    pub allow_networks: Vec<Network>,
    /// Hosts that may be connected to, whatever address they resolve to.
    pub allow_hosts: Vec<String>,
    /// A file of further certificates to trust, in PEM form.
    pub ca_file: Option<PathBuf>,
    /// A file with our certificate and the intermediate ones, in PEM form.
    pub certificate_file: Option<PathBuf>,
    /// A file with the certificate's private key, in PEM form.
    pub key_file: Option<PathBuf>,
}

impl Default for CallOptions {
    fn default() -> Self {
        CallOptions {
            url: String::new(),
            method: RequestMethod::Post,
            headers: BTreeMap::new(),
            forward: Vec::new(),
            secret: None,
            timeout: Wait::seconds(15),
            idle_timeout: Wait::seconds(30),
            reply_bytes: 1 << 20,
            allow_networks: Vec::new(),
            allow_hosts: Vec::new(),
            ca_file: None,
            certificate_file: None,
            key_file: None,
        }
    }
}

impl CallOptions {
    /// The properties in the URL and the headers.
    fn places(&self) -> BTreeSet<&str> {
        std::iter::once(&self.url).chain(self.headers.values()).flat_map(|text| pieces(text).1).collect()
    }
}

impl Options for CallOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.url.is_empty() {
            problems.push(
                Problem::new(Code::Required, "url", "is missing").hint("such as `https://shop.example.org/orders`"),
            );
        } else if whole_place(&self.url).is_none() {
            let constant: String = pieces(&self.url).0.join("x");
            let host_end = self.url.find("//").and_then(|at| self.url[at + 2..].find('/').map(|end| at + 2 + end));
            if let Err(what) = Target::parse(&constant) {
                problems.push(
                    Problem::new(Code::InvalidFormat, "url", what)
                        .param("format", "url")
                        .hint("such as `https://shop.example.org/orders/{order}`"),
                );
            } else if self.url.find('{').is_some_and(|at| host_end.is_none_or(|end| at < end)) {
                let problem = Problem::new(Code::Insecure, "url", "the message cannot choose a part of the host");
                problems.push(problem.hint("give the whole URL as one property: `{callback}`"));
            }
        }
        // The trace context of a message is always sent, so forwarding its headers changes nothing.
        let own = |name: &String| {
            let (name, is_given) = (name.to_ascii_lowercase(), self.headers.contains_key(name));
            OWN_HEADERS.contains(&name.as_str()) || is_given && ["traceparent", "tracestate"].contains(&name.as_str())
        };
        for name in self.headers.keys().chain(&self.forward) {
            if HeaderName::try_from(name).is_err() || own(name) {
                problems.push(
                    Problem::new(
                        Code::ReservedName,
                        "headers",
                        format!("`{name}` is a header that the channel writes itself"),
                    )
                    .param("value", name.to_string()),
                );
            }
        }
        for (name, value) in &self.headers {
            // Properties are checked when a message is sent.
            if HeaderValue::try_from(pieces(value).0.concat()).is_err() {
                let text = format!("the value of `{name}` has characters that no header field may have");
                problems.push(
                    Problem::new(Code::InvalidCharacters, "headers", text)
                        .hint("give one line without control characters"),
                );
            }
        }
        if let Some(Err(text)) = self.secret.as_deref().map(Signer::new) {
            let hint = "make one with `echo whsec_$(openssl rand -base64 32)` and take it from the environment";
            problems.push(Problem::new(Code::InvalidKey, "secret", text).hint(hint));
        }
        if !(1..=64 << 20).contains(&self.reply_bytes) {
            problems.push(Problem::out_of_range("reply_bytes", 1, 64 << 20));
        }
        if self.certificate_file.is_some() != self.key_file.is_some() {
            problems.push(Problem::new(
                Code::MissingCounterpart,
                "key_file",
                "a certificate and its private key go together",
            ));
        }
        problems
    }
}

/// A request to send.
pub struct Call<'a> {
    /// Identity of the message at the receiver, the same at every attempt: `webhook-id` and `idempotency-key`.
    pub id: &'a str,
    /// Media type of the body; empty if unknown.
    pub content_type: &'a str,
    /// Headers of the message, names in lower case.
    pub headers: &'a [(String, String)],
    /// Header fields that describe the message.
    pub about: &'a [(&'a str, String)],
    /// The body.
    pub body: &'a [u8],
    /// Returns the text of a property.
    pub property: &'a (dyn Fn(&str) -> Option<String> + Sync),
    /// Time (seconds since 1970) and signature of the body, if the caller signed it.
    pub signed: Option<(i64, &'a str)>,
}

/// Result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Returned {
    /// The receiver accepted it, with this response.
    Taken(Reply),
    /// Another attempt may succeed.
    Deferred {
        /// The failure.
        reason: Reason,
        /// The receiver's `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// Permanently refused.
    Refused(Reason),
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The complete body.
    pub body: Vec<u8>,
}

/// HTTP client of a send port; keeps connections open.
pub struct Caller {
    options: CallOptions,
    /// The target, if the URL contains no property.
    fixed: Option<Target>,
    signer: Option<Signer>,
    connections: Connections,
    clock: Arc<dyn Clock>,
}

impl Caller {
    /// Reads the options of a send port; paths of problems start with `path`.
    ///
    /// # Errors
    /// Every problem in them.
    pub fn open(
        given: &Map<String, Value>,
        path: &str,
        networks: &Networks,
        files: &Files,
        clock: Arc<dyn Clock>,
    ) -> Result<Caller, Vec<Problem>> {
        let options: CallOptions = read(given, path)?;
        let ca_file = options.ca_file.as_deref();
        let trust = match (&options.certificate_file, &options.key_file) {
            (Some(certificate), Some(key)) => tls::trust_and_prove(files, ca_file, certificate, key),
            _ => tls::client_config(files, ca_file, "ca_file"),
        };
        let within = |problem: Problem| vec![Problem { path: format!("{path}.{}", problem.path), ..problem }];
        let trust = trust.map_err(within)?;
        let signer = options.secret.as_deref().map(|secret| Signer::new(secret).expect("checked with the options"));
        let networks = networks.with(&options.allow_networks, &options.allow_hosts);
        let keeping = ResponseLimits { body_bytes_max: options.reply_bytes + 1, headers: true };
        let connections = Connections::new(Arc::new(TcpDial), (*trust).clone(), networks, options.idle_timeout.0)
            .with_limits(keeping);
        let fixed = Some(&options.url).filter(|url| pieces(url).1.is_empty()).and_then(|url| Target::parse(url).ok());
        Ok(Caller { options, fixed, signer, connections, clock })
    }

    /// Whether it signs requests.
    pub fn signs(&self) -> bool {
        self.signer.is_some()
    }

    /// The properties that a message must have to be sent.
    pub fn places(&self) -> BTreeSet<&str> {
        self.options.places()
    }

    /// Sends a request and waits for its response. Every response or failure is a value.
    pub async fn call(&self, call: &Call<'_>) -> Returned {
        let target = match self.target(call) {
            Ok(target) => target,
            Err(reason) => return Returned::Refused(reason),
        };
        let target = &*target;
        let request = match self.request(call, target) {
            Ok(request) => request,
            Err(reason) => return Returned::Refused(reason),
        };
        let exchanged = timeout(self.options.timeout.0, self.connections.exchange(target, &request)).await;
        let response = match exchanged {
            Ok(Ok(response)) => response,
            Ok(Err(NoResponse::Failed(reason))) => return Returned::Deferred { reason, retry_after: None },
            Ok(Err(NoResponse::Closed(reason))) => return Returned::Refused(reason),
            Err(_) => {
                let text = format!("no complete response within {}", self.options.timeout);
                return Returned::Deferred { reason: Reason::new(ReasonKind::Timeout, text), retry_after: None };
            }
        };
        let retry_delay = response.retry_delay(self.clock.now(), RETRY_AFTER_MAX);
        match by_status(&response, retry_delay).disposition {
            Disposition::Delivered { .. } if response.body.len() > self.options.reply_bytes => {
                let text = format!("the response has more than {} bytes (`reply_bytes`)", self.options.reply_bytes);
                Returned::Refused(Reason::new(ReasonKind::Answer, text))
            }
            Disposition::Delivered { .. } if !response.whole && announced(&response.headers) => {
                let reason = Reason::new(ReasonKind::Connection, "the response broke off");
                Returned::Deferred { reason, retry_after: None }
            }
            Disposition::Delivered { .. } => {
                Returned::Taken(Reply { status: response.status, headers: response.headers, body: response.body })
            }
            Disposition::Deferred { reason, retry_after } => Returned::Deferred { reason, retry_after },
            Disposition::Refused { reason } => Returned::Refused(reason),
        }
    }

    /// Closes connections that have been idle for too long.
    pub fn sweep(&self) {
        self.connections.sweep();
    }

    fn target(&self, call: &Call<'_>) -> Result<Cow<'_, Target>, Reason> {
        if let Some(fixed) = &self.fixed {
            return Ok(Cow::Borrowed(fixed));
        }
        let url = match whole_place(&self.options.url) {
            Some(name) => (call.property)(name).ok_or_else(|| no_property(name))?,
            None => {
                let url = fill(&self.options.url, call.property, |text| {
                    url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
                })?;
                // Dot segments, escaped or not, are removed from a path (RFC 3986, 5.2.4), with the segment before
                // `..`.
                if dot_segments(&url) > dot_segments(&pieces(&self.options.url).0.join("x")) {
                    let text =
                        "a property would be a segment `.` or `..` of the path, which would lead to another address";
                    return Err(Reason::new(ReasonKind::Address, text));
                }
                url
            }
        };
        Target::parse(&url).map(Cow::Owned).map_err(|what| Reason::new(ReasonKind::Address, what))
    }

    fn request(&self, call: &Call<'_>, target: &Target) -> Result<Vec<u8>, Reason> {
        let method = Method::from(self.options.method);
        let mut request = Request::new(&method, target, call.body.len());
        let given = |name: &str| self.options.headers.keys().any(|key| key.eq_ignore_ascii_case(name));
        if self.options.method.has_body() && !call.content_type.is_empty() && !given("content-type") {
            request.field("content-type", call.content_type);
        }
        for (name, value) in call.headers {
            if self.options.forward.iter().any(|forward| forward.eq_ignore_ascii_case(name)) && !given(name) {
                request.field(name, value);
            }
        }
        for (name, value) in &self.options.headers {
            let value = fill(value, call.property, str::to_owned)?;
            if HeaderValue::try_from(&value).is_err() {
                let text = format!("the header `{name}` would hold what no header may hold");
                return Err(Reason::new(ReasonKind::Format, text));
            }
            request.field(name, value);
        }
        for (name, value) in call.about {
            request.field(name, value);
        }
        let seconds = call.signed.map_or_else(|| self.clock.now().as_millis().div_euclid(1000), |(seconds, _)| seconds);
        request.field("idempotency-key", call.id);
        request.field("webhook-id", call.id);
        request.field("webhook-timestamp", seconds.to_string());
        if let Some((_, signature)) = call.signed {
            request.field("webhook-signature", signature);
        } else if let Some(signer) = &self.signer {
            request.field("webhook-signature", signer.sign(call.id, seconds, call.body));
        }
        Ok(request.with_body(call.body))
    }
}

/// Whether the response declared its length.
fn announced(headers: &[(String, String)]) -> bool {
    headers.iter().any(|(name, _)| name == "content-length" || name == "transfer-encoding")
}

fn no_property(name: &str) -> Reason {
    Reason::new(ReasonKind::Address, format!("the message has no property `{name}`, which the port needs"))
}

/// Number of `.` and `..` segments in the path of a URL.
fn dot_segments(url: &str) -> usize {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    path.split('/').filter(|segment| matches!(*segment, "." | "..")).count()
}

/// The name in a text that is a single placeholder.
fn whole_place(text: &str) -> Option<&str> {
    let name = text.strip_prefix('{')?.strip_suffix('}')?;
    (!name.contains(['{', '}'])).then_some(name)
}

/// The literals and placeholders of a text; of `a{b}c`: `[a, c]` and `[b]`.
fn pieces(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut constants, mut names, mut rest) = (Vec::new(), Vec::new(), text);
    while let Some((before, name, after)) = rest
        .split_once('{')
        .and_then(|(before, after)| after.split_once('}').map(|(name, after)| (before, name, after)))
    {
        constants.push(before);
        names.push(name);
        rest = after;
    }
    constants.push(rest);
    (constants, names)
}

fn fill(
    text: &str,
    property: &(dyn Fn(&str) -> Option<String> + Sync),
    escape: impl Fn(&str) -> String,
) -> Result<String, Reason> {
    let (constants, names) = pieces(text);
    let mut filled = constants[0].to_owned();
    for (name, constant) in names.iter().zip(&constants[1..]) {
        filled.push_str(&escape(&property(name).ok_or_else(|| no_property(name))?));
        filled.push_str(constant);
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tocsin_connect::SystemClock;

    use super::*;

    fn open(options: Value) -> Result<Caller, Vec<Problem>> {
        let Value::Object(options) = options else { panic!("options are an object") };
        Caller::open(&options, "send.shop.options", &Networks::default(), &Files::default(), Arc::new(SystemClock))
    }

    #[test]
    fn a_property_takes_no_segment_out_of_the_path() {
        let target = |url: &str, text: &'static str| {
            let property = move |_: &str| Some(text.to_owned());
            let caller = open(json!({ "url": url })).unwrap_or_else(|_| panic!("good options"));
            let call = Call {
                id: "m-1",
                content_type: "",
                headers: &[],
                about: &[],
                body: b"",
                property: &property,
                signed: None,
            };
            caller.target(&call).map(|target| target.path.clone()).map_err(|reason| reason.text.clone())
        };
        for (url, text) in [
            ("https://a.b/orders/{order}/confirm", ".."),
            ("https://a.b/orders/{order}/confirm", "."),
            ("https://a.b/orders/{order}", ".."),
            ("https://a.b/orders/{order}?x=1", ".."),
            ("https://a.b/orders/{order}{order}/confirm", "."),
            ("https://a.b/orders/.{order}/confirm", "."),
        ] {
            assert!(target(url, text).expect_err("another address").contains("`..`"), "{url} {text}");
        }
        assert_eq!(target("https://a.b/orders/{order}.json", "..").as_deref(), Ok("/orders/...json"));
        assert_eq!(target("https://a.b/orders?x={order}", "..").as_deref(), Ok("/orders?x=.."));
        assert_eq!(target("https://a.b/orders/{order}/x", "../a").as_deref(), Ok("/orders/..%2Fa/x"));
    }

    #[test]
    fn properties_choose_the_path_or_the_whole_but_no_part_of_the_host() {
        let property = |name: &str| (name == "order").then(|| "a/b c".to_owned());
        let call = Call {
            id: "m-1",
            content_type: "",
            headers: &[],
            about: &[],
            body: b"",
            property: &property,
            signed: None,
        };
        let caller = open(json!({"url": "https://shop.example.org/orders/{order}?x={order}"}))
            .unwrap_or_else(|_| panic!("good options"));
        let target = caller.target(&call).expect("an address");
        assert_eq!(target.path, "/orders/a%2Fb%20c?x=a%2Fb%20c");
        let caller = open(json!({"url": "{callback}"})).unwrap_or_else(|_| panic!("good options"));
        assert!(caller.target(&call).expect_err("no such property").text.contains("`callback`"));
        for (options, path) in [
            (json!({}), "send.shop.options.url"),
            (json!({"url": "https://{order}.example.org/"}), "send.shop.options.url"),
            (json!({"url": "ftp://example.org/"}), "send.shop.options.url"),
            (json!({"url": "https://a.b/", "headers": {"Host": "x"}}), "send.shop.options.headers"),
            (json!({"url": "https://a.b/", "headers": {"Traceparent": "x"}}), "send.shop.options.headers"),
            (json!({"url": "https://a.b/", "headers": {"X-A": "a\r\nX-B: {order}"}}), "send.shop.options.headers"),
            (json!({"url": "https://a.b/", "secret": "x"}), "send.shop.options.secret"),
            (json!({"url": "https://a.b/", "urll": "x"}), "send.shop.options.urll"),
        ] {
            let problems = open(options).err().expect("problems");
            assert_eq!(problems.iter().map(|problem| problem.path.as_str()).collect::<Vec<_>>(), [path]);
        }
    }
}
