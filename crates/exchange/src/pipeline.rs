//! What is done to messages at a port, step by step. A step that fails says which it is and why; the message is suspended
//! with that.

use std::{
    borrow::Cow,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tocsin_delivery::{Clock, http::sign::Signer, process::change::Changer, programs::Programs};
use tocsin_model::{
    charset::{self, Syntax},
    exchange::{
        Assembled, Exchange, Pipeline as Definition, Place, Property, Split, Step, TransformLanguage, Validation,
    },
    id::Name,
    problem::Problem,
    trace_context::TraceContext,
    value::Value,
};

pub(crate) mod assemble; // several messages become one
mod compression; // bodies are packed and unpacked
mod split; // one message becomes several
mod transform; // a body becomes another
mod validate; // a body is compared with its schema

use crate::{groups::Workers, promote};
use assemble::Assembler;
use compression::Unpack;
use split::Splitter;
use transform::Transformer;
use validate::Schema;

/// Time for all stylesheets and XML Schemas of a definition.
const COMPILE_TIME_MAX: Duration = Duration::from_secs(30);
/// Most bytes of all that a message becomes, at any step.
const BYTES_MAX: usize = 128 << 20;
/// Most bytes of what a far side may be told of a failure.
const REASON_CHARS_MAX: usize = 500;

/// A message on its way through steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Parcel {
    pub content_type: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// What steps have promoted so far.
    pub properties: Vec<(Name, Value)>,
    pub body: Bytes,
    /// When its body was signed, in seconds since 1970, and the signature.
    pub signed: Option<(i64, String)>,
    /// Where it stands in a trace. No step changes that.
    pub trace: Option<Box<TraceContext>>,
}

/// The steps of a port, ready to be gone through.
pub(crate) struct Pipeline {
    steps: Vec<Ready>,
    /// Whether one message may become several.
    pub splits: bool,
    /// What makes one of several, if anything does.
    pub assembler: Option<Arc<Assembler>>,
}

/// A step, ready to be done.
enum Ready {
    Decompress(Unpack),
    Compress(tocsin_model::exchange::Compression),
    Split(Splitter),
    Validate(Schema),
    Assemble(Arc<Assembler>),
    Promote(Vec<(Property, Place)>),
    Transform(Transformer),
    Sign(Signer),
    Run(Changer),
}

/// Why a message came no further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stuck {
    /// The step, from 1.
    step: usize,
    word: &'static str,
    /// Which of its parts, from 1, if it had become several.
    part: Option<usize>,
    why: String,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} of the pipeline (`{}`)", self.step, self.word)?;
        if let Some(part) = self.part {
            write!(f, " at part {part}")?;
        }
        write!(f, ": {}", self.why.chars().take(REASON_CHARS_MAX).collect::<String>())
    }
}

/// What steps are made with.
pub(crate) struct Tools<'a> {
    pub exchange: &'a Exchange,
    pub programs: &'a Programs,
    pub clock: &'a Arc<dyn Clock>,
    /// The beginning of compiling.
    pub begun: Instant,
}

/// Steps that are made ready, and what is wrong with them.
pub(crate) fn compile(given: &Definition, path: &str, tools: &Tools<'_>) -> Result<Arc<Pipeline>, Vec<Problem>> {
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
        Ready::Assemble(assembler) => Some(assembler.clone()),
        _ => None,
    });
    if problems.is_empty() { Ok(Arc::new(Pipeline { steps, splits, assembler })) } else { Err(problems) }
}

