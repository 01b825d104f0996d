//! What people look at: bodies that were tracked, messages that are found by a property, and what is tracked where.

use std::sync::Arc;

use tocsin_model::{
    exchange::{TrackPlace, TrackPoint, TrackSwitch},
    field::FieldType,
    id::{MessageId, Name},
    problem::{Problem, closest},
    time::Timestamp,
    value::Value,
};
use tocsin_store::{
    error::StoreError,
    spool::{Head, MessageFilter, StoredMessage},
    tracking::{Findable, Search, TrackedBody},
};

use crate::{
    Exchanges, Running,
    operate::OperateError,
    promote,
    track::{TrackingCounts, Tracks},
};

/// Messages that are read from the spool at a time, to be found.
const STEP: usize = 500;
/// Messages before the last one that can be found which are made so again: of some of them a crash may have taken it.
const AGAIN: u64 = 2_000;

/// Where something is tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackSide {
    /// At a receive port.
    Receive,
    /// At a send port.
    Send,
    /// On the ways of the messages of a route.
    Route,
}

impl TrackSide {
    /// Its one word.
    pub fn word(self) -> &'static str {
        match self {
            TrackSide::Receive => "receive",
            TrackSide::Send => "send",
            TrackSide::Route => "route",
        }
    }
}

/// What is tracked at a port, or of the messages of a route.
#[derive(Debug, Clone, PartialEq)]
pub struct PortTracking {
    /// The port or route.
    pub port: Name,
    /// What it is.
    pub side: TrackSide,
    /// Where bodies are kept.
    pub points: Vec<TrackPoint>,
    /// Of how many messages in a hundred.
    pub sample_percent: u8,
    /// Whether an operator has set that, against the definition.
    pub is_set: bool,
}

/// Messages with a value of a property.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// They, newest first. Those that need not be kept any more are not among them.
    pub messages: Vec<StoredMessage>,
    /// Behind what the next page begins, if there may be more.
    pub next: Option<(Timestamp, MessageId)>,
}

/// What is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sought {
    /// The exchange.
    pub exchange: Name,
    /// A property that is declared with `search: true`.
    pub property: Name,
    /// Its value.
    pub value: String,
    /// Not earlier than this.
    pub since: Option<Timestamp>,
    /// Earlier than this.
    pub until: Option<Timestamp>,
    /// Behind what the page begins.
    pub after: Option<(Timestamp, MessageId)>,
}

impl Running {
    /// What is tracked now.
    pub(crate) fn tracks(&self) -> Arc<Tracks> {
        self.tracks.read().clone()
    }
}

