//! Event intake: single events, arrays, streams of lines, and CloudEvents 1.0.
//!
//! JSON is parsed once, directly into the packed row of the event class. Large bodies are parsed off the threads that
//! serve connections. When a function here returns, the events are durable.

use std::sync::Arc;

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use ring::digest;
use serde::{
    Deserialize,
    de::{DeserializeSeed, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use tocsin_model::{
    application::{api_source, due_class},
    event::{EventPacker, PackedEvents},
    field::Fields,
    id::{EventBatchId, Name},
    json::without_mark,
    problem::{Code, PROBLEMS_MAX, Problem},
    time::Timestamp,
    trace_context::{TraceContext, Traces},
};
use tocsin_pipeline::{Compiled, Submission};
use tocsin_store::journal::{EventAcceptance, Idempotency};

use crate::{
    Service,
    error::{ServiceError, json_error, row_error},
    keys::{Caller, Scope},
    lines::{Block, Blocks, BoxError, LINE_BYTES_MAX, Lines},
    resources::Resource,
};

/// Maximum number of events of one array.
pub const EVENTS_MAX: usize = 100_000;
/// Maximum number of events of one batch that is cut from a stream of lines.
pub const LINES_PER_BATCH: usize = 1_000;
/// Most CloudEvents of one batch request.
pub const CLOUD_EVENTS_MAX: usize = 10_000;
/// Longest idempotency key, in characters.
pub const IDEMPOTENCY_KEY_MAX: usize = 255;
/// Bodies of more bytes than this are read off the threads that serve connections.
const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Most CloudEvents of one request that wait for their commit at the same time.
const CLOUD_EVENTS_IN_FLIGHT: usize = 512;

/// An opened submission target: an event class of the running version, and the source. Made with the caller's
/// permission.
#[derive(Clone)]
pub struct Intake {
    compiled: Arc<Compiled>,
    class: Name,
    fields: Fields,
    source: Name,
    received_at: Timestamp,
    trace: Option<TraceContext>,
    /// Id of the API key by which idempotency keys are scoped; empty for CloudEvents, which have an identity of their own.
    sender: Box<str>,
}

/// Result of one submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    /// Batch of the events.
    pub batch: EventBatchId,
    /// Number of events in the submission.
    pub events: u32,
    /// Whether it is a duplicate; nothing was added.
    pub duplicate: bool,
}

/// Result of a stream of submissions.
#[derive(Debug, Default)]
pub struct SubmittedLines {
    /// The batches, in order.
    pub batches: Vec<EventBatchId>,
    /// Number of accepted events, including duplicates.
    pub events: u64,
    /// Number of duplicates.
    pub duplicates: u64,
    /// Reason why the stream ended early. Everything before is accepted.
    pub stopped: Option<ServiceError>,
}

impl SubmittedLines {
    fn count(&mut self, submitted: Submitted) {
        if self.batches.last() != Some(&submitted.batch) {
            self.batches.push(submitted.batch);
        }
        self.events += u64::from(submitted.events);
        if submitted.duplicate {
            self.duplicates += u64::from(submitted.events);
        }
    }
}

/// A CloudEvent, independent of its encoding.
#[derive(Debug, Clone)]
pub struct CloudEvent {
    /// `source` and `id` together are its identity.
    pub source: String,
    /// See `source`.
    pub id: String,
    /// Names the class: exactly, or by the part after its last dot.
    pub kind: String,
    /// A JSON object.
    pub data: Bytes,
    /// Trace context: the extension for distributed tracing.
    pub trace: Option<TraceContext>,
}

/// A CloudEvent in JSON. Other extensions are ignored. Attributes are read one by one, so that each problem has its
/// name.
#[derive(Deserialize)]
struct StructuredCloudEvent<'a> {
    #[serde(default, borrow)]
    specversion: Option<&'a RawValue>,
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    source: Option<&'a RawValue>,
    #[serde(default, borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(default, borrow)]
    datacontenttype: Option<&'a RawValue>,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
    #[serde(default, borrow)]
    data_base64: Option<&'a RawValue>,
    #[serde(default, borrow)]
    traceparent: Option<&'a RawValue>,
    #[serde(default, borrow)]
    tracestate: Option<&'a RawValue>,
}

