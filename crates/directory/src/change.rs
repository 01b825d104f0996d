//! Changes of entries: add, modify, delete and rename. Each change is one transaction.

mod values; // attributes and values, checked against the schema
mod rights; // access rights that a change needs
mod uniqueness; // unique login names and device addresses
mod preconditions; // preconditions, and the entry states returned
mod subscriber_id; // the id of a new subscriber
mod write; // the stored form of a changed entry
mod add; // add (RFC 4511, 4.7)
mod add_prepared; // add, prepared outside the writer thread
mod prepare; // the pure part of a modify
mod members; // modify of group members, without reading the whole group
mod modify; // modify (RFC 4511, 4.6)
mod modify_prepared; // modify, prepared outside the writer thread (optimistic concurrency)
mod password_change; // password changes, by owner or administrator (RFC 3062, policy of the subtree)
mod modify_and_rename; // modify and rename in one transaction
mod rename; // modify DN (RFC 4511, 4.9)
mod remove; // delete (RFC 4511, 4.8)
mod extend_schema; // schema extension through `cn=subschema`
mod referential_integrity; // referential integrity of groups and roles
mod dry_run; // dry run: all checks, no write
mod replace; // replacement of all user attributes
mod dynamic_entries; // dynamic entries (RFC 2589)

pub use modify_and_rename::Revision;
pub use preconditions::{Preconditions, ReadEntries};
pub use prepare::{Modification, ModifyType};
pub(crate) use uniqueness::LOGIN;
pub use values::RawAttribute;
