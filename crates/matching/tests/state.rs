//! Property test: suppression state agrees with a model in plain maps, over random rules, subscriptions, changes,
//! batches, failed commits and restarts, on several shards. A failure prints the seed; `TOCSIN_SEED` repeats it,
//! `TOCSIN_CASES` runs more.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use tocsin_matching::{
    check::{Scope, compile},
    eval_value::EvalError,
    evaluate::evaluate,
    expression::Expression,
    oracle::{self, SubscriptionView},
    rule::{RuleNumber, RuleSet},
    shard::{MatchOptions, MatchSink, Run, Shard, Subject},
    state::{Suppression, restored::RestoredStates},
};
use tocsin_model::{
    application::{Application, ContentTemplates, EventClass, NotificationClass, Rule, RuleState, SubscriptionClass},
    field::{Field, FieldType, Fields, Row},
    id::{EventBatchId, EventId, Name, SubscriberNumber, SubscriptionId},
    state::StatePage,
    time::Timestamp,
    value::Value,
};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn fields(list: &[(&str, FieldType)]) -> Fields {
    let field = |(text, kind): &(&str, FieldType)| Field::new(name(text), *kind);
    Fields::new(list.iter().map(field).collect())
}

fn event_fields() -> Fields {
    fields(&[("s", FieldType::String), ("n", FieldType::Number), ("i", FieldType::Integer)])
}

fn subscription_fields() -> Fields {
    fields(&[("s", FieldType::String), ("n", FieldType::Number), ("m", FieldType::Number)])
}

fn application(rules: Vec<Rule>) -> Application {
    let class = SubscriptionClass { fields: subscription_fields(), ..SubscriptionClass::default() };
    let notification = NotificationClass {
        fields: fields(&[]),
        description: None,
        batch_size: 7,
        expires_after: None,
        delivery_policy: Default::default(),
        computed: BTreeMap::new(),
        retention: None,
        content: ContentTemplates::default(),
    };
    Application {
        partials: BTreeMap::new(),
        events: [(name("thing"), EventClass { fields: event_fields(), ..EventClass::default() })].into(),
        subscriptions: [(name("near"), class.clone()), (name("far"), class)].into(),
        notifications: [(name("alert"), notification)].into(),
        rules: rules.into_iter().enumerate().map(|(at, rule)| (name(&format!("r{at}")), rule)).collect(),
        ..Application::new(name("app"))
    }
}

fn some(random: &mut Rng, choices: &[&str]) -> Option<String> {
    random.bool().then(|| choices[random.usize(0..choices.len())].to_owned())
}

fn random_rule(random: &mut Rng) -> Rule {
    let class = if random.u8(0..4) == 0 { "far" } else { "near" };
    let mut state = RuleState {
        per: some(random, &["event.s", "event.i", "event.n", "event.i % 2"]),
        cooldown: random.bool().then(|| Duration::from_secs(random.u64(1..20))),
        rearm: some(
            random,
            &[
                "event.n < sub.n - 1.0",
                "event.s == sub.s && event.n < sub.n",
                "event.i == 0",
                "sub.m > event.n",
                "false",
            ],
        ),
        changed: some(random, &["event.i", "event.s", "event.n > 0.5", "[event.s, event.i]"]),
    };
    if !state.is_kept() {
        state.per = None;
    }
    let when =
        some(random, &["event.s == sub.s", "event.n >= sub.n", "event.s == sub.s && event.n > sub.m", "event.i > 0"]);
    Rule { when, state, ..Rule::new(name("thing"), name(class), name("alert")) }
}

fn random_row(random: &mut Rng, fields: &Fields) -> Row {
    let value = |field: &Field| match field.kind {
        _ if random.u8(0..12) == 0 => Value::Null,
        FieldType::String => Value::from(["a", "b", "c"][random.usize(0..3)]),
        FieldType::Integer => Value::Integer(random.i64(-1..3)),
        _ => Value::Number(f64::from(random.i32(-3..4)) / 2.0),
    };
    fields.iter().map(value).collect()
}

