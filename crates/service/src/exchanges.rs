//! Exchanges: messages through their ports, definitions, and operator actions.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tocsin_exchange::{
    Exchanges,
    edit::{Edit, EditSummary},
    error::{OperateError, ReceiveError},
    flow::FlowReport,
    locations::LocationStatus,
    operate::PortLoad,
    receive::{IncomingMessage, ReceiveResult, ReplyStatus},
    route_tests::RouteTest,
    track::TrackingCounts,
    tracking_queries::{MessagePage, MessageQuery, PortTracking},
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
    problem::{Code, Problem},
};
use tocsin_store::{
    bounded_scan::ScanPage,
    spool::{
        AffectedCounts, HistoryEntry, MessageFilter, OriginalMessage, StoredExchange, StoredMessage, ThrottleChange,
    },
    tracking::TrackedBody,
};

use crate::{
    Service,
    applications::Expected,
    error::ServiceError,
    keys::{Caller, Scope},
    resources::Resource,
    run_mode::RunMode,
};

/// Maximum time that a request waits for a reply.
pub const WAIT_MAX: Duration = Duration::from_secs(600);

/// Selection of messages for an operator action: a filter, optionally with a predicate.
#[derive(Debug, Clone, Default)]
pub struct WhichMessages {
    /// The filter.
    pub filter: MessageFilter,
    /// Predicate over the properties of the exchange that the filter names.
    pub when: Option<Filter>,
}

/// Result of applying the definition of an exchange, or of a dry run.
#[derive(Debug, Clone)]
pub struct AppliedExchange {
    /// Version that runs now, or is stored before a dry run (0 if none).
    pub version: u32,
    /// Whether the exchange is new.
    pub created: bool,
    /// Difference from the stored definition.
    pub differences: Vec<definition::Difference>,
    /// Locations that the server's configuration does not allow, which do not run.
    pub warnings: Vec<Problem>,
}

/// Result of checking the definition of an exchange.
#[derive(Debug, Clone)]
pub struct CheckedExchange {
    /// Name in the definition.
    pub name: Option<Name>,
    /// All problems.
    pub problems: Vec<Problem>,
    /// Changes that an apply would make; `None`: it has problems.
    pub applied: Option<AppliedExchange>,
}

/// A receive port, opened for a sender.
pub struct ReceivePortHandle {
    running: Arc<tocsin_exchange::RunningExchange>,
    port: Name,
    /// Whether senders wait for a reply.
    pub mode: Mode,
    /// Maximum bytes of a body.
    pub body_bytes_max: usize,
}

impl Service {
    pub(crate) fn exchanges(&self) -> Result<&Arc<Exchanges>, ServiceError> {
        self.exchanges.as_ref().ok_or_else(|| ServiceError::Missing("a spool, which exchanges need,".to_owned()))
    }

    /// Opens a receive port, before the body is read.
    ///
    /// # Errors
    /// The scope `messages:write` is missing; the port does not exist, or it is switched off.
    pub fn receive_port_handle(
        &self,
        caller: &Caller,
        exchange: &Name,
        port: Name,
    ) -> Result<ReceivePortHandle, ServiceError> {
        caller.needs(Scope::MessagesWrite)?;
        let exchanges = self.exchanges()?;
        let running = exchanges.find(exchange).ok_or_else(|| {
            let is_failed = exchanges.operations.failed_exchanges().iter().any(|(failed, _)| failed == exchange);
            match is_failed {
                true => ServiceError::not_running(format!("the exchange `{exchange}`")),
                false => no_exchange(exchange),
            }
        })?;
        let found = running.receive_port(&port)?;
        let (mode, body_bytes_max) = (found.mode, found.body_bytes_max as usize);
        Ok(ReceivePortHandle { running, port, mode, body_bytes_max })
    }

