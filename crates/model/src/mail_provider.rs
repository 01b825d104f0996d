//! Mails to mailbox providers by day, for the warm-up of a sender.

/// Numbers of one day and provider. Days are counted from 1970-01-01, in UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderDay {
    /// The day.
    pub day: u32,
    /// Most mails of this day by the plan; `u64::MAX`: no limit.
    pub limit: u64,
    /// Recipients whose mail was accepted.
    pub sent: u64,
    /// Recipients whose mail the provider held back.
    pub held_back: u64,
}
