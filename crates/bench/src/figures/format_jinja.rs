//! Figure `format.jinja`: rendering alone, in this process; a mail of about 500 characters from a notification's
//! fields, its event and its subscriber.

use std::{hint::black_box, time::Instant};

use tocsin_formatting::{DeviceScope, EventScope, Scope};
use tocsin_model::{
    content::Content,
    id::{NotificationBatchId, NotificationId},
    subscriber::Profile,
    time::Timestamp,
    value::Value,
};
use tocsin_pipeline::compile_text;

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::{Context, run_blocking},
        figure::{Figure, Samples},
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "format.jinja",
    about: "renders/s of one core, about 500 characters",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// Minimum duration of a measured round, in seconds.
const ROUND_SECONDS: f64 = 0.5;

const DEFINITION: &str = "
application: letters
events: {quake: {fields: {magnitude: number, place: string, at: timestamp}}}
subscriptions: {nearby: {fields: {distance: number}}}
notifications:
  letter:
    fields: {magnitude: number, place: string, at: timestamp, distance: number}
    content:
      templates:
        base:
          subject: 'Magnitude {{ magnitude|number(1) }}, {{ place }}'
          text: |
            Dear {{ subscriber.id }},

            the earth shook {{ place }} at {{ at|time }}: an earthquake of magnitude {{ magnitude|number(1) }}, which is
            {{ distance|number(0) }} km from the place that you named. {% if magnitude >= 6 %}That is strong enough to do
            damage; please look after your neighbours and be prepared for more.{% else %}Nobody needs to worry, since one
            this strong is felt by many people but seldom breaks anything that was standing before.{% endif %}

            You get this letter because you subscribed to earthquakes within {{ sub.distance }} km of your home,
            and it went to {{ device.address }}. You can change your mind at any
            time: answer this letter, and we will write no more.
rules: {near: {on: quake, subscription: nearby, when: event.magnitude > sub.distance, notify: letter, with: {distance: sub.distance}}}
channels: {records: {protocol: file}}
";

async fn run(context: &Context) -> Outcome<Figure> {
    let turns = context.turns();
    run_blocking(move || {
        let mut ours = Samples::default();
        let mut characters = 0;
        for _ in turns {
            let mut render = renderer()?;
            let (started, mut renders) = (Instant::now(), 0_u64);
            while started.elapsed().as_secs_f64() < ROUND_SECONDS {
                for _ in 0..100 {
                    characters = black_box(render()?).text.as_deref().map_or(0, |text| text.chars().count());
                }
                renders += 100;
            }
            ours.push(renders as f64 / started.elapsed().as_secs_f64());
        }
        Ok(Figure::new("renders/s", ours)
            .with_condition(format!("subject and text of {characters} characters"))
            .with_condition("one core"))
    })
    .await?
}

/// Creates a function that renders the letter at each call.
fn renderer() -> Outcome<impl FnMut() -> Outcome<Content>> {
    let compiled = compile_text(DEFINITION, 1, &|_| None).map_err(|problems| {
        problems.iter().fold(Failure::failed("the definition of the letter is invalid"), |failure, problem| {
            failure.detail(problem.to_string())
        })
    })?;
    let at = Timestamp::from_millis(1_795_253_400_000);
    let event = [Value::Number(5.4), Value::from("22 km NNE of Hualian, Taiwan"), Value::Timestamp(at)];
    let event_fields =
        compiled.application.events.values().next().map(|class| class.fields.clone()).unwrap_or_default();
    let subscription_fields =
        compiled.application.subscriptions.values().next().map(|class| class.fields.clone()).unwrap_or_default();
    let scope = EventScope::new(&event_fields, &event);
    let fields =
        [Value::Number(5.4), Value::from("22 km NNE of Hualian, Taiwan"), Value::Timestamp(at), Value::Number(123.0)];
    let rule = "near".parse().expect("a name");
    let subscriber = "taipei-00042".parse().expect("an id");
    let profile = Profile::default();
    Ok(move || {
        let formatter =
            compiled.formatters.values().next().ok_or_else(|| Failure::failed("the definition has no template"))?;
        let scope = Scope {
            id: NotificationId { batch: NotificationBatchId(1), ordinal: 2 },
            rule: &rule,
            matched_at: at,
            accepted_at: at,
            now: at,
            fields: &fields,
            event: &scope,
            subscriber: &subscriber,
            profile: &profile,
            subscription: (&subscription_fields, &[Value::Number(500.0)]),
            device: DeviceScope { name: "mail", channel: "records", address: "somebody@example.org" },
            digest: None,
            links: Default::default(),
        };
        formatter
            .format(None, "records", &scope)
            .map(|formatted| formatted.content)
            .map_err(|error| Failure::failed("the letter cannot be rendered").because(&error))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_letter_has_about_500_characters() {
        let content = renderer().expect("in order")().expect("rendered");
        let text = content.text.expect("a text");
        assert!((450..650).contains(&text.len()), "{} in {text}", text.len());
        assert!(text.contains("magnitude 5.4") && text.contains("somebody@example.org"), "{text}");
    }
}