impl Service {
    /// Opens a submission target. The default source is the only one of the caller's key, else the only one of the
    /// application, else `api`.
    ///
    /// # Errors
    /// The scope `events:write` is missing; the application is not running; it has no such class or source.
    pub fn intake(
        &self,
        caller: &Caller,
        application: &str,
        class: &str,
        source: Option<&str>,
    ) -> Result<Intake, ServiceError> {
        caller.needs(Scope::EventsWrite)?;
        let received_at = self.clock.now();
        let compiled = self.running_by_text(application)?;
        let own = own_source(caller, &compiled, source);
        let intake = open_intake(compiled, class, own.as_deref(), received_at)?;
        intake.check_source(caller)?;
        Ok(Intake { sender: caller.key().into(), ..intake })
    }

    fn running_by_text(&self, application: &str) -> Result<Arc<Compiled>, ServiceError> {
        let name =
            application.parse().map_err(|_| ServiceError::Missing(format!("the application `{application}`")))?;
        self.running(&name)
    }

    /// Accepts one JSON object, or a JSON array as one batch: all or nothing.
    ///
    /// # Errors
    /// `Malformed`, `Invalid` with every problem (up to 100), `KeyReused`, `Full`.
    pub async fn submit(&self, intake: Intake, body: Bytes, key: Option<&str>) -> Result<Submitted, ServiceError> {
        let idempotency = match key {
            Some(key) => {
                Some(intake.idempotency("k", check_key(key)?, content_hash(&[intake.class.as_str().as_bytes(), &body])))
            }
            None => None,
        };
        let (intake, events) = off_thread(body.len(), intake, move |intake| intake.pack(&body)).await?;
        self.accept(&intake, events?, idempotency).await
    }

    /// Accepts JSON objects, one per line, in batches of [`LINES_PER_BATCH`]; the next batch is read while the
    /// previous one is being stored. Empty lines are ignored. Stops at the first bad line; the lines before it are
    /// accepted.
    ///
    /// A key makes each batch of the stream idempotent: the same lines sent again are duplicates.
    pub async fn submit_lines(
        &self,
        intake: Intake,
        chunks: impl Stream<Item = Result<Bytes, BoxError>> + Unpin,
        key: Option<&str>,
    ) -> SubmittedLines {
        let mut answer = SubmittedLines::default();
        let key = match key.map(check_key).transpose() {
            Ok(key) => key,
            Err(error) => return SubmittedLines { stopped: Some(error), ..answer },
        };
        let mut blocks = Blocks::new(chunks, Lines::Plain, LINES_PER_BATCH);
        let mut ordinal = 0u64;
        // Pipelining: while one batch is being stored, at most one more is read and packed.
        let mut in_flight: Option<InFlight<'_>> = None;
        let mut intake = intake;
        loop {
            let read = async {
                match blocks.next().await {
                    None => Ok(None),
                    Some(Err(error)) => Err(ServiceError::BrokenStream(error)),
                    Some(Ok(Block::TooLong { line } | Block::Unclosed { line })) => {
                        Err(line_error(line, LINE_BYTES_MAX))
                    }
                    Some(Ok(Block::Lines { first, bytes })) => Ok(Some((first, bytes))),
                }
            };
            let next = match &mut in_flight {
                Some(flight) => {
                    // Storing progresses on its own task or thread; polling both keeps the stream moving.
                    let (next, stored) = poll_both(read, flight).await;
                    if let Some(stored) = stored {
                        in_flight = None;
                        if let Err(error) = stored.map(|submitted| answer.count(submitted)) {
                            answer.stopped = Some(error);
                            return answer;
                        }
                    }
                    next
                }
                None => read.await,
            };
            let (first, bytes) = match next {
                Ok(Some(block)) => block,
                end => {
                    if let Some(flight) = in_flight.take()
                        && let Err(error) = flight.await.map(|submitted| answer.count(submitted))
                    {
                        answer.stopped = Some(error);
                        return answer;
                    }
                    answer.stopped = end.err();
                    return answer;
                }
            };
            let content = key.map(|_| content_hash(&[intake.class.as_str().as_bytes(), &bytes]));
            let packed = off_thread(usize::MAX, intake.clone(), move |intake| intake.pack_lines(first, &bytes)).await;
            if let Some(flight) = in_flight.take()
                && let Err(error) = flight.await.map(|submitted| answer.count(submitted))
            {
                answer.stopped = Some(error);
                return answer;
            }
            let (events, bad) = match packed {
                Ok((_, packed)) => packed,
                Err(error) => {
                    answer.stopped = Some(error);
                    return answer;
                }
            };
            if events.count() > 0 {
                let idempotency = match (key, content) {
                    (Some(key), Some(content)) => Some(intake.idempotency("l", &format!("{ordinal}/{key}"), content)),
                    _ => None,
                };
                ordinal += 1;
                let (service, to) = (self, intake.clone());
                in_flight = Some(Box::pin(async move { service.accept(&to, events, idempotency).await }));
            }
            intake.received_at = self.clock.now();
            if let Some(error) = bad {
                if let Some(flight) = in_flight.take()
                    && let Err(error) = flight.await.map(|submitted| answer.count(submitted))
                {
                    answer.stopped = Some(error);
                    return answer;
                }
                answer.stopped = Some(error);
                return answer;
            }
        }
    }

