//! Bounds the depth of a template before the engine parses it.
//!
//! The engine's parser bounds nesting, but not chains: `a|upper|upper`, `not not a`, `elif`, `a if b else c if d` and
//! `a.b.c` each add a level to the syntax tree, and parser, compiler and destructor recurse once for each level. This
//! check reads the engine's tokens and computes an upper bound of the tree's height, without recursion.

use minijinja::{
    Error,
    machinery::{Token, parse_expr, tokenize},
    syntax::SyntaxConfig,
};
use tocsin_model::problem::Problem;

use crate::parts::message_of;

/// Deepest nesting of brackets and block tags.
pub const NESTING_MAX: usize = 64;
/// Most levels of the syntax tree: brackets, block tags, `elif`, operators, filters, tests and members.
pub const LEVELS_MAX: usize = 400;

/// A syntax error of a template.
#[derive(Debug)]
pub struct SyntaxError {
    /// The error.
    pub message: String,
    /// The hint, if there is one.
    pub hint: Option<&'static str>,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

const HINT: &str = "give parts of it names with `{% set %}`, or put them into partials";

impl SyntaxError {
    /// Converts an error of the engine about `source`.
    pub fn read(source: &str, error: &Error) -> SyntaxError {
        let line = error.line().and_then(|line| u32::try_from(line).ok()).unwrap_or(1);
        let column = error.range().map_or(1, |range| column_of(source, range.start));
        let message = message_of(error);
        // The sandbox wraps operators that create values in calls, so a chain of them is nested.
        match message.contains("exceeds maximum recursion limits") {
            true => {
                let message =
                    "brackets, calls and the operators `+`, `~` and `*` nest deeper than the engine's 150 levels";
                SyntaxError { message: message.to_owned(), hint: Some(HINT), line, column }
            }
            false => SyntaxError { message, hint: None, line, column },
        }
    }

    /// As a problem of a template at a path.
    pub fn in_template(mut self, path: &str) -> Problem {
        self.message = format!("the template has an error: {}", self.message);
        self.problem(path)
    }

    /// As a problem at a path.
    pub fn problem(self, path: &str) -> Problem {
        let problem = Problem::syntax("jinja", path, self.message).position(self.line, self.column);
        match self.hint {
            Some(hint) => problem.hint(hint),
            None => problem,
        }
    }
}

/// Checks one expression without braces: its depth, and its syntax.
///
/// # Errors
/// The expression exceeds a limit, or is invalid.
pub fn check_expression(source: &str) -> Result<(), SyntaxError> {
    check(source, true)?;
    parse_expr(source).map(drop).map_err(|error| SyntaxError::read(source, &error))
}

/// Checks the depth of a template, or of an expression without braces. O(length), with a stack of constant size. A
/// tokenizer error ends the check; the parser reports the same error.
///
/// # Errors
/// The template exceeds a limit.
pub fn check(source: &str, in_expression: bool) -> Result<(), SyntaxError> {
    let mut depth = Depth::default();
    if in_expression {
        depth.brackets.push(0);
    }
    for token in tokenize(source, in_expression, SyntaxConfig::default()) {
        let Ok((token, span)) = token else { return Ok(()) };
        depth.read(&token);
        let message = if depth.brackets.len() + depth.blocks.len() > NESTING_MAX {
            format!("nests more than {NESTING_MAX} brackets and block tags within each other")
        } else if depth.levels() > LEVELS_MAX {
            format!(
                "is more than {LEVELS_MAX} levels deep: operators, filters, members, `elif` and brackets count one each"
            )
        } else {
            continue;
        };
        let (line, column) = (u32::from(span.start_line), u32::from(span.start_col) + 1);
        return Err(SyntaxError { message, hint: Some(HINT), line, column });
    }
    Ok(())
}

/// The levels above the current token.
#[derive(Debug, Default)]
struct Depth {
    /// The open block tags, each with one level and one more for each `elif`.
    blocks: Vec<usize>,
    /// The open brackets of the current tag, the tag itself first, each with the number of chained operators in its
    /// current expression.
    brackets: Vec<usize>,
    /// Sum of `blocks`.
    block_levels: usize,
    /// Sum of `brackets`.
    links: usize,
    /// Whether the next token is the keyword of a block tag.
    at_keyword: bool,
    /// Whether this tag is a `set` without `=` so far: then it opens a block.
    opens_set: bool,
}

impl Depth {
    fn levels(&self) -> usize {
        self.block_levels + self.brackets.len() + self.links
    }

    fn read(&mut self, token: &Token<'_>) {
        if std::mem::take(&mut self.at_keyword)
            && let Token::Ident(keyword) = token
        {
            return self.keyword(keyword);
        }
        match token {
            Token::VariableStart => self.tag(),
            Token::BlockStart => {
                self.tag();
                self.at_keyword = true;
            }
            Token::VariableEnd | Token::BlockEnd => {
                if std::mem::take(&mut self.opens_set) {
                    self.open_block();
                }
                self.brackets.clear();
                self.links = 0;
            }
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => {
                self.link();
                self.brackets.push(0);
            }
            Token::ParenClose | Token::BracketClose | Token::BraceClose if self.brackets.len() > 1 => {
                self.links -= self.brackets.pop().unwrap_or_default();
            }
            // A separate expression follows.
            Token::Comma | Token::Colon => self.unlink(),
            Token::Assign => {
                self.opens_set &= self.brackets.len() != 1;
                self.unlink();
            }
            Token::Ident("and" | "or" | "not" | "is" | "in" | "if")
            | Token::Plus
            | Token::Minus
            | Token::Mul
            | Token::Div
            | Token::FloorDiv
            | Token::Pow
            | Token::Mod
            | Token::Dot
            | Token::Tilde
            | Token::Pipe
            | Token::Eq
            | Token::Ne
            | Token::Gt
            | Token::Gte
            | Token::Lt
            | Token::Lte => self.link(),
            _ => {}
        }
    }

    fn tag(&mut self) {
        self.brackets.clear();
        self.brackets.push(0);
        (self.links, self.opens_set) = (0, false);
    }

    fn keyword(&mut self, keyword: &str) {
        match keyword {
            "for" | "if" | "with" | "autoescape" | "filter" | "block" | "macro" | "call" => self.open_block(),
            "set" => self.opens_set = true,
            "elif" => {
                if let Some(levels) = self.blocks.last_mut() {
                    *levels += 1;
                    self.block_levels += 1;
                }
            }
            keyword if keyword.starts_with("end") => self.block_levels -= self.blocks.pop().unwrap_or_default(),
            _ => {}
        }
    }

    fn open_block(&mut self) {
        self.blocks.push(1);
        self.block_levels += 1;
    }

    fn link(&mut self) {
        if let Some(links) = self.brackets.last_mut() {
            *links += 1;
            self.links += 1;
        }
    }

    fn unlink(&mut self) {
        if let Some(links) = self.brackets.last_mut() {
            self.links -= std::mem::take(links);
        }
    }
}

pub fn column_of(source: &str, at: usize) -> u32 {
    let before = source.get(..at).unwrap_or_default();
    before.rsplit('\n').next().map_or(1, |line| line.chars().count() as u32 + 1)
}
