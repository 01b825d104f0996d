//! Search of objects by id, name or address, for the command palette and `tocsin search`.
//!
//! Each kind is answered by an index or from memory, so the work does not grow with the number of objects: ids by key,
//! subscribers and segments by a range of their names, addresses by their hash.

use std::fmt::Display;

use serde::Serialize;
use tocsin_model::{
    id::{BroadcastId, EventBatchId, EventId, MessageId, Name, NotificationBatchId, NotificationId, SubscriptionId},
    problem::{Code, Problem},
};
use tocsin_store::records::SubscriberFilter;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    resources::{Resource, Thing},
};

/// Maximum number of hits of a kind.
pub const HITS_MAX: usize = 20;
/// Maximum length of the text.
pub const TEXT_BYTES_MAX: usize = 1_024;

/// An object that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hit {
    /// Kind, such as `subscriber`.
    pub kind: &'static str,
    /// Id; for parts of an application, `APPLICATION/NAME`.
    pub id: String,
    /// Text for readers.
    pub title: String,
    /// Application or exchange that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
    /// Path of the object in this interface.
    pub link: String,
}

/// Result of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Hits {
    /// Hits by kind.
    pub items: Vec<Hit>,
    /// Whether there are no other hits.
    pub complete: bool,
}

impl Hits {
    /// No hits.
    pub fn none() -> Hits {
        Hits { items: Vec::new(), complete: true }
    }

    /// Adds hits of one kind, up to the maximum.
    pub fn add(&mut self, hits: impl IntoIterator<Item = Hit>) {
        let mut hits = hits.into_iter();
        self.items.extend(hits.by_ref().take(HITS_MAX));
        self.complete &= hits.next().is_none();
    }
}

/// A segment of a path.
pub fn segment(text: &str) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            byte => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

