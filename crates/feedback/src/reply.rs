//! Automatic replies (RFC 3834), challenges and unsubscriptions by mail.

use crate::{feedback::Class, mime::Mail};

/// Phrases of mails that ask the sender to prove that a person wrote the mail, with the systems that send them.
const CHALLENGES: &[&str] = &[
    "challenge-response",
    "challenge response",
    "confirm that you are a human",
    "confirm you are human",
    "verify that you are human",
    "verify you are human",
    "verify your email address so",
    "your message is being held",
    "message is on hold",
    "waiting for your confirmation",
    "awaiting your verification",
    "please confirm your message",
    "confirm your message by replying",
    "request to be added to my",
    "add yourself to my",
    "approved senders list",
    "to deliver your message",
    "to have your message delivered",
    "your email requires verification",
    "your mail requires confirmation",
    "sender verification required",
    "spam arrest",
    "spamarrest",
    "boxbe",
    "tmda",
    "active spam killer",
];

/// Phrases of subjects of automatic replies in several languages.
const OUT_OF_OFFICE: &[&str] = &[
    "out of office",
    "out of the office",
    "out-of-office",
    "away from",
    "i am away",
    "is away",
    "away until",
    "on vacation",
    "on holiday",
    "vacation",
    "auto reply",
    "auto-reply",
    "autoreply",
    "auto response",
    "auto-response",
    "autoresponse",
    "auto:",
    "automatic reply",
    "automatic response",
    "automated reply",
    "automated response",
    "abwesenheit",
    "abwesend",
    "automatische antwort",
    "réponse automatique",
    "absence du bureau",
    "risposta automatica",
    "fuori sede",
    "respuesta automática",
    "fuera de la oficina",
    "resposta automática",
    "automatisch antwoord",
    "afwezig",
    "autosvar",
    "自動応答",
    "不在",
];

/// Whether a program sent the mail in answer to another (RFC 3834, and the fields of older programs).
pub(crate) fn is_automatic(mail: &Mail) -> bool {
    let is = |name: &str, values: &[&str]| {
        mail.fields.all(name).any(|value| {
            let value = value.to_ascii_lowercase();
            values.iter().any(|known| value.trim().starts_with(known))
        })
    };
    let submitted = mail.fields.first("auto-submitted").map(|value| value.trim().to_ascii_lowercase());
    submitted.is_some_and(|value| !value.starts_with("no"))
        || is("precedence", &["auto_reply", "auto-reply", "bulk", "junk", "list"])
        || is("x-auto-response-suppress", &["all", "oof", "autoreply", "dr", "rn", "nrn"])
        || is("return-path", &["<>"])
        || ["x-autoreply", "x-autorespond", "x-autoreply-from", "x-mail-autoreply", "x-vacation", "x-apple-vacation"]
            .iter()
            .any(|name| mail.fields.first(name).is_some_and(|value| !value.trim().eq_ignore_ascii_case("no")))
}

/// The class of a mail that is neither a report nor a bounce, with the id of its row. Subject and text are in
/// comparable form.
pub(crate) fn class(mail: &Mail, subject: &str, text: &str) -> (Class, &'static str) {
    let has = |phrases: &[&str], text: &str| phrases.iter().any(|phrase| text.contains(phrase));
    let is_automatic = is_automatic(mail);
    let start = crate::excerpt::start(text, 2_000);
    if has(CHALLENGES, subject) || (has(CHALLENGES, start) && (is_automatic || subject.contains("re:"))) {
        return (Class::Challenge, "reply.challenge");
    }
    // Mail programs send unsubscriptions automatically, with this subject of `List-Unsubscribe`.
    if is_automatic && matches!(subject.trim(), "unsubscribe" | "opt-out") {
        return (Class::Unsubscribe, "reply.unsubscribe");
    }
    if has(OUT_OF_OFFICE, subject) || is_automatic {
        return (Class::OutOfOffice, "reply.automatic");
    }
    match is_unsubscription(subject) || (subject.trim().is_empty() && is_unsubscription(first_line(text))) {
        true => (Class::Unsubscribe, "reply.unsubscribe"),
        false => (Class::Unknown, "reply.person"),
    }
}

fn first_line(text: &str) -> &str {
    crate::excerpt::start(text.trim(), 40)
}

/// Whether a text begins with the word for withdrawal in one of the languages of the pages.
fn is_unsubscription(text: &str) -> bool {
    let text = text.trim();
    let text = text.strip_prefix("re:").map_or(text, str::trim_start);
    let words = [
        "unsubscribe",
        "remove me",
        "stop",
        "opt-out",
        "opt out",
        "abmelden",
        "abbestellen",
        "désabonner",
        "desabonner",
    ];
    words.iter().any(|word| {
        text.strip_prefix(word).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()) && rest.len() < 60)
    })
}
