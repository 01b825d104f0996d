//! Rows of parameters: parsed from storage, or converted from another version of their class.

use std::{borrow::Cow, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};
use tocsin_model::field::{Fields, Row};

/// The conversion of rows between versions of a class.
pub(crate) enum Layout {
    Same,
    /// For each field, its previous index, if it existed with a compatible type.
    Mapped(Vec<Option<usize>>, Fields),
}

impl Layout {
    pub fn between(from: &Fields, to: &Fields) -> Layout {
        let same = from.len() == to.len()
            && from.iter().zip(to.iter()).all(|(from, to)| from.name == to.name && from.kind == to.kind);
        if same {
            return Layout::Same;
        }
        Layout::Mapped(to.iter().map(|field| from.position(field.name.as_str())).collect(), to.clone())
    }

    pub fn apply(&self, mut row: Row) -> Row {
        match self {
            Layout::Same => row,
            Layout::Mapped(places, fields) => {
                let take = |(place, at): (&Option<usize>, usize)| {
                    let given = place.and_then(|place| row.get_mut(place)).map(std::mem::take).unwrap_or_default();
                    fields[at].kind.accept(given).unwrap_or_default()
                };
                places.iter().zip(0..).map(take).collect()
            }
        }
    }
}

/// Parses stored parameters as `Fields::row_from_stored` does, without an intermediate map.
pub(super) fn stored_row(fields: &Fields, json: &str) -> Result<Row, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let row = StoredRow(fields).deserialize(&mut reader)?;
    reader.end()?;
    Ok(row)
}

struct StoredRow<'a>(&'a Fields);

impl<'de> DeserializeSeed<'de> for StoredRow<'_> {
    type Value = Row;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Row, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for StoredRow<'_> {
    type Value = Row;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of parameters")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Row, A::Error> {
        let mut row: Row = self.0.iter().map(|field| field.default.clone()).collect();
        while let Some(name) = entries.next_key_seed(FieldName)? {
            match self.0.position(&name) {
                None => {
                    entries.next_value::<IgnoredAny>()?;
                }
                Some(at) => {
                    if let Ok(value) = self.0[at].kind.accept(entries.next_value()?)
                        && !value.is_null()
                    {
                        row[at] = value;
                    }
                }
            }
        }
        Ok(row)
    }
}

/// A key, borrowed where the JSON allows it.
struct FieldName;

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = Cow<'de, str>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for FieldName {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}
