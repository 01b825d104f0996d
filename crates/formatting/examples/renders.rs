//! Measures renders per second of one core: a text of about 500 characters for many subscribers of one event.
//!
//! `cargo run --release -p tocsin-formatting --example renders`

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use tocsin_formatting::{DeviceScope, EventScope, Formatter, KnownVariables, Scope};
use tocsin_model::{
    definition,
    id::{Name, NotificationBatchId, NotificationId},
    subscriber::Profile,
    time::Timestamp,
    value::Value,
};

const DEFINITION: &str = r#"
application: quakes
events: { quake: { fields: { magnitude: number, place: string, depth_km: number, at: timestamp, url: string } } }
subscriptions: { nearby: { fields: { magnitude: number, radius_km: number } } }
notifications:
  quake_alert:
    fields: { magnitude: number, place: string, at: timestamp, distance_km: number }
    content:
      templates:
        base:
          text: |
            Dear {{ subscriber.attributes.name or 'friend' }},

            an earthquake of magnitude {{ magnitude }} happened {{ distance_km }} km from you: {{ place }}.
            {% if event.depth_km < 70 %}It was shallow, at a depth of {{ event.depth_km }} km.{% endif %}

            You asked to be notified of earthquakes of magnitude {{ sub.magnitude }} and more within {{ sub.radius_km }} km.
            The agency's page has more: {{ event.url }}

            Stay away from damaged buildings, expect aftershocks, and follow what the authorities in your region say.
            To change or end this service, answer this mail; {{ notification.id }} is its number.

            The earthquake service
rules: { near_me: { on: quake, subscription: nearby, notify: quake_alert, with: { distance_km: "1.0" } } }
"#;

fn main() {
    let application = definition::read(DEFINITION, &|_| None).expect("the definition is right");
    let class: Name = "quake_alert".parse().expect("a name");
    let known = KnownVariables::of(&application, &class);
    let templates = &application.notifications[&class].content;
    let formatter =
        Formatter::compile("notifications.quake_alert", templates, &known).expect("the templates are right");
    let place = Value::from("12 km SSW of Kobe, Japan");
    let at = Value::Timestamp(Timestamp::from_millis(1_795_000_000_000));
    let url = Value::from("https://earthquake.example/quakes/us7000abcd");
    let row = [Value::Number(5.4), place.clone(), Value::Number(10.0), at.clone(), url];
    let event = EventScope::new(&known.events[0].1, &row);
    let rule = "near_me".parse().expect("a name");
    let subscriber = "alice".parse().expect("an id");
    let profile = Profile { attributes: [("name".to_owned(), Value::from("Alice"))].into(), ..Profile::default() };
    let subscription = [Value::Number(4.5), Value::Number(300.0)];
    let mut rates = Vec::new();
    let mut bytes = 0;
    for _ in 0..7 {
        let count = 100_000u32;
        let (started, busy_before) = (Instant::now(), busy());
        for ordinal in 0..count {
            let scope = Scope {
                id: NotificationId { batch: NotificationBatchId(7), ordinal },
                rule: &rule,
                matched_at: Timestamp(0),
                accepted_at: Timestamp(0),
                now: Timestamp(0),
                fields: &[Value::Number(5.4), place.clone(), at.clone(), Value::Number(f64::from(ordinal))],
                event: &event,
                subscriber: &subscriber,
                profile: &profile,
                subscription: (&known.subscriptions[0].1, &subscription),
                device: DeviceScope { name: "home", channel: "email", address: "alice@example.org" },
                digest: None,
                links: Default::default(),
            };
            let content = formatter.format(Some("en-GB"), "email", &scope).expect("content");
            bytes = black_box(content).content.text.map_or(0, |text| text.len());
        }
        let spent = busy().zip(busy_before).map_or(started.elapsed(), |(after, before)| after - before);
        rates.push(f64::from(count) / spent.as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    println!("format.jinja: {:.0} renders/s of {bytes} bytes, median of {}", rates[rates.len() / 2], rates.len());
}

/// Processor time of this thread, where the system reports it: on a shared machine the wall clock includes other load.
fn busy() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}
