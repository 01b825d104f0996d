//! The classification table: codes and phrases of servers, each row with its class and its source.
//!
//! The rows are ordered; the first that matches decides. Phrases that name the cause precede codes, because servers
//! send general codes such as 5.7.1 and 550 for anything. Within the phrases those about the sender come first: a
//! server that refuses the sender says nothing reliable about the mailbox.
//!
//! A row of [`Class::Hard`] never matches a transient code (4yz, 4.y.z). Phrases are in lower case, with addresses
//! replaced by `@` and the paths of URLs removed. An ellipsis (`…`) in a phrase stands for any text.

use crate::{
    feedback::{Class, EnhancedStatus},
    signals::{Signals, Stage},
};

/// The result of the table: the class and the id of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The class.
    pub class: Class,
    /// The row.
    pub rule: &'static str,
    /// Whether the row is one of the last, which match a code without its meaning.
    pub is_general: bool,
}

/// A row of the table. Empty lists match anything.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The id, unique, as `group.name`.
    pub id: &'static str,
    /// The class.
    pub class: Class,
    /// Enhanced status codes and reply codes, one of which must be given. `*` stands for any number.
    pub codes: &'static [&'static str],
    /// Stages of the session, one of which must be known.
    pub stages: &'static [Stage],
    /// Phrases, one of which must be in the text.
    pub texts: &'static [&'static str],
    /// The document that defines the codes, or the servers that use the phrases.
    #[cfg_attr(not(test), allow(dead_code))]
    pub source: &'static str,
}

impl Rule {
    /// Whether the row matches.
    pub fn matches(&self, signals: &Signals) -> bool {
        let is_excluded = self.class == Class::Hard && is_transient(signals);
        !is_excluded
            && (self.codes.is_empty() || self.codes.iter().any(|code| has_code(signals, code)))
            && (self.stages.is_empty() || signals.stage.is_some_and(|stage| self.stages.contains(&stage)))
            && (self.texts.is_empty() || self.texts.iter().any(|text| has_phrase(&signals.text, text)))
    }

    /// The result of the row.
    pub fn verdict(&self) -> Verdict {
        Verdict { class: self.class, rule: self.id, is_general: self.id.starts_with("general.") }
    }
}

/// Whether the server says that a later attempt may succeed. The enhanced status code precedes the reply code.
fn is_transient(signals: &Signals) -> bool {
    match (signals.status, signals.reply) {
        (Some(status), _) => status.class == 4,
        (None, Some(reply)) => reply < 500,
        (None, None) => false,
    }
}

fn has_code(signals: &Signals, code: &str) -> bool {
    match code.contains('.') {
        true => signals.status.is_some_and(|status| is_status(status, code)),
        false => signals.reply.is_some_and(|reply| {
            let pattern = code.as_bytes();
            let digits = [reply / 100, reply / 10 % 10, reply % 10].map(|digit| b'0' + (digit % 10) as u8);
            pattern.iter().zip(digits).all(|(pattern, digit)| *pattern == b'*' || *pattern == digit)
        }),
    }
}

fn is_status(status: EnhancedStatus, pattern: &str) -> bool {
    let numbers = [u16::from(status.class), status.subject, status.detail];
    pattern.split('.').zip(numbers).all(|(pattern, number)| pattern == "*" || pattern.parse() == Ok(number))
}