    /// Accepts CloudEvents. `source` and `id` identify an event: a duplicate is not added, whatever its content. All
    /// are checked before the first is accepted.
    ///
    /// # Errors
    /// `Invalid` with every problem; `Full`, after which some may be accepted: send all again, duplicates are
    /// detected.
    pub async fn submit_cloud_events(
        &self,
        caller: &Caller,
        application: &str,
        source: Option<&str>,
        events: Vec<CloudEvent>,
    ) -> Result<SubmittedLines, ServiceError> {
        caller.needs(Scope::EventsWrite)?;
        let received_at = self.clock.now();
        let compiled = self.running_by_text(application)?;
        if events.len() > CLOUD_EVENTS_MAX {
            return Err(ServiceError::from(
                Problem::new(
                    Code::TooMany,
                    "",
                    format!("holds {} events; at most {CLOUD_EVENTS_MAX} fit", events.len()),
                )
                .param("given", events.len())
                .param("limit", CLOUD_EVENTS_MAX),
            ));
        }
        let source = own_source(caller, &compiled, source);
        let source = source.as_deref();
        let single = events.len() == 1;
        let mut problems = Vec::new();
        let mut ready = Vec::with_capacity(events.len());
        for (at, event) in events.into_iter().enumerate() {
            if problems.len() >= PROBLEMS_MAX {
                break;
            }
            let place = |path: &str| if single { path.to_owned() } else { format!("[{at}].{path}") };
            match prepare_cloud_event(&compiled, source, received_at, &event) {
                Ok(prepared) => {
                    prepared.0.check_source(caller)?;
                    ready.push(prepared);
                }
                Err(found) => {
                    problems.extend(found.into_iter().map(|problem| Problem { path: place(&problem.path), ..problem }))
                }
            }
        }
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        let mut answer = SubmittedLines::default();
        let accepts = ready
            .into_iter()
            .map(|(intake, events, idempotency)| async move { self.accept(&intake, events, Some(idempotency)).await });
        // Many wait together, so they share one fsync (group commit).
        let mut accepts = stream::iter(accepts).buffered(CLOUD_EVENTS_IN_FLIGHT);
        while let Some(accepted) = accepts.next().await {
            answer.count(accepted?);
        }
        Ok(answer)
    }

    async fn accept(
        &self,
        intake: &Intake,
        events: PackedEvents,
        idempotency: Option<Idempotency>,
    ) -> Result<Submitted, ServiceError> {
        let count = events.count();
        let events = match &intake.trace {
            Some(trace) => events.with_traces(Traces::of_all(trace.clone())),
            None => events,
        };
        let submission = Submission {
            application: intake.compiled.application.name.clone(),
            version: intake.compiled.version,
            class: intake.class.clone(),
            source: intake.source.clone(),
            received_at: intake.received_at,
            events,
            idempotency,
            marks: Vec::new(),
        };
        match self.pipeline.accept(submission).await? {
            EventAcceptance::New(batch) => Ok(Submitted { batch, events: count, duplicate: false }),
            EventAcceptance::Duplicate(batch) => Ok(Submitted { batch, events: count, duplicate: true }),
            EventAcceptance::KeyReused(batch) => Err(ServiceError::KeyReused(batch)),
        }
    }
}

