//! Typed expressions, the common form of all dialects. Fields are resolved to indexes, types are checked.

use std::{collections::BTreeMap, fmt, sync::Arc};

use tocsin_model::{field::FieldType, value::Value};

use crate::{
    dialect::{Operator, Span},
    regex_pattern::Pattern,
};

/// The static type of an expression. Any value can also be null at run time, since fields may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of the types.
pub enum Type {
    /// Known only at run time: items of list and map fields.
    Dynamic,
    Null,
    Boolean,
    Integer,
    Unsigned,
    Number,
    Text,
    Bytes,
    Timestamp,
    Duration,
    List(Box<Type>),
    Map,
    /// The result of `type(...)`.
    Type,
}

impl Type {
    /// Whether it is a number. Numeric types compare with each other.
    pub fn is_numeric(&self) -> bool {
        matches!(self, Type::Integer | Type::Unsigned | Type::Number)
    }

    /// Whether values of the two types can be equal.
    pub fn can_equal(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Dynamic | Type::Null, _) | (_, Type::Dynamic | Type::Null) => true,
            (Type::List(left), Type::List(right)) => left.can_equal(right),
            (left, right) => left == right || (left.is_numeric() && right.is_numeric()),
        }
    }

    /// The common type of two alternatives.
    pub fn join(&self, other: &Type) -> Type {
        match (self, other) {
            (left, right) if left == right => left.clone(),
            (left, Type::Null) => left.clone(),
            (Type::Null, right) => right.clone(),
            (Type::List(left), Type::List(right)) => Type::List(Box::new(left.join(right))),
            _ => Type::Dynamic,
        }
    }
}

impl From<FieldType> for Type {
    fn from(kind: FieldType) -> Type {
        match kind {
            FieldType::Boolean => Type::Boolean,
            FieldType::Integer => Type::Integer,
            FieldType::Number => Type::Number,
            FieldType::String => Type::Text,
            FieldType::Timestamp => Type::Timestamp,
            FieldType::List => Type::List(Box::new(Type::Dynamic)),
            FieldType::Map => Type::Map,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Type::Dynamic => "any value",
            Type::Null => "null",
            Type::Boolean => "a boolean",
            Type::Integer => "an integer",
            Type::Unsigned => "an unsigned integer",
            Type::Number => "a number",
            Type::Text => "a string",
            Type::Bytes => "bytes",
            Type::Timestamp => "a timestamp",
            Type::Duration => "a duration",
            Type::List(_) => "a list",
            Type::Map => "a map",
            Type::Type => "a type",
        })
    }
}

/// A typed expression.
#[derive(Debug, Clone)]
pub struct Expression {
    /// The kind of node.
    pub kind: Kind,
    /// The type of its value.
    pub kind_of_value: Type,
    /// The position in its text.
    pub span: Span,
}

