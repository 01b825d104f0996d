//! Type checks of calls: built-in and user-defined functions, macros, and local bindings.

use std::sync::Arc;

use tocsin_model::{
    problem::{Code, closest},
    value::Value,
};

use super::names::TYPE_NAMES;
use crate::{
    check::checker::{Checker, constant_value, path},
    dialect::{Node, NodeKind, Span},
    eval_value::EvalValue,
    evaluate::{EvalContext, Evaluator},
    expression::{Constant, Expression, Function, Kind, Macro, MacroParts, Type},
    functions::{SIGNATURES, Signature},
    regex_pattern::Pattern,
    steps::Steps,
};

impl Checker<'_> {
    pub(super) fn call(&mut self, target: Option<&Node>, name: &str, arguments: &[Node], span: Span) -> Expression {
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

    /// A function of an extension, such as `math.abs(x)`, or a bound name, such as that of `cel.bind`.
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
                    self.unknown(name, span, format!("`cel.{name}` is not known here"));
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
                self.problem(Code::TypeMismatch, span, format!("`{name}` does not take {} arguments", given.len()));
                self.hint(format!("write `{}`", function.show()));
                return self.dynamic(span);
            }
            let (kind_of_value, function) = (function.result_type().clone(), Arc::clone(function));
            return Expression { kind: Kind::UserFunction(function, given), kind_of_value, span };
        }
        if named.is_empty() {
            self.unknown(name, span, format!("there is no function `{name}`"));
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
            self.problem(Code::TypeMismatch, span, format!("`{name}` does not take {}", types.join(", ")));
            let signatures: Vec<String> = named.iter().map(|signature| format!("`{}`", signature.show())).collect();
            self.hint(format!("write {}", signatures.join(" or ")));
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
                    self.problem(Code::InvalidExpression, given[1].span, message);
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

    /// Folds the conversion of a constant, so that an invalid one is reported at once.
    fn fold(&mut self, expression: &Expression) -> Expression {
        let span = expression.span;
        let kind = match Evaluator::new(EvalContext::default()).run(expression, &mut Steps::default()) {
            Ok(EvalValue::Duration(micros)) => Kind::Constant(Constant::Duration(micros)),
            Ok(EvalValue::Unsigned(value)) => Kind::Constant(Constant::Unsigned(value)),
            Ok(EvalValue::Bytes(bytes)) => Kind::Constant(Constant::Bytes(bytes)),
            // Not by `to_value`, which has no NaN.
            Ok(EvalValue::Number(value)) => Kind::Constant(Constant::Value(Value::Number(value))),
            Ok(eval_value) => Kind::Constant(Constant::Value(eval_value.to_value())),
            Err(error) => {
                self.problem(
                    Code::InvalidExpression,
                    span,
                    format!("`{}` has no value: {error}", span.text(self.source)),
                );
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
                self.problem(Code::TypeMismatch, span, "`has` takes a field");
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
                    self.unknown(&name, span, format!("{} has no field `{name}`", target.kind_of_value));
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
                self.problem(Code::TypeMismatch, range.span, message);
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
            self.problem(Code::TypeMismatch, span, format!("`{name}` takes {variables} and an expression"));
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

/// Macros for the hints to misspelled names.
const MACROS: [&str; 6] = ["has", "all", "exists", "exists_one", "map", "filter"];

/// Whether the language has a function, macro, type or namespace of this name.
pub(crate) fn is_built_in(name: &str) -> bool {
    SIGNATURES.iter().any(|signature| signature.name == name)
        || macro_named(name).is_some()
        || TYPE_NAMES.contains(&name)
        || NAMESPACES.contains(&name)
        || name == "has"
}

/// The prefixes of namespaced functions.
const NAMESPACES: [&str; 5] = ["base64", "cel", "math", "optional", "strings"];

/// The variable that a macro declares: a name, or the internal name of an expanded macro.
fn variable_name(node: &Node) -> Option<String> {
    match &node.kind {
        NodeKind::Name(name) => Some(name.clone()),
        NodeKind::Call { target: Some(target), name, arguments } if path(target)? == "cel" => {
            variable_name_of(name, arguments)
        }
        _ => None,
    }
}

/// The variable of `cel.index(n)` or `cel.iterVar(depth, n)`. No source text can spell this name.
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
