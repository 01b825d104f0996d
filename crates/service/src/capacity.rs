//! Capacity plans, and a load profile derived from recorded activity. A plan is computed outside of the threads of
//! requests, within limits of size and time.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tocsin_capacity::{
    Plan, Profile, Vectors,
    observed::{DerivedProfile, ObservedChannel, ObservedEvents, ObservedLoad, derive},
    papers::{PAPERS, Paper, Statement},
    plan, read_profile, read_vectors,
    what_if::{Sensitivity, SweepResult, assumptions, parse_sweep, sensitivities, sweep},
};
use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_store::{
    journal::{ActivityRow, Count, Stream, Timing, Window},
    records::{CapacityProfile, NewCapacityProfile, Precondition},
};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    subscribers::Put,
};

/// Plans that are computed at the same time.
pub(crate) const PLANS_MAX: usize = 2;
/// Maximum size of a profile or of vectors, in bytes.
pub const TEXT_BYTES_MAX: usize = 512 * 1024;
/// Maximum number of what-if expressions, and of their values together.
const SWEEPS_MAX: usize = 10;
const SWEEP_VALUES_MAX: usize = 100;
/// Maximum number of assumptions and costs of which the sensitivity is computed.
const SENSITIVITIES_MAX: usize = 1_000;
/// Time after which no further part of a plan is computed.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Default and maximum period of a derived profile.
const USUAL: Duration = Duration::from_secs(7 * 86_400);
const LONGEST: Duration = Duration::from_secs(92 * 86_400);
const HOUR: Duration = Duration::from_secs(3_600);

/// A plan to compute.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanRequest {
    /// The profile, as YAML or JSON; `None`: that of the published example.
    pub profile: Option<String>,
    /// Name of a published example.
    pub paper: Option<String>,
    /// The costs, as YAML or JSON; `None`: those of the example, or the configured ones.
    pub vectors: Option<String>,
    /// Other values of assumptions, such as `events.quotes.rate=2x,4x`.
    pub what_if: Vec<String>,
    /// Whether the sensitivity to each assumption is computed.
    pub sensitivities: bool,
}

/// A computed plan.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputedPlan {
    /// The plan.
    pub plan: Plan,
    /// Sensitivity to each assumption, the most influential first.
    pub sensitivities: Vec<Sensitivity>,
    /// Plans with other values of assumptions.
    pub what_if: Vec<SweepResult>,
    /// Statements of the published example.
    pub statements: Vec<Statement>,
    /// Assumptions that can be varied, with their values.
    pub assumptions: Vec<(String, f64)>,
}

/// A profile derived from recorded activity.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedProfile {
    /// The profile.
    pub derived: DerivedProfile,
    /// Start of the recorded time.
    pub from: Timestamp,
    /// End of the recorded time.
    pub to: Timestamp,
    /// Number of events.
    pub events: u64,
    /// Number of notifications.
    pub notifications: u64,
}

