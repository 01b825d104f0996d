//! A random world: rules, filters and audiences, and a history of changes and events. It is run twice, by the index and
//! by evaluating every subscription for every event.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
};

use serde_json::Value as Json;
use tocsin_matching::{
    chronicle::store::ChronicleStore,
    cut::NotificationCutter,
    eval_value::EvalError,
    oracle::{self, SubscriptionView},
    rule::{Memberships, RuleNumber, RuleSet},
    shard::{MatchSink, Run, Shard, Subject},
    subscriber::SubscriberView,
};
use tocsin_model::{
    application::{Application, ContentTemplates, EventClass, NotificationClass, Rule, SubscriptionClass},
    event::{EventBatch, EventPacker},
    field::Row,
    filter::{Dialect, Filter},
    id::{EventBatchId, EventId, Name, SubscriberNumber, SubscriptionId},
    ldap::{LdapFilter, Truth},
    time::Timestamp,
    value::Value,
};

use crate::{
    jmespath, ldap,
    pattern::{self, Leaf},
    surroundings::{REGION_AT, Surroundings},
    values::{as_json, event_fields, name, notification_fields, subscription_fields},
};

/// Whether an event and a subscriber match a filter.
type Holds = dyn Fn(&Event, &ldap::Person) -> bool;

/// A subscription's own filter, and an independent implementation of it.
#[derive(Clone)]
pub struct OwnFilter {
    pub filter: Filter,
    pub holds: Rc<Holds>,
}

impl fmt::Debug for OwnFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.filter.dialect, self.filter.text)
    }
}

/// An event in the representations of the implementations.
pub struct Event {
    pub row: Row,
    /// Its chronicle values.
    pub chronicled: Row,
    event_list: OnceCell<::jmespath::Rcvar>,
    leaves: OnceCell<Vec<Leaf>>,
}

impl Event {
    fn new(row: Row, chronicled: Row) -> Event {
        Event { row, chronicled, event_list: OnceCell::new(), leaves: OnceCell::new() }
    }

    fn json(&self) -> Json {
        as_json(&self.row)
    }

    pub fn event_list(&self) -> ::jmespath::Rcvar {
        self.event_list.get_or_init(|| jmespath::event_list(&self.json())).clone()
    }

    pub fn leaves(&self) -> &[Leaf] {
        self.leaves.get_or_init(|| pattern::leaves(&self.json()))
    }
}

#[derive(Debug, Clone)]
pub struct RuleText {
    pub when: String,
    pub class: &'static str,
    /// The number of the audience's segment.
    pub audience: Option<usize>,
}

#[derive(Debug, Clone)]
pub struct Subscription {
    pub class: &'static str,
    pub values: String,
    pub channel: Option<&'static str>,
    pub filter: Option<usize>,
    pub subscriber: usize,
}

#[derive(Debug, Clone)]
pub enum Act {
    Put(u64, Subscription),
    Remove(u64),
    Enable(u64),
    Disable(u64),
    /// A profile changes, and with it the audiences of the subscriber.
    Profile(usize, ldap::Person),
    /// The index is rebuilt.
    Restart,
    Events(Vec<Row>),
}

#[derive(Clone)]
pub struct World {
    pub around: Surroundings,
    /// The filter dialects of the subscription class `near`.
    pub dialects: Vec<Dialect>,
    pub rules: Vec<RuleText>,
    pub filters: Vec<OwnFilter>,
    pub segments: Vec<(LdapFilter, ldap::Filter)>,
    pub people: Vec<ldap::Person>,
    pub acts: Vec<Act>,
}

/// Counts of comparisons.
#[derive(Debug, Default)]
pub struct Tally {
    pub cases: u64,
    pub events: u64,
    /// Pairs of a rule and a subscription compared for an event.
    pub pairs: u64,
    pub matches: u64,
}

const BATCH_SIZE: u32 = 7;

