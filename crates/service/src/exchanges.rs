//! Exchanges: messages through their ports, their definitions, and what operators do to both.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tocsin_exchange::{
    Exchanges,
    edit::{Edit, Edited},
    flow::FlowReport,
    locations::LocationStatus,
    look::{Found, PortTracking, Sought},
    operate::{OperateError, PortLoad},
    receive::{Course, Incoming, ReceiveError, Received},
    track::TrackingCounts,
};
use tocsin_model::{
    application::Rate,
    definition::{
        self,
        secrets::{self, Language},
    },
    exchange::{FlowSide, Mode, PortState, TrackPlace, TrackSwitch},
    filter::Filter,
    id::{MessageId, Name},
    problem::Problem,
};
use tocsin_store::{
    spool::{Acted, HistoryEntry, MessageFilter, OriginalMessage, StoredExchange, StoredMessage, ThrottleChange},
    tracking::TrackedBody,
};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    resources::Resource,
};

/// Longest that somebody may wait for a reply that is asked for by its address.
pub const WAIT_MAX: Duration = Duration::from_secs(600);

/// Which messages an operator means: those of a filter that meet a predicate, too.
#[derive(Debug, Clone, Default)]
pub struct WhichMessages {
    /// The filter.
    pub filter: MessageFilter,
    /// Over the properties of the exchange that the filter names.
    pub when: Option<Filter>,
}

/// A receive port to which somebody may send.
pub struct Entrance {
    running: Arc<tocsin_exchange::Running>,
    port: Name,
    /// Whether those who send to it wait for a reply.
    pub mode: Mode,
    /// Most bytes of a body.
    pub body_bytes_max: usize,
}

impl Service {
    pub(crate) fn exchanges(&self) -> Result<&Arc<Exchanges>, ServiceError> {
        self.exchanges.as_ref().ok_or_else(|| ServiceError::Missing("a spool, which exchanges need,".to_owned()))
    }

    /// A receive port, before the body is read.
    ///
    /// # Errors
    /// The scope `messages:write` is missing; there is no such port, or it is switched off.
    pub fn entrance(&self, caller: &Caller, exchange: &Name, port: Name) -> Result<Entrance, ServiceError> {
        caller.needs(Scope::MessagesWrite)?;
        let running = self.exchanges()?.find(exchange).ok_or_else(|| no_exchange(exchange))?;
        let found = running.receive_port(&port)?;
        let (mode, body_bytes_max) = (found.mode, found.body_bytes_max as usize);
        Ok(Entrance { running, port, mode, body_bytes_max })
    }

