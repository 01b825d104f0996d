//! The index agrees with evaluating every subscription for every event, rule by rule: random rules, filters in every
//! dialect, audiences, subscriptions, changes and events.
//!
//! A case is a world generated from its seed. A failure prints the seed and the smallest part of the case that still
//! fails. `TOCSIN_SEED` repeats one case, `TOCSIN_CASES` sets the number of cases, starting at `TOCSIN_SEED` or 0; see
//! `docs/develop/oracle.md`.

mod cel; // CEL filters, by the interpreter
mod jmespath; // JMESPath filters, by another implementation
mod ldap; // audiences, by an independent evaluator of LDAP filters
mod pattern; // event patterns, by an independent matcher
mod rules; // predicates of rules
mod surroundings; // chronicles and attributes
mod values; // classes and values
mod world; // a history, run twice

use fastrand::Rng;
use tocsin_model::{
    filter::Dialect,
    ldap::{LdapFilter, Truth},
};

use surroundings::Surroundings;
use values::{event_fields, one_of, random_row, subscription_fields};
use world::{Act, OwnFilter, RuleText, Subscription, Tally, World};

/// The kind of conditions in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Rule parameters.
    Rules,
    Cel,
    Jmespath,
    Patterns,
    /// Audiences.
    Ldap,
    All,
}

fn random_own(random: &mut Rng, kind: Kind, around: &Surroundings) -> OwnFilter {
    loop {
        let depth = random.u32(0..4);
        let dialect =
            if kind == Kind::All { one_of(random, &[Kind::Cel, Kind::Jmespath, Kind::Patterns]) } else { kind };
        let own = match dialect {
            Kind::Jmespath => jmespath::random_filter(random, depth),
            Kind::Patterns => pattern::random_filter(random, depth.min(2)),
            _ => cel::random_filter(random, depth, around),
        };
        if let Some(own) = own {
            return own;
        }
    }
}

fn random_rule(random: &mut Rng, kind: Kind, segments: usize, around: &Surroundings) -> RuleText {
    // If filters are tested, rules should rarely restrict the matches.
    let is_open = match kind {
        Kind::Rules => random.u8(0..30) == 0,
        _ => random.u8(0..3) > 0,
    };
    let depth = random.u32(0..4);
    RuleText {
        when: if is_open { String::new() } else { rules::random_predicate(random, depth, around) },
        class: if random.u8(0..5) == 0 { "far" } else { "near" },
        audience: (segments > 0 && random.u8(0..4) > 0).then(|| random.usize(0..segments)),
    }
}

fn random_world(seed: u64, kind: Kind) -> World {
    let mut random = Rng::with_seed(seed);
    let random = &mut random;
    // Most worlds are small, so that there can be many; some are large, so that groups grow and are split.
    let is_large = random.u16(0..1_000) == 0;
    let segments = if matches!(kind, Kind::Ldap | Kind::All) { random.usize(1..4) } else { 0 };
    let around = if kind == Kind::Ldap { Surroundings::default() } else { Surroundings::random(random) };
    let rules = (0..random.usize(1..3)).map(|_| random_rule(random, kind, segments, &around)).collect();
    let filters = match (kind, is_large) {
        (Kind::Ldap | Kind::Rules, _) => 0,
        (_, true) => random.usize(40..200),
        (_, false) => random.usize(1..5),
    };
    let filters: Vec<OwnFilter> = (0..filters).map(|_| random_own(random, kind, &around)).collect();
    let people = if segments == 0 && !around.attributes { 1 } else { 4 };
    let mut world = World {
        dialects: random_dialects(random, &filters),
        around,
        rules,
        filters,
        segments: (0..segments).map(|_| ldap::Filter::random(random, 3)).collect(),
        people: (0..people).map(|number| ldap::Person::random(random, number)).collect(),
        acts: Vec::new(),
    };
    let (rounds, changes, ids) = if is_large { (4, 400, 500) } else { (3, 8, 10) };
    for _ in 0..rounds {
        for _ in 0..random.usize(0..changes) {
            let act = random_change(random, &world, ids, people > 1);
            world.acts.push(act);
        }
        if random.u8(0..12) == 0 {
            world.acts.push(Act::Restart);
        }
        let rows = (0..random.usize(1..5)).map(|_| random_row(random, event_fields())).collect();
        world.acts.push(Act::Events(rows));
    }
    world
}

