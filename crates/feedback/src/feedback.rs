//! The result of parsing: [`Feedback`] with one [`Report`] for each recipient.

use std::{fmt, str::FromStr};

pub use tocsin_model::feedback::Class;
use tocsin_model::mailbox::Mailbox;

/// Form of the feedback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// A delivery status notification (RFC 3464).
    DeliveryStatus,
    /// A feedback report of a mail provider (RFC 5965).
    FeedbackReport,
    /// A disposition notification (RFC 8098): a read receipt. It has no reports.
    Disposition,
    /// A bounce without a machine-readable part.
    Text,
    /// An automatic reply (RFC 3834).
    AutomaticReply,
    /// A mail of a person.
    Mail,
    /// An event of a provider's webhook.
    Provider,
}

/// Action of a delivery status notification (RFC 3464, 2.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Not delivered, and not tried again.
    Failed,
    /// Not delivered yet.
    Delayed,
    /// Delivered.
    Delivered,
    /// Passed to a server that reports nothing.
    Relayed,
    /// Delivered to a list.
    Expanded,
}

impl FromStr for Action {
    type Err = ();
    fn from_str(text: &str) -> Result<Action, ()> {
        // A comment can follow, such as `failed (bad destination mailbox)`.
        match text.split([' ', '(', ';']).next().unwrap_or_default().to_ascii_lowercase().as_str() {
            "failed" | "failure" => Ok(Action::Failed),
            "delayed" | "deferred" => Ok(Action::Delayed),
            "delivered" | "deliverable" => Ok(Action::Delivered),
            "relayed" => Ok(Action::Relayed),
            "expanded" => Ok(Action::Expanded),
            _ => Err(()),
        }
    }
}

/// Enhanced status code (RFC 3463), such as `5.1.1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EnhancedStatus {
    /// 2 for success, 4 for a persistent transient failure, 5 for a permanent failure.
    pub class: u8,
    /// The subject, such as 1 for addresses.
    pub subject: u16,
    /// The detail.
    pub detail: u16,
}

impl fmt::Display for EnhancedStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.class, self.subject, self.detail)
    }
}

impl FromStr for EnhancedStatus {
    type Err = ();
    fn from_str(text: &str) -> Result<EnhancedStatus, ()> {
        let mut numbers = text.split('.').map(|part| match part.len() {
            1..=3 => part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse::<u16>().ok()).flatten(),
            _ => None,
        });
        let mut next = || numbers.next().flatten().ok_or(());
        let (class, subject, detail) = (next()?, next()?, next()?);
        let is_whole = numbers.next().is_none();
        match class {
            2 | 4 | 5 if is_whole => Ok(EnhancedStatus { class: class as u8, subject, detail }),
            _ => Err(()),
        }
    }
}

/// The report about one recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The class.
    pub class: Class,
    /// Id of the row of the classification table that decided the class.
    pub rule: &'static str,
    /// The recipient.
    pub recipient: Option<Mailbox>,
    /// The action of a delivery status notification.
    pub action: Option<Action>,
    /// The enhanced status code.
    pub status: Option<EnhancedStatus>,
    /// The SMTP reply code.
    pub reply: Option<u16>,
    /// The text of the server: bounded, in one line, with control characters escaped.
    pub diagnostic: String,
    /// The server that refused the mail, in the form of [`Report::diagnostic`].
    pub remote_mta: Option<String>,
}

/// The content of one bounce, complaint, unsubscription or reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feedback {
    /// The form.
    pub format: Format,
    /// One report for each recipient, or one without a recipient; none for [`Format::Disposition`].
    pub reports: Vec<Report>,
    /// The server that reports, in the form of [`Report::diagnostic`].
    pub reporting_mta: Option<String>,
    /// `Message-ID` of the original mail, without angle brackets.
    pub message_id: Option<String>,
    /// Addresses of the original mail that can be return addresses, the best first: the envelope sender that a
    /// complaint names, `Return-Path` and the address of `List-Unsubscribe` in the copy.
    pub senders: Vec<Mailbox>,
    /// `Feedback-Type` of a feedback report, in lower case.
    pub feedback_type: Option<String>,
    /// Whether a limit left out a part of the input.
    pub is_truncated: bool,
}

impl Feedback {
    /// The class with the most effect among the reports.
    pub fn class(&self) -> Class {
        self.reports.iter().map(|report| report.class).max().unwrap_or(Class::Unknown)
    }
}
