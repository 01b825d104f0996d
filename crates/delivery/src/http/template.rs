//! Text templates with placeholders, each value escaped for its context.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write};

use serde_json::Value;
use tocsin_model::{
    content::{JsonUse, PartsUsed},
    length::{self, Unit},
};

use crate::channel::Outgoing;

/// A text with placeholders: `{address}`, `{text|280}`, `{fields.place}`. `{{` and `}}` are braces.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Literal(String),
    Place(Source, Vec<Filter>),
}

/// Value of a placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Address,
    Subject,
    Text,
    Sms,
    Html,
    Json,
    MessageId,
    Class,
    Application,
    Time,
    Timestamp,
    Fields,
    Field(String),
}

/// Placeholder in `body.json` for the list of all recipients.
const RECIPIENTS: &str = "{recipients}";

/// Transformation of a value before it is escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Filter {
    /// Cut to this many units.
    Cut(usize, Unit),
    /// `&`, `<` and `>` escaped for Slack, so that no text makes a mention or a link.
    Slack,
    /// Escaped for HTML text.
    Html,
}

/// Context of a template, which decides how values are escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escape {
    /// A part of a URL: everything but letters, digits and `-._~` is percent-encoded.
    Url,
    /// A form: as in a URL, with `+` for a space.
    Form,
    /// The inside of a JSON string.
    Json,
    /// A header field: control characters become spaces, so that no text makes a second field.
    Header,
    /// Not escaped.
    Plain,
}

const NAMES: &str = "`address`, `subject`, `text`, `sms`, `html`, `json`, `message_id`, `class`, `application`, `time`, \
                     `timestamp`, `fields` and `fields.<name>`";

impl Template {
    /// Parses a template and replaces `{with.<name>}` by the parameters. The error says what is wrong.
    pub fn read(text: &str, with: &BTreeMap<String, String>) -> Result<Template, String> {
        let (mut pieces, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let (brace, after) = (&rest[at..=at], &rest[at + 1..]);
            if let Some(after) = after.strip_prefix(brace) {
                literal.push_str(brace);
                rest = after;
                continue;
            }
            let end = after.find('}').filter(|_| brace == "{");
            let end = end.ok_or("a single brace: write `{{` and `}}` for braces, `{text}` for a place")?;
            rest = &after[end + 1..];
            let mut words = after[..end].split('|').map(str::trim);
            let name = words.next().unwrap_or_default();
            if let Some(name) = name.strip_prefix("with.") {
                let value = with.get(name).ok_or_else(|| format!("`{name}` is not given in `with`"))?;
                literal.push_str(value);
                continue;
            }
            let source = Source::read(name)?;
            let filters = words.map(Filter::read).collect::<Result<_, String>>()?;
            if !literal.is_empty() {
                pieces.push(Piece::Literal(std::mem::take(&mut literal)));
            }
            pieces.push(Piece::Place(source, filters));
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal));
        }
        Ok(Template(pieces))
    }

    /// The whole text, if it does not depend on the message.
    pub fn constant(&self) -> Option<&str> {
        match &self.0[..] {
            [] => Some(""),
            [Piece::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// The text before the first placeholder.
    pub fn beginning(&self) -> &str {
        match self.0.first() {
            Some(Piece::Literal(text)) => text,
            _ => "",
        }
    }

    /// The placeholder, if it is the whole text and has no filters.
    pub fn place(&self) -> Option<&Source> {
        match &self.0[..] {
            [Piece::Place(source, filters)] if filters.is_empty() => Some(source),
            _ => None,
        }
    }

    /// Appends the text with the values of this message. Literals are not escaped.
    pub fn write(&self, outgoing: &Outgoing, escape: Escape, out: &mut String) {
        for piece in &self.0 {
            match piece {
                Piece::Literal(text) if escape == Escape::Json => write_escaped(text, Escape::Json, out),
                Piece::Literal(text) => out.push_str(text),
                Piece::Place(source, filters) => {
                    let (mut value, mut is_markup) = (source.value(outgoing), false);
                    for filter in filters {
                        value = filter.apply(value, escape, is_markup);
                        is_markup |= matches!(filter, Filter::Slack | Filter::Html);
                    }
                    write_escaped(&value, escape, out);
                }
            }
        }
    }

    /// Whether it depends on the recipient.
    pub fn is_personal(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Place(Source::Address, _)))
    }

    /// Adds the parts of a content that it uses.
    pub fn add_used_parts(&self, used: &mut PartsUsed) {
        for piece in &self.0 {
            if let Piece::Place(source, _) = piece {
                source.add_used_parts(used);
            }
        }
    }

    /// As `write`, returning a new text.
    pub fn fill(&self, outgoing: &Outgoing, escape: Escape) -> String {
        let mut out = String::new();
        self.write(outgoing, escape, &mut out);
        out
    }
}

