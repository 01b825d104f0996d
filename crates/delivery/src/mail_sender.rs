//! Identity of a mail channel: the domains, hosts and public keys by which receivers authenticate its mail.

/// Identity of a mail channel. All names are in ASCII form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailSender {
    /// Domain of the sender (From).
    pub from_domain: String,
    /// Domain of the envelope sender, to which bounces return.
    pub return_domain: String,
    /// Mail servers that the channel connects to.
    pub hosts: Vec<String>,
    /// Name in EHLO, if the channel specifies one.
    pub ehlo: Option<String>,
    /// DKIM keys.
    pub keys: Vec<MailKey>,
}

/// The public part of a DKIM key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailKey {
    /// Selector (`s=`).
    pub selector: String,
    /// Signing domain (`d=`).
    pub domain: String,
    /// Text of the TXT record with the public key.
    pub record: String,
}
