//! Time series for charts: sums and durations by minute from the activity of the journal, and gauges and rates of the
//! last hour by ten seconds from samples in memory.

mod catalogue; // names, kinds and units of all series
mod ring; // samples of the last hour

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tocsin_model::{
    definition::write_duration,
    id::Name,
    problem::{Code, Problem, closest},
    time::Timestamp,
};
use tocsin_store::journal::{Activity, Stream, Window};

pub(crate) use self::ring::SampleRing;
use self::{
    catalogue::{MINUTE, Measure},
    ring::Sample,
};
pub use self::{
    catalogue::{SERIES, SeriesDescription, SeriesKind, SeriesUnit},
    ring::SAMPLE_EVERY,
};
use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    known::Part,
};

/// Maximum number of points of a series.
pub const POINTS_MAX: u64 = 2_000;
/// Maximum number of series of one request.
pub const SERIES_MAX: usize = 20;
/// Period of a request that gives none.
const PERIOD: Duration = Duration::from_secs(3_600);
/// Number of points of a request that gives no step.
const POINTS_USUAL: u64 = 400;
/// Steps of requests that give none, in seconds.
const STEPS: [u64; 8] = [10, 60, 300, 900, 3_600, 21_600, 86_400, 604_800];

/// Selection of series.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SeriesQuery {
    /// Names, separated by commas.
    pub names: String,
    /// Application.
    pub application: Option<Name>,
    /// Event class of events, notification class of notifications.
    pub class: Option<Name>,
    /// Rule of notifications and firings.
    pub rule: Option<Name>,
    /// Channel of notifications.
    pub channel: Option<Name>,
    /// Start; default: an hour before the end.
    pub from: Option<Timestamp>,
    /// End, exclusive; default: now.
    pub to: Option<Timestamp>,
    /// Length of an interval.
    pub step: Option<Duration>,
}

impl SeriesQuery {
    fn is_filtered(&self) -> bool {
        self.application.is_some() || self.class.is_some() || self.rule.is_some() || self.channel.is_some()
    }

    /// Whether a stream of the journal satisfies the filters. A stream without the filtered property does not.
    fn includes(&self, stream: &Stream) -> bool {
        let is = |wanted: &Option<Name>, found: Option<&Name>| wanted.is_none() || wanted.as_ref() == found;
        let (class, rule, channel) = match stream {
            Stream::Events { class, .. } => (Some(class), None, None),
            Stream::Notifications { class, rule, channel, .. } => (Some(class), Some(rule), Some(channel)),
            Stream::Firings { rule, .. } => (None, Some(rule), None),
        };
        is(&self.class, class) && is(&self.rule, rule) && is(&self.channel, channel)
    }
}

/// Series over common intervals.
#[derive(Debug, Clone, PartialEq)]
pub struct SeriesSet {
    /// Start of the first interval.
    pub from: Timestamp,
    /// End of the last interval, exclusive.
    pub to: Timestamp,
    /// Length of an interval.
    pub step: Duration,
    /// The series, in the order requested.
    pub series: Vec<Series>,
}

impl SeriesSet {
    /// Starts of the intervals.
    pub fn times(&self) -> impl Iterator<Item = Timestamp> + '_ {
        (0..points(self.from, self.to, self.step) as u32).map(|at| self.from + self.step * at)
    }
}

/// Values by interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Description.
    pub description: &'static SeriesDescription,
    /// Value of each interval; `None`: it is unknown, or nothing was measured.
    pub values: Vec<Option<f64>>,
}

fn points(from: Timestamp, to: Timestamp, step: Duration) -> u64 {
    u64::try_from(to.since(from).as_micros().div_ceil(step.as_micros().max(1))).unwrap_or(u64::MAX)
}

fn floor(time: Timestamp, step: Duration) -> Timestamp {
    Timestamp(time.0 - time.0.rem_euclid(step.as_micros() as i64))
}

