//! What an operator has switched off: roles of the process, applications, event classes, sources and channels. Rules have
//! their own list, for what they miss is kept (see [`RuleStop`](super::RuleStop)).

use std::{fmt, str::FromStr};

use tocsin_model::{id::Name, time::Timestamp};

/// A part of the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Takes in events.
    Accept,
    /// Fetches events where they happen.
    Sources,
    /// Matches them.
    Match,
    /// Delivers notifications.
    Deliver,
}

impl Role {
    /// All of them, in the order of the flow.
    pub const ALL: [Role; 4] = [Role::Accept, Role::Sources, Role::Match, Role::Deliver];

    /// Its one word.
    pub const fn word(self) -> &'static str {
        match self {
            Role::Accept => "accept",
            Role::Sources => "sources",
            Role::Match => "match",
            Role::Deliver => "deliver",
        }
    }
}

/// What can be switched. Written as `role match`, `application stock`, `channel stock/email` with a colon in place of the
/// blank.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// A part of the flow, for all applications.
    Role(Role),
    /// An application.
    Application(Name),
    /// An event class of an application.
    EventClass(Name, Name),
    /// A source of an application.
    Source(Name, Name),
    /// A channel of an application.
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

/// The text names nothing that can be switched.
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
    /// Whose it is; `None`: it is for all applications.
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

/// How something is switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchState {
    /// What comes to it waits.
    Paused,
    /// What comes to it is refused, and what is there waits.
    Disabled,
}

impl SwitchState {
    /// Its one word.
    pub const fn word(self) -> &'static str {
        match self {
            SwitchState::Paused => "paused",
            SwitchState::Disabled => "disabled",
        }
    }
}

/// Something that is switched off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// What.
    pub component: Component,
    /// How.
    pub state: SwitchState,
    /// Who did it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_come_back_from_their_text() {
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