/// The kinds of typed expressions.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // The names are those of the grammar.
pub enum Kind {
    Constant(Constant),
    /// A field of the event, by its index in the class.
    Event(usize),
    /// A field of the subscription, by its index in the class.
    Subscription(usize),
    /// A variable of an enclosing macro, counted from the outermost.
    Variable(usize),
    /// Whether a field is not null.
    Has(Box<Expression>),
    /// Whether a map has a key.
    HasKey(Box<Expression>, Arc<str>),
    Select(Box<Expression>, Arc<str>),
    Index(Box<[Expression; 2]>),
    Not(Box<Expression>),
    Negate(Box<Expression>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
    Binary(Operator, Box<[Expression; 2]>),
    Conditional(Box<[Expression; 3]>),
    /// Items may be [`Kind::IfPresent`].
    List(Vec<Expression>),
    /// Values may be [`Kind::IfPresent`].
    Map(Vec<(Expression, Expression)>),
    /// The value of an optional, left out of the enclosing list or map where it is empty.
    IfPresent(Box<Expression>),
    /// Local bindings: values that are evaluated first, each a variable for those after it, and the body.
    Bind(Vec<Expression>, Box<Expression>),
    Call(Function, Vec<Expression>),
    /// A call of a function of the application.
    UserFunction(Arc<UserFunction>, Vec<Expression>),
    /// A regular expression that is compiled with the enclosing expression.
    Matches(Box<Expression>, Pattern),
    Macro(Macro, Box<MacroParts>),
}

/// A constant.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Constant {
    Value(Value),
    Duration(i64),
    Unsigned(u64),
    Bytes(Arc<[u8]>),
    /// A type, by its CEL name.
    Type(&'static str),
}

/// A macro over the items of a list, the keys of a map, or the value of an optional.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of CEL.
pub enum Macro {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
    TransformList,
    TransformMap,
    OptMap,
    OptFlatMap,
}

/// The parts of a macro.
#[derive(Debug, Clone, PartialEq)]
pub struct MacroParts {
    /// The list or map that it iterates over.
    pub range: Expression,
    /// Whether it has two variables: index and item, or key and value.
    pub paired: bool,
    /// The condition; optional in macros with a result.
    pub condition: Option<Expression>,
    /// The result expression.
    pub result: Option<Expression>,
}

/// Equality ignores positions.
impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        use Kind::*;
        match (&self.kind, &other.kind) {
            (Constant(left), Constant(right)) => left == right,
            (Event(left), Event(right))
            | (Subscription(left), Subscription(right))
            | (Variable(left), Variable(right)) => left == right,
            (Has(left), Has(right))
            | (Not(left), Not(right))
            | (Negate(left), Negate(right))
            | (IfPresent(left), IfPresent(right)) => left == right,
            (Bind(left, body), Bind(right, other)) => left == right && body == other,
            (HasKey(left, key), HasKey(right, other)) | (Select(left, key), Select(right, other)) => {
                key == other && left == right
            }
            (Index(left), Index(right)) => left == right,
            (And(left), And(right)) | (Or(left), Or(right)) | (List(left), List(right)) => left == right,
            (Binary(operator, left), Binary(other, right)) => operator == other && left == right,
            (Conditional(left), Conditional(right)) => left == right,
            (Map(left), Map(right)) => left == right,
            (Call(function, left), Call(other, right)) => function == other && left == right,
            (Kind::UserFunction(function, left), Kind::UserFunction(other, right)) => {
                function == other && left == right
            }
            (Matches(left, pattern), Matches(right, other)) => pattern == other && left == right,
            (Macro(name, left), Macro(other, right)) => name == other && left == right,
            _ => false,
        }
    }
}

/// The inputs that an expression depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dependence {
    /// Reads a field of the event.
    pub event: bool,
    /// Reads a field of the subscription.
    pub subscription: bool,
}

impl Expression {
    /// Visits this expression and all below it.
    pub fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a Expression)) {
        visit(self);
        match &self.kind {
            Kind::Constant(_) | Kind::Event(_) | Kind::Subscription(_) | Kind::Variable(_) => {}
            Kind::Has(inner)
            | Kind::HasKey(inner, _)
            | Kind::Select(inner, _)
            | Kind::Not(inner)
            | Kind::Negate(inner)
            | Kind::IfPresent(inner)
            | Kind::Matches(inner, _) => inner.visit(visit),
            Kind::Bind(values, body) => values.iter().chain([&**body]).for_each(|part| part.visit(visit)),
            Kind::Index(parts) | Kind::Binary(_, parts) => parts.iter().for_each(|part| part.visit(visit)),
            Kind::Conditional(parts) => parts.iter().for_each(|part| part.visit(visit)),
            Kind::And(parts)
            | Kind::Or(parts)
            | Kind::List(parts)
            | Kind::Call(_, parts)
            | Kind::UserFunction(_, parts) => {
                parts.iter().for_each(|part| part.visit(visit));
            }
            Kind::Map(entries) => entries.iter().for_each(|(key, value)| {
                key.visit(visit);
                value.visit(visit);
            }),
            Kind::Macro(_, parts) => {
                parts.range.visit(visit);
                parts.condition.iter().for_each(|part| part.visit(visit));
                parts.result.iter().for_each(|part| part.visit(visit));
            }
        }
    }

    /// Replaces the subscription's fields by the values of a row. Values missing from the row are null.
    pub(crate) fn bind(&mut self, row: &[Value]) {
        let all = |parts: &mut [Expression]| parts.iter_mut().for_each(|part| part.bind(row));
        match &mut self.kind {
            Kind::Subscription(at) => {
                let value = row.get(*at).cloned().unwrap_or_default();
                self.kind = Kind::Constant(Constant::Value(value));
            }
            Kind::Constant(_) | Kind::Event(_) | Kind::Variable(_) => {}
            Kind::Has(inner)
            | Kind::HasKey(inner, _)
            | Kind::Select(inner, _)
            | Kind::Not(inner)
            | Kind::Negate(inner)
            | Kind::IfPresent(inner)
            | Kind::Matches(inner, _) => inner.bind(row),
            Kind::Bind(values, body) => {
                all(values);
                body.bind(row);
            }
            Kind::Index(parts) | Kind::Binary(_, parts) => all(&mut **parts),
            Kind::Conditional(parts) => all(&mut **parts),
            Kind::And(parts)
            | Kind::Or(parts)
            | Kind::List(parts)
            | Kind::Call(_, parts)
            | Kind::UserFunction(_, parts) => {
                all(parts);
            }
            Kind::Map(entries) => entries.iter_mut().for_each(|(key, value)| {
                key.bind(row);
                value.bind(row);
            }),
            Kind::Macro(_, parts) => {
                parts.range.bind(row);
                parts.condition.iter_mut().for_each(|part| part.bind(row));
                parts.result.iter_mut().for_each(|part| part.bind(row));
            }
        }
    }

    /// The inputs it depends on.
    pub fn dependence(&self) -> Dependence {
        let mut found = Dependence::default();
        self.visit(&mut |part| match part.kind {
            Kind::Event(_) => found.event = true,
            Kind::Subscription(_) => found.subscription = true,
            _ => {}
        });
        found
    }

    /// The indexes of the subscription's fields that it reads.
    pub fn subscription_fields(&self) -> Vec<usize> {
        let mut found = Vec::new();
        self.visit(&mut |part| {
            if let Kind::Subscription(at) = part.kind {
                found.push(at);
            }
        });
        found
    }
}