impl Exchanges {
    /// The bodies of a message that were tracked, those of the last moment too.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn tracked(&self, id: MessageId) -> Result<Vec<TrackedBody>, StoreError> {
        self.tracker.flush().await;
        self.parts.tracking.bodies(id).await
    }

    /// Messages with a value of a property, newest first; those of the last moment too.
    ///
    /// # Errors
    /// The exchange does not run, or messages are not found by this property.
    pub async fn find_messages(&self, sought: Sought, limit: usize) -> Result<Found, OperateError> {
        let running = self.running(&sought.exchange)?;
        let value = value_of(&running, &sought)?;
        self.tracker.flush().await;
        let search = Search {
            exchange: sought.exchange,
            property: sought.property,
            value,
            since: sought.since.unwrap_or(Timestamp(i64::MIN)),
            until: sought.until.unwrap_or(Timestamp(i64::MAX)),
            after: sought.after,
        };
        let places = self.parts.tracking.find(search, limit + 1).await?;
        let next = (places.len() > limit).then(|| places[limit - 1]);
        let mut messages = Vec::new();
        for (_, id) in places.into_iter().take(limit) {
            messages.extend(self.parts.spool.message(id).await?);
        }
        Ok(Found { messages, next })
    }

    /// What is tracked at the ports of an exchange, and of the messages of those routes of which anything is.
    ///
    /// # Errors
    /// It does not run.
    pub fn tracking(&self, exchange: &Name) -> Result<Vec<PortTracking>, OperateError> {
        let running = self.running(exchange)?;
        let switches = self.tracker.switches.read();
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

    /// How much is tracked, over all exchanges.
    pub fn tracking_counts(&self) -> TrackingCounts {
        self.tracker.counts()
    }

    /// Sets what is tracked of an exchange, of its ports of one name or of the messages of a route, for restarts and new
    /// definitions as well; `None`: as the definition says. What is struck out, cut and kept is always as the definition says.
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
        self.parts.tracking.set(exchange.clone(), place.clone(), switch.clone()).await?;
        let place = (exchange.clone(), place);
        match switch {
            Some(switch) => self.tracker.switches.write().insert(place, switch),
            None => self.tracker.switches.write().remove(&place),
        };
        // Another definition may run by now.
        if let Some(running) = self.find(exchange) {
            *running.tracks.write() = Arc::new(Tracks::new(&running.compiled, &self.tracker.switches.read()));
        }
        Ok(())
    }

    /// Lets a message be found by its properties, if any are declared for that.
    pub(crate) fn let_be_found(&self, running: &Running, id: MessageId, head: &Head, at: Timestamp) {
        let declared = running.compiled.definition.properties.iter().filter(|property| property.search);
        let found = declared
            .filter_map(|property| Some((property.name.clone(), promote::text_of(head, property.name.as_str())?)));
        let properties: Vec<(Name, String)> = found.collect();
        if !properties.is_empty() {
            let definition = &running.compiled.definition;
            self.tracker.index(&definition.name, Findable { message: id, at, properties }, definition.retention);
        }
    }

    /// Lets those messages be found that are stored and could not be found when the process last ended.
    pub(crate) async fn catch_up(self: Arc<Self>, running: Arc<Running>) {
        if !running.compiled.definition.properties.iter().any(|property| property.search) {
            return;
        }
        let name = &running.compiled.definition.name;
        if let Err(error) = self.read_again(&running).await {
            tracing::error!(exchange = %name, %error, "messages cannot be made to be found");
        }
    }

    async fn read_again(&self, running: &Running) -> Result<(), StoreError> {
        let name = &running.compiled.definition.name;
        let progress = self.parts.tracking.progress(name).await?;
        let last = progress.map_or(0, |id| self.parts.spool.ids_before(id, AGAIN).0);
        let filter = MessageFilter { exchange: Some(name.clone()), ..MessageFilter::default() };
        let mut before = None;
        while !self.stopping.is_cancelled() {
            let found = self.parts.spool.messages(filter.clone(), before, STEP).await?;
            for stored in found.iter().filter(|stored| stored.id.0 > last) {
                self.let_be_found(running, stored.id, &stored.head, stored.accepted_at);
            }
            before = found.last().map(|stored| stored.id);
            if before.is_none_or(|id| id.0 <= last) {
                return Ok(());
            }
            if !self.tracker.is_idle() {
                self.tracker.flush().await;
            }
        }
        Ok(())
    }
}

/// A value as the index has it.
fn value_of(running: &Running, sought: &Sought) -> Result<String, OperateError> {
    let definition = &running.compiled.definition;
    let searched = || definition.properties.iter().filter(|property| property.search);
    let Some(property) = searched().find(|property| property.name == sought.property) else {
        let message = format!("messages of `{}` are not found by `{}`", sought.exchange, sought.property);
        let problem = Problem::at("property", message);
        let hint = match closest(sought.property.as_str(), searched().map(|property| property.name.as_str())) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "declare the property with `search: true`".to_owned(),
        };
        return Err(OperateError::Invalid(vec![problem.hint(hint)]));
    };
    let given = match property.kind {
        FieldType::String | FieldType::Timestamp => Value::from(sought.value.as_str()),
        _ => serde_json::from_str::<serde_json::Value>(&sought.value)
            .map_or_else(|_| Value::from(sought.value.as_str()), Value::from),
    };
    let accepted = property.kind.accept(given);
    let accepted = accepted.map_err(|why| {
        OperateError::Invalid(vec![Problem::at("value", format!("of the property `{}` {why}", property.name))])
    })?;
    Ok(promote::as_text(&accepted))
}
