//! Whom to tell, as a directory: entries in a tree, under a schema that grows, found by filters.
//!
//! A subscriber is an entry, and its entry is the row that the records keep of it: what is changed here is changed there,
//! and the other way round, in one commit. Containers, groups and other things are entries too. Faces speak to
//! [`Directory`]; it knows neither wire formats nor SQL.

pub mod dn; // how entries are called
pub mod syntax; // what values are, and when two are equal
pub mod schema; // what attributes and classes there are
pub mod entry; // what is stored becomes an entry that can be seen
mod person; // and the way back
pub mod filter; // which entries are meant
mod plan; // how they are found without looking at all
pub mod access; // who may do what
pub mod password; // what one proves oneself with
pub mod policy; // what is asked of it
mod bind; // a name and a password become an asker
mod standing; // which loses its rights with its entry or its password
mod url; // searches as text
mod groups; // and whom it stands for

mod directory; // names are resolved, entries kept at hand
mod kept; // what is at hand is true
mod search; // entries, page by page
mod change; // add, modify, delete, rename
mod feed; // what became of them
pub mod ldif; // entries as text
mod transfer; // many of them, in and out

pub mod refusal; // why a request was not done

pub use bind::Proven;
pub use change::{Act, Given, Images, Lifetimes, Modification, Revision, Terms, tells_of_password};
pub use directory::{Clock, Directory, Options};
pub use feed::{Changes, Followed};
pub use kept::{Rendering, Shown};
pub use search::{Scope, Search, is_quick};
pub use standing::BoundIdentity;
pub use transfer::Imported;
