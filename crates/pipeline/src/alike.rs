//! What is formatted once for many: of a class whose templates and fields ask nothing of who is told, all who are told of
//! one event read the same, if they have the same channel, language and time zone.

use std::{sync::Arc, time::Duration};

use tocsin_delivery::FactFields;
use tocsin_model::{
    content::Content,
    id::{EventId, Name, NotificationBatchId},
    subscriber::Profile,
    time::Timestamp,
};

use crate::load_work::Loaded;

/// So long a content may be used: a template can say how long ago something was.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Contents that are kept; with one more all are forgotten.
const KEPT_MAX: usize = 64;

/// The contents of some work that others can use.
#[derive(Default)]
pub(crate) struct Alike {
    batch: Option<NotificationBatchId>,
    kept: Vec<Kept>,
}

/// A content, and the fields for machines beside it.
pub(crate) type Shared = (Arc<Content>, Arc<FactFields>);

struct Kept {
    event: EventId,
    channel: Name,
    locale: Option<String>,
    time_zone: Option<String>,
    made_at: Timestamp,
    shared: Shared,
}

impl Alike {
    /// What somebody else was told who reads the same.
    pub fn find(
        &self,
        loaded: &Loaded,
        ordinal: u32,
        channel: &Name,
        profile: &Profile,
        now: Timestamp,
    ) -> Option<Shared> {
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

    /// Keeps what is nobody's own.
    pub fn keep(
        &mut self,
        loaded: &Loaded,
        ordinal: u32,
        channel: &Name,
        profile: &Profile,
        now: Timestamp,
        shared: &Shared,
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
        let is_same = |kept: &Kept| {
            kept.event == event && kept.channel == *channel && kept.locale == locale && kept.time_zone == time_zone
        };
        self.kept.retain(|kept| !is_same(kept));
        let (channel, shared) = (channel.clone(), shared.clone());
        self.kept.push(Kept { event, channel, locale, time_zone, made_at: now, shared });
    }
}

/// Whether the fields are the same for all: none was captured at the match, and nobody has changed any by hand.
fn is_shareable(loaded: &Loaded) -> bool {
    loaded.notifications().captured.is_empty() && loaded.edit.is_none() && loaded.conduct.digest.is_none()
}
