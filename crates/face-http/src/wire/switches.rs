//! Switched-off components.

use serde::Serialize;
use tocsin_model::time::Timestamp;
use tocsin_service::switches::Switched;
use utoipa::ToSchema;

use crate::app::App;

/// Something that is switched off.
#[derive(Serialize, ToSchema)]
#[schema(as = Switch)]
pub(crate) struct SwitchBody {
    /// Such as `role:match`, `application:stock` or `channel:stock/email`.
    component: String,
    /// `paused`: new work waits; `disabled`: new work is refused.
    state: &'static str,
    /// Whether work that started before the switch is still in progress.
    pending: bool,
    /// The id of the key that switched it off.
    by: String,
    /// The description of that key.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_name: Option<String>,
    reason: String,
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
}

impl SwitchBody {
    /// Adds the description of the key.
    pub(crate) fn named(self, app: &App) -> Self {
        SwitchBody { by_name: app.service.key_name(&self.by), ..self }
    }
}

impl From<Switched> for SwitchBody {
    fn from(Switched { switch, pending }: Switched) -> Self {
        SwitchBody {
            component: switch.component.to_string(),
            state: switch.state.word(),
            pending,
            by: switch.by,
            by_name: None,
            reason: switch.reason,
            since: switch.since,
        }
    }
}
