//! Parser of the Common Expression Language (cel.dev), by precedence climbing. Message construction and absolute names
//! (`.a`) are rejected with a problem.

use std::{iter::Peekable, str::CharIndices, sync::Arc};

use tocsin_model::problem::{Code, Problem};

use crate::dialect::{
    EXPRESSION_BYTES_MAX, EXPRESSION_HEIGHT_MAX, EXPRESSION_NESTING_MAX, Node, NodeKind, Operator, Span,
};

/// Parses an expression. O(length); depth and length are bounded, so neither time nor stack can run out.
///
/// # Errors
/// The first syntax error, with its line and column.
pub fn parse(source: &str) -> Result<Node, Problem> {
    if source.len() > EXPRESSION_BYTES_MAX {
        let message = format!("the expression has {} bytes, at most {EXPRESSION_BYTES_MAX} are allowed", source.len());
        return Err(Problem::new(Code::TooLong, "", message)
            .param("given", source.len())
            .param("limit", EXPRESSION_BYTES_MAX)
            .param("unit", "bytes"));
    }
    let tokens = Lexer { source, chars: source.char_indices().peekable() }.tokens()?;
    let mut parser = Parser { source, tokens, at: 0, nesting: 0 };
    let node = parser.expression()?;
    match parser.peek() {
        Token::End => Ok(node),
        token => Err(parser.here(format!("{} is not expected here", token.describe()))),
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Integer(u64),
    Unsigned(u64),
    Number(f64),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
    Name(String),
    /// A name between backticks, allowed only in selections.
    QuotedName(String),
    Symbol(&'static str),
    End,
}

impl Token {
    fn describe(&self) -> String {
        match self {
            Token::Integer(value) => format!("`{value}`"),
            Token::Unsigned(value) => format!("`{value}u`"),
            Token::Number(value) => format!("`{value}`"),
            Token::Text(_) => "a string".to_owned(),
            Token::Bytes(_) => "bytes".to_owned(),
            Token::Name(name) | Token::QuotedName(name) => format!("`{name}`"),
            Token::Symbol(symbol) => format!("`{symbol}`"),
            Token::End => "the end".to_owned(),
        }
    }
}

/// Longer ones first, so that `<=` is not read as `<`.
const SYMBOLS: [&str; 25] = [
    "==", "!=", "<=", ">=", "&&", "||", ".?", "<", ">", "!", "(", ")", "[", "]", "{", "}", ".", ",", ":", "?", "+",
    "-", "*", "/", "%",
];

/// Reserved words of CEL.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Whether a word is reserved.
pub(crate) fn is_reserved(word: &str) -> bool {
    RESERVED.contains(&word) || matches!(word, "true" | "false" | "null" | "in" | "and" | "or" | "not")
}

struct Lexer<'a> {
    source: &'a str,
    chars: Peekable<CharIndices<'a>>,
}

impl<'a> Lexer<'a> {
    fn tokens(mut self) -> Result<Vec<(Token, Span)>, Problem> {
        let mut tokens = Vec::new();
        loop {
            self.skip_blanks();
            let start = self.offset();
            let token = self.token()?;
            let end = token == Token::End;
            tokens.push((token, Span { start: start as u32, end: self.offset() as u32 }));
            if end {
                return Ok(tokens);
            }
        }
    }

    fn offset(&mut self) -> usize {
        self.chars.peek().map_or(self.source.len(), |(at, _)| *at)
    }

    fn rest(&mut self) -> &'a str {
        let at = self.offset();
        &self.source[at..]
    }

    fn skip(&mut self, bytes: usize) {
        let until = self.offset() + bytes;
        while self.chars.peek().is_some_and(|(at, _)| *at < until) {
            self.chars.next();
        }
    }

    fn skip_blanks(&mut self) {
        loop {
            let rest = self.rest();
            let blanks = rest.len() - rest.trim_start().len();
            if blanks > 0 {
                self.skip(blanks);
            } else if rest.starts_with("//") {
                self.skip(rest.find('\n').unwrap_or(rest.len()));
            } else {
                return;
            }
        }
    }

    fn problem(&self, start: usize, message: impl Into<String>) -> Problem {
        Span { start: start as u32, end: start as u32 }
            .problem(Code::InvalidSyntax, self.source, message)
            .param("language", "cel")
    }

    fn token(&mut self) -> Result<Token, Problem> {
        let (start, rest) = (self.offset(), self.rest());
        let Some(first) = rest.chars().next() else { return Ok(Token::End) };
        if first.is_ascii_digit() || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit())) {
            return self.number(start, rest);
        }
        if first == '"' || first == '\'' {
            let text = self.text(start, false, false)?;
            return Ok(Token::Text(String::from_utf8(text).expect("characters were written").into()));
        }
        if first == '`' {
            return self.quoted_name(start);
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let word = &rest[..length];
            if rest[length..].starts_with(['"', '\'']) {
                let raw = word.contains(['r', 'R']);
                match word.to_ascii_lowercase().as_str() {
                    "r" => {
                        self.skip(1);
                        let text = self.text(start, true, false)?;
                        return Ok(Token::Text(String::from_utf8(text).expect("characters were written").into()));
                    }
                    "b" | "rb" | "br" => {
                        self.skip(length);
                        return Ok(Token::Bytes(self.text(start, raw, true)?.into()));
                    }
                    _ => {}
                }
            }
            self.skip(length);
            return Ok(Token::Name(word.to_owned()));
        }
        if let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) {
            self.skip(symbol.len());
            return Ok(Token::Symbol(symbol));
        }
        let problem = self.problem(start, format!("`{first}` is not part of the language"));
        Err(match first {
            '=' => problem.hint("write `==` to compare"),
            '&' => problem.hint("write `&&`"),
            '|' => problem.hint("write `||`"),
            _ => problem,
        })
    }

    fn number(&mut self, start: usize, rest: &str) -> Result<Token, Problem> {
        let bytes = rest.as_bytes();
        if rest.starts_with("0x") || rest.starts_with("0X") {
            let digits = rest[2..].bytes().take_while(u8::is_ascii_hexdigit).count();
            let value = u64::from_str_radix(&rest[2..2 + digits], 16);
            self.skip(2 + digits);
            return self.integer_end(start, value.ok());
        }
        let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let mut end = digits(0);
        let mut whole = true;
        if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
            whole = false;
            end += 1 + digits(end + 1);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let power = digits((end + 1 + sign).min(bytes.len()));
            if power > 0 {
                whole = false;
                end += 1 + sign + power;
            }
        }
        self.skip(end);
        if whole {
            return self.integer_end(start, rest[..end].parse().ok());
        }
        match rest[..end].parse::<f64>() {
            Ok(value) if value.is_finite() => {
                self.number_end(start)?;
                Ok(Token::Number(value))
            }
            _ => Err(self.problem(start, "the number is too large")),
        }
    }

    fn integer_end(&mut self, start: usize, value: Option<u64>) -> Result<Token, Problem> {
        let unsigned = self.rest().starts_with(['u', 'U']);
        self.skip(usize::from(unsigned));
        self.number_end(start)?;
        match value {
            Some(value) if unsigned => Ok(Token::Unsigned(value)),
            None if unsigned => Err(self.problem(start, "the integer does not fit into 64 bits")),
            Some(value) if value <= 1 << 63 => Ok(Token::Integer(value)),
            _ => Err(self.problem(start, "the integer does not fit into 64 bits with a sign")),
        }
    }

    fn number_end(&mut self, start: usize) -> Result<(), Problem> {
        if self.rest().starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            return Err(self
                .problem(start, "the number is followed by a word without a separator")
                .hint("put a space or an operator between them"));
        }
        Ok(())
    }

    /// A quoted name, for names that are not identifiers, such as `content-type`.
    fn quoted_name(&mut self, start: usize) -> Result<Token, Problem> {
        self.skip(1);
        let rest = self.rest();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' ');
        let length = rest.find(|c| !allowed(c)).unwrap_or(rest.len());
        if length == 0 || !rest[length..].starts_with('`') {
            return Err(self.problem(start, "the quoted name has no end").hint("close it with a backtick"));
        }
        self.skip(length + 1);
        Ok(Token::QuotedName(rest[..length].to_owned()))
    }

    /// The bytes of a literal; those of a string are UTF-8.
    fn text(&mut self, start: usize, raw: bool, bytes: bool) -> Result<Vec<u8>, Problem> {
        let rest = self.rest();
        let quote = &rest[..1];
        let triple = [quote; 3].concat();
        let end = if rest.starts_with(&triple) { triple.as_str() } else { quote };
        self.skip(end.len());
        let mut text = Vec::new();
        loop {
            let rest = self.rest();
            if rest.starts_with(end) {
                self.skip(end.len());
                return Ok(text);
            }
            match self.chars.next() {
                None => {
                    return Err(self.problem(start, "the string has no end").hint(format!("close it with `{end}`")));
                }
                Some((_, '\n' | '\r')) if end.len() == 1 => {
                    let hint = "close it before the end of the line, or use triple quotes";
                    return Err(self.problem(start, "the string has no end").hint(hint));
                }
                Some((at, '\\')) if !raw => self.escape(at, bytes, &mut text)?,
                Some((_, character)) => push(&mut text, character),
            }
        }
    }

    fn escape(&mut self, start: usize, bytes: bool, text: &mut Vec<u8>) -> Result<(), Problem> {
        let Some((_, letter)) = self.chars.next() else {
            return Err(self.problem(start, "the string has no end"));
        };
        let plain = match letter {
            'a' => Some('\u{7}'),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\u{b}'),
            '\\' | '?' | '"' | '\'' | '`' => Some(letter),
            _ => None,
        };
        if let Some(plain) = plain {
            push(text, plain);
            return Ok(());
        }
        let (radix, digits, first) = match letter {
            'x' | 'X' => (16, 2, None),
            'u' if !bytes => (16, 4, None),
            'U' if !bytes => (16, 8, None),
            '0'..='3' => (8, 2, letter.to_digit(8)),
            _ => {
                let problem = self.problem(start, format!("`\\{letter}` is not an escape"));
                return Err(problem.hint(r"write `\\` for a backslash, or a raw string such as r'\d+'"));
            }
        };
        let mut code = first.unwrap_or(0);
        for _ in 0..digits {
            let digit = self.chars.next_if(|(_, c)| c.is_digit(radix)).and_then(|(_, c)| c.to_digit(radix));
            let Some(digit) = digit else { return Err(self.problem(start, "the escape has too few digits")) };
            code = code * radix + digit;
        }
        if bytes {
            // At most 0xff, since two hexadecimal or three octal digits from 0 to 3 were read.
            text.push(code as u8);
            return Ok(());
        }
        match char::from_u32(code) {
            Some(character) => {
                push(text, character);
                Ok(())
            }
            None => Err(self.problem(start, "the escape is not a Unicode character")),
        }
    }
}