/// A built-in function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of the functions, see `functions::SIGNATURES`.
pub enum Function {
    Size,
    StartsWith,
    EndsWith,
    Contains,
    ContainsCi,
    Matches,
    LowerAscii,
    UpperAscii,
    Trim,
    Replace,
    Split,
    Join,
    Substring,
    CharAt,
    IndexOf,
    LastIndexOf,
    Reverse,
    Format,
    Quote,
    ToInteger,
    ToUnsigned,
    ToNumber,
    ToBytes,
    TypeOf,
    ToText,
    ToBoolean,
    ToTimestamp,
    ToDuration,
    ToDynamic,
    FullYear,
    Month,
    DayOfMonth,
    Date,
    DayOfYear,
    DayOfWeek,
    Hours,
    Minutes,
    Seconds,
    Milliseconds,
    DistanceKm,
    Base64Encode,
    Base64Decode,
    Greatest,
    Least,
    Ceil,
    Floor,
    Round,
    Trunc,
    Sqrt,
    Abs,
    Sign,
    IsNan,
    IsInf,
    IsFinite,
    BitAnd,
    BitOr,
    BitXor,
    BitNot,
    ShiftLeft,
    ShiftRight,
    OptionalNone,
    OptionalOf,
    OptionalOfNonZero,
    OptionalIndex,
    HasValue,
    OptionalValue,
    Or,
    OrValue,
}

/// The functions of one version of an application. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct UserFunctions(pub(crate) Arc<BTreeMap<Box<str>, Arc<UserFunction>>>);

/// A function that an application defines.
pub struct UserFunction {
    pub(crate) name: Box<str>,
    pub(crate) parameters: Vec<Arc<str>>,
    pub(crate) source: Box<str>,
    pub(crate) body: Expression,
}

/// Functions are equal if name and source are equal.
impl PartialEq for UserFunction {
    fn eq(&self, other: &UserFunction) -> bool {
        self.name == other.name && self.parameters == other.parameters && self.source == other.source
    }
}

impl fmt::Debug for UserFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {:?}", self.show(), self.source)
    }
}

impl UserFunctions {
    /// The function of a name.
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<UserFunction>> {
        self.0.get(name)
    }

    /// The names of all.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }
}

impl UserFunction {
    /// The signature, as in a call.
    pub(crate) fn show(&self) -> String {
        format!("{}({})", self.name, self.parameters.join(", "))
    }

    /// The number of parameters.
    pub(crate) fn takes(&self) -> usize {
        self.parameters.len()
    }

    /// The type of the result.
    pub(crate) fn result_type(&self) -> &Type {
        &self.body.kind_of_value
    }

    /// The expression, over the parameters as the outermost variables.
    pub(crate) fn body(&self) -> &Expression {
        &self.body
    }
}
