//! HTTP over a real socket, with a complete in-memory platform.

mod bad_input;
mod chronicles;
mod endpoints;
mod error_codes;
mod events;
mod hostile;
mod inbox;
mod limits;
mod merges;
mod newer_versions;
mod platform;
mod preview;
mod reference;
mod resends;
mod resources;
mod rules;
mod schedules;
mod scim;
mod scopes;
mod suppressions;
mod preferences;
mod transfer;
mod unsubscribe;
