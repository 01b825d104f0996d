//! What formatting costs, in this process: a letter with a value every 80 characters, by each language. Deliveries count in
//! a text of one value, so that is subtracted.

use std::{hint::black_box, time::Duration};

use super::{Costed, Point};
use crate::{
    bench::{
        context::{Context, busy, processor_time},
        figure::Samples,
        figures::format_sizes::{Language, renderer},
        probe::Used,
    },
    failure::Outcome,
};

/// Characters of a letter of one value.
const SHORTEST: usize = 25;
/// Of longer ones. Up to 100 they have one value too, and nothing is left of them.
const SIZES: [usize; 4] = [250, 500, 1_000, 2_000];
/// Letters between two looks at the clock.
const TOGETHER: u32 = 100;
const ROUNDS: u32 = 5;

pub(super) async fn measure(context: &Context) -> Outcome<Vec<Costed>> {
    let time = Duration::from_millis(context.size(1_000, 20));
    busy(move || {
        let base = seconds_each(Language::Jinja, SHORTEST, time)?;
        let jinja = points(Language::Jinja, base, time)?;
        let xslt = points(Language::Xslt, base, time)?;
        let about = |how: &str| format!("a letter is made {how}, beyond the short text that deliveries count in");
        Ok(vec![
            Costed::new("format.jinja", about("in Jinja"), "deliver", jinja),
            Costed::new("format.xslt", about("by a stylesheet (XSLT)"), "deliver", xslt),
        ])
    })
    .await?
}

/// Letters of several sizes; so many seconds of each are not theirs.
fn points(language: Language, base: f64, time: Duration) -> Outcome<Vec<Point>> {
    let point = |characters: usize| {
        let processor = (seconds_each(language, characters, time)? - base).max(0.0);
        let used = Used { processor, ..Used::default() };
        Ok(Point { bytes: characters as f64, batch: 1.0, items: 1.0, used, wire_each: 0.0 })
    };
    SIZES.into_iter().map(point).collect()
}

/// Seconds of a processor that a letter takes, in the median of some rounds.
fn seconds_each(language: Language, characters: usize, time: Duration) -> Outcome<f64> {
    let mut render = renderer(language, characters)?;
    let mut together = || (0..TOGETHER).try_for_each(|_| render().map(|letter| drop(black_box(letter))));
    together()?;
    let mut rounds = Samples::default();
    for _ in 0..ROUNDS {
        let (started, mut count, mut spent) = (processor_time(), 0, Duration::ZERO);
        while spent < time / ROUNDS {
            together()?;
            count += TOGETHER;
            spent = processor_time().saturating_sub(started);
        }
        rounds.push(spent.as_secs_f64() / f64::from(count));
    }
    Ok(rounds.median())
}