fn ready(step: &Step, path: &str, tools: &Tools<'_>) -> Result<Ready, Vec<Problem>> {
    let is_xml =
        matches!(step, Step::Validate(Validation::Xml(_)) | Step::Transform { language: TransformLanguage::Xslt, .. });
    // Each may take two seconds until it is stopped, and a definition has room for hundreds.
    if is_xml && tools.begun.elapsed() > COMPILE_TIME_MAX {
        let message = format!("the steps before took longer than {} s to compile", COMPILE_TIME_MAX.as_secs());
        return Err(vec![Problem::at(path, message).hint("correct those first")]);
    }
    let within = |problem: Problem| {
        let path = if problem.path.is_empty() { path.to_owned() } else { format!("{path}.{}", problem.path) };
        vec![Problem { path, ..problem }]
    };
    Ok(match step {
        Step::Decompress { compression, bytes_max } => {
            Ready::Decompress(Unpack { compression: *compression, bytes_max: *bytes_max as usize })
        }
        Step::Compress(compression) => Ready::Compress(*compression),
        Step::Split { into, most, may_be_empty } => {
            Ready::Split(Splitter { into: into.clone(), most: *most as usize, may_be_empty: *may_be_empty })
        }
        Step::Validate(schema) => Ready::Validate(Schema::compile(schema).map_err(within)?),
        Step::Assemble(assembly) => {
            let compiled = Assembler::compile(assembly, &tools.exchange.fields());
            Ready::Assemble(Arc::new(
                compiled.map_err(|problems| problems.into_iter().flat_map(within).collect::<Vec<_>>())?,
            ))
        }
        Step::Promote(places) => {
            let property = |name: &Name| tools.exchange.properties.iter().find(|known| known.name == *name).cloned();
            let known = places.iter().filter_map(|(name, place)| Some((property(name)?, place.clone())));
            Ready::Promote(known.collect())
        }
        Step::Transform { language, text, content_type } => {
            Ready::Transform(Transformer::compile(*language, text, content_type).map_err(within)?)
        }
        Step::Sign { secret } => Ready::Sign(Signer::new(secret).map_err(|text| {
            let hint = "make one with `echo whsec_$(openssl rand -base64 32)` and take it from the environment";
            within(Problem::at("secret", text).hint(hint))
        })?),
        Step::Run { command, environment, timeout } => {
            let name = &tools.exchange.name;
            Ready::Run(Changer::open(name, command, environment, *timeout, tools.programs, path)?)
        }
    })
}

impl Ready {
    fn word(&self) -> &'static str {
        match self {
            Ready::Decompress(_) => "decompress",
            Ready::Compress(_) => "compress",
            Ready::Split(_) => "split",
            Ready::Validate(_) => "validate",
            Ready::Assemble(_) => "assemble",
            Ready::Promote(_) => "promote",
            Ready::Transform(_) => "transform",
            Ready::Sign(_) => "sign",
            Ready::Run(_) => "run",
        }
    }

    /// Does it to one message. Never waits for anything.
    fn work(&self, mut parcel: Parcel, context: &Context) -> Result<Vec<Parcel>, String> {
        match self {
            Ready::Decompress(unpack) => unpack.apply(&mut parcel)?,
            Ready::Compress(compression) => compression::pack(&mut parcel, *compression)?,
            Ready::Split(splitter) => {
                let syntax = match splitter.into {
                    Split::Json(_) => Syntax::Json,
                    Split::Lines => Syntax::Text,
                    Split::Xml(_) => Syntax::Xml,
                };
                return splitter.apply(&in_utf8(parcel, syntax)?);
            }
            Ready::Validate(schema) => schema.check(&parcel)?,
            Ready::Assemble(assembler) => {
                let syntax = match assembler.form() {
                    Assembled::Json => Syntax::Json,
                    Assembled::Lines => Syntax::Text,
                    Assembled::Xml(_) => Syntax::Xml,
                };
                parcel = in_utf8(parcel, syntax)?;
                assembler.check(&parcel.body)?;
            }
            Ready::Promote(places) => promote::take(places, &mut parcel),
            Ready::Transform(transformer) => transformer.apply(&mut parcel)?,
            Ready::Sign(signer) => {
                let signature = signer.sign(&context.id, context.seconds, &parcel.body);
                parcel.signed = Some((context.seconds, signature));
            }
            Ready::Run(_) => unreachable!("programs are waited for"),
        }
        Ok(vec![parcel])
    }
}

/// The body of a message as text, by its media type, its declaration or its byte-order mark.
pub(crate) fn decoded_body(parcel: &Parcel, syntax: Syntax) -> Result<Cow<'_, str>, String> {
    let charset = charset::of_media_type(&parcel.content_type);
    charset::decode(&parcel.body, syntax, charset.as_deref()).map_err(|error| format!("the body {error}"))
}

