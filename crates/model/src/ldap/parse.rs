//! Parser of RFC 4515, with the absolute filters `(&)` and `(|)` of RFC 4526.

use super::{
    matching_rule::{self, TIME_HINT},
    normal::is_plain_in_name,
    prepare::{Form, Parts},
};
use crate::{
    ldap::node::{
        ATTRIBUTE_NAME_MAX, Assertion, Attribute, FILTER_BYTES_MAX, FILTER_DEPTH_MAX, FILTER_TERMS_MAX, Item, Node,
        Property, Substrings, Test,
    },
    problem::{Code, Problem},
};

/// Parses a filter.
pub(super) fn parse(text: &str) -> Result<Node, Vec<Problem>> {
    if text.len() > FILTER_BYTES_MAX {
        let message = format!("takes {} bytes; at most {FILTER_BYTES_MAX} fit", text.len());
        return Err(vec![
            Problem::new(Code::TooLong, "", message)
                .param("given", text.len())
                .param("limit", FILTER_BYTES_MAX)
                .param("unit", "bytes"),
        ]);
    }
    let mut parser = Parser { text, at: 0, depth: 0, terms: 0, problems: Vec::new() };
    let node = match parser.whole() {
        Ok(node) => node,
        Err(problem) => {
            parser.problems.push(*problem);
            return Err(parser.problems);
        }
    };
    if parser.problems.is_empty() { Ok(node) } else { Err(parser.problems) }
}

struct Parser<'t> {
    text: &'t str,
    /// Index of the next octet.
    at: usize,
    depth: usize,
    terms: usize,
    /// Problems of items that could be parsed.
    problems: Vec<Problem>,
}

/// The error is a syntax error that ends the parsing.
type Parsed<T> = Result<T, Box<Problem>>;

impl<'t> Parser<'t> {
    fn whole(&mut self) -> Parsed<Node> {
        self.skip_space();
        if self.rest().is_empty() {
            return self.stop(self.at, "is empty", "write a filter, such as (region=Vienna)");
        }
        if !self.rest().starts_with('(') {
            let hint = format!("write ({})", self.rest().trim_end());
            return self.stop(self.at, "a filter needs parentheses", hint);
        }
        let node = self.filter()?;
        self.skip_space();
        if self.rest().is_empty() {
            return Ok(node);
        }
        if self.rest().starts_with('(') {
            return self.stop(self.at, "a second filter follows", "join them: (&(a=1)(b=2)) or (|(a=1)(b=2))");
        }
        self.stop(self.at, "something follows the filter", "end with the parenthesis that closes the first")
    }

    /// One filter, from its opening to its closing parenthesis.
    fn filter(&mut self) -> Parsed<Node> {
        self.terms += 1;
        if self.terms > FILTER_TERMS_MAX {
            let message = format!("has more than {FILTER_TERMS_MAX} terms");
            return self.stop(self.at, message, "a list attribute that says who belongs needs one term");
        }
        if self.depth == FILTER_DEPTH_MAX {
            let message = format!("is nested more than {FILTER_DEPTH_MAX} deep");
            return self.stop(
                self.at,
                message,
                "conjunctions and disjunctions take any number of filters side by side",
            );
        }
        let opened = self.at;
        self.depth += 1;
        self.at += 1;
        self.skip_space();
        let node = match self.peek() {
            Some('&') => Node::And(self.list()?),
            Some('|') => Node::Or(self.list()?),
            Some('!') => {
                self.at += 1;
                self.skip_space();
                if self.peek() != Some('(') {
                    return self.stop(self.at, "`!` is followed by a filter in parentheses", "write (!(a=b))");
                }
                Node::Not(Box::new(self.filter()?))
            }
            Some('(') => {
                let hint = "a filter begins with &, |, ! or an attribute";
                return self.stop(self.at, "there is one parenthesis too many", hint);
            }
            Some(')') => {
                return self.stop(self.at, "the parentheses are empty", "(&) is always true, (|) is always false");
            }
            None => return self.unclosed(opened),
            Some(_) => Node::Item(self.item(opened)?),
        };
        self.skip_space();
        match self.peek() {
            Some(')') => self.at += 1,
            None => return self.unclosed(opened),
            Some('(') if matches!(node, Node::Not(_)) => {
                return self.stop(self.at, "`!` takes one filter", "write (!(&(a=1)(b=2)))");
            }
            Some(_) => {
                return self.stop(self.at, "a closing parenthesis is expected here", "each filter is closed by one");
            }
        }
        self.depth -= 1;
        Ok(node)
    }

