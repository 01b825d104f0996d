//! Recognizes replies by which mailbox providers hold mail back: too many mails, too many sessions, or a sender whose
//! reputation blocks it for a while. Other temporary failures concern one mailbox or one mail.

use tocsin_model::receipt::{Disposition, ReasonKind};

use crate::flow::{lanes::Signal, provider_pace::HoldBack};

/// Texts of providers and of mail servers, in lower case, with their meaning; the first that a reply contains counts.
/// Sources: the postmaster pages of Google, Microsoft, Yahoo, Apple, 1&1 Mail & Media and Deutsche Telekom, and the
/// texts of Postfix and Exim.
static TEXTS: &[(&str, Option<HoldBack>)] = &[
    // One mailbox: its owner gets too much mail, or it is full.
    ("4.2.1 the user you are trying to contact is receiving mail", None),
    ("the email account that you tried to reach is over quota", None),
    ("mailbox full", None),
    ("over quota", None),
    ("quota exceeded", None),
    ("recipient thread limit exceeded", None),
    ("too many recipients", None),
    // Greylisting is of one sender and recipient, and ends by itself.
    ("greylist", None),
    ("graylist", None),
    ("postgrey", None),
    // Sessions.
    ("4.7.652", Some(HoldBack::Sessions)),
    ("too many concurrent", Some(HoldBack::Sessions)),
    ("too many connections", Some(HoldBack::Sessions)),
    ("too many sessions", Some(HoldBack::Sessions)),
    ("too many simultaneous", Some(HoldBack::Sessions)),
    ("maximum number of connections", Some(HoldBack::Sessions)),
    ("connection limit", Some(HoldBack::Sessions)),
    ("connection rate limit", Some(HoldBack::Sessions)),
    // Reputation: Yahoo's TS03 and TSS11, Microsoft's blocked ranges, and blocklists.
    ("[ts03]", Some(HoldBack::Blocked)),
    ("[tss11]", Some(HoldBack::Blocked)),
    ("permanently deferred", Some(HoldBack::Blocked)),
    ("temporarily blocked", Some(HoldBack::Blocked)),
    ("temporarily blacklisted", Some(HoldBack::Blocked)),
    ("ip reputation", Some(HoldBack::Blocked)),
    ("poor reputation", Some(HoldBack::Blocked)),
    ("bad reputation", Some(HoldBack::Blocked)),
    ("low reputation", Some(HoldBack::Blocked)),
    // Google: unusual rate, unauthenticated mail, closed connection.
    ("4.7.28", Some(HoldBack::Rate)),
    ("unusual rate of", Some(HoldBack::Rate)),
    ("has been rate limited", Some(HoldBack::Rate)),
    ("try again later, closing connection", Some(HoldBack::Rate)),
    // Microsoft.
    ("4.7.500", Some(HoldBack::Rate)),
    ("4.7.650", Some(HoldBack::Rate)),
    ("4.7.651", Some(HoldBack::Rate)),
    ("rp-001", Some(HoldBack::Rate)),
    ("rp-002", Some(HoldBack::Rate)),
    ("rp-003", Some(HoldBack::Rate)),
    // Yahoo.
    ("[ts01]", Some(HoldBack::Rate)),
    ("[ts02]", Some(HoldBack::Rate)),
    ("[tss", Some(HoldBack::Rate)),
    ("[ts0", Some(HoldBack::Rate)),
    ("unexpected volume or user complaints", Some(HoldBack::Rate)),
    // Any.
    ("rate limit", Some(HoldBack::Rate)),
    ("rate-limit", Some(HoldBack::Rate)),
    ("ratelimit", Some(HoldBack::Rate)),
    ("sending rate", Some(HoldBack::Rate)),
    ("message rate", Some(HoldBack::Rate)),
    ("throttl", Some(HoldBack::Rate)),
    ("too many messages", Some(HoldBack::Rate)),
    ("too many mails", Some(HoldBack::Rate)),
    ("too many emails", Some(HoldBack::Rate)),
    ("too much mail", Some(HoldBack::Rate)),
    ("too frequent", Some(HoldBack::Rate)),
    ("exceeded the maximum number of messages", Some(HoldBack::Rate)),
    ("limit of messages", Some(HoldBack::Rate)),
    ("message limit", Some(HoldBack::Rate)),
    ("mail send limit exceeded", Some(HoldBack::Rate)),
    ("temporarily deferred", Some(HoldBack::Rate)),
    ("temporarily deferring", Some(HoldBack::Rate)),
    ("slow down", Some(HoldBack::Rate)),
    ("server busy", Some(HoldBack::Rate)),
];

/// Kind of the hold-back in a reply, code and text; `None` if it holds no mail of this sender back.
pub(super) fn hold_back(reply: &str) -> Option<HoldBack> {
    // Only 421, 450, 451, 452 and 454 are replies about the sender or the load of the server.
    let code = reply.get(..3)?;
    if !matches!(code, "421" | "450" | "451" | "452" | "454") {
        return None;
    }
    let reply = reply.to_lowercase();
    TEXTS.iter().find(|(text, _)| reply.contains(text)).and_then(|(_, kind)| *kind)
}

