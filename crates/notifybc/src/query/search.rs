//! Text search (`$text`) over all text values of a record.
//!
//! Words are runs of letters and digits, compared without regard to letter case. A record matches if it has one of the
//! words, all phrases, and none of the excluded words.

use serde_json::Value;

use super::error::QueryError;
use crate::record::Document;

/// Most words and phrases of a search.
const TERMS_MAX: usize = 100;

/// A parsed search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    words: Vec<String>,
    phrases: Vec<String>,
    excluded: Vec<String>,
}

impl Search {
    /// The search of `{"$search": "text"}`. Options of languages are ignored.
    pub fn parse(value: &Value) -> Result<Search, QueryError> {
        let members = value.as_object().ok_or_else(|| QueryError::Operand("$text expects an object".to_owned()))?;
        if let Some(other) = members
            .keys()
            .find(|name| !matches!(name.as_str(), "$search" | "$language" | "$caseSensitive" | "$diacriticSensitive"))
        {
            return Err(QueryError::Operator(other.clone()));
        }
        match members.get("$search") {
            Some(Value::String(text)) => Search::of(text),
            _ => Err(QueryError::Operand("$search must be a string".to_owned())),
        }
    }

    /// The search of a text: words, `"phrases"` and `-excluded` words.
    pub fn of(text: &str) -> Result<Search, QueryError> {
        let mut search = Search::default();
        for (at, part) in text.split('"').enumerate() {
            // Parts at odd places were between quotation marks.
            match at % 2 {
                1 => {
                    search.phrases.extend(Some(part.to_lowercase()).filter(|part| !part.trim().is_empty()));
                    search.words.extend(words(part));
                }
                _ => {
                    for word in part.split_whitespace() {
                        match word.strip_prefix('-') {
                            Some(word) => search.excluded.extend(words(word)),
                            None => search.words.extend(words(word)),
                        }
                    }
                }
            }
        }
        let terms = search.words.len() + search.phrases.len() + search.excluded.len();
        match terms > TERMS_MAX {
            true => Err(QueryError::TooLarge { limit: TERMS_MAX, unit: "words" }),
            false => Ok(search),
        }
    }

    /// Whether a record matches. A search without words matches no record.
    pub fn matches(&self, record: &Document) -> bool {
        let mut texts = Vec::new();
        record.values().for_each(|value| collect(value, &mut texts));
        let has_word = |word: &String| texts.iter().any(|text| words(text).any(|other| other == *word));
        let has_phrase = |phrase: &String| texts.iter().any(|text| text.contains(phrase.as_str()));
        self.words.iter().any(has_word) && self.phrases.iter().all(has_phrase) && !self.excluded.iter().any(has_word)
    }
}

/// The texts of a value, in lower case.
fn collect(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) => texts.push(text.to_lowercase()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, texts)),
        Value::Object(members) => members.values().for_each(|member| collect(member, texts)),
        _ => {}
    }
}

/// The words of a text, in lower case.
fn words(text: &str) -> impl Iterator<Item = String> {
    let parts = text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    parts.map(str::to_lowercase)
}
