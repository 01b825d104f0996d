//! Cost of formatting, in this process: a letter with a value every 80 characters, by each language. Deliveries already
//! include a text of one value, so that cost is subtracted.

use std::{hint::black_box, time::Duration};

use super::cost::{CostSample, OperationCost};
use crate::{
    failure::Outcome,
    {
        context::{Context, processor_time, run_blocking},
        figure::Samples,
        figures::format_sizes::{Language, renderer},
        resource_usage::ResourceUsage,
    },
};

/// Characters of a letter with one value.
const SHORTEST: usize = 25;
/// Characters of longer letters. Up to 100 they also have one value, so the difference would be zero.
const SIZES: [usize; 4] = [250, 500, 1_000, 2_000];
/// Letters between two readings of the clock.
const BATCH_LETTERS: u32 = 100;
const ROUNDS: u32 = 5;

pub(super) async fn measure(context: &Context) -> Outcome<Vec<OperationCost>> {
    let time = Duration::from_millis(context.size(1_000, 20));
    run_blocking(move || {
        let base = seconds_each(Language::Jinja, SHORTEST, time)?;
        let jinja = points(Language::Jinja, base, time)?;
        let xslt = points(Language::Xslt, base, time)?;
        let about = |how: &str| format!("a letter is formatted {how}, beyond the short text included in deliveries");
        Ok(vec![
            OperationCost::new("format.jinja", about("in Jinja"), "deliver", jinja),
            OperationCost::new("format.xslt", about("by a stylesheet (XSLT)"), "deliver", xslt),
        ])
    })
    .await?
}

/// Samples of letters of several sizes, minus `base` seconds each.
fn points(language: Language, base: f64, time: Duration) -> Outcome<Vec<CostSample>> {
    let point = |characters: usize| {
        let processor = (seconds_each(language, characters, time)? - base).max(0.0);
        let used = ResourceUsage { processor, ..ResourceUsage::default() };
        Ok(CostSample { bytes: characters as f64, batch: 1.0, items: 1.0, used, wire_each: 0.0 })
    };
    SIZES.into_iter().map(point).collect()
}

/// CPU seconds per letter: the median of several rounds.
fn seconds_each(language: Language, characters: usize, time: Duration) -> Outcome<f64> {
    let mut render = renderer(language, characters)?;
    let mut together = || (0..BATCH_LETTERS).try_for_each(|_| render().map(|letter| drop(black_box(letter))));
    together()?;
    let mut rounds = Samples::default();
    for _ in 0..ROUNDS {
        let (started, mut count, mut spent) = (processor_time(), 0, Duration::ZERO);
        while spent < time / ROUNDS {
            together()?;
            count += BATCH_LETTERS;
            spent = processor_time().saturating_sub(started);
        }
        rounds.push(spent.as_secs_f64() / f64::from(count));
    }
    Ok(rounds.median())
}
