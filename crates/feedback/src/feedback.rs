//! The result of parsing: [`Feedback`] with one [`Report`] for each recipient.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use tocsin_model::mailbox::Mailbox;

/// Class of a report: its effect on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Cause not recognized. It has no effect.
    Unknown,
    /// A positive report: delivered, relayed or expanded (RFC 3464, 2.3.3).
    Delivered,
    /// An automatic reply of an absent recipient. It has no effect.
    OutOfOffice,
    /// A request to the sender to prove that a person wrote the mail.
    Challenge,
    /// Refused because of reputation, authentication, content or rate: it concerns the sender, not the mailbox.
    Blocked,
    /// A failure that may pass: mailbox full, host unreachable, time exceeded.
    Soft,
    /// The mailbox or its domain does not exist, or accepts no mail at all.
    Hard,
    /// The recipient withdrew the subscription.
    Unsubscribe,
    /// The recipient reported the mail as spam.
    Complaint,
}

impl Class {
    /// All classes, those with the least effect first.
    pub const ALL: [Class; 9] = [
        Class::Unknown,
        Class::Delivered,
        Class::OutOfOffice,
        Class::Challenge,
        Class::Blocked,
        Class::Soft,
        Class::Hard,
        Class::Unsubscribe,
        Class::Complaint,
    ];

    /// Its name in tables, metrics and answers.
    pub fn word(self) -> &'static str {
        match self {
            Class::Unknown => "unknown",
            Class::Delivered => "delivered",
            Class::OutOfOffice => "out_of_office",
            Class::Challenge => "challenge",
            Class::Blocked => "blocked",
            Class::Soft => "soft",
            Class::Hard => "hard",
            Class::Unsubscribe => "unsubscribe",
            Class::Complaint => "complaint",
        }
    }
}

impl FromStr for Class {
    type Err = ();
    fn from_str(text: &str) -> Result<Class, ()> {
        Class::ALL.into_iter().find(|class| class.word() == text).ok_or(())
    }
}

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
