//! Tracking queries: tracked bodies, message search by property, and tracking settings.

use std::sync::Arc;

use tocsin_model::{
    exchange::{TrackPlace, TrackPoint, TrackSwitch},
    field::FieldType,
    id::{MessageId, Name},
    problem::{Code, Problem, closest},
    time::Timestamp,
    value::Value,
};
use tocsin_store::{
    error::StoreError,
    spool::{MessageFilter, StoredMessage},
    tracking::{PropertySearch, TrackedBody},
};

use crate::{
    core::Core,
    error::OperateError,
    operate::Operations,
    promote,
    running::RunningExchange,
    track::{ActiveTracking, TrackingCounts},
};

/// Messages per read when the property index is rebuilt.
const STEP: usize = 500;
/// Messages before the last indexed one that are indexed again: a crash can have lost some of their entries.
const AGAIN: u64 = 2_000;

/// Kind of a tracking target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackSide {
    /// At a receive port.
    Receive,
    /// At a send port.
    Send,
    /// Messages of a route, at all ports.
    Route,
}

impl TrackSide {
    /// Its name in the API.
    pub fn word(self) -> &'static str {
        match self {
            TrackSide::Receive => "receive",
            TrackSide::Send => "send",
            TrackSide::Route => "route",
        }
    }
}

/// Tracking of a port or of a route.
#[derive(Debug, Clone, PartialEq)]
pub struct PortTracking {
    /// The port or route.
    pub port: Name,
    /// The kind of target.
    pub side: TrackSide,
    /// Points at which bodies are tracked.
    pub points: Vec<TrackPoint>,
    /// Percentage of messages that are tracked.
    pub sample_percent: u8,
    /// Whether an operator's setting overrides the definition.
    pub is_set: bool,
}

/// A page of messages with a value of a property.
#[derive(Debug, Clone, PartialEq)]
pub struct MessagePage {
    /// The messages, newest first, without deleted ones.
    pub messages: Vec<StoredMessage>,
    /// Cursor of the next page, if there may be more.
    pub next: Option<(Timestamp, MessageId)>,
}

/// A search for messages by property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageQuery {
    /// The exchange.
    pub exchange: Name,
    /// A property that is declared with `search: true`.
    pub property: Name,
    /// Its value.
    pub value: String,
    /// Earliest time of receipt, inclusive.
    pub since: Option<Timestamp>,
    /// Latest time of receipt, exclusive.
    pub until: Option<Timestamp>,
    /// Cursor of the page.
    pub after: Option<(Timestamp, MessageId)>,
}

impl Operations {
    /// The tracked bodies of a message, including the most recent ones.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn tracked(&self, id: MessageId) -> Result<Vec<TrackedBody>, StoreError> {
        self.core.tracker.flush().await;
        self.core.parts.tracking.bodies(id).await
    }

    /// Messages with a value of a property, newest first, including the most recent ones.
    ///
    /// # Errors
    /// The exchange does not run, or the property is not indexed.
    pub async fn find_messages(&self, query: MessageQuery, limit: usize) -> Result<MessagePage, OperateError> {
        let running = self.running(&query.exchange)?;
        let value = value_of(&running, &query)?;
        self.core.tracker.flush().await;
        let search = PropertySearch {
            exchange: query.exchange,
            property: query.property,
            value,
            since: query.since.unwrap_or(Timestamp(i64::MIN)),
            until: query.until.unwrap_or(Timestamp(i64::MAX)),
            after: query.after,
        };
        let places = self.core.parts.tracking.find(search, limit + 1).await?;
        let next = (places.len() > limit).then(|| places[limit - 1]);
        let mut messages = Vec::new();
        for (_, id) in places.into_iter().take(limit) {
            messages.extend(self.core.parts.spool.message(id).await?);
        }
        Ok(MessagePage { messages, next })
    }

    /// Tracking of the ports of an exchange, and of its routes that track anything.
    ///
    /// # Errors
    /// The exchange does not run.
    pub fn tracking(&self, exchange: &Name) -> Result<Vec<PortTracking>, OperateError> {
        let running = self.running(exchange)?;
        let switches = self.core.tracker.switches.read();
        let is_set = |places: &[TrackPlace]| {
            places.iter().any(|place| switches.contains_key(&(exchange.clone(), place.clone())))
        };
        let tracks = running.tracks();
        let ports = tracks.all().map(|(port, is_receive, tracking, points)| PortTracking {
            port: port.clone(),
            side: if is_receive { TrackSide::Receive } else { TrackSide::Send },
            points,
            sample_percent: tracking.sample_percent,
            is_set: is_set(&[TrackPlace::Ports(port.clone()), TrackPlace::Exchange]),
        });
        let routes = tracks.of_routes().map(|(route, tracking)| PortTracking {
            port: route.clone(),
            side: TrackSide::Route,
            points: tracking.points.clone(),
            sample_percent: tracking.sample_percent,
            is_set: is_set(&[TrackPlace::Route(route.clone())]),
        });
        Ok(ports.chain(routes).collect())
    }

    /// Counters of tracking, over all exchanges.
    pub fn tracking_counts(&self) -> TrackingCounts {
        self.core.tracker.counts()
    }

    /// Overrides the tracking of an exchange, a port name or a route; kept across restarts and new definitions. `None`
    /// removes the override. Redaction, truncation and retention always follow the definition.
    ///
    /// # Errors
    /// There is no such port or route.
    pub async fn set_tracking(
        &self,
        exchange: &Name,
        place: TrackPlace,
        switch: Option<TrackSwitch>,
    ) -> Result<(), OperateError> {
        let running = self.running(exchange)?;
        let definition = &running.compiled.definition;
        let missing = match &place {
            TrackPlace::Ports(port)
                if !definition.receive.contains_key(port) && !definition.send.contains_key(port) =>
            {
                Some(format!("the port `{port}` of `{exchange}`"))
            }
            TrackPlace::Route(route) if !definition.routes.contains_key(route) => {
                Some(format!("the route `{route}` of `{exchange}`"))
            }
            _ => None,
        };
        if let Some(missing) = missing {
            return Err(OperateError::Missing(missing));
        }
        let _one = self.applying.lock().await;
        self.core.parts.tracking.set(exchange.clone(), place.clone(), switch.clone()).await?;
        let place = (exchange.clone(), place);
        match switch {
            Some(switch) => self.core.tracker.switches.write().insert(place, switch),
            None => self.core.tracker.switches.write().remove(&place),
        };
        // The definition can have changed in the meantime.
        if let Some(running) = self.core.find(exchange) {
            *running.tracks.write() =
                Arc::new(ActiveTracking::new(&running.compiled, &self.core.tracker.switches.read()));
        }
        Ok(())
    }
}

