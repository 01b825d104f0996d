//! The query language of lists and counts: `filter` and `where`, parsed with bounds into a tree, and its evaluation.
//!
//! [`Params`] reads a query string or a form body. [`Filter`] and [`Where`] are parsed from it for a collection: values
//! are cast by the type of their property. [`Where::matches`] evaluates a condition over a record, with the comparison
//! of MongoDB by type. [`Where::index_hints`] returns the conditions that an index can answer.

mod error; // refused queries and bounds
mod tree; // conditions
mod compare; // equality and order of values
mod evaluate; // conditions over a record
mod hints; // conditions for an index
mod order; // sort keys
mod params; // query strings and form bodies
mod parse; // JSON to conditions
mod path; // dotted paths
mod projection; // selected properties
mod search; // $text

use serde_json::Value;

pub use compare::{equal, order_of};
pub use error::{
    CONDITIONS_MAX, DEPTH_MAX, PATH_STEPS_MAX, QUERY_BYTES_MAX, QueryError, REGEX_BYTES_MAX, REGEX_MEMORY_MAX,
    REGEXES_MAX,
};
pub use hints::{Hints, Range};
pub use order::{Order, SortKey};
pub use params::{PARAMS_MAX, Params, form_body};
pub use path::Path;
pub use projection::Projection;
pub use search::Search;
pub use tree::{Comparison, Test, Where};

use crate::record::{Collection, Document};

/// Condition, projection, order and window of a list.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The condition.
    pub where_: Where,
    /// The selected properties.
    pub fields: Projection,
    /// The order; equal records keep theirs.
    pub order: Order,
    /// Records that are passed over.
    pub skip: u64,
    /// Most records of the answer. `None`: all.
    pub limit: Option<u64>,
}

impl Where {
    /// The condition of this text parameter of a query, or the condition that always holds.
    pub fn from_params(collection: Collection, params: &Params, name: &str) -> Result<Where, QueryError> {
        match params.json(name)? {
            Some(value) => Where::parse(collection, &value),
            None => Ok(Where::default()),
        }
    }

    /// The condition of a query document.
    pub fn parse(collection: Collection, value: &Value) -> Result<Where, QueryError> {
        parse::condition(collection, value)
    }

    /// This condition and another.
    pub fn and(self, other: Where) -> Where {
        match self {
            Where::All(mut parts) => {
                parts.push(other);
                Where::All(parts)
            }
            part => Where::All(vec![part, other]),
        }
    }

    /// This condition of a caller who does not see some properties: they count as absent.
    pub fn without(self, hidden: &'static [&'static str]) -> Where {
        match self {
            Where::All(parts) if parts.is_empty() => Where::All(parts),
            condition => Where::Without(hidden, Box::new(condition)),
        }
    }

    /// A property has this text.
    pub fn text(path: &str, text: &str) -> Where {
        Where::Property(Path::parse(path), vec![Test::Equal(Value::from(text))])
    }

    /// The view of a user on subscriptions: their own, not deleted.
    pub fn subscriptions_of(user: &str) -> Where {
        let deleted = Test::Not(vec![Test::Equal(Value::from("deleted"))]);
        Where::All(vec![Where::text("userId", user), Where::Property(Path::parse("state"), vec![deleted])])
    }

    /// Whether the condition holds for a record.
    pub fn matches(&self, record: &Document) -> bool {
        evaluate::holds(self, record)
    }

    /// The necessary conditions that an index can answer. A record outside of them does not match; one inside can.
    pub fn index_hints(&self) -> Hints {
        hints::hints(self)
    }
}

impl Filter {
    /// The filter of a query string: its parameter `filter`, as JSON text or in bracket form.
    pub fn from_params(collection: Collection, params: &Params) -> Result<Filter, QueryError> {
        match params.json("filter")? {
            Some(value) => Filter::parse(collection, &value),
            None => Ok(Filter::default()),
        }
    }

    /// The filter of a JSON value. Unknown members are ignored.
    pub fn parse(collection: Collection, value: &Value) -> Result<Filter, QueryError> {
        let members = match value {
            Value::Null => return Ok(Filter::default()),
            Value::Object(members) => members,
            _ => return Err(QueryError::Operand("filter must be an object".to_owned())),
        };
        let where_ = match members.get("where") {
            None => Where::default(),
            Some(value) => Where::parse(collection, value)?,
        };
        let part = |name: &str| members.get(name).unwrap_or(&Value::Null);
        let (skip, limit) = (parse::count("skip", part("skip"))?, parse::count("limit", part("limit"))?);
        Ok(Filter {
            where_,
            fields: Projection::parse(part("fields"))?,
            order: Order::parse(part("order"))?,
            skip: skip.unwrap_or(0),
            limit: limit.filter(|limit| *limit > 0),
        })
    }

    /// This filter of a caller who does not see some properties: in its condition and order they count as absent.
    pub fn without(mut self, hidden: &'static [&'static str]) -> Filter {
        self.where_ = self.where_.without(hidden);
        self.order.0.retain(|key| key.path.steps().first().is_none_or(|first| !hidden.contains(&first.as_str())));
        self
    }

    /// Sorts records of the condition, cuts the window out, and projects each.
    pub fn page(&self, mut records: Vec<Document>) -> Vec<Document> {
        self.order.sort(&mut records);
        let skip = usize::try_from(self.skip).unwrap_or(usize::MAX);
        let limit = self.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        records.into_iter().skip(skip).take(limit).map(|record| self.fields.apply(record)).collect()
    }
}

#[cfg(test)]
mod tests;
