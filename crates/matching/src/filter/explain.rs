//! Explains the placement of a filter, as text.

use std::{
    fmt::{self, Display},
    sync::Arc,
};

use tocsin_model::field::Fields;

use crate::filter::{
    compiled::CompiledFilter,
    condition::{Case, Condition, Test, ValueTest},
    index::{
        FilterIndex, FilterPlacement, ScanReason, combinations,
        extractors::Extraction,
        placement,
        plan::{Conjunction, Plan},
    },
    show::show,
};

/// The placement of a filter in an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterExplanation {
    /// Whether only some events cost anything.
    pub placement: FilterPlacement,
    /// Each of its alternatives; an event that finds one makes the filter a candidate.
    pub locations: Vec<IndexLocation>,
    /// Whether a candidate must be evaluated.
    pub is_evaluated: bool,
}

/// The placement of one alternative of a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexLocation {
    /// The values that find it, all of which an event must have; empty if a range finds it, or nothing.
    pub keys: Vec<String>,
    /// The range that finds it in addition.
    pub range: Option<String>,
    /// The number of further tests for a candidate.
    pub asked: usize,
    /// The number of conjunctions in the same group: those that an event with these values must check, unless they are
    /// sorted by ranges or further values.
    pub neighbours: usize,
}

impl Display for ScanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ScanReason::Opaque => "only evaluating it decides whether it matches",
            ScanReason::NoValue => "it requires no value of an event, only the absence of values",
            ScanReason::NoCommonValue => {
                "it has more than 16 alternatives, and no set of values of which each alternative requires one"
            }
        })
    }
}

impl FilterIndex {
    /// The placement of a filter in this index, or the one it would get, with the field names of its class.
    pub fn explain(&self, filter: &CompiledFilter, fields: &Fields) -> FilterExplanation {
        let plan = Plan::of(filter.condition(), !filter.is_exact());
        let placement = placement(&plan, filter.condition(), filter.is_exact());
        let locations = plan.conjunctions.iter().map(|conjunction| self.place(conjunction, fields)).collect();
        FilterExplanation { placement, locations, is_evaluated: !filter.is_exact() }
    }

    fn place(&self, conjunction: &Conjunction<'_>, fields: &Fields) -> IndexLocation {
        let neighbours = self.find_signature(conjunction).map_or(0, |(at, alternatives)| {
            combinations(&alternatives).map(|key| self.signatures[at].group_len(&key)).max().unwrap_or(0)
        });
        let range =
            conjunction.ranges().map(|(test, ends)| (!ends.is_closed(), test)).min_by_key(|(is_open, _)| *is_open);
        IndexLocation {
            keys: conjunction
                .keys
                .iter()
                .map(|key| key_text(key.test, key.extraction, key.names.len(), fields))
                .collect(),
            range: range.map(|(_, test)| test_text(test, fields)),
            asked: conjunction.rests.len() - usize::from(range.is_some()),
            neighbours,
        }
    }
}

/// Sentences, one a line.
impl Display for FilterExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.placement {
            FilterPlacement::Never => return f.write_str("it never matches"),
            FilterPlacement::Always => return f.write_str("it matches every event"),
            FilterPlacement::Indexed => f.write_str("it is a candidate only for events with certain values")?,
            FilterPlacement::Scanned(why) => write!(f, "it is a candidate for every event: {why}")?,
        }
        for place in &self.locations {
            f.write_str("\n- ")?;
            let found = place.keys.iter().chain(&place.range);
            match found.clone().next() {
                None => f.write_str("every event")?,
                Some(_) => found
                    .enumerate()
                    .try_for_each(|(at, text)| write!(f, "{}{text}", if at == 0 { "" } else { " and " }))?,
            }
            match place.asked {
                0 => {}
                1 => f.write_str(", then 1 more test")?,
                asked => write!(f, ", then {asked} more tests")?,
            }
            if place.neighbours > 1 {
                write!(f, "; {} filters are in the same group", place.neighbours)?;
            }
        }
        if self.is_evaluated {
            f.write_str("\na candidate is evaluated")?;
        }
        Ok(())
    }
}

fn key_text(test: &Test, extraction: Extraction, names: usize, fields: &Fields) -> String {
    let value_test = match (&test.value_test, extraction) {
        (ValueTest::Matches(_), _) => {
            let which = if names == 1 { "a text" } else { "one of the texts" };
            return format!("{which} required by {}", test_text(test, fields));
        }
        (ValueTest::Wildcard(wildcard), extraction) => {
            let (first, last) = (wildcard.parts().first(), wildcard.parts().last());
            let text = |part: Option<&Arc<str>>| part.map_or("", |part| &**part).to_owned();
            match extraction {
                Extraction::Prefix(..) => ValueTest::prefix(&text(first), Case::Sensitive),
                Extraction::Suffix(..) => ValueTest::suffix(&text(last), Case::Sensitive),
                _ => ValueTest::contains(&text(wildcard.parts().iter().max_by_key(|part| part.len())), Case::Sensitive),
            }
        }
        _ => return test_text(test, fields),
    };
    test_text(&Test { path: test.path.clone(), value_test }, fields)
}

fn test_text(test: &Test, fields: &Fields) -> String {
    show(&Condition::Test(test.clone()), fields)
}