/// Indexes stored messages whose index entries the last crash may have lost.
pub(crate) async fn rebuild_index(core: Arc<Core>, running: Arc<RunningExchange>) {
    if !running.compiled.definition.properties.iter().any(|property| property.search) {
        return;
    }
    let name = &running.compiled.definition.name;
    if let Err(error) = index_stored_messages(&core, &running).await {
        tracing::error!(exchange = %name, %error, "cannot rebuild the property index");
    }
}

async fn index_stored_messages(core: &Core, running: &RunningExchange) -> Result<(), StoreError> {
    let name = &running.compiled.definition.name;
    let progress = core.parts.tracking.progress(name).await?;
    let last = progress.map_or(0, |id| core.parts.spool.ids_before(id, AGAIN).0);
    let filter = MessageFilter { exchange: Some(name.clone()), ..MessageFilter::default() };
    let mut before = None;
    while !core.stopping.is_cancelled() {
        let found = core.parts.spool.messages(filter.clone(), before, STEP).await?;
        for stored in found.iter().filter(|stored| stored.id.0 > last) {
            core.index_properties(running, stored.id, &stored.head, stored.accepted_at);
        }
        before = found.last().map(|stored| stored.id);
        if before.is_none_or(|id| id.0 <= last) {
            return Ok(());
        }
        if !core.tracker.is_idle() {
            core.tracker.flush().await;
        }
    }
    Ok(())
}

/// The normalized value in the index.
fn value_of(running: &RunningExchange, query: &MessageQuery) -> Result<String, OperateError> {
    let definition = &running.compiled.definition;
    let searched = || definition.properties.iter().filter(|property| property.search);
    let Some(property) = searched().find(|property| property.name == query.property) else {
        let message = format!("messages of `{}` are not found by `{}`", query.exchange, query.property);
        let problem = Problem::new(Code::UnknownReference, "property", message).param("kind", "property");
        let hint = match closest(query.property.as_str(), searched().map(|property| property.name.as_str())) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "declare the property with `search: true`".to_owned(),
        };
        return Err(OperateError::Invalid(vec![problem.hint(hint)]));
    };
    let given = match property.kind {
        FieldType::String | FieldType::Timestamp => Value::from(query.value.as_str()),
        _ => serde_json::from_str::<serde_json::Value>(&query.value)
            .map_or_else(|_| Value::from(query.value.as_str()), Value::from),
    };
    let accepted = property.kind.accept(given);
    let accepted = accepted.map_err(|why| {
        OperateError::Invalid(vec![Problem::new(
            Code::WrongType,
            "value",
            format!("of the property `{}` {why}", property.name),
        )])
    })?;
    Ok(promote::as_text(&accepted))
}
