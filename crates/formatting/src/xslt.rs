//! XSLT 1.0 stylesheets, run by libxslt in worker processes.
//!
//! Stylesheets come from the operator. A stylesheet is checked before the library parses it, compiled once by each
//! worker, and isolated: no files, no network, no stylesheets except the application's partials. Its steps, depth,
//! memory, output and time are bounded. The input document is built node by node; the library never parses text from
//! outside.

mod check; // checks for constructs that are not allowed
pub(crate) mod engine; // bindings of libxslt, for workers
mod input; // the notification as XML

use std::{collections::BTreeMap, fmt, sync::Arc};

use tocsin_model::problem::Problem;

use crate::{
    limits::OUTPUT_BYTES_MAX,
    tree::Tree,
    worker::{
        self, Program, STYLESHEET_BYTES_MAX, TEMPLATE_DEPTH_MAX, TRANSFORM_TIME_MAX, WorkerError, WorkerResponse,
    },
};

pub use check::imports;
pub use input::Input;

/// A compiled stylesheet; cheap to clone.
#[derive(Clone)]
pub struct Stylesheet {
    program: Arc<Program>,
    imported: Vec<String>,
    output: Output,
}

/// The declarations of `xsl:output` (XSLT 1.0, section 16), including imported stylesheets. Empty if there are none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    pub method: String,
    pub encoding: String,
    pub media_type: String,
}

impl fmt::Debug for Stylesheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stylesheet").field("imported", &self.imported).finish()
    }
}

/// The error of a stylesheet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XsltError {
    /// The line of the stylesheet, from 1, if the library reports it.
    pub line: Option<u32>,
    /// The error.
    pub message: String,
    /// Whether it fails for any notification.
    pub is_static: bool,
    /// Whether it was stopped at a time or memory limit.
    pub is_limit: bool,
}

impl XsltError {
    pub(crate) fn plain(message: impl Into<String>) -> XsltError {
        XsltError { line: None, message: message.into(), is_static: false, is_limit: false }
    }

    fn limit(message: impl Into<String>) -> XsltError {
        XsltError { is_limit: true, ..XsltError::plain(message) }
    }
}

impl From<WorkerError> for XsltError {
    fn from(error: WorkerError) -> XsltError {
        let is_limit =
            matches!(error, WorkerError::Time { .. } | WorkerError::Memory { .. } | WorkerError::Crashed { .. });
        XsltError { is_limit, ..XsltError::plain(error.to_string()) }
    }
}

impl Stylesheet {
    /// Compiles a stylesheet, in at most two seconds. `partials` are the application's partials that are stylesheets.
    /// `method` is for a part of a message: the output method if the stylesheet does not declare one, `text` or `html`,
    /// without an XML declaration. If `method` is `None`, XSLT's rules apply.
    ///
    /// # Errors
    /// The fault, with its line, or the exceeded limit.
    pub fn compile(source: &str, partials: &BTreeMap<&str, &str>, method: Option<&str>) -> Result<Stylesheet, Problem> {
        let imported = check::check_all(source, partials)?;
        let sources: Vec<(&str, &str)> =
            imported.iter().filter_map(|name| Some((name.as_str(), *partials.get(name.as_str())?))).collect();
        let program = Arc::new(Program::stylesheet(source, &sources, method));
        let error = match program.compile() {
            Ok(WorkerResponse::Compiled { method, encoding, media_type }) => {
                return Ok(Stylesheet { program, imported, output: Output { method, encoding, media_type } });
            }
            Ok(answer) => result(answer).err(),
            Err(error) => Some(error.into()),
        };
        let error = error.unwrap_or_else(|| XsltError::plain("the library gives no reason"));
        let problem = Problem::syntax("xslt", "", format!("the stylesheet cannot be compiled: {}", error.message));
        let problem = problem.hint("the language is XSLT 1.0, as libxslt supports it");
        Err(problem.position(error.line.unwrap_or(1), 1))
    }

    /// The partials that it imports or includes, directly or indirectly.
    pub fn imported(&self) -> &[String] {
        &self.imported
    }

    /// The declarations of its output.
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// Applies the stylesheet to a notification.
    ///
    /// # Errors
    /// The stylesheet fails, or is stopped at a limit: after 0.8 s of processor time at the latest.
    pub fn apply(&self, input: &Input<'_>) -> Result<String, XsltError> {
        self.apply_to(input.tree()?)
    }

