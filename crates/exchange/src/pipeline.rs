//! Pipelines: the steps that a port applies to messages. The reason of a failed step names the step; the message is
//! suspended with it.

use std::{
    borrow::Cow,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tocsin_connect::{
    Clock,
    programs::{Programs, change::Changer},
};
use tocsin_delivery::http::sign::Signer;
use tocsin_model::{
    charset::{self, Syntax},
    exchange::{
        Assembled, Exchange, Pipeline as Definition, Property, PropertyLocation, Split, Step, TransformLanguage,
        Validation,
    },
    id::Name,
    problem::{Code, Problem},
};

pub(crate) mod assemble; // combines several messages into one
mod compression; // compresses and decompresses bodies
mod split; // splits a message into several
mod transform; // transforms a body
mod validate; // validates a body against its schema

use crate::{
    groups::Workers,
    message::{BYTES_MAX, PipelineMessage, decoded_body},
    promote,
};
use assemble::Assembler;
use compression::Unpack;
use split::Splitter;
use transform::Transformer;
use validate::Schema;

/// Time limit for compiling all stylesheets and XML Schemas of a definition.
const COMPILE_TIME_MAX: Duration = Duration::from_secs(30);
/// Time limit for all parts of a split message together, at all steps. Each step has a limit of its own for one part.
const PARTS_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum characters of the reason of a failed step.
const REASON_CHARS_MAX: usize = 500;

/// The compiled pipeline of a port.
pub(crate) struct Pipeline {
    steps: Vec<CompiledStep>,
    /// Whether a step splits messages.
    pub splits: bool,
    /// The aggregation step, if any.
    pub assembler: Option<Arc<Assembler>>,
    /// See [`PARTS_TIME_MAX`].
    parts_time_max: Duration,
}

/// A compiled step.
enum CompiledStep {
    Decompress(Unpack),
    Compress(tocsin_model::exchange::Compression),
    Split(Splitter),
    Validate(Schema),
    Assemble(Arc<Assembler>),
    Promote(Vec<(Property, PropertyLocation)>),
    Transform(Transformer),
    Sign(Signer),
    Run(Changer),
}

/// Failure of a pipeline step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepError {
    /// The number of the step, from 1.
    step: usize,
    word: &'static str,
    /// The number of the part, from 1, if the message was split.
    part: Option<usize>,
    why: String,
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} of the pipeline (`{}`)", self.step, self.word)?;
        if let Some(part) = self.part {
            write!(f, " at part {part}")?;
        }
        write!(f, ": {}", self.why.chars().take(REASON_CHARS_MAX).collect::<String>())
    }
}

/// Context for compiling steps.
pub(crate) struct CompileContext<'a> {
    pub exchange: &'a Exchange,
    pub programs: &'a Programs,
    /// The start of compiling.
    pub begun: Instant,
}

/// Compiles the steps of a pipeline.
pub(crate) fn compile(
    given: &Definition,
    path: &str,
    tools: &CompileContext<'_>,
) -> Result<Arc<Pipeline>, Vec<Problem>> {
    let (mut steps, mut problems) = (Vec::new(), Vec::new());
    for (at, step) in given.0.iter().enumerate() {
        let path = format!("{path}[{at}].{}", step.word());
        match ready(step, &path, tools) {
            Ok(step) => steps.push(step),
            Err(found) => problems.extend(found),
        }
    }
    let splits = given.0.iter().any(|step| matches!(step, Step::Split { .. }));
    let assembler = steps.iter().find_map(|step| match step {
        CompiledStep::Assemble(assembler) => Some(assembler.clone()),
        _ => None,
    });
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(Arc::new(Pipeline { steps, splits, assembler, parts_time_max: PARTS_TIME_MAX }))
}

