//! Endpoints of devices whose recent attempts have all failed, and devices disabled for that.

use tocsin_model::{
    id::{Name, SubscriberId},
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_store::records::{EndpointKey, FailingEndpoint};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    known::Part,
    page::{Page, cursor},
};

/// Rows examined per page; a page that is not full may have a next one.
const SCANNED_ROWS_MAX: usize = 10_000;

/// State of a failing endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Failing, for a short time.
    Failing,
    /// Failing for half the time after which its device is disabled.
    Warned,
    /// Its device was disabled.
    Disabled,
}

impl State {
    /// All states.
    pub const ALL: [State; 3] = [State::Failing, State::Warned, State::Disabled];

    /// Name of the state.
    pub fn word(self) -> &'static str {
        match self {
            State::Failing => "failing",
            State::Warned => "warned",
            State::Disabled => "disabled",
        }
    }

    fn of(endpoint: &FailingEndpoint) -> State {
        match endpoint {
            endpoint if endpoint.disabled_at.is_some() => State::Disabled,
            endpoint if endpoint.warned_at.is_some() => State::Warned,
            _ => State::Failing,
        }
    }
}

/// Filter of endpoints; all conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndpointFilter {
    /// Restricts to this application.
    pub application: Option<Name>,
    /// Restricts to this channel.
    pub channel: Option<Name>,
    /// Only in this state.
    pub state: Option<State>,
}

/// An endpoint whose recent attempts have all failed.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Application that sends to it.
    pub application: Name,
    /// The channel.
    pub channel: Name,
    /// Owner of the device.
    pub subscriber: Option<SubscriberId>,
    /// The device.
    pub device: Option<Name>,
    /// Address.
    pub address: String,
    /// `failing`, `warned` or `disabled`.
    pub state: State,
    /// Time of the first failure.
    pub failing_since: Timestamp,
    /// Time of the last failure; up to an hour old.
    pub last_failure: Timestamp,
    /// Number of failures by then.
    pub failures: u64,
    /// Last failure reason.
    pub reason: String,
    /// Time of the warning that it will be disabled.
    pub warned_at: Option<Timestamp>,
    /// Time at which its device was disabled.
    pub disabled_at: Option<Timestamp>,
}

impl From<FailingEndpoint> for Document {
    fn from(found: FailingEndpoint) -> Self {
        Document {
            state: State::of(&found),
            application: found.key.application,
            channel: found.key.channel,
            subscriber: found.subscriber,
            device: found.device,
            address: found.key.address,
            failing_since: found.since,
            last_failure: found.last,
            failures: found.failures,
            reason: found.reason,
            warned_at: found.warned_at,
            disabled_at: found.disabled_at,
        }
    }
}

impl Service {
    /// Lists failing endpoints, by application, channel and address.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or `after` is no cursor.
    pub async fn endpoints(
        &self,
        caller: &Caller,
        filter: &EndpointFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Document>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let is_first = after.is_none();
        let after = after.map(key_of).transpose()?;
        let found = self.recipient_store.failing_endpoints(after.as_ref(), SCANNED_ROWS_MAX).await?;
        let is_last = found.len() < SCANNED_ROWS_MAX;
        let reached = found.last().map(|last| last.key.clone());
        let is_match = |found: &FailingEndpoint| {
            filter.application.as_ref().is_none_or(|application| found.key.application == *application)
                && filter.channel.as_ref().is_none_or(|channel| found.key.channel == *channel)
                && filter.state.is_none_or(|state| State::of(found) == state)
        };
        let mut items: Vec<FailingEndpoint> = found.into_iter().filter(is_match).collect();
        let next = match items.len() > limit {
            true => {
                items.truncate(limit);
                items.last().map(|last| last.key.clone())
            }
            false => reached.filter(|_| !is_last),
        };
        if items.is_empty() && is_first {
            self.check_known(filter.application.as_ref(), &[(Part::Channel, filter.channel.as_ref())]).await?;
        }
        Ok(Page { items: items.into_iter().map(Document::from).collect(), next: next.map(|key| cursor_of(&key)) })
    }
}

fn cursor_of(key: &EndpointKey) -> String {
    cursor(&format!("{}/{}/{}", key.application, key.channel, key.address))
}

fn key_of(text: &str) -> Result<EndpointKey, ServiceError> {
    let text: Option<String> = crate::page::key_of(Some(text))?;
    let mut parts = text.as_deref().unwrap_or_default().splitn(3, '/');
    let mut key = || {
        let (application, channel) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(EndpointKey { application, channel, address: parts.next()?.to_owned() })
    };
    key().ok_or_else(|| {
        ServiceError::from(
            Problem::new(Code::InvalidFormat, "after", "is not a cursor that a page of this list gave")
                .param("format", "cursor"),
        )
    })
}
