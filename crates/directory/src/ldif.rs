//! LDIF (RFC 2849): entries as text, record by record, so that a file of any size takes the room of one record.

use std::io::{BufRead, Read, Write};

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    Act, Given, Modification,
    entry::{Attribute, Entry},
};

/// Longest record, in bytes.
pub const RECORD_BYTES_MAX: usize = 64 << 20;

/// A record: an entry, or a change of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The line it begins at, from 1.
    pub line: usize,
    /// The name of the entry.
    pub dn: String,
    /// What is to be done.
    pub change: Change,
}

/// What a record wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// There is to be an entry of these attributes.
    Add(Vec<Given>),
    /// It is to be changed.
    Modify(Vec<Modification>),
    /// It is to go.
    Delete,
    /// It is to be renamed: new relative name, whether the old values go, new entry above.
    Rename(String, bool, Option<String>),
}

/// What is wrong with a file, and where.
#[derive(Debug, thiserror::Error)]
pub enum LdifError {
    /// A line cannot be read.
    #[error("line {0}: {1}")]
    Line(usize, String),
    /// The file cannot be read.
    #[error("cannot read on: {0}")]
    Reading(#[from] std::io::Error),
}

/// Reads records one after the other.
pub struct Reader<R> {
    input: R,
    /// The number of the last line that was read.
    line: usize,
    /// A line that was read too far.
    ahead: Option<String>,
    begun: bool,
    /// Longest line, in bytes.
    line_bytes_max: usize,
}

type Pair = (usize, String, Vec<u8>);

impl<R: BufRead> Reader<R> {
    /// Over an input.
    pub fn new(input: R) -> Self {
        Reader { input, line: 0, ahead: None, begun: false, line_bytes_max: RECORD_BYTES_MAX }
    }

    /// The next line as it lies there, without its end.
    fn raw(&mut self) -> Result<Option<String>, LdifError> {
        if let Some(line) = self.ahead.take() {
            return Ok(Some(line));
        }
        let mut bytes = Vec::new();
        if self.input.by_ref().take(self.line_bytes_max as u64 + 1).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(None);
        }
        self.line += 1;
        if bytes.len() > self.line_bytes_max {
            return Err(self.wrong("the line is too long"));
        }
        while matches!(bytes.last(), Some(b'\n' | b'\r')) {
            bytes.pop();
        }
        let line = String::from_utf8(bytes)
            .map_err(|_| self.wrong("is not UTF-8; write such values in Base64, behind `::`"))?;
        Ok(Some(line))
    }

    fn wrong(&self, what: impl Into<String>) -> LdifError {
        LdifError::Line(self.line, what.into())
    }

    /// The next line, with what continues it; comments are passed over.
    fn logical(&mut self) -> Result<Option<(usize, String)>, LdifError> {
        loop {
            let Some(mut line) = self.raw()? else { return Ok(None) };
            let at = self.line;
            while let Some(next) = self.raw()? {
                match next.strip_prefix(' ') {
                    Some(rest) if !line.is_empty() => line.push_str(rest),
                    _ => {
                        self.ahead = Some(next);
                        break;
                    }
                }
                if line.len() > RECORD_BYTES_MAX {
                    return Err(self.wrong("the record is too long"));
                }
            }
            if !line.starts_with('#') {
                return Ok(Some((at, line)));
            }
        }
    }

    /// The lines of the next record, each a name and a value; `-` stands alone.
    fn pairs(&mut self) -> Result<Vec<Pair>, LdifError> {
        let (mut pairs, mut bytes) = (Vec::new(), 0);
        while let Some((at, line)) = self.logical()? {
            if line.is_empty() {
                if pairs.is_empty() {
                    continue;
                }
                break;
            }
            bytes += line.len();
            if bytes > RECORD_BYTES_MAX {
                return Err(self.wrong("the record is too long"));
            }
            let pair = pair(&line).map_err(|what| LdifError::Line(at, what))?;
            if pair.0.eq_ignore_ascii_case("version") && !self.begun && pairs.is_empty() {
                self.begun = true;
                if pair.1 != b"1" {
                    return Err(LdifError::Line(at, "the version of LDIF should be 1".to_owned()));
                }
                continue;
            }
            self.begun = true;
            pairs.push((at, pair.0, pair.1));
        }
        Ok(pairs)
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Record, LdifError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.pairs() {
            Ok(pairs) if pairs.is_empty() => None,
            Ok(pairs) => Some(record(pairs)),
            Err(error) => Some(Err(error)),
        }
    }
}

fn pair(line: &str) -> Result<(String, Vec<u8>), String> {
    if line == "-" {
        return Ok(("-".to_owned(), Vec::new()));
    }
    let (name, rest) = line.split_once(':').ok_or("should read `name: value`")?;
    let value = match rest.as_bytes().first() {
        Some(b':') => STANDARD.decode(rest[1..].trim()).map_err(|_| "the value behind `::` is no Base64")?,
        Some(b'<') => return Err("values in other files are not read; give the value itself".to_owned()),
        _ => rest.trim_start_matches(' ').as_bytes().to_vec(),
    };
    Ok((name.to_owned(), value))
}

