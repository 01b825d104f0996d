//! Mail server for incoming mail: SMTP and LMTP sessions with limits, and a handler that accepts the mail.
//!
//! A [`Handler`] decides which recipients exist, and accepts mails. Its result is the reply to the client: a mail is
//! acknowledged only after [`Handler::accept`] has returned, so a handler that returns after a durable write loses no
//! mail. A client without a reply sends the mail again; the handler must detect duplicates.
//!
//! The server does not parse mails and does not relay them, whatever the recipients are.

pub mod envelope; // envelope of a mail, handler, error replies
pub mod patterns; // address patterns of recipients
pub mod serve; // listener and limits

mod data; // mail data after DATA
mod login; // AUTH PLAIN
mod session; // session state machine

#[doc(hidden)] // session without a socket, for fuzz targets
pub mod fuzzing; // a session without a socket, for fuzz targets

#[cfg(test)]
mod tests;

pub use envelope::{Envelope, ErrorReply, Handler};
pub use login::Login;
pub use patterns::Patterns;
pub use serve::{Access, Server, ServerLimits, ServerSettings};
