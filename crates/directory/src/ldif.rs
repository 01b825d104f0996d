//! Streaming LDIF reader and writer (RFC 2849); memory use is bounded by one record.

use std::{
    collections::{HashMap, HashSet},
    io::{BufRead, Write},
};

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    Modification, ModifyType, RawAttribute,
    entry::{Attribute, Entry},
};

/// Maximum length of a record, in bytes.
pub const RECORD_BYTES_MAX: usize = 64 << 20;

/// An LDIF record: an entry, or a change of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Line where it starts, from 1.
    pub line: usize,
    /// DN of the entry.
    pub dn: String,
    /// The change.
    pub change: Change,
}

/// The change type of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Add an entry with these attributes.
    Add(Vec<RawAttribute>),
    /// Modify the entry.
    Modify(Vec<Modification>),
    /// Delete the entry.
    Delete,
    /// Rename the entry: new relative name, whether old values are deleted, new parent.
    Rename(String, bool, Option<String>),
}

impl Change {
    /// Approximate size in memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let of = |name: &str, values: &[Vec<u8>]| {
            64 + name.len() + values.iter().map(|value| 24 + value.len()).sum::<usize>()
        };
        match self {
            Change::Add(attributes) => attributes.iter().map(|(name, values)| of(name, values)).sum(),
            Change::Modify(changes) => changes.iter().map(|change| of(&change.attribute, &change.values)).sum(),
            Change::Delete => 0,
            Change::Rename(rdn, _, above) => rdn.len() + above.as_ref().map_or(0, String::len),
        }
    }
}

/// Error in an LDIF file, with its line.
#[derive(Debug, thiserror::Error)]
pub enum LdifError {
    /// A malformed record. Later records are still read.
    #[error("line {line}: {what}")]
    Record {
        /// Line, from 1.
        line: usize,
        /// DN of the entry, if it was read.
        dn: String,
        /// The error and how to fix it.
        what: String,
    },
    /// A malformed line that ends the import.
    #[error("line {0}: {1}")]
    Line(usize, String),
    /// I/O error.
    #[error("the input cannot be read: {0}")]
    Reading(#[from] std::io::Error),
}

/// Reads records one by one. A malformed record gives an error with its line, and reading resumes after the next empty
/// line.
pub struct Reader<R> {
    input: R,
    /// Number of the last line read.
    line: usize,
    /// Look-ahead line, with its number.
    ahead: Option<(usize, Vec<u8>)>,
    /// Whether the last line ended in CR, so that a following LF belongs to it.
    after_cr: bool,
    /// Maximum length of a line, in bytes.
    line_bytes_max: usize,
}

/// UTF-8 byte-order mark.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

type Pair = (usize, String, Vec<u8>);
/// Error in a record, with its line.
type Fault = (usize, String);

impl<R: BufRead> Reader<R> {
    /// Creates a reader over an input.
    pub fn new(input: R) -> Self {
        Reader { input, line: 0, ahead: None, after_cr: false, line_bytes_max: RECORD_BYTES_MAX }
    }

    /// The next physical line, without its end (LF, CR LF or CR).
    fn raw(&mut self) -> Result<Option<(usize, Vec<u8>)>, LdifError> {
        if let Some(line) = self.ahead.take() {
            return Ok(Some(line));
        }
        let mut line = Vec::new();
        let mut is_begun = false;
        loop {
            let chunk = match self.input.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if chunk.is_empty() {
                break;
            }
            if std::mem::take(&mut self.after_cr) && chunk[0] == b'\n' {
                self.input.consume(1);
                continue;
            }
            is_begun = true;
            let end = chunk.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            line.extend_from_slice(&chunk[..end.unwrap_or(chunk.len())]);
            let taken = end.map_or(chunk.len(), |end| end + 1);
            self.after_cr = end.is_some_and(|end| chunk[end] == b'\r');
            self.input.consume(taken);
            if line.len() > self.line_bytes_max {
                return Err(self.wrong(format!("the line is longer than {} bytes", self.line_bytes_max)));
            }
            if end.is_some() {
                break;
            }
        }
        if !is_begun {
            return Ok(None);
        }
        self.line += 1;
        if self.line == 1 && (line.starts_with(b"\xff\xfe") || line.starts_with(b"\xfe\xff")) {
            return Err(
                self.wrong("the file is in UTF-16; LDIF is in UTF-8: convert it, as by `iconv -f UTF-16 -t UTF-8`")
            );
        }
        // A byte-order mark can also appear in the middle, where files were concatenated.
        if line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(Some((self.line, line)))
    }

