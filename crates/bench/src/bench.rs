//! Definition of a figure: its name, its description and the function that measures it.

use std::pin::Pin;

use crate::{context::Context, failure::Outcome, figure::Figure};

/// Running measurement. It stays on the thread that drives it.
pub type Measuring<'a> = Pin<Box<dyn Future<Output = Outcome<Figure>> + 'a>>;

/// Figure and the function that measures it.
#[derive(Clone, Copy)]
pub struct Bench {
    /// Name of its result line.
    pub name: &'static str,
    /// One-line description of the measurement.
    pub about: &'static str,
    /// Whether it is measured when no figure is named.
    pub by_default: bool,
    /// Measures the figure.
    pub run: for<'a> fn(&'a Context) -> Measuring<'a>,
}
