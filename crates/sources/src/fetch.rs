//! Pages are fetched: by conditional requests, within bounds, from addresses that may be asked.

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
use tocsin_delivery::{
    Clock,
    networks::{Network, Networks},
    options::Wait,
    tls,
};
use tocsin_model::{charset, http_date, problem::Problem};

use crate::{
    due::Due,
    known::hash,
    source::{Setting, Trouble},
};

/// The longest wait that a far side may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// Where a page is and when it is fetched: options of all kinds that fetch pages.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FetchOptions {
    /// The address of the page: `https://…` or `http://…`. Redirections are not followed.
    pub url: String,
    /// Headers of each request, such as `Authorization`.
    pub headers: BTreeMap<String, String>,
    /// How long after a request the next is made.
    pub every: Wait,
    /// When requests are made, in place of `every`: a schedule as rules have it, such as
    /// `DTSTART;TZID=Europe/Vienna:20270101T080000` and in a second line `RRULE:FREQ=HOURLY`. What was missed is made up for
    /// once.
    pub schedule: Option<String>,
    /// Time for a whole answer.
    pub timeout: Wait,
    /// Longest page, in bytes.
    pub page_bytes_max: usize,
    /// Networks that are not public and may be asked nevertheless: `10.0.0.0/8`, `127.0.0.1`.
    pub allow_networks: Vec<Network>,
    /// Hosts that may be asked wherever they lead.
    pub allow_hosts: Vec<String>,
    /// A file of further certificates to trust, in PEM form.
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
    /// What is wrong with them.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = Due::problems(self.schedule.as_deref());
        match Url::parse(&self.url) {
            _ if self.url.is_empty() => problems.push(Problem::at("url", "is missing: which page is fetched?")),
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => {}
            _ => problems
                .push(Problem::at("url", "is not the address of a page, such as `https://example.org/feed.xml`")),
        }
        for (name, value) in &self.headers {
            let good = HeaderName::try_from(name).is_ok() && HeaderValue::try_from(value).is_ok();
            if !good {
                problems.push(Problem::at(format!("headers.{name}"), "is not a header"));
            }
        }
        problems
    }
}

/// What the far side said of a page, for the next request.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Validators {
    /// A hash of the options with which the page was fetched and read: what a server said of one page says nothing of another,
    /// and a page that was read by other options is to be read again.
    #[serde(default)]
    pub of: String,
    etag: Option<String>,
    last_modified: Option<String>,
}

/// The answer to a request.
pub(crate) enum Fetched {
    /// The page is as it was.
    Unchanged,
    /// The page, and the charset that its media type names.
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

/// Gives only addresses that may be asked.
struct Judging(Arc<Networks>);

impl Resolve for Judging {
    fn resolve(&self, name: Name) -> Resolving {
        let networks = self.0.clone();
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            let mut refused = None;
            let mut open = Vec::new();
            for address in found {
                match networks.judge(&host, address.ip()) {
                    Ok(()) => open.push(address),
                    Err(what) => refused = Some(closed(&host, address.ip(), what)),
                }
            }
            match refused {
                Some(why) if open.is_empty() => Err(why.into()),
                _ => Ok(Box::new(open.into_iter()) as Addrs),
            }
        })
    }
}

fn closed(host: &str, address: IpAddr, what: &str) -> String {
    format!("{host} leads to {address}, {what}; `allow_networks` or `allow_hosts` can open it")
}

