//! Pipelines: the steps that messages pass at a port.

use std::{collections::BTreeMap, time::Duration};

use super::PropertyLocation;
use crate::{filter::Filter, id::Name};

/// Steps, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pipeline(pub Vec<Step>);

impl Pipeline {
    /// Whether there are no steps.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A pipeline step.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Decompresses the body.
    Decompress {
        /// The compression; `None`: as `Content-Encoding` says, or none.
        compression: Option<Compression>,
        /// Most bytes after decompression.
        bytes_max: u32,
    },
    /// Compresses the body and sets `Content-Encoding`.
    Compress(Compression),
    /// Splits the message (EIP splitter).
    Split {
        /// Kind of the parts.
        into: Split,
        /// Most parts.
        most: u32,
        /// Whether there may be no parts.
        may_be_empty: bool,
    },
    /// Validates the body against a schema.
    Validate(Validation),
    /// Aggregates messages with the same key into one (EIP aggregator). Always the last step.
    Assemble(Assembly),
    /// Promotes properties: extracts them from the message at this step, unaffected by later steps.
    Promote(Vec<(Name, PropertyLocation)>),
    /// Transforms the body.
    Transform {
        /// The language.
        language: TransformLanguage,
        /// The expression, template or stylesheet.
        text: String,
        /// Media type of the result; empty if the stylesheet declares it.
        content_type: String,
    },
    /// Signs the body at this step (Standard Webhooks).
    Sign {
        /// `whsec_` and 24 to 64 bytes in base64.
        secret: String,
    },
    /// Transforms the message by a program.
    Run {
        /// The program and its arguments.
        command: Vec<String>,
        /// Its environment variables besides `PATH`.
        environment: BTreeMap<String, String>,
        /// Timeout for a message.
        timeout: Duration,
    },
}

impl Step {
    /// Its name in definitions.
    pub fn word(&self) -> &'static str {
        match self {
            Step::Decompress { .. } => "decompress",
            Step::Compress(_) => "compress",
            Step::Split { .. } => "split",
            Step::Validate(_) => "validate",
            Step::Assemble(_) => "assemble",
            Step::Promote(_) => "promote",
            Step::Transform { .. } => "transform",
            Step::Sign { .. } => "sign",
            Step::Run { .. } => "run",
        }
    }
}

/// Compression of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

impl Compression {
    /// Its name in `Content-Encoding`.
    pub fn word(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }

    /// Finds a compression by its name.
    pub fn of(word: &str) -> Option<Compression> {
        match word {
            "gzip" | "x-gzip" => Some(Compression::Gzip),
            "zstd" => Some(Compression::Zstd),
            _ => None,
        }
    }
}

/// Schema for validation.
#[derive(Debug, Clone, PartialEq)]
pub enum Validation {
    /// A JSON Schema.
    Json(serde_json::Value),
    /// An XML Schema, as text.
    Xml(String),
}

/// Configuration of an aggregator.
#[derive(Debug, Clone, PartialEq)]
pub struct Assembly {
    /// Correlation key; empty: all messages of the port belong together.
    pub by: Vec<Name>,
    /// Completes with this many messages.
    pub count: u32,
    /// Completes this long after the first message.
    pub within: Duration,
    /// Completes with a message that satisfies this filter; it is included.
    pub until: Option<Filter>,
    /// Completes with this many bytes.
    pub bytes: u32,
    /// Format of the result.
    pub into: Assembled,
}

/// Format of an aggregate of bodies, in order of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assembled {
    /// A JSON list.
    Json,
    /// Lines.
    Lines,
    /// The elements within a root element of this name.
    Xml(String),
}

/// Kind of the parts of a split message.
#[derive(Debug, Clone, PartialEq)]
pub enum Split {
    /// The items of a list in a body of JSON.
    Json(super::JsonPath),
    /// Lines; empty ones are skipped.
    Lines,
    /// Elements with this local name in an XML body, not nested in each other.
    Xml(String),
}

/// Language of a transformation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransformLanguage {
    /// JMESPath, from JSON to JSON.
    Jmespath,
    /// Jinja.
    Template,
    /// XSLT 1.0.
    Xslt,
}