impl Service {
    /// Finds objects whose id is a text, or whose name or address begins with it. Addresses of devices must be whole.
    /// Only objects that the caller may read are found.
    ///
    /// # Errors
    /// The text is empty or too long; a store is unavailable.
    pub async fn search(&self, caller: &Caller, text: &str) -> Result<Hits, ServiceError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Problem::new(Code::Empty, "q", "is empty").into());
        }
        if text.len() > TEXT_BYTES_MAX {
            let problem = Problem::new(Code::TooLong, "q", format!("has more than {TEXT_BYTES_MAX} bytes"));
            return Err(problem.param("limit", TEXT_BYTES_MAX).param("unit", "bytes").into());
        }
        let mut hits = Hits::none();
        hits.add(self.things(caller, text).await?);
        self.find_subscribers(caller, text, &mut hits).await?;
        self.find_segments(caller, text, &mut hits).await?;
        self.find_definitions(caller, text, &mut hits);
        Ok(hits)
    }

    /// Objects with an id of their own.
    async fn things(&self, caller: &Caller, text: &str) -> Result<Option<Hit>, ServiceError> {
        let may_operate = caller.needs(Scope::OperationsRead).is_ok();
        let hit = |kind: &'static str, of: Resource, link: String| {
            let (Resource::Application(within)
            | Resource::Exchange(within)
            | Resource::Port(within, _)
            | Resource::Source(within, _)) = of
            else {
                return None;
            };
            Some(Hit {
                kind,
                id: text.to_owned(),
                title: format!("{text} of {within}"),
                within: Some(within.to_string()),
                link,
            })
        };
        let known: [(&'static str, bool, Option<Thing>, &str); 4] = [
            ("event_batch", may_operate, parsed::<EventBatchId>(text).map(Thing::EventBatch), "event-batches"),
            (
                "notification_batch",
                may_operate,
                parsed::<NotificationBatchId>(text).map(Thing::NotificationBatch),
                "notification-batches",
            ),
            (
                "subscription",
                caller.needs(Scope::SubscribersRead).is_ok(),
                parsed::<SubscriptionId>(text).map(Thing::Subscription),
                "subscriptions",
            ),
            (
                "message",
                may_operate && self.exchanges.is_some(),
                parsed::<MessageId>(text).map(Thing::Message),
                "messages",
            ),
        ];
        for (kind, is_allowed, thing, path) in known {
            let (true, Some(thing)) = (is_allowed, thing) else { continue };
            let found = self.resource_of(thing).await?.filter(|resource| caller.reaches(resource));
            return Ok(found.and_then(|resource| hit(kind, resource, format!("/v1/{path}/{text}"))));
        }
        if let (true, Some(id)) = (may_operate, parsed::<EventId>(text)) {
            let batch = match self.find_event_batch(id.batch).await {
                Ok((batch, _)) if (id.ordinal as usize) < batch.events.count() as usize => batch,
                Ok(_) | Err(ServiceError::Missing(_)) => return Ok(None),
                Err(error) => return Err(error),
            };
            let resource = Resource::Application(batch.application);
            // An event is shown by its trace.
            return Ok(caller
                .reaches(&resource)
                .then(|| hit("event", resource, format!("/v1/trace/{text}")))
                .flatten());
        }
        if let (true, Some(id)) = (may_operate, parsed::<NotificationId>(text)) {
            let stored = match self.find_notification_batch(id.batch).await {
                Ok(stored) if (id.ordinal as usize) < stored.notifications.count() => stored,
                Ok(_) | Err(ServiceError::Missing(_)) => return Ok(None),
                Err(error) => return Err(error),
            };
            let resource = Resource::Application(stored.head.application);
            let link = format!("/v1/notifications/{text}");
            return Ok(caller.reaches(&resource).then(|| hit("notification", resource, link)).flatten());
        }
        if let (Ok(()), Some(id)) = (caller.needs(Scope::BroadcastsRead), parsed::<BroadcastId>(text)) {
            let found = self.broadcasts.broadcast(id).await?;
            let found = found.filter(|found| caller.reaches(&Resource::Application(found.application.clone())));
            return Ok(found.map(|found| Hit {
                kind: "broadcast",
                id: text.to_owned(),
                title: format!("{text} of {}, {}", found.application, found.state.word()),
                within: Some(found.application.to_string()),
                link: format!("/v1/broadcasts/{text}"),
            }));
        }
        Ok(None)
    }

    /// Subscribers by the beginning of their id, and by a whole address of a device.
    async fn find_subscribers(&self, caller: &Caller, text: &str, hits: &mut Hits) -> Result<(), ServiceError> {
        if caller.needs_everywhere(Scope::SubscribersRead).is_err() {
            return Ok(());
        }
        let link = |id: &str| format!("/v1/subscribers/{}", segment(id));
        let filter = SubscriberFilter { id_prefix: Some(text.to_owned()), ..SubscriberFilter::default() };
        let found = self.subscriber_store.scan_subscribers(&filter, None, HITS_MAX + 1).await?;
        hits.add(found.items.into_iter().map(|found| Hit {
            kind: "subscriber",
            title: found.id.to_string(),
            within: None,
            link: link(found.id.as_str()),
            id: found.id.to_string(),
        }));
        let filter = SubscriberFilter { address: Some(text.to_owned()), ..SubscriberFilter::default() };
        let found = self.subscriber_store.scan_subscribers(&filter, None, HITS_MAX + 1).await?;
        let devices = found.items.into_iter().flat_map(|found| {
            let of_address = |address: &str| tocsin_model::mailbox::is_same(address, text);
            let devices: Vec<_> = found.devices.into_iter().filter(|(_, device)| of_address(&device.address)).collect();
            devices.into_iter().map(move |(name, device)| Hit {
                kind: "device",
                id: format!("{}/{name}", found.id),
                title: format!("{} of {}, {}", device.address, found.id, device.channel),
                within: None,
                link: link(found.id.as_str()),
            })
        });
        hits.add(devices);
        Ok(())
    }

    /// Segments by the beginning of their name.
    async fn find_segments(&self, caller: &Caller, text: &str, hits: &mut Hits) -> Result<(), ServiceError> {
        let (Ok(()), Ok(name)) = (caller.needs_everywhere(Scope::SubscribersRead), text.parse::<Name>()) else {
            return Ok(());
        };
        let mut found: Vec<_> = self.segment_store.segment(&name).await?.into_iter().collect();
        found.extend(self.segment_store.segments(Some(&name), HITS_MAX + 1).await?);
        let found = found.into_iter().filter(|found| found.name.as_str().starts_with(text));
        hits.add(found.map(|found| Hit {
            kind: "segment",
            id: found.name.to_string(),
            title: found.description.unwrap_or_else(|| found.name.to_string()),
            within: None,
            link: format!("/v1/segments/{}", found.name),
        }));
        Ok(())
    }

    /// Applications, their rules and channels, and exchanges, by the beginning of their name.
    fn find_definitions(&self, caller: &Caller, text: &str, hits: &mut Hits) {
        if caller.needs(Scope::ApplicationsRead).is_err() {
            return;
        }
        let is_named = |name: &Name| name.as_str().starts_with(text);
        let running: Vec<_> = self
            .pipeline
            .running_applications()
            .into_iter()
            .filter(|compiled| caller.reaches(&Resource::Application(compiled.application.name.clone())))
            .collect();
        let failed = self.pipeline.failed_applications().into_iter().map(|(name, _)| name);
        let failed = failed.filter(|name| caller.reaches(&Resource::Application(name.clone())));
        let names = running.iter().map(|compiled| compiled.application.name.clone()).chain(failed);
        hits.add(names.filter(is_named).map(|name| named("application", &name, format!("/v1/applications/{name}"))));
        let part = |kind, application: &Name, name: &Name, link: String| Hit {
            kind,
            id: format!("{application}/{name}"),
            title: format!("{name} of {application}"),
            within: Some(application.to_string()),
            link,
        };
        hits.add(running.iter().flat_map(|compiled| {
            let application = &compiled.application;
            application.rules.keys().filter(|name| is_named(name)).map(move |name| {
                part("rule", &application.name, name, format!("/v1/applications/{}/rules", application.name))
            })
        }));
        hits.add(running.iter().flat_map(|compiled| {
            let application = &compiled.application;
            application.channels.keys().filter(|name| is_named(name)).map(move |name| {
                part("channel", &application.name, name, format!("/v1/applications/{}/destinations", application.name))
            })
        }));
        let exchanges = self.exchanges.iter().flat_map(|exchanges| exchanges.names());
        let exchanges = exchanges.filter(|name| is_named(name) && caller.reaches(&Resource::Exchange(name.clone())));
        hits.add(exchanges.map(|name| named("exchange", &name, format!("/v1/exchanges/{name}"))));
    }
}

fn named(kind: &'static str, name: &impl Display, link: String) -> Hit {
    Hit { kind, id: name.to_string(), title: name.to_string(), within: None, link }
}

fn parsed<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_hits_of_a_kind_than_the_maximum_are_an_incomplete_result() {
        let hits = |count: usize| (0..count).map(|number| named("rule", &number, String::new()));
        for (counts, expected) in
            [(&[20, 20][..], (40, true)), (&[21], (20, false)), (&[21, 1], (21, false)), (&[], (0, true))]
        {
            let mut found = Hits::none();
            counts.iter().for_each(|count| found.add(hits(*count)));
            assert_eq!((found.items.len(), found.complete), expected, "{counts:?}");
        }
    }

    #[test]
    fn segments_of_links_are_encoded() {
        assert_eq!(segment("a b/ü~1"), "a%20b%2F%C3%BC~1");
    }
}
