//! Types a syntax tree against the fields of an event class and a subscription class.

use std::sync::Arc;

use tocsin_model::{
    field::{Field, Fields},
    problem::{Problem, closest},
    value::Value,
};

use crate::{
    chronicle::compile::{column_of, unknown_column},
    datum::Datum,
    defined::Functions,
    dialect::{Node, NodeKind, Operator, Span, cel},
    evaluate::{Evaluator, Scene, Steps},
    expression::{Constant, Expression, Function, Kind, Macro, MacroParts, Type},
    functions::{SIGNATURES, Signature},
    regular::{Budget, Pattern},
    subscriber::{PARTS, SubscriberColumns},
};

/// What an expression may speak of.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// The fields of `event`.
    pub event: Fields,
    /// What `chronicle` gives: columns that stand behind the fields of the event.
    pub chronicled: Fields,
    /// The fields of `sub`.
    pub subscription: Fields,
    /// What may be asked of `subscriber`; `None` where there is none.
    pub subscriber: Option<SubscriberColumns>,
    /// Functions of the application.
    pub functions: Functions,
    /// Further names, which stand for values of any type. One with dots hides a selection that reads the same.
    pub variables: Vec<Arc<str>>,
}

/// Reads and types an expression in CEL.
///
/// # Errors
/// Every problem found, with line and column in the expression.
pub fn compile(source: &str, scope: &Scope) -> Result<Expression, Vec<Problem>> {
    let node = cel::parse(source).map_err(|problem| vec![problem])?;
    check(source, &node, scope)
}

/// Reads and types a predicate: like [`compile`], and the result must be boolean.
///
/// # Errors
/// Every problem found.
pub fn compile_predicate(source: &str, scope: &Scope) -> Result<Expression, Vec<Problem>> {
    let expression = compile(source, scope)?;
    match expression.kind_of_value {
        Type::Boolean | Type::Dynamic => Ok(expression),
        ref other => {
            let problem = expression.span.problem(source, format!("the expression gives {other}, not a boolean"));
            Err(vec![problem.hint("compare it with something")])
        }
    }
}

/// Types a syntax tree.
///
/// # Errors
/// Every problem found.
pub fn check(source: &str, node: &Node, scope: &Scope) -> Result<Expression, Vec<Problem>> {
    let variables = scope.variables.iter().map(|name| (name.to_string(), Type::Dynamic)).collect();
    let mut checker = Checker { source, scope, variables, problems: Vec::new(), budget: Budget::default() };
    let expression = checker.expression(node);
    if checker.problems.is_empty() { Ok(expression) } else { Err(checker.problems) }
}

struct Checker<'a> {
    source: &'a str,
    scope: &'a Scope,
    variables: Vec<(String, Type)>,
    problems: Vec<Problem>,
    /// What its regular expressions may still have.
    budget: Budget,
}

#[derive(Clone, Copy)]
enum Side {
    Event,
    Subscription,
    Subscriber,
    Attributes,
}