impl Service {
    /// Computes a plan.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the profile, the vectors or a what-if expression is invalid; too many plans
    /// are computed; the plan takes too long.
    pub async fn plan_capacity(&self, caller: &Caller, request: PlanRequest) -> Result<ComputedPlan, ServiceError> {
        caller.needs_everywhere(Scope::OperationsRead)?;
        let configured = self.capacity_vectors(caller)?;
        let permit = self.plans.clone().try_acquire_owned().map_err(|_| ServiceError::TooMany {
            reason: format!("{PLANS_MAX} plans are being computed"),
            retry_after: Duration::from_secs(2),
        })?;
        let work = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            compute(&request, configured, Instant::now() + TIME_MAX)
        });
        let computed = work.await.map_err(|error| ServiceError::Unavailable(error.into()))?;
        computed.map_err(ServiceError::Invalid)
    }

    /// The configured costs of this machine, if any.
    ///
    /// # Errors
    /// The scope `operations:read` is missing.
    pub fn capacity_vectors(&self, caller: &Caller) -> Result<Option<Vectors>, ServiceError> {
        caller.needs_everywhere(Scope::OperationsRead)?;
        Ok(self.saturation.as_ref().and_then(|monitor| monitor.lock().vectors().cloned()))
    }

    /// Saved profiles, by name.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the store failed.
    pub async fn capacity_profiles(&self, caller: &Caller) -> Result<Vec<CapacityProfile>, ServiceError> {
        caller.needs_everywhere(Scope::OperationsRead)?;
        Ok(self.capacity_profile_store.capacity_profiles().await?)
    }

    /// A saved profile.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; there is none of this name.
    pub async fn capacity_profile(&self, caller: &Caller, name: &Name) -> Result<CapacityProfile, ServiceError> {
        caller.needs_everywhere(Scope::OperationsRead)?;
        let found = self.capacity_profile_store.capacity_profile(name).await?;
        found.ok_or_else(|| ServiceError::Missing(format!("the capacity profile `{name}`")))
    }

    /// Checks and saves a profile. Returns whether it is new.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; the profile is invalid; another revision is stored; there are too many.
    pub async fn put_capacity_profile(
        &self,
        caller: &Caller,
        name: &Name,
        text: String,
        put: Put,
    ) -> Result<(CapacityProfile, bool), ServiceError> {
        caller.needs_everywhere(Scope::OperationsWrite)?;
        checked_size("profile", &text).map_err(ServiceError::Invalid)?;
        read_profile(&text).map_err(|problems| ServiceError::Invalid(below("profile", problems)))?;
        let expect = match put {
            Put::Create => Precondition::Absent,
            Put::Replace(Some(revision)) => Precondition::Revision(revision),
            Put::Replace(None) => Precondition::Any,
        };
        let is_new = self.capacity_profile_store.capacity_profile(name).await?.is_none();
        let author = caller.key().to_owned();
        let new = NewCapacityProfile { name: name.clone(), text, author };
        let stored = self.capacity_profile_store.put_capacity_profile(new, expect, self.clock.now());
        Ok((stored.await?, is_new))
    }

    /// Removes a saved profile. `revision`: the expected one.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; there is none of this name, or of this revision.
    pub async fn remove_capacity_profile(
        &self,
        caller: &Caller,
        name: &Name,
        revision: Option<u64>,
    ) -> Result<(), ServiceError> {
        caller.needs_everywhere(Scope::OperationsWrite)?;
        Ok(self.capacity_profile_store.remove_capacity_profile(name, revision).await?)
    }

    /// Derives a load profile from the activity of a period; default: the last seven days. Times are rounded to hours,
    /// and the period begins with the first recorded activity.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the period is empty or too long; the store failed.
    pub async fn recorded_profile(
        &self,
        caller: &Caller,
        name: Option<&Name>,
        from: Option<Timestamp>,
        to: Option<Timestamp>,
    ) -> Result<RecordedProfile, ServiceError> {
        caller.needs_everywhere(Scope::OperationsRead)?;
        let to = hour_of(to.unwrap_or_else(|| self.clock.now()) + (HOUR - Duration::from_micros(1)));
        let from = hour_of(from.unwrap_or(to - USUAL));
        if from >= to {
            return Err(ServiceError::invalid(Code::OutOfRange, "from", "is not before `to`"));
        }
        if to.since(from) > LONGEST {
            return Err(ServiceError::invalid(Code::OutOfRange, "from", "is more than 92 days before `to`"));
        }
        let rows = self.activity_log.activity(&Window { from, to, interval: HOUR }, None).await?;
        // The last hour may not be over.
        let to = to.min(self.clock.now()).max(from);
        let mut load = observed(&rows, to, &|application, channel| {
            let running = self.pipeline.application(application)?;
            Some(running.application.channels.get(channel)?.protocol.to_string())
        });
        let counts = self.installation.counts();
        let stored = [("subscribers", counts.subscribers), ("subscriptions", counts.subscriptions)];
        load.stored = stored.into_iter().map(|(what, count)| (what.to_owned(), count as f64)).collect();
        let from = if rows.is_empty() { from } else { to - load.time };
        load.name = name.map_or_else(|| "recorded".to_owned(), Name::to_string);
        load.description = format!("derived from the activity of {from} to {to}");
        let sum = |count: Count| rows.iter().map(|row| row.activity.count(count)).sum();
        Ok(RecordedProfile {
            derived: derive(&load),
            from,
            to,
            events: sum(Count::Events),
            notifications: sum(Count::Notifications),
        })
    }
}