fn text(line: usize, value: Vec<u8>) -> Result<String, LdifError> {
    String::from_utf8(value).map_err(|_| LdifError::Line(line, "the value should be text".to_owned()))
}

fn record(pairs: Vec<Pair>) -> Result<Record, LdifError> {
    let mut pairs = pairs.into_iter().peekable();
    let (line, name, dn) = pairs.next().expect("a record has a line");
    if !name.eq_ignore_ascii_case("dn") {
        return Err(LdifError::Line(line, "a record begins with `dn:`".to_owned()));
    }
    let dn = text(line, dn)?;
    if let Some((at, ..)) = pairs.next_if(|(_, name, _)| name.eq_ignore_ascii_case("control")) {
        return Err(LdifError::Line(at, "controls are not known here".to_owned()));
    }
    let kind = match pairs.next_if(|(_, name, _)| name.eq_ignore_ascii_case("changetype")) {
        Some((at, _, value)) => text(at, value)?.to_ascii_lowercase(),
        None => "add".to_owned(),
    };
    let change = match kind.as_str() {
        "add" => Change::Add(attributes(pairs)),
        "delete" => Change::Delete,
        "modify" => Change::Modify(modifications(pairs.collect())?),
        "modrdn" | "moddn" => rename(line, pairs.collect())?,
        other => return Err(LdifError::Line(line, format!("there is no changetype `{other}`"))),
    };
    Ok(Record { line, dn, change })
}

fn attributes(pairs: impl Iterator<Item = Pair>) -> Vec<Given> {
    let mut attributes: Vec<Given> = Vec::new();
    for (_, name, value) in pairs {
        match attributes.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(&name)) {
            Some((_, values)) => values.push(value),
            None => attributes.push((name, vec![value])),
        }
    }
    attributes
}

fn modifications(pairs: Vec<Pair>) -> Result<Vec<Modification>, LdifError> {
    let mut made: Vec<Modification> = Vec::new();
    for part in pairs.split(|(_, name, _)| name == "-").filter(|part| !part.is_empty()) {
        let (line, word, attribute) = &part[0];
        let act = match word.to_ascii_lowercase().as_str() {
            "add" => Act::Add,
            "delete" => Act::Delete,
            "replace" => Act::Replace,
            "increment" => Act::Increment,
            _ => {
                return Err(LdifError::Line(
                    *line,
                    format!("`{word}` is no modification: add, delete, replace or increment"),
                ));
            }
        };
        let attribute = text(*line, attribute.clone())?;
        if let Some((at, name, _)) = part[1..].iter().find(|(_, name, _)| !name.eq_ignore_ascii_case(&attribute)) {
            return Err(LdifError::Line(
                *at,
                format!("here should stand a value of `{attribute}`, or `-`; not of `{name}`"),
            ));
        }
        let values = part[1..].iter().map(|(.., value)| value.clone()).collect();
        made.push(Modification { act, attribute, values });
    }
    Ok(made)
}

fn rename(line: usize, pairs: Vec<Pair>) -> Result<Change, LdifError> {
    let find = |wanted: &str| {
        let found = pairs.iter().find(|(_, name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(at, _, value)| text(*at, value.clone())).transpose()
    };
    let new = find("newrdn")?.ok_or_else(|| LdifError::Line(line, "a renaming needs `newrdn:`".to_owned()))?;
    Ok(Change::Rename(new, find("deleteoldrdn")?.as_deref() != Some("0"), find("newsuperior")?))
}

/// Writes an entry as a record, long lines folded.
///
/// # Errors
/// The output does not take it.
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
    // All of it is ASCII, so it may be cut anywhere.
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
        assert_eq!(acts, [(Act::Add, 1), (Act::Delete, 0), (Act::Replace, 0)]);
        assert_eq!(records[2].change, Change::Delete);
        assert_eq!(records[3].change, Change::Rename("cn=b".into(), false, Some("ou=y,o=x".into())));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let check = |text: &str, line, what: &str| match &read(text)[0] {
            Err(LdifError::Line(at, said)) => assert!(*at == line && said.contains(what), "{at}: {said}"),
            other => panic!("{other:?}"),
        };
        check("version: 2\ndn: o=x\n", 1, "version");
        check("cn: a\n", 1, "begins with `dn:`");
        check("dn: o=x\nnothing\n", 2, "name: value");
        check("dn: o=x\nphoto:: ???\n", 2, "Base64");
        check("dn: o=x\nphoto:< file:///etc/passwd\n", 2, "not read");
        check("dn: o=x\nchangetype: rename\n", 1, "no changetype");
        check("dn: o=x\nchangetype: modify\nadd: mail\ncn: x\n", 4, "a value of `mail`");
    }

    #[test]
    fn a_line_without_an_end_takes_no_more_room_than_a_record() {
        let endless = std::io::BufReader::new(std::io::repeat(b'x'));
        let mut reader = Reader { line_bytes_max: 1_000, ..Reader::new(endless) };
        let Some(Err(LdifError::Line(1, said))) = reader.next() else { panic!("it is read on") };
        assert!(said.contains("too long"), "{said}");
    }

    #[test]
    fn what_is_written_is_read_again() {
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
