//! One part of one template.

use crate::{parts::Part, scope::RootsUsed, xslt::Stylesheet};

/// One part of one template.
#[derive(Debug)]
pub(crate) struct Template {
    /// Name in the environment.
    pub name: String,
    /// Key in the definition.
    pub key: String,
    pub part: Part,
    /// The header's name, as written.
    pub header: Option<String>,
    pub uses: RootsUsed,
    /// Estimated size of its output.
    pub bytes: usize,
    /// A stylesheet instead of a Jinja template.
    pub stylesheet: Option<Stylesheet>,
}

impl Template {
    /// Name for display: `html`, `header X-Magnitude`.
    pub(crate) fn part_shown(&self) -> String {
        match &self.header {
            Some(header) => format!("header {header}"),
            None => self.part.name().to_owned(),
        }
    }
}

/// The variable of a computed field's template that holds its value.
pub(crate) const COMPUTED_VALUE: &str = "computed__";