fn hour_of(time: Timestamp) -> Timestamp {
    let hour = i64::try_from(HOUR.as_micros()).unwrap_or(i64::MAX);
    Timestamp(time.0 - time.0.rem_euclid(hour))
}

/// Sums the rows of hours by class and channel. `protocol`: the protocol of a channel, if it is known.
fn observed(rows: &[ActivityRow], to: Timestamp, protocol: &dyn Fn(&Name, &Name) -> Option<String>) -> ObservedLoad {
    let applications: std::collections::BTreeSet<&Name> = rows.iter().map(|row| row.stream.application()).collect();
    // Names of one application stay short; with several, the application is part of them.
    let named = |application: &Name, part: &Name| match applications.len() {
        0 | 1 => part.to_string(),
        _ => format!("{application}-{part}").chars().take(64).collect(),
    };
    let mut load = ObservedLoad::default();
    let mut hours: BTreeMap<i64, f64> = BTreeMap::new();
    let mut answers: BTreeMap<String, (Duration, u64)> = BTreeMap::new();
    for row in rows {
        let count = |count: Count| row.activity.count(count) as f64;
        *hours.entry(row.from.0).or_default() += count(Count::Events) + count(Count::Notifications);
        match &row.stream {
            Stream::Events { application, class, .. } => {
                let stream: &mut ObservedEvents = load.events.entry(named(application, class)).or_default();
                stream.batches += count(Count::EventBatches);
                stream.events += count(Count::Events);
                stream.bytes += count(Count::EventBytes);
            }
            Stream::Notifications { application, event_class, channel, .. } => {
                let stream = load.events.entry(named(application, event_class)).or_default();
                let channel_name = named(application, channel);
                *stream.notifications.entry(channel_name.clone()).or_default() += count(Count::Notifications);
                let answer = row.activity.timing(Timing::Answer);
                if let Some(average) = answer.average() {
                    let (sum, times) = answers.entry(channel_name.clone()).or_default();
                    *sum += average * u32::try_from(answer.count).unwrap_or(u32::MAX);
                    *times += answer.count;
                }
                let known = load.channels.entry(channel_name).or_default();
                if known.protocol.is_none() {
                    *known = ObservedChannel { protocol: protocol(application, channel), answer: None };
                }
            }
            Stream::Firings { .. } => {}
        }
    }
    for (name, (sum, times)) in answers {
        if let Some(channel) = load.channels.get_mut(&name) {
            channel.answer = Some(sum.div_f64(times.max(1) as f64));
        }
    }
    let step = i64::try_from(HOUR.as_micros()).unwrap_or(i64::MAX);
    if let Some(first) = hours.keys().next().copied() {
        load.time = to.since(Timestamp(first));
        let all = (0..).map(|at| first + at * step).take_while(|hour| *hour < to.0);
        load.hours = all
            .map(|hour| (hour.div_euclid(step).rem_euclid(24) as usize, hours.get(&hour).copied().unwrap_or_default()))
            .collect();
    }
    load
}

/// Problems of one document of the request.
fn below(part: &str, problems: Vec<Problem>) -> Vec<Problem> {
    let moved = problems.into_iter().map(|mut problem| {
        problem.path = match problem.path.is_empty() {
            true => part.to_owned(),
            false => format!("{part}.{}", problem.path),
        };
        problem
    });
    moved.collect()
}

