//! The parts of a message's content, and formatting errors.

use minijinja::Error;
use tocsin_model::{
    application::{TemplateEngine, TemplateParts},
    receipt::{Reason, ReasonKind},
};

/// A part of a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// One line.
    Subject,
    /// Plain text.
    Text,
    /// HTML.
    Html,
    /// JSON.
    Json,
    /// Text for an SMS.
    Sms,
    /// A header; there can be several.
    Header,
    /// A field of a mail in place of the channel's; there can be several.
    Mail,
}

impl Part {
    /// The parts that occur at most once in a template.
    pub(crate) const ALL: [Part; 5] = [Part::Subject, Part::Text, Part::Html, Part::Json, Part::Sms];

    /// Key in a definition.
    pub fn name(self) -> &'static str {
        match self {
            Part::Subject => "subject",
            Part::Text => "text",
            Part::Html => "html",
            Part::Json => "json",
            Part::Sms => "sms",
            Part::Header => "header",
            Part::Mail => "mail",
        }
    }

    /// The source of a template's part, with its engine.
    pub(crate) fn of(self, parts: &TemplateParts) -> Option<(TemplateEngine, &str)> {
        let long = match self {
            Part::Subject => return Some((TemplateEngine::Jinja, parts.subject.as_deref()?)),
            Part::Text => &parts.text,
            Part::Html => &parts.html,
            Part::Json => &parts.json,
            Part::Sms => &parts.sms,
            Part::Header | Part::Mail => return None,
        };
        long.as_ref().map(|given| (given.engine, given.text.as_str()))
    }
}

/// The error of formatting one notification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// There is no template for this locale and channel.
    #[error("there is no template for the channel `{channel}`{}", locale.as_ref().map(|locale| format!(" and the locale `{locale}`")).unwrap_or_default())]
    Missing {
        /// The requested locale.
        locale: Option<String>,
        /// The requested channel.
        channel: String,
    },
    /// A template failed.
    #[error("template `{template}`, {part}{}: {message}", line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Template {
        /// The template's key: `base`, `de`, `de/email`.
        template: String,
        /// The failing part: `html`, `header X-Magnitude`; or the partial that it uses.
        part: String,
        /// The line in the part's source, from 1.
        line: Option<u32>,
        /// The error.
        message: String,
    },
    /// A computed field failed.
    #[error("the computed field `{field}`: {message}")]
    Computed {
        /// The field.
        field: String,
        /// The error.
        message: String,
    },
}

impl FormatError {
    /// The reason for a receipt or a suspended notification.
    pub fn reason(&self) -> Reason {
        Reason::new(ReasonKind::Format, self.to_string())
    }
}

/// The message of an error without its position, which is reported separately.
pub(crate) fn message_of(error: &Error) -> String {
    let mut described = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        described = format!("{described}: {cause}");
        source = cause.source();
    }
    described
}