fn has_phrase(text: &str, phrase: &str) -> bool {
    let mut rest = text;
    phrase.split('…').all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

const fn texts(id: &'static str, class: Class, texts: &'static [&'static str], source: &'static str) -> Rule {
    Rule { id, class, codes: &[], stages: &[], texts, source }
}

const fn codes(id: &'static str, class: Class, codes: &'static [&'static str], source: &'static str) -> Rule {
    Rule { id, class, codes, stages: &[], texts: &[], source }
}

/// Phrases for a mailbox that does not exist, which filters use as well.
const UNKNOWN_USER: &[&str] = &[
    "user unknown",
    "unknown user",
    "recipient unknown",
    "unknown address",
    "address unknown",
    "no such user",
    "no such person",
    "no such recipient",
    "no such mailbox",
    "no such address",
    "no mailbox here by that name",
    "no mailbox by that name",
    "no account by that name",
    "no mailbox found",
    "no mail box available",
    "not our user",
    "not our customer",
    "user not found",
    "user not known",
    "user not exist",
    "user does not exist",
    "user doesn't exist",
    "user doesn't have",
    "user is unknown",
    "user invalid",
    "unknown or illegal alias",
    "unknown local-part",
    "unknown local part",
    "mailbox not found",
    "mailbox unavailable",
    "mailbox is unavailable",
    "mailbox does not exist",
    "mailbox doesn't exist",
    "mailbox not available",
    "mailbox unknown",
    "unknown mailbox",
    "mailbox invalid",
    "invalid mailbox",
    "invalid recipient",
    "invalid user",
    "invalid address",
    "address invalid",
    "address does not exist",
    "address doesn't exist",
    "account does not exist",
    "account that you tried to reach does not exist",
    "account doesn't exist",
    "recipient does not exist",
    "recipient not found",
    "recipient address does not exist",
    "recipient is not local",
    "recipnotfound",
    "recipientnotfound",
    "recipient not exist",
    "recipient cannot be verified",
    "recipient address rejected: undeliverable address",
    "recipient address rejected: unknown",
    "address rejected @",
    "#5.1.0 address rejected",
    "is not a known user",
    "is not a valid mailbox",
    "is not a valid user",
    "not a valid recipient",
    "not a valid user",
    "not a local address",
    "is not a user",
    "is not an active address",
    "is not registered",
    "isn't a known",
    "not present in directory",
    "could not be found",
    "couldn't be found",
    "wasn't found at",
    "was not found",
    "no longer on server",
    "no longer valid",
    "no longer available",
    "no longer in use",
    "has moved, no forwarding address",
    "has been replaced by",
    "destination addresses were unknown",
    "inactive email address",
    "does not like recipient",
    "bad destination mailbox address",
    "bad address",
    "bad recipient",
    "unknown account",
    "this address no longer",
    "not exist in",
    "does not exist.",
    "doesn't have a … account",
    "nessun utente",
    "no existe",
    "unbekannter empfänger",
    "kein passendes postfach",
    "destinataire inconnu",
];

/// The table.
pub(crate) static RULES: &[Rule] = &[
    texts(
        "mailbox.refused",
        Class::Hard,
        &[
            "recipient address rejected: access denied",
            "@: recipient address rejected.",
            "the account or domain may not exist",
        ],
        "Microsoft 365 (5.4.1, directory-based edge blocking), au one, Exim of cPanel",
    ),
    texts(
        "mailbox.agent",
        Class::Soft,
        &["procmail: couldn't create", "couldn't create user output file"],
        "Postfix, Sendmail: the local delivery agent failed",
    ),
    texts(
        "sender.rate",
        Class::Blocked,
        &[
            "rate limit",
            "at a rate that",
            "frequency limited",
            "too many recipients",
            "too many connections",
            "too many messages",
            "too many mails",
            "throttl",
            "sending limit",
            "exceeded the max",
            "connection rate",
            "unexpected volume or user complaints",
            "daily message quota",
        ],
        "Postfix (450, 452 4.3.2), Gmail (4.2.1, 5.2.1), Yahoo (TSS04), Tencent QQ, GoDaddy",
    ),
    texts(
        "sender.listed",
        Class::Blocked,
        &[
            "blocked using",
            "spamhaus",
            "spamcop",
            "sorbs",
            "barracudacentral",
            "dnsbl",
            "rbl ",
            "blacklist",
            "black list",
            "blocklist",
            "block list",
            "blocked by",
            "has been blocked",
            "was blocked",
            "been temporarily blocked",
            "blocked - see",
            "refused - see",
            "ip address blocked",
            "banned sending ip",
            "bad sender ip",
            "ip source bloquee",
            "ip address you are using",
            "invalid ip for sending",
            "reputation",
            "open relay",
            "open proxy",
            "dynamic ip",
            "network not allowed",
            "client host rejected",
            "client host blocked",
            "not accepting connections",
            "refused to talk to me",
            "service refuse",
            "no access from mail server",
            "not currently accepting mail from your ip",
            "(bl)",
        ],
        "Postfix reject_rbl_client, Sendmail dnsbl, Microsoft 365 (5.7.606), Orange, La Poste, GMX, Proofpoint",
    ),
    texts(
        "sender.authentication",
        Class::Blocked,
        &[
            "dmarc",
            "dkim",
            " spf ",
            "spf record",
            "spf check",
            "unauthenticated",
            "authentication required",
            "authentication failed",
            "authrequired",
            "smtp authentication",
            "authentication checks failed",
            "authentication information",
            "sender verify failed",
            "sender verification",
            "purported responsible address",
            "reverse dns",
            "ptr record",
            "dns ptr",
            "ip name lookup failed",
            "cannot find your hostname",
            "cannot find your reverse hostname",
            "valid reverse dns",
            "rdns",
            "mismatches client ip",
            "not allowed to send mail from",
            "does not resolve",
            "unresolvable",
            "failed forward confirmed",
            "helo command rejected",
            "fcrdns",
        ],
        "RFC 7372; Gmail (5.7.26, 5.7.25), Microsoft 365 (5.7.509), Exim sender verify, Postfix reject_unknown_client",
    ),
    texts(
        "sender.rejected",
        Class::Blocked,
        &[
            "sender rejected",
            "sender address rejected",
            "sender was rejected",
            "name was rejected",
            "unroutable sender",
            "from: domain is invalid",
            "from a different address or alias",
            "not a member of this mailing list",
            "https://groups.google.com",
            "sender domain",
            "domain of sender address",
            "sender is not",
            "sender not ",
            "sender is spammer",
            "sender denied",
            "invalid sender",
            "sender invalid",
            "unverified sender",
            "emetteur invalide",
            "bad mailfrom",
            "batv",
            "null sender",
            "empty envelope sender",
            "returned mail not accepted",
            "is not a registered gateway user",
            "email address is not verified",
            "cannot send e-mail to yourself",
            "domain must exist",
            "administrative prohibition",
            "fraudulent sender",
            "mail from … refused",
        ],
        "Sendmail and Postfix (5.1.8), qmail, Amazon SES, Exim (administrative prohibition)",
    ),
    texts(
        "sender.relay",
        Class::Blocked,
        &[
            "relay access denied",
            "relaying denied",
            "relay denied",
            "not permitted to relay",
            "relaying not allowed",
            "unable to relay",
            "relay not permitted",
            "relaying is prohibited",
            "no relaying",
            "not configured to relay",
            "mail relay",
            "relaying prohibited",
            "relay prohibited",
            "isn't in my list of allowed rcpthosts",
        ],
        "Postfix, Sendmail, qmail, Exim: the server does not relay for this sender",
    ),
    texts(
        "content.spam",
        Class::Blocked,
        &[
            "spam",
            "unsolicited",
            "content rejected",
            "rejected by content",
            "virus",
            "malware",
            "bulk mail",
            "ube, id=",
            "phish",
            "mail rejete",
            "scored as",
        ],
        "SpamAssassin, Amavis, Barracuda, Orange (OFR_506), Google Groups",
    ),
    texts(
        "content.policy",
        Class::Blocked,
        &[
            "policy reasons",
            "policy violation",
            "by policy",
            "policy rejection",
            "security policies",
            "protocol violation",
            "access denied",
            "delivery not authorized",
            "not authorized",
            "notauthorized",
            "message not allowed",
            "message rejected",
            "header error",
            "headers too large",
            "multiple addresses in from",
            "messages with multiple",
            "rfc 5322",
            "rfc 2822",
            "not rfc",
            "duplicate header",
            "improper use of 8-bit data",
            "potential security issue",
            "potential security",
            "content presents a potential",
            "media error",
            "not accepted for policy",
            "only accepts mail from",
            "only accepting mail from",
            "requires that the sender",
            "denied",
        ],
        "Yahoo (5.7.9), Gmail (5.7.1, 5.7.0), Exchange (RESOLVER.RST.NotAuthorized), Mimecast",
    ),
    texts(
        "mailbox.full",
        Class::Soft,
        &[
            "mailbox full",
            "mailbox is full",
            "mailbox for user is full",
            "mail box full",
            "mailfolder is full",
            "inbox is full",
            "quota exceeded",
            "quotaexceeded",
            "quota exceed",
            "over quota",
            "overquota",
            "over the allowed quota",
            "exceeded storage",
            "exceeds quota",
            "exceeded his/her quota",
            "exceeded his quota",
            "exceeded the quota",
            "disk quota",
            "out of storage",
            "storage allocation",
            "not enough storage",
            "insufficient disk space",
            "insufficient system storage",
            "no space left",
            "mailbox size",
            "maildir … full",
            "boîte pleine",
            "boite du destinataire est pleine",
            "postfach ist voll",
            "casella piena",
            "buzon lleno",
        ],
        "RFC 3463 x.2.2; Gmail, Exchange, Dovecot, Courier",
    ),
    texts(
        "message.size",
        Class::Soft,
        &[
            "message too large",
            "message too big",
            "message size exceeds",
            "message length exceeds",
            "message is too large",
            "exceeds size limit",
            "exceeds the maximum",
            "exceeded maximum message size",
            "size limit",
            "too big",
        ],
        "RFC 3463 x.2.3 and x.3.4",
    ),
    texts(
        "mailbox.disabled",
        Class::Soft,
        &[
            "is disabled",
            "been disabled",
            "account disabled",
            "mailbox disabled",
            "disabled recipient",
            "been suspended",
            "is suspended",
            "temporarily locked",
            "temporary locked",
            "temporarily unavailable",
            "is frozen",
            "is inactive",
            "account is blocked",
            "mailbox is blocked",
            "compte du destinataire est bloque",
            "extended inactivity",
            "not currently accept",
            "message filtered",
            "recipient account is blocked",
            "refuse to receive",
            "refused due to recipient preferences",
            "user reject",
            "loop",
            "too many hops",
            "hop count",
        ],
        "RFC 3463 x.2.1; Gmail (DisabledUser), Yahoo, i.ua, docomo",
    ),
    texts(
        "system.error",
        Class::Soft,
        &[
            "transaction failed",
            "internal system error",
            "internal server error",
            "service currently unavailable",
            "local configuration error",
            "mail system error",
        ],
        "Outlook.com, SurfControl, Exchange: the server failed",
    ),
    Rule {
        id: "sender.stage",
        class: Class::Blocked,
        codes: &[],
        stages: &[Stage::Mail, Stage::Connect],
        texts: &[],
        source: "RFC 5321 4.3.2: the server refused the client or the sender before it saw a recipient",
    },
    texts(
        "domain.null_mx",
        Class::Hard,
        &[
            "null mx",
            "indicated no smtp service",
            "host does not accept mail",
            "domain does not accept mail",
            "does not accept mail",
            "doesn't receive email",
            "does not accept email",
            "not accepting network messages",
        ],
        "RFC 7504 and 7505",
    ),
    texts(
        "network.dns",
        Class::Soft,
        &[
            "malformed or unexpected name server reply",
            "host name lookup failure",
            "name service error … try again",
            "temporary lookup failure",
            "dns temporary",
            "dns error",
        ],
        "Postfix, Sendmail, Gmail: a failed look-up",
    ),
    texts(
        "domain.unknown",
        Class::Hard,
        &[
            "host unknown",
            "unknown host",
            "host not found",
            "host or domain name not found",
            "domain not found",
            "no such domain",
            "no such host",
            "domain name not found",
            "domain does not exist",
            "domain doesn't exist",
            "invalid domain",
            "bad destination system",
            "domain is not reachable",
            "name or service not known",
            "couldn't find any host",
            "no mx",
            "nxdomain",
            "unknown domain",
            "dns lookup failure: host",
            "all relevant mx records point to non-existent hosts",
            "domain name does not exist",
            "553 … does not exist",
        ],
        "RFC 3463 5.1.2; Postfix, Sendmail, Exim, qmail",
    ),
    texts(
        "mailbox.unknown",
        Class::Hard,
        &[
            "550 @: user unknown",
            "550: @: user unknown",
            "delivery error: dd this user doesn't have",
            "adresse destinataire invalide",
            "wasn't found at the destination domain",
            "requested action not taken: mailbox unavailable (-",
            "unknown user: ",
            "unknown recipient",
            "recipient name is not recognized",
            "invalid final delivery userid",
            "not listed in domino directory",
            "not listed in public name",
            "no valid recipients",
            "unrouteable address",
            "unroutable address",
            "recipient no longer on server",
            "address not found",
            "addresses were not found",
        ],
        "au (KDDI), Yahoo, Outlook.com, IMail, Exchange 5.5, Domino, Notes, Verizon, Exim, Gmail: no filter uses them",
    ),
    Rule {
        id: "mailbox.unknown_code",
        class: Class::Hard,
        codes: &["5.1.*"],
        stages: &[],
        texts: UNKNOWN_USER,
        source: "RFC 3463 3.2; Postfix, Sendmail, Exim, Exchange",
    },
    Rule {
        id: "mailbox.unknown_after_data",
        class: Class::Soft,
        codes: &[],
        stages: &[Stage::Data],
        texts: UNKNOWN_USER,
        source: "a recipient filter answers after DATA with the words of an unknown user: docomo, KDDI, au",
    },
    Rule {
        id: "mailbox.unknown_stage",
        class: Class::Hard,
        codes: &[],
        stages: &[Stage::Recipient],
        texts: UNKNOWN_USER,
        source: "RFC 5321 3.3; Postfix, Sendmail, Exim, qmail, Yahoo",
    },
    texts(
        "mailbox.unknown_unproven",
        Class::Soft,
        UNKNOWN_USER,
        "neither code 5.1.z nor a refused RCPT: the words can be those of a filter after DATA",
    ),
    texts(
        "time.expired",
        Class::Soft,
        &[
            "message expired",
            "queue.expired",
            "timed out",
            "time out",
            "timeout",
            "in the queue too long",
            "could not be delivered for",
            "could not deliver for",
            "retry time",
            "retry timeout",
            "delivery time expired",
            "giving up",
            "will be retried",
            "not yet received",
            "no need to resend",
            "do not need to resend",
            "unable to connect",
            "unable to contact",
            "connection refused",
            "connection reset",
            "connection dropped",
            "lost connection",
            "could not find a gateway",
            "no route to host",
            "network is unreachable",
            "host not reachable",
            "delivery delayed",
            "delivery is delayed",
            "warning: could not send",
            "deferred",
            "try again",
            "please try later",
            "temporar",
        ],
        "RFC 3463 x.4.1 and x.4.7; Sendmail, qmail, Exim, Exchange",
    ),
    // Codes of RFC 3463, RFC 5248 and the registry of enhanced status codes.
    codes(
        "code.address",
        Class::Hard,
        &["5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10"],
        "RFC 3463 3.2; RFC 7505 (5.1.10)",
    ),
    codes("code.sender_address", Class::Blocked, &["*.1.7", "*.1.8", "*.1.9"], "RFC 3463 3.2; RFC 3886 (x.1.9)"),
    codes("code.mailbox", Class::Soft, &["*.2.1", "*.2.2", "*.2.3", "*.2.4"], "RFC 3463 3.3"),
    codes("code.system", Class::Soft, &["*.3.1", "*.3.3", "*.3.4", "*.3.5", "*.3.6"], "RFC 3463 3.4"),
    codes("code.no_mail_service", Class::Hard, &["5.3.2"], "RFC 3463 3.4; RFC 7504"),
    codes("code.no_route", Class::Hard, &["5.4.4"], "RFC 3463 3.5: no such domain"),
    codes("code.network", Class::Soft, &["*.4.*"], "RFC 3463 3.5"),
    codes("code.content", Class::Blocked, &["*.6.*"], "RFC 3463 3.7"),
    codes("code.disabled", Class::Soft, &["*.7.13"], "RFC 5248 2.4; registry: user account disabled"),
    codes("code.security", Class::Blocked, &["*.7.*"], "RFC 3463 3.8; RFC 4954; RFC 7372"),
    codes("code.null_mx", Class::Hard, &["521", "556"], "RFC 7504"),
    codes("code.rejected", Class::Hard, &["542"], "MessageLabs: the recipient was rejected"),
    codes("general.full", Class::Soft, &["452", "552", "522"], "RFC 5321 4.2.3"),
    codes("general.status", Class::Soft, &["*.*.*"], "RFC 3463 2: a failure without a known cause"),
    codes("general.reply", Class::Soft, &["4**", "5**"], "RFC 5321 4.2.1: a failure without a known cause"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::classify::classify;

    /// A code of a pattern.
    fn sample(signals: &mut Signals, pattern: &str) {
        match pattern.contains('.') {
            true => {
                let mut parts = pattern.split('.');
                let mut next = |free: &str| parts.next().filter(|part| *part != "*").unwrap_or(free).to_owned();
                let text = format!("{}.{}.{}", next("5"), next("99"), next("99"));
                signals.status = Some(text.parse().expect("a code"));
            }
            false => signals.reply = Some(pattern.replace('*', "9").parse().expect("a code")),
        }
    }

    #[test]
    fn every_code_and_phrase_decides_by_its_own_row() {
        let mut shadowed = Vec::new();
        for rule in RULES {
            let texts = if rule.texts.is_empty() { &[""] } else { rule.texts };
            for text in texts {
                let text = text.replace('…', " x ");
                let mut signals = Signals { text, stage: rule.stages.first().copied(), ..Signals::default() };
                let mut check = |signals: &Signals, shown: &str| {
                    let found = classify(signals).rule;
                    if found != rule.id {
                        shadowed.push(format!("{}: `{shown}` is decided by {found}", rule.id));
                    }
                };
                match rule.codes.is_empty() {
                    true => check(&signals, &signals.text),
                    false => {
                        for code in rule.codes {
                            (signals.status, signals.reply) = (None, None);
                            sample(&mut signals, code);
                            check(&signals, code);
                        }
                    }
                }
            }
        }
        assert!(shadowed.is_empty(), "unreachable entries of the table:\n{}", shadowed.join("\n"));
    }

    #[test]
    fn rows_have_unique_ids_sources_and_comparable_phrases() {
        let ids: BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
        assert_eq!(ids.len(), RULES.len());
        for rule in RULES {
            assert!(!rule.source.is_empty(), "{} has no source", rule.id);
            let phrases: BTreeSet<&str> = rule.texts.iter().copied().collect();
            assert_eq!(phrases.len(), rule.texts.len(), "{} repeats a phrase", rule.id);
            for text in rule.texts {
                assert_eq!(crate::excerpt::comparable(text), *text, "{}", rule.id);
            }
        }
    }

    #[test]
    fn a_transient_code_is_never_hard() {
        for rule in RULES.iter().filter(|rule| rule.class == Class::Hard) {
            for text in rule.texts.iter().chain(&["x"]) {
                let transient =
                    Signals { status: "4.1.1".parse().ok(), text: (*text).to_owned(), ..Signals::default() };
                assert_ne!(classify(&transient).class, Class::Hard, "{text}");
                let reply = Signals { reply: Some(450), text: (*text).to_owned(), ..Signals::default() };
                assert_ne!(classify(&reply).class, Class::Hard, "{text}");
            }
        }
    }
}
