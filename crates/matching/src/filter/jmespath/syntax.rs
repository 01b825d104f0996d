//! The syntax tree of JMESPath.

use std::{cmp::Ordering, sync::Arc};

use tocsin_model::value::Value;

use super::functions::Function;
use crate::{dialect::Span, expression::UserFunction};

/// The variant of the language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// JMESPath 1.0.
    Standard,
    /// The JavaScript library of NotifyBC: what it accepts, and how it evaluates.
    Notifybc,
}

/// A node of the tree.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub kind: Kind,
    /// The position in its text.
    pub span: Span,
    /// Height of the tree below it, at most `EXPRESSION_HEIGHT_MAX`.
    pub height: u16,
}

/// The kinds of nodes. Most are evaluated on the current value.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// `@`.
    Current,
    /// A field of the event, by its index in the class.
    Event(usize),
    /// The value of a key of the current value.
    Field(Arc<str>),
    Literal(Value),
    /// An item of the current list; negative counts from its end.
    Index(i64),
    Slice(Slice),
    /// The second is evaluated on the result of the first: `a.b`, `a[0]`, `a | b`.
    Sub(Box<[Node; 2]>),
    Or(Vec<Node>),
    And(Vec<Node>),
    Not(Box<Node>),
    Compare(Comparison, Box<[Node; 2]>),
    /// The second is evaluated on each value of the first; null results are left out.
    Project(ProjectionKind, Box<[Node; 2]>),
    /// As `Project` over items, only those for which the third is true.
    Filter(Box<[Node; 3]>),
    /// `[a, b]`.
    List(Vec<Node>),
    /// `{x: a, y: b}`.
    Map(Vec<(Arc<str>, Node)>),
    Call(Function, Vec<Node>),
    /// A call of a user-defined function.
    UserFunction(Arc<UserFunction>, Vec<Node>),
    /// `&a`, an expression reference. Valid only as an argument of functions that take one.
    Reference(Box<Node>),
    /// An evaluation error, which NotifyBC's parser accepts: an unknown function, a missing operand.
    Failing,
}

/// The values that a projection iterates over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProjectionKind {
    /// `[*]`: the items of a list.
    Items,
    /// `*`: the values of an object.
    Values,
    /// `[]`: the items of a list, with nested lists flattened by one level.
    Flattened,
}

/// `[start:stop:step]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slice {
    pub start: Option<i64>,
    pub stop: Option<i64>,
    /// Zero only in the dialect of NotifyBC, where it is an evaluation error.
    pub step: i64,
}

/// Comparison operators.
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
    /// The operator's symbol.
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

    /// Whether it is an ordering operator, defined for numbers only.
    pub fn is_ordered(self) -> bool {
        !matches!(self, Comparison::Equal | Comparison::NotEqual)
    }

    /// Whether an ordering operator holds for operands in this order; `None` if they have none.
    pub fn holds(self, order: Option<Ordering>) -> bool {
        match self {
            Comparison::Less => order == Some(Ordering::Less),
            Comparison::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Comparison::Greater => order == Some(Ordering::Greater),
            Comparison::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
            Comparison::Equal | Comparison::NotEqual => false,
        }
    }

    /// The same with its operands exchanged.
    pub fn mirrored(self) -> Comparison {
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
    /// The child nodes.
    pub fn parts(&self) -> Vec<&Node> {
        match &self.kind {
            Kind::Current
            | Kind::Event(_)
            | Kind::Field(_)
            | Kind::Literal(_)
            | Kind::Index(_)
            | Kind::Slice(_)
            | Kind::Failing => Vec::new(),
            Kind::Not(inner) | Kind::Reference(inner) => vec![inner],
            Kind::Sub(parts) | Kind::Compare(_, parts) | Kind::Project(_, parts) => parts.iter().collect(),
            Kind::Filter(parts) => parts.iter().collect(),
            Kind::Or(parts)
            | Kind::And(parts)
            | Kind::List(parts)
            | Kind::Call(_, parts)
            | Kind::UserFunction(_, parts) => parts.iter().collect(),
            Kind::Map(entries) => entries.iter().map(|(_, value)| value).collect(),
        }
    }

    /// Visits this node and all below it.
    pub fn visit<'a>(&'a self, see: &mut dyn FnMut(&'a Node)) {
        see(self);
        self.parts().into_iter().for_each(|part| part.visit(see));
    }
}
