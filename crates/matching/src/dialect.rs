//! The syntax tree of predicates, the same for every language. `check` types it.

use std::sync::Arc;

use tocsin_model::{
    problem::{Code, Problem},
    stack::with_large_stack,
};

/// Longest expression, in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 16 * 1024;
/// Deepest nesting of parentheses, calls, lists and the like.
pub const EXPRESSION_NESTING_MAX: usize = 64;
/// Highest syntax tree, which also bounds long chains such as `a + b + c`. A `&&` or `||` chain counts once. An
/// evaluation of this height fits into half of the 1 MiB stack of a worker.
pub const EXPRESSION_HEIGHT_MAX: u16 = 128;
/// Most nesting levels of a text that is parsed on the stack of a worker.
const LEVELS_ON_WORKER_MAX: usize = 48;

/// Parses a text: on the current stack if the text cannot be deep, else on a thread with a large stack.
///
/// # Errors
/// Those of `read`; or the thread cannot be started.
pub(crate) fn parse_with_large_stack<T: Send>(
    text: &str,
    read: impl FnOnce() -> Result<T, Vec<Problem>> + Send,
) -> Result<T, Vec<Problem>> {
    // Each level of a tree has a sign or the word `in`.
    let signs = text.bytes().filter(|byte| b"([{?!-.+*/%=<>|&".contains(byte)).count();
    if signs + text.matches("in").count() <= LEVELS_ON_WORKER_MAX {
        return read();
    }
    with_large_stack(read).unwrap_or_else(|error| {
        let problem = Problem::new(
            Code::Internal,
            "",
            format!("the expression was not parsed, as no thread could be started: {error}"),
        );
        Err(vec![problem.hint("raise the limit of threads of the process, or try again later")])
    })
}

/// A range of an expression's text, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// After the last byte.
    pub end: u32,
}

impl Span {
    /// From the start of one to the end of the other.
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start, end: other.end }
    }

    /// The text it covers.
    pub fn text(self, source: &str) -> &str {
        source.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// A problem at its start, with line and column in the expression.
    pub fn problem(self, code: Code, source: &str, message: impl Into<String>) -> Problem {
        let before = source.get(..self.start as usize).unwrap_or(source);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Problem::new(code, "", message).position(number(line), number(column))
    }
}

/// A node of the untyped syntax tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The kind of node.
    pub kind: NodeKind,
    /// The position in the text.
    pub span: Span,
    /// Height of the tree below it, at most `EXPRESSION_HEIGHT_MAX`.
    pub(crate) height: u16,
}

/// The kinds of syntax nodes.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // The names are those of the grammar.
pub enum NodeKind {
    Null,
    Boolean(bool),
    Integer(i64),
    Unsigned(u64),
    Number(f64),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    Name(String),
    Select(Box<Node>, String),
    Index(Box<[Node; 2]>),
    /// `a.?b`: an optional, empty if the key is missing.
    OptionalSelect(Box<Node>, Arc<str>),
    /// `a[?b]`.
    OptionalIndex(Box<[Node; 2]>),
    /// `?a` as an item of a list, or the value of `?key: a` in a map: left out where the optional is empty.
    IfPresent(Box<Node>),
    Call {
        target: Option<Box<Node>>,
        name: String,
        arguments: Vec<Node>,
    },
    Not(Box<Node>),
    Negate(Box<Node>),
    And(Vec<Node>),
    Or(Vec<Node>),
    Binary(Operator, Box<[Node; 2]>),
    Conditional(Box<[Node; 3]>),
}

/// An operator between two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of the operators.
pub enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Operator {
    /// As CEL spells it.
    pub fn symbol(self) -> &'static str {
        match self {
            Operator::Equal => "==",
            Operator::NotEqual => "!=",
            Operator::Less => "<",
            Operator::LessOrEqual => "<=",
            Operator::Greater => ">",
            Operator::GreaterOrEqual => ">=",
            Operator::In => "in",
            Operator::Add => "+",
            Operator::Subtract => "-",
            Operator::Multiply => "*",
            Operator::Divide => "/",
            Operator::Remainder => "%",
        }
    }
}
