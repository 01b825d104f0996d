//! The HTTP face, from the other side: requests with a key, and every error turned into what to do.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use clap::Args;
use reqwest::{Method, RequestBuilder, Response, StatusCode, header};
use serde::Serialize;
use serde_json::Value;
use tocsin_model::http_date;

use crate::{
    configuration::{self, ConfigurationArgs},
    failure::{Failure, Outcome},
    first_key,
    terminal::printable,
};

/// The server if nobody names one.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:8480";

/// Most bytes of an answer that is read whole.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// How to reach a server, as flags.
#[derive(Debug, Clone, Default, Args)]
pub struct ConnectionArgs {
    /// The server
    #[arg(long, global = true, env = "TOCSIN_SERVER", value_name = "URL", default_value = DEFAULT_SERVER, help_heading = "Server")]
    pub server: String,
    /// The API key
    #[arg(
        long,
        global = true,
        env = "TOCSIN_KEY",
        value_name = "KEY",
        hide_env_values = true,
        help_heading = "Server"
    )]
    pub key: Option<String>,
    /// A file with the API key [default for a server on this machine: admin.key in the data folder]
    #[arg(long, global = true, env = "TOCSIN_KEY_FILE", value_name = "FILE", help_heading = "Server")]
    pub key_file: Option<PathBuf>,
}

impl ConnectionArgs {
    /// A client with the key that was given, or the one that lies in the data folder.
    ///
    /// # Errors
    /// The address is no URL, or the key file cannot be read.
    pub fn client(&self, configuration: &ConfigurationArgs) -> Outcome<Client> {
        let server = self.server.trim_end_matches('/').to_owned();
        let url =
            reqwest::Url::parse(&server).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let Some(url) = url else {
            return Err(Failure::usage(format!(
                "give the server as a URL such as {DEFAULT_SERVER}, not `{}`",
                printable(&server)
            )));
        };
        let key = match (&self.key, &self.key_file) {
            (Some(key), _) => Some(key.trim().to_owned()),
            (None, Some(path)) => Some(
                fs::read_to_string(path)
                    .map_err(|error| Failure::file("read the key from", path, &error))?
                    .trim()
                    .to_owned(),
            ),
            // The machine's own admin key is never sent to another machine.
            (None, None) if is_loopback(&url) => configuration::load(configuration, &[])
                .ok()
                .and_then(|layered| fs::read_to_string(first_key::path(&layered.configuration.data.folder)).ok())
                .map(|key| key.trim().to_owned()),
            (None, None) => None,
        };
        if key.as_ref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Failure::usage("the API key has spaces or other characters that no key has; copy it again"));
        }
        Client::new(server, key)
    }
}

fn is_loopback(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A server, and the key to it.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    server: String,
    key: Option<String>,
}