impl Source {
    fn read(name: &str) -> Result<Source, String> {
        Ok(match name {
            "address" => Source::Address,
            "subject" => Source::Subject,
            "text" => Source::Text,
            "sms" => Source::Sms,
            "html" => Source::Html,
            "json" => Source::Json,
            "message_id" => Source::MessageId,
            "class" => Source::Class,
            "application" => Source::Application,
            "time" => Source::Time,
            "timestamp" => Source::Timestamp,
            "fields" => Source::Fields,
            _ => match name.strip_prefix("fields.") {
                Some(field) if !field.is_empty() => Source::Field(field.to_owned()),
                _ if name == "recipients" => {
                    return Err("`{recipients}` is a list: it is a whole text of `body.json`".to_owned());
                }
                _ => return Err(format!("`{}` fills no place; these do: {NAMES}", name.escape_debug())),
            },
        })
    }

    /// The value as text. A message without a text uses its subject.
    fn value<'a>(&self, outgoing: &'a Outgoing) -> Cow<'a, str> {
        let (message, content) = (&outgoing.message, &outgoing.message.content);
        let part = |part: &'a Option<String>| part.as_deref().unwrap_or_default();
        match self {
            Source::Address => Cow::from(&*outgoing.address),
            Source::Subject => part(&content.subject).into(),
            Source::Text => content.text.as_deref().map_or_else(|| part(&content.subject), str::trim_end).into(),
            Source::Sms => match &content.sms {
                Some(sms) => sms.trim_end().into(),
                None => Source::Text.value(outgoing),
            },
            Source::Html => part(&content.html).into(),
            Source::MessageId => (&*message.message_id).into(),
            Source::Class => message.facts.class.as_str().into(),
            Source::Application => message.facts.application.as_str().into(),
            Source::Time => message.formatted_at.to_string().into(),
            Source::Timestamp => message.formatted_at.as_millis().div_euclid(1000).to_string().into(),
            Source::Field(name) => match message.facts.fields.get(name) {
                Some(Value::String(text)) => text.into(),
                None | Some(Value::Null) => "".into(),
                Some(value) => value.to_string().into(),
            },
            Source::Json | Source::Fields => self.json(outgoing).into(),
        }
    }

    /// The value as JSON.
    pub fn json(&self, outgoing: &Outgoing) -> String {
        let facts = &outgoing.message.facts;
        match self {
            Source::Json => crate::record::body(&outgoing.message),
            Source::Fields => facts.fields.text().to_owned(),
            Source::Field(name) => facts.fields.get(name).unwrap_or(&Value::Null).to_string(),
            Source::Timestamp => self.value(outgoing).into_owned(),
            _ => Value::from(&*self.value(outgoing)).to_string(),
        }
    }

    /// Adds the parts of a content that it uses, including the substitute for a missing one.
    fn add_used_parts(&self, used: &mut PartsUsed) {
        match self {
            Source::Subject => used.subject = true,
            Source::Text => (used.text, used.subject) = (true, true),
            Source::Sms => (used.sms, used.text, used.subject) = (true, true, true),
            Source::Html => used.html = true,
            Source::Json => used.json = JsonUse::Always,
            _ => {}
        }
    }

    /// Whether its JSON is more than a string.
    pub fn is_json(&self) -> bool {
        matches!(self, Source::Json | Source::Fields | Source::Field(_) | Source::Timestamp)
    }
}

impl Filter {
    fn read(word: &str) -> Result<Filter, String> {
        match word {
            "slack" => Ok(Filter::Slack),
            "html" => Ok(Filter::Html),
            limit => {
                let (unit, number) = match limit.split_once(':') {
                    Some(("utf16", number)) => (Unit::Utf16, number),
                    Some(("bytes", number)) => (Unit::Bytes, number),
                    _ => (Unit::Characters, limit),
                };
                match number.parse() {
                    Ok(most @ 1..=1_000_000) => Ok(Filter::Cut(most, unit)),
                    _ => Err(format!(
                        "`{}` does nothing to a text; give a number of characters up to 1000000, `utf16:` or `bytes:` with a \
                         number, `slack` or `html`",
                        word.escape_debug()
                    )),
                }
            }
        }
    }

