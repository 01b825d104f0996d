//! Audit log: reading, export, retention, and erasure of a person.

mod merged_log; // the trails of all files as one log

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value as Json;
use tocsin_model::time::Timestamp;
pub use tocsin_store::audit::{AuditFilter, Match};
use tocsin_store::{
    audit::{AuditEntry, Image},
    error::StoreError,
    journal::PersonNames,
};
use tokio_util::sync::CancellationToken;

pub use self::merged_log::AuditLog;
use self::merged_log::{AuditItem, LogPosition};
use crate::{
    Service,
    error::ServiceError,
    exports::{ExportStream, csv_line, json_line, pages},
    imports::Format,
    keys::{Caller, Scope},
    page::{Page, cursor, key_of},
};

/// Pause between runs of the retention.
const PAUSE: Duration = Duration::from_secs(3_600);
/// Number of entries that an export reads at a time.
const EXPORTED: usize = 1_000;

/// An entry as JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Document {
    /// Name of the file and number in it, such as `records-12`.
    pub id: String,
    /// Time of the change.
    pub at: Timestamp,
    /// Text of the actor.
    pub actor: String,
    /// Client address.
    pub address: Option<String>,
    /// Name of the operation.
    pub action: String,
    /// Kind and id of the object.
    pub object: Option<String>,
    /// The object before the change.
    pub before: Option<Json>,
    /// The object after the change.
    pub after: Option<Json>,
    /// Number of further objects of the same commit.
    pub more: u64,
    /// Reason that the caller gave.
    pub reason: Option<String>,
    /// Id of the request.
    pub request_id: Option<String>,
}

impl From<AuditItem> for Document {
    fn from(AuditItem { id, entry }: AuditItem) -> Self {
        let AuditEntry { at, actor, address, action, object, before, after, more, reason, request_id, .. } = entry;
        let image =
            |text: Option<String>| text.map(|text| serde_json::from_str(&text).unwrap_or_else(|_| Json::from(text)));
        let (before, after) = (image(before), image(after));
        Document { id, at, actor, address, action, object, before, after, more, reason, request_id }
    }
}

impl Service {
    /// Sets the trails of the audit log, once at start.
    pub fn set_audit_log(&self, log: AuditLog) {
        let _ = self.audit_log.set(Arc::new(log));
    }

    fn audit_log(&self, caller: &Caller) -> Result<&Arc<AuditLog>, ServiceError> {
        caller.needs_everywhere(Scope::AuditRead)?;
        self.audit_log.get().ok_or_else(|| ServiceError::Missing("an audit log in this process".to_owned()))
    }

    /// Entries of the audit log, newest first.
    ///
    /// # Errors
    /// The scope `audit:read` is missing, or the key is limited to resources; `after` is no cursor of this list.
    pub async fn audit(
        &self,
        caller: &Caller,
        filter: &AuditFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Document>, ServiceError> {
        let log = self.audit_log(caller)?;
        let after = key_of::<LogPosition>(after)?;
        let (items, next) = log.page(filter, after.as_ref(), limit).await?;
        let items = items.into_iter().map(Document::from).collect();
        Ok(Page { items, next: next.map(|next| cursor(&next.to_string())) })
    }

    /// All entries that meet the filter, newest first, as lines.
    ///
    /// # Errors
    /// As [`Service::audit`]. An error within the stream ends it.
    pub fn export_audit(
        &self,
        caller: &Caller,
        filter: AuditFilter,
        format: Format,
    ) -> Result<ExportStream, ServiceError> {
        let log = self.audit_log(caller)?.clone();
        let header = (format == Format::Csv).then(|| COLUMNS.map(str::to_owned).to_vec());
        let next = move |after: Option<LogPosition>| {
            let (log, filter) = (log.clone(), filter.clone());
            async move {
                let (items, next) = log.page(&filter, after.as_ref(), EXPORTED).await?;
                let mut out = Vec::with_capacity(items.len() * 512);
                for item in items {
                    match format {
                        Format::Ndjson => json_line(&Document::from(item), &mut out),
                        Format::Csv => csv_line(cells(item), &mut out),
                    }
                }
                Ok((Bytes::from(out), next))
            }
        };
        Ok(pages(header, next))
    }

    /// Writes an entry of the running operation, for one that changes no rows. Before the operation: an entry without
    /// its effect is better than the reverse.
    pub(crate) async fn record_in_audit(&self, image: Image) -> Result<(), ServiceError> {
        match self.audit_log.get().and_then(|log| log.trails.first()) {
            Some(trail) => Ok(trail.record(image).await?),
            None => Ok(()),
        }
    }

    /// Id of the newest entry; `None` without an entry, or without an audit log.
    pub(crate) async fn newest_audit_entry(&self) -> Result<Option<String>, ServiceError> {
        let Some(log) = self.audit_log.get() else { return Ok(None) };
        let (mut newest, _) = log.page(&AuditFilter::default(), None, 1).await?;
        Ok(newest.pop().map(|item| item.id))
    }

    /// Writes an entry of a one-time link, which is kept in memory only.
    ///
    /// # Errors
    /// The records are unavailable; the link must not be given out.
    pub async fn record_login_link(&self, user: Option<&str>) -> Result<(), ServiceError> {
        self.record_in_audit(Image::of("login_link", user.unwrap_or("setup"), None, None)).await
    }

    /// Removes entries of the audit log past their retention. Returns their number.
    pub(crate) async fn prune_audit(&self) -> Result<u64, ServiceError> {
        match self.audit_log.get() {
            Some(log) => Ok(log.prune(self.clock.now()).await?),
            None => Ok(0),
        }
    }

    /// Removes entries of the audit log past their retention, at the start and every hour, until `stop`.
    pub async fn run_audit_retention(self: Arc<Self>, stop: CancellationToken) {
        loop {
            match self.prune_audit().await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "old entries of the audit log were removed"),
                Err(error) => tracing::warn!(%error, "old entries of the audit log cannot be removed; will retry"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// Overwrites what the audit log has of an erased person.
    pub(crate) async fn erase_from_audit(&self, names: &PersonNames) -> Result<(), StoreError> {
        let Some(log) = self.audit_log.get() else { return Ok(()) };
        for trail in &log.trails {
            trail.erase_entries(names).await?;
        }
        Ok(())
    }
}

/// Columns of CSV.
const COLUMNS: [&str; 11] =
    ["id", "at", "actor", "address", "action", "object", "before", "after", "more", "reason", "request_id"];

fn cells(AuditItem { id, entry }: AuditItem) -> Vec<String> {
    let text = Option::<String>::unwrap_or_default;
    vec![
        id,
        entry.at.to_string(),
        entry.actor,
        text(entry.address),
        entry.action,
        text(entry.object),
        text(entry.before),
        text(entry.after),
        entry.more.to_string(),
        text(entry.reason),
        text(entry.request_id),
    ]
}
