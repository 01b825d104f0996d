//! What is kept of a filter once an index has taken it in: enough to tell it from others, and to take it out again.
//!
//! The canonical bytes of an exact filter are its condition, so nothing else of it need stay in memory.

use tocsin_model::{time::Timestamp, value::Value};

use super::{
    Case, CompiledFilter, Condition, How, Limit, Path, Range, Reach, Test,
    index::{FilterIndex, Standing},
    text::{Network, Wildcard},
};

/// A filter that an index has taken in.
#[derive(Debug)]
pub struct Kept {
    canonical: Box<[u8]>,
    /// Where the canonical bytes do not say all.
    whole: Option<Box<Condition>>,
    exact: bool,
}

impl Kept {
    /// Files a filter under a number, as [`FilterIndex::insert`] does.
    pub fn file(filter: CompiledFilter, number: u32, index: &mut FilterIndex) -> (Kept, Standing) {
        let standing = index.insert(number, &filter);
        (Kept::of(filter), standing)
    }

    fn of(filter: CompiledFilter) -> Kept {
        let CompiledFilter { condition, exact, canonical, .. } = filter;
        let says_all = exact && !has_regex(&condition) && read(&canonical).as_ref() == Some(&condition);
        Kept { canonical, whole: (!says_all).then(|| Box::new(condition)), exact }
    }

    /// As [`CompiledFilter::canonical`].
    pub fn canonical(&self) -> &[u8] {
        &self.canonical
    }

    /// Takes the filter out of the index that took it in.
    pub fn take_out(&self, number: u32, index: &mut FilterIndex) {
        match &self.whole {
            Some(condition) => index.remove_condition(number, condition, self.exact),
            None => {
                let condition = read(&self.canonical).expect("it was read when the filter was filed");
                index.remove_condition(number, &condition, self.exact);
            }
        }
    }

    /// Bytes held beside the value itself. Of conditions that are kept whole, roughly.
    pub fn memory_bytes(&self) -> usize {
        self.canonical.len() + self.whole.as_ref().map_or(0, |_| 4 * self.canonical.len() + size_of::<Condition>())
    }
}

/// Reading one again takes a while, so a condition with a regular expression is kept.
fn has_regex(condition: &Condition) -> bool {
    match condition {
        Condition::All(parts) | Condition::Any(parts) => parts.iter().any(has_regex),
        Condition::Test(test) => match &test.how {
            How::Matches(_) => true,
            How::But(inner) => matches!(**inner, How::Matches(_)),
            _ => false,
        },
        Condition::Always | Condition::Unknown => false,
    }
}

/// The condition of an exact filter's canonical bytes, as `normal::write_condition` writes it. `None` if they are
/// something else.
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
    Some(Test { path: Path { field, keys, reach }, how: read_how(bytes)? })
}

fn read_how(bytes: &mut &[u8]) -> Option<How> {
    let tag = read_byte(bytes)?;
    let case = |is_folded: bool| if is_folded { Case::Folded } else { Case::Kept };
    Some(match tag {
        b'=' => How::In((0..read_number(bytes)?).map(|_| read_value(bytes)).collect::<Option<Vec<_>>>()?),
        b'<' => {
            let (low, high) = (read_limit(bytes)?, read_limit(bytes)?);
            How::Range(Range { low, high })
        }
        b'p' | b'P' => How::Prefix(read_text(bytes)?.into(), case(tag == b'P')),
        b's' | b'S' => How::Suffix(read_text(bytes)?.into(), case(tag == b'S')),
        b'c' | b'C' => How::Contains(read_text(bytes)?.into(), case(tag == b'C')),
        b'E' => How::Folded(read_text(bytes)?.into()),
        b'/' => How::Cidr(Network::read(read_text(bytes)?).ok()?),
        b'*' => {
            let parts = (0..read_number(bytes)?).map(|_| Some(read_text(bytes)?.into())).collect::<Option<Vec<_>>>()?;
            How::Wildcard(Wildcard::new(parts))
        }
        b'e' => How::Exists,
        b'm' => How::Missing,
        b'!' => How::But(Box::new(read_how(bytes)?)),
        _ => return None,
    })
}

/// An end of a range; the outer `None` is damage.
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
            // As `datum::write_key` writes what is no text and no integer.
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
    fn what_is_kept_takes_a_filter_out_again() {
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
            let (kept, _) = Kept::file(compiled, number as u32, &mut index);
            assert_eq!(kept.whole.is_none(), says_all, "{filter}");
            kept.take_out(number as u32, &mut index);
            assert!(index.is_empty() && index.signatures() == 0, "{filter}");
        }
        assert_eq!(read(b"\0&\x02+"), None, "damage is seen");
    }
}