impl World {
    fn application(&self) -> Application {
        let class = |filter: Vec<Dialect>| SubscriptionClass {
            fields: subscription_fields().clone(),
            filter,
            ..SubscriptionClass::default()
        };
        let thing = EventClass {
            fields: event_fields().clone(),
            chronicles: self.around.chronicles(),
            ..EventClass::default()
        };
        let notification = NotificationClass {
            fields: notification_fields(),
            description: None,
            batch_size: BATCH_SIZE,
            expires_after: None,
            delivery_policy: Default::default(),
            computed: BTreeMap::new(),
            retention: None,
            content: ContentTemplates::default(),
        };
        let rules = self.rules.iter().enumerate().map(|(at, rule)| {
            let region = self.around.attributes.then_some(("region", "subscriber.attributes.region"));
            let with = [("gap", "event.n - sub.n"), ("their", "sub.i")].into_iter().chain(region);
            let rule = Rule {
                when: (!rule.when.is_empty()).then(|| rule.when.clone()),
                audience: rule.audience.map(|segment| name(&format!("seg{segment}"))),
                with: with.map(|(field, source)| (name(field), source.to_owned())).collect(),
                ..Rule::new(name("thing"), name(rule.class), name("alert"))
            };
            (name(&format!("r{at}")), rule)
        });
        Application {
            events: [(name("thing"), thing)].into(),
            attributes: self.around.attributes(),
            subscriptions: [(name("near"), class(self.dialects.clone())), (name("far"), class(Vec::new()))].into(),
            notifications: [(name("alert"), notification)].into(),
            rules: rules.collect(),
            ..Application::new(name("app"))
        }
    }

    /// Runs the world.
    ///
    /// # Errors
    /// The first disagreement.
    pub fn live(&self, tally: &mut Tally) -> Result<(), String> {
        tally.cases += 1;
        catch_unwind(AssertUnwindSafe(|| Life::begin(self)?.live(tally)))
            .unwrap_or_else(|_| Err("something panicked".to_owned()))
    }

    /// Shrinks the world: the smallest part of its history, and the fewest rules, that still disagree.
    pub fn smallest(mut self, mut why: String) -> (World, String) {
        let mut step = self.acts.len().max(1);
        while step > 0 {
            let mut at = 0;
            while at < self.acts.len() {
                let mut less = self.clone();
                less.acts.drain(at..(at + step).min(self.acts.len()));
                match less.live(&mut Tally::default()) {
                    Err(still) => (self, why) = (less, still),
                    Ok(()) => at += step,
                }
            }
            step /= 2;
        }
        for at in (0..self.rules.len()).rev() {
            let mut less = self.clone();
            less.rules.remove(at);
            if let Err(still) = less.live(&mut Tally::default()) {
                (self, why) = (less, still);
            }
        }
        for act in 0..self.acts.len() {
            let Act::Events(rows) = &self.acts[act] else { continue };
            for row in (0..rows.len()).rev() {
                let mut less = self.clone();
                let Act::Events(rows) = &mut less.acts[act] else { continue };
                rows.remove(row);
                if let Err(still) = less.live(&mut Tally::default()) {
                    (self, why) = (less, still);
                }
            }
        }
        (self, why)
    }
}

/// The shrunk world, for display.
impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}, filters in {:?}", self.around, self.dialects)?;
        for (at, rule) in self.rules.iter().enumerate() {
            writeln!(f, "rule r{at} {rule:?}")?;
        }
        for act in &self.acts {
            writeln!(f, "{act:?}")?;
            if let Act::Put(_, Subscription { filter: Some(filter), .. }) = act {
                writeln!(f, "  with {:?}", self.filters[*filter])?;
            }
        }
        for (at, (filter, _)) in self.segments.iter().enumerate() {
            writeln!(f, "segment seg{at} {filter}")?;
        }
        Ok(())
    }
}

/// The state of a running world.
struct Life<'w> {
    world: &'w World,
    set: Arc<RuleSet>,
    shard: Shard,
    people: Vec<ldap::Person>,
    /// Every subscription, and whether it is enabled.
    there: BTreeMap<u64, (Subscription, bool)>,
    /// The enabled subscriptions, for the oracle.
    subscription_views: BTreeMap<u64, SubscriptionView>,
    class: Name,
    batches: u64,
    chronicles: ChronicleStore,
    /// All events so far.
    log: Vec<Row>,
}

