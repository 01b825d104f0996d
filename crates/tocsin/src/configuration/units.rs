//! Configuration values with units, and secrets.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Duration, written `250ms`, `30s`, `5m`, `2h` or `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

/// Size in bytes, written `4096`, `64KiB`, `16MiB` or `1GiB`; `KB`, `MB`, `GB` are decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Value that is never shown.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(pub String);

impl Period {
    /// Duration of whole seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Period(Duration::from_secs(seconds))
    }
    /// Duration of milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Period(Duration::from_millis(millis))
    }
}

const PERIODS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
const SIZES: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// Parses an integer with a unit and multiplies both.
fn measure(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (text[..end].parse::<u64>().ok()?, text[end..].trim());
    units.iter().find(|(name, _)| *name == unit).and_then(|(_, factor)| number.checked_mul(*factor))
}

/// Formats the number in the largest unit that divides it.
fn write_measure(f: &mut fmt::Formatter<'_>, number: u64, units: &[(&str, u64)], least: &str) -> fmt::Result {
    match units.iter().find(|(_, factor)| number > 0 && number.is_multiple_of(*factor)) {
        Some((unit, factor)) => write!(f, "{}{unit}", number / factor),
        None => write!(f, "{number}{least}"),
    }
}

impl FromStr for Period {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        measure(text, &PERIODS)
            .map(Period::millis)
            .ok_or_else(|| format!("`{text}` is not a duration; expected an integer with a unit, such as `250ms`, `30s`, `5m`, `2h` or `7d`"))
    }
}

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let plain = text.trim().parse().ok();
        plain
            .or_else(|| measure(text, &SIZES))
            .map(Size)
            .ok_or_else(|| format!("`{text}` is not a size; expected an integer number of bytes, or with a unit, such as `64KiB`, `16MiB` or `1GiB`"))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_measure(f, u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX), &PERIODS, "s")
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_measure(f, self.0, &SIZES[..3], "B")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("********")
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.0.is_empty() { "" } else { "********" })
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number of bytes, or text with a unit such as `16MiB`")]
        enum Form {
            Bytes(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Bytes(bytes) => Ok(Size(bytes)),
            Form::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Secret)
    }
}

macro_rules! text_schema {
    ($type:ident, $format:literal) => {
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "format": $format })
            }
        }
    };
}

text_schema!(Period, "duration");
text_schema!(Size, "size");
text_schema!(Secret, "secret");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_and_sizes_round_trip() {
        for text in ["250ms", "30s", "5m", "2h", "7d", "0s", "90s"] {
            assert_eq!(text.parse::<Period>().expect(text).to_string(), text);
        }
        for text in ["4KiB", "16MiB", "3GiB", "0B"] {
            assert_eq!(text.parse::<Size>().expect(text).to_string(), text);
        }
        assert_eq!("5MB".parse::<Size>(), Ok(Size(5_000_000)));
        assert_eq!("4096".parse::<Size>(), Ok(Size(4096)));
        for wrong in ["", "5", "5 weeks", "-1s", "1.5s", "99999999999999999999d"] {
            assert!(wrong.parse::<Period>().is_err(), "{wrong}");
        }
        for wrong in ["", "KiB", "5X", "18446744073709551615GiB"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let secret = Secret("hunter2".into());
        assert_eq!(format!("{secret:?}"), "********");
        assert_eq!(serde_json::to_string(&secret).expect("text"), r#""********""#);
    }
}
