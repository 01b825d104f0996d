use std::time::Duration;

use tocsin_model::receipt::{Disposition, Reason, ReasonKind};

/// A reply of the server: RFC 5321, 4.2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    /// From 200 to 599.
    pub code: u16,
    /// Its text; its lines end in line feeds.
    pub text: String,
}

impl Reply {
    pub fn positive(&self) -> bool {
        self.code / 100 == 2
    }

    /// The server ends the session with this reply.
    pub fn closing(&self) -> bool {
        self.code == 421
    }

    /// Code and text in a line.
    pub fn words(&self) -> String {
        format!("{} {}", self.code, self.text.replace('\n', " "))
    }

    /// Why this reply stands in the way of the whole session.
    pub fn reason(&self, doing: &str) -> Reason {
        let kind = if self.wants_authentication() { ReasonKind::Authentication } else { ReasonKind::Answer };
        Reason::new(kind, format!("{doing}: {}", self.words()))
    }

    /// Whether it says, by its enhanced status code (RFC 3463), that nobody has the address.
    fn says_unknown(&self) -> bool {
        let status = self.text.split_whitespace().next().unwrap_or_default();
        matches!(status, "5.1.1" | "5.1.2" | "5.1.3" | "5.1.6" | "5.1.10")
    }

    fn wants_authentication(&self) -> bool {
        matches!(self.code, 454 | 530 | 534 | 535 | 538)
    }
}

/// Which of our commands a reply is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Mail,
    Recipient,
    Data,
    Content,
}

/// What a reply means for the mail.
pub(super) fn classify(stage: Stage, reply: &Reply) -> Disposition {
    let deferred =
        |kind| Disposition::Deferred { reason: Reason::new(kind, reply.words()), retry_after: None::<Duration> };
    match (reply.code, stage) {
        (200..=299, Stage::Content) => Disposition::Delivered { reply: reply.words() },
        // Our credentials are the trouble, not this mail.
        (530 | 534 | 535 | 538, _) => deferred(ReasonKind::Authentication),
        // Too many recipients for now: RFC 5321, 4.5.3.1.10.
        (552, Stage::Recipient) => deferred(ReasonKind::Answer),
        (500..=599, Stage::Recipient) if reply.says_unknown() => {
            Disposition::Refused { reason: Reason::new(ReasonKind::Bounced, reply.words()) }
        }
        (500..=599, _) => Disposition::Refused { reason: Reason::new(ReasonKind::Answer, reply.words()) },
        _ => deferred(ReasonKind::Answer),
    }
}

/// What the replies to MAIL, RCPT and DATA mean together, sent one by one or ahead of each other.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ruling {
    /// One for each recipient, in order; `None`: all of them are taken.
    pub recipients: Option<Vec<Fate>>,
    pub next: Next,
}

/// What the envelope decides about one recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// The reply to the content is theirs.
    Taken,
    /// Decided.
    Over(Disposition),
    /// Nothing was said about them, or that they are too many for one mail: they deserve another.
    Later,
}

/// How the session goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// The server waits for the content, for at least one recipient.
    Content,
    /// It takes nothing of this mail; the session goes on after clearing up.
    ClearUp(ClearUp),
    /// The server ends the session.
    Closing(Reason),
}

/// What leaves the server ready for the next mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClearUp {
    /// RSET forgets the envelope.
    Reset,
    /// DATA was accepted without a recipient: a single dot ends it (RFC 2920, 3.1).
    Dot,
    /// No safe way: the connection is given up.
    Hangup,
}

