//! Signals in the text of a server: enhanced status code, SMTP reply code and the command that was refused.

use std::sync::LazyLock;

use regex::Regex;

use crate::feedback::EnhancedStatus;

/// The stage of the SMTP session in which a mail was refused (RFC 5321).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Before `MAIL`: greeting, `EHLO`, `STARTTLS`, `AUTH`.
    Connect,
    /// `MAIL FROM`.
    Mail,
    /// `RCPT TO`.
    Recipient,
    /// `DATA` and its end.
    Data,
}

/// Signals about one recipient.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signals {
    /// The enhanced status code.
    pub status: Option<EnhancedStatus>,
    /// The reply code.
    pub reply: Option<u16>,
    /// The refused command.
    pub stage: Option<Stage>,
    /// The text in comparable form.
    pub text: String,
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a pattern of this file")
}

/// An enhanced status code that is not a part of a longer number, such as an IP address.
static STATUS: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?:^|[^0-9.])([245]\.[0-9]{1,3}\.[0-9]{1,3})(?:[^0-9.]|\.?$|\.[^0-9])"));
/// A reply code at the start of a reply: before its text, or before an enhanced status code.
static REPLY: LazyLock<Regex> = LazyLock::new(|| regex(r"(?:^|[^0-9.])([45][0-7][0-9])(?:[ \-:,;.\])]|$)"));
/// The command in the words of servers.
static STAGE: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        r"(?:in reply to|in response to|>>>|most progress was|error following|smtp command|smtp:|like our(?: final)?)",
        r"\s*(?:the )?(?:end of )?['\x22<(]*(rcpt to|rcpt|mail from|mail|data|ehlo|helo|\.)(?:[^a-z_]|$)",
        r"|after (?:sending |pipelined )?(?:end of )?(rcpt|mail from|data|ehlo|helo|initial connection)",
        r"|[\[(](rcpt_to|mail_from|rcpt to|mail from|data)[\])]|(refused to talk to me|does not like recipient)"
    ))
});
/// The first refusal in a transcript.
static REFUSAL: LazyLock<Regex> = LazyLock::new(|| regex(r"<<< ?[45][0-9][0-9]"));

impl Signals {
    /// The signals of a text in comparable form.
    pub fn of(text: String) -> Signals {
        Signals { status: status(&text), reply: reply(&text), stage: stage(&text), text }
    }
}

/// The most specific enhanced status code of a text: the first whose subject is not 0, else the first.
pub(crate) fn status(text: &str) -> Option<EnhancedStatus> {
    let mut found: Option<EnhancedStatus> = None;
    let mut at = 0;
    // The separator behind a code can be that before the next one.
    while let Some(captures) = STATUS.captures_at(text, at) {
        let code = captures.get(1).expect("the group is not optional");
        at = code.end();
        let Ok(status) = code.as_str().parse::<EnhancedStatus>() else { continue };
        if status.class == 2 {
            continue;
        }
        if status.subject != 0 {
            return Some(status);
        }
        found = found.or(Some(status));
    }
    found
}

/// The first reply code of a text.
pub(crate) fn reply(text: &str) -> Option<u16> {
    REPLY.captures(text).and_then(|captures| captures[1].parse().ok())
}

/// The command that was refused: in a transcript the one before the first refusal, else the last one that the text
/// names.
pub(crate) fn stage(text: &str) -> Option<Stage> {
    let transcript = REFUSAL.find(text).map(|refusal| &text[..refusal.start()]);
    let found = STAGE.captures_iter(transcript.unwrap_or(text)).last()?;
    let command = (1..=4).find_map(|group| found.get(group))?;
    Some(match command.as_str() {
        "rcpt" | "rcpt to" | "rcpt_to" | "does not like recipient" => Stage::Recipient,
        "mail" | "mail from" | "mail_from" => Stage::Mail,
        "data" | "." => Stage::Data,
        _ => Stage::Connect,
    })
}
