//! LDAP directory of recipients: a tree of entries under an extensible schema, searched by filters.
//!
//! A subscriber is an entry, stored as its row in the records: a change of one is a change of the other, in the same
//! commit. Containers, groups and other objects are entries too. Protocol servers call [`Directory`]; it knows neither
//! wire formats nor SQL.

pub mod dn; // distinguished names (RFC 4514)
pub mod syntax; // attribute syntaxes and matching rules (RFC 4517)
pub mod schema; // attribute types and object classes (RFC 4512)
pub mod entry; // mapping of stored rows to entries
mod attribute_mapping; // mapping of attributes to the fields of a subscriber
pub mod filter; // search filters and their evaluation (RFC 4511)
mod plan; // query plan: index lookup or scan
pub mod access; // access control rules
pub mod password; // password hashing and lockout
pub mod policy; // password policy
mod bound_identity; // bound identities, and when a bind ends
mod url; // LDAP URLs and filter text (RFC 4516, RFC 4515)
mod membership; // members of a group, as a filter tests them

mod options; // configuration
mod entry_cache; // entry cache
mod tree; // name resolution and caches
mod directory; // the directory: find by name, transactions
mod groups; // groups, roles and `memberOf`
mod search; // search, page by page
mod children; // counts of direct children
mod selection; // requested attributes of a search
mod change; // add, modify, delete and rename
mod bind; // authentication: bind
mod commit_hook; // caches, index keys and references, kept current by each commit
mod feed; // change feed of entries
mod audit; // audit context of directory clients
pub mod ldif; // LDIF (RFC 2849)
mod transfer; // bulk import and export
mod import_check; // dry run of an import

pub mod ldap_error; // errors with LDAP result codes

pub use bind::BindResult;
pub use bound_identity::BoundIdentity;
pub use change::{Modification, ModifyType, Preconditions, RawAttribute, ReadEntries, Revision};
pub use children::ChildCount;
pub use directory::Directory;
pub use entry_cache::{CachedEntry, Rendering};
pub use feed::{ChangedEntry, Changes};
pub use filter::Scope;
pub use options::{Clock, Lifetimes, Options};
pub use password::is_password_state;
pub use search::{Search, is_quick};
pub use selection::Selection;
pub use transfer::{ExportPage, Imported};
