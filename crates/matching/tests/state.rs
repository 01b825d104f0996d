//! What rules remember agrees with a model that keeps it in plain maps: random rules, subscriptions, changes, batches,
//! failed commits and restarts, over several shards. A failure prints the seed; `TOCSIN_SEED` repeats it,
//! `TOCSIN_CASES` tries more.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use tocsin_matching::{
    check::{Scope, compile},
    datum::Trouble,
    evaluate::evaluate,
    expression::Expression,
    oracle::{self, Witness},
    rule::{RuleNumber, RuleSet},
    shard::{MatchSink, Run, Shard, Subject, Watch},
    state::{Suppression, remembered::Remembered},
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
        conduct: Default::default(),
        computed: BTreeMap::new(),
        retention: None,
        content: ContentTemplates::default(),
    };
    Application {
        partials: BTreeMap::new(),
        events: [(name("thing"), EventClass { fields: event_fields(), ..EventClass::default() })].into(),
        subscriptions: [(name("near"), class.clone()), (name("far"), class)].into(),
        notifications: [(name("told"), notification)].into(),
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
    Rule { when, state, ..Rule::new(name("thing"), name(class), name("told")) }
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

/// What the model remembers of one subscription, rule and key.
#[derive(Debug, Clone, PartialEq)]
struct Told {
    at: i64,
    value: Value,
    armed: bool,
}

type Key = (RuleNumber, SubscriptionId, String);
type Memories = BTreeMap<Key, Told>;
type Answers = BTreeSet<(EventId, RuleNumber, SubscriptionId)>;

/// An expression of a rule, if it is given.
type Read = Option<Expression>;

/// The rules as the model reads them, and what it remembers.
struct Model {
    rules: Vec<(Rule, Read, Read, Read)>,
    memories: Memories,
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
            memories: Memories::new(),
            suppressed: BTreeMap::new(),
        }
    }

    /// One event: which of these subscriptions are told by which rules.
    fn event(
        &mut self,
        set: &RuleSet,
        row: &[Value],
        at: i64,
        witnesses: &BTreeMap<SubscriptionId, Witness>,
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
            for witness in witnesses.values().filter(|witness| witness.class == rule.subscription) {
                let place = (number, witness.id, key.clone());
                let before = self.memories.get(&place).cloned();
                let matches = oracle::matches(set, &name("thing"), row, witness).contains(&number)
                    && !leave_out.contains(&number);
                if !rule.state.is_kept() {
                    if matches {
                        answers.insert((number, witness.id));
                    }
                    continue;
                }
                let cooldown = rule.state.cooldown.map_or(0, |cooldown| cooldown.as_micros() as i64);
                let reason = before.as_ref().and_then(|told| {
                    if !told.armed {
                        Some(Suppression::Unarmed)
                    } else if rule.state.cooldown.is_some() && at - told.at < cooldown {
                        Some(Suppression::Cooldown)
                    } else {
                        (changed.is_some() && told.value == value).then_some(Suppression::Unchanged)
                    }
                });
                match reason {
                    None if matches => {
                        answers.insert((number, witness.id));
                        let told = Told { at, value: value.clone(), armed: rearm.is_none() };
                        self.memories.insert(place.clone(), told);
                    }
                    Some(reason) if matches => *self.suppressed.entry((number, reason)).or_default() += 1,
                    _ => {}
                }
                if let (Some(told), Some(rearm)) = (before.filter(|told| !told.armed), rearm)
                    && evaluate(rearm, row, &witness.row).ok() == Some(Value::Boolean(true))
                {
                    self.memories.insert(place, Told { armed: true, ..told });
                }
            }
        }
        answers
    }
}

#[derive(Default)]
struct Found {
    answers: Answers,
    twice: usize,
}

impl MatchSink for Found {
    fn run(&mut self, run: Run<'_>) {
        for slot in run.slots {
            let event = EventId { batch: run.batch, ordinal: run.event_ordinal };
            self.twice += usize::from(!self.answers.insert((event, run.rule, run.id(*slot))));
        }
    }

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, trouble: Trouble) {
        panic!("{trouble}");
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, trouble: Trouble, _: u32) {
        panic!("{trouble}");
    }
}

/// Shards, and the journal that keeps their pages.
struct Platform {
    set: Arc<RuleSet>,
    shards: Vec<Shard>,
    journal: BTreeMap<(Box<str>, u64), StatePage>,
    /// Pages of the commits that are on their way, with what the model remembered before each.
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