    fn wrong(&self, what: impl Into<String>) -> LdifError {
        LdifError::Line(self.line.max(1), what.into())
    }

    /// The next logical line: continuations are joined, comments are skipped.
    fn logical(&mut self) -> Result<Option<(usize, Vec<u8>)>, LdifError> {
        loop {
            let Some((at, mut line)) = self.raw()? else { return Ok(None) };
            while !line.is_empty()
                && let Some((number, next)) = self.raw()?
            {
                match next.strip_prefix(b" ") {
                    Some(rest) => line.extend_from_slice(rest),
                    None => {
                        self.ahead = Some((number, next));
                        break;
                    }
                }
                if line.len() > RECORD_BYTES_MAX {
                    return Err(self.wrong(format!("the record is longer than {RECORD_BYTES_MAX} bytes")));
                }
            }
            if !line.starts_with(b"#") {
                return Ok(Some((at, line)));
            }
        }
    }

    /// The lines of the next record as name-value pairs; `-` is a pair of its own. Consumes all lines of a record, and
    /// keeps its first error.
    fn pairs(&mut self) -> Result<(Vec<Pair>, Option<Fault>), LdifError> {
        let (mut pairs, mut bytes, mut fault) = (Vec::new(), 0, None);
        while let Some((at, line)) = self.logical()? {
            let is_begun = !pairs.is_empty() || fault.is_some();
            if line.iter().all(|byte| matches!(byte, b' ' | b'\t')) {
                if is_begun {
                    break;
                }
                continue;
            }
            bytes += line.len();
            if bytes > RECORD_BYTES_MAX {
                return Err(self.wrong(format!("the record is longer than {RECORD_BYTES_MAX} bytes")));
            }
            match pair(&line) {
                Ok((name, value)) if !is_begun && name.eq_ignore_ascii_case("version") => {
                    if value.trim_ascii() != b"1" {
                        fault = Some((at, "the LDIF version must be 1".to_owned()));
                    }
                }
                Ok((name, value)) => pairs.push((at, name, value)),
                Err(what) => drop(fault.get_or_insert((at, what))),
            }
        }
        Ok((pairs, fault))
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Record, LdifError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (pairs, fault) = match self.pairs() {
            Ok((pairs, None)) if pairs.is_empty() => return None,
            Ok(read) => read,
            Err(error) => return Some(Err(error)),
        };
        let dn = match pairs.first() {
            Some((_, name, dn)) if name.eq_ignore_ascii_case("dn") => String::from_utf8_lossy(dn).into_owned(),
            _ => String::new(),
        };
        let read = match fault {
            Some(fault) => Err(fault),
            None => record(pairs),
        };
        Some(read.map_err(|(line, what)| LdifError::Record { line, dn, what }))
    }
}

/// Parses a line of a record. Trailing spaces of a plain value are dropped; a value that needs them is in Base64 (RFC
/// 2849).
fn pair(line: &[u8]) -> Result<(String, Vec<u8>), String> {
    let line = std::str::from_utf8(line).map_err(|_| "is not UTF-8; write such a value in Base64, after `::`")?;
    if line.trim_end_matches(' ') == "-" {
        return Ok(("-".to_owned(), Vec::new()));
    }
    if line.starts_with(' ') {
        return Err("starts with a space, but there is no line to continue".to_owned());
    }
    let (name, rest) = line.split_once(':').ok_or("must have the form `name: value`")?;
    let name = name.trim_end_matches(' ');
    if name.is_empty() {
        return Err("must have the form `name: value`; the name is missing".to_owned());
    }
    let value = match rest.as_bytes().first() {
        Some(b':') => STANDARD.decode(rest[1..].trim()).map_err(|_| "the value after `::` is not Base64")?,
        Some(b'<') => return Err("values in other files (`:<`) are not supported; give the value itself".to_owned()),
        _ => rest.trim_matches(' ').as_bytes().to_vec(),
    };
    Ok((name.to_owned(), value))
}

fn text(line: usize, value: Vec<u8>) -> Result<String, Fault> {
    String::from_utf8(value).map_err(|_| (line, "the value must be UTF-8 text".to_owned()))
}

fn record(pairs: Vec<Pair>) -> Result<Record, Fault> {
    let mut pairs = pairs.into_iter().peekable();
    let Some((line, name, dn)) = pairs.next() else { return Err((0, "is empty".to_owned())) };
    if !name.eq_ignore_ascii_case("dn") {
        return Err((line, "a record must begin with `dn:`".to_owned()));
    }
    let dn = text(line, dn)?;
    if let Some((at, ..)) = pairs.next_if(|(_, name, _)| name.eq_ignore_ascii_case("control")) {
        return Err((
            at,
            "an import does not support controls; remove the line, or send the record with ldapmodify".to_owned(),
        ));
    }
    let kind = match pairs.next_if(|(_, name, _)| name.eq_ignore_ascii_case("changetype")) {
        Some((at, _, value)) => text(at, value)?.trim().to_ascii_lowercase(),
        None => "add".to_owned(),
    };
    let change = match kind.as_str() {
        "add" => Change::Add(attributes(line, pairs)?),
        "delete" => match pairs.next() {
            None => Change::Delete,
            Some((at, name, _)) => return Err((at, format!("`{name}` has no meaning in a record that deletes"))),
        },
        "modify" => Change::Modify(modifications(pairs.collect())?),
        "modrdn" | "moddn" => rename(line, pairs.collect())?,
        other => {
            return Err((line, format!("the changetype `{other}` is unknown; give add, delete, modify or modrdn")));
        }
    };
    Ok(Record { line, dn, change })
}

/// The attributes of an entry. A value that occurs twice, byte for byte, counts once.
fn attributes(line: usize, pairs: impl Iterator<Item = Pair>) -> Result<Vec<RawAttribute>, Fault> {
    let mut attributes: Vec<RawAttribute> = Vec::new();
    let (mut places, mut known) = (HashMap::new(), HashSet::new());
    for (at, name, value) in pairs {
        if let "-" | "changetype" | "control" | "dn" = name.to_ascii_lowercase().as_str() {
            return Err((at, format!("`{name}` has no meaning here; an empty line ends a record")));
        }
        let next = attributes.len();
        let place = *places.entry(name.to_ascii_lowercase()).or_insert(next);
        if place == next {
            attributes.push((name, Vec::new()));
        }
        if known.insert((place, value.clone())) {
            attributes[place].1.push(value);
        }
    }
    match attributes.is_empty() {
        true => Err((line, "an entry must have at least the attribute `objectClass`".to_owned())),
        false => Ok(attributes),
    }
}

fn modifications(pairs: Vec<Pair>) -> Result<Vec<Modification>, Fault> {
    let mut made: Vec<Modification> = Vec::new();
    for part in pairs.split(|(_, name, _)| name == "-").filter(|part| !part.is_empty()) {
        let (line, word, attribute) = &part[0];
        let act = match word.to_ascii_lowercase().as_str() {
            "add" => ModifyType::Add,
            "delete" => ModifyType::Delete,
            "replace" => ModifyType::Replace,
            "increment" => ModifyType::Increment,
            _ => {
                return Err((*line, format!("`{word}` is not a modification; give add, delete, replace or increment")));
            }
        };
        let attribute = text(*line, attribute.clone())?;
        if let Some((at, name, _)) = part[1..].iter().find(|(_, name, _)| !name.eq_ignore_ascii_case(&attribute)) {
            return Err((*at, format!("expected a value of `{attribute}` or `-`, found `{name}`")));
        }
        let values = part[1..].iter().map(|(.., value)| value.clone()).collect();
        made.push(Modification { act, attribute, values });
    }
    Ok(made)
}

fn rename(line: usize, pairs: Vec<Pair>) -> Result<Change, Fault> {
    let known = ["newrdn", "deleteoldrdn", "newsuperior"];
    let is_known = |name: &str| known.iter().any(|known| name.eq_ignore_ascii_case(known));
    if let Some((at, name, _)) = pairs.iter().find(|(_, name, _)| !is_known(name)) {
        return Err((*at, format!("`{name}` has no meaning in a rename; give newrdn, deleteoldrdn and newsuperior")));
    }
    let is_repeated = |at: usize| pairs[..at].iter().any(|(_, earlier, _)| earlier.eq_ignore_ascii_case(&pairs[at].1));
    if let Some(at) = (0..pairs.len()).find(|at| is_repeated(*at)) {
        return Err((pairs[at].0, format!("`{}` is given twice", pairs[at].1)));
    }
    let find = |requested: &str| {
        let found = pairs.iter().find(|(_, name, _)| name.eq_ignore_ascii_case(requested));
        found.map(|(at, _, value)| text(*at, value.clone())).transpose()
    };
    let new = find("newrdn")?.ok_or_else(|| (line, "a rename needs `newrdn:`".to_owned()))?;
    let delete_old = match find("deleteoldrdn")?.as_deref().map(str::trim) {
        None | Some("1") => true,
        Some("0") => false,
        Some(other) => return Err((line, format!("`deleteoldrdn` is `{other}`, but must be 0 or 1"))),
    };
    Ok(Change::Rename(new, delete_old, find("newsuperior")?))
}

/// Writes an entry as a record, with long lines folded.
///
/// # Errors
/// Writing to the output fails.
pub fn write(out: &mut impl Write, entry: &Entry, attributes: &[Attribute]) -> std::io::Result<()> {
    line(out, "dn", entry.dn.as_bytes())?;
    for attribute in attributes {
        for value in &*attribute.values {
            line(out, attribute.kind.name(), value)?;
        }
    }
    out.write_all(b"\n")
}

fn line(out: &mut impl Write, name: &str, value: &[u8]) -> std::io::Result<()> {
    const WIDTH: usize = 76;
    let is_safe = value.iter().all(|byte| matches!(byte, b' '..=b'~'))
        && !matches!(value.first(), Some(b' ' | b':' | b'<'))
        && value.last() != Some(&b' ');
    let text = match std::str::from_utf8(value) {
        Ok(text) if is_safe => format!("{name}: {text}"),
        _ => format!("{name}:: {}", STANDARD.encode(value)),
    };
    // The text is ASCII, so it can be cut at any byte.
    let mut rest = text.as_bytes();
    let mut width = WIDTH;
    loop {
        let (part, later) = rest.split_at(rest.len().min(width));
        out.write_all(part)?;
        out.write_all(b"\n")?;
        if later.is_empty() {
            return Ok(());
        }
        out.write_all(b" ")?;
        (rest, width) = (later, WIDTH - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Result<Record, LdifError>> {
        Reader::new(text.as_bytes()).collect()
    }

    #[test]
    fn records_of_rfc_2849_are_read() {
        let text = "version: 1\n# a comment\n  that goes on\ndn: cn=Ann,o=x\nobjectClass: top\nobjectClass: person\r\ndescription: one\n  two\n\n\n\
            dn:: Y249QmrDuHJuLG89eA==\nchangetype: modify\nadd: mail\nmail:a@b\n-\ndelete: title\n-\nreplace: note\n-\n\n\
            dn: cn=a,o=x\nchangetype: delete\n\ndn: cn=a,o=x\nchangetype: modrdn\nnewrdn: cn=b\ndeleteoldrdn: 0\nnewsuperior: ou=y,o=x\n";
        let records: Vec<Record> = read(text).into_iter().map(|record| record.expect("fine")).collect();
        assert_eq!((records.len(), records[0].line), (4, 4));
        let Change::Add(attributes) = &records[0].change else { panic!("{:?}", records[0]) };
        assert_eq!(attributes[0], ("objectClass".into(), vec![b"top".to_vec(), b"person".to_vec()]));
        assert_eq!(attributes[1], ("description".into(), vec![b"one two".to_vec()]));
        assert_eq!(records[1].dn, "cn=Bjørn,o=x");
        let Change::Modify(modifications) = &records[1].change else { panic!("{:?}", records[1]) };
        let acts: Vec<_> = modifications.iter().map(|made| (made.act, made.values.len())).collect();
        assert_eq!(acts, [(ModifyType::Add, 1), (ModifyType::Delete, 0), (ModifyType::Replace, 0)]);
        assert_eq!(records[2].change, Change::Delete);
        assert_eq!(records[3].change, Change::Rename("cn=b".into(), false, Some("ou=y,o=x".into())));
    }

    #[test]
    fn an_error_names_its_line() {
        let check = |text: &str, line, what: &str| match &read(text)[0] {
            Err(LdifError::Record { line: at, what: said, .. }) => {
                assert!(*at == line && said.contains(what), "{at}: {said}");
            }
            other => panic!("{other:?}"),
        };
        check("version: 2\ndn: o=x\n", 1, "version");
        check("cn: a\n", 1, "begin with `dn:`");
        check("dn: o=x\nnothing\n", 2, "name: value");
        check("dn: o=x\nphoto:: ???\n", 2, "Base64");
        check("dn: o=x\nphoto:< file:///etc/passwd\n", 2, "not supported");
        check("dn: o=x\nchangetype: rename\n", 1, "is unknown");
        check("dn: o=x\nchangetype: modify\nadd: mail\ncn: x\n", 4, "a value of `mail`");
        check("dn: o=x\ncontrol: 1.2.3 true\nchangetype: delete\n", 2, "not support controls");
        check("dn: o=x\nchangetype: delete\ncn: x\n", 3, "deletes");
        check("dn: o=x\ncn: x\nchangetype: delete\n", 3, "no meaning");
        check("dn: o=x\nchangetype: modrdn\nnewrdn: cn=a\ndeleteoldrdn: yes\n", 1, "0 or 1");
        check("dn: o=x\nchangetype: modrdn\nnewrdn: cn=a\nNewRDN: cn=b\ndeleteoldrdn: 1\n", 4, "given twice");
        check("dn: o=x\n: x\n", 2, "name is missing");
        check("\n cn: x\n", 2, "no line to continue");
        check("dn: o=x\n", 1, "objectClass");
    }

    /// DNs of valid records; line, DN and error of invalid ones.
    fn names(bytes: &[u8]) -> Vec<String> {
        let shown = |read: Result<Record, LdifError>| match read {
            Ok(record) => record.dn,
            Err(LdifError::Record { line, dn, what }) => format!("{line} {dn}: {what}"),
            Err(other) => panic!("{other}"),
        };
        Reader::new(bytes).map(shown).collect()
    }

    #[test]
    fn ldif_an_error_ends_only_its_own_record() {
        for fault in
            ["photo:< file:///x.jpg", "photo:: ???", "photo:: YQ", "nothing", "control: 1.2.3 true", "-", ": x"]
        {
            let text = format!("dn: cn=a\ncn: a\n\ndn: cn=b\n{fault}\nmore: x\ncn: b\n\n\ndn: cn=c\ncn: c\n");
            let found = names(text.as_bytes());
            assert_eq!((found.len(), &*found[0], &*found[2]), (3, "cn=a", "cn=c"), "{found:?}");
            assert!(found[1].starts_with("5 cn=b: "), "{found:?}");
        }
        let found = names(b"dn: cn=a\ncn: \xfc\n\ndn: cn=b\ncn: b\n");
        assert!(found[0].starts_with("2 cn=a: is not UTF-8") && found[1] == "cn=b", "{found:?}");
        let found = names(b"dn:: ////\ncn: a\n\ncn: x\n\ndn: cn=b\ncn: b");
        assert_eq!((found.len(), &*found[2]), (3, "cn=b"), "{found:?}");
    }

    #[test]
    fn ldif_byte_order_marks_line_ends_and_versions_are_accepted() {
        let plain = "version: 1\n\ndn: cn=a\ncn: a\n  b\n# comment\n\ndn: cn=b\ncn: b\n";
        for end in ["\n", "\r\n", "\r"] {
            let text = plain.replace('\n', end);
            assert_eq!(names(text.as_bytes()), ["cn=a", "cn=b"], "{end:?}");
            assert_eq!(names(format!("\u{feff}{text}").as_bytes()), ["cn=a", "cn=b"], "{end:?}");
            // Two concatenated files.
            assert_eq!(names(format!("\u{feff}{text}{end}\u{feff}{text}").as_bytes()).len(), 4, "{end:?}");
            // A reader with a one-byte buffer.
            let reader = Reader::new(std::io::BufReader::with_capacity(1, text.as_bytes()));
            let records: Vec<Record> = reader.map(|read| read.expect("fine")).collect();
            assert_eq!((records.len(), records[1].line), (2, 8), "{end:?}");
            assert_eq!(records[0].change, Change::Add(vec![("cn".into(), vec![b"a b".to_vec()])]));
        }
        assert_eq!(names(b"\n \n\t\n"), Vec::<String>::new());
        assert_eq!(names("\u{feff}".as_bytes()), Vec::<String>::new());
        let said = Reader::new(&b"\xff\xfed\0n\0"[..]).next();
        assert!(matches!(said, Some(Err(LdifError::Line(1, what))) if what.contains("UTF-16")));
    }

    #[test]
    fn ldif_values_are_trimmed_and_deduplicated() {
        let read = read("dn: cn=a \nobjectClass: top \nobjectclass: person\nobjectClass: top\ncn:: YSA=\ncn:  b  \n");
        let Ok(Record { dn, change: Change::Add(attributes), .. }) = &read[0] else { panic!("{read:?}") };
        assert_eq!(dn, "cn=a");
        assert_eq!(attributes[0].1, [b"top".to_vec(), b"person".to_vec()]);
        assert_eq!(attributes[1].1, [b"a ".to_vec(), b"b".to_vec()]);
    }

    #[test]
    fn an_endless_line_is_rejected_at_the_length_limit() {
        let endless = std::io::BufReader::new(std::io::repeat(b'x'));
        let mut reader = Reader { line_bytes_max: 1_000, ..Reader::new(endless) };
        let Some(Err(LdifError::Line(1, said))) = reader.next() else { panic!("it is read on") };
        assert!(said.contains("longer than 1000 bytes"), "{said}");
    }

    #[test]
    fn written_records_can_be_read() {
        for value in ["plain", " space", "space ", ":colon", "<less", "ümlaut", "", "line\nend", &"long ".repeat(60)] {
            let mut out = Vec::new();
            line(&mut out, "cn", value.as_bytes()).expect("memory takes all");
            let text = format!("dn: o=x\n{}", String::from_utf8(out).expect("ASCII"));
            assert!(text.lines().all(|line| line.len() <= 76), "{text}");
            let records = read(&text);
            let Ok(Record { change: Change::Add(attributes), .. }) = &records[0] else { panic!("{records:?}") };
            assert_eq!(attributes[0].1[0], value.as_bytes());
        }
    }
}
