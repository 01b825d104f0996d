//! Resolves the fields of the event class, and reports expressions that can never work.

use tocsin_model::{
    field::{FieldType, Fields},
    problem::{Code, Problem},
    value::Value,
};

use super::{
    functions::Shape,
    parse::literal,
    syntax::{Kind, Node},
};

/// Resolves the fields of the event to their indexes, and checks types where they are known.
pub(super) fn check(node: &mut Node, source: &str, event: &Fields) -> Result<(), Vec<Problem>> {
    let mut checker = Checker { source, event, problems: Vec::new() };
    checker.node(node, true);
    if checker.problems.is_empty() { Ok(()) } else { Err(checker.problems) }
}

struct Checker<'a> {
    pub(crate) source: &'a str,
    event: &'a Fields,
    pub(crate) problems: Vec<Problem>,
}

impl Checker<'_> {
    /// `root` says whether the current value is the event.
    fn node(&mut self, node: &mut Node, root: bool) {
        match &mut node.kind {
            Kind::Field(name) if root => match self.event.position(name) {
                Some(at) => node.kind = Kind::Event(at),
                None => {
                    let problem = node.span.problem(
                        Code::UnknownName,
                        self.source,
                        format!("the event class has no field `{name}`"),
                    );
                    self.problems.push(match self.event.unknown(name).hint {
                        Some(hint) => problem.hint(hint),
                        None => problem,
                    });
                }
            },
            Kind::Sub(parts) => {
                let same = root && matches!(parts[0].kind, Kind::Current);
                self.node(&mut parts[0], root);
                self.node(&mut parts[1], same);
                if same {
                    let right = parts[1].clone();
                    *node = right;
                }
            }
            Kind::Project(_, parts) => {
                self.node(&mut parts[0], root);
                self.node(&mut parts[1], false);
            }
            Kind::Filter(parts) => {
                self.node(&mut parts[0], root);
                self.node(&mut parts[1], false);
                self.node(&mut parts[2], false);
            }
            Kind::Reference(inner) => self.node(inner, false),
            Kind::Not(inner) => self.node(inner, root),
            Kind::Compare(_, parts) => parts.iter_mut().for_each(|part| self.node(part, root)),
            Kind::Or(parts) | Kind::And(parts) | Kind::Call(_, parts) | Kind::UserFunction(_, parts) => {
                parts.iter_mut().for_each(|part| self.node(part, root));
            }
            Kind::List(parts) => {
                parts.iter_mut().for_each(|part| self.node(part, root));
                // On the event, which is never null, a list of literals is a constant.
                let values: Option<Vec<Value>> = parts.iter().map(|part| literal(part).cloned()).collect();
                if let (true, Some(values)) = (root, values) {
                    node.kind = Kind::Literal(Value::List(values.into()));
                    node.height = 1;
                }
            }
            Kind::Map(entries) => entries.iter_mut().for_each(|(_, value)| self.node(value, root)),
            _ => {}
        }
        match &node.kind {
            Kind::Compare(comparison, parts) => {
                let [left, right] = &**parts;
                let shapes = (self.shape(left), self.shape(right));
                if comparison.is_ordered() {
                    for (part, shape) in [(left, shapes.0), (right, shapes.1)] {
                        if let Some(shape) = shape.filter(|shape| *shape != Shape::Number) {
                            self.unordered(comparison.symbol(), part, shape);
                            return;
                        }
                    }
                } else if let (Some(one), Some(other)) = shapes
                    && one != other
                {
                    self.unequal(left, one, right, other);
                }
            }
            Kind::Call(function, given) => {
                let signature = function.signature();
                for (at, part) in given.iter().enumerate() {
                    if let (Some(shape), Some(parameter)) = (self.shape(part), signature.parameter(at))
                        && !parameter.takes(shape)
                    {
                        let text = part.span.text(self.source);
                        let message = format!("`{}` does not take `{text}`, {}", signature.name, shape.name());
                        let hint = format!("it is `{}`", signature.show());
                        self.problems.push(part.span.problem(Code::TypeMismatch, self.source, message).hint(hint));
                    }
                }
            }
            _ => {}
        }
    }

    fn unordered(&mut self, symbol: &str, part: &Node, shape: Shape) {
        let text = part.span.text(self.source);
        let message = format!("`{symbol}` orders numbers only, and `{text}` is {}", shape.name());
        let problem = part.span.problem(Code::TypeMismatch, self.source, message);
        self.problems.push(match number_in(part) {
            Some(hint) => problem.hint(hint),
            None => problem.hint("a filter in CEL can order text and times"),
        });
    }

    fn unequal(&mut self, left: &Node, one: Shape, right: &Node, other: Shape) {
        let text = |node: &Node| node.span.text(self.source).to_owned();
        let message = format!(
            "`{}` is {} and `{}` is {}; they are never equal",
            text(left),
            one.name(),
            text(right),
            other.name()
        );
        let problem = left.span.to(right.span).problem(Code::TypeMismatch, self.source, message);
        let hint = match (one, other) {
            (Shape::Number, Shape::Text) => number_in(right),
            (Shape::Text, Shape::Number) => number_in(left),
            _ => None,
        };
        self.problems.push(match hint {
            Some(hint) => problem.hint(hint),
            None => problem,
        });
    }

    /// The static type of a node, where it is known.
    fn shape(&self, node: &Node) -> Option<Shape> {
        match &node.kind {
            Kind::Literal(value) => Shape::of(value),
            Kind::Event(at) => Some(shape(self.event[*at].kind)),
            _ => None,
        }
    }
}

/// The JMESPath type of a field's values.
pub(super) fn shape(kind: FieldType) -> Shape {
    match kind {
        FieldType::Boolean => Shape::Boolean,
        FieldType::Integer | FieldType::Number => Shape::Number,
        FieldType::String | FieldType::Timestamp => Shape::Text,
        FieldType::List => Shape::List,
        FieldType::Map => Shape::Map,
    }
}

/// A hint to write a numeric text as a number.
fn number_in(node: &Node) -> Option<String> {
    let text = literal(node)?.as_text()?;
    text.parse::<f64>().ok().filter(|number| number.is_finite())?;
    Some(format!("write the number between backticks: `` `{text}` ``"))
}