/// The dialects that the class accepts; sometimes none, since that is another code path.
fn random_dialects(random: &mut Rng, filters: &[OwnFilter]) -> Vec<Dialect> {
    if random.bool() {
        return Dialect::ALL.into();
    }
    let is_used = |dialect: &Dialect| filters.iter().any(|own| own.filter.dialect == *dialect);
    Dialect::ALL.into_iter().filter(is_used).collect()
}

fn random_change(random: &mut Rng, world: &World, ids: u64, has_people: bool) -> Act {
    let id = random.u64(0..ids);
    match random.u8(0..12) {
        0 | 1 => Act::Remove(id),
        2 => Act::Disable(id),
        3 => Act::Enable(id),
        4 if has_people => {
            let number = random.usize(0..world.people.len());
            Act::Profile(number, ldap::Person::random(random, number))
        }
        _ => {
            let class = if random.u8(0..6) == 0 { "far" } else { "near" };
            let fields = subscription_fields();
            let takes_filter = class == "near" && !world.filters.is_empty() && random.u8(0..8) > 0;
            Act::Put(
                id,
                Subscription {
                    class,
                    values: fields.to_json(&random_row(random, fields)),
                    channel: ["mail", "web"].get(random.usize(0..3)).copied(),
                    filter: takes_filter.then(|| random.usize(0..world.filters.len())),
                    subscriber: random.usize(0..world.people.len()),
                },
            )
        }
    }
}

/// Calls with the requested seeds.
fn with_seeds(usual: u64, mut case: impl FnMut(u64)) {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, cases) = match (number("TOCSIN_SEED"), number("TOCSIN_CASES")) {
        (Some(seed), None) => (seed, 1),
        (first, cases) => (first.unwrap_or(0), cases.unwrap_or(usual)),
    };
    (first..first.saturating_add(cases)).for_each(&mut case);
}

fn agree(kind: Kind, usual: u64) {
    let mut tally = Tally::default();
    with_seeds(usual, |seed| {
        let world = random_world(seed, kind);
        if let Err(why) = world.live(&mut tally) {
            let (world, why) = world.smallest(why);
            panic!("TOCSIN_SEED={seed} {kind:?}\n{why}\n\n{world}");
        }
        if tally.cases.is_multiple_of(100_000) {
            println!("{kind:?}: {tally:?}, the last with TOCSIN_SEED={seed}");
        }
    });
    println!("{kind:?}: {tally:?}");
    // A run in which nothing matches tests nothing.
    if tally.cases >= 50 {
        assert!(tally.matches > tally.cases && tally.pairs > 2 * tally.matches, "{kind:?}: {tally:?}");
    }
}

#[test]
fn rules_agree() {
    agree(Kind::Rules, 60);
}

#[test]
fn filters_in_cel_agree_with_the_oracle() {
    agree(Kind::Cel, 60);
}

#[test]
fn filters_in_jmespath_agree_with_the_oracle() {
    agree(Kind::Jmespath, 60);
}

#[test]
fn event_patterns_agree() {
    agree(Kind::Patterns, 60);
}

#[test]
fn audiences_agree() {
    agree(Kind::Ldap, 60);
}

#[test]
fn all_together_agree() {
    agree(Kind::All, 60);
}

#[test]
fn ldap_filters_agree_with_their_trees() {
    let mut counts = [0_u64; 3];
    with_seeds(1_000, |seed| {
        let mut random = Rng::with_seed(seed);
        let depth = random.u32(0..4);
        let (read, tree) = ldap::Filter::random(&mut random, depth);
        let again = LdapFilter::parse(read.canonical()).expect("the canonical text");
        for number in 0..4 {
            let person = ldap::Person::random(&mut random, number);
            let (entry, expected) = (person.entry(), tree.evaluate(&person));
            let context = || format!("TOCSIN_SEED={seed}: {tree}, canonically {read}, of {person:?}");
            assert_eq!(read.evaluate(&entry), expected, "{}", context());
            assert_eq!(again.evaluate(&entry), expected, "{}", context());
            let least = read.conjuncts(&entry).into_iter().map(|(_, truth)| truth).min();
            assert_eq!(least.unwrap_or(Truth::True), expected, "{}", context());
            let within = std::ops::RangeBounds::<str>::contains(&read.ids(), person.id.as_str());
            assert!(within || expected != Truth::True, "{}", context());
            counts[expected as usize] += 1;
        }
    });
    println!("false, undefined, true: {counts:?}");
    assert!(counts[0] + counts[1] + counts[2] < 100 || counts.iter().all(|count| *count > 0), "{counts:?}");
}
