//! The JMESPath parser, by precedence climbing.

use std::sync::Arc;

use tocsin_model::{
    problem::{Code, Problem, closest},
    value::Value,
};

use super::{
    functions::{Function, Parameter},
    lex::{Token, tokens},
    syntax::{Comparison, Kind, Mode, Node, ProjectionKind, Slice},
};
use crate::{
    dialect::{EXPRESSION_BYTES_MAX, EXPRESSION_HEIGHT_MAX, EXPRESSION_NESTING_MAX, Span},
    expression::UserFunctions,
};

/// Parses an expression. Checks names, numbers of arguments and slices, but not types; in the dialect of NotifyBC, only
/// the syntax that its library checks. O(length); depth and length are bounded, so neither time nor stack can run out.
///
/// # Errors
/// The first syntax error, with its line and column.
pub(super) fn parse(source: &str, functions: &UserFunctions, mode: Mode) -> Result<Node, Problem> {
    if source.len() > EXPRESSION_BYTES_MAX {
        let message = format!("the expression has {} bytes, at most {EXPRESSION_BYTES_MAX} are allowed", source.len());
        return Err(Problem::new(Code::TooLong, "", message)
            .param("given", source.len())
            .param("limit", EXPRESSION_BYTES_MAX)
            .param("unit", "bytes"));
    }
    let mut parser = Parser { source, functions, mode, tokens: tokens(source, mode)?, at: 0, nesting: 0 };
    let node = parser.expression(0)?;
    match parser.peek() {
        Token::End => Ok(node),
        Token::Symbol("]") => Err(parser.unexpected().hint("this bracket was never opened")),
        Token::Symbol(")") => Err(parser.unexpected().hint("this parenthesis was never opened")),
        _ => Err(parser.unexpected()),
    }
}

/// The left binding power of a token.
fn binding(token: &Token) -> u8 {
    match token {
        Token::Symbol(symbol) => match *symbol {
            "|" => 1,
            "||" => 2,
            "&&" => 3,
            "==" | "!=" | "<" | "<=" | ">" | ">=" => 5,
            "[]" => FLATTEN,
            "*" => STAR,
            "[?" => FILTER,
            "." => DOT,
            "!" => NOT,
            "{" => 50,
            "[" => 55,
            "(" => 60,
            _ => 0,
        },
        _ => 0,
    }
}

const FLATTEN: u8 = 9;
const PROJECTION_END: u8 = 10;
const STAR: u8 = 20;
const FILTER: u8 = 21;
const DOT: u8 = 40;
const NOT: u8 = 45;

struct Parser<'a> {
    source: &'a str,
    functions: &'a UserFunctions,
    mode: Mode,
    tokens: Vec<(Token, Span)>,
    at: usize,
    nesting: usize,
}