impl<'w> Life<'w> {
    fn begin(world: &'w World) -> Result<Life<'w>, String> {
        let set = RuleSet::compile(&world.application());
        let set = Arc::new(set.map_err(|problems| format!("{problems:?}"))?);
        Ok(Life {
            world,
            shard: Shard::new(Arc::clone(&set)),
            people: world.people.clone(),
            there: BTreeMap::new(),
            subscription_views: BTreeMap::new(),
            class: name("thing"),
            batches: 0,
            chronicles: ChronicleStore::new(Arc::clone(&set)),
            log: Vec::new(),
            set,
        })
    }

    fn live(mut self, tally: &mut Tally) -> Result<(), String> {
        for (at, act) in self.world.acts.iter().enumerate() {
            match act {
                Act::Put(id, subscription) => {
                    self.there.insert(*id, (subscription.clone(), true));
                    self.apply_state(*id);
                }
                Act::Remove(id) => {
                    self.there.remove(id);
                    self.apply_state(*id);
                }
                Act::Enable(id) | Act::Disable(id) => {
                    if let Some((_, enabled)) = self.there.get_mut(id) {
                        *enabled = matches!(act, Act::Enable(_));
                    }
                    self.apply_state(*id);
                }
                Act::Profile(number, person) => {
                    self.people[*number] = person.clone();
                    let theirs = self.there.iter().filter(|(_, (other, _))| other.subscriber == *number);
                    let theirs: Vec<u64> = theirs.map(|(id, _)| *id).collect();
                    theirs.into_iter().for_each(|id| self.apply_state(id));
                }
                Act::Restart => {
                    self.shard = Shard::new(Arc::clone(&self.set));
                    let all: Vec<u64> = self.there.keys().copied().collect();
                    all.into_iter().for_each(|id| self.apply_state(id));
                }
                Act::Events(rows) => self.compare(rows, tally).map_err(|why| format!("act {at}: {why}"))?,
            }
        }
        Ok(())
    }

    /// Applies the present state of a subscription to both sides.
    fn apply_state(&mut self, number: u64) {
        let id = SubscriptionId(number);
        let Some((subscription, true)) = self.there.get(&number) else {
            self.shard.remove(id);
            self.subscription_views.remove(&number);
            return;
        };
        let person = &self.people[subscription.subscriber];
        let (class, channel) = (name(subscription.class), subscription.channel.map(name));
        let filter = subscription.filter.map(|at| &self.world.filters[at].filter);
        let subject = Subject {
            id,
            subscriber: SubscriberNumber(subscription.subscriber as u64),
            class: &class,
            values: &subscription.values,
            channel: channel.as_ref(),
            filter,
        };
        let memberships = self.memberships(|(filter, _)| filter.matches(&person.entry()));
        let columns = self.set.subscriber_columns().map(|columns| columns.row(&person.id, &person.profile));
        let view = SubscriberView { memberships, columns: columns.unwrap_or_default() };
        self.shard.put_of(subject, view).expect("a subscription");
        // Its own filter is evaluated separately.
        let subscription_view =
            SubscriptionView::read(&self.set, id, &class, &subscription.values, None).expect("a subscription");
        let view = SubscriberView {
            memberships: self.memberships(|(_, filter)| filter.evaluate(person) == Truth::True),
            columns: self.set.subscriber_columns().map(|_| self.world.around.of(person)).unwrap_or_default(),
        };
        self.subscription_views.insert(number, subscription_view.of(&self.set, view));
    }

    fn memberships(&self, is_member: impl Fn(&(LdapFilter, ldap::Filter)) -> bool) -> Memberships {
        let number = |segment: &Name| segment.as_str()[3..].parse::<usize>().expect("the number of a segment");
        let bits = self
            .set
            .audiences()
            .iter()
            .enumerate()
            .map(|(at, segment)| u64::from(is_member(&self.world.segments[number(segment)])) << at);
        Memberships(bits.sum())
    }

    fn compare(&mut self, rows: &[Row], tally: &mut Tally) -> Result<(), String> {
        let (batch, taken) = self.accept(rows);
        let events: Vec<Event> = rows.iter().map(|row| self.event(row)).collect();
        let mut expected = BTreeSet::new();
        for (ordinal, event) in events.iter().enumerate() {
            for (number, subscription_view) in &self.subscription_views {
                let subscription = &self.there[number].0;
                let own = subscription.filter.map(|at| &self.world.filters[at]);
                let person = &self.people[subscription.subscriber];
                let rules = oracle::matches(&self.set, &self.class, &taken[ordinal], subscription_view);
                if !rules.is_empty() && own.is_none_or(|own| (own.holds)(event, person)) {
                    expected.extend(rules.into_iter().map(|rule| (ordinal as u32, rule, subscription_view.id)));
                }
            }
        }
        tally.events += rows.len() as u64;
        tally.pairs += (rows.len() * self.subscription_views.len() * self.world.rules.len()) as u64;
        tally.matches += expected.len() as u64;

        let mut found = MatchCollector::default();
        self.shard.match_batch(&batch, event_fields(), &mut found).expect("a batch");
        if self.shard.len() != self.subscription_views.len() {
            return Err(format!("{} subscriptions in place of {}", self.shard.len(), self.subscription_views.len()));
        }
        if found.twice > 0 {
            return Err(format!("matched twice, {} times", found.twice));
        }
        if let Some(wrong) = found.pairs.symmetric_difference(&expected).next() {
            let (ordinal, rule, id) = wrong;
            let subscription_view = &self.subscription_views[&id.0];
            let own = self.there[&id.0].0.filter.map(|at| &self.world.filters[at]);
            return Err(format!(
                "the index says {}, looking at it {}\nrule {:?}\nevent {}\nwith {:?}\nparameters {:?}, {:?}\nfilter {own:?}",
                found.pairs.contains(wrong),
                expected.contains(wrong),
                self.world.rules[rule.0 as usize],
                as_json(&rows[*ordinal as usize]),
                events[*ordinal as usize].chronicled,
                subscription_view.row,
                subscription_view.memberships,
            ));
        }
        self.cut(&batch, rows, &expected)
    }

    /// A batch of these events, and its rows as rules read them.
    fn accept(&mut self, rows: &[Row]) -> (EventBatch, Vec<Row>) {
        self.batches += 1;
        let mut batch = batch(self.batches, rows);
        let mut taken = self.set.rows(&batch, event_fields()).expect("a batch");
        self.chronicles.begin();
        batch.chronicled = self.chronicles.take(&self.class, &mut taken, batch.accepted_at);
        (batch, taken)
    }

    /// The next event.
    fn event(&mut self, row: &Row) -> Event {
        let chronicled = self.world.around.chronicled(&self.log, row);
        if !self.world.around.chronicles.is_empty() {
            self.log.push(row.clone());
        }
        Event::new(row.clone(), chronicled)
    }

    /// The notification batches contain all matches, with the captured fields.
    fn cut(
        &mut self,
        batch: &EventBatch,
        rows: &[Row],
        expected: &BTreeSet<(u32, RuleNumber, SubscriptionId)>,
    ) -> Result<(), String> {
        let mut cutter = NotificationCutter::new();
        self.shard.match_batch(batch, event_fields(), &mut cutter).expect("a batch");
        let (batches, _) = cutter.finish(&self.set);
        let mut cut = BTreeSet::new();
        for batch in &batches {
            let notifications = &batch.notifications;
            if !(1..=BATCH_SIZE as usize).contains(&notifications.count()) {
                return Err(format!("a batch of {}", notifications.count()));
            }
            let column = |wanted: &str| {
                let mut columns = notifications.captured.iter();
                columns.find(|(name, _)| name.as_str() == wanted).map(|(_, column)| column).expect("it is captured")
            };
            let (gaps, theirs) = (column("gap"), column("their"));
            let regions = self.world.around.attributes.then(|| column("region"));
            for (at, event) in notifications.event_of_each().enumerate() {
                let id = notifications.subscriptions[at];
                if !cut.insert((event.ordinal, batch.rule, id)) {
                    return Err(format!("{id} was cut twice"));
                }
                let (row, subscription_view) = (&rows[event.ordinal as usize], &self.subscription_views[&id.0]);
                let gap = match (&row[3], &subscription_view.row[4]) {
                    (Value::Number(event), Value::Number(their)) => Value::from(event - their),
                    _ => Value::Null,
                };
                if theirs.value(at).as_ref() != Some(&subscription_view.row[2]) || gaps.value(at).as_ref() != Some(&gap)
                {
                    return Err(format!("{id} captured {:?} and {:?}", theirs.value(at), gaps.value(at)));
                }
                let region = || &subscription_view.row[subscription_fields().len() + REGION_AT];
                if let Some(wrong) = regions.and_then(|regions| regions.value(at)).filter(|found| found != region()) {
                    return Err(format!("{id} captured {wrong:?} of its subscriber"));
                }
            }
        }
        if cut == *expected { Ok(()) } else { Err("the cutter lost or made notifications".to_owned()) }
    }
}

fn batch(number: u64, rows: &[Row]) -> EventBatch {
    let mut packer = EventPacker::new(event_fields().clone());
    rows.iter().for_each(|row| packer.push(row));
    EventBatch {
        id: EventBatchId(number),
        application: name("app"),
        version: 1,
        class: name("thing"),
        source: name("api"),
        received_at: Timestamp(0),
        accepted_at: Timestamp(0),
        snapshot_sequence: None,
        events: packer.finish(),
        chronicled: Default::default(),
    }
}

#[derive(Default)]
struct MatchCollector {
    pairs: BTreeSet<(u32, RuleNumber, SubscriptionId)>,
    twice: usize,
}

impl MatchSink for MatchCollector {
    fn run(&mut self, run: Run<'_>) {
        for slot in run.slots {
            let fresh = self.pairs.insert((run.event_ordinal, run.rule, run.id(*slot)));
            self.twice += usize::from(!fresh);
        }
    }

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, error: EvalError) {
        panic!("{error}");
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, error: EvalError, _: u32) {
        panic!("{error}");
    }
}
