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

    fn words(&self) -> String {
        format!("{} {}", self.code, self.text.replace('\n', " "))
    }

    /// Why this reply stands in the way of the whole session.
    pub fn reason(&self, doing: &str) -> Reason {
        let kind = if self.wants_authentication() { ReasonKind::Authentication } else { ReasonKind::Answer };
        Reason::new(kind, format!("{doing}: {}", self.words()))
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
        (500..=599, _) => Disposition::Refused { reason: Reason::new(ReasonKind::Answer, reply.words()) },
        _ => deferred(ReasonKind::Answer),
    }
}

/// What the replies to MAIL, RCPT and DATA mean together, sent one by one or ahead of each other.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The server waits for the content.
    Content,
    /// It does not take this mail; the session goes on after clearing up.
    Not(Disposition, ClearUp),
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

/// `recipient` and `data` are missing if they were not sent because of what came before.
pub(super) fn verdict(mail: &Reply, recipient: Option<&Reply>, data: Option<&Reply>) -> Verdict {
    if let Some(reply) = [Some(mail), recipient, data].into_iter().flatten().find(|reply| reply.closing()) {
        return Verdict::Closing(Reason::new(ReasonKind::Answer, reply.words()));
    }
    let go = data.is_some_and(|data| data.code == 354);
    if !mail.positive() {
        // With an accepted recipient a dot could deliver an empty mail.
        let clear_up = match (go, recipient.is_some_and(Reply::positive)) {
            (true, true) => ClearUp::Hangup,
            (true, false) => ClearUp::Dot,
            (false, _) => ClearUp::Reset,
        };
        return Verdict::Not(classify(Stage::Mail, mail), clear_up);
    }
    let Some(recipient) = recipient else {
        return Verdict::Not(classify(Stage::Mail, mail), ClearUp::Hangup);
    };
    if !recipient.positive() {
        return Verdict::Not(classify(Stage::Recipient, recipient), if go { ClearUp::Dot } else { ClearUp::Reset });
    }
    match data {
        Some(_) if go => Verdict::Content,
        Some(data) if data.code >= 400 => Verdict::Not(classify(Stage::Data, data), ClearUp::Reset),
        _ => {
            let words = data.map_or_else(String::new, Reply::words);
            let reason = Reason::new(ReasonKind::Answer, format!("this is no answer to DATA: {words}"));
            Verdict::Not(Disposition::Deferred { reason, retry_after: None }, ClearUp::Hangup)
        }
    }
}
