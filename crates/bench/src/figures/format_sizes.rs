//! Figures `format.*` by size: rendering alone, in this process; the same letter in Jinja and in XSLT, of 25 to 2,000
//! characters. About every 80 characters a value; numbers and times are formatted for the locale.

use std::{fmt::Write, hint::black_box, time::Instant};

use tocsin_formatting::{DeviceScope, EventScope, Scope};
use tocsin_model::{
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

/// The compared figure: about 500 characters.
pub const XSLT: Bench = Bench {
    name: "format.xslt",
    about: "renders/s of one core by a stylesheet, about 500 characters",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, Language::Xslt, 500)) },
};

macro_rules! sizes {
    ($($constant:ident $language:ident $name:literal $characters:literal,)*) => {
        $(
            /// Other sizes, measured on request only.
            pub const $constant: Bench = Bench {
            name: $name,
            about: "renders/s of one core, with the number of characters in the name",
            by_default: false,
            run: |context| -> Measuring<'_> { Box::pin(run(context, Language::$language, $characters)) },
        };
        )*
    };
}

sizes! {
    JINJA_25 Jinja "format.jinja.25" 25,
    JINJA_50 Jinja "format.jinja.50" 50,
    JINJA_100 Jinja "format.jinja.100" 100,
    JINJA_250 Jinja "format.jinja.250" 250,
    JINJA_500 Jinja "format.jinja.500" 500,
    JINJA_1000 Jinja "format.jinja.1000" 1_000,
    JINJA_2000 Jinja "format.jinja.2000" 2_000,
    XSLT_25 Xslt "format.xslt.25" 25,
    XSLT_50 Xslt "format.xslt.50" 50,
    XSLT_100 Xslt "format.xslt.100" 100,
    XSLT_250 Xslt "format.xslt.250" 250,
    XSLT_500 Xslt "format.xslt.500" 500,
    XSLT_1000 Xslt "format.xslt.1000" 1_000,
    XSLT_2000 Xslt "format.xslt.2000" 2_000,
}

/// Template language.
#[derive(Clone, Copy)]
pub(crate) enum Language {
    /// Jinja.
    Jinja,
    /// XSLT.
    Xslt,
}

/// Minimum duration of a measured round, in seconds.
const ROUND_SECONDS: f64 = 0.5;

async fn run(context: &Context, language: Language, characters: usize) -> Outcome<Figure> {
    let turns = context.turns();
    run_blocking(move || {
        let mut ours = Samples::default();
        let mut length = 0;
        for _ in turns {
            let mut render = renderer(language, characters)?;
            let (started, mut renders) = (Instant::now(), 0_u64);
            while started.elapsed().as_secs_f64() < ROUND_SECONDS {
                for _ in 0..100 {
                    length = black_box(render()?).chars().count();
                }
                renders += 100;
            }
            ours.push(renders as f64 / started.elapsed().as_secs_f64());
        }
        Ok(Figure::new("renders/s", ours)
            .with_condition(format!("a text of {length} characters"))
            .with_condition("one core"))
    })
    .await?
}

/// Literal text before each value. Together about 80 characters.
const PROSE: &str = "the earth shook, and people who were near it felt it well, so we inform you: ";
const VALUES: [&str; 3] = ["magnitude", "place", "at"];

/// Template of a letter with this many characters.
fn template(language: Language, characters: usize) -> String {
    let value = |name: &str| match (language, name) {
        (Language::Jinja, "magnitude") => "{{ magnitude|number(1) }}".to_owned(),
        (Language::Jinja, "at") => "{{ at|date }} {{ at|time }}".to_owned(),
        (Language::Jinja, name) => format!("{{{{ {name} }}}}"),
        (Language::Xslt, name) => format!("<xsl:value-of select=\"{name}\"/>"),
    };
    // Approximate length of each formatted value.
    let lengths = [3, 22, 24];
    let (mut body, mut length, mut at) = (String::new(), 0, 1);
    while length + lengths[at % 3] < characters {
        let prose = &PROSE[..PROSE.len().min(characters - length - lengths[at % 3])];
        let _ = write!(body, "{prose}{}", value(VALUES[at % 3]));
        length += prose.len() + lengths[at % 3];
        at += 1;
    }
    match language {
        Language::Jinja => body,
        Language::Xslt => format!(
            "<xsl:stylesheet version=\"1.0\" xmlns:xsl=\"http://www.w3.org/1999/XSL/Transform\"><xsl:output method=\"text\"/>\
             <xsl:template match=\"/\"><xsl:apply-templates select=\"notifications/notification\"/></xsl:template>\
             <xsl:template match=\"notification\">{body}</xsl:template></xsl:stylesheet>"
        ),
    }
}

/// Creates a function that renders the letter at each call.
pub(crate) fn renderer(language: Language, characters: usize) -> Outcome<impl FnMut() -> Outcome<String>> {
    let engine = match language {
        Language::Jinja => "jinja",
        Language::Xslt => "xslt",
    };
    let text = serde_json::to_string(&template(language, characters)).expect("a string is always valid JSON");
    let definition = format!(
        "application: letters
events: {{quake: {{fields: {{magnitude: number, place: string, at: timestamp}}}}}}
subscriptions: {{nearby: {{}}}}
notifications:
  letter:
    fields: {{magnitude: number, place: string, at: timestamp}}
    content: {{templates: {{base: {{text: {{{engine}: {text}}}}}}}}}
rules: {{near: {{on: quake, subscription: nearby, notify: letter}}}}
channels: {{records: {{protocol: file}}}}
"
    );
    let compiled = compile_text(&definition, 1, &|_| None).map_err(|problems| {
        problems.iter().fold(Failure::failed("the definition of the letter is invalid"), |failure, problem| {
            failure.detail(problem.to_string())
        })
    })?;
    let at = Timestamp::from_millis(1_795_253_400_000);
    let row = [Value::Number(5.4), Value::from("22 km N of Hualien, TW"), Value::Timestamp(at)];
    let event_fields =
        compiled.application.events.values().next().map(|class| class.fields.clone()).unwrap_or_default();
    let event = EventScope::new(&event_fields, &row);
    let rule = "near".parse().expect("a name");
    let subscriber = "taipei-00042".parse().expect("an id");
    let profile = Profile { locale: Some("en-GB".to_owned()), ..Profile::default() };
    Ok(move || {
        let formatter =
            compiled.formatters.values().next().ok_or_else(|| Failure::failed("the definition has no template"))?;
        let scope = Scope {
            id: NotificationId { batch: NotificationBatchId(1), ordinal: 2 },
            rule: &rule,
            matched_at: at,
            accepted_at: at,
            now: at,
            fields: &row,
            event: &event,
            digest: None,
            links: Default::default(),
            subscriber: &subscriber,
            profile: &profile,
            subscription: (&tocsin_model::field::Fields::default(), &[]),
            device: DeviceScope { name: "mail", channel: "records", address: "somebody@example.org" },
        };
        let formatted = formatter.format(profile.locale.as_deref(), "records", &scope);
        let formatted = formatted.map_err(|error| Failure::failed("the letter cannot be rendered").because(&error))?;
        Ok(formatted.content.text.unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_letters_have_their_sizes() {
        for characters in [25, 50, 100, 250, 500, 1_000, 2_000] {
            let letters = [Language::Jinja, Language::Xslt]
                .map(|language| renderer(language, characters).expect("in order")().expect("rendered"));
            assert_eq!(letters[0], letters[1]);
            let length = letters[0].chars().count();
            assert!(length.abs_diff(characters) <= 5 + characters / 10, "{length} for {characters}: {}", letters[0]);
        }
    }
}
