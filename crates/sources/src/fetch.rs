//! Fetches pages by conditional HTTP requests, within bounds, from allowed addresses.

use std::{
    collections::BTreeMap,
    io::Read as _,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use reqwest::{
    Client, StatusCode, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{
        CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH,
        LAST_MODIFIED, RETRY_AFTER,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tocsin_connect::{
    Clock,
    networks::{Network, Networks},
    options::Wait,
    tls,
};
use tocsin_model::{
    charset, http_date,
    problem::{Code, Problem},
};

use crate::{
    due::PollSchedule,
    seen_items::hash,
    source::{SourceError, SourceSettings},
};

/// Longest `Retry-After` that is honoured.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// Address and time of polling: options of all kinds that fetch pages.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FetchOptions {
    /// The address of the page: `https://…` or `http://…`. Redirects are not followed.
    pub url: String,
    /// Headers of each request, such as `Authorization`.
    pub headers: BTreeMap<String, String>,
    /// Interval between requests.
    pub every: Wait,
    /// Schedule of requests, instead of `every`: in the form of rule schedules, such as
    /// `DTSTART;TZID=Europe/Vienna:20270101T080000` and in a second line `RRULE:FREQ=HOURLY`. Missed times are made up
    /// for once.
    pub schedule: Option<String>,
    /// Time limit for a whole response.
    pub timeout: Wait,
    /// Longest page, in bytes.
    pub page_bytes_max: usize,
    /// Non-public networks that may be contacted: `10.0.0.0/8`, `127.0.0.1`.
    pub allow_networks: Vec<Network>,
    /// Hosts that may be contacted at any address.
    pub allow_hosts: Vec<String>,
    /// A file of additional certificates to trust, in PEM form.
    pub ca_file: Option<PathBuf>,
}

impl Default for FetchOptions {
    fn default() -> Self {
        FetchOptions {
            url: String::new(),
            headers: BTreeMap::new(),
            every: Wait::seconds(300),
            schedule: None,
            timeout: Wait::seconds(30),
            page_bytes_max: 16 << 20,
            allow_networks: Vec::new(),
            allow_hosts: Vec::new(),
            ca_file: None,
        }
    }
}

impl FetchOptions {
    /// Problems of the options.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = PollSchedule::problems(self.schedule.as_deref());
        match Url::parse(&self.url) {
            _ if self.url.is_empty() => {
                problems.push(Problem::new(Code::Required, "url", "is missing: the address of the page"))
            }
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => {}
            _ => problems.push(
                Problem::new(
                    Code::InvalidFormat,
                    "url",
                    "is not the address of a page, such as `https://example.org/feed.xml`",
                )
                .param("format", "url"),
            ),
        }
        for (name, value) in &self.headers {
            let good = HeaderName::try_from(name).is_ok() && HeaderValue::try_from(value).is_ok();
            if !good {
                problems.push(
                    Problem::new(Code::InvalidFormat, format!("headers.{name}"), "is not a header")
                        .param("format", "header_field"),
                );
            }
        }
        problems
    }
}

/// HTTP validators of a page, for the next conditional request.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Validators {
    /// A hash of the options that determine fetching and parsing. Validators of one page do not apply to another, and a
    /// page must be parsed again after a change of options.
    #[serde(default)]
    pub of: String,
    etag: Option<String>,
    last_modified: Option<String>,
}

/// The response to a request.
pub(crate) enum Fetched {
    /// The page has not changed.
    Unchanged,
    /// The page, and the charset of its media type.
    Page { body: Vec<u8>, charset: Option<String>, validators: Validators },
}

/// Fetches one page.
pub(crate) struct Fetch {
    client: Client,
    url: Url,
    bytes_max: usize,
    clock: Arc<dyn Clock>,
    /// A hash of the options of the source.
    options: String,
}

/// A DNS resolver that returns only allowed addresses.
struct GuardedResolver(Arc<Networks>);

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let networks = self.0.clone();
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            let mut refused = None;
            let mut open = Vec::new();
            for address in found {
                match networks.check_address(&host, address.ip()) {
                    Ok(()) => open.push(address),
                    Err(what) => refused = Some(forbidden_address(&host, address.ip(), what)),
                }
            }
            match refused {
                Some(why) if open.is_empty() => Err(why.into()),
                _ => Ok(Box::new(open.into_iter()) as Addrs),
            }
        })
    }
}

fn forbidden_address(host: &str, address: IpAddr, what: &str) -> String {
    format!("{host} leads to {address}, {what}; `allow_networks` or `allow_hosts` can open it")
}

