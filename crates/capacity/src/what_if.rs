//! Sensitivity analysis (what-if): plans with other assumptions, and the sensitivity of the plan to each assumption.

use std::time::Duration;

use serde::Serialize;
use tocsin_model::{
    definition::parse_duration,
    problem::{Code, Problem, closest},
};

use crate::{
    plan::{Plan, bottleneck_utilisation, plan},
    profile::Profile,
    vectors::Vectors,
};

/// The relative change of each assumption in the sensitivity analysis.
const STEP: f64 = 0.1;
/// Most values of one sweep.
pub const VALUES_MAX: usize = 50;

/// The largest value or factor, as in a profile.
const NUMBER_MAX: f64 = 1e15;

/// Values to try for one assumption.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// The assumption, as [`assumptions`] names it.
    pub name: String,
    /// The values.
    pub values: Vec<Variation>,
}

/// A changed value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Variation {
    /// An absolute value; for a duration, in seconds.
    To(f64),
    /// A factor.
    Times(f64),
}

impl Variation {
    fn of(self, value: f64) -> f64 {
        match self {
            Variation::To(other) => other,
            Variation::Times(factor) => value * factor,
        }
    }
}

/// A plan for one value of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepResult {
    /// The assumption.
    pub name: String,
    /// The assumed value.
    pub value: f64,
    /// The plan.
    pub plan: Plan,
}

/// The sensitivity of the plan to an assumption.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sensitivity {
    /// The assumption.
    pub name: String,
    /// Value; 1 for a cost.
    pub value: f64,
    /// The elasticity: the percent change in the bottleneck's load for a change of one percent.
    pub elasticity: f64,
}

/// Calls `visit` with the name and value of each numeric assumption of a profile; changes of the value are written
/// back.
fn each_assumption(profile: &mut Profile, visit: &mut dyn FnMut(&str, &mut f64)) {
    let length = |name: &str, length: &mut Duration, visit: &mut dyn FnMut(&str, &mut f64)| {
        let mut seconds = length.as_secs_f64();
        visit(name, &mut seconds);
        // A duration out of range is ignored.
        *length = Duration::try_from_secs_f64(seconds).unwrap_or(*length);
    };
    for (name, population) in &mut profile.populations {
        let path = format!("populations.{name}");
        visit(&format!("{path}.users"), &mut population.users);
        visit(&format!("{path}.operations_per_visit"), &mut population.operations_per_visit);
        length(&format!("{path}.visit"), &mut population.visit, visit);
        for (operation, share) in &mut population.shares {
            visit(&format!("{path}.shares.{operation}"), &mut share.share);
        }
        for (what, each) in &mut population.stored_each {
            visit(&format!("{path}.stored_each.{what}"), each);
        }
    }
    for (name, events) in &mut profile.events {
        let path = format!("events.{name}");
        visit(&format!("{path}.rate"), &mut events.rate);
        visit(&format!("{path}.batch"), &mut events.batch);
        visit(&format!("{path}.bytes"), &mut events.bytes);
        visit(&format!("{path}.matches"), &mut events.matches);
        visit(&format!("{path}.notification_bytes"), &mut events.notification_bytes);
        visit(&format!("{path}.digest"), &mut events.digest);
        visit(&format!("{path}.recipients"), &mut events.recipients);
        for (channel, share) in &mut events.channels {
            visit(&format!("{path}.channels.{channel}"), share);
        }
    }
    for (name, load) in &mut profile.operations {
        let path = format!("operations.{name}");
        visit(&format!("{path}.rate"), &mut load.rate);
        visit(&format!("{path}.bytes"), &mut load.bytes);
        visit(&format!("{path}.batch"), &mut load.batch);
    }
    for (name, channel) in &mut profile.channels {
        let path = format!("channels.{name}");
        if let Some(connections) = &mut channel.connections {
            visit(&format!("{path}.connections"), connections);
        }
        if let Some(answer) = &mut channel.answer {
            length(&format!("{path}.answer"), answer, visit);
        }
        if let Some(rate) = &mut channel.rate {
            visit(&format!("{path}.rate"), rate);
        }
    }
    for (what, count) in &mut profile.stored {
        visit(&format!("stored.{what}"), count);
    }
    for (at, peak) in profile.day.peaks.iter_mut().enumerate() {
        visit(&format!("day.peaks[{at}].times"), &mut peak.times);
        length(&format!("day.peaks[{at}].lasts"), &mut peak.lasts, visit);
    }
    optional_number("nodes", &mut profile.nodes, visit);
    optional_number("node.cores", &mut profile.node.cores, visit);
    visit("target.utilisation", &mut profile.utilisation);
}

/// An optional number: 0 means missing.
fn optional_number(name: &str, number: &mut Option<f64>, visit: &mut dyn FnMut(&str, &mut f64)) {
    let mut value = number.unwrap_or_default();
    visit(name, &mut value);
    *number = (value > 0.0).then_some(value);
}

/// The numeric assumptions of a profile and their values: rates per second, shares as fractions, durations in seconds.
pub fn assumptions(profile: &Profile) -> Vec<(String, f64)> {
    let mut found = Vec::new();
    each_assumption(&mut profile.clone(), &mut |name, value| found.push((name.to_owned(), *value)));
    found
}

/// The profile with one assumption changed, and the new value.
fn varied(profile: &Profile, name: &str, variation: Variation) -> (Profile, Option<f64>) {
    let mut other = profile.clone();
    let mut taken = None;
    each_assumption(&mut other, &mut |found, value| {
        if found == name {
            *value = variation.of(*value);
            taken = Some(*value);
        }
    });
    (other, taken)
}

