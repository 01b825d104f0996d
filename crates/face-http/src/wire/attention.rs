//! Problems that need an operator.

use std::collections::BTreeMap;

use serde::Serialize;
use tocsin_service::attention::{Attention, Urgency};
use utoipa::ToSchema;

use super::explanations::ObjectBody;

/// Urgency of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Urgency)]
pub(crate) enum UrgencyBody {
    /// Notifications are lost, or will be soon.
    Now,
    /// Degraded operation.
    Soon,
    /// For information.
    Note,
}

/// A problem that needs attention.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Attention)]
pub(crate) struct AttentionBody {
    /// Urgency.
    urgency: UrgencyBody,
    /// Kind of the problem, in words with hyphens: `slow-distribution`, `suspended`, ...
    what: &'static str,
    /// Figures of the problem, as text.
    text: String,
    /// Probable cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// Recommended action.
    advice: String,
    /// Code of the problem, which never changes its meaning: `what` with underscores.
    code: String,
    /// Code of the probable cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause_code: Option<&'static str>,
    /// Figures and names in the text by name.
    parameters: BTreeMap<&'static str, serde_json::Value>,
    /// The object to look at, if the problem is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<ObjectBody>,
}

impl From<Attention> for AttentionBody {
    fn from(found: Attention) -> Self {
        let urgency = match found.urgency {
            Urgency::Now => UrgencyBody::Now,
            Urgency::Soon => UrgencyBody::Soon,
            Urgency::Note => UrgencyBody::Note,
        };
        AttentionBody {
            urgency,
            what: found.what,
            code: found.code(),
            text: found.text,
            cause: found.cause,
            advice: found.advice,
            cause_code: found.cause_code,
            parameters: found.parameters,
            object: found.object.map(|object| ObjectBody {
                kind: object.kind,
                id: object.id,
                application: object.application,
            }),
        }
    }
}
