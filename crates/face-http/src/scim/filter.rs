//! Filters (RFC 7644, 3.4.2.2): parsing, evaluation, and translation to directory filters.

use std::{cell::Cell, sync::LazyLock};

use serde_json::Value as Json;
use tocsin_directory::{filter::Filter as Lookup, schema::Schema, syntax::Rule};
use tocsin_model::time::Timestamp;

use super::{
    body::Resource,
    error::ScimError,
    schema::{Attribute, Kind, Path, ResourceType},
};

/// Maximum nesting of brackets, and maximum comparisons.
const DEPTH_MAX: usize = 32;
const COMPARISONS_MAX: usize = 200;
/// Longest filter, in bytes.
const BYTES_MAX: usize = 64 * 1024;

/// A filter expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Filter {
    And(Vec<Filter>),
    Or(Vec<Filter>),
    Not(Box<Filter>),
    Present(Path),
    Compare(Path, Operator, Json),
    /// A single value of a multi-valued attribute satisfies the whole filter.
    Within(Path, Box<Filter>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    NotEqual,
    Contains,
    StartsWith,
    EndsWith,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

impl Operator {
    fn read(word: &str) -> Option<Operator> {
        Some(match word.to_ascii_lowercase().as_str() {
            "eq" => Operator::Equal,
            "ne" => Operator::NotEqual,
            "co" => Operator::Contains,
            "sw" => Operator::StartsWith,
            "ew" => Operator::EndsWith,
            "gt" => Operator::Greater,
            "ge" => Operator::GreaterOrEqual,
            "lt" => Operator::Less,
            "le" => Operator::LessOrEqual,
            _ => return None,
        })
    }
}

/// Scope in which attribute names are resolved.
#[derive(Clone, Copy)]
enum Names {
    /// Attributes of one resource type.
    Of(&'static ResourceType),
    /// Attributes of a resource type, and those of the other types.
    InAll(&'static ResourceType),
    /// The parts of an attribute.
    PartsOf(Path),
}

/// The target of a change: RFC 7644, 3.5.2.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    pub(super) path: Path,
    /// Filter of its values; `None`: all.
    pub(super) filter: Option<Filter>,
    /// The part of each that is meant.
    pub(super) part: Option<&'static Attribute>,
}

/// Reads a filter.
///
/// # Errors
/// `invalidFilter`, with the place and what would be right.
pub(super) fn read(text: &str, kind: &'static ResourceType) -> Result<Filter, ScimError> {
    read_of(text, Names::Of(kind))
}

/// Reads a filter for resources of all kinds.
///
/// # Errors
/// As `read`.
pub(super) fn read_in_all(text: &str, kind: &'static ResourceType) -> Result<Filter, ScimError> {
    read_of(text, Names::InAll(kind))
}

fn read_of(text: &str, names: Names) -> Result<Filter, ScimError> {
    if text.len() > BYTES_MAX {
        return Err(ScimError::bad("invalidFilter", format!("the filter is longer than {BYTES_MAX} bytes")));
    }
    let mut reader = Reader { text, at: 0, comparisons: 0, wrong: "invalidFilter" };
    let filter = reader.any(names, 0)?;
    reader.end()?;
    Ok(filter)
}

/// Reads the path of a change.
///
/// # Errors
/// `invalidPath`, with the place and what would be right.
pub(super) fn target(text: &str, kind: &'static ResourceType) -> Result<Target, ScimError> {
    let mut reader = Reader { text: text.trim(), at: 0, comparisons: 0, wrong: "invalidPath" };
    let path = reader.path(Names::Of(kind))?;
    let filter = match reader.takes('[') {
        true => Some(reader.within(path, 0)?),
        false => None,
    };
    let mut part = path.part;
    if filter.is_some() && reader.takes('.') {
        part = reader.part_of(path)?.part;
    }
    reader.end()?;
    Ok(Target { path: Path { part: None, ..path }, filter, part })
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    comparisons: usize,
    /// The `scimType` of what is wrong.
    wrong: &'static str,
}

impl<'a> Reader<'a> {
    fn error(&self, what: &str) -> ScimError {
        ScimError::bad(self.wrong, format!("at character {}: {what}", self.text[..self.at].chars().count() + 1))
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn spaces(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn takes(&mut self, requested: char) -> bool {
        let is_next = self.rest().starts_with(requested);
        if is_next {
            self.at += requested.len_utf8();
        }
        is_next
    }

    /// Consumes a word at the current position, unless it is the prefix of a longer word.
    fn takes_word(&mut self, requested: &str) -> bool {
        let rest = self.rest();
        let is_next = rest.get(..requested.len()).is_some_and(|start| start.eq_ignore_ascii_case(requested))
            && rest[requested.len()..].chars().next().is_none_or(|next| next.is_whitespace() || "()]".contains(next));
        if is_next {
            self.at += requested.len();
        }
        is_next
    }

    fn end(&mut self) -> Result<(), ScimError> {
        self.spaces();
        match self.rest() {
            "" => Ok(()),
            rest => Err(self.error(&format!("`{}` is too much", rest.chars().take(20).collect::<String>()))),
        }
    }

    fn any(&mut self, names: Names, depth: usize) -> Result<Filter, ScimError> {
        let mut parts = vec![self.all(names, depth)?];
        loop {
            self.spaces();
            if !self.takes_word("or") {
                break;
            }
            parts.push(self.all(names, depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Filter::Or(parts) })
    }

    fn all(&mut self, names: Names, depth: usize) -> Result<Filter, ScimError> {
        let mut parts = vec![self.one(names, depth)?];
        loop {
            self.spaces();
            if !self.takes_word("and") {
                break;
            }
            parts.push(self.one(names, depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Filter::And(parts) })
    }

    fn one(&mut self, names: Names, depth: usize) -> Result<Filter, ScimError> {
        if depth >= DEPTH_MAX {
            return Err(self.error(&format!("brackets nest deeper than {DEPTH_MAX}")));
        }
        self.spaces();
        if self.takes_word("not") {
            self.spaces();
            if !self.takes('(') {
                return Err(self.error("`not` wants brackets: not (...)"));
            }
            return Ok(Filter::Not(Box::new(self.bracket(names, depth)?)));
        }
        if self.takes('(') {
            return self.bracket(names, depth);
        }
        self.comparison(names, depth)
    }

    fn bracket(&mut self, names: Names, depth: usize) -> Result<Filter, ScimError> {
        let inner = self.any(names, depth + 1)?;
        self.spaces();
        if self.takes(')') { Ok(inner) } else { Err(self.error("`)` is missing")) }
    }

    fn within(&mut self, path: Path, depth: usize) -> Result<Filter, ScimError> {
        if path.part.is_some() || path.attribute.parts().is_empty() || !path.attribute.many {
            return Err(self.error(&format!("`{}` has no parts to choose by", path.attribute.name)));
        }
        let inner = self.any(Names::PartsOf(path), depth + 1)?;
        self.spaces();
        if self.takes(']') { Ok(inner) } else { Err(self.error("`]` is missing")) }
    }

    fn name(&mut self) -> &'a str {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '$' | '-' | '_' | ':' | '.');
        let rest = self.rest();
        let length = rest.find(|c: char| !is_of_name(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn path(&mut self, names: Names) -> Result<Path, ScimError> {
        let start = self.at;
        let name = self.name();
        let found = match names {
            Names::Of(kind) => kind.resolve(name),
            Names::InAll(kind) => kind.resolve_in_all(name),
            Names::PartsOf(path) => path.attribute.part(name).map(|part| Path { part: Some(part), ..path }),
        };
        found.ok_or_else(|| {
            self.at = start;
            let what = match names {
                _ if name.is_empty() => "the name of an attribute is missing".to_owned(),
                Names::Of(kind) => format!("a {} has no attribute `{name}`", kind.name),
                Names::InAll(_) => format!("no resource has an attribute `{name}`"),
                Names::PartsOf(path) => format!("`{}` has no part `{name}`", path.attribute.name),
            };
            self.error(&what)
        })
    }

    fn comparison(&mut self, names: Names, depth: usize) -> Result<Filter, ScimError> {
        self.comparisons += 1;
        if self.comparisons > COMPARISONS_MAX {
            return Err(self.error(&format!("there are more than {COMPARISONS_MAX} comparisons")));
        }
        let path = self.path(names)?;
        if self.takes('[') {
            let inner = self.within(path, depth)?;
            // Not of the RFC, but sent by some: a comparison of a part of the value that is chosen.
            let chosen = match self.takes('.') {
                true => Filter::And(vec![inner, self.part_of(path).and_then(|path| self.operation(path))?]),
                false => inner,
            };
            return Ok(Filter::Within(path, Box::new(chosen)));
        }
        self.operation(path)
    }

    /// The sub-attribute named at the current position.
    fn part_of(&mut self, path: Path) -> Result<Path, ScimError> {
        let name = self.name();
        let found = path.attribute.part(name).map(|part| Path { part: Some(part), ..path });
        found.ok_or_else(|| self.error(&format!("`{}` has no part `{name}`", path.attribute.name)))
    }

    /// The part behind a path: `pr`, or an operator and a value.
    fn operation(&mut self, path: Path) -> Result<Filter, ScimError> {
        self.spaces();
        if self.takes_word("pr") {
            return Ok(Filter::Present(path));
        }
        let start = self.at;
        let word = self.name();
        let Some(operator) = Operator::read(word) else {
            self.at = start;
            return Err(
                self.error(&format!("`{word}` is no operator; they are eq, ne, co, sw, ew, pr, gt, ge, lt, le"))
            );
        };
        self.spaces();
        let value = truth(path, self.value()?);
        fits(path, operator, &value).map_err(|why| self.error(&why))?;
        Ok(Filter::Compare(path, operator, value))
    }

    /// A value as JSON writes it.
    fn value(&mut self) -> Result<Json, ScimError> {
        let rest = self.rest();
        let ends = |c: char| c.is_whitespace() || matches!(c, ')' | ']');
        let word = rest.split(ends).next().unwrap_or_default();
        let found = match rest.starts_with('"') {
            true => {
                let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Json>();
                values.next().and_then(Result::ok).map(|value| (value, values.byte_offset()))
            }
            false => serde_json::from_str::<Json>(word).ok().map(|value| (value, word.len())),
        };
        match found {
            Some((value, length)) if !value.is_object() && !value.is_array() => {
                self.at += length;
                Ok(value)
            }
            _ => Err(self.error("a value is missing: \"text\", true, false, null or a number")),
        }
    }
}

/// The attribute that a comparison uses: of a complex attribute, its `value`.
fn compared(path: Path) -> Result<&'static Attribute, String> {
    match path.part {
        Some(part) => Ok(part),
        None if path.attribute.parts().is_empty() => Ok(path.attribute),
        None => path.attribute.part("value").ok_or_else(|| {
            let parts: Vec<_> = path.attribute.parts().iter().map(|part| part.name).collect();
            format!("`{}` has parts; compare one of them: {}", path.attribute.name, parts.join(", "))
        }),
    }
}

/// A boolean that a client wrote as text, such as "True".
fn truth(path: Path, value: Json) -> Json {
    match &value {
        Json::String(text) if compared(path).is_ok_and(|attribute| attribute.kind == Kind::Boolean) => {
            let known = [("true", true), ("false", false)];
            let found = known.into_iter().find(|(word, _)| text.eq_ignore_ascii_case(word));
            found.map_or(value, |(_, is)| Json::Bool(is))
        }
        _ => value,
    }
}

fn fits(path: Path, operator: Operator, value: &Json) -> Result<(), String> {
    let attribute = compared(path)?;
    if attribute.mutability == super::schema::Mutability::WriteOnly {
        return Err(format!("`{}` cannot be asked for", attribute.name));
    }
    let is_equality = matches!(operator, Operator::Equal | Operator::NotEqual);
    match (attribute.kind, value) {
        (_, Json::Null) if is_equality => Ok(()),
        (Kind::Boolean, Json::Bool(_)) if is_equality => Ok(()),
        (Kind::Boolean, _) => Err(format!("`{}` is compared by eq and ne with true and false", attribute.name)),
        (Kind::Binary, Json::String(_)) if is_equality => Ok(()),
        (Kind::Binary, _) => Err(format!("`{}` is compared by eq and ne with text", attribute.name)),
        (Kind::DateTime, Json::String(text)) if text.parse::<Timestamp>().is_ok() => Ok(()),
        (Kind::DateTime, _) => {
            Err(format!("`{}` is compared with a time such as \"2026-05-01T00:00:00Z\"", attribute.name))
        }
        (_, Json::String(_)) => Ok(()),
        (_, _) => Err(format!("`{}` is compared with text in quotation marks", attribute.name)),
    }
}

/// Most work of one evaluation, in bytes of text that are compared.
pub(super) const WORK_MAX: u64 = 16 << 20;
/// The cost of a comparison beside its text.
const COMPARING: u64 = 16;

/// Remaining work budget of filter evaluations: one budget for each resource of a list, or for a whole PATCH.
#[derive(Debug)]
pub(super) struct Work(Cell<u64>);

impl Default for Work {
    fn default() -> Self {
        Work(Cell::new(WORK_MAX))
    }
}

impl Work {
    /// Charges work. Returns false once the budget is exhausted.
    fn take(&self, bytes: usize) -> bool {
        self.0.set(self.0.get().saturating_sub(COMPARING + bytes as u64));
        self.0.get() > 0
    }

    /// The amount that was taken.
    pub(super) fn done(&self) -> u64 {
        WORK_MAX - self.0.get()
    }

    /// Rejects an evaluation that exhausted its budget; it has no valid result.
    pub(super) fn check(&self) -> Result<(), ScimError> {
        match self.0.get() > 0 {
            true => Ok(()),
            false => Err(ScimError::bad(
                "tooMany",
                "the filters take too much work on one resource: use fewer comparisons on attributes with long or many values",
            )),
        }
    }
}

impl Filter {
    /// Whether a resource meets it; anything, once the work is spent.
    pub(super) fn is_met_by(&self, resource: &Resource, work: &Work) -> bool {
        self.holds(&|path| values(resource, path), work)
    }

    /// Whether one value of an attribute satisfies the filter in `[...]`.
    pub(super) fn is_met_by_value(&self, value: &Json, work: &Work) -> bool {
        self.holds(&|path| path.part.and_then(|part| value.get(part.name)).into_iter().collect(), work)
    }

    fn holds<'a>(&self, values: &dyn Fn(Path) -> Vec<&'a Json>, work: &Work) -> bool {
        match self {
            Filter::And(parts) => parts.iter().all(|part| part.holds(values, work)),
            Filter::Or(parts) => parts.iter().any(|part| part.holds(values, work)),
            Filter::Not(part) => !part.holds(values, work),
            Filter::Present(path) => !values(*path).is_empty(),
            Filter::Within(path, part) => {
                values(*path).into_iter().any(|value| work.take(0) && part.is_met_by_value(value, work))
            }
            Filter::Compare(path, Operator::NotEqual, requested) => !equal(*path, &values(*path), requested, work),
            Filter::Compare(path, Operator::Equal, requested) => equal(*path, &values(*path), requested, work),
            Filter::Compare(path, operator, requested) => {
                values(*path).into_iter().any(|value| compare(*path, value, *operator, requested, work))
            }
        }
    }

    /// Whether the filter tests an attribute.
    pub(super) fn references(&self, name: &str) -> bool {
        match self {
            Filter::And(parts) | Filter::Or(parts) => parts.iter().any(|part| part.references(name)),
            Filter::Not(part) => part.references(name),
            Filter::Present(path) | Filter::Compare(path, ..) | Filter::Within(path, _) => path.attribute.name == name,
        }
    }

    /// The values that one part of an attribute must have, one of them; `None`: it does not say so.
    pub(super) fn exact_values(&self, part: &str) -> Option<Vec<&str>> {
        match self {
            Filter::Compare(path, Operator::Equal, Json::String(text)) => {
                (compared(*path).ok()?.name == part).then(|| vec![text.as_str()])
            }
            Filter::Or(parts) => {
                let all = parts.iter().map(|found| found.exact_values(part)).collect::<Option<Vec<_>>>()?;
                Some(all.into_iter().flatten().collect())
            }
            _ => None,
        }
    }

    /// Equality conditions on the sub-attributes: for `[type eq "work"]` the type.
    pub(super) fn conditions(&self) -> Vec<(&'static str, &Json)> {
        match self {
            Filter::And(parts) => parts.iter().flat_map(Filter::conditions).collect(),
            Filter::Compare(path, Operator::Equal, value) => {
                path.part.map(|part| (part.name, value)).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// A directory filter that matches at least every entry that this filter matches; `None`: no narrowing is possible.
    /// `known` returns the name of an entry by its id.
    pub(super) fn narrower(&self, known: &dyn Fn(&str) -> Option<String>) -> Option<Lookup> {
        match self {
            Filter::And(parts) => {
                let all: Vec<_> = parts.iter().filter_map(|part| part.narrower(known)).collect();
                (!all.is_empty()).then_some(Lookup::And(all))
            }
            Filter::Or(parts) => {
                parts.iter().map(|part| part.narrower(known)).collect::<Option<Vec<_>>>().map(Lookup::Or)
            }
            Filter::Within(path, part) => {
                let values = part.exact_values("value")?;
                let each = values.into_iter().map(|value| lookup(*path, Operator::Equal, value, known));
                each.collect::<Option<Vec<_>>>().map(Lookup::Or)
            }
            Filter::Compare(path, operator, Json::String(text)) => lookup(*path, *operator, text, known),
            _ => None,
        }
    }

    /// The ids that are asked for as values of an attribute, so that their entries can be found first.
    pub(super) fn ids_of(&self, attribute: &str, ids: &mut Vec<String>) {
        match self {
            Filter::And(parts) | Filter::Or(parts) => parts.iter().for_each(|part| part.ids_of(attribute, ids)),
            Filter::Not(part) => part.ids_of(attribute, ids),
            Filter::Within(path, part) if path.attribute.name == attribute => {
                ids.extend(part.exact_values("value").unwrap_or_default().into_iter().map(str::to_owned));
            }
            Filter::Compare(path, Operator::Equal, Json::String(text)) if path.attribute.name == attribute => {
                ids.push(text.clone());
            }
            _ => {}
        }
    }

    /// The single id that the filter requires, if any.
    pub(super) fn only_id(&self) -> Option<&str> {
        match self {
            Filter::And(parts) => parts.iter().find_map(Filter::only_id),
            Filter::Compare(path, Operator::Equal, Json::String(text)) if path.attribute.name == "id" => Some(text),
            _ => None,
        }
    }
}

fn lookup(path: Path, operator: Operator, text: &str, known: &dyn Fn(&str) -> Option<String>) -> Option<Lookup> {
    let attribute = compared(path).ok()?;
    let is_value = attribute.name == "value" || path.attribute.parts().is_empty();
    let indexed = match (path.attribute.name, path.part.map(|part| part.name)) {
        ("userName", None) => "uid",
        ("externalId", None) => "scimExternalId",
        ("name", Some("familyName")) => "sn",
        // Mail addresses in LDAP are ASCII.
        ("emails", _) if is_value && text.is_ascii() => "mail",
        ("groups", _) if is_value => "memberOf",
        ("members", _) if is_value => "member",
        _ => return None,
    };
    let value = match indexed {
        // An unknown name matches no entry.
        "memberOf" | "member" => known(text).unwrap_or_else(|| "cn=nobody".to_owned()),
        _ => text.to_owned(),
    };
    let equal = |name: &str| Lookup::Equal(name.to_owned(), value.clone().into_bytes());
    match operator {
        Operator::Equal if indexed == "member" => Some(Lookup::Or(vec![equal("member"), equal("uniqueMember")])),
        Operator::Equal => Some(equal(indexed)),
        Operator::StartsWith if indexed == "uid" && !text.is_empty() && text.trim() == text => {
            Some(Lookup::Substrings(indexed.to_owned(), Some(value.into_bytes()), Vec::new(), None))
        }
        _ => None,
    }
}

/// The values at a path, each once for each value of its attribute.
pub(super) fn values(resource: &Resource, path: Path) -> Vec<&Json> {
    let holder = match path.extension {
        Some(schema) => resource.get(schema).and_then(Json::as_object),
        None => Some(resource),
    };
    let Some(found) = holder.and_then(|holder| holder.get(path.attribute.name)) else { return Vec::new() };
    let each = match found {
        Json::Array(values) => values.iter().collect(),
        one => vec![one],
    };
    match path.part {
        Some(part) => each.into_iter().filter_map(|value| value.get(part.name)).collect(),
        None => each,
    }
}

fn equal(path: Path, found: &[&Json], requested: &Json, work: &Work) -> bool {
    match requested {
        Json::Null => found.is_empty(),
        requested => found.iter().any(|value| compare(path, value, Operator::Equal, requested, work)),
    }
}

fn compare(path: Path, found: &Json, operator: Operator, requested: &Json, work: &Work) -> bool {
    let Ok(attribute) = compared(path) else { return false };
    let found = match found {
        Json::Object(parts) => match parts.get(attribute.name) {
            Some(part) => part,
            None => return false,
        },
        found => found,
    };
    let (Json::String(found), Json::String(requested)) = (found, requested) else {
        return work.take(0) && found == requested;
    };
    if !work.take(found.len() + requested.len()) {
        return false;
    }
    if attribute.kind == Kind::DateTime {
        let (Ok(found), Ok(requested)) = (found.parse::<Timestamp>(), requested.parse::<Timestamp>()) else {
            return false;
        };
        return ordered(operator, found.cmp(&requested)).unwrap_or(false);
    }
    if attribute.unique && matches!(operator, Operator::Equal | Operator::NotEqual) {
        return ordered(operator, name_key(found).cmp(&name_key(requested))).unwrap_or(false);
    }
    let folded = |text: &str| if attribute.exact { text.to_owned() } else { text.to_lowercase() };
    let (found, requested) = (folded(found), folded(requested));
    match operator {
        Operator::Contains => found.contains(&requested),
        Operator::StartsWith => found.starts_with(&requested),
        Operator::EndsWith => found.ends_with(&requested),
        operator => ordered(operator, found.cmp(&requested)).unwrap_or(false),
    }
}

/// A name as the directory compares names. Otherwise a filter would not find the resource whose name is refused to another one, such
/// as `é` in one character and in two.
fn name_key(text: &str) -> Vec<u8> {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(Schema::standard);
    Rule::CaseIgnore.normal(text.as_bytes(), &SCHEMA).unwrap_or_else(|| text.to_lowercase().into_bytes())
}

fn ordered(operator: Operator, order: std::cmp::Ordering) -> Option<bool> {
    Some(match operator {
        Operator::Equal => order.is_eq(),
        Operator::NotEqual => order.is_ne(),
        Operator::Greater => order.is_gt(),
        Operator::GreaterOrEqual => order.is_ge(),
        Operator::Less => order.is_lt(),
        Operator::LessOrEqual => order.is_le(),
        Operator::Contains | Operator::StartsWith | Operator::EndsWith => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::schema::USER, *};

    fn check(text: &str, expected: Result<bool, &str>) {
        let vera = json!({
            "id": "7", "userName": "Vera", "active": true, "name": {"familyName": "Muster"}, "title": "Dr",
            "emails": [{"value": "v@work.example", "type": "work", "primary": true}, {"value": "v@home.example", "type": "home"}],
            "meta": {"lastModified": "2026-05-01T10:00:00Z"},
            "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User": {"department": "Legal"},
        });
        let found =
            read(text, &USER).map(|filter| filter.is_met_by(vera.as_object().expect("an object"), &Work::default()));
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
            (Err(error), Err(why)) => assert!(error.detail.contains(why), "{text}: {}", error.detail),
            (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn filters_are_evaluated() {
        check("userName eq \"vera\"", Ok(true));
        check("USERNAME EQ \"vera\" and not (active eq false)", Ok(true));
        check("id eq \"7\" or id eq \"8\"", Ok(true));
        check("userName sw \"VE\" and userName ew \"ra\" and userName co \"er\"", Ok(true));
        check("nickName pr", Ok(false));
        check("not (nickName pr)", Ok(true));
        check("nickName eq null", Ok(true));
        check("nickName ne \"x\"", Ok(true));
        check("title ne \"dr\"", Ok(false));
        check("active eq \"True\"", Ok(true));
        check("emails[primary eq \"True\"]", Ok(true));
        check("emails[primary eq \"FALSE\"]", Ok(false));
        check("department eq \"legal\"", Ok(true));
        check("name.familyName gt \"Mu\" and name.familyName lt \"mz\"", Ok(true));
        check("emails co \"home\"", Ok(true));
        check("emails.type eq \"work\"", Ok(true));
        check("emails[type eq \"work\" and value co \"work\"]", Ok(true));
        check("emails[type eq \"work\" and value co \"home\"]", Ok(false));
        check("emails[type eq \"work\"].value co \"work\"", Ok(true));
        check("emails[type eq \"work\"].value co \"home\" or emails[type eq \"home\"].value pr", Ok(true));
        check("emails[type eq \"work\"].value co \"home\"", Ok(false));
        check("emails[type eq \"work\"].shape co \"home\"", Err("no part `shape`"));
        check("emails[type eq \"home\" and not (primary eq true)]", Ok(true));
        check("meta.lastModified ge \"2026-05-01T12:00:00+02:00\"", Ok(true));
        check("meta.lastModified gt \"2026-05-01T10:00:00Z\"", Ok(false));
        check("urn:ietf:params:scim:schemas:core:2.0:User:userName eq \"vera\"", Ok(true));
        check("urn:ietf:params:scim:schemas:extension:enterprise:2.0:User:department sw \"leg\"", Ok(true));
        check("userName eq \"  VERA \"", Ok(true));
        check("userName ne \"\u{ff36}era\"", Ok(false));
        check("title pr or nickName pr and userName eq \"nobody\"", Ok(true));
        check("(title pr or nickName pr) and userName eq \"nobody\"", Ok(false));
    }

    #[test]
    fn a12_a_filter_costs_a_bounded_amount_of_work() {
        let long = json!({"userName": "vera", "emails": vec![json!({"value": "x".repeat(1_000)}); 1_000]});
        let many = (0..100).map(|_| "emails.value co \"y\"").collect::<Vec<_>>().join(" or ");
        let check = |text: &str, is_bounded: bool| {
            let work = Work::default();
            read(text, &USER).expect("a filter").is_met_by(long.as_object().expect("an object"), &work);
            assert_eq!(work.check().is_err(), is_bounded, "{text}: {}", work.done());
        };
        check("emails.value co \"y\"", false);
        check(&many, true);
    }

    #[test]
    fn what_makes_no_sense_is_told_with_its_place() {
        check("", Err("at character 1: the name of an attribute is missing"));
        check("shoeSize eq \"44\"", Err("a User has no attribute `shoeSize`"));
        check("userName is \"x\"", Err("at character 10: `is` is no operator"));
        check("userName eq vera", Err("at character 13: a value is missing"));
        check("userName eq \"vera", Err("a value is missing"));
        check("userName eq \"vera\" title pr", Err("at character 20: `title pr` is too much"));
        check("(userName pr", Err("`)` is missing"));
        check("emails[type eq \"work\"", Err("`]` is missing"));
        check("emails[shape eq \"work\"]", Err("`emails` has no part `shape`"));
        check("userName[value eq \"x\"]", Err("no parts to choose by"));
        check("not userName pr", Err("`not` wants brackets"));
        check("active gt true", Err("compared by eq and ne"));
        check("active eq \"yes\"", Err("with true and false"));
        check("name[familyName eq \"x\"]", Err("no parts to choose by"));
        check("meta.created gt \"yesterday\"", Err("compared with a time"));
        check("name eq \"Vera\"", Err("has parts; compare one of them: formatted"));
        check("userName eq 7", Err("text in quotation marks"));
        check("password eq \"x\"", Err("cannot be asked for"));
        check(&format!("{}userName pr{}", "(".repeat(40), ")".repeat(40)), Err("nest deeper than 32"));
        check(&["title pr"; 300].join(" or "), Err("more than 200 comparisons"));
    }

    #[test]
    fn the_directory_filter_matches_every_matching_resource() {
        let narrower = |text: &str| read(text, &USER).expect("a filter").narrower(&|_| None);
        let equal = |name: &str, value: &str| Lookup::Equal(name.into(), value.into());
        assert_eq!(narrower("userName eq \"vera\""), Some(equal("uid", "vera")));
        assert_eq!(narrower("title pr and emails.value eq \"a@b.c\""), Some(Lookup::And(vec![equal("mail", "a@b.c")])));
        assert_eq!(narrower("emails[value eq \"a@b.c\" and type eq \"work\"]"), None);
        assert_eq!(narrower("emails[value eq \"a@b.c\"]"), Some(Lookup::Or(vec![equal("mail", "a@b.c")])));
        assert_eq!(narrower("emails.type eq \"work\""), None);
        assert_eq!(narrower("userName eq \"a\" or title pr"), None);
        assert_eq!(narrower("not (userName eq \"a\")"), None);
        assert_eq!(narrower("userName ne \"a\""), None);
    }
}
