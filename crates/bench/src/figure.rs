//! Statistics of a figure: samples become one result line with median, extremes and the ratio to a peer.

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use super::run::Run;

/// Samples of repeated runs, in one unit.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds a sample.
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// Adds a sample, if there is one.
    pub fn extend(&mut self, sample: Option<f64>) {
        self.0.extend(sample);
    }

    /// Iterates over the samples in the order of the runs.
    pub fn iter(&self) -> impl Iterator<Item = f64> {
        self.0.iter().copied()
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// Median; for an even number the mean of the two middle samples. 0 without samples.
    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        match (sorted.len(), sorted.len() / 2) {
            (0, _) => 0.0,
            (length, middle) if length % 2 == 1 => sorted[middle],
            (_, middle) => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    /// Interquartile mean: mean of the middle half, with partial weights at its ends. As robust against outliers as the
    /// median, but stable on machines with two speeds whose middle lies between them. 0 without samples.
    pub fn midmean(&self) -> f64 {
        let sorted = self.sorted();
        let quarter = sorted.len() as f64 / 4.0;
        // Weight of each sample: the part of it between the first and the third quartile.
        let part = |at: usize| ((at + 1) as f64).min(3.0 * quarter) - (at as f64).max(quarter);
        let weighed = sorted.iter().enumerate().map(|(at, sample)| part(at).max(0.0) * sample);
        weighed.sum::<f64>() / (2.0 * quarter).max(f64::MIN_POSITIVE)
    }

    /// Relative difference between the [`Samples::midmean`] of even and of odd samples: the noise of the machine
    /// itself. `None` for a single sample.
    pub fn halves_apart(&self) -> Option<f64> {
        let half = |first| self.0.iter().skip(first).step_by(2).copied().collect::<Samples>().midmean();
        (self.0.len() > 1).then(|| (half(0) / half(1) - 1.0).abs())
    }

    /// Ratios to the samples of the same runs in `others`.
    pub fn ratios(&self, others: &Samples) -> Samples {
        self.0.iter().zip(&others.0).map(|(sample, other)| sample / other).collect()
    }

    /// Smallest sample.
    pub fn low(&self) -> f64 {
        self.0.iter().copied().reduce(f64::min).unwrap_or_default()
    }

    /// Largest sample.
    pub fn high(&self) -> f64 {
        self.0.iter().copied().reduce(f64::max).unwrap_or_default()
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Self {
        Samples(samples.into_iter().collect())
    }
}

/// Server cost per item over all turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// CPU time in microseconds.
    pub processor_us: Value,
    /// Bytes written to disk.
    pub disk_bytes: Value,
    /// Disk flushes of all processes; omitted where the system does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_flushes: Option<Value>,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} µs of processor, {} bytes to disk", self.processor_us, self.disk_bytes)?;
        self.disk_flushes.as_ref().map_or(Ok(()), |flushes| write!(f, ", {flushes} disk flushes"))
    }
}

/// Measured figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Unit of the samples.
    pub unit: &'static str,
    /// Samples of Tocsin.
    pub ours: Samples,
    /// Name and samples of the peer that ran in alternating turns.
    pub peer: Option<(String, Samples)>,
    /// Conditions of the measurement.
    pub conditions: Vec<String>,
    /// Predictions with their measured values.
    pub predictions: Vec<Prediction>,
    /// Server cost per item.
    pub counts: Option<Counts>,
}

/// Predicted value with its measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Predicted quantity.
    pub what: String,
    /// Unit of both numbers.
    pub unit: String,
    /// Predicted value.
    pub predicted: f64,
    /// Measured value.
    pub measured: f64,
}

impl Prediction {
    /// Creates a prediction; both numbers are rounded to their significant digits.
    pub fn new(what: String, unit: &str, (predicted, measured): (f64, f64)) -> Prediction {
        let short = |value: f64| rounded(value, 4).as_f64().unwrap_or_default();
        Prediction { what, unit: unit.to_owned(), predicted: short(predicted), measured: short(measured) }
    }

    /// Relative error of the prediction; positive if too large.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

impl Figure {
    /// Creates a figure without a peer.
    pub fn new(unit: &'static str, ours: Samples) -> Self {
        Figure { unit, ours, peer: None, conditions: Vec::new(), predictions: Vec::new(), counts: None }
    }