    /// Accepts a message. When this returns, the message is stored, and so is the answer to its sender.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn receive(
        &self,
        receive_port_handle: &ReceivePortHandle,
        incoming: IncomingMessage,
    ) -> Result<ReceiveResult, ServiceError> {
        Ok(self.exchanges()?.intake.receive(&receive_port_handle.running, &receive_port_handle.port, incoming).await?)
    }

    /// Returns the reply to a request, waiting for up to `wait` while it is unknown.
    ///
    /// # Errors
    /// Both scopes `messages:write` and `operations:read` are missing; the message does not exist; or it was sent with another
    /// key, and `operations:read` is missing.
    pub async fn reply(&self, caller: &Caller, id: MessageId, wait: Duration) -> Result<ReplyStatus, ServiceError> {
        if caller.needs(Scope::OperationsRead).is_err() {
            caller.needs(Scope::MessagesWrite)?;
            let sent = self.exchanges()?.operations.message(id).await?;
            // A missing message and one of another sender have the same answer, so sequential ids reveal nothing.
            if sent.is_none_or(|sent| *sent.sender != *caller.key()) {
                return Err(no_message(id));
            }
        }
        let reply_status = self.exchanges()?.intake.reply_to(id, wait.min(WAIT_MAX)).await?;
        reply_status.ok_or_else(|| no_message(id))
    }

    /// Returns a message without its body.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; there is none.
    pub async fn message(&self, caller: &Caller, id: MessageId) -> Result<StoredMessage, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        self.exchanges()?.operations.message(id).await?.ok_or_else(|| no_message(id))
    }

    /// Returns the history of a message, oldest first: failed attempts, and operator actions.
    ///
    /// # Errors
    /// As [`Service::message`].
    pub async fn message_history(&self, caller: &Caller, id: MessageId) -> Result<Vec<HistoryEntry>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.operations.history(id).await?)
    }

    /// Returns the body of a message, and its media type.
    ///
    /// # Errors
    /// As [`Service::message`].
    pub async fn message_body(&self, caller: &Caller, id: MessageId) -> Result<(String, Bytes), ServiceError> {
        let message = self.message(caller, id).await?;
        let body = self.exchanges()?.operations.body(id).await?.ok_or_else(|| no_message(id))?;
        Ok((message.head.content_type, body))
    }

    /// Lists messages with ids below `before`, newest first. A page that ends at the bound of rows can have fewer
    /// messages than `limit`, and a next one.
    ///
    /// # Errors
    /// The scope `operations:read` is missing.
    pub async fn messages(
        &self,
        caller: &Caller,
        filter: MessageFilter,
        before: Option<MessageId>,
        limit: usize,
    ) -> Result<ScanPage<StoredMessage, MessageId>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = self.exchanges()?.operations.message_page(filter.clone(), before, limit).await?;
        if found.items.is_empty() && found.next.is_none() && before.is_none() {
            self.check_known_ports(&filter).await?;
        }
        Ok(found)
    }

    /// Resumes suspended messages. A dry run counts them.
    ///
    /// # Errors
    /// The scope `operations:write` is missing.
    pub async fn resume_messages(
        &self,
        caller: &Caller,
        which: WhichMessages,
        mode: RunMode,
    ) -> Result<AffectedCounts, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.check_messages(caller, &which.filter).await?;
        let exchanges = self.exchanges()?;
        let filter = which.filter.clone();
        let selection = exchanges.operations.selection(which.filter, which.when.as_ref())?;
        let acted = match mode {
            RunMode::DryRun => exchanges.operations.count_resumable(&selection).await?,
            RunMode::Apply => exchanges.operations.resume(selection, caller.key()).await?,
        };
        if acted.messages == 0 {
            self.check_known_ports(&filter).await?;
        }
        if mode.is_dry() {
            return Ok(acted);
        }
        tracing::info!(messages = acted.messages, by = caller.key(), "messages were resumed");
        Ok(acted)
    }

    /// Ends messages; by default suspended ones. A dry run counts them.
    ///
    /// # Errors
    /// The scope `operations:write` is missing.
    pub async fn end_messages(
        &self,
        caller: &Caller,
        which: WhichMessages,
        mode: RunMode,
    ) -> Result<AffectedCounts, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.check_messages(caller, &which.filter).await?;
        let exchanges = self.exchanges()?;
        let filter = which.filter.clone();
        let selection = exchanges.operations.selection(which.filter, which.when.as_ref())?;
        let acted = match mode {
            RunMode::DryRun => exchanges.operations.count_endable(&selection).await?,
            RunMode::Apply => exchanges.operations.end(selection, caller.key()).await?,
        };
        if acted.messages == 0 {
            self.check_known_ports(&filter).await?;
        }
        if mode.is_dry() {
            return Ok(acted);
        }
        tracing::info!(messages = acted.messages, by = caller.key(), "messages were ended");
        Ok(acted)
    }

    /// Changes suspended messages; with `resume` they are resumed at once. A dry run checks the edit for each message.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; the predicate is invalid.
    pub async fn edit_messages(
        &self,
        caller: &Caller,
        which: WhichMessages,
        edit: &Edit,
        resume: bool,
        mode: RunMode,
    ) -> Result<(EditSummary, AffectedCounts), ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.check_messages(caller, &which.filter).await?;
        let exchanges = self.exchanges()?;
        let choice = exchanges.operations.selection(which.filter, which.when.as_ref())?;
        if mode.is_dry() {
            return Ok((exchanges.operations.check_edit(&choice, edit).await?, AffectedCounts::default()));
        }
        let edited = exchanges.operations.edit(&choice, edit, caller.key()).await?;
        tracing::info!(messages = edited.messages.len(), by = caller.key(), "messages were edited");
        let mut acted = AffectedCounts::default();
        if resume {
            for id in &edited.messages {
                let only = MessageFilter { id: Some(*id), ..MessageFilter::default() };
                let resumed = exchanges.operations.resume(only, caller.key()).await?;
                acted.messages += resumed.messages;
                acted.legs += resumed.legs;
            }
        }
        Ok((edited, acted))
    }

    /// Returns a message as it was before an operator edited it.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; it was not edited.
    pub async fn original_message(&self, caller: &Caller, id: MessageId) -> Result<OriginalMessage, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let original = self.exchanges()?.operations.original(id).await?;
        original.ok_or_else(|| ServiceError::Missing(format!("an edit of the message {id}")))
    }

    /// Returns the tracked bodies of a message, in order of time.
    ///
    /// # Errors
    /// The scope `operations:read` is missing.
    pub async fn tracked_bodies(&self, caller: &Caller, id: MessageId) -> Result<Vec<TrackedBody>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.operations.tracked(id).await?)
    }

    /// Finds messages by the value of a property, newest first.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the exchange does not run, or its messages are not found by this property.
    pub async fn find_messages(
        &self,
        caller: &Caller,
        query: MessageQuery,
        limit: usize,
    ) -> Result<MessagePage, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.operations.find_messages(query, limit).await?)
    }

    /// Tracking settings of the ports of an exchange, and the stored size of all tracked bodies.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the exchange does not exist.
    pub fn exchange_tracking(
        &self,
        caller: &Caller,
        exchange: &Name,
    ) -> Result<(Vec<PortTracking>, TrackingCounts), ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let exchanges = self.exchanges()?;
        Ok((exchanges.operations.tracking(exchange)?, exchanges.operations.tracking_counts()))
    }

    /// Sets the tracking of an exchange, of its ports of one name, or of the messages of a route; `None`: as the
    /// definition says.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; the port does not exist.
    pub async fn set_exchange_tracking(
        &self,
        caller: &Caller,
        exchange: &Name,
        place: TrackPlace,
        switch: Option<TrackSwitch>,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.exchanges()?.operations.set_tracking(exchange, place, switch).await?;
        tracing::info!(%exchange, by = caller.key(), "what is tracked was set");
        Ok(())
    }

    /// Lists the definitions of exchanges with secrets masked, and whether each is running.
    ///
    /// # Errors
    /// The scope `applications:read` is missing.
    pub async fn stored_exchanges(&self, caller: &Caller) -> Result<Vec<(StoredExchange, bool)>, ServiceError> {
        caller.needs(Scope::ApplicationsRead)?;
        let mut stored = self.exchanges()?.operations.stored().await?;
        stored.retain(|(stored, _)| caller.reaches(&Resource::Exchange(stored.name.clone())));
        let shown = |stored: StoredExchange| {
            let text = secrets::redact(Language::Exchange, &stored.text, tocsin_pipeline::option_secrets());
            StoredExchange { text, ..stored }
        };
        Ok(stored.into_iter().map(|(stored, runs)| (shown(stored), runs)).collect())
    }

    /// Returns one definition, and whether it is running.
    ///
    /// # Errors
    /// The scope `applications:read` is missing; there is none of this name.
    pub async fn stored_exchange(&self, caller: &Caller, name: &Name) -> Result<(StoredExchange, bool), ServiceError> {
        let all = self.stored_exchanges(caller).await?;
        all.into_iter().find(|(stored, _)| stored.name == *name).ok_or_else(|| no_exchange(name))
    }

    /// Returns the version of an exchange, for a conditional apply.
    ///
    /// # Errors
    /// The exchange does not exist.
    pub async fn exchange_version(&self, caller: &Caller, name: &Name) -> Result<u64, ServiceError> {
        caller.needs(Scope::ApplicationsRead)?;
        let stored = self.exchanges()?.operations.stored().await?;
        let found = stored.into_iter().find(|(stored, _)| stored.name == *name);
        Ok(found.ok_or_else(|| no_exchange(name))?.0.version.into())
    }

    /// Checks a definition, stores it and runs it; with `dry_run` only checks. Masked secrets keep their stored
    /// values. For callers who may not apply it, values of environment variables stay hidden: ports that contain a
    /// variable are not checked.
    ///
    /// # Errors
    /// The scope `applications:write` is missing, for a dry run `applications:read`; every problem in the definition;
    /// `Changed` if another version is stored than expected.
    pub async fn apply_exchange(
        &self,
        caller: &Caller,
        name: &Name,
        text: &str,
        expected: Expected,
        dry_run: bool,
    ) -> Result<AppliedExchange, ServiceError> {
        caller.needs(if dry_run { Scope::ApplicationsRead } else { Scope::ApplicationsWrite })?;
        let exchanges = self.exchanges()?;
        // A dry run changes nothing, and its caller may not be allowed to delay those who do.
        let one_at_a_time = match dry_run {
            true => None,
            false => Some(self.applying.clone().lock_owned().await),
        };
        let stored = exchanges.operations.stored().await?;
        let current = stored.iter().map(|(stored, _)| stored).find(|stored| stored.name == *name);
        let version = current.map_or(0, |current| current.version);
        if !expected.matches(version) {
            return Err(ServiceError::Changed(format!("the exchange `{name}`")));
        }
        let before = current.map(|current| current.text.as_str());
        let text = &secrets::restore(Language::Exchange, text, before.as_slice(), tocsin_pipeline::option_secrets());
        let operations = &exchanges.operations;
        let checked = match caller.needs(Scope::ApplicationsWrite) {
            Ok(()) => operations.compile(text).map(|compiled| operations.locations_not_allowed(text, &compiled)),
            Err(_) => operations.check_sealed(text).map(|()| Vec::new()),
        };
        let warnings = checked.map_err(ServiceError::Invalid)?;
        if let Some(other) = definition::named_exchange(text).filter(|found| found != name) {
            let message = format!("is `{other}`, but the address says `{name}`");
            return Err(ServiceError::Invalid(vec![Problem::new(Code::Mismatch, "exchange", message)]));
        }
        let created = before.is_none();
        let differences = definition::document_difference(before.unwrap_or_default(), text);
        if dry_run {
            return Ok(AppliedExchange { version, created, differences, warnings });
        }
        let stored = exchanges.operations.apply_holding(text, caller.key(), one_at_a_time).await?;
        tracing::info!(exchange = %name, version = stored.version, by = caller.key(), "an exchange was applied");
        Ok(AppliedExchange { version: stored.version, created, differences, warnings })
    }

    /// Checks a definition as [`Service::apply_exchange`] does, with every problem, and stores nothing. The name is that
    /// of the definition.
    ///
    /// # Errors
    /// The scope `applications:read` is missing; the spool does not answer.
    pub async fn check_exchange(&self, caller: &Caller, text: &str) -> Result<CheckedExchange, ServiceError> {
        caller.needs(Scope::ApplicationsRead)?;
        let Some(name) = definition::named_exchange(text) else {
            let problem = Problem::new(Code::Required, "exchange", "is missing: the name of the exchange");
            let operations = &self.exchanges()?.operations;
            let mut problems = operations.check_sealed(text).err().unwrap_or_default();
            if problems.is_empty() {
                problems.push(problem);
            }
            return Ok(CheckedExchange { name: None, problems, applied: None });
        };
        if !caller.reaches(&Resource::Exchange(name.clone())) {
            return Err(no_exchange(&name));
        }
        match self.apply_exchange(caller, &name, text, Expected::Any, true).await {
            Ok(applied) => Ok(CheckedExchange { name: Some(name), problems: Vec::new(), applied: Some(applied) }),
            Err(ServiceError::Invalid(problems)) => Ok(CheckedExchange { name: Some(name), problems, applied: None }),
            Err(error) => Err(error),
        }
    }

    /// Tests where a message of a receive port would go. Stores and sends nothing.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; there is no such exchange or receive port.
    pub async fn test_route(
        &self,
        caller: &Caller,
        exchange: &Name,
        port: &Name,
        incoming: IncomingMessage,
    ) -> Result<RouteTest, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.operations.test_route(exchange, port, incoming).await?)
    }

    /// Removes an exchange that has no open messages.
    ///
    /// # Errors
    /// The scope `applications:write` is missing; there is none, or it has open messages.
    pub async fn remove_exchange(&self, caller: &Caller, name: &Name) -> Result<(), ServiceError> {
        caller.needs(Scope::ApplicationsWrite)?;
        let one_at_a_time = self.applying.clone().lock_owned().await;
        self.exchanges()?.operations.remove_holding(name, one_at_a_time).await?;
        tracing::info!(exchange = %name, by = caller.key(), "an exchange was removed");
        Ok(())
    }

    /// Lists the send ports of an exchange.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the exchange does not exist.
    pub async fn exchange_ports(&self, caller: &Caller, exchange: &Name) -> Result<Vec<PortLoad>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.operations.ports(exchange).await?)
    }

    /// Lists the receive locations of an exchange.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the exchange does not exist.
    pub fn exchange_locations(&self, caller: &Caller, exchange: &Name) -> Result<Vec<LocationStatus>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.operations.locations(exchange)?)
    }

    /// Flow figures of an exchange, and what throttles it.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the exchange does not exist.
    pub async fn exchange_flow(&self, caller: &Caller, exchange: &Name) -> Result<FlowReport, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(self.exchanges()?.operations.flow(exchange).await?)
    }

    /// Throttling history of an exchange, newest first.
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
        Ok(self.exchanges()?.operations.flow_changes(exchange, limit).await?)
    }

    /// Sets the rate limit of incoming messages, for all receive ports or one, or of a send port; `None`: unlimited.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; the port does not exist.
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
            return Err(ServiceError::invalid(
                Code::Required,
                "port",
                "is missing: say which send port is to be slower",
            ));
        }
        self.exchanges()?.operations.set_rate(exchange, side, port, rate).await?;
        let rate = rate.map_or_else(|| "none".to_owned(), |rate| rate.to_string());
        tracing::info!(%exchange, side = side.word(), rate, by = caller.key(), "a rate was set");
        Ok(())
    }

    /// Sets the state of a send port; `None`: as the definition says.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; the port does not exist.
    pub async fn set_exchange_port(
        &self,
        caller: &Caller,
        exchange: &Name,
        port: &Name,
        state: Option<PortState>,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        Ok(self.exchanges()?.operations.set_port(exchange, port, state).await?)
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
            ReceiveError::IntakeClosed(_) => {
                ServiceError::Throttled { code: "operator", reason: text, retry_after: Duration::from_secs(60) }
            }
            ReceiveError::Closed { opens_in, .. } => {
                ServiceError::Throttled { code: "service_window", reason: text, retry_after: opens_in }
            }
            ReceiveError::TooLarge(_) => ServiceError::invalid(Code::TooLong, "", text),
            ReceiveError::Key => ServiceError::from(
                Problem::new(Code::InvalidFormat, "Idempotency-Key", text).param("format", "idempotency_key"),
            ),
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
            OperateError::NotRunning(name) => ServiceError::not_running(format!("the exchange `{name}`")),
            OperateError::Invalid(problems) => ServiceError::Invalid(problems),
            OperateError::InUse(name) => {
                ServiceError::InUse { what: format!("the exchange `{name}`"), by: "its open messages".to_owned() }
            }
            OperateError::Store(error) => error.into(),
        }
    }
}
