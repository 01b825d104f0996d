//! What is done to messages on their way through a port, step by step.

use std::{collections::BTreeMap, time::Duration};

use super::Place;
use crate::{filter::Filter, id::Name};

/// Steps in their order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pipeline(pub Vec<Step>);

impl Pipeline {
    /// Whether nothing is done.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// One thing that is done to a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The body is unpacked.
    Decompress {
        /// How it is packed; `None`: as its `Content-Encoding` says, and not at all without one.
        compression: Option<Compression>,
        /// Most bytes that it may grow to.
        bytes_max: u32,
    },
    /// The body is packed, and `Content-Encoding` says how.
    Compress(Compression),
    /// The message becomes several.
    Split {
        /// What each of them is.
        into: Split,
        /// Most of them.
        most: u32,
        /// Whether there may be none.
        may_be_empty: bool,
    },
    /// The body must be like this.
    Validate(Validation),
    /// Messages with the same key are gathered, and become one. Always the last step.
    Assemble(Assembly),
    /// Properties are taken out of the message as it is at this step; they hold whatever the steps behind it do.
    Promote(Vec<(Name, Place)>),
    /// Another body is made of it.
    Transform {
        /// How.
        language: TransformLanguage,
        /// The expression, template or stylesheet.
        text: String,
        /// The media type of the result; empty where a stylesheet says it.
        content_type: String,
    },
    /// The body as it is at this step is signed, as Standard Webhooks ask.
    Sign {
        /// `whsec_` and 24 to 64 bytes in base64.
        secret: String,
    },
    /// A program makes of it what it likes.
    Run {
        /// The program and its arguments.
        command: Vec<String>,
        /// What it finds in its environment beside `PATH`.
        environment: BTreeMap<String, String>,
        /// How long it may take for a message.
        timeout: Duration,
    },
}

impl Step {
    /// The word by which definitions call it.
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

/// How a body is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

impl Compression {
    /// As `Content-Encoding` has it.
    pub fn word(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }

    /// The one of this word.
    pub fn of(word: &str) -> Option<Compression> {
        match word {
            "gzip" | "x-gzip" => Some(Compression::Gzip),
            "zstd" => Some(Compression::Zstd),
            _ => None,
        }
    }
}

/// What a body is compared with.
#[derive(Debug, Clone, PartialEq)]
pub enum Validation {
    /// A JSON Schema.
    Json(serde_json::Value),
    /// An XML Schema, as text.
    Xml(String),
}

/// Which messages become one, and when.
#[derive(Debug, Clone, PartialEq)]
pub struct Assembly {
    /// The properties that make the key; without any, all messages of the port are of one.
    pub by: Vec<Name>,
    /// With so many they become one.
    pub count: u32,
    /// So long after the first they become one, however many there are.
    pub within: Duration,
    /// With a message that is like this they become one, itself among them.
    pub until: Option<Filter>,
    /// With so many bytes they become one.
    pub bytes: u32,
    /// What is made of their bodies.
    pub into: Assembled,
}

/// What is made of the bodies of several messages, as they came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assembled {
    /// A list of JSON.
    Json,
    /// Lines.
    Lines,
    /// The elements within a root element of this name.
    Xml(String),
}

/// What the parts of a message are.
#[derive(Debug, Clone, PartialEq)]
pub enum Split {
    /// The items of a list in a body of JSON.
    Json(super::JsonPath),
    /// Lines, empty ones left out.
    Lines,
    /// The elements of this local name in a body of XML, none of them within another.
    Xml(String),
}

/// The language of a transformation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransformLanguage {
    /// JSON becomes JSON.
    Jmespath,
    /// Jinja.
    Template,
    /// XSLT 1.0.
    Xslt,
}
