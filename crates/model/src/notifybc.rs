//! Collections of NotifyBC records, and the native form of its subscriptions.

use crate::id::{Name, SubscriberId};

/// Application of the native subscriptions.
pub const APPLICATION: &str = "notifybc";
/// Subscription class of the native subscriptions.
pub const CLASS: &str = "service_subscription";
/// Device of the native subscribers.
pub const DEVICE: &str = "main";
/// Start of the ids of native subscribers. The id of the record follows.
pub const SUBSCRIBER: &str = "notifybc-";

/// A collection of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collection {
    /// Subscriptions.
    Subscription,
    /// Notifications.
    Notification,
    /// Dynamic configurations.
    Configuration,
    /// Bounce records of addresses.
    Bounce,
    /// Administrators.
    Administrator,
    /// Access tokens of administrators. Their ids are the tokens.
    AccessToken,
    /// Password hashes of administrators.
    UserCredential,
    /// Feeds of services with the history of their items.
    Rss,
}

impl Collection {
    /// All collections.
    pub const ALL: [Collection; 8] = [
        Collection::Subscription,
        Collection::Notification,
        Collection::Configuration,
        Collection::Bounce,
        Collection::Administrator,
        Collection::AccessToken,
        Collection::UserCredential,
        Collection::Rss,
    ];

    /// The name of the model in messages: `Subscription`.
    pub fn model(self) -> &'static str {
        match self {
            Collection::Subscription => "Subscription",
            Collection::Notification => "Notification",
            Collection::Configuration => "Configuration",
            Collection::Bounce => "Bounce",
            Collection::Administrator => "Administrator",
            Collection::AccessToken => "AccessToken",
            Collection::UserCredential => "UserCredential",
            Collection::Rss => "Rss",
        }
    }

    /// The name of the collection in the database of NotifyBC: `subscription`.
    pub fn name(self) -> &'static str {
        match self {
            Collection::Subscription => "subscription",
            Collection::Notification => "notification",
            Collection::Configuration => "configuration",
            Collection::Bounce => "bounce",
            Collection::Administrator => "administrator",
            Collection::AccessToken => "AccessToken",
            Collection::UserCredential => "UserCredential",
            Collection::Rss => "rss",
        }
    }

    /// The collection with this name in the database of NotifyBC.
    pub fn from_name(name: &str) -> Option<Collection> {
        Collection::ALL.into_iter().find(|collection| collection.name() == name)
    }

    /// Whether properties outside of the schema are stored.
    pub fn is_open(self) -> bool {
        !matches!(self, Collection::Administrator | Collection::AccessToken | Collection::UserCredential)
    }
}

/// State of a subscription record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SubscriptionState {
    /// The owner of the address has not confirmed it.
    Unconfirmed,
    /// In force.
    Confirmed,
    /// Ended.
    Deleted,
}

impl SubscriptionState {
    /// Its spelling in records.
    pub fn word(self) -> &'static str {
        match self {
            SubscriptionState::Unconfirmed => "unconfirmed",
            SubscriptionState::Confirmed => "confirmed",
            SubscriptionState::Deleted => "deleted",
        }
    }
}

/// Id of the native subscriber of a subscription record.
///
/// # Errors
/// The text is no id of a record.
pub fn subscriber_id(record: &str) -> Result<SubscriberId, <SubscriberId as std::str::FromStr>::Err> {
    format!("{SUBSCRIBER}{record}").parse()
}

/// Name of the application, class or device: one of the constants above.
pub fn name(constant: &'static str) -> Name {
    constant.parse().expect("the constants are names")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_names_and_collections_have_one_spelling() {
        assert_eq!(
            [APPLICATION, CLASS, DEVICE].map(|constant| name(constant).to_string()),
            ["notifybc", "service_subscription", "main"]
        );
        let id = subscriber_id("5f2b6d6c8e7a4a0011c0ffee").expect("an id");
        assert_eq!(id.as_str(), "notifybc-5f2b6d6c8e7a4a0011c0ffee");
        assert!(subscriber_id("a/b").is_err());
        for collection in Collection::ALL {
            assert_eq!(Collection::from_name(collection.name()), Some(collection));
        }
        assert_eq!(Collection::from_name("feeds"), None);
    }
}