    /// Filters up to a closing parenthesis.
    fn list(&mut self) -> Parsed<Vec<Node>> {
        self.at += 1;
        let mut parts = Vec::new();
        loop {
            self.skip_space();
            if self.peek() != Some('(') {
                return Ok(parts);
            }
            parts.push(self.filter()?);
        }
    }

    fn item(&mut self, opened: usize) -> Parsed<Item> {
        let begun = self.at;
        let name = self.name(opened)?;
        let operator = self.at;
        let found = self.rest();
        let length = ["=", ">=", "<=", "~="].into_iter().find(|sign| found.starts_with(sign)).map(str::len);
        if let Some(length) = length {
            if name.is_empty() {
                return self.stop(begun, "an attribute is missing before the operator", "write (attribute=value)");
            }
            self.at += length;
            let attribute = self.attribute(&name, begun);
            let value_at = self.at;
            let parts = self.value(opened)?;
            let test = match &found[..length] {
                "=" => self.equality(parts, value_at)?,
                sign => {
                    let assertion = Assertion::of(self.starless(parts, value_at)?);
                    match sign {
                        ">=" => Test::AtLeast(assertion),
                        "<=" => Test::AtMost(assertion),
                        _ => Test::Approximate(assertion),
                    }
                }
            };
            self.check(&attribute, &test, value_at);
            return Ok(Item { attribute: Some(attribute), test });
        }
        match self.peek() {
            Some(':') => self.extensible(name, begun, opened),
            Some(sign @ ('<' | '>')) => {
                let (or_equal, opposite) = if sign == '<' { ("<=", ">=") } else { (">=", "<=") };
                let hint = format!("write {or_equal}; strictly, (&(a=*)(!(a{opposite}1)))");
                self.stop(operator, format!("there is no operator `{sign}`"), hint)
            }
            Some('!') => self.stop(operator, "there is no operator `!=`", "write (!(a=b))"),
            Some(';') => {
                let hint = "attributes of subscribers have no options; in a name, write it as \\3b";
                self.stop(operator, "an option follows the attribute", hint)
            }
            Some(c) if c.is_whitespace() => {
                let hint = "leave out the space; in a name, write it as \\20";
                self.stop(operator, "a space follows the attribute", hint)
            }
            Some(')') => self.stop(operator, "the attribute has no operator", "(a=*) asks whether it has a value"),
            Some(c) => {
                let hint = format!("write =, >=, <=, ~= or :rule:=; in a name, write {}", escaped(c));
                self.stop(operator, format!("`{}` cannot stand in the name of an attribute", c.escape_debug()), hint)
            }
            None => self.unclosed(opened),
        }
    }

    /// The name of an attribute, up to the first character that cannot be part of one.
    pub(crate) fn name(&mut self, opened: usize) -> Parsed<String> {
        let begun = self.at;
        let mut octets = Vec::new();
        loop {
            match self.peek() {
                Some('\\') => octets.push(self.escape(opened)?),
                Some(c) if is_plain_in_name(c) => {
                    octets.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    self.at += c.len_utf8();
                }
                _ => break,
            }
        }
        let name = self.text_of(octets, begun)?;
        if name.chars().count() > ATTRIBUTE_NAME_MAX {
            let message = format!("the name of the attribute is longer than {ATTRIBUTE_NAME_MAX} characters");
            return self.stop(begun, message, "names are shorter");
        }
        Ok(name)
    }

