//! Memory representation of an indexed filter: enough to compare it with others and to remove it from the index.
//!
//! The canonical bytes of an exact filter encode its condition, so they are all that is stored.

use tocsin_model::{time::Timestamp, value::Value};

use super::index::{FilterIndex, FilterPlacement};
use crate::{
    filter::{
        compiled::CompiledFilter,
        condition::{Case, Condition, Limit, Path, Range, Reach, Test, ValueTest},
    },
    text::{Network, Wildcard},
};

/// A filter that is in an index.
#[derive(Debug)]
pub struct PackedFilter {
    canonical: Box<[u8]>,
    /// The condition, where the canonical bytes do not contain it.
    whole: Option<Box<Condition>>,
    exact: bool,
}

impl PackedFilter {
    /// Adds a filter to the index under a number, as [`FilterIndex::insert`] does.
    pub fn file(filter: CompiledFilter, number: u32, index: &mut FilterIndex) -> (PackedFilter, FilterPlacement) {
        let placement = index.insert(number, &filter);
        (PackedFilter::of(filter), placement)
    }

    fn of(filter: CompiledFilter) -> PackedFilter {
        let CompiledFilter { condition, exact, canonical, .. } = filter;
        let says_all = exact && !has_regex(&condition) && read(&canonical).as_ref() == Some(&condition);
        PackedFilter { canonical, whole: (!says_all).then(|| Box::new(condition)), exact }
    }

    /// As [`CompiledFilter::canonical`].
    pub fn canonical(&self) -> &[u8] {
        &self.canonical
    }

    /// Removes the filter from its index.
    pub fn take_out(&self, number: u32, index: &mut FilterIndex) {
        match &self.whole {
            Some(condition) => index.remove_condition(number, condition, self.exact),
            None => {
                let condition = read(&self.canonical).expect("its canonical bytes were decoded on insertion");
                index.remove_condition(number, &condition, self.exact);
            }
        }
    }

    /// Bytes held beside the value itself. An estimate for stored conditions.
    pub fn memory_bytes(&self) -> usize {
        self.canonical.len() + self.whole.as_ref().map_or(0, |_| 4 * self.canonical.len() + size_of::<Condition>())
    }
}

/// Compiling a regular expression again is slow, so its condition is stored.
fn has_regex(condition: &Condition) -> bool {
    match condition {
        Condition::All(parts) | Condition::Any(parts) => parts.iter().any(has_regex),
        Condition::Test(test) => match &test.value_test {
            ValueTest::Matches(_) => true,
            ValueTest::But(inner) => matches!(**inner, ValueTest::Matches(_)),
            _ => false,
        },
        Condition::Always | Condition::Unknown => false,
    }
}

/// Decodes the condition from the canonical bytes of an exact filter, as `normal::write_condition` encodes it. `None`
/// if they encode something else.
fn read(canonical: &[u8]) -> Option<Condition> {
    let mut bytes = canonical.strip_prefix(&[0])?;
    let condition = read_condition(&mut bytes)?;
    bytes.is_empty().then_some(condition)
}

fn read_condition(bytes: &mut &[u8]) -> Option<Condition> {
    let tag = bytes[..].first().copied()?;
    Some(match tag {
        b'&' | b'|' => {
            *bytes = &bytes[1..];
            let parts = (0..read_number(bytes)?).map(|_| read_condition(bytes)).collect::<Option<Vec<_>>>()?;
            if tag == b'&' { Condition::All(parts) } else { Condition::Any(parts) }
        }
        b'+' | b'?' => {
            *bytes = &bytes[1..];
            if tag == b'+' { Condition::Always } else { Condition::Unknown }
        }
        _ => Condition::Test(read_test(bytes)?),
    })
}

fn read_test(bytes: &mut &[u8]) -> Option<Test> {
    let reach = match read_byte(bytes)? {
        tag if tag == Reach::One as u8 => Reach::One,
        tag if tag == Reach::Items as u8 => Reach::Items,
        tag if tag == Reach::Leaves as u8 => Reach::Leaves,
        _ => return None,
    };
    let field = read_number(bytes)?;
    let keys = (0..read_number(bytes)?).map(|_| Some(read_text(bytes)?.into())).collect::<Option<Vec<_>>>()?;
    Some(Test { path: Path { field, keys, reach }, value_test: read_value_test(bytes)? })
}