    /// `is_markup`: the text is escaped for HTML or Slack already. Bytes in JSON are counted in escaped form.
    fn apply<'a>(&self, text: Cow<'a, str>, escape: Escape, is_markup: bool) -> Cow<'a, str> {
        match self {
            Filter::Cut(most, unit) => {
                let measure = |part: &str| match (unit, escape) {
                    (Unit::Bytes, Escape::Json) => part.chars().map(bytes_in_json).sum(),
                    _ => unit.measure(part),
                };
                match length::cut_by(&text, *most, "…", is_markup, measure) {
                    Cow::Borrowed(kept) if kept.len() == text.len() => text,
                    cut => Cow::Owned(cut.into_owned()),
                }
            }
            Filter::Slack => text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").into(),
            Filter::Html => {
                let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                text.replace('"', "&quot;").replace('\'', "&#39;").into()
            }
        }
    }
}

/// Bytes of a character in a JSON string.
fn bytes_in_json(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        c => c.len_utf8(),
    }
}

fn write_escaped(text: &str, escape: Escape, out: &mut String) {
    match escape {
        Escape::Plain => out.push_str(text),
        Escape::Header => out.extend(text.chars().map(|c| if c.is_control() { ' ' } else { c })),
        Escape::Json => {
            let quoted = serde_json::to_string(text).expect("a text becomes JSON");
            out.push_str(&quoted[1..quoted.len() - 1]);
        }
        Escape::Url | Escape::Form => {
            for byte in text.bytes() {
                match byte {
                    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
                    b' ' if escape == Escape::Form => out.push('+'),
                    _ => write!(out, "%{byte:02X}").expect("writing to memory never fails"),
                }
            }
        }
    }
}

/// JSON with templates as its texts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct JsonTemplate(Vec<JsonPiece>);

#[derive(Debug, Clone, PartialEq)]
enum JsonPiece {
    Raw(String),
    /// The surrounding pieces contain the quotes.
    Text(Template),
    Value(Source),
    /// The list of recipients.
    Recipients,
}

impl JsonTemplate {
    /// Parses every text of the value; a text that is a single JSON placeholder is replaced by the JSON value. The
    /// error has the path, as `.a.b[0]`, and the problem.
    pub fn read(value: &Value, with: &BTreeMap<String, String>) -> Result<JsonTemplate, (String, String)> {
        let mut pieces = Vec::new();
        compile(value, with, "", &mut pieces)?;
        // Adjacent texts are merged into one piece.
        let mut joined: Vec<JsonPiece> = Vec::new();
        for piece in pieces {
            match (joined.last_mut(), piece) {
                (Some(JsonPiece::Raw(before)), JsonPiece::Raw(text)) => before.push_str(&text),
                (_, piece) => joined.push(piece),
            }
        }
        Ok(JsonTemplate(joined))
    }

    /// Adds the parts of a content that it uses.
    pub fn add_used_parts(&self, used: &mut PartsUsed) {
        for piece in &self.0 {
            match piece {
                JsonPiece::Raw(_) | JsonPiece::Recipients => {}
                JsonPiece::Text(template) => template.add_used_parts(used),
                JsonPiece::Value(source) => source.add_used_parts(used),
            }
        }
    }

    /// Whether it depends on the recipient.
    pub fn is_personal(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, JsonPiece::Text(template) if template.is_personal()))
    }

    /// Whether it contains the list of recipients.
    pub fn has_recipients(&self) -> bool {
        self.0.contains(&JsonPiece::Recipients)
    }

    /// The JSON with the values of this message and this list of recipients.
    pub fn fill(&self, outgoing: &Outgoing, recipients: &str) -> String {
        let mut out = String::new();
        for piece in &self.0 {
            match piece {
                JsonPiece::Recipients => out.push_str(recipients),
                JsonPiece::Raw(text) => out.push_str(text),
                JsonPiece::Text(template) => template.write(outgoing, Escape::Json, &mut out),
                JsonPiece::Value(source) => out.push_str(&source.json(outgoing)),
            }
        }
        out
    }
}

