//! Stylesheets of XSLT 1.0, run by libxslt in worker processes.
//!
//! A stylesheet is the operator's. It is looked through before the library sees it, compiled once by each worker, and
//! reaches nothing: no file, no network, no stylesheet that is not one of the application's partials. Its steps, its depth,
//! its memory, its output and its time are bounded. The document that it reads is made node by node; text from outside is
//! never parsed by the library.

mod check; // what a stylesheet may not have
pub(crate) mod engine; // libxslt, for workers
mod input; // the notification as XML

use std::{collections::BTreeMap, fmt, sync::Arc};

use tocsin_model::problem::Problem;

pub use check::imports;
pub use input::Input;

use crate::{
    formatter::OUTPUT_BYTES_MAX,
    tree::Tree,
    worker::{Answer, Program, STYLESHEET_BYTES_MAX, TEMPLATE_DEPTH_MAX, TRANSFORM_TIME_MAX, WorkerError},
};

/// The name under which the library knows the stylesheet itself.
pub(crate) const OWN_NAME: &str = "stylesheet";

/// A compiled stylesheet; cheap to clone.
#[derive(Clone)]
pub struct Stylesheet {
    program: Arc<Program>,
    imported: Vec<String>,
    output: Output,
}

/// The declarations of `xsl:output` (XSLT 1.0, section 16), those of imported stylesheets behind its own. Empty where there
/// is none.
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

/// Why a stylesheet gave no content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XsltError {
    /// The line of the stylesheet, from 1, if the library names it.
    pub line: Option<u32>,
    /// What was wrong.
    pub message: String,
    /// Whether it fails whatever the notification holds.
    pub is_static: bool,
    /// Whether it was stopped at a bound of time or memory.
    pub is_bound: bool,
}

impl XsltError {
    pub(crate) fn plain(message: impl Into<String>) -> XsltError {
        XsltError { line: None, message: message.into(), is_static: false, is_bound: false }
    }

    fn bound(message: impl Into<String>) -> XsltError {
        XsltError { is_bound: true, ..XsltError::plain(message) }
    }
}

impl From<WorkerError> for XsltError {
    fn from(error: WorkerError) -> XsltError {
        let is_bound =
            matches!(error, WorkerError::Time { .. } | WorkerError::Memory { .. } | WorkerError::Crashed { .. });
        XsltError { is_bound, ..XsltError::plain(error.to_string()) }
    }
}

impl Stylesheet {
    /// Compiles a stylesheet, in at most two seconds. `partials` are those of the application that are stylesheets. `method`
    /// is for a part of a content: it is what the part writes if the stylesheet does not say so itself, `text` or `html`,
    /// and there is no XML declaration. Without it the stylesheet decides as XSLT has it.
    ///
    /// # Errors
    /// The fault, with its line, or the bound that it exceeds.
    pub fn compile(source: &str, partials: &BTreeMap<&str, &str>, method: Option<&str>) -> Result<Stylesheet, Problem> {
        let imported = check::check_all(source, partials)?;
        let sources: Vec<(&str, &str)> =
            imported.iter().filter_map(|name| Some((name.as_str(), *partials.get(name.as_str())?))).collect();
        let program = Arc::new(Program::stylesheet(source, &sources, method));
        let error = match program.compile() {
            Ok(Answer::Compiled { method, encoding, media_type }) => {
                return Ok(Stylesheet { program, imported, output: Output { method, encoding, media_type } });
            }
            Ok(answer) => result(answer).err(),
            Err(error) => Some(error.into()),
        };
        let error = error.unwrap_or_else(|| XsltError::plain("the library gives no reason"));
        let problem = Problem::at("", format!("the stylesheet cannot be compiled: {}", error.message));
        let problem = problem.hint("it is XSLT 1.0 as libxslt reads it");
        Err(problem.position(error.line.unwrap_or(1), 1))
    }

    /// The partials that it imports or includes, and they in turn.
    pub fn imported(&self) -> &[String] {
        &self.imported
    }

    /// The declarations of its output.
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// Applies it to a notification.
    ///
    /// # Errors
    /// It fails, or is stopped at a bound: after 0.8 s of processor time at the latest.
    pub fn apply(&self, input: &Input<'_>) -> Result<String, XsltError> {
        self.apply_to(input.tree()?)
    }

    /// Applies it to a document.
    pub(crate) fn apply_to(&self, tree: Tree) -> Result<String, XsltError> {
        result(self.program.apply(&tree.into_operations())?)
    }
}

/// The result of a stylesheet.
fn result(answer: Answer) -> Result<String, XsltError> {
    match answer {
        Answer::Done(bytes) if bytes.len() > OUTPUT_BYTES_MAX => {
            Err(XsltError::plain(format!("the output is longer than {OUTPUT_BYTES_MAX} bytes")))
        }
        Answer::Done(bytes) => String::from_utf8(bytes).map_err(|_| XsltError::plain("the output is not UTF-8")),
        Answer::Failed(said) => Err(read(&said)),
        Answer::Memory => {
            Err(XsltError::bound(format!("stylesheet needs more than {} MiB of memory", STYLESHEET_BYTES_MAX >> 20)))
        }
        Answer::Time => {
            let seconds = TRANSFORM_TIME_MAX.as_secs_f32();
            Err(XsltError::bound(format!(
                "stylesheet took longer than {seconds} s: simplify it, or make documents smaller"
            )))
        }
        Answer::Compiled { .. } | Answer::Objections { .. } | Answer::Unknown => {
            Err(XsltError::plain("the XML worker gave an unexpected answer"))
        }
    }
}

fn is_too_deep(said: &str) -> bool {
    said.contains("potential infinite template recursion")
}

/// What the library said, for people: the line, and the reason without the library's frame.
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
        // The parser of XML: `name:3: parser error : ...`.
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
        true => "it failed, and the library does not say why".to_owned(),
        false if is_too_deep(said) => format!("templates call each other more than {TEMPLATE_DEPTH_MAX} deep"),
        false => reasons.join("; "),
    };
    let is_static = ["Undefined variable", "Unregistered function", "Undefined namespace", "not found", "undefined"]
        .iter()
        .any(|sign| message.contains(sign));
    XsltError { line: line.or(message_line), message, is_static, is_bound: false }
}

#[cfg(test)]
mod tests;