    /// New shards, perhaps more or fewer, from the records and the journal.
    fn restart(&mut self, parts: usize, witnesses: &BTreeMap<SubscriptionId, Witness>) {
        let journal = std::mem::take(&mut self.journal);
        *self = Platform { journal, ..Platform::start(self.set.clone(), parts) };
        witnesses.values().for_each(|witness| self.put(witness));
        let mut remembered = Remembered::read(&self.set, self.journal.values().cloned());
        assert_eq!(remembered.damaged, 0);
        self.shards.iter_mut().for_each(|shard| shard.restore_states(&mut remembered));
        let rest = remembered.rest(&self.set);
        self.shards.iter_mut().for_each(|shard| shard.take_over_states(&rest));
    }

    fn shard(&mut self, id: SubscriptionId) -> &mut Shard {
        let parts = self.shards.len() as u64;
        &mut self.shards[(id.0 * 7 % parts) as usize]
    }

    fn put(&mut self, witness: &Witness) {
        let values = subscription_fields().to_json(&witness.row);
        let (id, class) = (witness.id, witness.class.clone());
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

    /// Commits the oldest quantum that is on its way.
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
    let mut witnesses: BTreeMap<SubscriptionId, Witness> = BTreeMap::new();
    let mut platform = Platform::start(set.clone(), random.usize(1..4));
    let (mut now, mut last, mut batch) = (0i64, 0, 0);
    for round in 0..40 {
        let context = || format!("seed {seed}, round {round}, rules {rules:#?}");
        for _ in 0..random.usize(0..30) {
            let id = if random.bool() { last + 1 } else { random.u64(1..last + 2) };
            let present = witnesses.contains_key(&SubscriptionId(id));
            if id <= last && !present {
                continue;
            }
            last = last.max(id);
            let id = SubscriptionId(id);
            if present && random.u8(0..3) == 0 {
                platform.shard(id).remove(id);
                witnesses.remove(&id);
                model.memories.retain(|(_, other, _), _| *other != id);
                platform.commits.iter_mut().for_each(|(_, before)| before.retain(|(_, other, _), _| *other != id));
            } else {
                let class = witnesses.get(&id).map(|witness| witness.class.clone());
                let class = class.unwrap_or_else(|| name(if random.u8(0..4) == 0 { "far" } else { "near" }));
                let row = random_row(&mut random, &subscription_fields());
                let values = subscription_fields().to_json(&row);
                witnesses.insert(id, Witness::read(&set, id, &class, &values, None).expect("a subscription"));
                platform.put(&witnesses[&id]);
            }
        }

        let before = model.memories.clone();
        let (mut expected, mut found) = (Answers::new(), Found::default());
        platform.shards.iter_mut().for_each(Shard::begin_states);
        for _ in 0..random.usize(1..4) {
            // Clocks are set back at times.
            now += random.i64(-2..9) * 1_000_000;
            batch += 1;
            let id = EventBatchId(batch);
            let rows: Vec<Row> = (0..random.usize(1..6)).map(|_| random_row(&mut random, &event_fields())).collect();
            let left_out = if random.u8(0..5) == 0 { vec![RuleNumber(0)] } else { Vec::new() };
            for (ordinal, row) in rows.iter().enumerate() {
                let event = EventId { batch: id, ordinal: ordinal as u32 };
                let answers = model.event(&set, row, now, &witnesses, &left_out);
                expected.extend(answers.into_iter().map(|(rule, id)| (event, rule, id)));
            }
            for shard in &mut platform.shards {
                let watch = Watch { left_out: &left_out, ..Watch::default() };
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
            // It is matched, but never committed.
            0 => {
                platform.shards.iter_mut().for_each(Shard::undo_states);
                model.memories = before;
            }
            // The commit fails, and so does what was matched meanwhile.
            1 => {
                platform.commits.push_back((pages, before));
                while let Some((_, before)) = platform.commits.pop_back() {
                    platform.shards.iter_mut().for_each(Shard::undo_states);
                    model.memories = before;
                }
            }
            // The process dies.
            2 => {
                platform.commits.push_back((pages, before));
                if let Some((_, before)) = platform.commits.front() {
                    model.memories = before.clone();
                }
                let parts = random.usize(1..4);
                platform.restart(parts, &witnesses);
            }
            _ => {
                platform.commits.push_back((pages, before));
                if platform.commits.len() > 1 || random.bool() {
                    platform.commit();
                }
            }
        }
    }
    // What nobody needs is not kept for ever: the model keeps all that was ever told, the shards only what counts.
    let kept: usize = platform.shards.iter().map(Shard::memories).sum();
    assert!(kept <= model.memories.len(), "seed {seed}: {kept} memories of {}", model.memories.len());
}

#[test]
fn what_is_remembered_agrees_with_the_model() {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("TOCSIN_SEED") {
        return case(seed);
    }
    for seed in 0..number("TOCSIN_CASES").unwrap_or(8) {
        case(seed);
    }
}