impl Fetch {
    /// From checked options.
    pub fn new(options: &FetchOptions, setting: &SourceSettings) -> Result<Fetch, Vec<Problem>> {
        let context = &setting.context;
        let at_url = |text: String| vec![Problem::new(Code::NotAllowed, "url", text)];
        let url = Url::parse(&options.url).map_err(|error| at_url(error.to_string()))?;
        let networks = Arc::new(context.networks.with(&options.allow_networks, &options.allow_hosts));
        // A literal IP address is not resolved, so it is checked here.
        let host = url.host_str().unwrap_or_default();
        if let Ok(address) = host.trim_matches(['[', ']']).parse() {
            networks.check_address(host, address).map_err(|what| at_url(forbidden_address(host, address, what)))?;
        }
        let trust = tls::client_config(&context.files, options.ca_file.as_deref(), "ca_file")
            .map_err(|problem| vec![problem])?;
        let header = |(name, value): (&String, &String)| {
            Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
        };
        let headers: HeaderMap = options.headers.iter().filter_map(header).collect();
        let client = Client::builder()
            .user_agent(concat!("tocsin/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .timeout(options.timeout.0)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .dns_resolver(GuardedResolver(networks))
            .tls_backend_preconfigured((*trust).clone())
            .build()
            .map_err(|error| at_url(chain(&error)))?;
        // The polling interval does not affect the content.
        let read =
            setting.options.iter().filter(|(name, _)| !matches!(name.as_str(), "every" | "schedule" | "timeout"));
        let read: serde_json::Map<String, serde_json::Value> =
            read.map(|(name, value)| (name.clone(), value.clone())).collect();
        let of = hash(&[serde_json::Value::Object(read).to_string().as_bytes()]);
        let clock = context.clock.clone();
        Ok(Fetch { client, url, bytes_max: options.page_bytes_max, clock, options: of })
    }

    /// Fetches the page, unless it has not changed.
    pub async fn fetch(&self, known: &Validators) -> Result<Fetched, SourceError> {
        let mut request = self.client.get(self.url.clone());
        let none = Validators::default();
        let known = if known.of == self.options { known } else { &none };
        if let Some(etag) = &known.etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        if let Some(time) = &known.last_modified {
            request = request.header(IF_MODIFIED_SINCE, time);
        }
        let mut answer = request.send().await.map_err(|error| self.source_error(&error))?;
        let header = |name: HeaderName| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
        let validators =
            Validators { of: self.options.clone(), etag: header(ETAG), last_modified: header(LAST_MODIFIED) };
        let charset = header(CONTENT_TYPE).and_then(|content_type| charset::of_media_type(&content_type));
        let coding = header(CONTENT_ENCODING);
        match answer.status() {
            // A response without content does not invalidate the previous one.
            StatusCode::NOT_MODIFIED | StatusCode::NO_CONTENT => return Ok(Fetched::Unchanged),
            StatusCode::OK => {}
            status => {
                let wishes = answer.headers().get_all(RETRY_AFTER).iter().filter_map(|value| value.to_str().ok());
                let retry_after = http_date::retry_after(wishes, self.clock.now(), RETRY_AFTER_MAX);
                return Err(SourceError {
                    retry_after,
                    ..SourceError::of(format!("{} answers {status}", self.shown()))
                });
            }
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| self.source_error(&error))? {
            if body.len() + chunk.len() > self.bytes_max {
                return Err(self.too_long());
            }
            body.extend_from_slice(&chunk);
        }
        let body = match coding.as_deref().map(str::trim) {
            None | Some("" | "identity") => body,
            Some(coding) => self.unpacked(&body, coding)?,
        };
        Ok(Fetched::Page { body, charset, validators })
    }

    /// Decompresses a body that the server compressed without being asked. A truncated one is an error.
    fn unpacked(&self, body: &[u8], coding: &str) -> Result<Vec<u8>, SourceError> {
        let mut out = Vec::new();
        let limit = self.bytes_max as u64 + 1;
        let read = match coding.to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => flate2::read::MultiGzDecoder::new(body).take(limit).read_to_end(&mut out),
            "deflate" => flate2::read::ZlibDecoder::new(body).take(limit).read_to_end(&mut out),
            other => {
                return Err(SourceError::of(format!(
                    "{} responds with the content coding `{other}`, which was not requested",
                    self.shown()
                )));
            }
        };
        read.map_err(|error| SourceError::new(format!("the page of {} cannot be unpacked", self.shown()), error))?;
        match out.len() > self.bytes_max {
            true => Err(self.too_long()),
            false => Ok(out),
        }
    }

    fn too_long(&self) -> SourceError {
        SourceError::of(format!("the page is longer than {} bytes; `page_bytes_max` can be raised", self.bytes_max))
    }

    /// The address without possible secrets.
    fn shown(&self) -> String {
        format!("{}{}", self.url.origin().ascii_serialization(), self.url.path())
    }

    fn source_error(&self, error: &reqwest::Error) -> SourceError {
        SourceError::new(format!("{} cannot be fetched", self.shown()), chain(error))
    }
}

/// An error with its causes; without the address, which may contain a key.
fn chain(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    match causes.is_empty() {
        true if error.is_timeout() => "it took too long".to_owned(),
        true => "the connection broke".to_owned(),
        false => causes.join(": "),
    }
}
