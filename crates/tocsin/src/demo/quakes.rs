//! Demo: a week of earthquakes, delivered by mail to people who live near them.

use std::time::Instant;

use serde_json::{Value, json};

use super::{
    DemoOptions,
    oracle::{Quake, expected_mails},
    play::{DemoServer, compare, show_addresses, show_report},
    world::{Person, people},
};
use crate::{
    commands::trace,
    configuration::ConfigurationArgs,
    failure::{Failure, Outcome},
    mailbox::{Mailbox, MailboxOptions, ParsedMail},
    signals::Signals,
    terminal::{Colour, Terminal, printable, thousands},
};

/// Embeds a file of `examples/quakes`, so that the binary needs no files.
macro_rules! example {
    ($path:literal) => {
        include_str!(concat!("../../../../examples/quakes/", $path))
    };
}

const DEFINITION: &str = example!("application.yaml");
const TEMPLATES: [(&str, &str); 6] = [
    ("templates/subject.txt", example!("templates/subject.txt")),
    ("templates/subject.de.txt", example!("templates/subject.de.txt")),
    ("templates/mail.txt", example!("templates/mail.txt")),
    ("templates/mail.de.txt", example!("templates/mail.de.txt")),
    ("templates/mail.html", example!("templates/mail.html")),
    ("templates/mail.de.html", example!("templates/mail.de.html")),
];
const WEEK: &str = example!("usgs-earthquakes-week.geojson");

/// Replays the week as fast as it is accepted, in batches of one hour.
///
/// # Errors
/// If a part does not start, or a mail is missing.
pub async fn quakes(terminal: &Terminal, configuration: &ConfigurationArgs, plan: &DemoOptions) -> Outcome {
    let mut signals = Signals::new()?;
    let (stage, _mailbox, right) = tokio::select! {
        played = play(terminal, configuration, plan) => played?,
        _ = signals.next() => return Err(Failure::failed("stopped before the end")),
    };
    stage.close(terminal, plan.once, &mut signals).await?;
    if right { Ok(()) } else { Err(Failure::failed("a mail is missing; see the log above")) }
}

/// Runs the demo; returns the running parts, and whether every mail arrived.
async fn play(
    terminal: &Terminal,
    configuration: &ConfigurationArgs,
    plan: &DemoOptions,
) -> Outcome<(DemoServer, Mailbox, bool)> {
    let mailbox = Mailbox::start(MailboxOptions::default()).await?;
    let stage = DemoServer::open(configuration).await?;
    terminal.line(format_args!(
        "Tocsin listens at {}, mails arrive at http://{}/",
        stage.client.server(),
        mailbox.page_address()
    ))?;
    stage.apply("quakes", definition(&mailbox)?).await?;

    let people = people(plan.subscribers, plan.seed);
    let bar =
        terminal.progress(Some(people.len() as u64 * 2), "people    {wide_bar} {human_pos}/{human_len}  {elapsed}");
    stage.import("subscribers", &[], people.iter().map(subscriber), &bar).await?;
    stage
        .import(
            "subscriptions",
            &[("application", "quakes"), ("class", "nearby")],
            people.iter().map(subscription),
            &bar,
        )
        .await?;
    bar.finish_and_clear();
    terminal.line(format_args!("{} people subscribed to earthquakes near them", thousands(people.len() as u64)))?;

    let events = week()?;
    let quakes: Vec<Quake> =
        events.iter().map(quake).collect::<Option<_>>().ok_or_else(|| Failure::failed("an earthquake has no place"))?;
    let started = Instant::now();
    let bar = terminal.progress(Some(events.len() as u64), "quakes    {wide_bar} {human_pos}/{human_len}  {elapsed}");
    let events_count = events.len();
    for (hour, batch) in by_hour(events) {
        stage.publish("quakes", "quake", batch, &format!("week-{hour}"), &bar).await?;
    }
    bar.finish_and_clear();
    terminal.line(format_args!("{} earthquakes of a week were accepted", thousands(events_count as u64)))?;

    let expected = expected_mails(&people, &quakes);
    let total: u64 = expected.iter().sum();
    let bar = terminal.progress(Some(total), "mails     {wide_bar} {human_pos}/{human_len}  {per_sec}  {elapsed}");
    let report = stage.delivered(total, &|| mailbox.counts().mails, &bar).await?;
    let took = started.elapsed();
    bar.finish_and_clear();

    show_report(terminal, &report, took)?;
    show_one(terminal, &stage, &mailbox).await?;
    terminal
        .line(terminal.paint(Colour::Bold, "\nVerification: every quake compared with every person, without Tocsin"))?;
    let counts = mailbox.counts();
    let distinct = counts.mails - counts.repeated;
    let mut right = compare(terminal, "notifications created", total, report.totals.notifications)?;
    right &= compare(terminal, "mails received", total, distinct)?;
    let served =
        people.iter().zip(&expected).filter(|(person, expected)| mailbox.mails_for(&person.address()) >= **expected);
    right &= compare(terminal, "people with all their mails", people.len() as u64, served.count() as u64)?;
    if counts.repeated > 0 {
        terminal
            .line(format_args!("  {} mails arrived twice, with the same Message-ID", thousands(counts.repeated)))?;
    }
    if !plan.once {
        let mailbox_page = format!("http://{}/", mailbox.page_address());
        let console = stage.login_link().await?;
        show_addresses(terminal, &stage, &[("console", console), ("mailbox", mailbox_page)])?;
    }
    Ok((stage, mailbox, right))
}

