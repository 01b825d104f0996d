//! Client of the HTTP API: authenticated requests; every error becomes advice for the user.

use std::{
    error::Error,
    io,
    time::{Duration, SystemTime},
};

use reqwest::{Method, RequestBuilder, Response, StatusCode, header};
use serde::Serialize;
use serde_json::Value;
use tocsin_model::http_date;

use crate::{
    failure::{Failure, Outcome},
    problems::problem_line,
    terminal::printable,
};

/// File in the data folder with the first admin key, for commands on the same machine.
pub const ADMIN_KEY_FILE: &str = "admin.key";

/// Default server URL.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:8480";

/// Maximum size in bytes of a response that is read into memory.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Server with an API key.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    server: String,
    key: Option<String>,
    key_search: Option<String>,
}

impl Client {
    /// Creates a client of the server at this URL.
    ///
    /// # Errors
    /// If the TLS roots of the system cannot be read.
    pub fn new(server: impl Into<String>, key: Option<String>) -> Outcome<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .user_agent(concat!("tocsin/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(10))
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .no_proxy()
            .build()
            .map_err(|error| Failure::failed("cannot create the HTTP client").because(&error))?;
        Ok(Client { http, server: server.into(), key, key_search: None })
    }

    /// Adds where a key was searched without success, such as `looked for data/admin.key`. It is part of the advice if
    /// the server requires a key.
    pub fn with_key_search(mut self, result: String) -> Self {
        self.key_search = Some(result);
        self
    }

    /// Underlying HTTP client with its certificates and timeouts.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// URL of the server, without a trailing slash.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Creates a request with the key. `path` begins with a slash; its segments are already escaped (see [`segment`]).
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.server));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Sends a request; a response other than 2xx becomes a failure with advice.
    ///
    /// # Errors
    /// If the server does not respond, or responds with a problem.
    pub async fn send(&self, request: RequestBuilder) -> Outcome<Response> {
        let answer = self.exchange(request).await?;
        if answer.status().is_success() { Ok(answer) } else { Err(problem(answer).await.failure()) }
    }

    /// Sends a request and returns the response, whatever its status.
    ///
    /// # Errors
    /// If the server does not respond, or requires a key and there is none.
    pub async fn exchange(&self, request: RequestBuilder) -> Outcome<Response> {
        let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
        if answer.status() != StatusCode::UNAUTHORIZED || self.key.is_some() {
            return Ok(answer);
        }
        let mut failure = problem(answer).await.failure();
        failure.message = match &self.key_search {
            Some(result) => format!("no key: {result}; give --key, TOCSIN_KEY, --key-file or --data FOLDER"),
            None => NO_KEY.to_owned(),
        };
        Err(failure)
    }

    /// GET of JSON.
    ///
    /// # Errors
    /// As [`Client::send`], or the response is not JSON.
    pub async fn get(&self, path: &str, query: &[(&str, &str)]) -> Outcome<Value> {
        let answer =
            self.send(self.request(Method::GET, &with_query(path, query)).timeout(Duration::from_secs(60))).await?;
        self.json(answer).await
    }

    /// POST of JSON; returns `Null` for an empty response.
    ///
    /// # Errors
    /// As [`Client::send`], or the response is not JSON.
    pub async fn post(&self, path: &str, body: &(impl Serialize + ?Sized)) -> Outcome<Value> {
        let answer = self.send(self.request(Method::POST, path).json(body)).await?;
        self.json(answer).await
    }

    /// PUT of JSON.
    ///
    /// # Errors
    /// As [`Client::send`], or the response is not JSON.
    pub async fn put(&self, path: &str, body: &Value) -> Outcome<Value> {
        let answer = self.send(self.request(Method::PUT, path).json(body)).await?;
        self.json(answer).await
    }

    /// Fetches all pages of a list, up to `limit` items.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn list(&self, path: &str, query: &[(&str, &str)], limit: usize) -> Outcome<Vec<Value>> {
        let mut items = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let mut query = query.to_vec();
            query.push(("limit", "1000"));
            if let Some(after) = &after {
                query.push(("after", after));
            }
            let mut page = self.get(path, &query).await?;
            let Some(found) = page.get_mut("items").and_then(Value::as_array_mut) else {
                return Err(Failure::failed(format!("the response to GET {path} is not a list")));
            };
            items.append(found);
            match page["next"].as_str() {
                Some(next) if items.len() < limit && after.as_deref() != Some(next) => after = Some(next.to_owned()),
                _ => return Ok(items),
            }
        }
    }

    /// Reads a response as JSON.
    ///
    /// # Errors
    /// If it is interrupted, too long, or not JSON.
    pub async fn json(&self, answer: Response) -> Outcome<Value> {
        let body = body(answer).await?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).map_err(|error| {
            Failure::failed(format!("the response of {} is not JSON; is this a Tocsin server?", self.server))
                .because(&error)
        })
    }

    /// Advice if the server does not respond.
    pub fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let tls = error.is_connect().then(|| TlsFailure::of(error)).flatten();
        let advice = if let Some(tls) = tls.filter(|_| self.server.starts_with("https://")) {
            match tls {
                TlsFailure::NotTls => format!(
                    "{} does not respond with TLS; for a server without TLS use {}",
                    self.server,
                    self.server.replacen("https", "http", 1)
                ),
                TlsFailure::Certificate => format!(
                    "the certificate of {} is not valid here; check the host name and the trusted authorities",
                    self.server
                ),
                TlsFailure::Other => format!("the TLS handshake with {} failed", self.server),
            }
        } else if error.is_connect() {
            format!(
                "no server responds at {}; start one with `tocsin serve`, or specify another with --server or TOCSIN_SERVER",
                self.server
            )
        } else if error.is_timeout() {
            format!("{} did not respond in time; run `tocsin doctor`", self.server)
        } else {
            format!(
                "the connection to {} was interrupted; check whether the request was executed before repeating it",
                self.server
            )
        };
        Failure::failed(advice).because(std::error::Error::source(error).unwrap_or(error))
    }
}

