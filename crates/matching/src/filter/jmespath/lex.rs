//! The lexer of JMESPath.

use std::sync::Arc;

use tocsin_model::{
    problem::{Code, Problem},
    value::Value,
};

use super::{javascript, syntax::Mode};
use crate::dialect::Span;

/// A token.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Name(Arc<str>),
    /// A name between quotation marks, which may contain any character.
    Quoted(Arc<str>),
    Literal(Value),
    /// An integer, valid only between brackets.
    Number(i64),
    Symbol(&'static str),
    End,
}

impl Token {
    pub fn describe(&self) -> String {
        match self {
            Token::Name(name) => format!("`{name}`"),
            Token::Quoted(name) => format!("`\"{name}\"`"),
            Token::Literal(_) => "a literal".to_owned(),
            Token::Number(number) => format!("the number `{number}`"),
            Token::Symbol(symbol) => format!("`{symbol}`"),
            Token::End => "the end".to_owned(),
        }
    }
}

/// Longer ones first, so that `||` is not read as `|`.
const SYMBOLS: [&str; 24] = [
    "[?", "[]", "||", "&&", "==", "!=", "<=", ">=", ".", "*", "[", "]", "{", "}", "(", ")", ",", ":", "@", "&", "|",
    "!", "<", ">",
];

/// Splits a text into tokens.
///
/// # Errors
/// The first character that begins no token.
pub(super) fn tokens(source: &str, mode: Mode) -> Result<Vec<(Token, Span)>, Problem> {
    let mut lexer = Lexer { source, at: 0, mode };
    let mut tokens = Vec::new();
    let spaces: &[char] = match mode {
        Mode::Standard => &[' ', '\t', '\n', '\r'],
        Mode::Notifybc => &[' ', '\t', '\n'],
    };
    loop {
        let rest = lexer.rest();
        lexer.at += rest.len() - rest.trim_start_matches(spaces).len();
        let start = lexer.at;
        let token = lexer.token()?;
        let end = token == Token::End;
        tokens.push((token, Span { start: start as u32, end: lexer.at as u32 }));
        if end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    mode: Mode,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn problem(&self, message: impl Into<String>) -> Problem {
        Span { start: self.at as u32, end: self.at as u32 }
            .problem(Code::InvalidSyntax, self.source, message)
            .param("language", "jmespath")
    }

    fn token(&mut self) -> Result<Token, Problem> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(Token::End) };
        if first.is_ascii_alphabetic() || first == '_' {
            let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            self.at += length;
            return Ok(Token::Name(rest[..length].into()));
        }
        if first.is_ascii_digit() || (first == '-' && rest[1..].starts_with(|c: char| c.is_ascii_digit())) {
            let digits = 1 + rest[1..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - 1);
            let number = match (rest[..digits].parse(), self.mode) {
                (Ok(number), _) => number,
                // No list has that many items.
                (Err(_), Mode::Notifybc) => {
                    if first == '-' {
                        -i64::MAX
                    } else {
                        i64::MAX
                    }
                }
                (Err(_), Mode::Standard) => return Err(self.problem("the number does not fit into 64 bits")),
            };
            self.at += match self.mode {
                Mode::Standard => digits,
                // `1-2` is 1.
                Mode::Notifybc => rest.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(rest.len()),
            };
            return Ok(Token::Number(number));
        }
        match first {
            '"' => return self.quoted(),
            '\'' => return self.raw(),
            '`' => return self.literal(),
            _ => {}
        }
        if let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) {
            self.at += symbol.len();
            return Ok(Token::Symbol(symbol));
        }
        let problem = self.problem(format!("`{first}` is not part of the language"));
        Err(match first {
            '=' => problem.hint("write `==` to compare"),
            '+' | '-' | '/' | '%' => problem.hint("there is no arithmetic; a filter in CEL has it"),
            _ => problem,
        })
    }

    /// The text up to an unescaped end mark, and the offset after it.
    fn until(&self, mark: char) -> Option<(&'a str, usize)> {
        let rest = &self.rest()[1..];
        let mut escaped = false;
        for (at, c) in rest.char_indices() {
            if c == mark && !escaped {
                return Some((&rest[..at], self.at + 1 + at + 1));
            }
            escaped = c == '\\' && !escaped;
        }
        None
    }

    fn quoted(&mut self) -> Result<Token, Problem> {
        let (text, after) = self.until('"').ok_or_else(|| {
            self.problem("the quoted name has no end").hint("close it with `\"`; text stands between `'`")
        })?;
        let name: String = serde_json::from_str(&format!("\"{text}\""))
            .map_err(|_| self.problem("the quoted name is not a JSON string").hint("write a backslash as `\\\\`"))?;
        self.at = after;
        Ok(Token::Quoted(name.into()))
    }

    /// Text between `'`; only `\'` is an escape. In the dialect of NotifyBC, only the first one.
    fn raw(&mut self) -> Result<Token, Problem> {
        let (text, after) =
            self.until('\'').ok_or_else(|| self.problem("the text has no end").hint("close it with `'`"))?;
        self.at = after;
        let text = match self.mode {
            Mode::Standard => text.replace("\\'", "'"),
            Mode::Notifybc => text.replacen("\\'", "'", 1),
        };
        Ok(Token::Literal(Value::Text(text.into())))
    }

    /// JSON between backticks; or bare text, as in older JMESPath without `'`.
    fn literal(&mut self) -> Result<Token, Problem> {
        let (text, after) =
            self.until('`').ok_or_else(|| self.problem("the literal has no end").hint("close it with a backtick"))?;
        let (text, is_text) = match self.mode {
            Mode::Standard => (text.replace("\\`", "`").trim_matches([' ', '\t', '\n', '\r']).to_owned(), false),
            Mode::Notifybc => {
                let text = javascript::trimmed_left(text).replacen("\\`", "`", 1);
                // Text, if it does not begin as JSON.
                let is_text = !text.starts_with(|c: char| "[{\"-".contains(c) || c.is_ascii_digit())
                    && !["true", "false", "null"].contains(&text.as_str());
                (text, is_text)
            }
        };
        let parsed = (!is_text).then(|| serde_json::from_str::<Value>(&text));
        let value = match parsed {
            Some(Ok(value)) => value,
            Some(Err(error)) if text.starts_with(['[', '{', '"']) => {
                let message = error.to_string();
                let message = message.split(" at line ").next().unwrap_or_default();
                return Err(self.problem(format!("the literal is not JSON: {message}")));
            }
            _ => serde_json::from_str(&format!("\"{text}\"")).map_err(|_| {
                self.problem("the literal is neither JSON nor plain text").hint("write text between `'`")
            })?,
        };
        self.at = after;
        Ok(Token::Literal(value))
    }
}