impl Service {
    /// Lists the series.
    pub fn series_names(&self) -> &'static [SeriesDescription] {
        &SERIES
    }

    /// Records a sample of the counters. It costs no I/O.
    pub fn sample_series(&self) {
        let state = self.saturation.as_ref().map(|watch| watch.lock().state()).unwrap_or_default();
        let of_resources = state.resources.iter().map(|resource| resource.headroom);
        let of_roles = state.roles.iter().map(|role| role.headroom);
        self.samples.record(Sample {
            at: self.clock.now(),
            backlog: self.open_work.backlog(),
            totals: self.activity_log.totals(),
            headroom: of_resources.chain(of_roles).flatten().min_by(f64::total_cmp),
            busiest: state.resources.first().map(|resource| resource.used),
        });
    }

    /// Records samples until it is dropped.
    pub async fn sample_series_regularly(self: Arc<Self>) {
        let mut tick = tokio::time::interval(SAMPLE_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.sample_series();
        }
    }

    /// Returns series over common intervals.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; a limited key gives no application of its own; `Invalid` with the problems
    /// of names, period and step; a name of a filter never existed.
    pub async fn series(&self, caller: &Caller, query: &SeriesQuery) -> Result<SeriesSet, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        caller.check_application(query.application.as_ref())?;
        let wanted = descriptions(&query.names)?;
        let (from, to, step) = self.intervals_of(query, &wanted)?;
        let count = points(from, to, step) as usize;
        let parts = [
            (Part::Class, query.class.as_ref()),
            (Part::Rule, query.rule.as_ref()),
            (Part::Channel, query.channel.as_ref()),
        ];
        if query.is_filtered() {
            self.check_known(query.application.as_ref(), &parts).await?;
        }
        let needs_activity = step >= MINUTE && wanted.iter().any(|found| !found.is_gauge());
        let activity = match needs_activity {
            true => {
                let _permit = self.search_permit()?;
                self.activity_by_interval(query, Window { from, to, interval: step }).await?
            }
            false => BTreeMap::new(),
        };
        let idle = Activity::default();
        let series = wanted.into_iter().map(|description| {
            let start = |at: usize| from + step * at as u32;
            let value = |at: usize| match (&description.measure, step >= MINUTE) {
                (Measure::Gauge(gauge), _) => self.samples.mean(start(at), start(at + 1), *gauge),
                (Measure::Sum(_, Some(total)), false) => self.samples.increase(start(at), start(at + 1), *total),
                (Measure::Sum(sum, _), _) => Some(sum(activity.get(&start(at)).unwrap_or(&idle)) as f64),
                (Measure::Duration(timing, statistic), _) => {
                    activity.get(&start(at)).and_then(|found| statistic.of(found.timing(*timing)))
                }
            };
            Series { description, values: (0..count).map(value).collect() }
        });
        let series = series.collect();
        Ok(SeriesSet { from, to, step, series })
    }

    async fn activity_by_interval(
        &self,
        query: &SeriesQuery,
        window: Window,
    ) -> Result<BTreeMap<Timestamp, Activity>, ServiceError> {
        let mut intervals: BTreeMap<Timestamp, Activity> = BTreeMap::new();
        for row in self.activity_log.activity(&window, query.application.as_ref()).await? {
            if query.includes(&row.stream) {
                intervals.entry(row.from).or_default().add(&row.activity);
            }
        }
        Ok(intervals)
    }

    /// Whole intervals that cover the period of a query.
    fn intervals_of(
        &self,
        query: &SeriesQuery,
        wanted: &[&'static SeriesDescription],
    ) -> Result<(Timestamp, Timestamp, Duration), ServiceError> {
        let mut problems = Vec::new();
        if query.is_filtered() {
            problems.extend(wanted.iter().filter(|found| found.is_gauge()).map(|found| {
                let message = format!("`{}` is of the whole installation", found.name);
                Problem::new(Code::NotApplicable, "names", message).hint("leave out the filters, or this name")
            }));
        }
        let to = query.to.unwrap_or_else(|| self.clock.now());
        let from = query.from.unwrap_or_else(|| to - PERIOD);
        if from >= to {
            problems.push(Problem::new(Code::OutOfRange, "from", "is not before `to`"));
            return Err(ServiceError::Invalid(problems));
        }
        let step_min = if query.is_filtered() || wanted.iter().any(|found| found.step_min() >= MINUTE) {
            MINUTE
        } else {
            SAMPLE_EVERY
        };
        let usual = || {
            let steps = STEPS.map(Duration::from_secs).into_iter().filter(|step| *step >= step_min);
            steps.into_iter().find(|step| points(from, to, *step) <= POINTS_USUAL).unwrap_or(MINUTE * 10_080)
        };
        let step = query.step.unwrap_or_else(usual);
        let unit = if step < MINUTE { SAMPLE_EVERY } else { MINUTE };
        if step < step_min || !step.as_micros().is_multiple_of(unit.as_micros()) {
            let least = write_duration(step_min);
            let message = format!("is not a multiple of {} of at least {least}", write_duration(unit.max(step_min)));
            let problem = Problem::new(Code::OutOfRange, "step", message);
            problems.push(problem.hint("series of durations, and those with filters, have one value a minute"));
            return Err(ServiceError::Invalid(problems));
        }
        let start = floor(from, unit);
        let count = points(start, to, step);
        if count > POINTS_MAX {
            let problem = Problem::new(Code::TooMany, "step", format!("gives {count} points of each series"));
            problems.push(problem.param("limit", POINTS_MAX).hint("make it longer, or the period shorter"));
        }
        match problems.is_empty() {
            true => Ok((start, start + step * count as u32, step)),
            false => Err(ServiceError::Invalid(problems)),
        }
    }
}

/// Descriptions of the names in a list.
fn descriptions(names: &str) -> Result<Vec<&'static SeriesDescription>, ServiceError> {
    let (mut wanted, mut problems) = (Vec::new(), Vec::new());
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match SERIES.iter().find(|found| found.name == name) {
            Some(found) => wanted.push(found),
            None => {
                let hint = match closest(name, SERIES.iter().map(|found| found.name.as_str())) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => "`GET /v1/series/names` lists them".to_owned(),
                };
                let problem = Problem::new(Code::UnknownValue, "names", format!("`{name}` is not a series"));
                problems.push(problem.param("value", name.to_owned()).hint(hint));
            }
        }
    }
    if wanted.is_empty() && problems.is_empty() {
        problems
            .push(Problem::new(Code::Required, "names", "is required").hint("`GET /v1/series/names` lists the names"));
    }
    if wanted.len() > SERIES_MAX {
        let problem = Problem::new(Code::TooMany, "names", format!("names more than {SERIES_MAX} series"));
        problems.push(problem.param("limit", SERIES_MAX));
    }
    if problems.is_empty() { Ok(wanted) } else { Err(ServiceError::Invalid(problems)) }
}
