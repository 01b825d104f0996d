/// A list of tags and values: `v=DKIM1; k=rsa; p=...`.
#[derive(Debug)]
pub(crate) struct Tags<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Tags<'a> {
    /// Parses a list. The error says what is wrong.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        let mut tags: Vec<(&str, &str)> = Vec::new();
        let mut parts = text.split(';').peekable();
        while let Some(part) = parts.next() {
            // A semicolon may end the list.
            if part.trim().is_empty() && parts.peek().is_none() && !tags.is_empty() {
                break;
            }
            let Some((name, value)) = part.split_once('=') else {
                return Err(format!("`{}` has no `=`", part.trim()));
            };
            let (name, value) = (name.trim(), value.trim());
            let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !is_name {
                return Err(format!("`{name}` is not the name of a tag"));
            }
            if !value.chars().all(|c| matches!(c, '!'..='~' | ' ' | '\t' | '\r' | '\n')) {
                return Err(format!("the value of `{name}` has characters outside of ASCII"));
            }
            if tags.iter().any(|(known, _)| *known == name) {
                return Err(format!("`{name}` occurs twice"));
            }
            tags.push((name, value));
        }
        Ok(Tags(tags))
    }

    /// The value of a tag.
    pub fn value(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The name of the first tag.
    pub fn first(&self) -> Option<&'a str> {
        self.0.first().map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parsed_with_their_errors() {
        let value = |text: &'static str, name: &str| Tags::parse(text).map(|tags| tags.value(name));
        assert_eq!(value("v=DKIM1; p=a b ;", "p"), Ok(Some("a b")));
        assert_eq!(value(" p = ", "p"), Ok(Some("")));
        assert_eq!(value("a=b=c", "a"), Ok(Some("b=c")));
        assert_eq!(Tags::parse("v=1; p=2").expect("a list").first(), Some("v"));
        for (text, error) in [
            ("", "`` has no `=`"),
            ("v=1;; p=2", "`` has no `=`"),
            ("v", "`v` has no `=`"),
            ("1=2", "`1` is not the name of a tag"),
            ("a=1; a=2", "`a` occurs twice"),
            ("a=ü", "the value of `a` has characters outside of ASCII"),
        ] {
            assert_eq!(value(text, "p"), Err(error.to_owned()), "{text}");
        }
    }
}
