//! Switches: components that an operator paused or disabled, such as roles of the process, applications, event
//! classes, sources and channels. Rules have a list of their own, because what they miss is recorded
//! ([`RuleStop`](super::RuleStop)).

use std::{fmt, str::FromStr};

use tocsin_model::{id::Name, time::Timestamp};

/// Stage of the event flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Accepts events.
    Accept,
    /// Runs sources that fetch events.
    Sources,
    /// Matches events.
    Match,
    /// Delivers notifications.
    Deliver,
}

impl Role {
    /// All roles, in the order of the flow.
    pub const ALL: [Role; 4] = [Role::Accept, Role::Sources, Role::Match, Role::Deliver];

    /// Name of the role.
    pub const fn word(self) -> &'static str {
        match self {
            Role::Accept => "accept",
            Role::Sources => "sources",
            Role::Match => "match",
            Role::Deliver => "deliver",
        }
    }
}

/// Component that can be switched. Its text form is `role:match`, `application:stock` or `channel:stock/email`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// Stage of the event flow, for all applications.
    Role(Role),
    /// Application.
    Application(Name),
    /// Event class of an application.
    EventClass(Name, Name),
    /// Source of an application.
    Source(Name, Name),
    /// Channel of an application.
    Channel(Name, Name),
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Component::Role(role) => write!(f, "role:{}", role.word()),
            Component::Application(name) => write!(f, "application:{name}"),
            Component::EventClass(application, name) => write!(f, "event-class:{application}/{name}"),
            Component::Source(application, name) => write!(f, "source:{application}/{name}"),
            Component::Channel(application, name) => write!(f, "channel:{application}/{name}"),
        }
    }
}

/// The text names no component that can be switched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is nothing that can be switched; name `role:accept`, `role:sources`, `role:match`, `role:deliver`, \
     `application:NAME`, or `event-class:`, `source:` or `channel:` with `APPLICATION/NAME`"
)]
pub struct ComponentError(pub String);

impl FromStr for Component {
    type Err = ComponentError;

    fn from_str(text: &str) -> Result<Component, ComponentError> {
        let error = || ComponentError(text.to_owned());
        let (kind, rest) = text.split_once(':').ok_or_else(error)?;
        let name = |text: &str| text.parse::<Name>().map_err(|_| error());
        if kind == "role" {
            let role = Role::ALL.into_iter().find(|role| role.word() == rest);
            return role.map(Component::Role).ok_or_else(error);
        }
        if kind == "application" {
            return Ok(Component::Application(name(rest)?));
        }
        let (application, rest) = rest.split_once('/').ok_or_else(error)?;
        let (application, name) = (name(application)?, name(rest)?);
        match kind {
            "event-class" => Ok(Component::EventClass(application, name)),
            "source" => Ok(Component::Source(application, name)),
            "channel" => Ok(Component::Channel(application, name)),
            _ => Err(error()),
        }
    }
}

impl Component {
    /// Application of the component; `None`: all applications.
    pub fn application(&self) -> Option<&Name> {
        match self {
            Component::Role(_) => None,
            Component::Application(name)
            | Component::EventClass(name, _)
            | Component::Source(name, _)
            | Component::Channel(name, _) => Some(name),
        }
    }
}

/// State of a switched component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchState {
    /// Input waits.
    Paused,
    /// Input is refused, and stored work waits.
    Disabled,
}

impl SwitchState {
    /// Name of the state.
    pub const fn word(self) -> &'static str {
        match self {
            SwitchState::Paused => "paused",
            SwitchState::Disabled => "disabled",
        }
    }
}

/// Paused or disabled component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// Component.
    pub component: Component,
    /// State.
    pub state: SwitchState,
    /// Caller that set the switch.
    pub by: String,
    /// Reason.
    pub reason: String,
    /// Time of the switch.
    pub since: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn component_text_round_trips() {
        let texts = [
            "role:accept",
            "role:sources",
            "role:match",
            "role:deliver",
            "application:stock",
            "event-class:stock/trade",
            "source:stock/feed",
            "channel:stock/email",
        ];
        for text in texts {
            assert_eq!(text.parse::<Component>().map(|found| found.to_string()), Ok(text.to_owned()));
        }
        for text in
            ["", "match", "role:all", "application:", "application:A b", "channel:stock", "rule:a/b", "channel:a/b/c"]
        {
            assert!(text.parse::<Component>().is_err(), "{text}");
        }
    }
}