impl Checker<'_> {
    fn problem(&mut self, span: Span, message: impl Into<String>) {
        self.problems.push(span.problem(self.source, message));
    }

    fn hint(&mut self, hint: impl Into<String>) {
        if let Some(problem) = self.problems.last_mut() {
            problem.hint = Some(hint.into());
        }
    }

    /// The variable `event`, `sub` or `subscriber`, unless a macro's variable hides it, or `subscriber.attributes`.
    fn side(&self, node: &Node) -> Option<Side> {
        let name = match &node.kind {
            NodeKind::Name(name) => name,
            NodeKind::Select(target, name) if name == "attributes" => {
                return matches!(self.side(target), Some(Side::Subscriber)).then_some(Side::Attributes);
            }
            _ => return None,
        };
        if self.variables.iter().any(|(variable, _)| variable == name) {
            return None;
        }
        match name.as_str() {
            "event" => Some(Side::Event),
            "sub" | "subscription" => Some(Side::Subscription),
            "subscriber" if self.scope.subscriber.is_some() => Some(Side::Subscriber),
            _ => None,
        }
    }

    fn field(&mut self, side: Side, name: &str, span: Span) -> Expression {
        let (fields, whose) = match side {
            Side::Event => (&self.scope.event, "event"),
            Side::Subscription => (&self.scope.subscription, "subscription"),
            Side::Subscriber | Side::Attributes => return self.of_subscriber(side, name, span),
        };
        let Some(at) = fields.position(name) else {
            let unknown = fields.unknown(name);
            self.problem(span, format!("the {whose} class has no field `{name}`"));
            if let Some(hint) = unknown.hint {
                self.hint(hint);
            }
            return self.dynamic(span);
        };
        let kind = match side {
            Side::Event => Kind::Event(at),
            _ => Kind::Subscription(at),
        };
        Expression { kind, kind_of_value: fields[at].kind.into(), span }
    }

    /// A column of the subscriber: it stands behind the fields of the subscription.
    fn of_subscriber(&mut self, side: Side, name: &str, span: Span) -> Expression {
        let columns = self.scope.subscriber.clone().unwrap_or_default();
        let before = self.scope.subscription.len();
        let column =
            |at: usize, kind_of_value: Type| Expression { kind: Kind::Subscription(before + at), kind_of_value, span };
        if let Side::Attributes = side {
            if let (Some(at), Some(place)) = (columns.attribute(name), columns.attributes().position(name)) {
                return column(at, columns.attributes()[place].kind.into());
            }
            self.problem(span, format!("the application declares no attribute `{name}`"));
            match closest(name, columns.attributes().iter().map(|attribute| attribute.name.as_str())) {
                Some(meant) => self.hint(format!("did you mean `subscriber.attributes.{meant}`?")),
                None => self.hint(format!(
                    "say what it holds at the top of the definition: `attributes: {{ {name}: string }}`"
                )),
            }
            return self.dynamic(span);
        }
        if let Some(at) = columns.part(name) {
            return column(at, Type::Text);
        }
        if name == "attributes" {
            self.problem(span, "`subscriber.attributes` stands for the whole, which is not a value");
            self.hint("name one of them, such as `subscriber.attributes.region`");
            return self.dynamic(span);
        }
        self.problem(span, format!("a subscriber has no field `{name}`"));
        match columns.attribute(name) {
            Some(_) => self.hint(format!("did you mean `subscriber.attributes.{name}`?")),
            None => self.hint(format!("it has {} and `attributes`", PARTS.map(|part| format!("`{part}`")).join(", "))),
        }
        self.dynamic(span)
    }

    /// What `chronicle.day.high.before` reads: a column behind the fields of the event.
    fn chronicled(&mut self, target: &Node, name: &str, span: Span) -> Option<Expression> {
        let path = format!("{}.{name}", path(target)?);
        let is_hidden = self.variables.iter().any(|(variable, _)| variable == "chronicle");
        if !path.starts_with("chronicle.") || is_hidden || path.split('.').count() > 4 {
            return None;
        }
        let fields = &self.scope.chronicled;
        if let Some(at) = column_of(&path).and_then(|column| fields.position(&column)) {
            let kind = Kind::Event(self.scope.event.len() + at);
            return Some(Expression { kind, kind_of_value: fields[at].kind.into(), span });
        }
        let (message, hint) = unknown_column(&path, fields);
        self.problem(span, message);
        self.hint(hint);
        Some(self.dynamic(span))
    }

    fn dynamic(&self, span: Span) -> Expression {
        Expression { kind: Kind::Constant(Constant::Value(Value::Null)), kind_of_value: Type::Dynamic, span }
    }

    fn expression(&mut self, node: &Node) -> Expression {
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
                // A list of constants is made once.
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
                        self.problem(key.span, message);
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
                    self.problem(span, format!("`-` takes a number with a sign, not {kind_of_value}"));
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

    fn boolean(&mut self, node: &Node, what: &str) -> Expression {
        let expression = self.expression(node);
        if !matches!(expression.kind_of_value, Type::Boolean | Type::Dynamic) {
            let message = format!("{what} takes booleans, and this is {}", expression.kind_of_value);
            self.problem(expression.span, message);
            self.hint("compare it with something");
        }
        expression
    }

    fn name(&mut self, node: &Node, name: &str) -> Expression {
        let span = node.span;
        if let Some(variable) = self.variable(name, span) {
            return variable;
        }
        if let Some(known) = TYPE_NAMES.into_iter().find(|known| *known == name) {
            return Expression { kind: Kind::Constant(Constant::Type(known)), kind_of_value: Type::Type, span };
        }
        if let Some(side) = self.side(node) {
            let field = match side {
                Side::Event => self.scope.event.iter().next().map(|field| field.name.to_string()),
                Side::Subscription => self.scope.subscription.iter().next().map(|field| field.name.to_string()),
                Side::Subscriber | Side::Attributes => Some("id".to_owned()),
            };
            self.problem(span, format!("`{name}` stands for the whole, which is not a value"));
            if let Some(field) = field {
                self.hint(format!("name one of its fields, such as `{name}.{field}`"));
            }
            return self.dynamic(span);
        }
        self.problem(span, format!("`{name}` is not known here"));
        let has = |field: &Field| field.name.as_str() == name;
        if self.scope.event.iter().any(has) {
            self.hint(format!("did you mean `event.{name}`?"));
        } else if self.scope.subscription.iter().any(has) {
            self.hint(format!("did you mean `sub.{name}`?"));
        } else if self.scope.subscriber.as_ref().is_some_and(|columns| columns.attribute(name).is_some()) {
            self.hint(format!("did you mean `subscriber.attributes.{name}`?"));
        } else {
            self.hint("an expression speaks of `event` and `sub`");
        }
        self.dynamic(span)
    }

    fn variable(&self, name: &str, span: Span) -> Option<Expression> {
        let at = self.variables.iter().rposition(|(variable, _)| variable == name)?;
        Some(Expression { kind: Kind::Variable(at), kind_of_value: self.variables[at].1.clone(), span })
    }

    fn select(&mut self, target: &Node, name: &str, span: Span) -> Expression {
        if let Some(path) = path(target).map(|path| format!("{path}.{name}")) {
            if let Some(variable) = self.variable(&path, span) {
                return variable;
            }
            if let Some(known) = TYPE_NAMES.into_iter().find(|known| *known == path) {
                return Expression { kind: Kind::Constant(Constant::Type(known)), kind_of_value: Type::Type, span };
            }
        }
        if let Some(side) = self.side(target) {
            return self.field(side, name, span);
        }
        if let Some(column) = self.chronicled(target, name, span) {
            return column;
        }
        let target = self.expression(target);
        if !matches!(target.kind_of_value, Type::Map | Type::Dynamic) {
            self.problem(span, format!("{} has no field `{name}`", target.kind_of_value));
        }
        Expression { kind: Kind::Select(Box::new(target), name.into()), kind_of_value: Type::Dynamic, span }
    }

    fn index(&mut self, target: &Node, index: &Node, span: Span) -> Expression {
        if let Some(side) = self.side(target) {
            // The way to reach a field whose name has a `-`.
            if let NodeKind::Text(name) = &index.kind {
                return self.field(side, name, span);
            }
            self.problem(index.span, "a field is chosen by a literal name");
            return self.dynamic(span);
        }
        let (target, index) = (self.expression(target), self.expression(index));
        let kind_of_value = match (&target.kind_of_value, &index.kind_of_value) {
            (Type::List(inner), Type::Integer | Type::Unsigned | Type::Number | Type::Dynamic) => (**inner).clone(),
            (Type::List(_), other) => {
                let message = format!("a place in a list is an integer, not {other}");
                self.problem(index.span, message);
                Type::Dynamic
            }
            (Type::Map | Type::Dynamic, _) => Type::Dynamic,
            (other, _) => {
                let message = format!("{other} has no places to choose from");
                self.problem(span, message);
                Type::Dynamic
            }
        };
        Expression { kind: Kind::Index(Box::new([target, index])), kind_of_value, span }
    }

    /// What an operator gives, or a problem with its operands.
    fn binary(&mut self, operator: Operator, left: &Expression, right: &Expression, span: Span) -> Type {
        use Operator::*;
        use Type::{Boolean, Bytes, Duration, Dynamic, Integer, List, Map, Null, Number, Text, Timestamp, Unsigned};
        let (l, r) = (&left.kind_of_value, &right.kind_of_value);
        match operator {
            Equal | NotEqual => {
                if !l.meets(r) {
                    self.mismatch(left, right, span);
                }
                Boolean
            }
            Less | LessOrEqual | Greater | GreaterOrEqual => {
                if matches!(l, Null) || matches!(r, Null) {
                    self.problem(span, "null has no order");
                    self.hint("test for null with `==`, or use `has(...)`");
                } else if !l.meets(r) {
                    self.mismatch(left, right, span);
                } else if let unordered @ (List(_) | Map) = l {
                    self.problem(span, format!("{unordered} has no order"));
                }
                Boolean
            }
            In => {
                match r {
                    List(inner) if !inner.meets(l) => {
                        self.problem(span, format!("each value of the list is {inner}, which never equals {l}"));
                    }
                    List(_) | Map | Dynamic => {}
                    other => self.problem(right.span, format!("`in` takes a list or a map on its right, not {other}")),
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
                    self.problem(span, format!("`{}` does not take {l} and {r}", operator.symbol()));
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
        self.problem(span, message);
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

    fn call(&mut self, target: Option<&Node>, name: &str, arguments: &[Node], span: Span) -> Expression {
        match (target, name, arguments) {
            (None, "has", [argument]) => return self.has(argument, span),
            (Some(Node { kind: NodeKind::Name(namespace), .. }), _, _)
                if NAMESPACES.contains(&namespace.as_str()) && self.variable(namespace, span).is_none() =>
            {
                return self.namespaced(namespace, name, arguments, span);
            }
            (Some(range), _, _) if macro_named(name).is_some() => {
                let which = macro_named(name).expect("was just found");
                return self.expand(which, name, range, arguments, span);
            }
            _ => {}
        }
        let given = target.into_iter().chain(arguments).map(|argument| self.expression(argument)).collect();
        self.function(target.is_some(), name, given, span)
    }

    /// A function of an extension, such as `math.abs(x)`, or a name that `cel.bind` and its like give.
    fn namespaced(&mut self, namespace: &str, name: &str, arguments: &[Node], span: Span) -> Expression {
        match (namespace, name, arguments) {
            ("cel", "bind", [Node { kind: NodeKind::Name(variable), .. }, value, body]) => {
                return self.bind(vec![(variable.clone(), value)], body, span);
            }
            ("cel", "block", [Node { kind: NodeKind::List(values), .. }, body]) => {
                let values = values.iter().enumerate().map(|(at, value)| (index_variable(at as i64), value)).collect();
                return self.bind(values, body, span);
            }
            ("cel", ..) => {
                let variable = variable_name_of(name, arguments).and_then(|name| self.variable(&name, span));
                return variable.unwrap_or_else(|| {
                    self.problem(span, format!("`cel.{name}` is not known here"));
                    self.hint("write `cel.bind(name, value, expression)`");
                    self.dynamic(span)
                });
            }
            _ => {}
        }
        let mut given: Vec<Expression> = arguments.iter().map(|argument| self.expression(argument)).collect();
        let name = format!("{namespace}.{name}");
        if matches!(name.as_str(), "math.greatest" | "math.least") && given.len() > 1 {
            let kind_of_value = Type::List(Box::new(Type::Dynamic));
            given = vec![Expression { kind: Kind::List(given), kind_of_value, span }];
        }
        self.function(false, &name, given, span)
    }

    fn bind(&mut self, values: Vec<(String, &Node)>, body: &Node, span: Span) -> Expression {
        let outside = self.variables.len();
        let mut bound = Vec::with_capacity(values.len());
        for (variable, value) in values {
            let value = self.expression(value);
            self.variables.push((variable, value.kind_of_value.clone()));
            bound.push(value);
        }
        let body = self.expression(body);
        self.variables.truncate(outside);
        let kind_of_value = body.kind_of_value.clone();
        Expression { kind: Kind::Bind(bound, Box::new(body)), kind_of_value, span }
    }

    fn function(&mut self, method: bool, name: &str, given: Vec<Expression>, span: Span) -> Expression {
        let named: Vec<&Signature> = SIGNATURES.iter().filter(|signature| signature.name == name).collect();
        if let (true, Some(function)) = (named.is_empty(), self.scope.functions.find(name)) {
            if given.len() != function.takes() {
                self.problem(span, format!("`{name}` does not take {} arguments", given.len()));
                self.hint(format!("write `{}`", function.show()));
                return self.dynamic(span);
            }
            let (kind_of_value, function) = (function.gives().clone(), Arc::clone(function));
            return Expression { kind: Kind::Defined(function, given), kind_of_value, span };
        }
        if named.is_empty() {
            self.problem(span, format!("there is no function `{name}`"));
            let known = SIGNATURES.iter().map(|signature| signature.name).chain(MACROS);
            if let Some(meant) = closest(name, known.chain(self.scope.functions.names())) {
                self.hint(format!("did you mean `{meant}`?"));
            }
            return self.dynamic(span);
        }
        let fitting = named.iter().find(|signature| {
            signature.method == method
                && signature.takes.len() == given.len()
                && signature.takes.iter().zip(&given).all(|(takes, given)| takes.accepts(&given.kind_of_value))
        });
        let Some(signature) = fitting else {
            let types: Vec<String> = given.iter().map(|given| given.kind_of_value.to_string()).collect();
            self.problem(span, format!("`{name}` does not take {}", types.join(", ")));
            let ways: Vec<String> = named.iter().map(|signature| format!("`{}`", signature.show())).collect();
            self.hint(format!("write {}", ways.join(" or ")));
            return self.dynamic(span);
        };
        if signature.function == Function::Matches
            && let Some(Value::Text(text)) = constant_value(&given[1])
        {
            let kind = match Pattern::read_within(&text, &mut self.budget) {
                Ok(pattern) => {
                    let subject = given.into_iter().next().expect("matches has two arguments");
                    Kind::Matches(Box::new(subject), pattern)
                }
                Err(message) => {
                    self.problem(given[1].span, message);
                    Kind::Constant(Constant::Value(Value::Null))
                }
            };
            return Expression { kind, kind_of_value: Type::Boolean, span };
        }
        let converts = matches!(
            signature.function,
            Function::ToInteger
                | Function::ToUnsigned
                | Function::ToBytes
                | Function::ToNumber
                | Function::ToText
                | Function::ToBoolean
                | Function::ToTimestamp
                | Function::ToDuration
        );
        let expression =
            Expression { kind_of_value: (signature.gives)(), kind: Kind::Call(signature.function, given), span };
        let Kind::Call(_, given) = &expression.kind else { return expression };
        if converts && given.iter().all(|given| constant_value(given).is_some()) {
            return self.fold(&expression);
        }
        expression
    }

    /// A conversion of a constant is done once, and a wrong one is found at once.
    fn fold(&mut self, expression: &Expression) -> Expression {
        let span = expression.span;
        let kind = match Evaluator::new(Scene::default()).run(expression, &mut Steps::default()) {
            Ok(Datum::Duration(micros)) => Kind::Constant(Constant::Duration(micros)),
            Ok(Datum::Unsigned(value)) => Kind::Constant(Constant::Unsigned(value)),
            Ok(Datum::Bytes(bytes)) => Kind::Constant(Constant::Bytes(bytes)),
            // Not by `to_value`, which has no NaN.
            Ok(Datum::Number(value)) => Kind::Constant(Constant::Value(Value::Number(value))),
            Ok(datum) => Kind::Constant(Constant::Value(datum.to_value())),
            Err(trouble) => {
                self.problem(span, format!("`{}` has no value: {trouble}", span.text(self.source)));
                match expression.kind_of_value {
                    Type::Timestamp => self.hint("a timestamp is written like '2026-11-21T09:30:00Z'"),
                    Type::Duration => self.hint("a duration is written like '1h30m' or '90s'"),
                    _ => {}
                }
                return self.dynamic(span);
            }
        };
        Expression { kind, kind_of_value: expression.kind_of_value.clone(), span }
    }

    fn has(&mut self, argument: &Node, span: Span) -> Expression {
        let (target, name): (&Node, Arc<str>) = match &argument.kind {
            NodeKind::Select(target, name) => (target, name.as_str().into()),
            NodeKind::OptionalSelect(..) => {
                // Whether a chain of optionals ends in a value.
                let chain = self.expression(argument);
                return Expression {
                    kind: Kind::Call(Function::HasValue, vec![chain]),
                    kind_of_value: Type::Boolean,
                    span,
                };
            }
            NodeKind::Index(parts) if matches!(parts[1].kind, NodeKind::Text(_)) => {
                let NodeKind::Text(name) = &parts[1].kind else { return self.dynamic(span) };
                (&parts[0], name.clone())
            }
            _ => {
                self.problem(span, "`has` takes a field");
                self.hint("write `has(event.name)`");
                return self.dynamic(span);
            }
        };
        let kind = match self.side(target) {
            Some(side) => Kind::Has(Box::new(self.field(side, &name, argument.span))),
            None => {
                if let Some(column) = self.chronicled(target, &name, argument.span) {
                    let kind = Kind::Has(Box::new(column));
                    return Expression { kind, kind_of_value: Type::Boolean, span };
                }
                let target = self.expression(target);
                if !matches!(target.kind_of_value, Type::Map | Type::Dynamic) {
                    self.problem(span, format!("{} has no field `{name}`", target.kind_of_value));
                }
                Kind::HasKey(Box::new(target), name)
            }
        };
        Expression { kind, kind_of_value: Type::Boolean, span }
    }

    fn expand(&mut self, which: Macro, name: &str, range: &Node, arguments: &[Node], span: Span) -> Expression {
        let range = self.expression(range);
        let item = match &range.kind_of_value {
            Type::List(inner) => (**inner).clone(),
            Type::Map | Type::Dynamic => Type::Dynamic,
            other => {
                let message = format!("`{name}` goes over a list or a map, not {other}");
                self.problem(range.span, message);
                Type::Dynamic
            }
        };
        let makes = matches!(which, Macro::Map | Macro::TransformList | Macro::TransformMap);
        let may_pair = matches!(which, Macro::All | Macro::Exists | Macro::ExistsOne);
        let must_pair = matches!(which, Macro::TransformList | Macro::TransformMap);
        let paired = must_pair || (may_pair && arguments.len() == 3);
        let (names, rest) = arguments.split_at(arguments.len().min(1 + usize::from(paired)));
        let names: Option<Vec<String>> = names.iter().map(variable_name).collect();
        let Some(names) = names.filter(|_| rest.len() == 1 || (rest.len() == 2 && makes)) else {
            let (variables, list) = match (must_pair, may_pair) {
                (true, _) => ("two variables", "key, value"),
                _ => ("a variable", "item"),
            };
            self.problem(span, format!("`{name}` takes {variables} and an expression"));
            self.hint(format!("write `list.{name}({list}, ...)`"));
            return self.dynamic(span);
        };
        let outside = self.variables.len();
        let key = if matches!(range.kind_of_value, Type::List(_)) { Type::Integer } else { Type::Dynamic };
        let kinds = if paired { vec![key, item.clone()] } else { vec![item.clone()] };
        self.variables.extend(names.into_iter().zip(kinds));
        let what = format!("the condition of `{name}`");
        let (condition, result) = match rest {
            [result] if makes || matches!(which, Macro::OptMap | Macro::OptFlatMap) => {
                (None, Some(self.expression(result)))
            }
            [condition, result] => (Some(self.boolean(condition, &what)), Some(self.expression(result))),
            rest => (rest.first().map(|condition| self.boolean(condition, &what)), None),
        };
        self.variables.truncate(outside);
        let kind_of_value = match (which, &result) {
            (Macro::All | Macro::Exists | Macro::ExistsOne, _) => Type::Boolean,
            (Macro::Filter, _) => Type::List(Box::new(item)),
            (Macro::Map | Macro::TransformList, Some(result)) => Type::List(Box::new(result.kind_of_value.clone())),
            (Macro::Map | Macro::TransformList, None) => Type::List(Box::new(Type::Dynamic)),
            (Macro::TransformMap, _) => Type::Map,
            (Macro::OptMap | Macro::OptFlatMap, _) => Type::Dynamic,
        };
        let parts = MacroParts { range, paired, condition, result };
        Expression { kind: Kind::Macro(which, Box::new(parts)), kind_of_value, span }
    }
}

/// Macros that a slip may have meant.
const MACROS: [&str; 6] = ["has", "all", "exists", "exists_one", "map", "filter"];

/// Whether the language has a function, macro, type or namespace of this name.
pub(crate) fn is_built_in(name: &str) -> bool {
    SIGNATURES.iter().any(|signature| signature.name == name)
        || macro_named(name).is_some()
        || TYPE_NAMES.contains(&name)
        || NAMESPACES.contains(&name)
        || name == "has"
}

/// What names a type.
const TYPE_NAMES: [&str; 13] = [
    "bool",
    "bytes",
    "double",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
    "int",
    "list",
    "map",
    "null_type",
    "optional_type",
    "string",
    "type",
    "uint",
];

/// Where functions have a name in front.
const NAMESPACES: [&str; 5] = ["base64", "cel", "math", "optional", "strings"];

/// The dotted name that a node is, if it is one.
fn path(node: &Node) -> Option<String> {
    match &node.kind {
        NodeKind::Name(name) => Some(name.clone()),
        NodeKind::Select(target, name) => Some(format!("{}.{name}", path(target)?)),
        _ => None,
    }
}

/// The variable that a macro declares: a name, or what stands for one where a macro was expanded before.
fn variable_name(node: &Node) -> Option<String> {
    match &node.kind {
        NodeKind::Name(name) => Some(name.clone()),
        NodeKind::Call { target: Some(target), name, arguments } if path(target)? == "cel" => {
            variable_name_of(name, arguments)
        }
        _ => None,
    }
}

/// The variable that `cel.index(n)` or `cel.iterVar(depth, n)` stands for. No name can be written like it.
fn variable_name_of(name: &str, arguments: &[Node]) -> Option<String> {
    let numbers: Option<Vec<i64>> = arguments
        .iter()
        .map(|argument| match argument.kind {
            NodeKind::Integer(value) => Some(value),
            _ => None,
        })
        .collect();
    match (name, numbers?.as_slice()) {
        ("index", [at]) => Some(index_variable(*at)),
        ("iterVar", [depth, at]) => Some(format!("@iterVar:{depth}:{at}")),
        _ => None,
    }
}

fn index_variable(at: i64) -> String {
    format!("@index{at}")
}

fn macro_named(name: &str) -> Option<Macro> {
    Some(match name {
        "all" => Macro::All,
        "exists" => Macro::Exists,
        "exists_one" | "existsOne" => Macro::ExistsOne,
        "map" => Macro::Map,
        "filter" => Macro::Filter,
        "transformList" => Macro::TransformList,
        "transformMap" => Macro::TransformMap,
        "optMap" => Macro::OptMap,
        "optFlatMap" => Macro::OptFlatMap,
        _ => return None,
    })
}

fn constant_value(expression: &Expression) -> Option<Value> {
    match &expression.kind {
        Kind::Constant(Constant::Value(value)) => Some(value.clone()),
        _ => None,
    }
}
