//! Samples become one line: the median, the extremes, and the ratio to a peer.

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use super::results::Run;

/// What repeated runs gave, in one unit.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds what one more run gave.
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// Adds what one more run gave, if it ran.
    pub fn extend(&mut self, sample: Option<f64>) {
        self.0.extend(sample);
    }

    /// Each, in the order of the runs.
    pub fn iter(&self) -> impl Iterator<Item = f64> {
        self.0.iter().copied()
    }

    /// How many runs there were.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The middle one; of an even number, the mean of the two in the middle. 0 if there are none.
    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        match (sorted.len(), sorted.len() / 2) {
            (0, _) => 0.0,
            (length, middle) if length % 2 == 1 => sorted[middle],
            (_, middle) => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    /// The mean of the middle half, of whose ends the parts count that are in it. As deaf to a single odd run as the median,
    /// and it does not jump where a machine has two speeds and the middle is between them. 0 if there are none.
    pub fn midmean(&self) -> f64 {
        let sorted = self.sorted();
        let quarter = sorted.len() as f64 / 4.0;
        // How much of each lies between the first quarter and the last.
        let part = |at: usize| ((at + 1) as f64).min(3.0 * quarter) - (at as f64).max(quarter);
        let weighed = sorted.iter().enumerate().map(|(at, sample)| part(at).max(0.0) * sample);
        weighed.sum::<f64>() / (2.0 * quarter).max(f64::MIN_POSITIVE)
    }

    /// By which part the middle of every other sample, [`Samples::midmean`], differs from that of those between: what a machine
    /// does by itself. `None` of a single one.
    pub fn halves_apart(&self) -> Option<f64> {
        let half = |first| self.0.iter().skip(first).step_by(2).copied().collect::<Samples>().midmean();
        (self.0.len() > 1).then(|| (half(0) / half(1) - 1.0).abs())
    }

    /// Each divided by the other's of the same run.
    pub fn ratios(&self, others: &Samples) -> Samples {
        self.0.iter().zip(&others.0).map(|(sample, other)| sample / other).collect()
    }

    /// The smallest.
    pub fn low(&self) -> f64 {
        self.0.iter().copied().reduce(f64::min).unwrap_or_default()
    }

    /// The largest.
    pub fn high(&self) -> f64 {
        self.0.iter().copied().reduce(f64::max).unwrap_or_default()
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Self {
        Samples(samples.into_iter().collect())
    }
}

/// Cost of each item to our server, over all turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Microseconds on processors.
    pub processor_us: Value,
    /// Bytes that were written to disks.
    pub disk_bytes: Value,
    /// Flushes of the disk, of all processes; left out where the system does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_flushes: Option<Value>,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} µs of processor, {} bytes to disk", self.processor_us, self.disk_bytes)?;
        self.disk_flushes.as_ref().map_or(Ok(()), |flushes| write!(f, ", {flushes} disk flushes"))
    }
}

/// What was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Of what.
    pub unit: &'static str,
    /// Our runs.
    pub ours: Samples,
    /// The peer's name and runs, if it ran in turns with ours.
    pub peer: Option<(String, Samples)>,
    /// What else matters, in parts.
    pub conditions: Vec<String>,
    /// What was predicted, beside what came.
    pub predictions: Vec<Predicted>,
    /// Cost of each item to our server.
    pub counts: Option<Counts>,
}

/// Something predicted, and measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// Of what.
    pub what: String,
    /// Of both numbers.
    pub unit: String,
    /// What was expected.
    pub predicted: f64,
    /// What came.
    pub measured: f64,
}

impl Predicted {
    /// Both numbers, with the digits that mean something.
    pub fn new(what: String, unit: &str, (predicted, measured): (f64, f64)) -> Predicted {
        let short = |value: f64| rounded(value, 4).as_f64().unwrap_or_default();
        Predicted { what, unit: unit.to_owned(), predicted: short(predicted), measured: short(measured) }
    }

    /// By which part the prediction is too much, or too little.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

impl Figure {
    /// Of our runs alone.
    pub fn new(unit: &'static str, ours: Samples) -> Self {
        Figure { unit, ours, peer: None, conditions: Vec::new(), predictions: Vec::new(), counts: None }
    }

    /// Beside a peer; one that did not run once is none.
    pub fn beside(mut self, name: &str, samples: Samples) -> Self {
        self.peer = (!samples.is_empty()).then(|| (name.to_owned(), samples));
        self
    }

    /// Adds what else matters.
    pub fn under(mut self, condition: impl Into<String>) -> Self {
        self.conditions.push(condition.into());
        self
    }

    /// With the cost of each item to our server.
    pub fn counted(mut self, tally: &super::probe::Tally) -> Self {
        self.counts = tally.counts();
        self
    }