impl Fetch {
    /// By options that were checked.
    pub fn new(options: &FetchOptions, setting: &Setting) -> Result<Fetch, Vec<Problem>> {
        let context = &setting.context;
        let at_url = |text: String| vec![Problem::at("url", text)];
        let url = Url::parse(&options.url).map_err(|error| at_url(error.to_string()))?;
        let networks = Arc::new(context.networks.with(&options.allow_networks, &options.allow_hosts));
        // An address as such is not resolved, so nobody else would judge it.
        let host = url.host_str().unwrap_or_default();
        if let Ok(address) = host.trim_matches(['[', ']']).parse() {
            networks.judge(host, address).map_err(|what| at_url(closed(host, address, what)))?;
        }
        let trust =
            tls::trust(&context.files, options.ca_file.as_deref(), "ca_file").map_err(|problem| vec![problem])?;
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
            .dns_resolver(Judging(networks))
            .tls_backend_preconfigured((*trust).clone())
            .build()
            .map_err(|error| at_url(chain(&error)))?;
        // How often a page is asked for says nothing of what it says.
        let read =
            setting.options.iter().filter(|(name, _)| !matches!(name.as_str(), "every" | "schedule" | "timeout"));
        let read: serde_json::Map<String, serde_json::Value> =
            read.map(|(name, value)| (name.clone(), value.clone())).collect();
        let of = hash(&[serde_json::Value::Object(read).to_string().as_bytes()]);
        let clock = context.clock.clone();
        Ok(Fetch { client, url, bytes_max: options.page_bytes_max, clock, options: of })
    }

    /// Fetches the page, unless it is as it was.
    pub async fn fetch(&self, known: &Validators) -> Result<Fetched, Trouble> {
        let mut request = self.client.get(self.url.clone());
        let none = Validators::default();
        let known = if known.of == self.options { known } else { &none };
        if let Some(etag) = &known.etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        if let Some(time) = &known.last_modified {
            request = request.header(IF_MODIFIED_SINCE, time);
        }
        let mut answer = request.send().await.map_err(|error| self.trouble(&error))?;
        let header = |name: HeaderName| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
        let validators =
            Validators { of: self.options.clone(), etag: header(ETAG), last_modified: header(LAST_MODIFIED) };
        let charset = header(CONTENT_TYPE).and_then(|content_type| charset::of_media_type(&content_type));
        let coding = header(CONTENT_ENCODING);
        match answer.status() {
            // A server that has nothing to say says nothing of what it said before.
            StatusCode::NOT_MODIFIED | StatusCode::NO_CONTENT => return Ok(Fetched::Unchanged),
            StatusCode::OK => {}
            status => {
                let wishes = answer.headers().get_all(RETRY_AFTER).iter().filter_map(|value| value.to_str().ok());
                let retry_after = http_date::retry_after(wishes, self.clock.now(), RETRY_AFTER_MAX);
                return Err(Trouble { retry_after, ..Trouble::of(format!("{} answers {status}", self.shown())) });
            }
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| self.trouble(&error))? {
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

    /// A body that the server packed, though it was not asked to. One that was cut off is an error.
    fn unpacked(&self, body: &[u8], coding: &str) -> Result<Vec<u8>, Trouble> {
        let mut out = Vec::new();
        let limit = self.bytes_max as u64 + 1;
        let read = match coding.to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => flate2::read::MultiGzDecoder::new(body).take(limit).read_to_end(&mut out),
            "deflate" => flate2::read::ZlibDecoder::new(body).take(limit).read_to_end(&mut out),
            other => {
                return Err(Trouble::of(format!(
                    "{} answers in the coding `{other}`, which was not asked for",
                    self.shown()
                )));
            }
        };
        read.map_err(|error| Trouble::new(format!("the page of {} cannot be unpacked", self.shown()), error))?;
        match out.len() > self.bytes_max {
            true => Err(self.too_long()),
            false => Ok(out),
        }
    }

    fn too_long(&self) -> Trouble {
        Trouble::of(format!("the page is longer than {} bytes; `page_bytes_max` can be raised", self.bytes_max))
    }

    /// The address without what may be secret in it.
    fn shown(&self) -> String {
        format!("{}{}", self.url.origin().ascii_serialization(), self.url.path())
    }

    fn trouble(&self, error: &reqwest::Error) -> Trouble {
        Trouble::new(format!("{} cannot be fetched", self.shown()), chain(error))
    }
}

/// An error with what caused it; without the address, which may hold a key.
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
