//! Stylesheets of XSLT 1.0, run by libxslt.
//!
//! A stylesheet is the operator's. It is looked through before the library sees it, compiled once, and reaches nothing:
//! no file, no network, no stylesheet that is not one of the application's partials. Its steps, its depth, its memory, its
//! output and its time are bounded. The document that it reads is made here, node by node; text from outside is never
//! parsed by the library.

mod check; // what a stylesheet may not have
mod engine; // libxslt
mod input; // the notification as XML

use std::{collections::BTreeMap, fmt, sync::Arc, time::Instant};

use tocsin_model::problem::Problem;

pub use check::imports;
pub use input::Input;

use crate::formatter::OUTPUT_BYTES_MAX;
pub(crate) use engine::{ATTRIBUTES_MAX, Namespace, OBJECTIONS_MAX, Schema, Tree};
use engine::{Failure, Limits, Sheet};

/// The name under which the library knows the stylesheet itself.
const OWN_NAME: &str = "stylesheet";
/// What any transformation may use.
const LIMITS: Limits =
    Limits { steps: 100_000, xpath_steps: 2_000_000, bytes: 32 << 20, milliseconds: 800, depth: SHALLOW };
/// How deep templates may be within each other on any stack.
const SHALLOW: i32 = 60;
/// And on a stack of their own, which is made where they go deeper.
const DEEP: i32 = 1_500;
const DEEP_STACK_BYTES: usize = 256 << 20;

/// Makes the document that a stylesheet reads.
type MakeTree<'a> = &'a dyn Fn() -> Result<Tree, XsltError>;

/// A compiled stylesheet; cheap to clone.
#[derive(Clone)]
pub struct Stylesheet {
    sheet: Arc<Sheet>,
    imported: Vec<String>,
}

impl fmt::Debug for Stylesheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stylesheet").field("imported", &self.imported).finish()
    }
}

/// Why a stylesheet gave no content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XsltError {
    /// The line of the stylesheet, from 1, if the library tells it.
    pub line: Option<u32>,
    /// What was wrong.
    pub message: String,
    /// Whether it fails whatever the notification holds.
    pub is_static: bool,
}

impl Stylesheet {
    /// Compiles a stylesheet. `partials` are those of the application that are stylesheets. `method` is what it writes if
    /// it does not say so itself: `text`, `html`.
    ///
    /// # Errors
    /// What is wrong, with its line.
    pub fn compile(source: &str, partials: &BTreeMap<&str, &str>, method: &str) -> Result<Stylesheet, Problem> {
        let imported = check::check_all(source, partials)?;
        let sources: Vec<(&str, &str)> =
            imported.iter().filter_map(|name| Some((name.as_str(), *partials.get(name.as_str())?))).collect();
        match Sheet::compile(source, OWN_NAME, &sources, Some(method)) {
            Ok(sheet) => Ok(Stylesheet { sheet: Arc::new(sheet), imported }),
            Err(said) => {
                let error = read(&said);
                let problem = Problem::at("", format!("the stylesheet cannot be compiled: {}", error.message));
                let problem = problem.hint("it is XSLT 1.0 as libxslt reads it");
                Err(problem.position(error.line.unwrap_or(1), 1))
            }
        }
    }

    /// The partials that it imports or includes, and they in turn.
    pub fn imported(&self) -> &[String] {
        &self.imported
    }

    /// Applies it to a notification.
    ///
    /// # Errors
    /// It fails, or is stopped at a bound: after a second at the latest.
    pub fn apply(&self, input: &Input<'_>) -> Result<String, XsltError> {
        self.apply_to(&|| input.tree())
    }

    /// Applies it to a document, which is made again if it needs a deeper stack.
    pub(crate) fn apply_to(&self, tree: MakeTree<'_>) -> Result<String, XsltError> {
        let begun = Instant::now();
        let shallow = self.sheet.apply(tree()?, &LIMITS);
        let outcome = match shallow {
            Err(Failure::Said(said)) if is_too_deep(&said) => self.apply_deep(tree, begun)?,
            outcome => outcome,
        };
        let bound = |message: String| XsltError { line: None, message, is_static: false };
        match outcome {
            Ok(output) if output.len() > OUTPUT_BYTES_MAX => {
                Err(bound(format!("the output is longer than {OUTPUT_BYTES_MAX} bytes")))
            }
            Ok(output) => Ok(output),
            Err(Failure::Memory) => {
                Err(bound(format!("the stylesheet needs more than {} MiB of memory", LIMITS.bytes >> 20)))
            }
            Err(Failure::Time) => Err(bound(format!("the stylesheet takes longer than {} ms", LIMITS.milliseconds))),
            Err(Failure::Said(said)) => Err(read(&said)),
        }
    }

    /// Once more, on a thread with a stack for what calls itself often, in what is left of the time.
    fn apply_deep(&self, tree: MakeTree<'_>, begun: Instant) -> Result<Result<String, Failure>, XsltError> {
        let tree = tree()?;
        let gone = begun.elapsed().as_millis().try_into().unwrap_or(LIMITS.milliseconds);
        let milliseconds = LIMITS.milliseconds.saturating_sub(gone);
        if milliseconds <= 0 {
            return Ok(Err(Failure::Time));
        }
        let limits = Limits { depth: DEEP, milliseconds, ..LIMITS };
        let run = || self.sheet.apply(tree, &limits);
        std::thread::scope(|threads| {
            let thread = std::thread::Builder::new().stack_size(DEEP_STACK_BYTES).spawn_scoped(threads, run);
            let outcome = thread.map(|thread| thread.join());
            match outcome {
                Ok(Ok(outcome)) => Ok(outcome),
                _ => Err(XsltError { line: None, message: "no thread for it can be had".to_owned(), is_static: false }),
            }
        })
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
        false if is_too_deep(said) => format!("templates call each other more than {DEEP} deep"),
        false => reasons.join("; "),
    };
    let is_static = ["Undefined variable", "Unregistered function", "Undefined namespace", "not found", "undefined"]
        .iter()
        .any(|sign| message.contains(sign));
    XsltError { line: line.or(message_line), message, is_static }
}

#[cfg(test)]
mod tests;
