//! Delivery feedback: bounces, complaints, unsubscriptions and replies to sent mail, from mails and from the webhooks
//! of mail providers.
//!
//! Pure: no I/O, no clock, no store. Times and certificates are arguments, histories are values. The crate knows no
//! subscriber and no channel; it returns what a caller stores or does:
//!
//! 1. [`return_address`] makes the envelope sender of a mail (VERP) and verifies the recipient of what comes back. The
//!    result, [`VerifiedOrigin`](return_address::VerifiedOrigin), names the notification and the device.
//! 2. [`parse`] reads the mail itself: a [`Feedback`] with a [`Report`] for each recipient. It never fails and proves
//!    nothing, because anyone can write a mail.
//! 3. [`provider`] verifies the payload of a webhook and reads its events into the same [`Feedback`].
//! 4. [`policy`] counts reports of a device and returns the [`Decision`](policy::Decision). Its input,
//!    [`Evidence`](policy::Evidence), is made from a verified origin or a verified event only: an unsigned or forged
//!    return address suppresses nothing.
//!
//! # Classes
//!
//! [`Class`] is the effect on the device. Whether a bounce is hard follows from an ordered table of codes and phrases,
//! each row with its source. A server that refuses the sender (reputation, authentication, content, rate) yields
//! [`Class::Blocked`], which never suppresses a device. A transient code is never hard. An unknown user counts as hard
//! by an enhanced status code 5.1.z, by the refused command, or by a text that allows no other reading; some filters
//! answer with the same words after `DATA`.
//!
//! # Limits
//!
//! [`Limits`] bounds bytes, parts, depth, fields, recipients and texts; a result never exceeds them. Time grows in
//! proportion to the bytes that are read. Texts of others are one line without control characters.

mod limits; // limits of one mail or payload
mod excerpt; // bounded texts, and their form for comparisons
mod feedback; // the result: classes, codes, reports
mod addresses; // mailboxes in fields and texts
mod mime; // header fields and parts of a mail
mod signals; // codes and commands in the text of a server
mod rules; // the classification table
mod classify; // the class of signals by the table
pub mod session; // replies in the session that sends a mail
mod delivery_status; // RFC 3464
mod feedback_report; // RFC 5965
mod text_bounce; // bounces without a machine-readable part
mod reply; // automatic replies, challenges, unsubscriptions by mail
pub mod provider; // webhooks: SES, SendGrid, Mailgun, Postmark, Brevo
mod parse; // chooses the form of a mail
pub mod return_address; // signed return addresses
pub mod policy; // counts, thresholds, actions

pub use feedback::{Action, Class, EnhancedStatus, Feedback, Format, Report};
pub use limits::Limits;
pub use parse::parse;