fn ready(step: &Step, path: &str, tools: &CompileContext<'_>) -> Result<CompiledStep, Vec<Problem>> {
    let is_xml =
        matches!(step, Step::Validate(Validation::Xml(_)) | Step::Transform { language: TransformLanguage::Xslt, .. });
    // Each can take two seconds before it is cancelled, and a definition can contain hundreds.
    if is_xml && tools.begun.elapsed() > COMPILE_TIME_MAX {
        let message = format!("the steps before took longer than {} s to compile", COMPILE_TIME_MAX.as_secs());
        return Err(vec![Problem::new(Code::TooComplex, path, message).hint("correct those first")]);
    }
    let within = |problem: Problem| {
        let path = if problem.path.is_empty() { path.to_owned() } else { format!("{path}.{}", problem.path) };
        vec![Problem { path, ..problem }]
    };
    Ok(match step {
        Step::Decompress { compression, bytes_max } => {
            CompiledStep::Decompress(Unpack { compression: *compression, bytes_max: *bytes_max as usize })
        }
        Step::Compress(compression) => CompiledStep::Compress(*compression),
        Step::Split { into, most, may_be_empty } => {
            CompiledStep::Split(Splitter { into: into.clone(), most: *most as usize, may_be_empty: *may_be_empty })
        }
        Step::Validate(schema) => CompiledStep::Validate(Schema::compile(schema).map_err(within)?),
        Step::Assemble(assembly) => {
            let compiled = Assembler::compile(assembly, &tools.exchange.fields());
            CompiledStep::Assemble(Arc::new(
                compiled.map_err(|problems| problems.into_iter().flat_map(within).collect::<Vec<_>>())?,
            ))
        }
        Step::Promote(places) => {
            let property = |name: &Name| tools.exchange.properties.iter().find(|known| known.name == *name).cloned();
            let known = places.iter().filter_map(|(name, place)| Some((property(name)?, place.clone())));
            CompiledStep::Promote(known.collect())
        }
        Step::Transform { language, text, content_type } => {
            CompiledStep::Transform(Transformer::compile(*language, text, content_type).map_err(within)?)
        }
        Step::Sign { secret } => CompiledStep::Sign(Signer::new(secret).map_err(|text| {
            let hint = "make one with `echo whsec_$(openssl rand -base64 32)` and take it from the environment";
            within(Problem::new(Code::InvalidKey, "secret", text).hint(hint))
        })?),
        Step::Run { command, environment, timeout } => {
            let name = &tools.exchange.name;
            CompiledStep::Run(Changer::open(name, command, environment, *timeout, tools.programs, path)?)
        }
    })
}

impl CompiledStep {
    fn word(&self) -> &'static str {
        match self {
            CompiledStep::Decompress(_) => "decompress",
            CompiledStep::Compress(_) => "compress",
            CompiledStep::Split(_) => "split",
            CompiledStep::Validate(_) => "validate",
            CompiledStep::Assemble(_) => "assemble",
            CompiledStep::Promote(_) => "promote",
            CompiledStep::Transform(_) => "transform",
            CompiledStep::Sign(_) => "sign",
            CompiledStep::Run(_) => "run",
        }
    }

    /// Applies the step to one message, without I/O.
    fn work(&self, mut message: PipelineMessage, context: &Context) -> Result<Vec<PipelineMessage>, String> {
        match self {
            CompiledStep::Decompress(unpack) => unpack.apply(&mut message)?,
            CompiledStep::Compress(compression) => compression::pack(&mut message, *compression)?,
            CompiledStep::Split(splitter) => {
                let syntax = match splitter.into {
                    Split::Json(_) => Syntax::Json,
                    Split::Lines => Syntax::Text,
                    Split::Xml(_) => Syntax::Xml,
                };
                return splitter.apply(&in_utf8(message, syntax)?);
            }
            CompiledStep::Validate(schema) => schema.check(&message)?,
            CompiledStep::Assemble(assembler) => {
                let syntax = match assembler.form() {
                    Assembled::Json => Syntax::Json,
                    Assembled::Lines => Syntax::Text,
                    Assembled::Xml(_) => Syntax::Xml,
                };
                message = in_utf8(message, syntax)?;
                assembler.check(&message.body)?;
            }
            CompiledStep::Promote(places) => promote::promote(places, &mut message),
            CompiledStep::Transform(transformer) => transformer.apply(&mut message)?,
            CompiledStep::Sign(signer) => {
                let signature = signer.sign(&context.id, context.seconds, &message.body);
                message.signed = Some((context.seconds, signature));
            }
            CompiledStep::Run(_) => unreachable!("programs run asynchronously"),
        }
        Ok(vec![message])
    }
}

/// Converts the body to UTF-8 without a byte-order mark, and updates the declaration and media type if they name an
/// encoding. A body that is UTF-8 already is not copied.
fn in_utf8(mut message: PipelineMessage, syntax: Syntax) -> Result<PipelineMessage, String> {
    let body = match decoded_body(&message, syntax)? {
        Cow::Borrowed(text) => match syntax {
            Syntax::Xml => match charset::xml_for(text, "UTF-8") {
                Cow::Borrowed(text) => message.body.slice_ref(text.as_bytes()),
                Cow::Owned(text) => Bytes::from(text),
            },
            Syntax::Json | Syntax::Text => message.body.slice_ref(text.as_bytes()),
        },
        Cow::Owned(text) => match syntax {
            Syntax::Xml => Bytes::from(charset::xml_for(&text, "UTF-8").into_owned()),
            Syntax::Json | Syntax::Text => Bytes::from(text),
        },
    };
    message.body = body;
    let is_named = charset::of_media_type(&message.content_type);
    if is_named.is_some_and(|charset| !charset.eq_ignore_ascii_case("utf-8")) {
        message.content_type = charset::with_charset(&message.content_type, "utf-8");
    }
    Ok(message)
}

