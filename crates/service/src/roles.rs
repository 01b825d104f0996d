//! Roles: named sets of scopes, for the people and programs that work with an installation.
//!
//! A role is a word at the making of a key; the key keeps the scopes. So a key never does more after an update than it
//! did before, and its scopes are all that there is to read about it. A user of the console keeps the roles: its scopes
//! are those of its roles at each request.

use crate::keys::Scope;

/// A named set of scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Role {
    /// Name.
    pub name: &'static str,
    /// Typical holders.
    pub about: &'static str,
    /// Scopes.
    pub scopes: &'static [Scope],
}

/// All roles, from least to most.
pub const ROLES: [Role; 15] = [
    Role { name: "publisher", about: "a program that submits events", scopes: &[Scope::EventsWrite] },
    Role { name: "bounce_reporter", about: "the webhook of a mail provider", scopes: &[Scope::BouncesWrite] },
    Role {
        name: "sign_up_form",
        about: "the server of a form by which people subscribe and confirm",
        scopes: &[Scope::ConsentRequest],
    },
    Role { name: "partner", about: "a system that talks to others through exchanges", scopes: &[Scope::MessagesWrite] },
    Role {
        name: "app_server",
        about: "the server of an app, which lets people subscribe, read their inbox and keep replicas",
        scopes: &[
            Scope::SubscribersRead,
            Scope::SubscribersWrite,
            Scope::InboxRead,
            Scope::InboxWrite,
            Scope::SyncRead,
            Scope::SyncWrite,
        ],
    },
    Role {
        name: "subscriber_admin",
        about: "keeps subscribers, devices, subscriptions and suppressions",
        scopes: &[Scope::SubscribersRead, Scope::SubscribersWrite, Scope::ConsentWrite],
    },
    Role {
        name: "analyst",
        about: "reads reports, batches and traces, and changes nothing",
        scopes: &[Scope::OperationsRead],
    },
    Role {
        name: "reader",
        about: "sees everything, and changes nothing",
        scopes: &[
            Scope::ApplicationsRead,
            Scope::SubscribersRead,
            Scope::OperationsRead,
            Scope::InboxRead,
            Scope::SyncRead,
            Scope::BroadcastsRead,
        ],
    },
    Role {
        name: "editor",
        about: "a person who sends broadcasts",
        scopes: &[Scope::ApplicationsRead, Scope::SubscribersRead, Scope::BroadcastsRead, Scope::BroadcastsWrite],
    },
    Role {
        name: "operator",
        about: "keeps it running: switches, suspended work, retention, sending again",
        scopes: &[Scope::ApplicationsRead, Scope::SubscribersRead, Scope::OperationsRead, Scope::OperationsWrite],
    },
    Role {
        name: "developer",
        about: "makes applications and exchanges, tries rules and templates, submits events to try them",
        scopes: &[
            Scope::ApplicationsRead,
            Scope::ApplicationsWrite,
            Scope::SubscribersRead,
            Scope::OperationsRead,
            Scope::EventsWrite,
        ],
    },
    Role {
        name: "auditor",
        about: "reads who changed what, and by which rights",
        scopes: &[Scope::ApplicationsRead, Scope::OperationsRead, Scope::UsersRead, Scope::AuditRead],
    },
    Role { name: "key_admin", about: "makes and revokes keys for what it may do itself", scopes: &[Scope::KeysWrite] },
    Role {
        name: "user_admin",
        about: "keeps the users of the console, for what it may do itself",
        scopes: &[Scope::UsersRead, Scope::UsersWrite],
    },
    Role { name: "admin", about: "everything, backups and the giving of every right too", scopes: &[Scope::Admin] },
];

/// The role of this name.
pub fn find_role(name: &str) -> Option<&'static Role> {
    ROLES.iter().find(|role| role.name == name)
}

/// The names of all roles, for a hint.
pub(crate) fn known_roles() -> String {
    let names: Vec<&str> = ROLES.iter().map(|role| role.name).collect();
    format!("roles are {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_roles_have_no_write_scopes_and_every_scope_is_in_a_role() {
        for name in ["analyst", "reader", "auditor"] {
            let role = find_role(name).expect("a role");
            assert!(role.scopes.iter().all(|scope| scope.word().ends_with(":read")), "{name}");
        }
        for scope in Scope::ALL {
            assert!(ROLES.iter().any(|role| role.scopes.contains(&scope)), "{}", scope.word());
        }
        for (at, role) in ROLES.iter().enumerate() {
            assert!(
                ROLES[..at].iter().all(|other| other.name != role.name && other.scopes != role.scopes),
                "{}",
                role.name
            );
        }
    }
}