    /// Applies stylesheets to notifications, in as few exchanges with a worker as possible. The results are in this
    /// order. One that fails does not affect the others.
    pub fn apply_all(calls: &[(&Stylesheet, Input<'_>)]) -> Vec<Result<String, XsltError>> {
        let document = |(_, input): &(&Stylesheet, Input<'_>)| input.tree().map(Tree::into_operations);
        let documents: Vec<Result<Vec<u8>, XsltError>> = calls.iter().map(document).collect();
        let both = calls.iter().zip(&documents);
        let requests: Vec<(&Program, &[u8])> = both
            .filter_map(|((stylesheet, _), document)| Some((&*stylesheet.program, document.as_deref().ok()?)))
            .collect();
        let mut responses = worker::apply_all(&requests).into_iter();
        let outcome = |document: Result<Vec<u8>, XsltError>| {
            document?;
            result(responses.next().expect("each request has a response")?)
        };
        documents.into_iter().map(outcome).collect()
    }

    /// Applies it to a document.
    pub(crate) fn apply_to(&self, tree: Tree) -> Result<String, XsltError> {
        result(self.program.apply(&tree.into_operations())?)
    }
}

/// The result of a stylesheet.
fn result(answer: WorkerResponse) -> Result<String, XsltError> {
    match answer {
        WorkerResponse::Done(bytes) if bytes.len() > OUTPUT_BYTES_MAX => {
            Err(XsltError::plain(format!("the output is longer than {OUTPUT_BYTES_MAX} bytes")))
        }
        WorkerResponse::Done(bytes) => {
            String::from_utf8(bytes).map_err(|_| XsltError::plain("the output is not UTF-8"))
        }
        WorkerResponse::Failed(said) => Err(read(&said)),
        WorkerResponse::Memory => {
            Err(XsltError::limit(format!("stylesheet needs more than {} MiB of memory", STYLESHEET_BYTES_MAX >> 20)))
        }
        WorkerResponse::Time => {
            let seconds = TRANSFORM_TIME_MAX.as_secs_f32();
            Err(XsltError::limit(format!(
                "stylesheet took longer than {seconds} s: simplify it, or make documents smaller"
            )))
        }
        WorkerResponse::Compiled { .. } | WorkerResponse::ValidationErrors { .. } | WorkerResponse::Unknown => {
            Err(XsltError::plain("the XML worker gave an unexpected answer"))
        }
    }
}

fn is_too_deep(said: &str) -> bool {
    said.contains("potential infinite template recursion")
}

/// Parses a message of the library: the line, and the reason without the library's frame.
fn read(said: &str) -> XsltError {
    let (mut line, mut message_line) = (None, None);
    let mut reasons: Vec<String> = Vec::new();
    for text in said.lines() {
        if let Some(number) = text.strip_prefix("message at line ") {
            message_line = number.parse().ok();
            continue;
        }
        if let Some((_, rest)) = text.split_once(" line ")
            && (text.contains("error") || text.contains("file "))
        {
            let number = rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|number| number.parse().ok());
            line = line.or(number);
            continue;
        }
        // From the XML parser: `name:3: parser error : ...`.
        if let Some((place, reason)) = text.split_once(": parser error : ") {
            line = line.or_else(|| place.rsplit(':').next()?.parse().ok());
            reasons.push(reason.trim().to_owned());
            continue;
        }
        let text = text.trim().trim_end_matches('.');
        let is_frame =
            text.is_empty() || text == "^" || text.starts_with("runtime error") || text.starts_with("no error");
        if !is_frame && !reasons.iter().any(|reason| reason == text) {
            reasons.push(text.to_owned());
        }
    }
    reasons.truncate(3);
    let message = match reasons.is_empty() {
        true => "it failed, and the library gave no reason".to_owned(),
        false if is_too_deep(said) => format!("templates call each other more than {TEMPLATE_DEPTH_MAX} deep"),
        false => reasons.join("; "),
    };
    let is_static = ["Undefined variable", "Unregistered function", "Undefined namespace", "not found", "undefined"]
        .iter()
        .any(|sign| message.contains(sign));
    XsltError { line: line.or(message_line), message, is_static, is_limit: false }
}

#[cfg(test)]
mod tests;