/// Advice without a key.
const NO_KEY: &str = "no key; give --key, TOCSIN_KEY or --key-file";

/// Advice with a key that the server does not accept.
const UNKNOWN_KEY: &str =
    "the server does not know this key; check --server, and the key of --key, TOCSIN_KEY, --key-file or --data";

/// Cause of a failed TLS handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TlsFailure {
    /// The response is not TLS, or the server closed the connection.
    NotTls,
    /// The certificate is not valid.
    Certificate,
    /// Another cause, such as no common version.
    Other,
}

impl TlsFailure {
    /// Finds the failed handshake in the causes of an error.
    fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            match error.downcast_ref::<rustls::Error>() {
                Some(rustls::Error::InvalidMessage(_)) => return Some(TlsFailure::NotTls),
                Some(rustls::Error::InvalidCertificate(_)) => return Some(TlsFailure::Certificate),
                Some(_) => return Some(TlsFailure::Other),
                None => {}
            }
            let io = error.downcast_ref::<io::Error>();
            if io.is_some_and(|io| io.kind() == io::ErrorKind::UnexpectedEof) {
                return Some(TlsFailure::NotTls);
            }
            // The source of an I/O error is that of the error in it.
            cause = match io.and_then(io::Error::get_ref) {
                Some(inner) => Some(inner),
                None => error.source(),
            };
        }
        None
    }
}

/// Response other than 2xx, with its problem document (RFC 9457).
#[derive(Debug, Clone)]
pub struct ErrorResponse {
    /// Status code.
    pub status: StatusCode,
    /// Time after which to retry.
    pub retry_after: Option<Duration>,
    /// Body; `Null` if it is not JSON.
    pub body: Value,
    /// Scheme, host and port of the server.
    pub origin: String,
}

impl ErrorResponse {
    /// Last segment of the problem's type URI, such as `would-drop-data`.
    pub fn slug(&self) -> &str {
        self.body["type"].as_str().and_then(|kind| kind.rsplit('/').next()).unwrap_or_default()
    }