fn push(text: &mut Vec<u8>, character: char) {
    text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
}

struct Parser<'a> {
    source: &'a str,
    tokens: Vec<(Token, Span)>,
    at: usize,
    nesting: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn span(&self) -> Span {
        self.tokens[self.at].1
    }

    fn here(&self, message: impl Into<String>) -> Problem {
        self.span().problem(Code::InvalidSyntax, self.source, message).param("language", "cel")
    }

    /// Never moves beyond the end token.
    fn advance(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    fn consume(&mut self, symbol: &str) -> bool {
        let found = matches!(self.peek(), Token::Symbol(here) if *here == symbol);
        if found {
            self.advance();
        }
        found
    }

    fn expect(&mut self, symbol: &str) -> Result<Span, Problem> {
        let span = self.span();
        if self.consume(symbol) {
            Ok(span)
        } else {
            Err(self.here(format!("`{symbol}` is expected here, not {}", self.peek().describe())))
        }
    }

    fn node(&self, kind: NodeKind, span: Span) -> Result<Node, Problem> {
        let height = match &kind {
            NodeKind::List(items) | NodeKind::And(items) | NodeKind::Or(items) => highest(items),
            NodeKind::Map(entries) => {
                entries.iter().map(|(key, value)| key.height.max(value.height)).max().unwrap_or(0)
            }
            NodeKind::Select(node, _)
            | NodeKind::Not(node)
            | NodeKind::Negate(node)
            | NodeKind::OptionalSelect(node, _)
            | NodeKind::IfPresent(node) => node.height,
            NodeKind::Index(nodes) | NodeKind::OptionalIndex(nodes) | NodeKind::Binary(_, nodes) => highest(&nodes[..]),
            NodeKind::Conditional(nodes) => highest(&nodes[..]),
            NodeKind::Call { target, arguments, .. } => {
                highest(arguments).max(target.as_ref().map_or(0, |target| target.height))
            }
            _ => 0,
        } + 1;
        if height > EXPRESSION_HEIGHT_MAX {
            return Err(span
                .problem(Code::TooDeep, self.source, "the expression is too deep")
                .hint("split it, or use a list and a macro"));
        }
        Ok(Node { kind, span, height })
    }

    fn expression(&mut self) -> Result<Node, Problem> {
        self.nesting += 1;
        if self.nesting > EXPRESSION_NESTING_MAX {
            return Err(self.here(format!("the expression nests deeper than {EXPRESSION_NESTING_MAX} levels")));
        }
        let condition = self.chain(&["||"])?;
        let node = if self.consume("?") {
            let yes = self.chain(&["||"])?;
            self.expect(":")?;
            let no = self.expression()?;
            let span = condition.span.to(no.span);
            self.node(NodeKind::Conditional(Box::new([condition, yes, no])), span)?
        } else {
            condition
        };
        self.nesting -= 1;
        Ok(node)
    }

    /// A chain of `||`, or of the `&&` below it. Flat, so that a long one is not deep.
    fn chain(&mut self, symbols: &[&str]) -> Result<Node, Problem> {
        let or = symbols == ["||"];
        let mut items = vec![if or { self.chain(&["&&"])? } else { self.binary(0)? }];
        while self.consume(symbols[0]) {
            items.push(if or { self.chain(&["&&"])? } else { self.binary(0)? });
        }
        if items.len() == 1 {
            return Ok(items.swap_remove(0));
        }
        let span = items[0].span.to(items[items.len() - 1].span);
        self.node(if or { NodeKind::Or(items) } else { NodeKind::And(items) }, span)
    }

    fn operator(&self) -> Option<(Operator, u8)> {
        Some(match self.peek() {
            Token::Symbol("==") => (Operator::Equal, 0),
            Token::Symbol("!=") => (Operator::NotEqual, 0),
            Token::Symbol("<") => (Operator::Less, 0),
            Token::Symbol("<=") => (Operator::LessOrEqual, 0),
            Token::Symbol(">") => (Operator::Greater, 0),
            Token::Symbol(">=") => (Operator::GreaterOrEqual, 0),
            Token::Name(word) if word == "in" => (Operator::In, 0),
            Token::Symbol("+") => (Operator::Add, 1),
            Token::Symbol("-") => (Operator::Subtract, 1),
            Token::Symbol("*") => (Operator::Multiply, 2),
            Token::Symbol("/") => (Operator::Divide, 2),
            Token::Symbol("%") => (Operator::Remainder, 2),
            _ => return None,
        })
    }

    /// Operators that bind at least as tightly as `least`; all are left-associative.
    fn binary(&mut self, least: u8) -> Result<Node, Problem> {
        let mut left = self.unary()?;
        while let Some((operator, binding)) = self.operator().filter(|(_, binding)| *binding >= least) {
            self.advance();
            let right = self.binary(binding + 1)?;
            let span = left.span.to(right.span);
            left = self.node(NodeKind::Binary(operator, Box::new([left, right])), span)?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Node, Problem> {
        let start = self.span();
        let Token::Symbol(symbol @ ("!" | "-")) = *self.peek() else { return self.member() };
        let mut signs = 0usize;
        while self.consume(symbol) {
            signs += 1;
        }
        if signs > EXPRESSION_NESTING_MAX {
            return Err(start.problem(Code::TooDeep, self.source, "the expression is too deep"));
        }
        // The smallest integer has no positive counterpart, so its sign belongs to the literal.
        if let (Token::Integer(value), "-") = (self.peek().clone(), symbol) {
            let literal = self.span();
            self.tokens[self.at].0 = Token::Integer(0);
            let mut operand = self.member()?;
            if let NodeKind::Integer(_) = operand.kind {
                operand.kind = NodeKind::Integer((value as i64).wrapping_neg());
                operand.span = start.to(literal);
                for _ in 1..signs {
                    operand = self.node(NodeKind::Negate(Box::new(operand)), start.to(literal))?;
                }
                return Ok(operand);
            }
            return Err(literal.problem(Code::TypeMismatch, self.source, "an integer has no members"));
        }
        let mut operand = self.member()?;
        for _ in 0..signs {
            let span = start.to(operand.span);
            let kind =
                if symbol == "!" { NodeKind::Not(Box::new(operand)) } else { NodeKind::Negate(Box::new(operand)) };
            operand = self.node(kind, span)?;
        }
        Ok(operand)
    }

    fn member(&mut self) -> Result<Node, Problem> {
        let mut node = self.primary()?;
        loop {
            let start = node.span;
            let optional = self.consume(".?");
            if optional || self.consume(".") {
                let (Token::Name(name) | Token::QuotedName(name)) = self.peek().clone() else {
                    return Err(self.here(format!("a name is expected after `.`, not {}", self.peek().describe())));
                };
                let end = self.span();
                self.advance();
                if optional {
                    node = self.node(NodeKind::OptionalSelect(Box::new(node), name.into()), start.to(end))?;
                } else if self.consume("(") {
                    let (arguments, end) = self.list(")")?;
                    let target = Some(Box::new(node));
                    node = self.node(NodeKind::Call { target, name, arguments }, start.to(end))?;
                } else {
                    node = self.node(NodeKind::Select(Box::new(node), name), start.to(end))?;
                }
            } else if self.consume("[") {
                let optional = self.consume("?");
                let index = self.expression()?;
                let end = self.expect("]")?;
                let parts = Box::new([node, index]);
                let kind = if optional { NodeKind::OptionalIndex(parts) } else { NodeKind::Index(parts) };
                node = self.node(kind, start.to(end))?;
            } else if matches!(self.peek(), Token::Symbol("{"))
                && matches!(node.kind, NodeKind::Name(_) | NodeKind::Select(..))
            {
                return Err(self.here("messages cannot be constructed").hint("write a map: {'key': value}"));
            } else {
                return Ok(node);
            }
        }
    }

    /// Expressions up to the closing symbol; a comma may follow the last one, except in calls.
    fn list(&mut self, close: &str) -> Result<(Vec<Node>, Span), Problem> {
        let mut items = Vec::new();
        loop {
            let span = self.span();
            if (items.is_empty() || close == "]") && self.consume(close) {
                return Ok((items, span));
            }
            items.push(if close == "]" { self.item()? } else { self.expression()? });
            let span = self.span();
            if self.consume(close) {
                return Ok((items, span));
            }
            if !self.consume(",") {
                return Err(self.here(format!("`,` or `{close}` is expected here, not {}", self.peek().describe())));
            }
        }
    }

    /// An expression, or one after `?`, which must be an optional: its value is used if present.
    fn item(&mut self) -> Result<Node, Problem> {
        let start = self.span();
        if !self.consume("?") {
            return self.expression();
        }
        let inner = self.expression()?;
        let span = start.to(inner.span);
        self.node(NodeKind::IfPresent(Box::new(inner)), span)
    }

    fn primary(&mut self) -> Result<Node, Problem> {
        let (token, span) = self.tokens[self.at].clone();
        let kind = match token {
            Token::Integer(value) => match i64::try_from(value) {
                Ok(value) => NodeKind::Integer(value),
                Err(_) => return Err(self.here("the integer does not fit into 64 bits with a sign")),
            },
            Token::Unsigned(value) => NodeKind::Unsigned(value),
            Token::Number(value) => NodeKind::Number(value),
            Token::Text(text) => NodeKind::Text(text),
            Token::Bytes(bytes) => NodeKind::Bytes(bytes),
            Token::Name(name) => match name.as_str() {
                "true" => NodeKind::Boolean(true),
                "false" => NodeKind::Boolean(false),
                "null" => NodeKind::Null,
                "in" => return Err(self.here("`in` needs a value before it")),
                "and" | "or" | "not" if !matches!(self.tokens[self.at + 1].0, Token::Symbol("." | "(")) => {
                    let symbol = if name == "and" {
                        "&&"
                    } else if name == "or" {
                        "||"
                    } else {
                        "!"
                    };
                    return Err(self.here(format!("`{name}` is not an operator")).hint(format!("write `{symbol}`")));
                }
                reserved if RESERVED.contains(&reserved) => {
                    return Err(self.here(format!("`{reserved}` is a reserved word")));
                }
                _ => {
                    self.advance();
                    if self.consume("(") {
                        let (arguments, end) = self.list(")")?;
                        return self.node(NodeKind::Call { target: None, name, arguments }, span.to(end));
                    }
                    return self.node(NodeKind::Name(name), span);
                }
            },
            Token::Symbol("(") => {
                self.advance();
                let inner = self.expression()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Symbol("[") => {
                self.advance();
                let (items, end) = self.list("]")?;
                return self.node(NodeKind::List(items), span.to(end));
            }
            Token::Symbol("{") => return self.map(),
            token => return Err(self.here(format!("a value is expected here, not {}", token.describe()))),
        };
        self.advance();
        self.node(kind, span)
    }

    fn map(&mut self) -> Result<Node, Problem> {
        let start = self.expect("{")?;
        let mut entries = Vec::new();
        loop {
            let end = self.span();
            if self.consume("}") {
                return self.node(NodeKind::Map(entries), start.to(end));
            }
            let start = self.span();
            let optional = self.consume("?");
            let key = self.expression()?;
            self.expect(":")?;
            let value = self.expression()?;
            let value = match optional {
                true => {
                    let span = start.to(value.span);
                    self.node(NodeKind::IfPresent(Box::new(value)), span)?
                }
                false => value,
            };
            entries.push((key, value));
            if !self.consume(",") && !matches!(self.peek(), Token::Symbol("}")) {
                return Err(self.here(format!("`,` or `}}` is expected here, not {}", self.peek().describe())));
            }
        }
    }
}

fn highest(nodes: &[Node]) -> u16 {
    nodes.iter().map(|node| node.height).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(source: &str) -> String {
        parse(source).expect_err(source).to_string()
    }

    #[test]
    fn literals() {
        let kind = |source: &str| parse(source).expect(source).kind;
        assert_eq!(kind("-9223372036854775808"), NodeKind::Integer(i64::MIN));
        assert_eq!(kind("0x1Fu"), NodeKind::Unsigned(31));
        assert_eq!(kind(r"bR'\d'"), NodeKind::Bytes(br"\d".as_slice().into()));
        assert_eq!(kind(".5e-1"), NodeKind::Number(0.05));
        assert_eq!(kind(r#"'a\x41\u00e9\101\n"'"#), NodeKind::Text("aA\u{e9}A\n\"".into()));
        assert_eq!(kind(r"r'\d+'"), NodeKind::Text(r"\d+".into()));
        assert_eq!(kind("\"\"\"a\n\"b\" \"\"\""), NodeKind::Text("a\n\"b\" ".into()));
    }

    #[test]
    fn syntax_errors_have_a_position() {
        assert_eq!(problem("event.x = 3"), "1:9: `=` is not part of the language; write `==` to compare");
        assert_eq!(problem("a &&\n  (b || c"), "2:10: `)` is expected here, not the end");
        assert_eq!(problem("a and b"), "1:3: `and` is not expected here");
        assert_eq!(problem("'abc"), "1:1: the string has no end; close it with `'`");
        assert_eq!(problem("9223372036854775808"), "1:1: the integer does not fit into 64 bits with a sign");
        assert_eq!(problem("1 + "), "1:5: a value is expected here, not the end");
        assert_eq!(problem("Point{x: 1}"), "1:6: messages cannot be constructed; write a map: {'key': value}");
        assert_eq!(
            problem(r"'\d'"),
            r"1:2: `\d` is not an escape; write `\\` for a backslash, or a raw string such as r'\d+'"
        );
    }

    #[test]
    fn oversized_expressions_are_rejected() {
        for bomb in [
            "(".repeat(10_000),
            "[".repeat(10_000),
            "{1:".repeat(5_000),
            "!".repeat(10_000) + "a",
            "-".repeat(10_000) + "1",
            "a.b".to_owned() + &".c".repeat(5_000),
            "1".to_owned() + &"+1".repeat(5_000),
            "a ? b : ".repeat(1_500) + "c",
            "a[".repeat(5_000),
            "x".repeat(EXPRESSION_BYTES_MAX + 1),
        ] {
            assert!(parse(&bomb).is_err(), "{}", &bomb[..20]);
        }
        assert!(parse(&("a".to_owned() + &" && a".repeat(3_000))).is_ok());
    }
}
