//! A notification goes in, its content comes out.
//!
//! The templates of a notification class are compiled once into a [`Formatter`], which any number of threads share.
//! Templates are sandboxed: they see the [`Scope`] they are given and nothing else, no files, no other templates; their
//! steps, their depth and their output are bounded. Values are escaped for their target: HTML, JSON, or none.
//!
//! Knows nothing of channels, stores or clocks. Of the time zone database it knows what `jiff` carries with it.

mod formatter; // compile, look up, render

mod scope; // what a template sees

mod filters; // numbers, dates and times for people; bounds for the others

mod language; // how a language writes numbers and dates

#[cfg(test)]
mod tests;

pub use formatter::{FormatError, Formatter, OUTPUT_BYTES_MAX, Part};
pub use scope::{DeviceScope, EventScope, KnownVariables, Scope};