    /// Converts to a failure: advice first, then the problem.
    pub fn failure(&self) -> Failure {
        let text = |name: &str| self.body[name].as_str().map(|text| printable(text).into_owned());
        let title = text("title").or_else(|| self.status.canonical_reason().map(str::to_lowercase)).unwrap_or_default();
        let what = match text("detail") {
            // The advice says the same as these titles.
            Some(detail) if detail == title || matches!(self.status.as_u16(), 401 | 404) => detail,
            Some(detail) => format!("{title}: {detail}"),
            None => title,
        };
        let problems = self.body["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
        let has_document = ["type", "title", "code"].iter().any(|name| self.body[name].is_string());
        let advice = match self.status.as_u16() {
            404 | 405 | 501 if !has_document => {
                format!("{} answers, but is not a Tocsin server, or a proxy is between", self.origin)
            }
            401 => match self.body["code"].as_str() {
                Some("credentials_required") => NO_KEY,
                Some("credentials_expired") => "the key has expired; `tocsin keys create` creates another",
                Some("credentials_revoked") => "the key was revoked; `tocsin keys create` creates another",
                Some("credentials_malformed") => "the key does not have the form of a key; copy it again",
                _ => UNKNOWN_KEY,
            }
            .to_owned(),
            403 => "use a key with the required scope; `tocsin keys create --scope` creates one".to_owned(),
            404 if self.body["code"] == "route_not_found" => {
                format!("{what} (HTTP 404); the server may be older than this command")
            }
            404 => format!("{what} (HTTP 404); check the name or id"),
            409 if self.slug() == "would-drop-data" => "permit the data loss with --allow-drop".to_owned(),
            409 => "conflict with the present state of the server".to_owned(),
            412 => "the object was changed in the meantime; read it again, then repeat".to_owned(),
            413 => "the request is too large; split it".to_owned(),
            429 | 503 => match self.retry_after {
                Some(wait) => format!("the server is busy; retry in {} s", wait.as_secs().max(1)),
                None => "the server is busy; retry later".to_owned(),
            },
            400 | 415 | 422 if problems.is_empty() => "correct the request".to_owned(),
            400 | 415 | 422 => "fix these problems".to_owned(),
            405 => "the server does not support this request; it may be older than this command".to_owned(),
            502 if self.slug() == "not-answered" => {
                "no reply possible; the message is stored, see `tocsin messages list`".to_owned()
            }
            504 if self.slug() == "not-answered-in-time" => "no reply in time; see `tocsin messages list`".to_owned(),
            500.. => "internal server error; see the server's log".to_owned(),
            _ => "the server refused the request".to_owned(),
        };
        let mut failure = Failure::failed(advice);
        if self.status != StatusCode::NOT_FOUND || !has_document {
            failure = failure.detail(format!("{what} (HTTP {})", self.status.as_u16()));
        }
        failure.details.extend(problems.iter().map(problem_line));
        failure.document = self.body.is_object().then(|| Box::new(self.body.clone()));
        failure
    }
}

/// Reads a response other than 2xx.
pub async fn problem(answer: Response) -> ErrorResponse {
    let status = answer.status();
    let retry_after = retry_after(&answer);
    let origin = answer.url().origin().ascii_serialization();
    let body = body(answer).await.unwrap_or_default();
    ErrorResponse { status, retry_after, body: serde_json::from_slice(&body).unwrap_or(Value::Null), origin }
}

/// `Retry-After` in seconds or as a date, at most an hour.
fn retry_after(answer: &Response) -> Option<Duration> {
    let wishes = answer.headers().get_all(header::RETRY_AFTER).iter().filter_map(|value| value.to_str().ok());
    http_date::retry_after(wishes, SystemTime::now().into(), Duration::from_secs(3_600))
}

async fn body(mut answer: Response) -> Outcome<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        match answer.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= ANSWER_BYTES_MAX => body.extend_from_slice(&chunk),
            Ok(Some(_)) => return Err(Failure::failed("the response is too long")),
            Ok(None) => return Ok(body),
            Err(error) => return Err(Failure::failed("the response was interrupted").because(&error)),
        }
    }
}

/// Escapes a path segment.
pub fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(byte as char),
            // A segment `.` or `..` would be a relative step.
            b'.' if text != "." && text != ".." => out.push('.'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The query parameters that have a value.
pub fn present_parameters<'a>(named: &[(&'a str, &'a Option<String>)]) -> Vec<(&'a str, &'a str)> {
    named.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect()
}

