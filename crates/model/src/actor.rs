//! Actor of a change: the key, user or command that made it.

use std::{fmt, str::FromStr, sync::Arc};

/// Actor of a change. Its text is `key:ID`, `user:NAME`, `subscriber:ID`, `local` or `system`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Actor {
    /// An API key, by its id.
    Key(Arc<str>),
    /// A user of the console, by name.
    User(Arc<str>),
    /// A subscriber, by its id: with an inbox token, a signed link or a device.
    Subscriber(Arc<str>),
    /// A command on the data folder, without a server.
    Local,
    /// The server itself.
    System,
}

impl fmt::Display for Actor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Key(id) => write!(out, "key:{id}"),
            Actor::User(name) => write!(out, "user:{name}"),
            Actor::Subscriber(id) => write!(out, "subscriber:{id}"),
            Actor::Local => out.write_str("local"),
            Actor::System => out.write_str("system"),
        }
    }
}

/// The text is not one of an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected `key:ID`, `user:NAME`, `subscriber:ID`, `local` or `system`")]
pub struct NoActor;

impl FromStr for Actor {
    type Err = NoActor;

    fn from_str(text: &str) -> Result<Actor, NoActor> {
        match text.split_once(':') {
            None if text == "local" => Ok(Actor::Local),
            None if text == "system" => Ok(Actor::System),
            Some((_, "")) | None => Err(NoActor),
            Some(("key", id)) => Ok(Actor::Key(id.into())),
            Some(("user", name)) => Ok(Actor::User(name.into())),
            Some(("subscriber", id)) => Ok(Actor::Subscriber(id.into())),
            Some(_) => Err(NoActor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_is_read_as_it_is_written() {
        for text in ["key:0a1b2c3d", "user:ada", "subscriber:a:b", "local", "system"] {
            assert_eq!(text.parse::<Actor>().map(|actor| actor.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "key", "key:", "robot:x", "locally"] {
            assert_eq!(text.parse::<Actor>(), Err(NoActor), "{text}");
        }
    }
}