type InFlight<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Submitted, ServiceError>> + Send + 'a>>;

/// Polls `second` while waiting for `first`, and at least once, so that it has started. Returns the result of
/// `first`, and that of `second` if it completed meanwhile.
async fn poll_both<A, B>(
    first: impl Future<Output = A>,
    second: &mut (impl Future<Output = B> + Unpin),
) -> (A, Option<B>) {
    use futures_util::future::{Either, select};
    match select(second, std::pin::pin!(first)).await {
        Either::Left((stored, first)) => (first.await, Some(stored)),
        Either::Right((found, _)) => (found, None),
    }
}

/// Runs work on a value and returns both: inline if small, else on a blocking thread.
async fn off_thread<T: Send + 'static, R: Send + 'static>(
    bytes: usize,
    value: T,
    work: impl FnOnce(&T) -> R + Send + 'static,
) -> Result<(T, R), ServiceError> {
    if bytes <= INLINE_BYTES_MAX {
        let result = work(&value);
        return Ok((value, result));
    }
    let both = tokio::task::spawn_blocking(move || {
        let result = work(&value);
        (value, result)
    });
    both.await.map_err(|error| ServiceError::Unavailable(error.into()))
}

/// The given source, else the only one of the application that the caller's key is limited to.
fn own_source(caller: &Caller, compiled: &Compiled, given: Option<&str>) -> Option<String> {
    let here = &compiled.application.name;
    let mut own = caller.resources().iter().filter_map(|resource| match resource {
        Resource::Source(application, source) if application == here => Some(Some(source)),
        Resource::Application(application) if application == here => Some(None),
        _ => None,
    });
    let only = match (own.next(), own.next()) {
        (Some(only), None) => only,
        _ => None,
    };
    given.map(str::to_owned).or_else(|| only.map(Name::to_string))
}

fn open_intake(
    compiled: Arc<Compiled>,
    class: &str,
    source: Option<&str>,
    received_at: Timestamp,
) -> Result<Intake, ServiceError> {
    let application = &compiled.application;
    let Some((name, event_class)) = application.events.get_key_value(class) else {
        let known: Vec<&str> = application.events.keys().map(Name::as_str).collect();
        let hint = match tocsin_model::problem::closest(class, known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("its classes are {}", known.join(", ")),
        };
        return Err(ServiceError::Missing(format!("the event class `{class}` of `{}` ({hint})", application.name)));
    };
    let source = match source {
        Some(source) => source.parse::<Name>().map_err(|error| {
            ServiceError::from(Problem::not(Code::InvalidFormat, "source", error.expected).param("format", "name"))
        })?,
        None => {
            let mut submitted = application.submitted_sources();
            match (submitted.next(), submitted.next()) {
                (Some(only), None) => only.clone(),
                _ => api_source(),
            }
        }
    };
    if *name == due_class() && application.has_schedules() {
        let problem = Problem::new(
            Code::NotPermitted,
            "class",
            format!("events of the class `{name}` say what is due, and only the clock makes them"),
        );
        return Err(ServiceError::Invalid(vec![problem.hint("submit what happened as an event of another class")]));
    }
    if application.is_bound(name) {
        let message = format!("events of the class `{name}` are made by the changes that it is bound to");
        let problem = Problem::new(Code::NotPermitted, "class", message);
        return Err(ServiceError::Invalid(vec![problem.hint("submit what happened as an event of another class")]));
    }
    if !application.may_submit(&source, name) {
        let known: Vec<&str> = application.submitted_sources().map(Name::as_str).collect();
        let problem = Problem::new(
            Code::NotPermitted,
            "source",
            format!("`{source}` may not submit events of the class `{name}`"),
        )
        .param("value", source.to_string());
        let hint = if known.is_empty() {
            "the application defines no sources of the kind `http`; leave it out".to_owned()
        } else {
            format!("its sources are {}", known.join(", "))
        };
        return Err(ServiceError::Invalid(vec![problem.hint(hint)]));
    }
    let (class, fields) = (name.clone(), event_class.fields.clone());
    Ok(Intake { compiled, class, fields, source, received_at, trace: None, sender: Box::default() })
}

