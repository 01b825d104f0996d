//! Suspensions: details and edits of work that waits for an operator.

use std::sync::Arc;

use tocsin_model::{
    edit::Edit,
    id::{NotificationBatchId, NotificationId},
    problem::{Code, Problem},
};
pub use tocsin_pipeline::Preview;
use tocsin_store::journal::{StoredSuspension, SuspensionFilter};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    operations::Notification,
};

/// Maximum number of notifications of a suspension that are shown.
pub const SHOWN_MAX: usize = 20;

/// A suspension with its first notifications, each with its preview.
#[derive(Debug, Clone)]
pub struct Suspended {
    /// The suspension.
    pub stored: StoredSuspension,
    /// The first [`SHOWN_MAX`] of its notifications.
    pub notifications: Vec<(Notification, Result<Preview, String>)>,
}

impl Service {
    /// Returns a suspension with previews of its notifications.
    ///
    /// # Errors
    /// There is none of this number; the scope `operations:read` is missing.
    pub async fn suspension(&self, caller: &Caller, id: u64) -> Result<Suspended, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let stored = self.find_suspension(id).await?;
        let (batch, work_state) = (stored.suspension.batch, stored.suspension.work_state.clone());
        let mut notifications = Vec::new();
        for ordinal in stored.suspension.ordinals.iter().take(SHOWN_MAX) {
            let id = NotificationId { batch, ordinal: *ordinal };
            let notification = self.find_notification(id).await?;
            let channel = &stored.suspension.channel;
            let preview = self.pipeline.preview(id, channel, work_state.edit.clone(), work_state.fallback).await?;
            notifications.push((notification, preview.map_err(|reason| reason.text)));
        }
        Ok(Suspended { stored, notifications })
    }

    /// Sets the edit of a suspension, or removes it with `None`. With `only`, these notifications become a suspension
    /// of their own. Returns the number of the suspension with the edit.
    ///
    /// # Errors
    /// There is none of this number, or it has none of these notifications; the edit does not fit the notification class;
    /// the scope `operations:write` is missing.
    pub async fn edit_suspension(
        &self,
        caller: &Caller,
        id: u64,
        only: Option<&[NotificationId]>,
        edit: Option<Edit>,
    ) -> Result<u64, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        let stored = self.find_suspension(id).await?;
        let batch = stored.suspension.batch;
        if let Some(edit) = &edit {
            self.check_edit(batch, edit).await?;
        }
        let ordinals = only.map(|only| ordinals_in(batch, &stored, only)).transpose()?;
        let text: Option<Arc<str>> = edit.map(|edit| serde_json::to_string(&edit).expect("an edit is JSON").into());
        let edited = self.operator_actions.edit_suspension(id, ordinals.as_deref(), text).await?;
        let edited = edited.ok_or_else(|| ServiceError::Missing(format!("the suspension {id}")))?;
        tracing::info!(suspension = id, edited, by = caller.key(), "a suspension was edited");
        Ok(edited)
    }

    async fn check_edit(&self, batch: NotificationBatchId, edit: &Edit) -> Result<(), ServiceError> {
        if *edit == Edit::default() {
            let problem = Problem::new(Code::Empty, "edit", "changes nothing");
            return Err(ServiceError::Invalid(vec![
                problem.hint("give `fields`, `content` or `address`, or null to take an edit away"),
            ]));
        }
        let head = self.find_notification_batch(batch).await?.head;
        let compiled = self.pipeline.version_of(&head).await?.map(|(compiled, _)| compiled);
        let class = compiled.as_ref().and_then(|compiled| compiled.application.notifications.get(&head.class));
        let class = class.ok_or_else(|| ServiceError::Missing(format!("the notification class `{}`", head.class)))?;
        let within = |problem: Problem| Problem { path: format!("edit.{}", problem.path), ..problem };
        edit.check(&class.fields)
            .map(|_| ())
            .map_err(|problems| ServiceError::Invalid(problems.into_iter().map(within).collect()))
    }

    pub(crate) async fn find_suspension(&self, id: u64) -> Result<StoredSuspension, ServiceError> {
        let filter = SuspensionFilter { id: Some(id), ..SuspensionFilter::default() };
        let found = self.operator_actions.suspensions(&filter, 0, 1).await?.pop();
        found.ok_or_else(|| ServiceError::Missing(format!("the suspension {id}")))
    }
}

/// Ordinals of some notifications, all of which a suspension must hold.
fn ordinals_in(
    batch: NotificationBatchId,
    stored: &StoredSuspension,
    only: &[NotificationId],
) -> Result<Vec<u32>, ServiceError> {
    let holds = |id: &&NotificationId| id.batch == batch && stored.suspension.ordinals.contains(&id.ordinal);
    let missing: Vec<Problem> = only
        .iter()
        .filter(|id| !holds(id))
        .map(|id| {
            Problem::new(
                Code::UnknownReference,
                "notifications",
                format!("`{id}` is not suspended under {}", stored.id),
            )
            .param("kind", "notification")
            .param("value", id.to_string())
        })
        .collect();
    if only.is_empty() {
        let problem = Problem::new(Code::Empty, "notifications", "is empty");
        return Err(ServiceError::Invalid(vec![problem.hint("leave it out to mean all of the suspension")]));
    }
    match missing.is_empty() {
        true => Ok(only.iter().map(|id| id.ordinal).collect()),
        false => Err(ServiceError::Invalid(missing)),
    }
}
