//! The parts of a content, and why one cannot be made.

use tocsin_model::{
    application::{TemplateEngine, TemplateParts},
    receipt::{Reason, ReasonKind},
};

/// A part of a content.
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
    /// A text for a phone.
    Sms,
    /// A header; there may be many.
    Header,
}

impl Part {
    /// Those of which a template has at most one.
    pub(crate) const ALL: [Part; 5] = [Part::Subject, Part::Text, Part::Html, Part::Json, Part::Sms];

    /// Its key in a definition.
    pub fn name(self) -> &'static str {
        match self {
            Part::Subject => "subject",
            Part::Text => "text",
            Part::Html => "html",
            Part::Json => "json",
            Part::Sms => "sms",
            Part::Header => "header",
        }
    }

    /// The text of a template's part, with its language.
    pub(crate) fn of(self, parts: &TemplateParts) -> Option<(TemplateEngine, &str)> {
        let long = match self {
            Part::Subject => return Some((TemplateEngine::Jinja, parts.subject.as_deref()?)),
            Part::Text => &parts.text,
            Part::Html => &parts.html,
            Part::Json => &parts.json,
            Part::Sms => &parts.sms,
            Part::Header => return None,
        };
        long.as_ref().map(|given| (given.engine, given.text.as_str()))
    }
}

/// Why a notification could not be formatted. It concerns this notification only.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// No template serves this locale and channel.
    #[error("there is no template for the channel `{channel}`{}", locale.as_ref().map(|locale| format!(" and the locale `{locale}`")).unwrap_or_default())]
    Missing {
        /// The locale asked for.
        locale: Option<String>,
        /// The channel asked for.
        channel: String,
    },
    /// A template failed.
    #[error("template `{template}`, {part}{}: {message}", line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Template {
        /// The template's key: `base`, `de`, `de/email`.
        template: String,
        /// The part of it: `html`, `header X-Magnitude`; or the partial that it uses.
        part: String,
        /// The line of the part's text, from 1.
        line: Option<u32>,
        /// What was wrong.
        message: String,
    },
    /// A computed field failed.
    #[error("the computed field `{field}`: {message}")]
    Computed {
        /// The field.
        field: String,
        /// What was wrong.
        message: String,
    },
}

impl FormatError {
    /// The reason that a receipt or a suspended notification carries.
    pub fn reason(&self) -> Reason {
        Reason::new(ReasonKind::Format, self.to_string())
    }
}