/// The model's state of one subscription, rule and key.
#[derive(Debug, Clone, PartialEq)]
struct NotifiedState {
    at: i64,
    value: Value,
    armed: bool,
}

type Key = (RuleNumber, SubscriptionId, String);
type Memories = BTreeMap<Key, NotifiedState>;
type Answers = BTreeSet<(EventId, RuleNumber, SubscriptionId)>;

/// A parsed expression of a rule, if it is declared.
type Read = Option<Expression>;

/// The parsed rules, and the model's state.
struct Model {
    rules: Vec<(Rule, Read, Read, Read)>,
    states: Memories,
    suppressed: BTreeMap<(RuleNumber, Suppression), u64>,
}

impl Model {
    fn new(application: &Application) -> Model {
        let scope = Scope { event: event_fields(), subscription: subscription_fields(), ..Scope::default() };
        let read =
            |source: &Option<String>| source.as_ref().map(|source| compile(source, &scope).expect("it is right"));
        let rule =
            |rule: &Rule| (rule.clone(), read(&rule.state.per), read(&rule.state.changed), read(&rule.state.rearm));
        Model {
            rules: application.rules.values().map(rule).collect(),
            states: Memories::new(),
            suppressed: BTreeMap::new(),
        }
    }

    /// Applies one event: returns which of these subscriptions are notified by which rules.
    fn event(
        &mut self,
        set: &RuleSet,
        row: &[Value],
        at: i64,
        subscription_views: &BTreeMap<SubscriptionId, SubscriptionView>,
        leave_out: &[RuleNumber],
    ) -> BTreeSet<(RuleNumber, SubscriptionId)> {
        let mut answers = BTreeSet::new();
        for (at_rule, (rule, per, changed, rearm)) in self.rules.iter().enumerate() {
            let number = RuleNumber(at_rule as u32);
            let one = |expression: &Option<Expression>| match expression {
                None => Some(Value::Null),
                Some(expression) => evaluate(expression, row, &[]).ok(),
            };
            let (Some(key), Some(value)) = (one(per), one(changed)) else { continue };
            // Integers and numbers that are equal are the same key.
            let key = match &key {
                Value::Integer(integer) => format!("{:?}", *integer as f64),
                Value::Number(number) => format!("{number:?}").replace("-0.0", "0.0"),
                other => format!("{other:?}"),
            };
            for subscription_view in
                subscription_views.values().filter(|subscription_view| subscription_view.class == rule.subscription)
            {
                let place = (number, subscription_view.id, key.clone());
                let before = self.states.get(&place).cloned();
                let matches = oracle::matches(set, &name("thing"), row, subscription_view).contains(&number)
                    && !leave_out.contains(&number);
                if !rule.state.is_kept() {
                    if matches {
                        answers.insert((number, subscription_view.id));
                    }
                    continue;
                }
                let cooldown = rule.state.cooldown.map_or(0, |cooldown| cooldown.as_micros() as i64);
                let reason = before.as_ref().and_then(|last| {
                    if !last.armed {
                        Some(Suppression::Unarmed)
                    } else if rule.state.cooldown.is_some() && at - last.at < cooldown {
                        Some(Suppression::Cooldown)
                    } else {
                        (changed.is_some() && last.value == value).then_some(Suppression::Unchanged)
                    }
                });
                match reason {
                    None if matches => {
                        answers.insert((number, subscription_view.id));
                        let last = NotifiedState { at, value: value.clone(), armed: rearm.is_none() };
                        self.states.insert(place.clone(), last);
                    }
                    Some(reason) if matches => *self.suppressed.entry((number, reason)).or_default() += 1,
                    _ => {}
                }
                if let (Some(last), Some(rearm)) = (before.filter(|last| !last.armed), rearm)
                    && evaluate(rearm, row, &subscription_view.row).ok() == Some(Value::Boolean(true))
                {
                    self.states.insert(place, NotifiedState { armed: true, ..last });
                }
            }
        }
        answers
    }
}

#[derive(Default)]
struct MatchCollector {
    answers: Answers,
    twice: usize,
}

