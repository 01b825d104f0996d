//! Descriptions of attributes and classes: the text of RFC 4512, 4.1.

use crate::syntax::{Rule, Syntax, find_rule};

/// A description as it was written: what stands behind each word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The object identifier.
    pub oid: String,
    words: Vec<(String, Vec<String>)>,
}

/// Words that stand alone.
const FLAGS: &[&str] =
    &["OBSOLETE", "SINGLE-VALUE", "COLLECTIVE", "NO-USER-MODIFICATION", "ABSTRACT", "STRUCTURAL", "AUXILIARY"];

impl Description {
    /// Reads a description.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Description, String> {
        let tokens = tokens(text)?;
        let [open, oid, inner @ .., close] = tokens.as_slice() else { return Err("is not `( OID … )`".to_owned()) };
        if (open.as_str(), close.as_str()) != ("(", ")") {
            return Err("does not stand in parentheses".to_owned());
        }
        let mut words = Vec::new();
        let mut rest = inner.iter();
        while let Some(word) = rest.next() {
            let mut values = Vec::new();
            if !FLAGS.contains(&word.as_str()) {
                match rest.next().map(String::as_str) {
                    Some("(") => {
                        values.extend(
                            rest.by_ref().take_while(|token| *token != ")").filter(|token| *token != "$").cloned(),
                        );
                    }
                    Some(value) => values.push(value.to_owned()),
                    None => return Err(format!("has nothing behind `{word}`")),
                }
            }
            words.push((word.to_ascii_uppercase(), values));
        }
        let is_number = oid.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
        if !is_number {
            return Err(format!("begins with `{oid}`, which is no object identifier such as 2.25.4711.1"));
        }
        Ok(Description { oid: oid.clone(), words })
    }

    /// What stands behind a word.
    pub fn values(&self, word: &str) -> &[String] {
        self.words.iter().find(|(known, _)| known == word).map_or(&[], |(_, values)| values)
    }

    /// The first of them.
    pub fn value(&self, word: &str) -> Option<&str> {
        self.values(word).first().map(String::as_str)
    }

    /// Whether a word stands there.
    pub fn has(&self, word: &str) -> bool {
        self.words.iter().any(|(known, _)| known == word)
    }

    /// The names.
    ///
    /// # Errors
    /// There are none, or one is not the name of anything.
    pub fn names(&self) -> Result<Vec<String>, String> {
        let names = self.values("NAME");
        let fits = |name: &String| {
            name.len() <= 64
                && name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        match names.iter().find(|name| !fits(name)) {
            _ if names.is_empty() => Err("has no NAME".to_owned()),
            Some(name) => Err(format!("has the name `{name}`; a name is a letter, then letters, digits and `-`")),
            None => Ok(names.to_vec()),
        }
    }

    /// The syntax, if one is named.
    ///
    /// # Errors
    /// It is not known here.
    pub fn syntax(&self) -> Result<Option<Syntax>, String> {
        let known =
            |oid: &str| Syntax::find(oid).ok_or_else(|| format!("has the syntax {oid}, which is not known here"));
        self.value("SYNTAX").map(known).transpose()
    }

    /// The rule behind a word, if one is named.
    ///
    /// # Errors
    /// It is not known here.
    pub fn rule(&self, word: &str) -> Result<Option<Rule>, String> {
        let known = |name: &str| {
            let found = find_rule(name).map(|(rule, _)| rule);
            found.ok_or_else(|| format!("has the matching rule {name}, which is not known here"))
        };
        self.value(word).map(known).transpose()
    }
}

fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim();
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '(' | ')' | '$' => {
                tokens.push(first.to_string());
                1
            }
            '\'' => {
                let Some(end) = rest[1..].find('\'') else { return Err("has a quotation without an end".to_owned()) };
                // `\27` and `\5c` stand for the two signs that cannot.
                tokens.push(rest[1..=end].replace("\\27", "'").replace("\\5c", "\\").replace("\\5C", "\\"));
                end + 2
            }
            _ => {
                let end =
                    rest.find(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | '$' | '\'')).unwrap_or(rest.len());
                tokens.push(rest[..end].to_owned());
                end
            }
        };
        rest = rest[taken..].trim_start();
        if tokens.len() > 4_096 {
            return Err("is too long".to_owned());
        }
    }
    Ok(tokens)
}
