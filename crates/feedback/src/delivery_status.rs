//! Delivery status notifications (RFC 3464, RFC 6533).

use tocsin_model::mailbox::Mailbox;

use crate::{
    addresses,
    classify::classify_with,
    excerpt::{comparable, excerpt, start},
    feedback::{Action, EnhancedStatus, Report},
    limits::Limits,
    mime::Fields,
    rules::Verdict,
    signals::{self, Signals},
};

/// Media types of the machine-readable part.
pub(crate) fn is_part(media_type: &str) -> bool {
    matches!(media_type, "message/delivery-status" | "message/global-delivery-status" | "text/delivery-status")
}

/// The fields of one recipient, or of the whole message.
pub(crate) struct Groups {
    /// Fields about the message.
    pub message: Fields,
    /// Fields about each recipient.
    pub recipients: Vec<Fields>,
    /// Whether there were more recipients than the limit.
    pub is_truncated: bool,
}

impl Groups {
    /// Splits the text of the part at its empty lines.
    pub fn of(text: &str, limits: &Limits) -> Groups {
        let mut groups = Groups { message: Fields::default(), recipients: Vec::new(), is_truncated: false };
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let length = rest.len();
            let (fields, after) = Fields::split(rest, limits);
            rest = if after.len() == length { crate::mime::split_line(after).1 } else { after };
            // Some servers send all groups without an empty line between them.
            for fields in fields.divided("final-recipient") {
                groups.add(fields, limits);
            }
        }
        groups
    }

    fn add(&mut self, fields: Fields, limits: &Limits) {
        let names = ["final-recipient", "original-recipient", "action", "status"];
        match names.iter().any(|name| fields.has(name)) {
            true if self.recipients.len() < limits.recipients_max => self.recipients.push(fields),
            true => self.is_truncated = true,
            false if self.message.is_empty() => self.message = fields,
            false => {}
        }
    }
}

/// The recipient of a group: the address that was sent to, else the one that failed after forwarding.
pub(crate) fn recipient(fields: &Fields) -> Option<Mailbox> {
    let names = ["original-recipient", "final-recipient", "x-actual-recipient"];
    names.iter().find_map(|name| fields.first(name).and_then(addresses::of_field))
}

/// The report of one group; `text` is that of the readable part about its recipient, in comparable form.
pub(crate) fn report(fields: &Fields, text: &str, limits: &Limits) -> Report {
    let action = fields.first("action").and_then(|action| action.parse::<Action>().ok());
    let declared = fields.first("status").and_then(declared_status);
    let diagnostic = fields.first("diagnostic-code").unwrap_or_default();
    // The type of the diagnostic, such as `smtp;`, is not part of its text.
    let diagnostic = match diagnostic.split_once(';') {
        Some((kind, text)) if !kind.trim().contains(' ') => text.trim(),
        _ => diagnostic,
    };
    let own = comparable(&addresses::without_addresses(start(diagnostic, limits.text_bytes_max)));
    let mut found = Signals::of(own);
    found.status = combined(declared, found.status);
    found.stage = found.stage.or_else(|| signals::stage(text));
    let mut verdict = classify_with(action, &found);
    if verdict.is_general || found.text.trim().is_empty() {
        verdict = with_text(action, &found, text).unwrap_or(verdict);
    }
    Report {
        class: verdict.class,
        rule: verdict.rule,
        recipient: recipient(fields),
        action,
        status: found.status.or_else(|| signals::status(text)),
        reply: found.reply.or_else(|| signals::reply(text)),
        diagnostic: excerpt(diagnostic, limits.diagnostic_bytes_max),
        remote_mta: fields.first("remote-mta").map(|mta| self::mta(mta, limits)),
    }
}

/// The verdict by the readable part, if its phrases decide.
fn with_text(action: Option<Action>, found: &Signals, text: &str) -> Option<Verdict> {
    let own = Signals::of(text.to_owned());
    let both = Signals {
        status: combined(found.status, own.status),
        reply: found.reply.or(own.reply),
        stage: found.stage.or(own.stage),
        text: own.text,
    };
    let verdict = classify_with(action, &both);
    (!verdict.is_general).then_some(verdict)
}

/// The code that says more: that of the server's reply, unless it has subject 0.
fn combined(declared: Option<EnhancedStatus>, replied: Option<EnhancedStatus>) -> Option<EnhancedStatus> {
    match (declared, replied) {
        (Some(declared), Some(replied)) if replied.subject == 0 && declared.subject != 0 => Some(declared),
        (declared, replied) => replied.or(declared),
    }
}

/// The code of `Status`, which can be followed by a comment.
fn declared_status(value: &str) -> Option<EnhancedStatus> {
    let code = value.trim().split([' ', '(', ';', ',']).next()?;
    code.parse().ok().or_else(|| signals::status(value))
}

/// The name of a server without its type.
pub(crate) fn mta(value: &str, limits: &Limits) -> String {
    let name = value.split_once(';').map_or(value, |(_, name)| name);
    excerpt(name, limits.diagnostic_bytes_max)
}