impl MatchSink for MatchCollector {
    fn run(&mut self, run: Run<'_>) {
        for slot in run.slots {
            let event = EventId { batch: run.batch, ordinal: run.event_ordinal };
            self.twice += usize::from(!self.answers.insert((event, run.rule, run.id(*slot))));
        }
    }

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, error: EvalError) {
        panic!("{error}");
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, error: EvalError, _: u32) {
        panic!("{error}");
    }
}

/// The shards, and the journal with their pages.
struct Platform {
    set: Arc<RuleSet>,
    shards: Vec<Shard>,
    journal: BTreeMap<(Box<str>, u64), StatePage>,
    /// Pages of pending commits, with the model's state before each.
    commits: VecDeque<(Vec<StatePage>, Memories)>,
}

impl Platform {
    fn start(set: Arc<RuleSet>, parts: usize) -> Platform {
        let shard = |part| {
            let mut shard = Shard::new(set.clone());
            shard.set_part(part as u16, parts as u16);
            shard
        };
        Platform { shards: (0..parts).map(shard).collect(), set, journal: BTreeMap::new(), commits: VecDeque::new() }
    }

    /// Creates new shards, possibly more or fewer, from the records and the journal.
    fn restart(&mut self, parts: usize, subscription_views: &BTreeMap<SubscriptionId, SubscriptionView>) {
        let journal = std::mem::take(&mut self.journal);
        *self = Platform { journal, ..Platform::start(self.set.clone(), parts) };
        subscription_views.values().for_each(|subscription_view| self.put(subscription_view));
        let mut remembered = RestoredStates::read(&self.set, self.journal.values().cloned());
        assert_eq!(remembered.damaged, 0);
        self.shards.iter_mut().for_each(|shard| shard.restore_states(&mut remembered));
        let rest = remembered.rest(&self.set);
        self.shards.iter_mut().for_each(|shard| shard.take_over_states(&rest));
    }

    fn shard(&mut self, id: SubscriptionId) -> &mut Shard {
        let parts = self.shards.len() as u64;
        &mut self.shards[(id.0 * 7 % parts) as usize]
    }

    fn put(&mut self, subscription_view: &SubscriptionView) {
        let values = subscription_fields().to_json(&subscription_view.row);
        let (id, class) = (subscription_view.id, subscription_view.class.clone());
        let subject = Subject {
            id,
            subscriber: SubscriberNumber(id.0),
            class: &class,
            values: &values,
            channel: None,
            filter: None,
        };
        self.shard(id).put(subject).expect("a subscription");
    }

    /// Commits the oldest pending quantum.
    fn commit(&mut self) {
        let Some((pages, _)) = self.commits.pop_front() else { return };
        for page in pages {
            let key = (page.name.clone(), page.number);
            if page.body.is_empty() {
                self.journal.remove(&key)
            } else {
                self.journal.insert(key, page)
            };
        }
        self.shards.iter_mut().for_each(Shard::confirm_states);
    }
}

