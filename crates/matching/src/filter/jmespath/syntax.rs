//! JMESPath as a tree.

use std::sync::Arc;

use tocsin_model::value::Value;

use super::functions::Function;
use crate::{defined::Defined, dialect::Span};

/// A node of the tree.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub kind: Kind,
    /// Where it stands in its text.
    pub span: Span,
    /// Height of the tree below it, at most `EXPRESSION_HEIGHT_MAX`.
    pub height: u16,
}

/// What a node is. Most are asked of a value, the current one.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// `@`.
    Current,
    /// A field of the event, by its place in the class.
    Event(usize),
    /// The value of a key of the current value.
    Field(Arc<str>),
    Literal(Value),
    /// An item of the current list; negative counts from its end.
    Index(i64),
    Slice(Slice),
    /// The second is asked of what the first gives: `a.b`, `a[0]`, `a | b`.
    Sub(Box<[Node; 2]>),
    Or(Vec<Node>),
    And(Vec<Node>),
    Not(Box<Node>),
    Compare(Comparison, Box<[Node; 2]>),
    /// The second is asked of each value that the first gives; what gives null is left out.
    Project(Over, Box<[Node; 2]>),
    /// As `Project` over items, of those for which the third is true.
    Filter(Box<[Node; 3]>),
    /// `[a, b]`.
    List(Vec<Node>),
    /// `{x: a, y: b}`.
    Map(Vec<(Arc<str>, Node)>),
    Call(Function, Vec<Node>),
    /// A call of a function of the application.
    Defined(Arc<Defined>, Vec<Node>),
    /// `&a`, an argument that a function asks of values of its own. Only among the arguments of such functions.
    Reference(Box<Node>),
}

/// Which values a projection goes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// `[*]`: the items of a list.
    Items,
    /// `*`: the values of an object.
    Values,
    /// `[]`: the items of a list, those of lists among them one by one.
    Flattened,
}

/// `[start:stop:step]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slice {
    pub start: Option<i64>,
    pub stop: Option<i64>,
    /// Not zero.
    pub step: i64,
}

/// How two values are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    /// As it is written.
    pub fn symbol(self) -> &'static str {
        match self {
            Comparison::Equal => "==",
            Comparison::NotEqual => "!=",
            Comparison::Less => "<",
            Comparison::LessOrEqual => "<=",
            Comparison::Greater => ">",
            Comparison::GreaterOrEqual => ">=",
        }
    }

    /// Whether it asks for an order, which only numbers have.
    pub fn is_ordered(self) -> bool {
        !matches!(self, Comparison::Equal | Comparison::NotEqual)
    }

    /// The same with its sides exchanged.
    pub fn turned(self) -> Comparison {
        match self {
            Comparison::Less => Comparison::Greater,
            Comparison::LessOrEqual => Comparison::GreaterOrEqual,
            Comparison::Greater => Comparison::Less,
            Comparison::GreaterOrEqual => Comparison::LessOrEqual,
            other => other,
        }
    }
}

impl Node {
    /// The nodes right below.
    pub fn parts(&self) -> Vec<&Node> {
        match &self.kind {
            Kind::Current | Kind::Event(_) | Kind::Field(_) | Kind::Literal(_) | Kind::Index(_) | Kind::Slice(_) => {
                Vec::new()
            }
            Kind::Not(inner) | Kind::Reference(inner) => vec![inner],
            Kind::Sub(parts) | Kind::Compare(_, parts) | Kind::Project(_, parts) => parts.iter().collect(),
            Kind::Filter(parts) => parts.iter().collect(),
            Kind::Or(parts) | Kind::And(parts) | Kind::List(parts) | Kind::Call(_, parts) | Kind::Defined(_, parts) => {
                parts.iter().collect()
            }
            Kind::Map(entries) => entries.iter().map(|(_, value)| value).collect(),
        }
    }

    /// Visits this node and all below it.
    pub fn visit<'a>(&'a self, see: &mut dyn FnMut(&'a Node)) {
        see(self);
        self.parts().into_iter().for_each(|part| part.visit(see));
    }
}
