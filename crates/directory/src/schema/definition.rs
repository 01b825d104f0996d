//! Parser of attribute type and object class descriptions (RFC 4512, section 4.1).

use crate::syntax::{Rule, Syntax, find_rule};

/// A parsed description: the values of each keyword.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The object identifier.
    pub oid: String,
    words: Vec<(String, Vec<String>)>,
}

/// Keywords without a value.
const FLAGS: &[&str] =
    &["OBSOLETE", "SINGLE-VALUE", "COLLECTIVE", "NO-USER-MODIFICATION", "ABSTRACT", "STRUCTURAL", "AUXILIARY"];

impl Description {
    /// Parses a description.
    ///
    /// # Errors
    /// The description is malformed; the text says where.
    pub fn parse(text: &str) -> Result<Description, String> {
        let tokens = tokens(text)?;
        let [open, oid, inner @ .., close] = tokens.as_slice() else {
            return Err("does not have the form `( OID … )`".to_owned());
        };
        if (open.as_str(), close.as_str()) != ("(", ")") {
            return Err("is not enclosed in parentheses".to_owned());
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
                    None => return Err(format!("has no value after `{word}`")),
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

    /// Checks a new definition against RFC 4512: a single definition, an object identifier (section 1.4) and unused
    /// names. Definitions stored by earlier versions are not checked again.
    ///
    /// # Errors
    /// The definition is malformed; the text says where.
    pub fn check_new(text: &str) -> Result<(), String> {
        let tokens = tokens(text)?;
        let mut depth = 0_usize;
        for (at, token) in tokens.iter().enumerate() {
            match token.as_str() {
                "(" => depth += 1,
                ")" => depth = depth.checked_sub(1).ok_or("has a `)` without its `(`")?,
                _ => {}
            }
            match depth {
                0 if at + 1 < tokens.len() => {
                    return Err("has text after its end; give each definition as its own value".to_owned());
                }
                0..=2 => {}
                _ => return Err("has nested parentheses in a list".to_owned()),
            }
        }
        if depth > 0 {
            return Err("has a `(` without its `)`".to_owned());
        }
        let description = Description::parse(text)?;
        let arcs: Vec<&str> = description.oid.split('.').collect();
        let is_plain = |arc: &&str| *arc == "0" || !arc.starts_with('0');
        if arcs.len() < 2 || !arcs.iter().all(is_plain) || !matches!(arcs[0], "0" | "1" | "2") {
            let oid = &description.oid;
            return Err(format!("begins with `{oid}`, which is no object identifier such as 2.25.4711.1"));
        }
        let names = description.values("NAME");
        for (at, name) in names.iter().enumerate() {
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            if names[..at].iter().any(|known| is(known)) {
                return Err(format!("has the name `{name}` twice"));
            }
            // Access rules use these two names for the entry itself and for its children.
            if is("entry") || is("children") {
                return Err(format!("has the name `{name}`, which is reserved in access rules"));
            }
        }
        Ok(())
    }

    /// The values of a keyword.
    pub fn values(&self, word: &str) -> &[String] {
        self.words.iter().find(|(known, _)| known == word).map_or(&[], |(_, values)| values)
    }

    /// The first value of a keyword.
    pub fn value(&self, word: &str) -> Option<&str> {
        self.values(word).first().map(String::as_str)
    }

    /// Whether the keyword is present.
    pub fn has(&self, word: &str) -> bool {
        self.words.iter().any(|(known, _)| known == word)
    }

    /// The names.
    ///
    /// # Errors
    /// There is no name, or a name is malformed.
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

    /// The syntax, if the description has one.
    ///
    /// # Errors
    /// The syntax is not supported.
    pub fn syntax(&self) -> Result<Option<Syntax>, String> {
        let known =
            |oid: &str| Syntax::find(oid).ok_or_else(|| format!("has the syntax {oid}, which is not supported"));
        self.value("SYNTAX").map(known).transpose()
    }

    /// The matching rule given by a keyword, if there is one.
    ///
    /// # Errors
    /// The matching rule is not supported.
    pub fn rule(&self, word: &str) -> Result<Option<Rule>, String> {
        let known = |name: &str| {
            let found = find_rule(name).map(|(rule, _)| rule);
            found.ok_or_else(|| format!("has the matching rule {name}, which is not supported"))
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
                let Some(end) = rest[1..].find('\'') else {
                    return Err("has a quoted string without a closing quote".to_owned());
                };
                // `\27` and `\5c` escape the quote and the backslash.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_definition_needs_an_identifier_and_unused_names() {
        assert_eq!(Description::check_new("( 2.25.1 NAME ( 'a' 'b' ) DESC 'it\\27s' SYNTAX 1.2 )"), Ok(()));
        for text in [
            "( 2.25.1 NAME 'a' SYNTAX 1.2 ) ( 2.25.2 NAME 'b' SYNTAX 1.2 )",
            "( 2.25.1 NAME ( 'a' SYNTAX 1.2 )",
            "( 2.25.1 NAME 'a' SYNTAX 1.2",
            "2.25.1 NAME 'a' )",
            "( 2.25.01 NAME 'a' SYNTAX 1.2 )",
            "( 3.1 NAME 'a' SYNTAX 1.2 )",
            "( 2 NAME 'a' SYNTAX 1.2 )",
            "( 2.25.1 NAME ( 'a' 'A' ) SYNTAX 1.2 )",
            "( 2.25.1 NAME 'Entry' SYNTAX 1.2 )",
            "( 2.25.1 NAME 'children' SYNTAX 1.2 )",
        ] {
            assert!(Description::check_new(text).is_err(), "{text}");
        }
    }
}
