//! One part of one template.

use crate::{merge::MergeTemplate, parts::Part, scope::RootsUsed, xslt::Stylesheet};

/// One part of one template.
#[derive(Debug)]
pub(crate) struct Template {
    /// Name in the environment.
    pub name: String,
    /// Key in the definition.
    pub key: String,
    pub part: Part,
    /// The name of the header, as written, or of the field of a mail.
    pub header: Option<String>,
    pub uses: RootsUsed,
    /// Estimated size of its output.
    pub bytes: usize,
    /// A stylesheet instead of a Jinja template.
    pub stylesheet: Option<Stylesheet>,
    /// A text with the tokens of NotifyBC instead of a Jinja template.
    pub merge: Option<MergeTemplate>,
}

impl Template {
    /// Whether it reads the variables of a Jinja template.
    pub(crate) fn needs_root(&self) -> bool {
        self.stylesheet.is_none() && self.merge.is_none()
    }

    /// Name for display: `html`, `header X-Magnitude`.
    pub(crate) fn part_shown(&self) -> String {
        match &self.header {
            Some(header) => format!("{} {header}", self.part.name()),
            None => self.part.name().to_owned(),
        }
    }
}

/// The variable of a computed field's template that holds its value.
pub(crate) const COMPUTED_VALUE: &str = "computed__";
