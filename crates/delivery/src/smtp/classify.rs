use std::time::Duration;

use tocsin_feedback::{
    Class, EnhancedStatus,
    session::{self, Command},
};
use tocsin_model::receipt::{Disposition, Reason, ReasonKind};

use super::hold_back::hold_back;

/// A reply of the server: RFC 5321, 4.2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    /// From 200 to 599.
    pub code: u16,
    /// The text; its lines end in line feeds.
    pub text: String,
}

impl Reply {
    pub fn positive(&self) -> bool {
        self.code / 100 == 2
    }

    /// Whether the server ends the session with this reply.
    pub fn closing(&self) -> bool {
        self.code == 421
    }

    /// Code and text in one line.
    pub fn words(&self) -> String {
        format!("{} {}", self.code, self.text.replace('\n', " "))
    }

    /// The reason why the session cannot go on, from this reply.
    pub fn reason(&self, doing: &str) -> Reason {
        let kind = if self.wants_authentication() { ReasonKind::Authentication } else { ReasonKind::Answer };
        Reason::new(kind, format!("{doing}: {}", self.words()))
    }

    fn wants_authentication(&self) -> bool {
        matches!(self.code, 454 | 530 | 534 | 535 | 538)
    }
}

/// The command that a reply belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Mail,
    Recipient,
    Data,
    Content,
}

/// Classifies a reply to a command of one mail.
pub(super) fn classify(stage: Stage, reply: &Reply) -> Disposition {
    let deferred =
        |kind| Disposition::Deferred { reason: Reason::new(kind, reply.words()), retry_after: None::<Duration> };
    match (reply.code, stage) {
        (200..=299, Stage::Content) => Disposition::Delivered { reply: reply.words() },
        // The cause is our credentials, not this mail.
        (530 | 534 | 535 | 538, _) => deferred(ReasonKind::Authentication),
        // Too many recipients for now: RFC 5321, 4.5.3.1.10.
        (552, Stage::Recipient) => deferred(ReasonKind::Answer),
        (500..=599, _) => {
            Disposition::Refused { reason: Reason::new(refusal_kind(stage, &reply.words()), reply.words()) }
        }
        (_, Stage::Recipient) if is_mailbox_full_or_away(&reply.words()) => deferred(ReasonKind::SoftBounced),
        _ => deferred(ReasonKind::Answer),
    }
}

/// Whether a transient reply to RCPT is about the mailbox: not about the load of the server, its network, or the
/// sender.
fn is_mailbox_full_or_away(words: &str) -> bool {
    let status = words.split_whitespace().nth(1).and_then(|word| word.parse::<EnhancedStatus>().ok());
    let names_mailbox = match status {
        Some(status) => matches!(status.subject, 1 | 2),
        None => words.starts_with("450") || words.starts_with("452"),
    };
    names_mailbox && hold_back(words).is_none() && session::class(Command::Recipient, words) == Class::Soft
}

/// Kind of a permanent refusal, by the classification of feedback.
fn refusal_kind(stage: Stage, words: &str) -> ReasonKind {
    let command = match stage {
        // It concerns the sender.
        Stage::Mail => return ReasonKind::Answer,
        Stage::Recipient => Command::Recipient,
        Stage::Data | Stage::Content => Command::Data,
    };
    match session::class(command, words) {
        Class::Hard => ReasonKind::Bounced,
        Class::Soft => ReasonKind::SoftBounced,
        _ => ReasonKind::Answer,
    }
}

/// Result of an envelope: the replies to MAIL, RCPT and DATA together, with or without PIPELINING.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EnvelopeResult {
    /// One for each recipient, in order; `None`: all are accepted.
    pub recipients: Option<Vec<RecipientResult>>,
    pub next: NextStep,
}

/// Result of the envelope for one recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RecipientResult {
    /// Accepted; the reply to the content decides.
    Taken,
    /// Decided by the envelope.
    Over(Disposition),
    /// Not decided, or over the server's limit for one mail: send another mail.
    Later,
}

/// The next step of the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NextStep {
    /// The server waits for the content, for at least one recipient.
    Content,
    /// All recipients are rejected; the session goes on after this action.
    Abort(AbortAction),
    /// The server ends the session.
    Closing(Reason),
}

