//! Resources that an API key is limited to: applications, sources, exchanges, their ports, containers of subscribers.
//!
//! Authorization by scope and resource: the scope says what a key may do, the resources say where. A key without resources
//! is unlimited. A limited key reaches a thing only through a resource that contains it; every other thing is missing to it,
//! and a route that concerns all things is refused.

use std::{fmt, str::FromStr};

use tocsin_model::id::{EventBatchId, MessageId, Name, NotificationBatchId, SubscriptionId};

/// Maximum number of resources of one key.
pub const RESOURCES_MAX: usize = 64;

/// A resource that a key is limited to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Resource {
    /// An application, with all that belongs to it.
    Application(Name),
    /// A source of an application: events that are submitted in its name.
    Source(Name, Name),
    /// An exchange, with its ports and messages.
    Exchange(Name),
    /// A port of an exchange, with the messages that came through it.
    Port(Name, Name),
    /// A container of the directory, with the subscribers below it. The distinguished name is in normal form.
    Container(String),
}

impl Resource {
    /// Whether access to this resource includes access to the other.
    pub fn contains(&self, other: &Resource) -> bool {
        use Resource::{Application, Container, Exchange, Port, Source};
        match (self, other) {
            (Application(own), Application(name) | Source(name, _))
            | (Exchange(own), Exchange(name) | Port(name, _)) => own == name,
            (Source(..), Source(..)) | (Port(..), Port(..)) => self == other,
            (Container(own), Container(name)) => own == name || is_below(name, own),
            _ => false,
        }
    }
}

/// Whether a distinguished name in normal form is below another.
fn is_below(name: &str, above: &str) -> bool {
    let start = name.strip_suffix(above).and_then(|start| start.strip_suffix(','));
    // A comma after an odd number of backslashes belongs to a value.
    !above.is_empty()
        && start.is_some_and(|start| start.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0)
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Application(name) => write!(f, "application:{name}"),
            Resource::Source(application, name) => write!(f, "source:{application}/{name}"),
            Resource::Exchange(name) => write!(f, "exchange:{name}"),
            Resource::Port(exchange, name) => write!(f, "port:{exchange}/{name}"),
            Resource::Container(name) => write!(f, "container:{name}"),
        }
    }
}

/// The text names no resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a resource")]
pub struct NoResource(pub String);

/// The forms of resources, for a hint.
pub const RESOURCE_FORMS: &str = "resources are `application:NAME`, `source:APPLICATION/NAME`, `exchange:NAME`, \
                                  `port:EXCHANGE/NAME` and `container:DN`";

impl FromStr for Resource {
    type Err = NoResource;

    fn from_str(text: &str) -> Result<Resource, NoResource> {
        let wrong = || NoResource(text.to_owned());
        let name = |text: &str| text.parse::<Name>().map_err(|_| wrong());
        let pair = |text: &str| {
            let (first, second) = text.split_once('/').ok_or_else(wrong)?;
            Ok::<_, NoResource>((name(first)?, name(second)?))
        };
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        Ok(match kind {
            "application" => Resource::Application(name(rest)?),
            "source" => pair(rest).map(|(application, source)| Resource::Source(application, source))?,
            "exchange" => Resource::Exchange(name(rest)?),
            "port" => pair(rest).map(|(exchange, port)| Resource::Port(exchange, port))?,
            "container" if !rest.trim().is_empty() => Resource::Container(rest.trim().to_owned()),
            _ => return Err(wrong()),
        })
    }
}

/// A thing with an id of its own, which belongs to a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thing {
    /// Events of one submission.
    EventBatch(EventBatchId),
    /// Notifications of one rule and channel.
    NotificationBatch(NotificationBatchId),
    /// Work that waits for an operator.
    Suspension(u64),
    /// A subscription.
    Subscription(SubscriptionId),
    /// A message of an exchange.
    Message(MessageId),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a8_a_resource_contains_its_own_things_and_nothing_else() {
        let read = |text: &str| text.parse::<Resource>().expect(text);
        let all = [
            "application:shop",
            "application:shop2",
            "source:shop/web",
            "source:shop/feed",
            "exchange:shop",
            "exchange:orders",
            "port:orders/in",
            "port:orders/out",
            "container:ou=a,o=site",
            "container:ou=b,ou=a,o=site",
            "container:ou=x\\,ou=a,o=site",
            "container:o=site",
        ];
        let expected = [
            ("application:shop", "source:shop/web"),
            ("application:shop", "source:shop/feed"),
            ("exchange:orders", "port:orders/in"),
            ("exchange:orders", "port:orders/out"),
            ("container:ou=a,o=site", "container:ou=b,ou=a,o=site"),
            ("container:o=site", "container:ou=a,o=site"),
            ("container:o=site", "container:ou=b,ou=a,o=site"),
            ("container:o=site", "container:ou=x\\,ou=a,o=site"),
        ];
        for own in all {
            assert_eq!(read(own).to_string(), own);
            for other in all {
                let should = own == other || expected.contains(&(own, other));
                assert_eq!(read(own).contains(&read(other)), should, "{own} contains {other}");
            }
        }
        for wrong in
            ["", "shop", "application:", "application:Sh op", "port:orders", "source:shop/", "container: ", "x:y"]
        {
            assert!(wrong.parse::<Resource>().is_err(), "{wrong}");
        }
    }
}