/// The signal of a disposition about the mailbox provider of its recipient.
pub(super) fn signal_of(disposition: &Disposition) -> Signal {
    match disposition {
        Disposition::Delivered { .. } => Signal::Fine,
        Disposition::Deferred { reason, .. } if matches!(reason.kind, ReasonKind::Answer | ReasonKind::SoftBounced) => {
            match hold_back(&reason.text) {
                Some(kind) => Signal::HeldBack(kind, reason.text.clone()),
                None => Signal::Answered,
            }
        }
        // It was not sent.
        Disposition::Refused { reason }
            if matches!(reason.kind, ReasonKind::Address | ReasonKind::Expired | ReasonKind::Format) =>
        {
            Signal::Unasked
        }
        Disposition::Refused { .. } => Signal::Answered,
        Disposition::Deferred { .. } => Signal::Unasked,
    }
}

#[cfg(test)]
mod tests {
    use HoldBack::{Blocked, Rate, Sessions};

    use super::*;

    fn check(kind: Option<HoldBack>, replies: &[&str]) {
        for reply in replies {
            assert_eq!(hold_back(reply), kind, "{reply}");
        }
    }

    /// Replies as providers document or send them; lines joined.
    #[test]
    fn replies_that_hold_mail_back() {
        check(
            Some(Rate),
            &[
                "421 4.7.28 [192.0.2.1 15] Our system has detected an unusual rate of unsolicited mail originating from your \
                 IP address. To protect our users from spam, mail sent from your IP address has been temporarily rate limited.",
                "421 4.7.28 Gmail has detected an unusual rate of mail originating from your SPF domain [example.org 35]. To \
                 protect our users from spam, mail sent from your domain has been temporarily rate limited.",
                "421 4.7.30 Your email has been rate limited because DKIM authentication did not pass for this message.",
                "421 4.7.0 Try again later, closing connection. (EHLO) x-gsmtp",
                "451 4.7.500 Server busy. Please try again later from [192.0.2.1]. (S77714) [AM1PEPF1.example]",
                "421 RP-001 (COL004-MC1F2) Unfortunately, some messages from 192.0.2.1 weren't sent. Please try again. You \
                 have exceeded the rate limits.",
                "421 4.7.0 [TSS04] Messages from 192.0.2.1 temporarily deferred due to unexpected volume or user complaints - \
                 4.16.55.1; see https://postmaster.yahooinc.com/error-codes",
                "421 4.7.0 [TS01] Messages from 192.0.2.1 temporarily deferred due to user complaints - 4.16.55.1",
                "450 4.7.1 Error: too much mail from 192.0.2.1",
                "450 Requested mail action not taken: mailbox unavailable Mail send limit exceeded.",
                "452 4.2.0 Too many messages. Slow down.",
                "454 Throttling failure: Maximum sending rate exceeded.",
            ],
        );
        check(
            Some(Sessions),
            &[
                "421 4.7.0 mx.example.org Error: too many connections from 192.0.2.1",
                "421 Too many concurrent SMTP connections from this IP address; please try again later.",
                "451 4.7.652 The mail server [192.0.2.1] has exceeded the maximum number of connections. (S3115)",
            ],
        );
        check(
            Some(Blocked),
            &[
                "421 4.7.1 [TS03] All messages from 192.0.2.1 will be permanently deferred; Retrying will NOT succeed.",
                "451 4.7.650 The mail server [192.0.2.1] has been temporarily rate limited due to IP reputation. For e-mail \
                 delivery information see https://aka.ms/postmaster (S775)",
                "450 4.7.1 Client host temporarily blocked, poor reputation",
            ],
        );
    }

    #[test]
    fn other_temporary_failures_concern_one_mailbox_or_mail() {
        check(
            None,
            &[
                "450 4.2.1 The user you are trying to contact is receiving mail at a rate that prevents additional messages \
                 from being delivered. For more information, please visit https://support.google.com/mail/?p=ReceivingRate",
                "452 4.2.2 The email account that you tried to reach is over quota.",
                "432 4.3.2 STOREDRV.Deliver; recipient thread limit exceeded",
                "450 4.7.1 <a@b.example>: Recipient address rejected: Greylisted, see http://postgrey.example/help",
                "450 4.2.0 <a@b.example>: Recipient address rejected: mailbox busy",
                "451 4.3.0 Temporary lookup failure",
                "452 4.5.3 Too many recipients",
                "421 4.3.2 The server is shutting down",
                "550 5.7.1 Our system has detected an unusual rate of unsolicited mail",
                "250 2.0.0 no rate limit here",
                "",
            ],
        );
    }

    #[test]
    fn connection_failures_say_nothing_about_the_provider() {
        use tocsin_model::receipt::Reason;
        let deferred = |kind, text: &str| Disposition::Deferred { reason: Reason::new(kind, text), retry_after: None };
        assert_eq!(signal_of(&deferred(ReasonKind::Timeout, "no reply within 60 s")), Signal::Unasked);
        assert_eq!(signal_of(&deferred(ReasonKind::Authentication, "454 rate limit")), Signal::Unasked);
        assert_eq!(signal_of(&deferred(ReasonKind::Answer, "450 4.2.0 busy")), Signal::Answered);
        let held_back = "421 4.7.28 unusual rate of mail";
        assert_eq!(
            signal_of(&deferred(ReasonKind::Answer, held_back)),
            Signal::HeldBack(HoldBack::Rate, held_back.into())
        );
    }
}