/// Appends an escaped query to a path.
pub fn with_query(path: &str, query: &[(&str, &str)]) -> String {
    let mut out = path.to_owned();
    for (at, (name, value)) in query.iter().enumerate() {
        out.push(if at == 0 { '?' } else { '&' });
        out.push_str(&format!("{}={}", segment(name), segment(value)));
    }
    out
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    fn check(status: u16, retry_after: Option<u64>, body: Value, expected: Expect) {
        let status = StatusCode::from_u16(status).expect("a status");
        let origin = "http://127.0.0.1:8025".to_owned();
        let trouble = ErrorResponse { status, retry_after: retry_after.map(Duration::from_secs), body, origin };
        expected.assert_eq(&trouble.failure().to_string());
    }

    #[test]
    fn a_failure_begins_with_advice() {
        check(
            401,
            None,
            Value::Null,
            expect![[r#"
            the server does not know this key; check --server, and the key of --key, TOCSIN_KEY, --key-file or --data
              unauthorized (HTTP 401)"#]],
        );
        check(
            422,
            None,
            json!({"type": "/problems/invalid", "title": "the definition has mistakes", "problems": [
                {"path": "rules.near.when", "line": 4, "column": 9, "message": "`event.mag` does not exist", "hint": "did you mean `event.magnitude`?"},
                {"path": "", "message": "evil \u{1b}[2J"}]}),
            expect![[r#"
                fix these problems
                  the definition has mistakes (HTTP 422)
                  4:9: rules.near.when: `event.mag` does not exist; did you mean `event.magnitude`?
                  evil \u{1b}[2J"#]],
        );
        check(
            503,
            Some(5),
            json!({"title": "full", "detail": "the disk has 12 MiB left"}),
            expect![[r#"
            the server is busy; retry in 5 s
              full: the disk has 12 MiB left (HTTP 503)"#]],
        );
        check(
            502,
            None,
            Value::Null,
            expect![[r#"
            internal server error; see the server's log
              bad gateway (HTTP 502)"#]],
        );
    }

    #[test]
    fn an_object_that_does_not_exist_is_reported_in_one_line() {
        let detail = "the application `x` does not exist";
        let body = json!({"title": "There is no such thing", "code": "not_found", "detail": detail});
        check(404, None, body, expect!["the application `x` does not exist (HTTP 404); check the name or id"]);
        let body =
            json!({"title": "There is no such thing", "code": "route_not_found", "detail": "nothing is at `/v1/x`"});
        check(404, None, body, expect!["nothing is at `/v1/x` (HTTP 404); the server may be older than this command"]);
    }

    /// The advice of a failed GET, from a server that sends these bytes to each connection.
    async fn failure_of(scheme: &str, response: &'static str, key_search: Option<&str>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut request = [0; 4_096];
                // A request of a client without TLS is not longer; a ClientHello need not be read whole.
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(response.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        let mut client = Client::new(format!("{scheme}://{address}"), None).expect("a client");
        if let Some(result) = key_search {
            client = client.with_key_search(result.to_owned());
        }
        let failure = client.get("/v1/status", &[]).await.expect_err("a failure");
        task.abort();
        failure.message.replace(&address.to_string(), "server")
    }

    #[tokio::test]
    async fn https_to_a_server_without_tls_suggests_http() {
        let expected = "https://server does not respond with TLS; for a server without TLS use http://server";
        for response in ["HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", ""] {
            assert_eq!(failure_of("https", response, None).await, expected, "{response}");
        }
    }

    #[tokio::test]
    async fn a_server_that_is_no_tocsin_is_reported() {
        let response = "HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\nconnection: close\r\n\r\nnone";
        let expected = "http://server answers, but is not a Tocsin server, or a proxy is between";
        assert_eq!(failure_of("http", response, None).await, expected);
    }

    #[tokio::test]
    async fn without_a_key_the_failure_names_where_it_was_searched() {
        let response = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        assert_eq!(
            failure_of("http", response, Some("looked for /d/admin.key")).await,
            "no key: looked for /d/admin.key; give --key, TOCSIN_KEY, --key-file or --data FOLDER"
        );
        assert_eq!(failure_of("http", response, None).await, NO_KEY);
    }

    #[test]
    fn paths_are_escaped() {
        assert_eq!(segment("a/b c?ä"), "a%2Fb%20c%3F%C3%A4");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(with_query("/v1/x", &[("a", "1&2"), ("b", "=")]), "/v1/x?a=1%262&b=%3D");
    }
}