    /// Takes a message. When this returns it is stored, and so is what its sender is told.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn receive(&self, entrance: &Entrance, incoming: Incoming) -> Result<Received, ServiceError> {
        Ok(self.exchanges()?.receive(&entrance.running, &entrance.port, incoming).await?)
    }

    /// What came of a request, waiting for up to `wait` while that is not known.
    ///
    /// # Errors
    /// Both scopes `messages:write` and `operations:read` are missing; there is no such message; or it was sent with another
    /// key, and `operations:read` is missing.
    pub async fn reply(&self, caller: &Caller, id: MessageId, wait: Duration) -> Result<Course, ServiceError> {
        if caller.needs(Scope::OperationsRead).is_err() {
            caller.needs(Scope::MessagesWrite)?;
            let sent = self.exchanges()?.message(id).await?;
            // Another sender's message and none have one answer, so ids that count up tell nothing.
            if sent.is_none_or(|sent| *sent.sender != *caller.key()) {
                return Err(no_message(id));
            }
        }
        let course = self.exchanges()?.reply_to(id, wait.min(WAIT_MAX)).await?;
        course.ok_or_else(|| no_message(id))
    }

    /// A message without its body.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; there is none.
    pub async fn message(&self, caller: &Caller, id: MessageId) -> Result<StoredMessage, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        self.exchanges()?.message(id).await?.ok_or_else(|| no_message(id))
    }

    /// The history of a message, oldest first: attempts that failed, and what was done to it.
    ///
    /// # Errors
    /// As [`Service::message`].
    pub async fn message_history(&self, caller: &Caller, id: MessageId) -> Result<Vec<HistoryEntry>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.history(id).await?)
    }

    /// The body of a message, and its media type.
    ///
    /// # Errors
    /// As [`Service::message`].
    pub async fn message_body(&self, caller: &Caller, id: MessageId) -> Result<(String, Bytes), ServiceError> {
        let message = self.message(caller, id).await?;
        let body = self.exchanges()?.body(id).await?.ok_or_else(|| no_message(id))?;
        Ok((message.head.content_type, body))
    }

    /// Some messages, newest first, whose ids are below `before`.
    ///
    /// # Errors
    /// The scope `operations:read` is missing.
    pub async fn messages(
        &self,
        caller: &Caller,
        filter: MessageFilter,
        before: Option<MessageId>,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = self.exchanges()?.messages(filter.clone(), before, limit).await?;
        if found.is_empty() && before.is_none() {
            self.check_known_ports(&filter).await?;
        }
        Ok(found)
    }

    /// Lets suspended messages go on.
    ///
    /// # Errors
    /// The scope `operations:write` is missing.
    pub async fn resume_messages(&self, caller: &Caller, which: WhichMessages) -> Result<Acted, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.check_messages(caller, &which.filter).await?;
        let exchanges = self.exchanges()?;
        let filter = which.filter.clone();
        let acted = exchanges.resume(exchanges.choice(which.filter, which.when.as_ref())?, caller.key()).await?;
        if acted.messages == 0 {
            self.check_known_ports(&filter).await?;
        }
        tracing::info!(messages = acted.messages, by = caller.key(), "messages were resumed");
        Ok(acted)
    }

    /// Ends messages: those that are suspended, if the filter does not say otherwise.
    ///
    /// # Errors
    /// The scope `operations:write` is missing.
    pub async fn end_messages(&self, caller: &Caller, which: WhichMessages) -> Result<Acted, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.check_messages(caller, &which.filter).await?;
        let exchanges = self.exchanges()?;
        let filter = which.filter.clone();
        let acted = exchanges.end(exchanges.choice(which.filter, which.when.as_ref())?, caller.key()).await?;
        if acted.messages == 0 {
            self.check_known_ports(&filter).await?;
        }
        tracing::info!(messages = acted.messages, by = caller.key(), "messages were ended");
        Ok(acted)
    }

    /// Changes suspended messages; with `resume` they go on at once.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; the predicate is wrong.
    pub async fn edit_messages(
        &self,
        caller: &Caller,
        which: WhichMessages,
        edit: &Edit,
        resume: bool,
    ) -> Result<(Edited, Acted), ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.check_messages(caller, &which.filter).await?;
        let exchanges = self.exchanges()?;
        let choice = exchanges.choice(which.filter, which.when.as_ref())?;
        let edited = exchanges.edit(&choice, edit, caller.key()).await?;
        tracing::info!(messages = edited.messages.len(), by = caller.key(), "messages were edited");
        let mut acted = Acted::default();
        if resume {
            for id in &edited.messages {
                let only = MessageFilter { id: Some(*id), ..MessageFilter::default() };
                let resumed = exchanges.resume(only, caller.key()).await?;
                acted.messages += resumed.messages;
                acted.legs += resumed.legs;
            }
        }
        Ok((edited, acted))
    }

    /// A message as it was before an operator edited it.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; it was not edited.
    pub async fn original_message(&self, caller: &Caller, id: MessageId) -> Result<OriginalMessage, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let original = self.exchanges()?.original(id).await?;
        original.ok_or_else(|| ServiceError::Missing(format!("an edit of the message {id}")))
    }

    /// The bodies of a message that were tracked on its way, in the order of time.
    ///
    /// # Errors
    /// The scope `operations:read` is missing.
    pub async fn tracked_bodies(&self, caller: &Caller, id: MessageId) -> Result<Vec<TrackedBody>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.tracked(id).await?)
    }

    /// Messages with a value of a property, newest first.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the exchange does not run, or its messages are not found by this property.
    pub async fn find_messages(&self, caller: &Caller, sought: Sought, limit: usize) -> Result<Found, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.find_messages(sought, limit).await?)
    }

    /// What is tracked at the ports of an exchange, and how much of all exchanges.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; there is no such exchange.
    pub fn exchange_tracking(
        &self,
        caller: &Caller,
        exchange: &Name,
    ) -> Result<(Vec<PortTracking>, TrackingCounts), ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let exchanges = self.exchanges()?;
        Ok((exchanges.tracking(exchange)?, exchanges.tracking_counts()))
    }

    /// Sets what is tracked of an exchange, of its ports of one name or of the messages of a route; `None`: as the definition
    /// says.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; there is no such port.
    pub async fn set_exchange_tracking(
        &self,
        caller: &Caller,
        exchange: &Name,
        place: TrackPlace,
        switch: Option<TrackSwitch>,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.exchanges()?.set_tracking(exchange, place, switch).await?;
        tracing::info!(%exchange, by = caller.key(), "what is tracked was set");
        Ok(())
    }

    /// The definitions of exchanges, without the secrets written in them, each with whether it runs.
    ///
    /// # Errors
    /// The scope `applications:read` is missing.
    pub async fn stored_exchanges(&self, caller: &Caller) -> Result<Vec<(StoredExchange, bool)>, ServiceError> {
        caller.needs(Scope::ApplicationsRead)?;
        let mut stored = self.exchanges()?.stored().await?;
        stored.retain(|(stored, _)| caller.reaches(&Resource::Exchange(stored.name.clone())));
        let shown = |stored: StoredExchange| {
            let text = secrets::redact(Language::Exchange, &stored.text);
            StoredExchange { text, ..stored }
        };
        Ok(stored.into_iter().map(|(stored, runs)| (shown(stored), runs)).collect())
    }

    /// One definition, and whether it runs.
    ///
    /// # Errors
    /// The scope `applications:read` is missing; there is none of this name.
    pub async fn stored_exchange(&self, caller: &Caller, name: &Name) -> Result<(StoredExchange, bool), ServiceError> {
        let all = self.stored_exchanges(caller).await?;
        all.into_iter().find(|(stored, _)| stored.name == *name).ok_or_else(|| no_exchange(name))
    }

    /// Checks a definition, stores it and runs it; with `dry_run` only checks. Where it has masks it keeps the secrets that
    /// are stored. Gives its version, 0 for a dry run. Who may not apply it is not told what the environment holds: ports that
    /// take something from it are not judged then.
    ///
    /// # Errors
    /// The scope `applications:write` is missing, for a dry run `applications:read`; every problem in the definition.
    pub async fn apply_exchange(
        &self,
        caller: &Caller,
        name: &Name,
        text: &str,
        dry_run: bool,
    ) -> Result<u32, ServiceError> {
        caller.needs(if dry_run { Scope::ApplicationsRead } else { Scope::ApplicationsWrite })?;
        let exchanges = self.exchanges()?;
        let stored = exchanges.stored().await?;
        let before = stored.iter().find(|(stored, _)| stored.name == *name).map(|(stored, _)| stored.text.as_str());
        let text = &secrets::restore(Language::Exchange, text, before.as_slice());
        let checked = match caller.needs(Scope::ApplicationsWrite) {
            Ok(()) => exchanges.compile(text).map(drop),
            Err(_) => exchanges.check_sealed(text),
        };
        checked.map_err(ServiceError::Invalid)?;
        if let Some(other) = definition::named_exchange(text).filter(|found| found != name) {
            let message = format!("is `{other}`, but the address says `{name}`");
            return Err(ServiceError::Invalid(vec![Problem::at("exchange", message)]));
        }
        if dry_run {
            return Ok(0);
        }
        let stored = exchanges.apply(text, caller.key()).await?;
        tracing::info!(exchange = %name, version = stored.version, by = caller.key(), "an exchange was applied");
        Ok(stored.version)
    }

    /// Removes an exchange that has no open messages.
    ///
    /// # Errors
    /// The scope `applications:write` is missing; there is none, or it has open messages.
    pub async fn remove_exchange(&self, caller: &Caller, name: &Name) -> Result<(), ServiceError> {
        caller.needs(Scope::ApplicationsWrite)?;
        self.exchanges()?.remove(name).await?;
        tracing::info!(exchange = %name, by = caller.key(), "an exchange was removed");
        Ok(())
    }

    /// The send ports of an exchange.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; there is no such exchange.
    pub async fn exchange_ports(&self, caller: &Caller, exchange: &Name) -> Result<Vec<PortLoad>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.ports(exchange).await?)
    }

    /// The locations of an exchange.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; there is no such exchange.
    pub fn exchange_locations(&self, caller: &Caller, exchange: &Name) -> Result<Vec<LocationStatus>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.locations(exchange)?)
    }

    /// How an exchange flows, and what slows it down.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; there is no such exchange.
    pub async fn exchange_flow(&self, caller: &Caller, exchange: &Name) -> Result<FlowReport, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.flow(exchange).await?)
    }

    /// When messages of an exchange were slowed down, newest first.
    ///
    /// # Errors
    /// The scope `operations:read` is missing.
    pub async fn exchange_flow_changes(
        &self,
        caller: &Caller,
        exchange: &Name,
        limit: usize,
    ) -> Result<Vec<ThrottleChange>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.flow_changes(exchange, limit).await?)
    }

    /// Sets how fast messages may come in, through all receive ports or one, or leave by a send port; `None`: as fast as they
    /// can.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; there is no such port.
    pub async fn set_exchange_rate(
        &self,
        caller: &Caller,
        exchange: &Name,
        side: FlowSide,
        port: Option<&Name>,
        rate: Option<Rate>,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        if side == FlowSide::Delivery && port.is_none() {
            return Err(ServiceError::invalid("port", "is missing: say which send port is to be slower"));
        }
        self.exchanges()?.set_rate(exchange, side, port, rate).await?;
        let rate = rate.map_or_else(|| "none".to_owned(), |rate| rate.to_string());
        tracing::info!(%exchange, side = side.word(), rate, by = caller.key(), "a rate was set");
        Ok(())
    }

    /// Sets the state of a send port; `None`: as the definition says.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; there is no such port.
    pub async fn set_exchange_port(
        &self,
        caller: &Caller,
        exchange: &Name,
        port: &Name,
        state: Option<PortState>,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        Ok(self.exchanges()?.set_port(exchange, port, state).await?)
    }
}

