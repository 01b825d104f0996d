//! Suspensions: details and edits of work that waits for an operator.

use std::{collections::BTreeMap, sync::Arc};

use tocsin_model::{
    edit::Edit,
    id::{Name, NotificationBatchId, NotificationId},
    problem::{Code, Problem},
    time::Timestamp,
};
pub use tocsin_pipeline::Preview;
use tocsin_store::journal::{StoredSuspension, SuspensionFilter};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    operations::{Notification, SUSPENSIONS_PAGE},
    run_mode::RunMode,
};

/// Maximum number of groups that are listed.
pub const GROUPS_MAX: usize = 1_000;
/// Maximum number of suspensions that are read for groups.
pub const GROUPED_MAX: usize = 100_000;
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

/// Result of an edit of a suspension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EditedSuspension {
    /// Number of the suspension with the edit; in a dry run, of the suspension from which it would be split off.
    pub id: u64,
    /// Number of notifications with the edit.
    pub notifications: usize,
}

/// Members by which suspensions are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupBy {
    /// By application.
    pub application: bool,
    /// By channel.
    pub channel: bool,
    /// By text of the reason.
    pub reason: bool,
}

impl GroupBy {
    /// Parses a list of members, such as `reason,channel`.
    ///
    /// # Errors
    /// A member is unknown.
    pub fn read(text: &str) -> Result<GroupBy, ServiceError> {
        let mut by = GroupBy::default();
        for word in text.split(',').map(str::trim) {
            match word {
                "application" => by.application = true,
                "channel" => by.channel = true,
                "reason" => by.reason = true,
                _ => {
                    let message = format!("`{word}` should be `application`, `channel` or `reason`");
                    let problem = Problem::new(Code::UnknownValue, "by", message);
                    return Err(ServiceError::from(problem.known(word, ["application", "channel", "reason"])));
                }
            }
        }
        Ok(by)
    }
}

/// Application, channel and reason of a group, as far as it is grouped by them.
type GroupKey = (Option<Name>, Option<Name>, Option<String>);

/// Suspensions with equal members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuspensionGroup {
    /// Application, if grouped by it.
    pub application: Option<Name>,
    /// Channel, if grouped by it.
    pub channel: Option<Name>,
    /// Text of the reason, if grouped by it.
    pub reason: Option<String>,
    /// Number of suspensions.
    pub suspensions: u64,
    /// Number of notifications.
    pub notifications: u64,
    /// When the first of them began.
    pub first: Timestamp,
    /// When the last of them began.
    pub last: Timestamp,
}

/// Groups of suspensions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SuspensionGroups {
    /// The groups with the most notifications first; at most [`GROUPS_MAX`].
    pub groups: Vec<SuspensionGroup>,
    /// Whether all suspensions are counted and all groups are listed.
    pub exact: bool,
}

impl Service {
    /// Counts the suspensions that match the filter by groups. Reads at most [`GROUPED_MAX`] suspensions.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or the journal is unavailable.
    pub async fn suspension_groups(
        &self,
        caller: &Caller,
        filter: &SuspensionFilter,
        by: GroupBy,
    ) -> Result<SuspensionGroups, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        caller.check_application(filter.application.as_ref())?;
        let mut groups: BTreeMap<GroupKey, SuspensionGroup> = BTreeMap::new();
        let (mut after, mut read, mut exact) = (0, 0, true);
        loop {
            let found = self.operator_actions.scan_suspensions(filter, after, SUSPENSIONS_PAGE).await?;
            read += found.items.len();
            for StoredSuspension { suspension, .. } in found.items {
                let application = by.application.then(|| suspension.application.clone());
                let channel = by.channel.then(|| suspension.channel.clone());
                let reason = by.reason.then(|| suspension.reason.clone());
                let key = (application, channel, reason);
                // A group that is not listed in the end must not take memory without a limit.
                if groups.len() >= GROUPED_MAX && !groups.contains_key(&key) {
                    exact = false;
                    continue;
                }
                let (application, channel, reason) = key.clone();
                let group = groups.entry(key).or_insert_with(|| SuspensionGroup {
                    application,
                    channel,
                    reason,
                    suspensions: 0,
                    notifications: 0,
                    first: suspension.since,
                    last: suspension.since,
                });
                group.suspensions += 1;
                group.notifications += suspension.ordinals.len() as u64;
                group.first = group.first.min(suspension.since);
                group.last = group.last.max(suspension.since);
            }
            match found.next {
                Some(next) if read < GROUPED_MAX => after = next,
                next => {
                    exact &= next.is_none();
                    break;
                }
            }
        }
        let mut groups: Vec<SuspensionGroup> = groups.into_values().collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.notifications));
        exact &= groups.len() <= GROUPS_MAX;
        groups.truncate(GROUPS_MAX);
        Ok(SuspensionGroups { groups, exact })
    }

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
    /// of their own. Returns the number of the suspension with the edit. A dry run checks the edit.
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
        mode: RunMode,
    ) -> Result<EditedSuspension, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        let stored = self.find_suspension(id).await?;
        let batch = stored.suspension.batch;
        if let Some(edit) = &edit {
            self.check_edit(batch, edit).await?;
        }
        let ordinals = only.map(|only| ordinals_in(batch, &stored, only)).transpose()?;
        let notifications = ordinals.as_ref().map_or(stored.suspension.ordinals.len(), Vec::len);
        if mode.is_dry() {
            return Ok(EditedSuspension { id, notifications });
        }
        let text: Option<Arc<str>> = edit.map(|edit| serde_json::to_string(&edit).expect("an edit is JSON").into());
        let edited = self.operator_actions.edit_suspension(id, ordinals.as_deref(), text).await?;
        let edited = edited.ok_or_else(|| ServiceError::Missing(format!("the suspension {id}")))?;
        tracing::info!(suspension = id, edited, by = caller.key(), "a suspension was edited");
        Ok(EditedSuspension { id: edited, notifications })
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