impl Parser<'_> {
    fn is_notifybc(&self) -> bool {
        self.mode == Mode::Notifybc
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn span(&self) -> Span {
        self.tokens[self.at].1
    }

    /// Never moves beyond the last token.
    fn next(&mut self) -> (Token, Span) {
        let token = self.tokens[self.at].clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    /// The end of the previous token.
    fn end(&self) -> Span {
        self.tokens[self.at.saturating_sub(1)].1
    }

    fn skip(&mut self, symbol: &str) -> bool {
        let found = matches!(self.peek(), Token::Symbol(found) if *found == symbol);
        if found {
            self.next();
        }
        found
    }

    fn expect(&mut self, symbol: &str, what: &str) -> Result<(), Problem> {
        if self.skip(symbol) {
            return Ok(());
        }
        Err(self.here(format!("`{symbol}` should stand here {what}, not {}", self.peek().describe())))
    }

    fn here(&self, message: impl Into<String>) -> Problem {
        self.span().problem(Code::InvalidSyntax, self.source, message).param("language", "jmespath")
    }

    fn unexpected(&self) -> Problem {
        let problem = self.here(format!("{} is not expected here", self.peek().describe()));
        match self.peek() {
            Token::Number(_) => problem.hint("write a number between backticks"),
            Token::End => problem.hint("the expression is not complete"),
            _ => problem,
        }
    }

    fn node(&self, kind: Kind, start: Span) -> Result<Node, Problem> {
        let span = start.to(self.end());
        let mut node = Node { kind, span, height: 0 };
        node.height = node.parts().iter().map(|part| part.height).max().unwrap_or(0) + 1;
        if node.height > EXPRESSION_HEIGHT_MAX {
            return Err(span.problem(Code::TooComplex, self.source, "the expression is too complex"));
        }
        Ok(node)
    }

    fn expression(&mut self, least: u8) -> Result<Node, Problem> {
        if self.nesting == EXPRESSION_NESTING_MAX {
            return Err(self.here(format!("the expression is nested more than {EXPRESSION_NESTING_MAX} deep")));
        }
        self.nesting += 1;
        let mut left = self.first()?;
        while least < binding(self.peek()) {
            left = self.further(left)?;
        }
        self.nesting -= 1;
        Ok(left)
    }

    /// The start of an expression.
    fn first(&mut self) -> Result<Node, Problem> {
        let at = self.at;
        let (token, span) = self.next();
        let current = Node { kind: Kind::Current, span: Span { start: span.start, end: span.start }, height: 1 };
        let kind = match token {
            Token::Name(name) if *self.peek() == Token::Symbol("(") => return self.call(&name, span),
            Token::Quoted(_) if *self.peek() == Token::Symbol("(") => {
                return Err(span
                    .problem(
                        Code::InvalidSyntax,
                        self.source,
                        "the name of a function is written without quotation marks",
                    )
                    .param("language", "jmespath"));
            }
            Token::Name(name) | Token::Quoted(name) => Kind::Field(name),
            Token::Literal(value) => Kind::Literal(value),
            Token::Symbol("@") => Kind::Current,
            Token::Symbol("*") => return self.projection(ProjectionKind::Values, current, STAR),
            Token::Symbol("[]") => return self.projection(ProjectionKind::Flattened, current, FLATTEN),
            Token::Symbol("[?") => return self.filter(current),
            Token::Symbol("[") => match self.peek() {
                Token::Number(_) | Token::Symbol(":") => return self.index(current),
                Token::Symbol("*") if self.tokens[self.at + 1].0 == Token::Symbol("]") => {
                    self.at += 2;
                    return self.projection(ProjectionKind::Items, current, STAR);
                }
                _ => return self.list(span),
            },
            Token::Symbol("{") => return self.map(span),
            Token::Symbol("!") => {
                let inner = self.expression(NOT)?;
                if !self.is_notifybc()
                    && let Token::Symbol(symbol @ ("." | "[]" | "[?")) = self.peek()
                {
                    let text = inner.span.text(self.source);
                    let message =
                        format!("`!` takes `{text}` alone here, so `{symbol}` would be asked of true or false");
                    return Err(self.here(message).hint(format!("write `!({text}{symbol}...)`")));
                }
                Kind::Not(Box::new(inner))
            }
            Token::Symbol("(") if self.is_notifybc() => return self.lenient_parenthesis(span),
            Token::Symbol("(") => {
                let inner = self.expression(0)?;
                self.expect(")", "to close the parenthesis")?;
                return Ok(inner);
            }
            Token::Symbol("&") if self.is_notifybc() => Kind::Reference(Box::new(self.expression(0)?)),
            Token::Symbol("&") => {
                let message = "`&` stands only before an argument of functions that take an expression";
                return Err(span.problem(Code::InvalidSyntax, self.source, message).param("language", "jmespath"));
            }
            _ => {
                self.at = at;
                return Err(self.unexpected());
            }
        };
        self.node(kind, span)
    }

    /// The continuation of an expression.
    fn further(&mut self, left: Node) -> Result<Node, Problem> {
        let start = left.span;
        let comparison = match self.peek() {
            Token::Symbol("==") => Some(Comparison::Equal),
            Token::Symbol("!=") => Some(Comparison::NotEqual),
            Token::Symbol("<") => Some(Comparison::Less),
            Token::Symbol("<=") => Some(Comparison::LessOrEqual),
            Token::Symbol(">") => Some(Comparison::Greater),
            Token::Symbol(">=") => Some(Comparison::GreaterOrEqual),
            _ => None,
        };
        if let Some(comparison) = comparison {
            self.next();
            if let Token::Number(number) = self.peek() {
                let hint = format!("write `` `{number}` ``");
                return Err(self.here("a number stands between backticks").hint(hint));
            }
            let right = self.expression(5)?;
            return self.node(Kind::Compare(comparison, Box::new([left, right])), start);
        }
        let at = self.at;
        match self.next().0 {
            Token::Symbol("||") => {
                let right = self.expression(2)?;
                let parts = match left.kind {
                    Kind::Or(parts) => push(parts, right),
                    _ => vec![left, right],
                };
                self.node(Kind::Or(parts), start)
            }
            Token::Symbol("&&") => {
                let right = self.expression(3)?;
                let parts = match left.kind {
                    Kind::And(parts) => push(parts, right),
                    _ => vec![left, right],
                };
                self.node(Kind::And(parts), start)
            }
            Token::Symbol("|") => {
                let right = self.expression(1)?;
                self.node(Kind::Sub(Box::new([left, right])), start)
            }
            Token::Symbol(".") => {
                if self.skip("*") {
                    let least = if self.is_notifybc() { DOT } else { STAR };
                    return self.projection(ProjectionKind::Values, left, least);
                }
                let right = self.after_dot(DOT)?;
                self.node(Kind::Sub(Box::new([left, right])), start)
            }
            Token::Symbol("[") => match self.peek() {
                Token::Number(_) | Token::Symbol(":") => self.index(left),
                Token::Symbol("*") => {
                    self.next();
                    self.expect("]", "after `[*`")?;
                    self.projection(ProjectionKind::Items, left, STAR)
                }
                _ => Err(self.here("a number, `:` or `*` should stand between these brackets")),
            },
            Token::Symbol("[]") => self.projection(ProjectionKind::Flattened, left, FLATTEN),
            Token::Symbol("[?") => self.filter(left),
            Token::Symbol("(") if self.is_notifybc() => self.call_of(&left),
            _ => {
                self.at = at;
                Err(self.unexpected())
            }
        }
    }

    fn after_dot(&mut self, least: u8) -> Result<Node, Problem> {
        match self.peek() {
            Token::Symbol("[") => {
                let (_, span) = self.next();
                self.list(span)
            }
            Token::Name(_) | Token::Quoted(_) | Token::Symbol("*" | "{") => self.expression(least),
            _ if self.is_notifybc() => self.node(Kind::Failing, self.end()),
            Token::Number(_) => Err(self.unexpected().hint("write `[0]` for the first item of a list")),
            _ => {
                Err(self
                    .here(format!("a name, `*`, `[` or `{{` should follow the dot, not {}", self.peek().describe())))
            }
        }
    }

    fn projection(&mut self, over: ProjectionKind, left: Node, least: u8) -> Result<Node, Problem> {
        let start = left.span;
        let right = self.projection_body(least)?;
        self.node(Kind::Project(over, Box::new([left, right])), start)
    }

    fn filter(&mut self, left: Node) -> Result<Node, Problem> {
        let start = left.span;
        let condition = self.expression(0)?;
        self.expect("]", "to close the filter")?;
        let right = self.projection_body(FILTER)?;
        self.node(Kind::Filter(Box::new([left, right, condition])), start)
    }

    /// The expression that a projection evaluates on each value.
    fn projection_body(&mut self, least: u8) -> Result<Node, Problem> {
        match self.peek() {
            Token::Symbol(".") => {
                self.next();
                self.after_dot(least)
            }
            Token::Symbol("[" | "[?") => self.expression(least),
            Token::Symbol(":") | Token::Literal(_) if self.is_notifybc() => Err(self.unexpected()),
            token if binding(token) < PROJECTION_END => self.node(Kind::Current, self.end()),
            _ => Err(self.unexpected()),
        }
    }

    /// `0]` or `1:2:3]`, after the bracket.
    fn index(&mut self, left: Node) -> Result<Node, Problem> {
        let start = self.end();
        let lenient = self.is_notifybc();
        let mut numbers = [None; 4];
        let mut place = 0;
        loop {
            match self.next() {
                (Token::Number(number), _) if place < 3 && numbers[place].is_none() => numbers[place] = Some(number),
                // NotifyBC's library takes the last of several numbers, and a third colon.
                (Token::Number(number), _) if lenient && (1..3).contains(&place) => numbers[place] = Some(number),
                (Token::Symbol(":"), _) if place < 2 || (lenient && place == 2) => place += 1,
                (Token::Symbol("]"), _) => break,
                (token, span) => {
                    let message = format!("{} is not expected between these brackets", token.describe());
                    return Err(span
                        .problem(Code::InvalidSyntax, self.source, message)
                        .param("language", "jmespath")
                        .hint("write `[0]` or `[start:stop:step]`"));
                }
            }
        }
        let whole = left.span;
        let (kind, is_slice) = match (place, numbers) {
            (0, [Some(at), ..]) => (Kind::Index(at), false),
            (_, [_, _, Some(0), _]) if !lenient => {
                return Err(start.problem(Code::OutOfRange, self.source, "the step of a slice cannot be zero"));
            }
            (_, [start, stop, step, _]) => (Kind::Slice(Slice { start, stop, step: step.unwrap_or(1) }), true),
        };
        let right = self.node(kind, start)?;
        let picked = match left.kind {
            Kind::Current => right,
            _ => self.node(Kind::Sub(Box::new([left, right])), whole)?,
        };
        if is_slice { self.projection(ProjectionKind::Items, picked, STAR) } else { Ok(picked) }
    }

    /// `a, b]`, after the bracket.
    fn list(&mut self, start: Span) -> Result<Node, Problem> {
        if self.is_notifybc() {
            return self.lenient_list(start);
        }
        let mut parts = vec![self.expression(0)?];
        while self.skip(",") {
            parts.push(self.expression(0)?);
        }
        self.expect("]", "to close the list")?;
        self.node(Kind::List(parts), start)
    }

    /// `x: a, y: b}`, after the brace.
    fn map(&mut self, start: Span) -> Result<Node, Problem> {
        let mut entries: Vec<(Arc<str>, Node)> = Vec::new();
        loop {
            let (Token::Name(name) | Token::Quoted(name)) = self.peek().clone() else {
                return Err(self.here(format!("a name should stand here, not {}", self.peek().describe())));
            };
            self.next();
            self.expect(":", "after the name")?;
            entries.push((name, self.expression(0)?));
            // Without a comma, NotifyBC's library goes on until the brace.
            if !self.skip(",") && (!self.is_notifybc() || *self.peek() == Token::Symbol("}")) {
                break;
            }
        }
        self.expect("}", "to close the object")?;
        self.node(Kind::Map(entries), start)
    }

    /// A call, after its name.
    fn call(&mut self, name: &str, start: Span) -> Result<Node, Problem> {
        self.next();
        if self.is_notifybc() {
            return self.lenient_call(Some(name), start);
        }
        let Some(function) = Function::named(name) else { return self.defined(name, start) };
        let signature = function.signature();
        let given = self.arguments(|at| signature.parameter(at))?;
        let fits = match signature.repeats {
            true => given.len() >= signature.takes.len(),
            false => given.len() == signature.takes.len(),
        };
        if !fits {
            let message = format!("`{name}` does not take {} arguments", given.len());
            return Err(start
                .problem(Code::TypeMismatch, self.source, message)
                .hint(format!("write `{}`", signature.show())));
        }
        self.node(Kind::Call(function, given), start)
    }

    /// A call of a user-defined function, after the parenthesis.
    fn defined(&mut self, name: &str, start: Span) -> Result<Node, Problem> {
        let Some(function) = self.functions.find(name) else {
            let problem = start.problem(Code::UnknownName, self.source, format!("there is no function `{name}`"));
            let problem = problem.param("value", name.to_string());
            let mut known: Vec<&str> = Function::names().collect();
            known.extend(self.functions.names());
            return Err(match closest(name, known.iter().copied()) {
                Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
                None => problem.hint(format!("there are {}", known.join(", "))),
            });
        };
        let function = Arc::clone(function);
        let given = self.arguments(|_| None)?;
        if given.len() != function.takes() {
            let message = format!("`{name}` does not take {} arguments", given.len());
            return Err(start
                .problem(Code::TypeMismatch, self.source, message)
                .hint(format!("write `{}`", function.show())));
        }
        self.node(Kind::UserFunction(function, given), start)
    }

    /// `a, b)`, after the parenthesis.
    fn arguments(&mut self, parameter: impl Fn(usize) -> Option<Parameter>) -> Result<Vec<Node>, Problem> {
        let mut given = Vec::new();
        if self.skip(")") {
            return Ok(given);
        }
        loop {
            given.push(self.argument(parameter(given.len()))?);
            if !self.skip(",") {
                break;
            }
        }
        self.expect(")", "to close the arguments")?;
        Ok(given)
    }

    fn argument(&mut self, parameter: Option<Parameter>) -> Result<Node, Problem> {
        let span = self.span();
        if parameter == Some(Parameter::Reference) && self.skip("&") {
            let inner = self.expression(0)?;
            return self.node(Kind::Reference(Box::new(inner)), span);
        }
        if parameter == Some(Parameter::Reference) {
            return Err(self.here("an expression that begins with `&` should stand here").hint("write `&name`"));
        }
        if let Token::Number(number) = self.peek() {
            let hint = format!("write `` `{number}` ``");
            return Err(self.here("a number stands between backticks").hint(hint));
        }
        self.expression(0)
    }
}

/// Syntax that only the library of NotifyBC accepts. An expression that it cannot evaluate fails when it is reached.
impl Parser<'_> {
    /// `a)` after the parenthesis: the first of several expressions counts.
    fn lenient_parenthesis(&mut self, start: Span) -> Result<Node, Problem> {
        let mut first = None;
        while !self.skip(")") {
            let found = self.current_or_expression()?;
            first.get_or_insert(found);
        }
        match first {
            Some(first) => Ok(first),
            None => self.node(Kind::Failing, start),
        }
    }

    /// `a, b]` after the bracket, also empty or without commas.
    fn lenient_list(&mut self, start: Span) -> Result<Node, Problem> {
        let mut parts = Vec::new();
        while !self.skip("]") {
            parts.push(self.expression(0)?);
            if self.skip(",") && *self.peek() == Token::Symbol("]") {
                return Err(self.unexpected());
            }
        }
        self.node(Kind::List(parts), start)
    }

    /// A call of an expression in the place of a name, after the parenthesis.
    fn call_of(&mut self, callee: &Node) -> Result<Node, Problem> {
        let name: Option<Arc<str>> = match &callee.kind {
            Kind::Field(name) => Some(Arc::clone(name)),
            Kind::Call(function, _) => Some(function.signature().name.into()),
            _ => None,
        };
        self.lenient_call(name.as_deref(), callee.span)
    }

    /// `a, b)` after the parenthesis; commas are optional. Names and numbers of arguments are not checked.
    fn lenient_call(&mut self, name: Option<&str>, start: Span) -> Result<Node, Problem> {
        let mut given = Vec::new();
        while !self.skip(")") {
            given.push(self.current_or_expression()?);
            self.skip(",");
        }
        let kind = match (name.and_then(Function::named), name.and_then(|name| self.functions.find(name))) {
            (Some(function), _) if fits(function, &given) => Kind::Call(function, given),
            (None, Some(function))
                if given.len() == function.takes()
                    && !given.iter().any(|part| matches!(part.kind, Kind::Reference(_))) =>
            {
                Kind::UserFunction(Arc::clone(function), given)
            }
            _ => Kind::Failing,
        };
        self.node(kind, start)
    }

    /// An operand between parentheses: `@` stands alone there.
    fn current_or_expression(&mut self) -> Result<Node, Problem> {
        let span = self.span();
        if self.skip("@") { self.node(Kind::Current, span) } else { self.expression(0) }
    }
}

/// Whether a function can take arguments in this number, and expression references where it needs them.
fn fits(function: Function, given: &[Node]) -> bool {
    let signature = function.signature();
    let count = match signature.repeats {
        true => given.len() >= signature.takes.len(),
        false => given.len() == signature.takes.len(),
    };
    count
        && given.iter().enumerate().all(|(at, part)| {
            let is_reference = matches!(part.kind, Kind::Reference(_));
            is_reference == (signature.parameter(at) == Some(Parameter::Reference))
        })
}

fn push(mut parts: Vec<Node>, part: Node) -> Vec<Node> {
    parts.push(part);
    parts
}

/// The value of a literal.
pub(super) fn literal(node: &Node) -> Option<&Value> {
    match &node.kind {
        Kind::Literal(value) => Some(value),
        _ => None,
    }
}