/// Computes a plan. Blocks.
fn compute(
    request: &PlanRequest,
    configured: Option<Vectors>,
    deadline: Instant,
) -> Result<ComputedPlan, Vec<Problem>> {
    let paper = request.paper.as_deref().map(find_paper).transpose()?;
    let (profile, vectors) = documents(request, paper, configured)?;
    let assumptions = assumptions(&profile);
    if request.sensitivities && assumptions.len() + vectors.operations.len() > SENSITIVITIES_MAX {
        let what = format!("are of more than {SENSITIVITIES_MAX} assumptions: plan without them");
        return Err(vec![Problem::new(Code::TooComplex, "sensitivities", what).param("limit", SENSITIVITIES_MAX)]);
    }
    let in_time = || match Instant::now() < deadline {
        true => Ok(()),
        false => {
            let what =
                format!("takes longer than {} s: give fewer what-if values or a smaller profile", TIME_MAX.as_secs());
            Err(vec![Problem::new(Code::TooComplex, "", what).param("limit", TIME_MAX.as_secs())])
        }
    };
    let of_profile = |problems| below("profile", problems);
    let plan = plan(&profile, &vectors).map_err(of_profile)?;
    in_time()?;
    let mut sweeps = Vec::new();
    for (at, text) in request.what_if.iter().enumerate() {
        let path = format!("what_if[{at}]");
        sweeps.push(parse_sweep(&profile, text).map_err(|problem| vec![Problem { path, ..problem }])?);
    }
    let values: usize = sweeps.iter().map(|sweep| sweep.values.len()).sum();
    if sweeps.len() > SWEEPS_MAX || values > SWEEP_VALUES_MAX {
        let what = format!("has more than {SWEEPS_MAX} expressions, or {SWEEP_VALUES_MAX} values in all");
        let problem = Problem::new(Code::TooMany, "what_if", what).param("limit", SWEEP_VALUES_MAX);
        return Err(vec![problem.param("given", values)]);
    }
    let mut what_if = Vec::new();
    for requested in &sweeps {
        what_if.extend(sweep(&profile, &vectors, requested).map_err(of_profile)?);
        in_time()?;
    }
    let sensitivities = match request.sensitivities {
        true => sensitivities(&profile, &vectors).map_err(of_profile)?,
        false => Vec::new(),
    };
    Ok(ComputedPlan {
        sensitivities,
        what_if,
        statements: paper.map(|paper| (paper.statements)(&plan)).unwrap_or_default(),
        assumptions,
        plan,
    })
}

/// Refuses a document that is too long.
fn checked_size(path: &str, text: &str) -> Result<(), Vec<Problem>> {
    match text.len() > TEXT_BYTES_MAX {
        true => Err(vec![
            Problem::new(Code::TooLong, path, format!("is longer than {TEXT_BYTES_MAX} bytes"))
                .param("limit", TEXT_BYTES_MAX)
                .param("unit", "bytes"),
        ]),
        false => Ok(()),
    }
}

/// The profile and the vectors of a request.
fn documents(
    request: &PlanRequest,
    paper: Option<&'static Paper>,
    configured: Option<Vectors>,
) -> Result<(Profile, Vectors), Vec<Problem>> {
    let required = |path: &str, what: &str| vec![Problem::new(Code::Required, path, what)];
    let published = paper.map(Paper::read);
    let profile = match (&request.profile, &published) {
        (Some(text), _) => {
            checked_size("profile", text)?;
            read_profile(text).map_err(|problems| below("profile", problems))?
        }
        (None, Some((profile, _))) => profile.clone(),
        (None, None) => return Err(required("profile", "is missing, and so is `paper`")),
    };
    let vectors = match (&request.vectors, published) {
        (Some(text), _) => {
            checked_size("vectors", text)?;
            read_vectors(text).map_err(|problems| below("vectors", problems))?
        }
        (None, Some((_, vectors))) => vectors,
        (None, None) => configured.ok_or_else(|| {
            let what = "is missing, and the configuration has none; measure the costs with `tocsin bench vectors`, and \
                        set `capacity.vectors` to the file";
            required("vectors", what)
        })?,
    };
    Ok((profile, vectors))
}

