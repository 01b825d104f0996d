//! Problems of a definition or a request as lines of text.

use std::path::Path;

use serde_json::Value;
use tocsin_model::problem::Problem;

use crate::terminal::printable;

/// Formats a problem as `FILE:line:column: path: message; hint`, which editors parse.
pub fn compiler_format(file: &Path, problem: &Problem) -> String {
    let text = problem.to_string();
    match problem.line {
        Some(_) => format!("{}:{text}", file.display()),
        None => format!("{}: {text}", file.display()),
    }
}

/// Formats one problem of a response as a line.
pub fn problem_line(problem: &Value) -> String {
    match serde_json::from_value::<Problem>(problem.clone()) {
        Ok(problem) => printable(&problem.to_string()).into_owned(),
        Err(_) => printable(&problem.to_string()).into_owned(),
    }
}
