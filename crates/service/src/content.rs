//! Content of sent notifications, rendered again from the version that made them; HTML of recent previews.

use std::sync::Arc;

use tocsin_model::{
    id::{Name, NotificationId},
    receipt::Reason,
    time::Timestamp,
};
use tocsin_pipeline::Preview;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    resends::random_key,
};

/// A notification rendered again.
#[derive(Debug, Clone)]
pub struct RenderedContent {
    /// The notification.
    pub id: NotificationId,
    /// The version that made it.
    pub version: u32,
    /// Channel of its batch.
    pub channel: Name,
    /// Time as of which it was rendered: that of its last attempt, else the present.
    pub rendered_as_of: Timestamp,
    /// Locale of its recipient.
    pub locale: Option<String>,
    /// Content and destination, or why it cannot be rendered.
    pub rendered: Result<Preview, Reason>,
}

impl Service {
    /// Keeps the HTML of a preview for ten minutes, for the same caller. Returns its id.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn keep_preview_html(&self, caller: &Caller, html: &str) -> Result<String, ServiceError> {
        let id = random_key()?;
        self.preview_html.put(id.clone(), caller.key().to_owned(), self.clock.now(), html.into());
        Ok(id)
    }

    /// The HTML of a recent preview of the caller.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; there is none of this id, or it is of another caller.
    pub fn find_preview_html(&self, caller: &Caller, id: &str) -> Result<Arc<str>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = self.preview_html.find(id, caller.key(), self.clock.now());
        found.ok_or_else(|| ServiceError::Missing("a recent preview of this id".to_owned()))
    }

    /// Renders a notification again, as of its last attempt, for its present recipient. Nothing is stored or sent.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the notification does not exist (any more).
    pub async fn notification_content(
        &self,
        caller: &Caller,
        id: NotificationId,
    ) -> Result<RenderedContent, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = self.find_notification(id).await?;
        let last = found.attempts.last();
        let rendered_as_of = last.map_or_else(|| self.clock.now(), |attempt| attempt.formatted_at);
        let rendered = self.pipeline.render_again(id, rendered_as_of).await?;
        Ok(RenderedContent {
            id,
            version: found.head.version,
            channel: found.head.channel,
            rendered_as_of,
            locale: found.recipient.and_then(|recipient| recipient.profile.locale.clone()),
            rendered,
        })
    }
}
