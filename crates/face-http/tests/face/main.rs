//! The face over a real socket, in front of a whole platform in memory.

mod bad_input;
mod chronicles;
mod endpoints;
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