/// Parses `NAME=VALUE,…`, where a value is a number, a duration such as `5ms`, a factor such as `2x`, or a change such
/// as `+10%`.
///
/// # Errors
/// The problem, with a hint.
pub fn parse_sweep(profile: &Profile, text: &str) -> Result<Sweep, Problem> {
    let (name, values) = text.split_once('=').ok_or_else(|| {
        Problem::new(Code::InvalidFormat, text, "is not a valid sweep")
            .param("format", "sweep")
            .hint("give a name and values: `events.quotes.rate=2x,4x`")
    })?;
    let known = assumptions(profile);
    if known.iter().all(|(known, _)| known != name) {
        let names = || known.iter().map(|(name, _)| name.as_str());
        // Long names differ by more than a typo allows, so names with the same last part are suggested too.
        let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
        let meant = closest(name, names()).or_else(|| names().find(|known| last(known) == last(name)));
        let hint = match meant {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("its assumptions are {}", names().collect::<Vec<_>>().join(", ")),
        };
        return Err(Problem::new(Code::UnknownName, name, "is not an assumption of the profile").hint(hint));
    }
    let values = values.split(',').map(|value| parse_value(name, value)).collect::<Result<Vec<_>, _>>()?;
    if values.len() > VALUES_MAX {
        let problem = Problem::new(Code::TooMany, name, format!("has {} values", values.len()))
            .param("given", values.len())
            .param("limit", VALUES_MAX);
        return Err(problem.hint(format!("the limit is {VALUES_MAX} values")));
    }
    Ok(Sweep { name: name.to_owned(), values })
}

fn parse_value(name: &str, text: &str) -> Result<Variation, Problem> {
    let text = text.trim();
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| (0.0..=NUMBER_MAX).contains(number));
    let factor = text.strip_suffix('x').or_else(|| text.strip_prefix('x'));
    let percent = text.strip_suffix('%').filter(|_| text.starts_with(['+', '-']));
    let found = match (factor, percent) {
        (Some(factor), _) => number(factor).map(Variation::Times),
        (_, Some(change)) => change.parse::<f64>().ok().and_then(|change| {
            let factor = 1.0 + change / 100.0;
            (0.0..=NUMBER_MAX).contains(&factor).then_some(Variation::Times(factor))
        }),
        _ => number(text).or_else(|| parse_duration(text).ok().map(|length| length.as_secs_f64())).map(Variation::To),
    };
    found.ok_or_else(|| {
        Problem::new(Code::InvalidFormat, name, format!("cannot be `{text}`"))
            .param("format", "quantity")
            .hint("give a number, a duration such as `5ms`, a factor such as `2x`, or a change such as `+10%`")
    })
}

/// Computes a plan for each value.
///
/// # Errors
/// As [`plan`].
pub fn sweep(profile: &Profile, vectors: &Vectors, sweep: &Sweep) -> Result<Vec<SweepResult>, Vec<Problem>> {
    let tried = sweep.values.iter().filter_map(|variation| {
        let (other, value) = varied(profile, &sweep.name, *variation);
        let value = value?;
        Some(plan(&other, vectors).map(|plan| SweepResult { name: sweep.name.clone(), value, plan }))
    });
    tried.collect()
}

/// The sensitivity to each assumption and each measured cost, highest first: the relative change of the first
/// bottleneck's utilisation, with the nodes of this plan, for a small increase. Assumptions without effect are left
/// out.
///
/// # Errors
/// As [`plan`].
pub fn sensitivities(profile: &Profile, vectors: &Vectors) -> Result<Vec<Sensitivity>, Vec<Problem>> {
    let elasticity = |less: f64, more: f64| (more / less).ln() / ((1.0 + STEP) / (1.0 - STEP)).ln();
    let nodes = plan(profile, vectors)?.station_nodes();
    let mut found = Vec::new();
    for (name, value) in assumptions(profile) {
        let with =
            |factor| bottleneck_utilisation(&varied(profile, &name, Variation::Times(factor)).0, vectors, &nodes);
        let elasticity = elasticity(with(1.0 - STEP)?, with(1.0 + STEP)?);
        found.push(Sensitivity { name, value, elasticity });
    }
    for name in vectors.operations.keys() {
        let with = |factor| bottleneck_utilisation(profile, &with_scaled_cost(vectors, name, factor), &nodes);
        let elasticity = elasticity(with(1.0 - STEP)?, with(1.0 + STEP)?);
        found.push(Sensitivity { name: format!("the cost of `{name}`"), value: 1.0, elasticity });
    }
    found.retain(|found| found.elasticity.is_finite() && found.elasticity.abs() > 0.005);
    found.sort_by(|left, right| right.elasticity.abs().total_cmp(&left.elasticity.abs()));
    Ok(found)
}

/// The vectors with the cost of one operation scaled.
fn with_scaled_cost(vectors: &Vectors, name: &str, factor: f64) -> Vectors {
    let mut other = vectors.clone();
    let costs = other.operations.get_mut(name).into_iter().flat_map(|operation| operation.roles.values_mut());
    for cost in costs {
        for linear in [&mut cost.processor, &mut cost.disk, &mut cost.syncs, &mut cost.wire] {
            linear.batch *= factor;
            linear.item *= factor;
            linear.kilobyte *= factor;
        }
    }
    other
}
