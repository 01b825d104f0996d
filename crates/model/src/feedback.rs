//! Delivery feedback: classes of reports about sent messages, and the entries of their log.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{
    id::{Name, NotificationId, SubscriberId},
    suppression::Target,
    time::Timestamp,
};

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

/// Time of a report within the delivery of its message. A success clears the soft counts of its own stage and of
/// those before: a relay that accepts a message proves nothing about the mailbox behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The reply of the server in the session that sent the message.
    Session,
    /// A report after a server had accepted the message.
    #[default]
    Report,
}

impl Stage {
    /// Its name in tables and answers.
    pub fn word(self) -> &'static str {
        match self {
            Stage::Session => "session",
            Stage::Report => "report",
        }
    }
}

impl FromStr for Stage {
    type Err = ();
    fn from_str(text: &str) -> Result<Stage, ()> {
        [Stage::Session, Stage::Report].into_iter().find(|stage| stage.word() == text).ok_or(())
    }
}

/// Entry of the feedback log: one report about a target. Target, class and key identify it; a repeated report is the
/// same entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedbackEntry {
    /// The address or device.
    pub target: Target,
    /// The class.
    pub class: Class,
    /// The notification, message or event that was reported.
    pub key: String,
    /// Time of the report.
    pub at: Timestamp,
    /// The stage.
    pub stage: Stage,
    /// Whether it counts toward the threshold of its class. A later success, or an operator who lifts the suppression,
    /// clears it.
    pub counts: bool,
    /// The effect, such as `counted 2 of 5` or `suppressed`.
    pub effect: String,
    /// The origin: `mail`, `session`, the name of a provider.
    pub origin: String,
    /// The text of the server or provider.
    pub detail: String,
    /// The enhanced status code (RFC 3463), or a provider's code.
    pub status: Option<String>,
    /// The notification, if known.
    pub notification: Option<NotificationId>,
    /// The subscriber and device, if known.
    pub device: Option<(SubscriberId, Name)>,
    /// End of its retention.
    pub expires_at: Timestamp,
}