fn find_paper(name: &str) -> Result<&'static Paper, Vec<Problem>> {
    Paper::find(name).ok_or_else(|| {
        let names: Vec<&str> = PAPERS.iter().map(|paper| paper.name).collect();
        let problem = Problem::new(Code::UnknownValue, "paper", format!("`{name}` is not a published example"));
        vec![problem.param("value", name.to_owned()).hint(format!("examples are {}", names.join(", ")))]
    })
}

#[cfg(test)]
mod tests {
    use tocsin_store::journal::Activity;

    use super::*;

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(3_600)
    }

    #[test]
    fn a_published_example_is_planned_with_variations() {
        let request = PlanRequest {
            paper: Some("peak".to_owned()),
            what_if: vec!["events.alerts.rate=1x,2x".to_owned()],
            sensitivities: true,
            ..PlanRequest::default()
        };
        let computed = compute(&request, None, far()).expect("a plan");
        assert_eq!((computed.what_if.len(), computed.statements.is_empty()), (2, false));
        assert!(computed.sensitivities.iter().any(|found| found.name == "events.alerts.rate"));
        let late = compute(&request, None, Instant::now()).expect_err("the time is over");
        assert_eq!(late[0].code, Code::TooComplex);
    }

    #[test]
    fn problems_name_their_document() {
        let check = |request: PlanRequest, path: &str| {
            let problems = compute(&request, None, far()).expect_err("wrong");
            assert_eq!(problems[0].path, path, "{problems:?}");
        };
        let paper = || PlanRequest { paper: Some("peak".to_owned()), ..PlanRequest::default() };
        check(PlanRequest::default(), "profile");
        check(PlanRequest { paper: Some("moon".to_owned()), ..PlanRequest::default() }, "paper");
        let profile = Some("profile: a\nevents: { b: { rate: { count: 1, per: 1s }, matchs: 4 } }\n".to_owned());
        check(PlanRequest { profile, ..paper() }, "profile.events.b.matchs");
        check(PlanRequest { vectors: Some("vectors: 7\n".to_owned()), ..paper() }, "vectors.machine");
        check(PlanRequest { what_if: vec!["nothing=2x".to_owned()], ..paper() }, "what_if[0]");
        let profile = Some(PAPERS[0].profile.to_owned());
        check(PlanRequest { profile, ..PlanRequest::default() }, "vectors");
        let many: String = (0..150).map(|at| format!("  e{at}: {{ rate: {{ count: 1, per: 1s }} }}\n")).collect();
        let profile = Some(format!("profile: a\nevents:\n{many}"));
        check(PlanRequest { profile, sensitivities: true, ..paper() }, "sensitivities");
        let long = Some(" ".repeat(TEXT_BYTES_MAX + 1));
        check(PlanRequest { profile: long, ..paper() }, "profile");
    }

    #[test]
    fn activity_becomes_rates_by_class_and_shares_by_channel() {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        let hour = |at: i64| Timestamp(at * 3_600_000_000);
        let row = |at: i64, stream: Stream| ActivityRow { stream, from: hour(at), activity: Activity::default() };
        let events = Stream::Events { application: name("quakes"), class: name("quake"), source: name("api") };
        let sent = Stream::Notifications {
            application: name("quakes"),
            rule: name("near"),
            class: name("shaken"),
            event_class: name("quake"),
            channel: name("mail"),
        };
        let load = observed(&[row(2, events), row(4, sent)], hour(6), &|_, _| Some("smtp".to_owned()));
        assert_eq!(load.time, 4 * HOUR, "from the first recorded hour on");
        assert_eq!(load.hours.iter().map(|(hour, _)| *hour).collect::<Vec<_>>(), [2, 3, 4, 5]);
        assert_eq!(load.channels["mail"].protocol.as_deref(), Some("smtp"));
        assert!(load.events.contains_key("quake"));
    }
}
