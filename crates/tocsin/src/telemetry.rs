//! Trace export: spans are sent to an OpenTelemetry collector by OTLP over HTTP, in JSON or Protocol Buffers.
//!
//! The pipeline never waits for it. Spans are queued up to a limit; spans that do not fit, or that the collector
//! refuses after retries, are counted and dropped.

mod otlp; // OTLP data model and JSON encoding
mod protobuf; // Protocol Buffers encoding

use std::{
    io::Write,
    path::Path,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use percent_encoding::percent_decode_str;
use reqwest::{
    Client, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
};
use tocsin_connect::{files::Files, tls};
use tocsin_model::http_date;
use tocsin_pipeline::{Span, Spans};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    configuration::{OtlpCompression, OtlpProtocol, Telemetry},
    failure::{Failure, Outcome},
};

/// Maximum number of spans per request.
const BATCH_MAX: usize = 512;
/// Maximum number of tries per request.
const TRIES: u32 = 5;
/// Pause after the first failure; doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// Maximum pause that a collector can request.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Maximum time to send queued spans at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Exporter of spans, until stopped.
pub struct Exporter {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Exporter {
    /// Sends the queued spans, for a few seconds at most, and stops.
    pub async fn stop(&mut self) {
        self.stop.cancel();
        if !self.task.is_finished() && timeout(SHUTDOWN_TIMEOUT, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// Starts the export, if an endpoint is configured.
///
/// # Errors
/// If the endpoint, a header, an attribute or the ratio is invalid, or the certificates cannot be read.
pub fn start(options: &Telemetry, installation: &str) -> Outcome<(Spans, Option<Exporter>)> {
    let Some(collector) = Collector::new(options, installation)? else { return Ok((Spans::default(), None)) };
    let (spans, listener) = Spans::new(options.queue_spans.max(1) as usize, options.sample_ratio);
    let stop = CancellationToken::new();
    let gatherer = SpanBatcher { collector, listener, delay: options.delay.0, stop: stop.clone() };
    Ok((spans, Some(Exporter { stop, task: tokio::spawn(gatherer.run()) })))
}

/// Collector endpoint.
struct Collector {
    client: Client,
    url: String,
    headers: HeaderMap,
    resource: otlp::Resource,
    protocol: OtlpProtocol,
    compression: OtlpCompression,
}

impl Collector {
    fn new(options: &Telemetry, installation: &str) -> Outcome<Option<Collector>> {
        let Some(url) = url_of(options)? else { return Ok(None) };
        if !(0.0..=1.0).contains(&options.sample_ratio) {
            return Err(Failure::usage("telemetry.sample_ratio: expected a number from 0 to 1"));
        }
        let more = pairs(&options.resource_attributes);
        let more = more.ok_or_else(|| wrong_pairs("telemetry.resource_attributes"))?;
        let resource = otlp::Resource::new(&options.service_name, installation, more);
        let headers = headers(&options.headers.0)?;
        let client =
            Client::builder().timeout(options.timeout.0).redirect(reqwest::redirect::Policy::none()).no_proxy();
        let client = match options.ca_file.as_str() {
            "" => client,
            file => {
                let trust = tls::client_config(&Files::of_configuration(), Some(Path::new(file)), "telemetry.ca_file");
                let trust =
                    trust.map_err(|problem| Failure::usage(format!("the configuration is invalid: {problem}")))?;
                client.tls_backend_preconfigured((*trust).clone())
            }
        };
        let client = client
            .build()
            .map_err(|error| Failure::failed("cannot create the HTTP client for telemetry").because(&error))?;
        let Telemetry { protocol, compression, .. } = *options;
        Ok(Some(Collector { client, url, headers, resource, protocol, compression }))
    }

    /// Encodes the body of a request.
    fn body(&self, spans: &[Span]) -> Bytes {
        let body = match self.protocol {
            OtlpProtocol::Json => self.resource.body(spans).into_bytes(),
            OtlpProtocol::Protobuf => self.resource.protobuf(spans),
        };
        match self.compression {
            OtlpCompression::None => body.into(),
            OtlpCompression::Gzip => {
                let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
                let packed = packer.write_all(&body).and_then(|()| packer.finish());
                packed.expect("writing to a vector succeeds").into()
            }
        }
    }

    /// Sends spans; retries deferrable failures.
    async fn send(&self, spans: &[Span], stop: &CancellationToken) {
        let body = self.body(spans);
        let mut pause = PAUSE_MIN;
        let mut failure = String::new();
        for attempt in 1..=TRIES {
            match self.post(body.clone()).await {
                Ok(()) => return count("sent", spans.len()),
                Err(SendFailure::Refused(why)) => {
                    tracing::warn!(url = self.url, why, "the collector refuses spans");
                    return count("refused", spans.len());
                }
                Err(SendFailure::Deferred { why, after }) => {
                    failure = why;
                    pause = after.unwrap_or(pause).min(PAUSE_MAX);
                }
            }
            if attempt == TRIES || stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                break;
            }
            pause *= 2;
        }
        tracing::warn!(url = self.url, why = failure, spans = spans.len(), "cannot send spans to the collector");
        count("unsent", spans.len());
    }

    async fn post(&self, body: Bytes) -> Result<(), SendFailure> {
        let content_type = match self.protocol {
            OtlpProtocol::Json => "application/json",
            OtlpProtocol::Protobuf => "application/x-protobuf",
        };
        let mut request = self.client.post(&self.url).headers(self.headers.clone()).header(CONTENT_TYPE, content_type);
        if self.compression == OtlpCompression::Gzip {
            request = request.header(CONTENT_ENCODING, "gzip");
        }
        let answer = request.body(body).send().await;
        let answer =
            answer.map_err(|error| SendFailure::Deferred { why: error.without_url().to_string(), after: None })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let why = format!("the collector responded {status}");
        let later = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::BAD_GATEWAY,
            StatusCode::SERVICE_UNAVAILABLE,
            StatusCode::GATEWAY_TIMEOUT,
        ];
        if !later.contains(&status) {
            return Err(SendFailure::Refused(why));
        }
        let wishes = answer.headers().get_all(RETRY_AFTER).iter().filter_map(|value| value.to_str().ok());
        Err(SendFailure::Deferred { why, after: http_date::retry_after(wishes, SystemTime::now().into(), PAUSE_MAX) })
    }
}

enum SendFailure {
    /// Permanent failure.
    Refused(String),
    /// Temporary failure.
    Deferred { why: String, after: Option<Duration> },
}

fn count(result: &'static str, spans: usize) {
    metrics::counter!("tocsin_telemetry_spans_total", "result" => result).increment(spans as u64);
}

/// Collects spans from the pipeline and sends them in batches.
struct SpanBatcher {
    collector: Collector,
    listener: mpsc::Receiver<Span>,
    delay: Duration,
    stop: CancellationToken,
}

impl SpanBatcher {
    async fn run(mut self) {
        let mut spans = Vec::with_capacity(BATCH_MAX);
        loop {
            let is_over = self.collect_batch(&mut spans).await;
            if !spans.is_empty() {
                self.collector.send(&spans, &self.stop).await;
                spans.clear();
            } else if is_over {
                return;
            }
        }
    }

