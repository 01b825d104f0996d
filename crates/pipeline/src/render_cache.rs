//! Cache of rendered content that does not depend on the recipient. If neither templates nor fields of a class use
//! the subscriber, all recipients of one event with the same channel, locale and time zone share one rendering.

use std::{sync::Arc, time::Duration};

use tocsin_delivery::FactFields;
use tocsin_model::{
    content::Content,
    id::{EventId, Name, NotificationBatchId},
    subscriber::Profile,
    time::Timestamp,
};

use crate::load_work::Loaded;

/// Maximum age of an entry: a template can show how long ago something was.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Maximum number of entries; when full, the cache is cleared.
const KEPT_MAX: usize = 64;

/// Rendered contents of one notification batch.
#[derive(Default)]
pub(crate) struct RenderCache {
    batch: Option<NotificationBatchId>,
    kept: Vec<CachedContent>,
}

/// A rendered content with its machine-readable fields.
pub(crate) type RenderedContent = (Arc<Content>, Arc<FactFields>);

struct CachedContent {
    event: EventId,
    channel: Name,
    locale: Option<String>,
    time_zone: Option<String>,
    made_at: Timestamp,
    shared: RenderedContent,
}

impl RenderCache {
    /// Returns the shared rendering for a notification, if there is a fresh one.
    pub fn find(
        &self,
        loaded: &Loaded,
        ordinal: u32,
        channel: &Name,
        profile: &Profile,
        now: Timestamp,
    ) -> Option<RenderedContent> {
        if self.batch != Some(loaded.batch.id) || !is_shareable(loaded) {
            return None;
        }
        let event = loaded.event_of[ordinal as usize];
        let found = self.kept.iter().find(|kept| {
            kept.event == event
                && kept.channel == *channel
                && kept.locale == profile.locale
                && kept.time_zone == profile.time_zone
        })?;
        (now.since(found.made_at) < AGE_MAX).then(|| found.shared.clone())
    }

    /// Stores a rendering, if it does not depend on the recipient.
    pub fn insert(
        &mut self,
        loaded: &Loaded,
        ordinal: u32,
        channel: &Name,
        profile: &Profile,
        now: Timestamp,
        shared: &RenderedContent,
    ) {
        if !is_shareable(loaded) {
            return;
        }
        if self.batch != Some(loaded.batch.id) || self.kept.len() >= KEPT_MAX {
            self.batch = Some(loaded.batch.id);
            self.kept.clear();
        }
        let event = loaded.event_of[ordinal as usize];
        let (locale, time_zone) = (profile.locale.clone(), profile.time_zone.clone());
        let is_same = |kept: &CachedContent| {
            kept.event == event && kept.channel == *channel && kept.locale == locale && kept.time_zone == time_zone
        };
        self.kept.retain(|kept| !is_same(kept));
        let (channel, shared) = (channel.clone(), shared.clone());
        self.kept.push(CachedContent { event, channel, locale, time_zone, made_at: now, shared });
    }
}

/// Whether the fields are the same for all recipients: none was captured at the match, and no operator edited any.
fn is_shareable(loaded: &Loaded) -> bool {
    loaded.notifications().captured.is_empty() && loaded.edit.is_none() && loaded.delivery_policy.digest.is_none()
}