    /// Adds a peer, unless it has no samples.
    pub fn with_peer(mut self, name: &str, samples: Samples) -> Self {
        self.peer = (!samples.is_empty()).then(|| (name.to_owned(), samples));
        self
    }

    /// Adds a condition.
    pub fn with_condition(mut self, condition: impl Into<String>) -> Self {
        self.conditions.push(condition.into());
        self
    }

    /// Adds the server cost per item.
    pub fn with_cost(mut self, counts: Option<Counts>) -> Self {
        self.counts = counts;
        self
    }

    /// Result line with this name.
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

/// Line of the results file. The format is stable, so that others can parse it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// Name of the figure.
    pub name: String,
    /// Unit of `value`, `low`, `high` and `peer_value`.
    pub unit: String,
    /// Median of Tocsin's runs.
    pub value: Value,
    /// Smallest sample.
    pub low: Value,
    /// Largest sample.
    pub high: Value,
    /// Number of samples.
    pub repeats: usize,
    /// Peer that did the same work in alternating turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Median of the peer's runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_value: Option<Value>,
    /// `value` divided by `peer_value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Value>,
    /// Conditions of the measurement.
    pub conditions: String,
    /// All samples, in the order of the runs.
    pub samples: Vec<Value>,
    /// All samples of the peer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peer_samples: Vec<Value>,
    /// Predictions with their measured values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub predictions: Vec<Prediction>,
    /// Server cost per item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
    /// Build, machine and time of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
}

/// Rounds to this many significant digits; an integral value has no decimal point.
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
    fn the_midmean_is_the_mean_of_the_middle_half() {
        let check = |samples: &[f64], expected: f64| {
            let found = samples.iter().copied().collect::<Samples>().midmean();
            assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
        };
        check(&[], 0.0);
        check(&[7.0], 7.0);
        check(&[1.0, 5.0], 3.0);
        // All of the second, and a quarter each of the first and the last.
        check(&[9.0, 1.0, 5.0], (0.25 * 1.0 + 5.0 + 0.25 * 9.0) / 1.5);
        check(&[4.0, 1_000.0, 2.0, -50.0], 3.0);
        check(&[0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 1e9], 35.0);
    }

    #[test]
    fn halves_apart_compares_even_with_odd_samples() {
        let apart = |samples: &[f64]| samples.iter().copied().collect::<Samples>().halves_apart();
        assert_eq!(apart(&[3.0, 4.0, 3.0, 4.0, 3.0]), Some(0.25));
        assert_eq!(apart(&[3.0, 3.0]), Some(0.0));
        assert_eq!((apart(&[3.0]), apart(&[])), (None, None));
    }

    #[test]
    fn numbers_are_rounded_to_significant_digits() {
        let check = |value: f64, digits, expected: &str| assert_eq!(rounded(value, digits).to_string(), expected);
        check(24_123.456, 5, "24123");
        check(1_234_567.0, 5, "1234600");
        check(0.012_345_678, 5, "0.012346");
        check(1.516_4, 3, "1.52");
        check(0.0, 3, "0");
        check(f64::NAN, 3, "null");
    }

    #[test]
    fn a_result_line_has_the_stable_format() {
        let figure = Figure::new("messages/s", [24_100.0, 22_900.0, 25_000.0].into_iter().collect())
            .with_peer("smtp-source", [15_900.0].into_iter().collect())
            .with_condition("1 KB")
            .with_condition("10 sessions");
        let line = serde_json::to_string(&figure.line("deliver.smtp")).expect("plain data");
        expect![[r#"{"name":"deliver.smtp","unit":"messages/s","value":24100,"low":22900,"high":25000,"repeats":3,"peer":"smtp-source","peer_value":15900,"ratio":1.52,"conditions":"1 KB, 10 sessions","samples":[24100,22900,25000],"peer_samples":[15900]}"#]].assert_eq(&line);

        let alone = Figure::new("MB", [12.5].into_iter().collect()).with_peer("idle", Samples::default());
        let line = serde_json::to_string(&alone.line("idle.memory")).expect("plain data");
        expect![[
            r#"{"name":"idle.memory","unit":"MB","value":12.5,"low":12.5,"high":12.5,"repeats":1,"conditions":"","samples":[12.5]}"#
        ]]
        .assert_eq(&line);
    }
}