    /// Waits for spans, and briefly for further ones. Returns whether the queue is closed.
    async fn collect_batch(&mut self, spans: &mut Vec<Span>) -> bool {
        let first = self.stop.run_until_cancelled(self.listener.recv_many(spans, BATCH_MAX)).await;
        let until = tokio::time::Instant::now() + self.delay;
        while first.is_some_and(|count| count > 0) && spans.len() < BATCH_MAX {
            let room = BATCH_MAX - spans.len();
            let more = tokio::time::timeout_at(until, self.listener.recv_many(spans, room));
            match self.stop.run_until_cancelled(more).await {
                Some(Ok(count)) if count > 0 => {}
                _ => break,
            }
        }
        // Also drains the queue after a stop.
        while spans.len() < BATCH_MAX
            && let Ok(span) = self.listener.try_recv()
        {
            spans.push(span);
        }
        self.stop.is_cancelled() || first == Some(0)
    }
}

/// URL for spans: configured, or `/v1/traces` below an endpoint (OTLP 1.9, HTTP); `None` if neither is configured.
fn url_of(options: &Telemetry) -> Outcome<Option<String>> {
    let endpoint = options.endpoint.trim_end_matches('/');
    let (key, value, url) = match options.traces_endpoint.as_str() {
        "" if endpoint.is_empty() => return Ok(None),
        "" if endpoint.ends_with("/v1/traces") => ("endpoint", endpoint, endpoint.to_owned()),
        "" => ("endpoint", endpoint, format!("{endpoint}/v1/traces")),
        whole => ("traces_endpoint", whole, whole.to_owned()),
    };
    let is_good = url::Url::parse(value).is_ok_and(|url| {
        let may_ask = key == "traces_endpoint" || url.query().is_none();
        matches!(url.scheme(), "http" | "https") && url.has_host() && may_ask && url.fragment().is_none()
    });
    match is_good {
        true => Ok(Some(url)),
        false => {
            let what = format!("telemetry.{key}: `{value}` is not a URL such as http://localhost:4318");
            Err(Failure::usage(what))
        }
    }
}

/// Parses `name=value,name=value` with percent-encoding, as in OpenTelemetry variables.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let read = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        let name = name.trim();
        (!name.is_empty()).then(|| (name.to_owned(), value.into_owned()))
    };
    pairs.map(read).collect()
}

