//! Name resolution: fields of events and subscriptions, chronicles, subscriber columns, and variables.

use tocsin_model::{
    field::Field,
    problem::{Code, closest},
};

use crate::{
    check::{
        checker::{Checker, Side, path},
        scope::Subject,
    },
    chronicle_names::{column_of, unknown_column},
    dialect::{Node, NodeKind, Span},
    expression::{Constant, Expression, Kind, Type},
    subscriber::PARTS,
};

impl Checker<'_> {
    /// The variable `event`, `sub` or `subscriber`, unless a macro's variable hides it, or `subscriber.attributes`.
    pub(super) fn side(&self, node: &Node) -> Option<Side> {
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
            name if name == self.scope.subject.word() => Some(Side::Event),
            "sub" | "subscription" if self.scope.subject == Subject::Event => Some(Side::Subscription),
            "subscriber" if self.scope.subscriber.is_some() => Some(Side::Subscriber),
            _ => None,
        }
    }

    pub(super) fn field(&mut self, side: Side, name: &str, span: Span) -> Expression {
        let (fields, whose) = match side {
            Side::Event => (&self.scope.event, "event"),
            Side::Subscription => (&self.scope.subscription, "subscription"),
            Side::Subscriber | Side::Attributes => return self.of_subscriber(side, name, span),
        };
        let Some(at) = fields.position(name) else {
            let unknown = fields.unknown(name);
            match self.scope.subject {
                Subject::Event => self.unknown(name, span, format!("the {whose} class has no field `{name}`")),
                Subject::Message => self.unknown(name, span, format!("a message has no property `{name}` here")),
            }
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

    /// A subscriber column: it follows the fields of the subscription.
    fn of_subscriber(&mut self, side: Side, name: &str, span: Span) -> Expression {
        let columns = self.scope.subscriber.clone().unwrap_or_default();
        let before = self.scope.subscription.len();
        let column =
            |at: usize, kind_of_value: Type| Expression { kind: Kind::Subscription(before + at), kind_of_value, span };
        if let Side::Attributes = side {
            if let (Some(at), Some(place)) = (columns.attribute(name), columns.attributes().position(name)) {
                return column(at, columns.attributes()[place].kind.into());
            }
            self.unknown(name, span, format!("the application declares no attribute `{name}`"));
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
            self.problem(Code::TypeMismatch, span, "`subscriber.attributes` names a group, not a value");
            self.hint("name one of them, such as `subscriber.attributes.region`");
            return self.dynamic(span);
        }
        self.unknown(name, span, format!("a subscriber has no field `{name}`"));
        match columns.attribute(name) {
            Some(_) => self.hint(format!("did you mean `subscriber.attributes.{name}`?")),
            None => self.hint(format!("it has {} and `attributes`", PARTS.map(|part| format!("`{part}`")).join(", "))),
        }
        self.dynamic(span)
    }

    /// A chronicle path such as `chronicle.day.high.before`: a column behind the fields of the event.
    pub(super) fn chronicled(&mut self, target: &Node, name: &str, span: Span) -> Option<Expression> {
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
        self.problem(Code::UnknownName, span, message);
        self.hint(hint);
        Some(self.dynamic(span))
    }

    pub(super) fn name(&mut self, node: &Node, name: &str) -> Expression {
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
            self.problem(Code::TypeMismatch, span, format!("`{name}` names a group, not a value"));
            if let Some(field) = field {
                self.hint(format!("name one of its fields, such as `{name}.{field}`"));
            }
            return self.dynamic(span);
        }
        self.unknown(name, span, format!("`{name}` is not known here"));
        let has = |field: &Field| field.name.as_str() == name;
        if self.scope.event.iter().any(has) {
            self.hint(format!("did you mean `{}.{name}`?", self.scope.subject.word()));
        } else if self.scope.subscription.iter().any(has) {
            self.hint(format!("did you mean `sub.{name}`?"));
        } else if self.scope.subscriber.as_ref().is_some_and(|columns| columns.attribute(name).is_some()) {
            self.hint(format!("did you mean `subscriber.attributes.{name}`?"));
        } else {
            self.hint(match self.scope.subject {
                Subject::Event => "an expression can read `event` and `sub`",
                Subject::Message => "a route can read `message`",
            });
        }
        self.dynamic(span)
    }

    pub(super) fn variable(&self, name: &str, span: Span) -> Option<Expression> {
        let at = self.variables.iter().rposition(|(variable, _)| variable == name)?;
        Some(Expression { kind: Kind::Variable(at), kind_of_value: self.variables[at].1.clone(), span })
    }

    pub(super) fn select(&mut self, target: &Node, name: &str, span: Span) -> Expression {
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
            self.unknown(name, span, format!("{} has no field `{name}`", target.kind_of_value));
        }
        Expression { kind: Kind::Select(Box::new(target), name.into()), kind_of_value: Type::Dynamic, span }
    }

    pub(super) fn index(&mut self, target: &Node, index: &Node, span: Span) -> Expression {
        if let Some(side) = self.side(target) {
            // The only way to select a field whose name contains a `-`.
            if let NodeKind::Text(name) = &index.kind {
                return self.field(side, name, span);
            }
            self.problem(Code::InvalidExpression, index.span, "a field is chosen by a literal name");
            return self.dynamic(span);
        }
        let (target, index) = (self.expression(target), self.expression(index));
        let kind_of_value = match (&target.kind_of_value, &index.kind_of_value) {
            (Type::List(inner), Type::Integer | Type::Unsigned | Type::Number | Type::Dynamic) => (**inner).clone(),
            (Type::List(_), other) => {
                let message = format!("a place in a list is an integer, not {other}");
                self.problem(Code::TypeMismatch, index.span, message);
                Type::Dynamic
            }
            (Type::Map | Type::Dynamic, _) => Type::Dynamic,
            (other, _) => {
                let message = format!("{other} has no places to choose from");
                self.problem(Code::TypeMismatch, span, message);
                Type::Dynamic
            }
        };
        Expression { kind: Kind::Index(Box::new([target, index])), kind_of_value, span }
    }
}

/// The names of types.
pub(super) const TYPE_NAMES: [&str; 13] = [
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
