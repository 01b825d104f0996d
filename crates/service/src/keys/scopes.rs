//! Scopes of API keys, and sets of them.

/// A scope of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Scope {
    /// Everything.
    Admin,
    /// Read applications, check definitions.
    ApplicationsRead,
    /// Apply and remove applications.
    ApplicationsWrite,
    /// Read subscribers, devices and subscriptions; export.
    SubscribersRead,
    /// Change subscribers, devices and subscriptions; import.
    SubscribersWrite,
    /// Submit events.
    EventsWrite,
    /// Read status, batches, notifications, traces and suspensions.
    OperationsRead,
    /// Resume, end, match again, probe.
    OperationsWrite,
    /// List, make and revoke keys.
    KeysWrite,
    /// Read the feeds of all subscribers, and inbox broadcasts.
    InboxRead,
    /// Mark feed items, issue inbox tokens, and send inbox broadcasts.
    InboxWrite,
    /// Report bounces and complaints, and nothing else: for the webhook of a provider.
    BouncesWrite,
    /// Read rows of collections, replica devices, and conflicts.
    SyncRead,
    /// Change rows, register devices for replicas, and stop them.
    SyncWrite,
    /// Send messages through the receive ports of exchanges, and read their replies.
    MessagesWrite,
    /// Request, confirm and resend consents, and nothing else: for a sign-up form.
    ConsentRequest,
    /// Store consents with their proof, confirm and withdraw them for others.
    ConsentWrite,
    /// Count audiences, and read broadcasts and their results.
    BroadcastsRead,
    /// Test, send, pause and cancel broadcasts.
    BroadcastsWrite,
    /// Read and export the audit log.
    AuditRead,
    /// Read users of the console and their sessions.
    UsersRead,
    /// Create, change and remove users of the console, and end their sessions.
    UsersWrite,
}

impl Scope {
    /// All of them.
    pub const ALL: [Scope; 22] = [
        Scope::Admin,
        Scope::ApplicationsRead,
        Scope::ApplicationsWrite,
        Scope::SubscribersRead,
        Scope::SubscribersWrite,
        Scope::EventsWrite,
        Scope::OperationsRead,
        Scope::OperationsWrite,
        Scope::KeysWrite,
        Scope::InboxRead,
        Scope::InboxWrite,
        Scope::BouncesWrite,
        Scope::SyncRead,
        Scope::SyncWrite,
        Scope::MessagesWrite,
        Scope::ConsentRequest,
        Scope::ConsentWrite,
        Scope::BroadcastsRead,
        Scope::BroadcastsWrite,
        Scope::AuditRead,
        Scope::UsersRead,
        Scope::UsersWrite,
    ];

    /// Canonical spelling.
    pub fn word(self) -> &'static str {
        match self {
            Scope::Admin => "admin",
            Scope::ApplicationsRead => "applications:read",
            Scope::ApplicationsWrite => "applications:write",
            Scope::SubscribersRead => "subscribers:read",
            Scope::SubscribersWrite => "subscribers:write",
            Scope::EventsWrite => "events:write",
            Scope::OperationsRead => "operations:read",
            Scope::OperationsWrite => "operations:write",
            Scope::KeysWrite => "keys:write",
            Scope::InboxRead => "inbox:read",
            Scope::InboxWrite => "inbox:write",
            Scope::BouncesWrite => "bounces:write",
            Scope::SyncRead => "sync:read",
            Scope::SyncWrite => "sync:write",
            Scope::MessagesWrite => "messages:write",
            Scope::ConsentRequest => "consent:request",
            Scope::ConsentWrite => "consent:write",
            Scope::BroadcastsRead => "broadcasts:read",
            Scope::BroadcastsWrite => "broadcasts:write",
            Scope::AuditRead => "audit:read",
            Scope::UsersRead => "users:read",
            Scope::UsersWrite => "users:write",
        }
    }
}

/// A set of scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Scopes(u32);

impl Scopes {
    /// Unknown words, such as scopes of a newer version, are ignored.
    pub(super) fn of(words: &[String]) -> Scopes {
        Scopes(Scope::ALL.into_iter().filter(|scope| words.iter().any(|word| word == scope.word())).map(bit).sum())
    }

    pub(super) fn of_all(scopes: &[Scope]) -> Scopes {
        Scopes(scopes.iter().fold(0, |bits, scope| bits | bit(*scope)))
    }

    /// Whether the scope is named, other than through `admin`.
    pub(super) fn has(self, scope: Scope) -> bool {
        self.0 & bit(scope) != 0
    }

    pub(super) fn contain(self, scope: Scope) -> bool {
        self.0 & (bit(scope) | bit(Scope::Admin)) != 0
    }

    /// The first scope of another key that these lack.
    pub(super) fn first_missing(self, other: Scopes) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| other.0 & bit(*scope) != 0 && !self.contain(*scope))
    }
}

fn bit(scope: Scope) -> u32 {
    1 << scope as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_holds_every_scope_and_others_only_their_own() {
        let admin = Scopes::of(&["admin".into()]);
        let publisher = Scopes::of(&["events:write".into(), "future:fly".into()]);
        for scope in Scope::ALL {
            assert!(admin.contain(scope));
            assert_eq!(publisher.contain(scope), scope == Scope::EventsWrite, "{}", scope.word());
        }
    }
}