fn no_exchange(name: &Name) -> ServiceError {
    ServiceError::Missing(format!("the exchange `{name}`"))
}

fn no_message(id: MessageId) -> ServiceError {
    ServiceError::Missing(format!("the message {id}"))
}

impl From<ReceiveError> for ServiceError {
    fn from(error: ReceiveError) -> Self {
        let text = error.to_string();
        match error {
            ReceiveError::Missing(what) => ServiceError::Missing(what),
            ReceiveError::Disabled(_) => {
                ServiceError::Throttled { code: "operator", reason: text, retry_after: Duration::from_secs(60) }
            }
            ReceiveError::Closed { opens_in, .. } => {
                ServiceError::Throttled { code: "service_window", reason: text, retry_after: opens_in }
            }
            ReceiveError::TooLarge(_) => ServiceError::invalid("", text),
            ReceiveError::Key => ServiceError::invalid("Idempotency-Key", text),
            ReceiveError::KeyReused(id) => ServiceError::MessageKeyReused(id),
            ReceiveError::Full { code, reason, retry_after } => {
                ServiceError::Throttled { code: code.word(), reason, retry_after }
            }
            ReceiveError::Store(error) => error.into(),
        }
    }
}

impl From<OperateError> for ServiceError {
    fn from(error: OperateError) -> Self {
        match error {
            OperateError::Missing(what) => ServiceError::Missing(what),
            OperateError::Invalid(problems) => ServiceError::Invalid(problems),
            OperateError::InUse(name) => {
                ServiceError::InUse { what: format!("the exchange `{name}`"), by: "its open messages".to_owned() }
            }
            OperateError::Store(error) => error.into(),
        }
    }
}