/// The replies to an envelope. Those to `count` recipients and to DATA are missing where the command was not sent because
/// of what came before, or not read because the server ends the session.
pub(super) fn rule(mail: &Reply, recipients: &[Reply], count: usize, data: Option<&Reply>) -> Ruling {
    if let Some(reply) = [mail].into_iter().chain(recipients).chain(data).find(|reply| reply.closing()) {
        let refused = |reply: &Reply| (mail.positive() && reply.code >= 500).then(|| classify(Stage::Recipient, reply));
        let fate = |reply: Option<&Reply>| reply.and_then(refused).map_or(Fate::Later, Fate::Over);
        let recipients = Some((0..count).map(|at| fate(recipients.get(at))).collect());
        return Ruling { recipients, next: Next::Closing(Reason::new(ReasonKind::Answer, reply.words())) };
    }
    let go = data.is_some_and(|data| data.code == 354);
    if go && mail.positive() && recipients.len() == count && recipients.iter().all(Reply::positive) {
        return Ruling { recipients: None, next: Next::Content };
    }
    if !mail.positive() {
        // With an accepted recipient a dot could deliver an empty mail.
        let clear_up = match (go, recipients.iter().any(Reply::positive)) {
            (true, true) => ClearUp::Hangup,
            (true, false) => ClearUp::Dot,
            (false, _) => ClearUp::Reset,
        };
        let over = Fate::Over(classify(Stage::Mail, mail));
        return Ruling { recipients: Some(vec![over; count]), next: Next::ClearUp(clear_up) };
    }
    let any = recipients.iter().any(Reply::positive);
    let fates = recipients.iter().map(|reply| match reply {
        reply if reply.positive() => Fate::Taken,
        // Too many for one mail (RFC 5321, 4.5.3.1.10): as some were taken, the others are not too many for the next.
        reply if any && matches!(reply.code, 452 | 552) => Fate::Later,
        reply => Fate::Over(classify(Stage::Recipient, reply)),
    });
    let mut fates: Vec<Fate> = fates.collect();
    fates.resize(count, Fate::Later);
    if !any {
        let clear_up = if go { ClearUp::Dot } else { ClearUp::Reset };
        return Ruling { recipients: Some(fates), next: Next::ClearUp(clear_up) };
    }
    if go {
        return Ruling { recipients: Some(fates), next: Next::Content };
    }
    let (disposition, clear_up) = match data {
        Some(data) if data.code >= 400 => (classify(Stage::Data, data), ClearUp::Reset),
        _ => {
            let words = data.map_or_else(String::new, Reply::words);
            let reason = Reason::new(ReasonKind::Answer, format!("this is no answer to DATA: {words}"));
            (Disposition::Deferred { reason, retry_after: None }, ClearUp::Hangup)
        }
    };
    for fate in fates.iter_mut().filter(|fate| **fate == Fate::Taken) {
        *fate = Fate::Over(disposition.clone());
    }
    Ruling { recipients: Some(fates), next: Next::ClearUp(clear_up) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replies by their codes: MAIL, the recipients, DATA; `-` where there is none.
    fn check(codes: &str, expected: &str) {
        let reply = |code: &str| Reply { code: code.parse().expect("a code"), text: "x".into() };
        let words: Vec<&str> = codes.split(' ').collect();
        let (mail, data) = (reply(words[0]), words[words.len() - 1]);
        let all = &words[1..words.len() - 1];
        let recipients: Vec<Reply> = all.iter().filter(|code| **code != "-").map(|code| reply(code)).collect();
        let data = (data != "-").then(|| reply(data));
        let ruling = rule(&mail, &recipients, all.len(), data.as_ref());
        let fates = ruling.recipients.unwrap_or_else(|| vec![Fate::Taken; all.len()]);
        let fates = fates.iter().map(|fate| match fate {
            Fate::Taken => "taken",
            Fate::Later => "later",
            Fate::Over(Disposition::Deferred { .. }) => "deferred",
            Fate::Over(Disposition::Refused { .. }) => "refused",
            Fate::Over(Disposition::Delivered { .. }) => "delivered",
        });
        let next = match ruling.next {
            Next::Content => "content".to_owned(),
            Next::ClearUp(how) => format!("{how:?}"),
            Next::Closing(_) => "closing".to_owned(),
        };
        assert_eq!(format!("{} -> {next}", fates.collect::<Vec<_>>().join(" ")), expected, "{codes}");
    }

    #[test]
    fn an_address_that_nobody_has_is_told_apart() {
        let kind = |code, text: &str| match classify(Stage::Recipient, &Reply { code, text: text.into() }) {
            Disposition::Refused { reason } => Some(reason.kind),
            _ => None,
        };
        assert_eq!(kind(550, "5.1.1 <a@b>: User unknown"), Some(ReasonKind::Bounced));
        assert_eq!(kind(556, "5.1.10 the domain takes no mail"), Some(ReasonKind::Bounced));
        assert_eq!(kind(550, "5.7.1 no 5.1.1 here"), Some(ReasonKind::Answer));
        assert_eq!(kind(550, "no such user"), Some(ReasonKind::Answer));
        assert_eq!(kind(450, "5.1.1 later"), None);
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
