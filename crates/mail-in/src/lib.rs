//! Mail comes in: conversations in SMTP and LMTP, within bounds, and one question to whoever wants the mail.
//!
//! A [`Handler`] says which recipients there are, and takes mails. Its answer is the answer to the sender: a mail is said
//! to be taken only after [`Handler::take`] has returned, so whoever returns when it is durable loses none. A sender that
//! hears no answer sends the mail again; to know it again is for the handler.
//!
//! Knows nothing of what is in a mail, and sends none on: it is no relay, whatever the recipients are called.

pub mod envelope; // who sends to whom, and why not
pub mod patterns; // which recipients there are
pub mod serve; // the listener, and the bounds of all conversations

mod data; // the text after DATA
mod login; // AUTH PLAIN
mod session; // one conversation

#[doc(hidden)]
pub mod fuzzing; // a session without a socket, for fuzz targets

#[cfg(test)]
mod tests;

pub use envelope::{Envelope, Handler, Refusal};
pub use login::Login;
pub use patterns::Patterns;
pub use serve::{Access, Bounds, Server, Setting};
