//! Broadcasts: messages of people to an audience, through the same steps as events.
//!
//! A broadcast becomes an event of the reserved class. The matcher examines a part of the audience for each such event,
//! by a rule that exists for the broadcast only, and commits the notifications of the part together with the event for
//! the next part. Delivery formats them under an application that is derived from the draft. A broadcast can be paused
//! and cancelled in all steps at once: before a part is matched, before a notification is formatted, and before a
//! message leaves the queue of its channel.

mod signals; // paused and cancelled broadcasts, in memory
mod versions; // derived applications, compiled and cached
mod sender_filter; // the sender's filter over the parameters of subscriptions
mod compiled; // the version under which a broadcast is matched and formatted
mod audience; // subscriptions of an audience, and those that match
mod run_part; // matches a part of an audience
mod start; // accepts the events of broadcasts that are due
mod operations; // operations of callers: create, count, change

pub use operations::AudienceCount;
pub(crate) use run_part::{is_broadcast, run_part};
pub(crate) use signals::{BroadcastSignal, Hold, Signals};
pub(crate) use start::run;
pub use versions::CompiledBroadcast;
pub(crate) use versions::{BroadcastVersions, broadcast_of};