fn case(seed: u64) {
    let mut random = Rng::with_seed(seed);
    let rules: Vec<Rule> = (0..random.usize(1..4)).map(|_| random_rule(&mut random)).collect();
    let application = application(rules.clone());
    let set = Arc::new(RuleSet::compile(&application).unwrap_or_else(|problems| panic!("seed {seed}: {problems:?}")));
    let mut model = Model::new(&application);
    let mut subscription_views: BTreeMap<SubscriptionId, SubscriptionView> = BTreeMap::new();
    let mut platform = Platform::start(set.clone(), random.usize(1..4));
    let (mut now, mut last, mut batch) = (0i64, 0, 0);
    for round in 0..40 {
        let context = || format!("seed {seed}, round {round}, rules {rules:#?}");
        for _ in 0..random.usize(0..30) {
            let id = if random.bool() { last + 1 } else { random.u64(1..last + 2) };
            let present = subscription_views.contains_key(&SubscriptionId(id));
            if id <= last && !present {
                continue;
            }
            last = last.max(id);
            let id = SubscriptionId(id);
            if present && random.u8(0..3) == 0 {
                platform.shard(id).remove(id);
                subscription_views.remove(&id);
                model.states.retain(|(_, other, _), _| *other != id);
                platform.commits.iter_mut().for_each(|(_, before)| before.retain(|(_, other, _), _| *other != id));
            } else {
                let class = subscription_views.get(&id).map(|subscription_view| subscription_view.class.clone());
                let class = class.unwrap_or_else(|| name(if random.u8(0..4) == 0 { "far" } else { "near" }));
                let row = random_row(&mut random, &subscription_fields());
                let values = subscription_fields().to_json(&row);
                subscription_views
                    .insert(id, SubscriptionView::read(&set, id, &class, &values, None).expect("a subscription"));
                platform.put(&subscription_views[&id]);
            }
        }

        let before = model.states.clone();
        let (mut expected, mut found) = (Answers::new(), MatchCollector::default());
        platform.shards.iter_mut().for_each(Shard::begin_states);
        for _ in 0..random.usize(1..4) {
            // The clock is set back at times.
            now += random.i64(-2..9) * 1_000_000;
            batch += 1;
            let id = EventBatchId(batch);
            let rows: Vec<Row> = (0..random.usize(1..6)).map(|_| random_row(&mut random, &event_fields())).collect();
            let excluded_rules = if random.u8(0..5) == 0 { vec![RuleNumber(0)] } else { Vec::new() };
            for (ordinal, row) in rows.iter().enumerate() {
                let event = EventId { batch: id, ordinal: ordinal as u32 };
                let answers = model.event(&set, row, now, &subscription_views, &excluded_rules);
                expected.extend(answers.into_iter().map(|(rule, id)| (event, rule, id)));
            }
            for shard in &mut platform.shards {
                let watch = MatchOptions { excluded_rules: &excluded_rules, ..MatchOptions::default() };
                shard.match_rows((id, Timestamp(now)), &name("thing"), &rows, watch, &mut found);
            }
        }
        assert_eq!(found.twice, 0, "{}", context());
        let wrong: Vec<_> =
            found.answers.symmetric_difference(&expected).map(|one| (one, expected.contains(one))).collect();
        assert!(wrong.is_empty(), "found or (true) missing: {wrong:?}; {}", context());
        let mut suppressed = BTreeMap::new();
        for (rule, reason, count) in platform.shards.iter_mut().flat_map(Shard::take_suppressed) {
            *suppressed.entry((rule, reason)).or_default() += count;
        }
        assert_eq!(suppressed, std::mem::take(&mut model.suppressed), "{}", context());

        let pages: Vec<StatePage> = platform.shards.iter_mut().flat_map(Shard::take_states).collect();
        let numbers: BTreeSet<_> = pages.iter().map(|page| (&page.name, page.number)).collect();
        assert_eq!(numbers.len(), pages.len(), "two shards write one page; {}", context());
        match random.u8(0..10) {
            // Matched, but never committed.
            0 => {
                platform.shards.iter_mut().for_each(Shard::undo_states);
                model.states = before;
            }
            // The commit fails, and so does everything matched since.
            1 => {
                platform.commits.push_back((pages, before));
                while let Some((_, before)) = platform.commits.pop_back() {
                    platform.shards.iter_mut().for_each(Shard::undo_states);
                    model.states = before;
                }
            }
            // The process crashes.
            2 => {
                platform.commits.push_back((pages, before));
                if let Some((_, before)) = platform.commits.front() {
                    model.states = before.clone();
                }
                let parts = random.usize(1..4);
                platform.restart(parts, &subscription_views);
            }
            _ => {
                platform.commits.push_back((pages, before));
                if platform.commits.len() > 1 || random.bool() {
                    platform.commit();
                }
            }
        }
    }
    // Expired state is removed: the model keeps all entries, the shards only live ones.
    let kept: usize = platform.shards.iter().map(Shard::state_count).sum();
    assert!(kept <= model.states.len(), "seed {seed}: {kept} states of {}", model.states.len());
}

#[test]
fn suppression_state_agrees_with_the_model() {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("TOCSIN_SEED") {
        return case(seed);
    }
    for seed in 0..number("TOCSIN_CASES").unwrap_or(8) {
        case(seed);
    }
}
