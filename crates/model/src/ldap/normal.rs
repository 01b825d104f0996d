//! Canonical form of filters, and its text. All rewrites are equivalences of three-valued logic.

use std::fmt;

use crate::ldap::node::{ATTRIBUTES, Attribute, Item, Node, Property, Substrings, Test};

/// Flattens conjunctions and disjunctions, drops redundant parts, and sorts the rest.
pub(super) fn normal(node: Node) -> Node {
    match node {
        Node::And(parts) => joined(parts, true),
        Node::Or(parts) => joined(parts, false),
        Node::Not(part) => match normal(*part) {
            Node::Not(inner) => *inner,
            Node::And(parts) if parts.is_empty() => Node::Or(parts),
            Node::Or(parts) if parts.is_empty() => Node::And(parts),
            part => Node::Not(Box::new(part)),
        },
        Node::Item(item) => Node::Item(item),
    }
}

/// A conjunction or a disjunction. An empty one absorbs the other kind.
fn joined(parts: Vec<Node>, all: bool) -> Node {
    let mut flat: Vec<(String, Node)> = Vec::with_capacity(parts.len());
    for part in parts {
        match (normal(part), all) {
            (Node::And(inner), true) | (Node::Or(inner), false) => {
                flat.extend(inner.into_iter().map(|part| (part.to_string(), part)));
            }
            (Node::Or(inner), true) if inner.is_empty() => return Node::Or(inner),
            (Node::And(inner), false) if inner.is_empty() => return Node::And(inner),
            (part, _) => flat.push((part.to_string(), part)),
        }
    }
    flat.sort_by(|(one, _), (other, _)| one.cmp(other));
    flat.dedup_by(|(one, _), (other, _)| one == other);
    let mut parts: Vec<Node> = flat.into_iter().map(|(_, part)| part).collect();
    match (parts.len(), all) {
        (1, _) => parts.remove(0),
        (_, true) => Node::And(parts),
        (_, false) => Node::Or(parts),
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = |f: &mut fmt::Formatter<'_>, parts: &[Node]| parts.iter().try_for_each(|part| part.fmt(f));
        f.write_str("(")?;
        match self {
            Node::And(inner) => f.write_str("&").and_then(|()| parts(f, inner))?,
            Node::Or(inner) => f.write_str("|").and_then(|()| parts(f, inner))?,
            Node::Not(inner) => write!(f, "!{inner}")?,
            Node::Item(item) => item.fmt(f)?,
        }
        f.write_str(")")
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(attribute) = &self.attribute {
            attribute.fmt(f)?;
        }
        match &self.test {
            Test::Present => f.write_str("=*"),
            Test::Equal(value) => write!(f, "={}", Escaped(&value.text)),
            Test::AtLeast(value) => write!(f, ">={}", Escaped(&value.text)),
            Test::AtMost(value) => write!(f, "<={}", Escaped(&value.text)),
            Test::Approximate(value) => write!(f, "~={}", Escaped(&value.text)),
            Test::Substrings(Substrings { exact, .. }) => {
                write!(f, "={}*", Escaped(exact.first.as_deref().unwrap_or_default()))?;
                for part in &exact.middle {
                    write!(f, "{}*", Escaped(part))?;
                }
                write!(f, "{}", Escaped(exact.last.as_deref().unwrap_or_default()))
            }
            Test::Rule(rule, value) => write!(f, ":{}:={}", rule.name, Escaped(&value.text)),
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::Property(property) => f.write_str(property.name()),
            Attribute::Named(name) => {
                let hidden =
                    name.starts_with(ATTRIBUTES) || Property::ALL.iter().any(|property| property.name() == name);
                if hidden {
                    f.write_str(ATTRIBUTES)?;
                }
                name.chars().try_for_each(|c| {
                    if is_plain_in_name(c) { write!(f, "{c}") } else { write!(f, "{}", Hexadecimal(c)) }
                })
            }
        }
    }
}

/// Whether a character needs no escape in an attribute name.
pub(super) fn is_plain_in_name(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !"()&|!*=~<>:;\\".contains(c)
}

/// An assertion value in the syntax of RFC 4515.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '*' | '(' | ')' | '\\' => write!(f, "{}", Hexadecimal(c)),
            c if c.is_control() => write!(f, "{}", Hexadecimal(c)),
            c => write!(f, "{c}"),
        })
    }
}

/// The octets of a character, escaped.
struct Hexadecimal(char);

impl fmt::Display for Hexadecimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| write!(f, "\\{byte:02x}"))
    }
}
