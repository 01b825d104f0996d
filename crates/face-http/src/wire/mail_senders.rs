//! Identities of mail channels.

use serde::Serialize;
use tocsin_model::id::Name;
use tocsin_service::MailSender;
use utoipa::ToSchema;

/// Domains, hosts and public keys by which receivers authenticate the mail of a channel. All names are in ASCII form.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = MailSender)]
pub(crate) struct MailSenderBody {
    /// The channel.
    #[schema(value_type = String)]
    channel: Name,
    /// Domain of the sender (From).
    from_domain: String,
    /// Domain of the envelope sender, to which bounces return.
    return_domain: String,
    /// Mail servers that the channel connects to.
    hosts: Vec<String>,
    /// Name in EHLO, if the channel specifies one.
    #[serde(skip_serializing_if = "Option::is_none")]
    ehlo: Option<String>,
    /// DKIM keys.
    dkim: Vec<MailKeyBody>,
}

/// The public part of a DKIM key.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = MailKey)]
pub(crate) struct MailKeyBody {
    /// Selector.
    selector: String,
    /// Signing domain.
    domain: String,
    /// Text of the TXT record at `selector._domainkey.domain`.
    record: String,
}

impl MailSenderBody {
    pub(crate) fn new(channel: Name, sender: MailSender) -> Self {
        let keys = sender.keys.into_iter();
        let keys = keys.map(|key| MailKeyBody { selector: key.selector, domain: key.domain, record: key.record });
        MailSenderBody {
            channel,
            from_domain: sender.from_domain,
            return_domain: sender.return_domain,
            hosts: sender.hosts,
            ehlo: sender.ehlo,
            dkim: keys.collect(),
        }
    }
}