impl Client {
    /// A client of the server at this URL.
    ///
    /// # Errors
    /// The system's TLS roots cannot be read.
    pub fn new(server: impl Into<String>, key: Option<String>) -> Outcome<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .user_agent(concat!("tocsin/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(10))
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .no_proxy()
            .build()
            .map_err(|error| Failure::failed("cannot make connections").because(&error))?;
        Ok(Client { http, server: server.into(), key })
    }

    /// How it speaks to servers: certificates, timeouts.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// The server's URL, without a slash at the end.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// A request with the key. `path` begins with a slash; its parts are already escaped (see [`segment`]).
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.server));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Sends a request; an answer that is not 2xx is a failure that says what to do.
    ///
    /// # Errors
    /// The server does not answer, or answers with a problem.
    pub async fn send(&self, request: RequestBuilder) -> Outcome<Response> {
        let answer = self.exchange(request).await?;
        if answer.status().is_success() { Ok(answer) } else { Err(problem(answer).await.failure()) }
    }

    /// Sends a request; every answer is a value.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn exchange(&self, request: RequestBuilder) -> Outcome<Response> {
        request.send().await.map_err(|error| self.unreachable(&error))
    }

    /// Gets JSON.
    ///
    /// # Errors
    /// As [`Client::send`], or the answer is not JSON.
    pub async fn get(&self, path: &str, query: &[(&str, &str)]) -> Outcome<Value> {
        let answer =
            self.send(self.request(Method::GET, &with_query(path, query)).timeout(Duration::from_secs(60))).await?;
        self.json(answer).await
    }

    /// Sends JSON and gets JSON; `Null` for an empty answer.
    ///
    /// # Errors
    /// As [`Client::send`], or the answer is not JSON.
    pub async fn post(&self, path: &str, body: &(impl Serialize + ?Sized)) -> Outcome<Value> {
        let answer = self.send(self.request(Method::POST, path).json(body)).await?;
        self.json(answer).await
    }

    /// Puts JSON and gets JSON.
    ///
    /// # Errors
    /// As [`Client::send`], or the answer is not JSON.
    pub async fn put(&self, path: &str, body: &Value) -> Outcome<Value> {
        let answer = self.send(self.request(Method::PUT, path).json(body)).await?;
        self.json(answer).await
    }

    /// All items of a list, page after page.
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
                return Err(Failure::failed(format!("the answer to GET {path} is not a list")));
            };
            items.append(found);
            match page["next"].as_str() {
                Some(next) if items.len() < limit && after.as_deref() != Some(next) => after = Some(next.to_owned()),
                _ => return Ok(items),
            }
        }
    }

    /// Reads an answer as JSON.
    ///
    /// # Errors
    /// It breaks off, is too long, or is not JSON.
    pub async fn json(&self, answer: Response) -> Outcome<Value> {
        let body = body(answer).await?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).map_err(|error| {
            Failure::failed(format!("is {} a Tocsin server? Its answer is not JSON", self.server)).because(&error)
        })
    }

    /// What to do when there is no answer.
    pub fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let advice = if error.is_connect() {
            format!(
                "no server answers at {}; start one with `tocsin serve`, or name another with --server or TOCSIN_SERVER",
                self.server
            )
        } else if error.is_timeout() {
            format!("{} takes too long to answer; see `tocsin doctor`", self.server)
        } else {
            format!("the connection to {} broke; look whether the request was done before repeating it", self.server)
        };
        Failure::failed(advice).because(std::error::Error::source(error).unwrap_or(error))
    }
}

/// An answer that is not 2xx, as RFC 9457 tells it.
#[derive(Debug, Clone)]
pub struct Trouble {
    /// The status.
    pub status: StatusCode,
    /// When to try again.
    pub retry_after: Option<Duration>,
    /// The body, `Null` if it was no JSON.
    pub body: Value,
}

impl Trouble {
    /// The last part of the problem's type: `would-drop-data`.
    pub fn slug(&self) -> &str {
        self.body["type"].as_str().and_then(|kind| kind.rsplit('/').next()).unwrap_or_default()
    }

    /// What to do, then what happened.
    pub fn failure(&self) -> Failure {
        let text = |name: &str| self.body[name].as_str().map(|text| printable(text).into_owned());
        let title = text("title").or_else(|| self.status.canonical_reason().map(str::to_lowercase)).unwrap_or_default();
        let what = match text("detail") {
            Some(detail) if detail != title => format!("{title}: {detail}"),
            _ => title,
        };
        let problems = self.body["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
        let advice = match self.status.as_u16() {
            401 => {
                "give a valid API key with --key, TOCSIN_KEY or --key-file; `tocsin init` and the first start print one"
                    .to_owned()
            }
            403 => "use a key that has the scope; `tocsin keys create --scope` makes one".to_owned(),
            404 => "check the name or id: the server does not have it".to_owned(),
            409 if self.slug() == "would-drop-data" => "name what may be dropped with --allow-drop".to_owned(),
            409 => "this contradicts what the server has".to_owned(),
            412 => "it has changed in the meantime; look at it again, then repeat".to_owned(),
            413 => "send less at a time".to_owned(),
            429 | 503 => match self.retry_after {
                Some(wait) => format!("the server cannot take it now; try again in {} s", wait.as_secs().max(1)),
                None => "the server cannot take it now; try again later".to_owned(),
            },
            400 | 415 | 422 if problems.is_empty() => "mend the request".to_owned(),
            400 | 415 | 422 => "mend what follows".to_owned(),
            405 => "is this server as new as this command?".to_owned(),
            502 if self.slug() == "not-answered" => {
                "nobody answers; the message is kept, see `tocsin messages list`".to_owned()
            }
            504 if self.slug() == "not-answered-in-time" => {
                "nobody answered in time; see `tocsin messages list`".to_owned()
            }
            500.. => "the server failed; its log tells why".to_owned(),
            _ => "the server did not do it".to_owned(),
        };
        let mut failure = Failure::failed(advice).detail(format!("{what} (HTTP {})", self.status.as_u16()));
        failure.details.extend(problems.iter().map(problem_line));
        failure
    }
}

/// One problem of an answer, in a line.
pub fn problem_line(problem: &Value) -> String {
    match serde_json::from_value::<tocsin_model::problem::Problem>(problem.clone()) {
        Ok(problem) => printable(&problem.to_string()).into_owned(),
        Err(_) => printable(&problem.to_string()).into_owned(),
    }
}

/// Reads an answer that is not 2xx.
pub async fn problem(answer: Response) -> Trouble {
    let status = answer.status();
    let retry_after = retry_after(&answer);
    let body = body(answer).await.unwrap_or_default();
    Trouble { status, retry_after, body: serde_json::from_slice(&body).unwrap_or(Value::Null) }
}

/// `Retry-After`, at most an hour. A proxy may send it as a date.
fn retry_after(answer: &Response) -> Option<Duration> {
    let wishes = answer.headers().get_all(header::RETRY_AFTER).iter().filter_map(|value| value.to_str().ok());
    http_date::retry_after(wishes, SystemTime::now().into(), Duration::from_secs(3_600))
}

async fn body(mut answer: Response) -> Outcome<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        match answer.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= ANSWER_BYTES_MAX => body.extend_from_slice(&chunk),
            Ok(Some(_)) => return Err(Failure::failed("the answer is too long to be read at once")),
            Ok(None) => return Ok(body),
            Err(error) => return Err(Failure::failed("the answer broke off").because(&error)),
        }
    }
}