/// Action that aborts a mail so that the server is ready for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AbortAction {
    /// RSET discards the envelope.
    Reset,
    /// DATA was accepted without a recipient: a single dot ends it (RFC 2920, 3.1).
    Dot,
    /// No safe way: the connection is closed.
    Hangup,
}

/// Classifies the replies to an envelope. Replies to `count` recipients and to DATA are missing where the command was
/// not sent because of an earlier reply, or where the server ended the session.
pub(super) fn classify_envelope(
    mail: &Reply,
    recipients: &[Reply],
    count: usize,
    data: Option<&Reply>,
) -> EnvelopeResult {
    if let Some(reply) = [mail].into_iter().chain(recipients).chain(data).find(|reply| reply.closing()) {
        let refused = |reply: &Reply| (mail.positive() && reply.code >= 500).then(|| classify(Stage::Recipient, reply));
        let result =
            |reply: Option<&Reply>| reply.and_then(refused).map_or(RecipientResult::Later, RecipientResult::Over);
        let recipients = Some((0..count).map(|at| result(recipients.get(at))).collect());
        return EnvelopeResult { recipients, next: NextStep::Closing(Reason::new(ReasonKind::Answer, reply.words())) };
    }
    let go = data.is_some_and(|data| data.code == 354);
    if go && mail.positive() && recipients.len() == count && recipients.iter().all(Reply::positive) {
        return EnvelopeResult { recipients: None, next: NextStep::Content };
    }
    if !mail.positive() {
        // With an accepted recipient a dot could deliver an empty mail.
        let abort_action = match (go, recipients.iter().any(Reply::positive)) {
            (true, true) => AbortAction::Hangup,
            (true, false) => AbortAction::Dot,
            (false, _) => AbortAction::Reset,
        };
        let over = RecipientResult::Over(classify(Stage::Mail, mail));
        return EnvelopeResult { recipients: Some(vec![over; count]), next: NextStep::Abort(abort_action) };
    }
    let any = recipients.iter().any(Reply::positive);
    let results = recipients.iter().map(|reply| match reply {
        reply if reply.positive() => RecipientResult::Taken,
        // Over the limit for one mail (RFC 5321, 4.5.3.1.10): some were accepted, so the others may fit into the next
        // mail.
        reply if any && matches!(reply.code, 452 | 552) => RecipientResult::Later,
        reply => RecipientResult::Over(classify(Stage::Recipient, reply)),
    });
    let mut results: Vec<RecipientResult> = results.collect();
    results.resize(count, RecipientResult::Later);
    if !any {
        let abort_action = if go { AbortAction::Dot } else { AbortAction::Reset };
        return EnvelopeResult { recipients: Some(results), next: NextStep::Abort(abort_action) };
    }
    if go {
        return EnvelopeResult { recipients: Some(results), next: NextStep::Content };
    }
    let (disposition, abort_action) = match data {
        Some(data) if data.code >= 400 => (classify(Stage::Data, data), AbortAction::Reset),
        _ => {
            let words = data.map_or_else(String::new, Reply::words);
            let reason = Reason::new(ReasonKind::Answer, format!("this is not a valid reply to DATA: {words}"));
            (Disposition::Deferred { reason, retry_after: None }, AbortAction::Hangup)
        }
    };
    for result in results.iter_mut().filter(|result| **result == RecipientResult::Taken) {
        *result = RecipientResult::Over(disposition.clone());
    }
    EnvelopeResult { recipients: Some(results), next: NextStep::Abort(abort_action) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reply codes of MAIL, the recipients and DATA; `-` where there is none.
    fn check(codes: &str, expected: &str) {
        let reply = |code: &str| Reply { code: code.parse().expect("a code"), text: "x".into() };
        let words: Vec<&str> = codes.split(' ').collect();
        let (mail, data) = (reply(words[0]), words[words.len() - 1]);
        let all = &words[1..words.len() - 1];
        let recipients: Vec<Reply> = all.iter().filter(|code| **code != "-").map(|code| reply(code)).collect();
        let data = (data != "-").then(|| reply(data));
        let envelope_result = classify_envelope(&mail, &recipients, all.len(), data.as_ref());
        let results = envelope_result.recipients.unwrap_or_else(|| vec![RecipientResult::Taken; all.len()]);
        let results = results.iter().map(|result| match result {
            RecipientResult::Taken => "taken",
            RecipientResult::Later => "later",
            RecipientResult::Over(Disposition::Deferred { .. }) => "deferred",
            RecipientResult::Over(Disposition::Refused { .. }) => "refused",
            RecipientResult::Over(Disposition::Delivered { .. }) => "delivered",
        });
        let next = match envelope_result.next {
            NextStep::Content => "content".to_owned(),
            NextStep::Abort(how) => format!("{how:?}"),
            NextStep::Closing(_) => "closing".to_owned(),
        };
        assert_eq!(format!("{} -> {next}", results.collect::<Vec<_>>().join(" ")), expected, "{codes}");
    }

    #[test]
    fn unknown_addresses_are_distinguished_from_other_refusals() {
        let kind = |code, text: &str| match classify(Stage::Recipient, &Reply { code, text: text.into() }) {
            Disposition::Refused { reason } => Some(reason.kind),
            _ => None,
        };
        assert_eq!(kind(550, "5.1.1 <a@b>: User unknown"), Some(ReasonKind::Bounced));
        assert_eq!(kind(556, "5.1.10 the domain takes no mail"), Some(ReasonKind::Bounced));
        assert_eq!(kind(550, "5.7.1 no 5.1.1 here"), Some(ReasonKind::Answer));
        assert_eq!(kind(550, "no such user"), Some(ReasonKind::Bounced));
        assert_eq!(kind(552, "5.2.2 mailbox full"), None, "too many recipients for now");
        assert_eq!(kind(550, "5.2.2 mailbox full"), Some(ReasonKind::SoftBounced));
        assert_eq!(refusal_kind(Stage::Content, "550 5.1.1 no such user"), ReasonKind::Bounced);
        assert_eq!(refusal_kind(Stage::Mail, "550 5.1.1 no such user"), ReasonKind::Answer);
        assert_eq!(kind(450, "5.1.1 later"), None);
    }

    #[test]
    fn a_transient_reply_about_the_mailbox_is_distinguished_from_one_about_the_server() {
        let kind = |stage, code, text: &str| match classify(stage, &Reply { code, text: text.into() }) {
            Disposition::Deferred { reason, .. } => reason.kind,
            other => panic!("{other:?}"),
        };
        for (code, text, expected) in [
            (452, "4.2.2 mailbox full", ReasonKind::SoftBounced),
            (450, "4.2.1 mailbox disabled for now", ReasonKind::SoftBounced),
            (450, "4.1.1 unknown for now", ReasonKind::SoftBounced),
            (450, "mailbox busy", ReasonKind::SoftBounced),
            (451, "4.3.0 lookup failed", ReasonKind::Answer),
            (451, "try again", ReasonKind::Answer),
            (450, "4.7.1 greylisted", ReasonKind::Answer),
            (450, "4.2.1 The user is receiving mail at a rate limit", ReasonKind::Answer),
            (552, "4.5.3 too many recipients", ReasonKind::Answer),
        ] {
            assert_eq!(kind(Stage::Recipient, code, text), expected, "{code} {text}");
        }
        assert_eq!(kind(Stage::Content, 452, "4.2.2 mailbox full"), ReasonKind::Answer, "it names no recipient");
    }

    #[test]
    fn envelopes() {
        check("250 250 354", "taken -> content");
        check("250 250 550 450 250 354", "taken refused deferred taken -> content");
        check("250 250 452 552 354", "taken later later -> content");
        check("250 452 552 503", "deferred deferred -> Reset");
        check("250 550 550 354", "refused refused -> Dot");
        check("250 550 450 554", "refused deferred -> Reset");
        check("250 250 550 451", "deferred refused -> Reset");
        check("250 250 550 554", "refused refused -> Reset");
        check("250 250 250", "deferred -> Hangup");
        check("550 - - -", "refused refused -> Reset");
        check("451 503 503 503", "deferred deferred -> Reset");
        check("451 503 503 354", "deferred deferred -> Dot");
        check("451 250 503 354", "deferred deferred -> Hangup");
        check("421 - - -", "later later -> closing");
        check("250 550 421 - -", "refused later later -> closing");
        check("250 250 250 421", "later later -> closing");
        check("530 - -", "deferred -> Reset");
    }
}