    fn attribute(&mut self, name: &str, begun: usize) -> Attribute {
        let attribute = Attribute::of(name);
        if attribute == Attribute::Named(String::new()) {
            self.add_problem(
                begun,
                "the name of an attribute is missing after `attributes.`",
                "write (attributes.name=value)",
            );
        }
        attribute
    }

    /// `[attribute]:rule:=value`, from the first colon on.
    fn extensible(&mut self, name: String, begun: usize, opened: usize) -> Parsed<Item> {
        let mut rule = None;
        while !self.rest().starts_with(":=") {
            self.at += 1;
            let word_at = self.at;
            let word: &'t str = {
                let rest = self.rest();
                &rest[..rest.find([':', '=', '(', ')', '*', '\\']).unwrap_or(rest.len())]
            };
            self.at += word.len();
            if self.peek() != Some(':') {
                let hint = "write (attribute:rule:=value), such as (name:caseExactMatch:=Ann)";
                return self.stop(word_at, "`:=` is missing after the matching rule", hint);
            }
            if word.eq_ignore_ascii_case("dn") {
                let hint = "leave out `:dn`; subscribers have no distinguished names";
                self.add_problem(word_at, "the parts of a distinguished name cannot be asked for", hint);
            } else if rule.replace((word, word_at)).is_some() {
                return self.stop(word_at, "there is more than one matching rule", "write (attribute:rule:=value)");
            }
        }
        self.at += 2;
        let value_at = self.at;
        let parts = self.value(opened)?;
        let attribute = (!name.is_empty()).then(|| self.attribute(&name, begun));
        let Some((rule, rule_at)) = rule else {
            let Some(attribute) = attribute else {
                let hint = "write (attribute:=value), (:rule:=value) or (attribute:rule:=value)";
                return self.stop(begun, "neither an attribute nor a matching rule is given", hint);
            };
            // Without a rule it is the attribute's own equality, as for `=`.
            let test = Test::Equal(Assertion::of(self.starless(parts, value_at)?));
            self.check(&attribute, &test, value_at);
            return Ok(Item { attribute: Some(attribute), test });
        };
        // An unknown rule is reported; parsing goes on.
        let unusable = Item { attribute: attribute.clone(), test: Test::Present };
        let rule = match matching_rule::find(rule) {
            Ok(rule) => rule,
            Err((message, hint)) => {
                self.add_problem(rule_at, message, hint);
                return Ok(unusable);
            }
        };
        let text = if rule.is_for_substrings() { parts.join("*") } else { self.starless(parts, value_at)? };
        match rule.assertion(text) {
            Ok(assertion) => Ok(Item { attribute, test: Test::Rule(rule, assertion) }),
            Err((message, hint)) => {
                self.add_problem(value_at, message, hint);
                Ok(unusable)
            }
        }
    }

    /// `=` means presence, substrings or equality, depending on its asterisks.
    fn equality(&mut self, mut parts: Vec<String>, at: usize) -> Parsed<Test> {
        match parts.len() {
            1 => Ok(Test::Equal(Assertion::of(parts.remove(0)))),
            2 if parts.iter().all(String::is_empty) => Ok(Test::Present),
            stars => {
                if parts[1..stars - 1].iter().any(String::is_empty) {
                    return self.stop(at, "two stars stand side by side", "write one; a star of its own is \\2a");
                }
                let exact = Parts::between_stars(parts);
                Ok(Test::Substrings(Substrings { prepared: exact.prepared(Form::CaseIgnore), exact }))
            }
        }
    }

    /// The value of an operator that does not permit asterisks.
    fn starless(&mut self, mut parts: Vec<String>, at: usize) -> Parsed<String> {
        if parts.len() > 1 {
            return self.stop(
                at,
                "a star has no meaning here",
                "a star of its own is \\2a; substrings are asked for by =",
            );
        }
        Ok(parts.remove(0))
    }

    /// An assertion value up to its closing parenthesis, split at its asterisks.
    fn value(&mut self, opened: usize) -> Parsed<Vec<String>> {
        let mut parts = Vec::new();
        let mut octets = Vec::new();
        let mut begun = self.at;
        loop {
            match self.peek() {
                None => return self.unclosed(opened),
                Some(')') => {
                    parts.push(self.text_of(octets, begun)?);
                    return Ok(parts);
                }
                Some('(') => {
                    let hint = "close the filter before it; a parenthesis of its own is \\28";
                    return self.stop(self.at, "a parenthesis opens within a value", hint);
                }
                Some('*') => {
                    parts.push(self.text_of(std::mem::take(&mut octets), begun)?);
                    self.at += 1;
                    begun = self.at;
                }
                Some('\\') => octets.push(self.escape(opened)?),
                Some('\0') => return self.stop(self.at, "a value contains a zero byte", "write \\00"),
                Some(c) => {
                    octets.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    self.at += c.len_utf8();
                }
            }
        }
    }

    /// A backslash and two hexadecimal digits: one octet.
    fn escape(&mut self, opened: usize) -> Parsed<u8> {
        if self.rest().len() == 1 {
            return self.unclosed(opened);
        }
        let code = self.rest().get(1..3).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(octet) => {
                self.at += 3;
                Ok(octet)
            }
            None => {
                let hint = "it is followed by two hexadecimal digits: \\28 (, \\29 ), \\2a *, \\5c \\";
                self.stop(self.at, "a backslash does not begin an escape", hint)
            }
        }
    }

    fn text_of(&self, octets: Vec<u8>, at: usize) -> Parsed<String> {
        String::from_utf8(octets).or_else(|_| {
            let hint = "escape every octet of a character, such as \\c3\\b6 for ö, or write the character";
            self.stop(at, "what is escaped is not UTF-8", hint)
        })
    }

    /// Reports an assertion about a property that is always undefined.
    fn check(&mut self, attribute: &Attribute, test: &Test, at: usize) {
        let Attribute::Property(property) = attribute else { return };
        let (message, hint) = match (property, test) {
            (_, Test::Present | Test::Rule(..)) => return,
            (Property::Enabled, Test::Equal(value) | Test::Approximate(value)) if value.boolean.is_some() => return,
            (Property::Enabled, Test::Equal(_) | Test::Approximate(_)) => {
                ("`enabled` is a boolean", "write TRUE or FALSE")
            }
            (Property::Enabled, _) => ("`enabled` has neither an order nor parts", "write (enabled=TRUE)"),
            (Property::CreatedAt, Test::Substrings(_)) => ("`created_at` has no parts", TIME_HINT),
            (
                Property::CreatedAt,
                Test::Equal(value) | Test::AtLeast(value) | Test::AtMost(value) | Test::Approximate(value),
            ) if value.time.is_none() => ("`created_at` is a time", TIME_HINT),
            _ => return,
        };
        self.add_problem(at, message, hint);
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn problem(&self, at: usize, message: impl Into<String>, hint: impl Into<String>) -> Problem {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Problem::syntax("ldap_filter", "", message).position(number(line), number(column)).hint(hint)
    }

    fn add_problem(&mut self, at: usize, message: impl Into<String>, hint: impl Into<String>) {
        let problem = self.problem(at, message, hint);
        self.problems.push(problem);
    }

    fn stop<T>(&self, at: usize, message: impl Into<String>, hint: impl Into<String>) -> Parsed<T> {
        Err(Box::new(self.problem(at, message, hint)))
    }

    fn unclosed<T>(&self, opened: usize) -> Parsed<T> {
        self.stop(opened, "the parenthesis that opens here is not closed", "each filter ends with one")
    }
}

/// A character as an escape.
fn escaped(c: char) -> String {
    c.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("\\{byte:02x}")).collect()
}