/// Definition of the example with inlined templates and the mailbox as SMTP server.
fn definition(mailbox: &Mailbox) -> Outcome<String> {
    let load = |path: &str| {
        let found = TEMPLATES.iter().find(|(name, _)| *name == path);
        found.map(|(_, text)| text.to_string()).ok_or_else(|| format!("{path} is not embedded in the binary"))
    };
    let text = crate::platform::inline_definition(DEFINITION, &load).map_err(|problems| {
        let mut failure = Failure::failed("the example is corrupt");
        failure.details = problems.iter().map(ToString::to_string).collect();
        failure
    })?;
    let smtp = mailbox.smtp_address();
    Ok(text
        .replace("${SMTP_HOST:-127.0.0.1}", &smtp.ip().to_string())
        .replace("${SMTP_PORT:-2525}", &smtp.port().to_string()))
}

fn subscriber(person: &Person) -> Value {
    json!({
        "id": person.id, "locale": person.locale, "time_zone": person.time_zone, "attributes": {"city": person.city},
        "devices": {"mail": {"channel": "email", "address": person.address()}}
    })
}

fn subscription(person: &Person) -> Value {
    json!({
        "application": "quakes", "class": "nearby", "subscriber": person.id, "key": "home",
        "values": {
            "latitude": person.latitude, "longitude": person.longitude,
            "distance_km": person.distance_km, "magnitude_min": person.magnitude_min
        }
    })
}

/// Features of the week as events, ordered by time.
fn week() -> Outcome<Vec<Value>> {
    use crate::commands::publish::{Mapping, map_item};
    const MAPPINGS: [&str; 8] = [
        "id=id",
        "magnitude=properties.mag",
        "place=properties.place",
        "at=properties.time",
        "url=properties.url",
        "longitude=geometry.coordinates.0",
        "latitude=geometry.coordinates.1",
        "depth_km=geometry.coordinates.2",
    ];
    let mappings: Vec<Mapping> =
        MAPPINGS.iter().map(|text| text.parse()).collect::<Result<_, _>>().map_err(Failure::failed)?;
    let mut document: Value =
        serde_json::from_str(WEEK).map_err(|error| Failure::failed("the example is corrupt").because(&error))?;
    let Value::Array(features) = document["features"].take() else {
        return Err(Failure::failed("the example has no features"));
    };
    let mut events: Vec<Value> = features.into_iter().filter_map(|feature| map_item(feature, &mappings, &[])).collect();
    events.sort_by_key(|event| event["at"].as_i64());
    Ok(events)
}

fn quake(event: &Value) -> Option<Quake> {
    Some(Quake {
        magnitude: event["magnitude"].as_f64(),
        latitude: event["latitude"].as_f64()?,
        longitude: event["longitude"].as_f64()?,
    })
}

/// Groups events by hour, in order.
fn by_hour(events: Vec<Value>) -> Vec<(i64, Vec<Value>)> {
    let mut hours: Vec<(i64, Vec<Value>)> = Vec::new();
    for event in events {
        let hour = event["at"].as_i64().unwrap_or_default().div_euclid(3_600_000);
        match hours.last_mut() {
            Some((last, batch)) if *last == hour => batch.push(event),
            _ => hours.push((hour, vec![event])),
        }
    }
    hours
}

/// Prints the newest mail, and the trace of its notification.
async fn show_one(terminal: &Terminal, stage: &DemoServer, mailbox: &Mailbox) -> Outcome {
    let mails = mailbox.newest();
    let Some(mail) = mails.first() else { return Ok(()) };
    let read = ParsedMail::read(&mail.bytes);
    terminal.line(terminal.paint(Colour::Bold, "\nA sample mail"))?;
    terminal.line(format_args!("  To: {}", printable(&mail.to.join(", "))))?;
    terminal.line(format_args!("  Subject: {}\n", printable(read.header("subject").unwrap_or_default())))?;
    for line in read.part("text/plain").unwrap_or_default().lines() {
        terminal.line(format_args!("  {}", printable(line)))?;
    }
    // A Message-ID has the form `<n-7-3.installation@domain>`.
    let id = read
        .header("message-id")
        .and_then(|id| id.trim_start_matches('<').split(['.', '@']).next())
        .unwrap_or_default();
    let story = stage.client.get(&format!("/v1/trace/{}", crate::client::segment(id)), &[]).await?;
    terminal.line("")?;
    trace::show(terminal, &story)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_week_is_complete_and_ordered() {
        let events = week().expect("the example");
        assert_eq!(events.len(), 1_707);
        assert!(events.iter().map(quake).all(|quake| quake.is_some()));
        assert!(events.is_sorted_by_key(|event| event["at"].as_i64()));
        let hours = by_hour(events);
        assert!(hours.is_sorted_by_key(|(hour, _)| *hour) && hours.len() <= 7 * 24 + 1, "{}", hours.len());
        assert_eq!(hours.iter().map(|(_, batch)| batch.len()).sum::<usize>(), 1_707);
        assert!(hours.iter().all(|(_, batch)| batch.len() <= 1_000));
    }

    #[test]
    fn ten_thousand_people_get_a_demo_of_mails() {
        let quakes: Vec<Quake> = week().expect("the example").iter().filter_map(quake).collect();
        let total: u64 = expected_mails(&people(10_000, 7), &quakes).iter().sum();
        assert!((20_000..500_000).contains(&total), "{total}");
    }

    #[tokio::test]
    async fn the_definition_is_complete_and_names_the_mailbox() {
        let local = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let mailbox = Mailbox::start(MailboxOptions { smtp: local, page: local, ..MailboxOptions::default() })
            .await
            .expect("free ports");
        let text = definition(&mailbox).expect("the example");
        assert!(text.contains(&format!("port: {}", mailbox.smtp_address().port())), "{text}");
        assert!(!text.contains("SMTP_"), "{text}");
    }
}
