//! How a filter is filed, in words.

use std::{
    fmt::{self, Display},
    sync::Arc,
};

use tocsin_model::field::Fields;

use super::{
    FilterIndex, Scanned, Standing, combinations,
    plan::{Conjunction, Plan},
    readings::Ask,
    standing,
};
use crate::filter::{Case, CompiledFilter, Condition, How, Test, show::show};

/// How a filter is or would be filed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Whether it costs something only for some events.
    pub standing: Standing,
    /// Each of its alternatives; events that it finds make the filter a candidate.
    pub places: Vec<Place>,
    /// Whether a candidate must be evaluated.
    pub is_evaluated: bool,
}

/// How one alternative of a filter is filed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The values by which it is found, all of which an event must have; empty if a range alone finds it, or nothing.
    pub keys: Vec<String>,
    /// The range by which it is found in addition.
    pub range: Option<String>,
    /// How many further tests a candidate is put to.
    pub asked: usize,
    /// How many conjunctions stand in the same place: what an event that has the values must look through, unless they
    /// are sorted by ranges or further values.
    pub neighbours: usize,
}

impl Display for Scanned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scanned::Opaque => "only evaluating it tells whether it matches",
            Scanned::NoValue => "it asks for no value that an event must have, only for what something is not",
            Scanned::NoCommonValue => {
                "it has more than 16 alternatives, and no values of which each alternative needs one"
            }
        })
    }
}

impl FilterIndex {
    /// How a filter stands in this index, or would, among the fields of its class.
    pub fn explain(&self, filter: &CompiledFilter, fields: &Fields) -> Explanation {
        let plan = Plan::of(filter.condition(), !filter.is_exact());
        let standing = standing(&plan, filter.condition(), filter.is_exact());
        let places = plan.conjunctions.iter().map(|conjunction| self.place(conjunction, fields)).collect();
        Explanation { standing, places, is_evaluated: !filter.is_exact() }
    }

    fn place(&self, conjunction: &Conjunction<'_>, fields: &Fields) -> Place {
        let neighbours = self.find_signature(conjunction).map_or(0, |(at, alternatives)| {
            combinations(&alternatives).map(|key| self.signatures[at].group_len(&key)).max().unwrap_or(0)
        });
        let range =
            conjunction.ranges().map(|(test, ends)| (!ends.is_closed(), test)).min_by_key(|(is_open, _)| *is_open);
        Place {
            keys: conjunction.keys.iter().map(|key| key_text(key.test, key.ask, key.names.len(), fields)).collect(),
            range: range.map(|(_, test)| test_text(test, fields)),
            asked: conjunction.rests.len() - usize::from(range.is_some()),
            neighbours,
        }
    }
}

/// Sentences, one a line.
impl Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.standing {
            Standing::Never => return f.write_str("it never matches"),
            Standing::Always => return f.write_str("it matches every event"),
            Standing::Indexed => f.write_str("it costs something only for events that have what it asks for")?,
            Standing::Scanned(why) => write!(f, "it is looked at for every event: {why}")?,
        }
        for place in &self.places {
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
                write!(f, "; {} filters stand in the same place", place.neighbours)?;
            }
        }
        if self.is_evaluated {
            f.write_str("\na candidate is evaluated")?;
        }
        Ok(())
    }
}

fn key_text(test: &Test, ask: Ask, names: usize, fields: &Fields) -> String {
    let how = match (&test.how, ask) {
        (How::Matches(_), _) => {
            let which = if names == 1 { "a text" } else { "one of the texts" };
            return format!("{which} that is needed where {}", test_text(test, fields));
        }
        (How::Wildcard(wildcard), ask) => {
            let (first, last) = (wildcard.parts().first(), wildcard.parts().last());
            let text = |part: Option<&Arc<str>>| part.map_or("", |part| &**part).to_owned();
            match ask {
                Ask::Prefix(..) => How::prefix(&text(first), Case::Kept),
                Ask::Suffix(..) => How::suffix(&text(last), Case::Kept),
                _ => How::contains(&text(wildcard.parts().iter().max_by_key(|part| part.len())), Case::Kept),
            }
        }
        _ => return test_text(test, fields),
    };
    test_text(&Test { path: test.path.clone(), how }, fields)
}

fn test_text(test: &Test, fields: &Fields) -> String {
    show(&Condition::Test(test.clone()), fields)
}