    /// The line under this name.
    pub fn line(&self, name: &str) -> Line {
        let rounded_all = |samples: &Samples| samples.0.iter().map(|sample| rounded(*sample, 5)).collect();
        let value = self.ours.median();
        let peer_value = self.peer.as_ref().map(|(_, samples)| samples.median());
        Line {
            name: name.to_owned(),
            unit: self.unit.to_owned(),
            value: rounded(value, 5),
            low: rounded(self.ours.low(), 5),
            high: rounded(self.ours.high(), 5),
            repeats: self.ours.len(),
            peer: self.peer.as_ref().map(|(peer, _)| peer.clone()),
            peer_value: peer_value.map(|peer| rounded(peer, 5)),
            ratio: peer_value.filter(|peer| *peer > 0.0).map(|peer| rounded(value / peer, 3)),
            conditions: self.conditions.join(", "),
            samples: rounded_all(&self.ours),
            peer_samples: self.peer.as_ref().map(|(_, samples)| rounded_all(samples)).unwrap_or_default(),
            predictions: self.predictions.clone(),
            counts: self.counts.clone(),
            run: None,
        }
    }
}

/// One line of the results. The form is fixed, so that anybody can check it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// The figure.
    pub name: String,
    /// Of `value`, `low`, `high` and `peer_value`.
    pub unit: String,
    /// The median of our runs.
    pub value: Value,
    /// Their smallest.
    pub low: Value,
    /// Their largest.
    pub high: Value,
    /// How many there were.
    pub repeats: usize,
    /// Who did the same work in turns with us.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The median of the peer's runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_value: Option<Value>,
    /// Our median divided by the peer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Value>,
    /// What else matters.
    pub conditions: String,
    /// Each of our runs, in the order in which they were made.
    pub samples: Vec<Value>,
    /// Each of the peer's runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peer_samples: Vec<Value>,
    /// What was predicted, beside what came.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub predictions: Vec<Predicted>,
    /// Cost of each item to our server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
    /// Where and by what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
}

/// A number with so many digits that mean something; a whole one without a point.
pub fn rounded(value: f64, digits: usize) -> Value {
    let short: f64 = format!("{value:.*e}", digits.saturating_sub(1)).parse().unwrap_or(value);
    if short.fract() == 0.0 && short.abs() < 1e15 {
        return Value::from(short as i64);
    }
    Number::from_f64(short).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn the_median_is_the_middle_of_the_sorted() {
        let check = |samples: &[f64], expected: (f64, f64, f64)| {
            let samples: Samples = samples.iter().copied().collect();
            assert_eq!((samples.low(), samples.median(), samples.high()), expected);
        };
        check(&[], (0.0, 0.0, 0.0));
        check(&[7.0], (7.0, 7.0, 7.0));
        check(&[9.0, 1.0, 5.0], (1.0, 5.0, 9.0));
        check(&[4.0, 1.0, 9.0, 2.0], (1.0, 3.0, 9.0));
        check(&[-1.0, -3.0], (-3.0, -2.0, -1.0));
    }

    #[test]
    fn the_middle_half_is_what_counts() {
        let check = |samples: &[f64], expected: f64| {
            let found = samples.iter().copied().collect::<Samples>().midmean();
            assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
        };
        check(&[], 0.0);
        check(&[7.0], 7.0);
        check(&[1.0, 5.0], 3.0);
        // All of the second, and of the first and the last a quarter each.
        check(&[9.0, 1.0, 5.0], (0.25 * 1.0 + 5.0 + 0.25 * 9.0) / 1.5);
        check(&[4.0, 1_000.0, 2.0, -50.0], 3.0);
        check(&[0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 1e9], 35.0);
    }

    #[test]
    fn every_other_sample_is_compared_with_those_between() {
        let apart = |samples: &[f64]| samples.iter().copied().collect::<Samples>().halves_apart();
        assert_eq!(apart(&[3.0, 4.0, 3.0, 4.0, 3.0]), Some(0.25));
        assert_eq!(apart(&[3.0, 3.0]), Some(0.0));
        assert_eq!((apart(&[3.0]), apart(&[])), (None, None));
    }

    #[test]
    fn a_number_keeps_the_digits_that_mean_something() {
        let check = |value: f64, digits, expected: &str| assert_eq!(rounded(value, digits).to_string(), expected);
        check(24_123.456, 5, "24123");
        check(1_234_567.0, 5, "1234600");
        check(0.012_345_678, 5, "0.012346");
        check(1.516_4, 3, "1.52");
        check(0.0, 3, "0");
        check(f64::NAN, 3, "null");
    }

    #[test]
    fn a_line_has_the_form_on_record() {
        let figure = Figure::new("messages/s", [24_100.0, 22_900.0, 25_000.0].into_iter().collect())
            .beside("smtp-source", [15_900.0].into_iter().collect())
            .under("1 KB")
            .under("10 sessions");
        let line = serde_json::to_string(&figure.line("deliver.smtp")).expect("plain data");
        expect![[r#"{"name":"deliver.smtp","unit":"messages/s","value":24100,"low":22900,"high":25000,"repeats":3,"peer":"smtp-source","peer_value":15900,"ratio":1.52,"conditions":"1 KB, 10 sessions","samples":[24100,22900,25000],"peer_samples":[15900]}"#]].assert_eq(&line);

        let alone = Figure::new("MB", [12.5].into_iter().collect()).beside("nobody", Samples::default());
        let line = serde_json::to_string(&alone.line("idle.memory")).expect("plain data");
        expect![[
            r#"{"name":"idle.memory","unit":"MB","value":12.5,"low":12.5,"high":12.5,"repeats":1,"conditions":"","samples":[12.5]}"#
        ]]
        .assert_eq(&line);
    }
}
