//! Stored applications, apply results and check results.

use serde::Serialize;
use tocsin_model::{
    definition::Difference,
    problem::{Problem, first_of},
    time::Timestamp,
};
use tocsin_service::applications::Applied;
use tocsin_service::applications::Checked;
use tocsin_store::records::ApplicationVersion;
use utoipa::ToSchema;

use super::ProblemItem;
use super::RuleBody;

/// An application that is stored.
#[derive(Serialize, ToSchema)]
pub(crate) struct ApplicationBody {
    name: String,
    version: u32,
    description: Option<String>,
    /// The id of the key that applied it.
    author: String,
    /// The description of that key.
    #[serde(skip_serializing_if = "Option::is_none")]
    author_name: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    applied_at: Timestamp,
    /// Whether the application runs. If not, the log and a check of its definition have the reason.
    running: bool,
    /// Its definition as it was applied, with `***` for secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    definition: Option<String>,
}

impl ApplicationBody {
    pub(crate) fn new(
        stored: ApplicationVersion,
        running: Option<&tocsin_service::applications::Running>,
        author_name: Option<String>,
        whole: bool,
    ) -> Self {
        // Another version has another description.
        let running = running.filter(|running| running.version == stored.version);
        ApplicationBody {
            name: stored.name.to_string(),
            version: stored.version,
            description: running.and_then(|running| running.application.description.clone()),
            author: stored.author,
            author_name,
            applied_at: stored.applied_at,
            running: running.is_some(),
            definition: whole.then_some(stored.text),
        }
    }
}

/// A change of an apply.
#[derive(Serialize, ToSchema)]
pub(crate) struct DifferenceBody {
    /// `added`, `changed` or `removed`.
    #[schema(value_type = String)]
    kind: tocsin_model::definition::DifferenceKind,
    path: String,
    /// Description.
    text: String,
    /// Whether stored data would be lost from sight, so that it must be allowed by name.
    drops: bool,
    /// Name that allows it in `drop`.
    #[serde(skip_serializing_if = "Option::is_none")]
    allow: Option<String>,
}

impl From<Difference> for DifferenceBody {
    fn from(found: Difference) -> Self {
        let drops = found.drops.is_some();
        DifferenceBody { kind: found.kind, path: found.path, text: found.sentence, drops, allow: found.drops }
    }
}

/// Result of an apply or of a dry run.
#[derive(Serialize, ToSchema)]
pub(crate) struct AppliedBody {
    name: String,
    version: u32,
    /// Whether this version runs.
    running: bool,
    differences: Vec<DifferenceBody>,
    #[schema(value_type = Vec<ProblemItem>)]
    warnings: Vec<Problem>,
}

impl From<Applied> for AppliedBody {
    fn from(applied: Applied) -> Self {
        AppliedBody {
            name: applied.name.to_string(),
            version: applied.version,
            running: applied.running,
            differences: applied.differences.into_iter().map(DifferenceBody::from).collect(),
            warnings: applied.warnings,
        }
    }
}

/// Result of a check.
#[derive(Serialize, ToSchema)]
pub(crate) struct CheckedBody {
    #[schema(value_type = Vec<ProblemItem>)]
    problems: Vec<Problem>,
    #[schema(value_type = Vec<ProblemItem>)]
    warnings: Vec<Problem>,
    rules: Vec<RuleBody>,
}

impl From<Checked> for CheckedBody {
    fn from(checked: Checked) -> Self {
        let rules = checked.rules.into_iter().map(RuleBody::from).collect();
        CheckedBody { problems: first_of(checked.problems), warnings: first_of(checked.warnings), rules }
    }
}