type PreparedCloudEvent = (Intake, PackedEvents, Idempotency);

fn prepare_cloud_event(
    compiled: &Arc<Compiled>,
    source: Option<&str>,
    received_at: Timestamp,
    event: &CloudEvent,
) -> Result<PreparedCloudEvent, Vec<Problem>> {
    let classes = &compiled.application.events;
    let kind = event.kind.as_str();
    let class = if classes.contains_key(kind) { kind } else { kind.rsplit('.').next().unwrap_or_default() };
    let mut problems = Vec::new();
    for (path, text) in [("id", &event.id), ("source", &event.source)] {
        if text.is_empty() || text.len() > 1_024 {
            problems.push(
                Problem::new(Code::TooLong, path, "should be 1 to 1,024 bytes")
                    .param("limit", 1_024)
                    .param("unit", "bytes"),
            );
        }
    }
    let intake = match open_intake(compiled.clone(), class, source, received_at) {
        Ok(intake) => intake.traced(event.trace.clone()),
        Err(ServiceError::Missing(_)) => {
            let known: Vec<&str> = classes.keys().map(Name::as_str).collect();
            let problem = Problem::new(
                Code::UnknownReference,
                "type",
                format!("`{kind}` names no event class of `{}`", compiled.application.name),
            )
            .param("kind", "event_class")
            .param("value", kind.to_string());
            problems.push(problem.hint(format!("its classes are {}", known.join(", "))));
            return Err(problems);
        }
        Err(ServiceError::Invalid(found)) => {
            problems.extend(found);
            return Err(problems);
        }
        Err(error) => return Err(vec![Problem::new(Code::Unavailable, "", error.to_string())]),
    };
    let row = intake.fields.row_from_json(&event.data).map_err(|found| {
        let below = |problem: Problem| {
            let path = if problem.path.is_empty() { "data".to_owned() } else { format!("data.{}", problem.path) };
            Problem { path, line: None, column: None, ..problem }
        };
        problems.extend(found.into_iter().map(below));
        std::mem::take(&mut problems)
    })?;
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut packer = EventPacker::new(intake.fields.clone());
    packer.push(&row);
    // The identity is length-prefixed, so that no other pair of source and id is equal.
    let identity = format!("{}/{}/{}", event.source.len(), event.source, event.id);
    let idempotency = intake.idempotency("c", &identity, [0; 16]);
    Ok((intake, packer.finish(), idempotency))
}

/// Parses one CloudEvent in JSON, or an array of them.
///
/// # Errors
/// `Malformed`, or `Invalid` where a required attribute is missing or the data is not JSON.
pub fn read_cloud_events(body: &Bytes, batch: bool) -> Result<Vec<CloudEvent>, ServiceError> {
    let text = without_mark(body);
    if !batch && text.trim_ascii_start().starts_with(b"[") {
        let problem = Problem::new(Code::WrongType, "", "is a list, and one event is an object").position(1, 1);
        let hint = "send a batch as `application/cloudevents-batch+json`";
        return Err(ServiceError::Invalid(vec![problem.hint(hint)]));
    }
    let events = if batch {
        let CloudEventBatch(events) = serde_json::from_slice(text).map_err(|error| json_error(&error))?;
        events
    } else {
        vec![serde_json::from_slice(text).map_err(|error| json_error(&error))?]
    };
    let mut problems = Vec::new();
    let mut read = Vec::with_capacity(events.len());
    for (at, event) in events.into_iter().enumerate() {
        match read_cloud_event(body, &event) {
            Ok(event) => read.push(event),
            Err(found) => {
                let place = |path: String| if batch { format!("[{at}].{path}") } else { path };
                problems.extend(found.into_iter().map(|problem| Problem { path: place(problem.path), ..problem }));
            }
        }
    }
    if problems.is_empty() { Ok(read) } else { Err(ServiceError::Invalid(problems)) }
}

/// A list of CloudEvents. Reading stops at the limit.
struct CloudEventBatch<'a>(Vec<StructuredCloudEvent<'a>>);