fn wrong_pairs(key: &str) -> Failure {
    Failure::usage(format!("{key}: expected `name=value`, comma-separated"))
}

fn headers(text: &str) -> Outcome<HeaderMap> {
    let read = |(name, value): (String, String)| {
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name).ok()?, value))
    };
    let read: Option<HeaderMap> = pairs(text).and_then(|pairs| pairs.into_iter().map(read).collect());
    read.ok_or_else(|| wrong_pairs("telemetry.headers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_and_headers_are_parsed_or_refused() {
        let url = |endpoint: &str| {
            let options = Telemetry { endpoint: endpoint.to_owned(), ..Telemetry::default() };
            url_of(&options).map_err(|failure| failure.exit)
        };
        let own = Telemetry { traces_endpoint: "http://a.example/in?x=1".into(), ..Telemetry::default() };
        assert_eq!(url_of(&own).ok().flatten().as_deref(), Some("http://a.example/in?x=1"));
        for (endpoint, expected) in [
            ("", None),
            ("http://localhost:4318", Some("http://localhost:4318/v1/traces")),
            ("https://otel.example/in/", Some("https://otel.example/in/v1/traces")),
            ("https://otel.example/v1/traces", Some("https://otel.example/v1/traces")),
        ] {
            assert_eq!(url(endpoint).ok().flatten().as_deref(), expected, "{endpoint}");
        }
        for wrong in ["localhost:4318", "ftp://a.example", "http://", "http://a.example/?x=1"] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
        let read = headers("api-key=s3cret, x-team = ops%2C%20all ,").expect("headers");
        assert_eq!((read["api-key"].as_bytes(), read["x-team"].as_bytes()), (&b"s3cret"[..], &b"ops, all"[..]));
        assert!(headers("").expect("none").is_empty());
        for wrong in ["api-key", "a b=c", "a=\u{1}"] {
            assert!(headers(wrong).is_err(), "{wrong}");
        }
        let options = Telemetry { endpoint: "http://a.example".into(), sample_ratio: 1.5, ..Telemetry::default() };
        assert!(Collector::new(&options, "x").is_err());
        for wrong in ["a", "=b", "a=%FF"] {
            let resource_attributes = wrong.to_owned();
            let options =
                Telemetry { endpoint: "http://a.example".into(), resource_attributes, ..Telemetry::default() };
            assert!(Collector::new(&options, "x").is_err(), "{wrong}");
        }
    }
}