/// A message whose body is UTF-8 without a byte-order mark, which its declaration and its media type name if they name an
/// encoding. One that is so already is not copied.
fn in_utf8(mut parcel: Parcel, syntax: Syntax) -> Result<Parcel, String> {
    let body = match decoded_body(&parcel, syntax)? {
        Cow::Borrowed(text) => match syntax {
            Syntax::Xml => match charset::xml_for(text, "UTF-8") {
                Cow::Borrowed(text) => parcel.body.slice_ref(text.as_bytes()),
                Cow::Owned(text) => Bytes::from(text),
            },
            Syntax::Json | Syntax::Text => parcel.body.slice_ref(text.as_bytes()),
        },
        Cow::Owned(text) => match syntax {
            Syntax::Xml => Bytes::from(charset::xml_for(&text, "UTF-8").into_owned()),
            Syntax::Json | Syntax::Text => Bytes::from(text),
        },
    };
    parcel.body = body;
    let is_named = charset::of_media_type(&parcel.content_type);
    if is_named.is_some_and(|charset| !charset.eq_ignore_ascii_case("utf-8")) {
        parcel.content_type = charset::with_charset(&parcel.content_type, "utf-8");
    }
    Ok(parcel)
}

/// Which message it is, and when.
#[derive(Clone)]
struct Context {
    id: Arc<str>,
    seconds: i64,
}

impl Pipeline {
    /// Whether nothing is done.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Does all steps to a message; `id` is what signatures and programs know it by. `workers` bound how many messages are
    /// at it at the same time.
    pub async fn apply(
        self: &Arc<Self>,
        parcel: Parcel,
        id: &str,
        clock: &Arc<dyn Clock>,
        workers: &Workers,
    ) -> Result<Vec<Parcel>, Stuck> {
        if self.is_empty() {
            return Ok(vec![parcel]);
        }
        // Ports without steps are most, and their messages need not carry the room that steps take.
        let done = Box::pin(async {
            let _worker = workers.enter().await;
            let context = Context { id: id.into(), seconds: clock.now().as_millis().div_euclid(1000) };
            let (mut parcels, mut at) = (vec![parcel], 0);
            while let Some(step) = self.steps.get(at) {
                if let Ready::Run(changer) = step {
                    for part in 0..parcels.len() {
                        let many = parcels.len();
                        transform::run(changer, &mut parcels[part], id)
                            .await
                            .map_err(|why| self.stuck(at, part, many, why))?;
                    }
                    at += 1;
                } else {
                    let (pipeline, context) = (self.clone(), context.clone());
                    let working = tokio::task::spawn_blocking(move || pipeline.work(parcels, at, &context));
                    let broken = |_| self.stuck(at, 0, 1, "it broke; the log says more".to_owned());
                    (parcels, at) = working.await.map_err(broken)??;
                }
                self.check_bytes(&parcels, at)?;
            }
            Ok(parcels)
        });
        done.await
    }

    /// Does steps up to the next that waits. Gives what became of the messages, and which step is next.
    fn work(&self, mut parcels: Vec<Parcel>, first: usize, context: &Context) -> Result<(Vec<Parcel>, usize), Stuck> {
        let mut at = first;
        while let Some(step) = self.steps.get(at).filter(|step| !matches!(step, Ready::Run(_))) {
            let (many, mut made) = (parcels.len(), Vec::with_capacity(parcels.len()));
            for (part, parcel) in parcels.into_iter().enumerate() {
                made.extend(step.work(parcel, context).map_err(|why| self.stuck(at, part, many, why))?);
            }
            parcels = made;
            at += 1;
            self.check_bytes(&parcels, at)?;
        }
        Ok((parcels, at))
    }

    fn check_bytes(&self, parcels: &[Parcel], at: usize) -> Result<(), Stuck> {
        let bytes: usize = parcels.iter().map(|parcel| parcel.body.len()).sum();
        if bytes <= BYTES_MAX {
            return Ok(());
        }
        let why = format!("it makes {bytes} bytes of the message, and {BYTES_MAX} are the most");
        Err(self.stuck(at - 1, 0, 1, why))
    }

    fn stuck(&self, at: usize, part: usize, many: usize, why: String) -> Stuck {
        Stuck { step: at + 1, word: self.steps[at].word(), part: (many > 1).then_some(part + 1), why }
    }
}

#[cfg(test)]
mod tests;