impl<'de> Deserialize<'de> for CloudEventBatch<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Events;
        impl<'de> Visitor<'de> for Events {
            type Value = CloudEventBatch<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an array of CloudEvents")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut events = Vec::new();
                while let Some(event) = items.next_element()? {
                    if events.len() == CLOUD_EVENTS_MAX {
                        let message = format!(
                            "holds more than {CLOUD_EVENTS_MAX} events; send the others in a batch of their own"
                        );
                        return Err(serde::de::Error::custom(message));
                    }
                    events.push(event);
                }
                Ok(CloudEventBatch(events))
            }
        }
        deserializer.deserialize_seq(Events)
    }
}

/// Base64 (RFC 4648) with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

fn read_cloud_event(body: &Bytes, event: &StructuredCloudEvent<'_>) -> Result<CloudEvent, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut text = |name: &str, given: Option<&RawValue>| -> Option<String> {
        match serde_json::from_str(given?.get()) {
            Ok(text) => text,
            Err(_) => {
                problems.push(Problem::new(Code::WrongType, name, "should be a string"));
                None
            }
        }
    };
    let version = text("specversion", event.specversion);
    let (id, source, kind) = (text("id", event.id), text("source", event.source), text("type", event.kind));
    let content_type = text("datacontenttype", event.datacontenttype);
    let encoded = text("data_base64", event.data_base64);
    let trace = text("traceparent", event.traceparent).zip(Some(text("tracestate", event.tracestate)));
    for (name, given) in [("specversion", &version), ("id", &id), ("source", &source), ("type", &kind)] {
        if given.is_none() && !problems.iter().any(|problem| problem.path == name) {
            problems.push(Problem::required(name));
        }
    }
    if let Some(version) = version.filter(|version| version != "1.0") {
        let problem = Problem::new(Code::Unsupported, "specversion", format!("is `{version}`"))
            .param("value", version.to_string());
        problems.push(problem.hint("this platform speaks CloudEvents 1.0"));
    }
    if content_type.as_deref().is_some_and(|kind| !is_json(kind)) {
        problems.push(Problem::syntax("json", "data", "is not JSON").hint("events are JSON objects"));
    }
    if event.data.is_some() && encoded.is_some() {
        let problem = Problem::new(Code::ConflictingMembers, "data_base64", "stands beside `data`");
        problems.push(problem.hint("give the data once (CloudEvents JSON format, 3.1)"));
    }
    let data = match (event.data, encoded.map(|text| BASE64.decode(text))) {
        (_, Some(Ok(bytes))) => Bytes::from(bytes),
        (_, Some(Err(error))) => {
            problems.push(
                Problem::new(Code::InvalidFormat, "data_base64", format!("is not Base64: {error}"))
                    .param("format", "base64"),
            );
            Bytes::new()
        }
        (Some(data), None) => body.slice_ref(data.get().as_bytes()),
        (None, None) => Bytes::from_static(b"{}"),
    };
    match (id, source, kind) {
        (Some(id), Some(source), Some(kind)) if problems.is_empty() => {
            let trace = trace.and_then(|(parent, state)| TraceContext::read(&parent, state.as_deref()));
            Ok(CloudEvent { source, id, kind, data, trace })
        }
        _ => Err(problems),
    }
}

pub use tocsin_model::media_type::is_json;

fn check_key(key: &str) -> Result<&str, ServiceError> {
    if key.is_empty() || key.chars().count() > IDEMPOTENCY_KEY_MAX {
        return Err(ServiceError::from(
            Problem::new(Code::TooLong, "Idempotency-Key", format!("should be 1 to {IDEMPOTENCY_KEY_MAX} characters"))
                .param("limit", IDEMPOTENCY_KEY_MAX)
                .param("unit", "characters"),
        ));
    }
    Ok(key)
}

/// First half of the SHA-256 of the length-prefixed parts.
fn content_hash(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = digest::Context::new(&digest::SHA256);
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finish().as_ref()[..16].try_into().expect("SHA-256 has 32 bytes")
}

fn line_error(line: u64, bytes_max: usize) -> ServiceError {
    let line = u32::try_from(line).unwrap_or(u32::MAX);
    let problem = Problem {
        line: Some(line),
        ..Problem::new(Code::TooLong, "", format!("is longer than {bytes_max} bytes"))
            .param("limit", bytes_max)
            .param("unit", "bytes")
    };
    ServiceError::Invalid(vec![problem])
}

