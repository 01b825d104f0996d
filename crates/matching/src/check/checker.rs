//! Types of operators, literals and containers, and the problems found.

use tocsin_model::{
    problem::{Code, Problem},
    value::Value,
};

use crate::{
    check::scope::Scope,
    dialect::{Node, NodeKind, Operator, Span},
    expression::{Constant, Expression, Function, Kind, Type},
    regex_pattern::Budget,
};

pub(crate) struct Checker<'a> {
    pub(crate) source: &'a str,
    pub(crate) scope: &'a Scope,
    pub(crate) variables: Vec<(String, Type)>,
    pub(crate) problems: Vec<Problem>,
    /// Remaining budget for regular expressions.
    pub(crate) budget: Budget,
}

#[derive(Clone, Copy)]
pub(crate) enum Side {
    Event,
    Subscription,
    Subscriber,
    Attributes,
}

impl Checker<'_> {
    pub(crate) fn problem(&mut self, code: Code, span: Span, message: impl Into<String>) {
        self.problems.push(span.problem(code, self.source, message));
    }

    /// An unknown name of a variable, field or function.
    pub(crate) fn unknown(&mut self, name: &str, span: Span, message: impl Into<String>) {
        self.problems.push(span.problem(Code::UnknownName, self.source, message).param("value", name));
    }

    pub(crate) fn hint(&mut self, hint: impl Into<String>) {
        if let Some(problem) = self.problems.last_mut() {
            problem.hint = Some(hint.into());
        }
    }

    pub(crate) fn dynamic(&self, span: Span) -> Expression {
        Expression { kind: Kind::Constant(Constant::Value(Value::Null)), kind_of_value: Type::Dynamic, span }
    }

    pub(crate) fn expression(&mut self, node: &Node) -> Expression {
        let span = node.span;
        let constant = |value: Value, kind_of_value: Type| Expression {
            kind: Kind::Constant(Constant::Value(value)),
            kind_of_value,
            span,
        };
        let (kind, kind_of_value) = match &node.kind {
            NodeKind::Null => return constant(Value::Null, Type::Null),
            NodeKind::Boolean(value) => return constant(Value::Boolean(*value), Type::Boolean),
            NodeKind::Integer(value) => return constant(Value::Integer(*value), Type::Integer),
            NodeKind::Number(value) => return constant(Value::Number(*value), Type::Number),
            NodeKind::Text(text) => return constant(Value::Text(text.clone()), Type::Text),
            NodeKind::Unsigned(value) => (Kind::Constant(Constant::Unsigned(*value)), Type::Unsigned),
            NodeKind::Bytes(bytes) => (Kind::Constant(Constant::Bytes(bytes.clone())), Type::Bytes),
            NodeKind::List(items) => {
                let items: Vec<Expression> = items.iter().map(|item| self.expression(item)).collect();
                let inner = items.iter().map(|item| item.kind_of_value.clone()).reduce(|left, right| left.join(&right));
                let kind_of_value = Type::List(Box::new(inner.unwrap_or(Type::Dynamic)));
                // A list of constants is built once.
                let values: Option<Vec<Value>> = items.iter().map(constant_value).collect();
                match values {
                    Some(values) => return constant(Value::List(values.into()), kind_of_value),
                    None => (Kind::List(items), kind_of_value),
                }
            }
            NodeKind::Map(entries) => {
                let mut typed = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    let key = self.expression(key);
                    use Type::{Boolean, Dynamic, Integer, Text, Unsigned};
                    if !matches!(key.kind_of_value, Text | Integer | Unsigned | Boolean | Dynamic) {
                        let message = format!(
                            "a key of a map should be a string, an integer or a boolean, not {}",
                            key.kind_of_value
                        );
                        self.problem(Code::TypeMismatch, key.span, message);
                    }
                    typed.push((key, self.expression(value)));
                }
                (Kind::Map(typed), Type::Map)
            }
            NodeKind::Name(name) => return self.name(node, name),
            NodeKind::Select(target, name) => return self.select(target, name, span),
            NodeKind::Index(parts) => return self.index(&parts[0], &parts[1], span),
            NodeKind::OptionalSelect(target, name) => {
                let key = Expression {
                    kind: Kind::Constant(Constant::Value(Value::Text(name.clone()))),
                    kind_of_value: Type::Text,
                    span,
                };
                (Kind::Call(Function::OptionalIndex, vec![self.expression(target), key]), Type::Dynamic)
            }
            NodeKind::OptionalIndex(parts) => {
                let parts = parts.iter().map(|part| self.expression(part)).collect();
                (Kind::Call(Function::OptionalIndex, parts), Type::Dynamic)
            }
            NodeKind::IfPresent(inner) => (Kind::IfPresent(Box::new(self.expression(inner))), Type::Dynamic),
            NodeKind::Call { target, name, arguments } => return self.call(target.as_deref(), name, arguments, span),
            NodeKind::Not(inner) => {
                let inner = self.boolean(inner, "`!`");
                (Kind::Not(Box::new(inner)), Type::Boolean)
            }
            NodeKind::Negate(inner) => {
                let inner = self.expression(inner);
                let kind_of_value = inner.kind_of_value.clone();
                if !matches!(kind_of_value, Type::Integer | Type::Number | Type::Duration | Type::Dynamic) {
                    self.problem(
                        Code::TypeMismatch,
                        span,
                        format!("`-` takes a number with a sign, not {kind_of_value}"),
                    );
                }
                (Kind::Negate(Box::new(inner)), kind_of_value)
            }
            NodeKind::And(parts) => {
                (Kind::And(parts.iter().map(|part| self.boolean(part, "`&&`")).collect()), Type::Boolean)
            }
            NodeKind::Or(parts) => {
                (Kind::Or(parts.iter().map(|part| self.boolean(part, "`||`")).collect()), Type::Boolean)
            }
            NodeKind::Binary(operator, parts) => {
                let (left, right) = (self.expression(&parts[0]), self.expression(&parts[1]));
                let kind_of_value = self.binary(*operator, &left, &right, span);
                (Kind::Binary(*operator, Box::new([left, right])), kind_of_value)
            }
            NodeKind::Conditional(parts) => {
                let condition = self.boolean(&parts[0], "the condition before `?`");
                let (yes, no) = (self.expression(&parts[1]), self.expression(&parts[2]));
                let kind_of_value = yes.kind_of_value.join(&no.kind_of_value);
                (Kind::Conditional(Box::new([condition, yes, no])), kind_of_value)
            }
        };
        Expression { kind, kind_of_value, span }
    }

    pub(crate) fn boolean(&mut self, node: &Node, what: &str) -> Expression {
        let expression = self.expression(node);
        if !matches!(expression.kind_of_value, Type::Boolean | Type::Dynamic) {
            let message = format!("{what} takes booleans, and this is {}", expression.kind_of_value);
            self.problem(Code::TypeMismatch, expression.span, message);
            self.hint("compare it with something");
        }
        expression
    }

    /// The result type of an operator; reports a problem if the operands do not fit.
    fn binary(&mut self, operator: Operator, left: &Expression, right: &Expression, span: Span) -> Type {
        use Operator::*;
        use Type::{Boolean, Bytes, Duration, Dynamic, Integer, List, Map, Null, Number, Text, Timestamp, Unsigned};
        let (l, r) = (&left.kind_of_value, &right.kind_of_value);
        match operator {
            Equal | NotEqual => {
                if !l.can_equal(r) {
                    self.mismatch(left, right, span);
                }
                Boolean
            }
            Less | LessOrEqual | Greater | GreaterOrEqual => {
                if matches!(l, Null) || matches!(r, Null) {
                    self.problem(Code::TypeMismatch, span, "null has no order");
                    self.hint("test for null with `==`, or use `has(...)`");
                } else if !l.can_equal(r) {
                    self.mismatch(left, right, span);
                } else if let unordered @ (List(_) | Map) = l {
                    self.problem(Code::TypeMismatch, span, format!("{unordered} has no order"));
                }
                Boolean
            }
            In => {
                match r {
                    List(inner) if !inner.can_equal(l) => {
                        self.problem(
                            Code::TypeMismatch,
                            span,
                            format!("each value of the list is {inner}, which never equals {l}"),
                        );
                    }
                    List(_) | Map | Dynamic => {}
                    other => self.problem(
                        Code::TypeMismatch,
                        right.span,
                        format!("`in` takes a list or a map on its right, not {other}"),
                    ),
                }
                Boolean
            }
            Add | Subtract | Multiply | Divide | Remainder => match (operator, l, r) {
                (_, Dynamic, _) | (_, _, Dynamic) => Dynamic,
                (_, Integer, Integer) => Integer,
                (_, Unsigned, Unsigned) => Unsigned,
                (Add | Subtract | Multiply | Divide, Integer | Number, Integer | Number) => Number,
                (Add, Text, Text) => Text,
                (Add, Bytes, Bytes) => Bytes,
                (Add, List(left), List(right)) => List(Box::new(left.join(right))),
                (Add | Subtract, Timestamp, Duration) | (Add, Duration, Timestamp) => Timestamp,
                (Subtract, Timestamp, Timestamp) | (Add | Subtract, Duration, Duration) => Duration,
                _ => {
                    self.problem(
                        Code::TypeMismatch,
                        span,
                        format!("`{}` does not take {l} and {r}", operator.symbol()),
                    );
                    if matches!((l, r), (Text, _) | (_, Text)) && operator == Add {
                        self.hint("convert with `string(...)`");
                    }
                    Dynamic
                }
            },
        }
    }

    fn mismatch(&mut self, left: &Expression, right: &Expression, span: Span) {
        use Type::{Text, Timestamp};
        let (l, r) = (&left.kind_of_value, &right.kind_of_value);
        let message = format!(
            "`{}` is {l} and `{}` is {r}; they cannot be compared",
            left.span.text(self.source),
            right.span.text(self.source)
        );
        self.problem(Code::TypeMismatch, span, message);
        match (l, r) {
            (Timestamp, Text) | (Text, Timestamp) => self.hint("write `timestamp('2026-11-21T09:30:00Z')`"),
            (Text, other) | (other, Text) if other.is_numeric() => {
                let literal = matches!(right.kind, Kind::Constant(_)) || matches!(left.kind, Kind::Constant(_));
                self.hint(if literal && *r == Text {
                    "write the number without quotes"
                } else {
                    "convert with `double(...)` or `string(...)`"
                });
            }
            _ => {}
        }
    }
}

/// The dotted name of a node, if it is one.
pub(crate) fn path(node: &Node) -> Option<String> {
    match &node.kind {
        NodeKind::Name(name) => Some(name.clone()),
        NodeKind::Select(target, name) => Some(format!("{}.{name}", path(target)?)),
        _ => None,
    }
}

pub(crate) fn constant_value(expression: &Expression) -> Option<Value> {
    match &expression.kind {
        Kind::Constant(Constant::Value(value)) => Some(value.clone()),
        _ => None,
    }
}