/// A part of a path, escaped.
pub fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(byte as char),
            // A part that is `.` or `..` would be taken for a step in the path.
            b'.' if text != "." && text != ".." => out.push('.'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A path with a query, escaped.
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

    use super::*;

    fn check(status: u16, retry_after: Option<u64>, body: Value, expected: Expect) {
        let status = StatusCode::from_u16(status).expect("a status");
        let trouble = Trouble { status, retry_after: retry_after.map(Duration::from_secs), body };
        expected.assert_eq(&trouble.failure().to_string());
    }

    #[test]
    fn a_problem_first_says_what_to_do() {
        check(
            401,
            None,
            Value::Null,
            expect![[r#"
            give a valid API key with --key, TOCSIN_KEY or --key-file; `tocsin init` and the first start print one
              unauthorized (HTTP 401)"#]],
        );
        check(
            422,
            None,
            json!({"type": "/problems/invalid", "title": "the definition has mistakes", "problems": [
                {"path": "rules.near.when", "line": 4, "column": 9, "message": "`event.mag` does not exist", "hint": "did you mean `event.magnitude`?"},
                {"path": "", "message": "evil \u{1b}[2J"}]}),
            expect![[r#"
                mend what follows
                  the definition has mistakes (HTTP 422)
                  4:9: rules.near.when: `event.mag` does not exist; did you mean `event.magnitude`?
                  evil \u{1b}[2J"#]],
        );
        check(
            503,
            Some(5),
            json!({"title": "full", "detail": "the disk has 12 MiB left"}),
            expect![[r#"
            the server cannot take it now; try again in 5 s
              full: the disk has 12 MiB left (HTTP 503)"#]],
        );
        check(
            502,
            None,
            Value::Null,
            expect![[r#"
            the server failed; its log tells why
              bad gateway (HTTP 502)"#]],
        );
    }

    #[test]
    fn paths_are_escaped() {
        assert_eq!(segment("a/b c?ä"), "a%2Fb%20c%3F%C3%A4");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(with_query("/v1/x", &[("a", "1&2"), ("b", "=")]), "/v1/x?a=1%262&b=%3D");
    }

    #[test]
    fn the_key_of_this_machine_stays_on_this_machine() {
        let loopback = |url: &str| is_loopback(&reqwest::Url::parse(url).expect("a URL"));
        assert!(loopback("http://127.0.0.1:8480") && loopback("http://localhost:1") && loopback("http://[::1]:8480"));
        assert!(!loopback("http://127.0.0.1.example.org") && !loopback("https://localhost.example.org"));
    }
}