impl Intake {
    /// Sets the trace context of the events.
    pub fn traced(self, trace: Option<TraceContext>) -> Intake {
        Intake { trace, ..self }
    }

    /// Refuses a caller whose key is limited to other sources.
    fn check_source(&self, caller: &Caller) -> Result<(), ServiceError> {
        let application = self.compiled.application.name.clone();
        match caller.reaches(&Resource::Source(application, self.source.clone())) {
            true => Ok(()),
            false => {
                Err(caller.limited(&format!("it submits no events of the source `{}`; give `source`", self.source)))
            }
        }
    }

    fn idempotency(&self, kind: &str, key: &str, content: [u8; 16]) -> Idempotency {
        let application = &self.compiled.application;
        let mut parts = vec![application.name.as_str(), self.source.as_str(), kind, key];
        parts.extend((!self.sender.is_empty()).then_some(&*self.sender));
        let parts: Vec<&[u8]> = parts.into_iter().map(str::as_bytes).collect();
        let until = self.received_at + application.retention.idempotency;
        Idempotency { key: content_hash(&parts), content, until }
    }

    fn pack(&self, body: &[u8]) -> Result<PackedEvents, ServiceError> {
        let body = without_mark(body);
        let mut packer = EventPacker::new(self.fields.clone());
        if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'[') {
            packer.push(&self.fields.row_from_json(body).map_err(row_error)?);
            return Ok(packer.finish());
        }
        let mut problems = Vec::new();
        let mut reader = serde_json::Deserializer::from_slice(body);
        let read =
            ArraySeed { fields: &self.fields, packer: &mut packer, problems: &mut problems }.deserialize(&mut reader);
        let read = read.and_then(|()| reader.end());
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        read.map_err(|error| json_error(&error))?;
        if packer.count() == 0 {
            return Err(ServiceError::invalid(Code::Empty, "", "holds no event"));
        }
        Ok(packer.finish())
    }

    /// Packs the lines up to the first bad one, and returns its problem.
    fn pack_lines(&self, first: u64, bytes: &[u8]) -> (PackedEvents, Option<ServiceError>) {
        let mut packer = EventPacker::new(self.fields.clone());
        for (at, line) in (first..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            match self.fields.row_from_json(line) {
                Ok(row) => packer.push(&row),
                Err(problems) => {
                    let number = u32::try_from(at).unwrap_or(u32::MAX);
                    let problems =
                        problems.into_iter().map(|problem| Problem { line: Some(number), ..problem }).collect();
                    return (packer.finish(), Some(row_error(problems)));
                }
            }
        }
        (packer.finish(), None)
    }
}

/// Parses an array of objects directly into a packer, without a tree or a list of rows.
struct ArraySeed<'a> {
    fields: &'a Fields,
    packer: &'a mut EventPacker,
    problems: &'a mut Vec<Problem>,
}

impl<'de> DeserializeSeed<'de> for ArraySeed<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ArraySeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut at = 0;
        while let Some(row) = items.next_element_seed(self.fields.row_seed())? {
            match row {
                Ok(row) if self.problems.is_empty() => self.packer.push(&row),
                Ok(_) => {}
                Err(problems) => {
                    let below = |problem: Problem| Problem { path: format!("[{at}].{}", problem.path), ..problem };
                    self.problems.extend(problems.into_iter().map(below));
                    if self.problems.len() >= PROBLEMS_MAX {
                        self.problems.truncate(PROBLEMS_MAX);
                        let more = Problem::new(Code::MoreProblems, "", "and more: what follows was not read");
                        self.problems.push(more.hint("mend these first"));
                        return Err(serde::de::Error::custom("too many problems"));
                    }
                }
            }
            at += 1;
            if at > EVENTS_MAX {
                let problem = Problem::new(Code::TooMany, "", format!("holds more than {EVENTS_MAX} events"))
                    .param("limit", EVENTS_MAX);
                self.problems.push(problem.hint("send them as lines: application/x-ndjson has no such bound"));
                return Err(serde::de::Error::custom("too many events"));
            }
        }
        Ok(())
    }
}