/// Message id and time for signatures, and the start of the first step.
#[derive(Clone)]
struct Context {
    id: Arc<str>,
    seconds: i64,
    begun: Instant,
}

impl Pipeline {
    /// Whether there are no steps.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Applies all steps to a message. `id` identifies it in signatures and programs; `workers` limits the concurrency.
    pub async fn apply(
        self: &Arc<Self>,
        message: PipelineMessage,
        id: &str,
        clock: &Arc<dyn Clock>,
        workers: &Workers,
    ) -> Result<Vec<PipelineMessage>, StepError> {
        if self.is_empty() {
            return Ok(vec![message]);
        }
        // Boxed: most ports have no steps, and their futures should not include this state.
        let done = Box::pin(async {
            let _worker = workers.enter().await;
            let seconds = clock.now().as_millis().div_euclid(1000);
            let context = Context { id: id.into(), seconds, begun: Instant::now() };
            let (mut messages, mut at) = (vec![message], 0);
            while let Some(step) = self.steps.get(at) {
                if let CompiledStep::Run(changer) = step {
                    let (many, mut bytes) = (messages.len(), 0);
                    for (part, message) in messages.iter_mut().enumerate() {
                        self.check_time(&context, at, part, many)?;
                        transform::run(changer, message, id)
                            .await
                            .map_err(|why| self.step_error(at, part, many, why))?;
                        bytes += message.body.len();
                        self.check_bytes(bytes, at)?;
                    }
                    at += 1;
                } else {
                    let (pipeline, context) = (self.clone(), context.clone());
                    let working = tokio::task::spawn_blocking(move || pipeline.work(messages, at, &context));
                    let broken = |_| self.step_error(at, 0, 1, "the step panicked; see the log".to_owned());
                    (messages, at) = working.await.map_err(broken)??;
                }
            }
            Ok(messages)
        });
        done.await
    }

    /// Applies steps up to the next asynchronous one. Returns the messages and the index of the next step.
    fn work(
        &self,
        mut messages: Vec<PipelineMessage>,
        first: usize,
        context: &Context,
    ) -> Result<(Vec<PipelineMessage>, usize), StepError> {
        let mut at = first;
        while let Some(step) = self.steps.get(at).filter(|step| !matches!(step, CompiledStep::Run(_))) {
            let (many, mut made) = (messages.len(), Vec::with_capacity(messages.len()));
            let mut bytes = 0;
            for (part, message) in messages.into_iter().enumerate() {
                self.check_time(context, at, part, many)?;
                let became = step.work(message, context).map_err(|why| self.step_error(at, part, many, why))?;
                // Checked after each part, since each of thousands of parts can grow.
                bytes += became.iter().map(|message| message.body.len()).sum::<usize>();
                self.check_bytes(bytes, at)?;
                made.extend(became);
            }
            messages = made;
            at += 1;
        }
        Ok((messages, at))
    }

    /// Fails if the parts before this one took the time of all parts.
    fn check_time(&self, context: &Context, at: usize, part: usize, many: usize) -> Result<(), StepError> {
        if many == 1 || context.begun.elapsed() <= self.parts_time_max {
            return Ok(());
        }
        let seconds = self.parts_time_max.as_secs();
        let why = format!("the {many} parts take longer than {seconds} s in total, the maximum for a message");
        Err(self.step_error(at, part, many, why))
    }

    /// Fails if a step has produced more bytes than allowed.
    fn check_bytes(&self, bytes: usize, at: usize) -> Result<(), StepError> {
        if bytes <= BYTES_MAX {
            return Ok(());
        }
        let why = format!("it produces more than {BYTES_MAX} bytes, the maximum for a message");
        Err(self.step_error(at, 0, 1, why))
    }

    fn step_error(&self, at: usize, part: usize, many: usize, why: String) -> StepError {
        StepError { step: at + 1, word: self.steps[at].word(), part: (many > 1).then_some(part + 1), why }
    }
}

#[cfg(test)]
mod tests;