fn compile(
    value: &Value,
    with: &BTreeMap<String, String>,
    at: &str,
    out: &mut Vec<JsonPiece>,
) -> Result<(), (String, String)> {
    let raw = |text: String| JsonPiece::Raw(text);
    match value {
        Value::String(text) if text == RECIPIENTS => out.push(JsonPiece::Recipients),
        Value::String(text) => {
            let template = Template::read(text, with).map_err(|wrong| (at.to_owned(), wrong))?;
            match (template.constant(), template.place().filter(|source| source.is_json())) {
                (Some(text), _) => out.push(raw(Value::from(text).to_string())),
                (_, Some(source)) => out.push(JsonPiece::Value(source.clone())),
                _ => out.extend([raw("\"".into()), JsonPiece::Text(template), raw("\"".into())]),
            }
        }
        Value::Array(items) => {
            out.push(raw("[".into()));
            for (number, item) in items.iter().enumerate() {
                if number > 0 {
                    out.push(raw(",".into()));
                }
                compile(item, with, &format!("{at}[{number}]"), out)?;
            }
            out.push(raw("]".into()));
        }
        Value::Object(entries) => {
            out.push(raw("{".into()));
            for (number, (key, item)) in entries.iter().enumerate() {
                let comma = if number > 0 { "," } else { "" };
                out.push(raw(format!("{comma}{}:", Value::from(&**key))));
                compile(item, with, &format!("{at}.{key}"), out)?;
            }
            out.push(raw("}".into()));
        }
        scalar => out.push(raw(scalar.to_string())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::outgoing;

    fn check(text: &str, escape: Escape, expected: &str) {
        let with = BTreeMap::from([("sid".to_owned(), "AC1/ü".to_owned())]);
        let shown = match Template::read(text, &with) {
            Ok(template) => template.fill(&outgoing(7, "+43 1&2"), escape),
            Err(wrong) => wrong,
        };
        assert_eq!(shown, expected, "{text}");
    }

    #[test]
    fn places_are_filled_in_and_escaped_for_where_they_stand() {
        check("to={address}&x={fields.magnitude}", Escape::Form, "to=%2B43+1%262&x=6.1");
        check(
            "/a/{address}/{fields.place}?q={nothing}",
            Escape::Url,
            "`nothing` fills no place; these do: `address`, `subject`, `text`, `sms`, `html`, `json`, `message_id`, `class`, `application`, `time`, `timestamp`, `fields` and `fields.<name>`",
        );
        check("/a/{address}/{fields.place}", Escape::Url, "/a/%2B43%201%262/Kobe");
        check("{with.sid}-{fields.none}-", Escape::Url, "AC1/ü--");
        check("{with.token}", Escape::Plain, "`token` is not given in `with`");
        check("{text}", Escape::Header, "Magnitude 6.1 . Stay safe – 神戸");
        check("{text}", Escape::Json, r"Magnitude 6.1\n.\nStay safe – 神戸");
        check("{text|12}", Escape::Plain, "Magnitude 6…");
        check("{text|utf16:12}", Escape::Plain, "Magnitude 6…");
        check("{text|bytes:12}", Escape::Plain, "Magnitude…");
        check("{text|bytes:18}", Escape::Json, r"Magnitude 6.1\n…");
        check("{html|slack|9}", Escape::Plain, "&lt;p…");
        check("{html|slack|8}", Escape::Plain, "&lt;p…");
        check("{html|slack|4}", Escape::Plain, "…");
        check("{html|slack}", Escape::Plain, "&lt;p&gt;Magnitude &lt;b&gt;6.1&lt;/b&gt;&lt;/p&gt;");
        check(
            "{{{message_id}}} at {time}, {timestamp}",
            Escape::Plain,
            "{n-7-7.test} at 2026-11-21T09:30:00Z, 1795253400",
        );
        check("{class} of {application}", Escape::Plain, "quake of quakes");
        for wrong in [
            "{",
            "}",
            "a { b",
            "{text",
            "{text|}",
            "{text|0}",
            "{text|shout}",
            "{text|utf16}",
            "{text|bytes:0}",
            "{text|words:3}",
            "{}",
            "{fields.}",
        ] {
            assert!(Template::read(wrong, &BTreeMap::new()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn json_stays_valid_for_any_value() {
        let value = json!({"to": "{address}", "n": [1, "{fields.magnitude}", "m {fields.magnitude}"], "all": "{fields}", "{text}": null});
        let template = JsonTemplate::read(&value, &BTreeMap::new()).expect("a template");
        let mut message = outgoing(7, "\"}],\n\u{0}\u{2028}");
        let filled: Value = serde_json::from_str(&template.fill(&message, "")).expect("JSON");
        assert_eq!(
            filled,
            json!({"to": "\"}],\n\u{0}\u{2028}", "n": [1, 6.1, "m 6.1"], "all": {"magnitude": 6.1, "place": "Kobe"}, "{text}": null})
        );
        message.address = "x".into();
        assert!(
            template.fill(&message, "").starts_with(r#"{"to":"x","#)
                || template.fill(&message, "").contains(r#""to":"x""#)
        );
        let wrong = JsonTemplate::read(&json!({"a": [{"b": "{nope}"}]}), &BTreeMap::new()).expect_err("a wrong name");
        assert_eq!(wrong.0, ".a[0].b");
    }
}