fn read_value_test(bytes: &mut &[u8]) -> Option<ValueTest> {
    let tag = read_byte(bytes)?;
    let case = |is_folded: bool| if is_folded { Case::Folded } else { Case::Sensitive };
    Some(match tag {
        b'=' => ValueTest::In((0..read_number(bytes)?).map(|_| read_value(bytes)).collect::<Option<Vec<_>>>()?),
        b'<' => {
            let (low, high) = (read_limit(bytes)?, read_limit(bytes)?);
            ValueTest::Range(Range { low, high })
        }
        b'p' | b'P' => ValueTest::Prefix(read_text(bytes)?.into(), case(tag == b'P')),
        b's' | b'S' => ValueTest::Suffix(read_text(bytes)?.into(), case(tag == b'S')),
        b'c' | b'C' => ValueTest::Contains(read_text(bytes)?.into(), case(tag == b'C')),
        b'E' => ValueTest::Folded(read_text(bytes)?.into()),
        b'/' => ValueTest::Cidr(Network::read(read_text(bytes)?).ok()?),
        b'*' => {
            let parts = (0..read_number(bytes)?).map(|_| Some(read_text(bytes)?.into())).collect::<Option<Vec<_>>>()?;
            ValueTest::Wildcard(Wildcard::new(parts))
        }
        b'e' => ValueTest::Exists,
        b'm' => ValueTest::Missing,
        b'!' => ValueTest::But(Box::new(read_value_test(bytes)?)),
        _ => return None,
    })
}

/// An end of a range; the outer `None` means damaged bytes.
fn read_limit(bytes: &mut &[u8]) -> Option<Option<Limit>> {
    match read_byte(bytes)? {
        0 => Some(None),
        tag => Some(Some(Limit { value: read_value(bytes)?, inclusive: tag == 2 })),
    }
}

fn read_value(bytes: &mut &[u8]) -> Option<Value> {
    Some(match read_byte(bytes)? {
        b't' => Value::from(read_text(bytes)?),
        b'i' => {
            let number = read_number(bytes)?;
            Value::Integer((number >> 1) as i64 ^ -((number & 1) as i64))
        }
        b'k' => {
            // As `eval_value::write_key` encodes values other than texts and integers.
            let tag = read_byte(bytes)?;
            let (word, rest) = bytes.split_first_chunk::<8>()?;
            *bytes = rest;
            let word = u64::from_le_bytes(*word);
            match tag {
                0 => Value::Null,
                1 => Value::Boolean(word == 1),
                3 => Value::Number(f64::from_bits(word)),
                4 => Value::Timestamp(Timestamp(word as i64)),
                9 => Value::Number(word as f64),
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn read_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

fn read_number(bytes: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in (0..usize::BITS).step_by(7) {
        let byte = read_byte(bytes)?;
        number |= usize::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn read_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let length = read_number(bytes)?;
    let (text, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use tocsin_model::{
        field::{Field, FieldType, Fields},
        filter::{Dialect, Filter},
    };

    use super::*;
    use crate::filter::compile;

    #[test]
    fn a_packed_filter_can_be_removed_from_the_index() {
        use FieldType::*;
        let field = |(name, kind): (&str, FieldType)| Field::new(name.parse().expect("a name"), kind);
        let fields =
            [("s", String), ("i", Integer), ("n", Number), ("at", Timestamp), ("b", Boolean), ("l", List), ("m", Map)];
        let fields = Fields::new(fields.map(field).into());
        let texts = [
            (true, "event.s == 'a' || event.s in ['b', 'é'] && event.i >= -5 && event.i < 9007199254740993"),
            (true, "event.n > 0.5 && event.n != 18446744073709549568.0 && event.i == -9223372036854775807"),
            (true, "event.at > timestamp('2026-01-01T00:00:00Z') && (event.b || !has(event.s))"),
            (true, "has(event.m.x) && event.m.x == 1"),
            (false, "event.b || !has(event.m.x)"),
            (true, "event.s.startsWith('a') && event.s.endsWith('b') && event.s.contains_ci('c') && event.s == null"),
            (true, "event.l.exists(x, x == 'a') && event.m.x.y == 1e300"),
            (true, "true"),
            (false, "event.s.matches('a+')"),
            (false, "size(event.s) == 2 && event.i == 1"),
        ];
        let patterns = [
            r#"{"s": [{"wildcard": "a*b*"}, {"equals-ignore-case": "X"}, {"cidr": "10.0.0.0/8"}, {"exists": false}]}"#,
            r#"{"l": [{"anything-but": [1, 2.5, "x"]}], "m": {"k": [null, true, {"suffix": {"equals-ignore-case": "Z"}}]}}"#,
        ];
        let filters = texts
            .into_iter()
            .map(|(says_all, text)| (says_all, Filter::new(Dialect::Cel, text)))
            .chain(patterns.map(|pattern| (true, Filter::new(Dialect::EventPattern, pattern))));
        let mut index = FilterIndex::new();
        for (number, (says_all, filter)) in filters.enumerate() {
            let compiled = compile(&filter, &fields).expect("a filter");
            let (kept, _) = PackedFilter::file(compiled, number as u32, &mut index);
            assert_eq!(kept.whole.is_none(), says_all, "{filter}");
            kept.take_out(number as u32, &mut index);
            assert!(index.is_empty() && index.signatures() == 0, "{filter}");
        }
        assert_eq!(read(b"\0&\x02+"), None, "damaged bytes are rejected");
    }
}
