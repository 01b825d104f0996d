//! Texts that developers and subscribers write: definitions, templates, schedules, dates, addresses.

use jiff::tz::TimeZone;
use tocsin_model::{
    date_text,
    definition::{self, parse_duration},
    mailbox::{Mailbox, comparable},
    schedule::Schedule,
    time::Timestamp,
};

/// Definitions of applications and exchanges in YAML, capacity profiles.
pub(crate) fn definition(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let environment = |name: &str| (name == "SET").then(|| "value".to_owned());
    for problems in [
        definition::read(text, &environment).err(),
        definition::read_exchange(text, &environment).err(),
        tocsin_capacity::read_profile(text).err(),
    ]
    .into_iter()
    .flatten()
    {
        assert!(!problems.is_empty() && problems.len() <= definition::PROBLEMS_MAX + 1, "{} problems", problems.len());
    }
    let _ = parse_duration(text);
}

/// A template in Jinja, in MJML and of a plain text.
pub(crate) fn template(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    tocsin_formatting::fuzzing::read_template(text);
}

/// A schedule: its text form parses to the same schedule, and its occurrences rise.
pub(crate) fn schedule(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(schedule) = Schedule::parse(text) else { return };
    let from = Timestamp::from_millis(1_795_000_000_000);
    let found = schedule.preview(from, 5);
    assert!(found.len() <= 5);
    assert!(found.windows(2).all(|pair| pair[0].at < pair[1].at), "occurrences rise");
    assert!(found.iter().all(|occurrence| occurrence.at >= from));
    if let Some(next) = schedule.next_after(from) {
        assert!(next.at > from, "the next occurrence is later");
    }
    let again = Schedule::new(&schedule.start().to_string(), schedule.zone(), schedule.rule().as_deref());
    let again = again.unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(again.rule(), schedule.rule());
}

/// Dates of feeds, mails and pages.
pub(crate) fn dates(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let zone = TimeZone::get("Europe/Berlin").ok();
    let uncertain = date_text::parse(text, None);
    let certain = date_text::parse(text, zone.as_ref());
    if let Ok(at) = uncertain {
        assert_eq!(certain.ok(), Some(at), "a zone decides only where a date names none");
    }
    if let Ok(at) = text.parse::<Timestamp>() {
        assert_eq!(at.to_string().parse::<Timestamp>().ok(), Some(at), "what is shown reads the same");
    }
}

/// Mail addresses: the normal form is valid, and is its own normal form.
pub(crate) fn mailbox(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let _ = comparable(text);
    let Ok(mailbox) = Mailbox::parse(text) else { return };
    let canonical = mailbox.canonical();
    let again = Mailbox::parse(&canonical).unwrap_or_else(|error| panic!("{canonical:?}: {}", error.hint()));
    assert_eq!(again.canonical(), canonical);
    let wire = mailbox.on_wire();
    assert!(!wire.contains(['\r', '\n', '\0']), "{wire:?} would add a line");
    assert_eq!(Mailbox::parse(&mailbox.address()).map(|again| again.canonical()).ok(), Some(canonical));
}
