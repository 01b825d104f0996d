use std::net::IpAddr;

/// A mail domain and what is known of its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Domain of the sender (From), in ASCII form.
    pub domain: String,
    /// Domains of envelope senders, in ASCII form; none: the domain of the sender.
    pub return_domains: Vec<String>,
    /// DKIM keys.
    pub selectors: Vec<Selector>,
    /// Sending addresses; none: those of the hosts.
    pub addresses: Vec<IpAddr>,
    /// Mail servers that send, by name or address; without a public address: the mail exchangers of the domain.
    pub hosts: Vec<String>,
    /// Name of the sending server, for the records to publish.
    pub host_name: Option<String>,
}

/// A DKIM key by its name in DNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// Selector (`s=`).
    pub name: String,
    /// Signing domain (`d=`), in ASCII form.
    pub domain: String,
    /// The key record of the key that signs, if it is known.
    pub record: Option<String>,
}

/// The text is not a domain that mail can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainError(String);

impl std::fmt::Display for DomainError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` is not a domain, such as `example.org`", self.0)
    }
}

impl std::error::Error for DomainError {}

impl Subject {
    /// A domain of which nothing else is known.
    ///
    /// # Errors
    /// The text is not a domain.
    pub fn new(domain: &str) -> Result<Self, DomainError> {
        Ok(Subject {
            domain: ascii_domain(domain)?,
            return_domains: Vec::new(),
            selectors: Vec::new(),
            addresses: Vec::new(),
            hosts: Vec::new(),
            host_name: None,
        })
    }
}

/// The ASCII form of a domain (UTS 46), in lower case, without a final dot.
///
/// # Errors
/// The text is not a domain.
pub fn ascii_domain(text: &str) -> Result<String, DomainError> {
    let wrong = || DomainError(text.to_owned());
    let domain = idna::domain_to_ascii(text.trim().trim_end_matches('.')).map_err(|_| wrong())?;
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let is_domain = domain.len() <= 253 && domain.contains('.') && domain.split('.').all(is_label);
    let is_address = domain.parse::<IpAddr>().is_ok();
    if is_domain && !is_address { Ok(domain) } else { Err(wrong()) }
}
