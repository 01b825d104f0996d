//! Random requests to a small directory, and the errors that each permits.

use std::collections::{BTreeMap, BTreeSet};

use tocsin_directory::filter::Filter;

use super::client::{Client, attribute, filter, nested, normal, text};

pub const CONTAINERS: &[&str] = &["o=site", "ou=people,o=site", "ou=One,o=site", "ou=two,ou=one,o=site"];
const NAMES: &[&str] = &["a", "B", "A b", "c\\,d", "ü", "e\\+f", "\\#g"];
const CLASSES: &[&str] = &["inetOrgPerson", "person", "organizationalRole", "inetOrgPerson", "nobody"];
const VALUES: &[&str] = &[
    "alpha",
    "Alpha",
    " alpha  beta ",
    "beta",
    "b*c(d)",
    "ü",
    "7",
    "-7",
    "+1 23-4",
    "a@example.org",
    "cn=a,o=site",
    "x",
];
const ATTRIBUTES: &[&str] =
    &["description", "title", "mail", "employeeNumber", "l", "seeAlso", "sn", "givenName", "cn"];

/// A random request.
#[derive(Debug, Clone)]
pub enum Request {
    Add { dn: String, given: Vec<(String, Vec<String>)> },
    Modify { dn: String, changes: Vec<Change> },
    Rename { dn: String, rdn: String, delete_old: bool, above: Option<&'static str> },
    Delete { dn: String },
    Compare { dn: String, attribute: &'static str, value: &'static str },
    Search { base: String, scope: u8, filter: Filter },
}

/// A modification: add, delete or replace (0, 1, 2), an attribute, and values.
pub type Change = (u8, &'static str, Vec<String>);

fn one(random: &mut fastrand::Rng, of: &[&'static str]) -> &'static str {
    random.choice(of).copied().expect("some")
}

fn name(random: &mut fastrand::Rng) -> String {
    format!("cn={},{}", one(random, NAMES), one(random, CONTAINERS))
}

fn values(random: &mut fastrand::Rng, most: usize) -> Vec<String> {
    (0..random.usize(..=most)).map(|_| one(random, VALUES).to_owned()).collect()
}

impl Request {
    /// Draws a request.
    pub fn random(random: &mut fastrand::Rng) -> Request {
        match random.u8(..20) {
            0..5 => Request::random_add(random),
            5..9 => {
                let change = |random: &mut fastrand::Rng| (random.u8(..3), one(random, ATTRIBUTES), values(random, 2));
                Request::Modify { dn: name(random), changes: (0..random.usize(1..4)).map(|_| change(random)).collect() }
            }
            9 => Request::Rename {
                dn: name(random),
                rdn: format!("cn={}", one(random, NAMES)),
                delete_old: random.bool(),
                above: random.bool().then(|| one(random, CONTAINERS)),
            },
            10 => Request::Delete { dn: name(random) },
            11 => Request::Compare { dn: name(random), attribute: one(random, ATTRIBUTES), value: one(random, VALUES) },
            _ => {
                let base = if random.u8(..4) == 0 { name(random) } else { one(random, CONTAINERS).to_owned() };
                Request::Search { base, scope: random.u8(..3), filter: random_filter(random, 3) }
            }
        }
    }

    fn random_add(random: &mut fastrand::Rng) -> Request {
        let (rdn, above, class) = (one(random, NAMES), one(random, CONTAINERS), one(random, CLASSES));
        let plain = rdn.replace('\\', "");
        let mut given = vec![("objectClass".to_owned(), vec![class.to_owned()]), ("cn".to_owned(), vec![plain])];
        if random.u8(..8) > 0 && class != "organizationalRole" {
            given.push(("sn".to_owned(), vec![one(random, VALUES).to_owned()]));
        }
        for _ in 0..random.usize(..4) {
            let name = one(random, &ATTRIBUTES[..7]);
            if name != "sn" && !given.iter().any(|(known, _)| known == name) {
                let mut values = values(random, 2);
                values.push(one(random, VALUES).to_owned());
                given.push((name.to_owned(), values));
            }
        }
        Request::Add { dn: format!("cn={rdn},{above}"), given }
    }

    /// Name of the operation.
    pub fn verb(&self) -> &'static str {
        match self {
            Request::Add { .. } => "add",
            Request::Modify { .. } => "modify",
            Request::Rename { .. } => "rename",
            Request::Delete { .. } => "delete",
            Request::Compare { .. } => "compare",
            Request::Search { .. } => "search",
        }
    }

    /// Encodes the request.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Request::Add { dn, given } => {
                let attributes: Vec<Vec<u8>> = given.iter().map(|(name, values)| attribute(name, values)).collect();
                nested(0x68, &[&text(4, dn), &nested(0x30, &[&attributes.concat()])])
            }
            Request::Modify { dn, changes } => {
                let part = |(how, name, values): &Change| nested(0x30, &[&[10, 1, *how], &attribute(name, values)]);
                let parts: Vec<Vec<u8>> = changes.iter().map(part).collect();
                nested(0x66, &[&text(4, dn), &nested(0x30, &[&parts.concat()])])
            }
            Request::Rename { dn, rdn, delete_old, above } => {
                let superior = above.map(|above| text(0x80, above)).unwrap_or_default();
                let delete = [1, 1, if *delete_old { 0xff } else { 0 }];
                nested(0x6c, &[&text(4, dn), &text(4, rdn), &delete, &superior])
            }
            Request::Delete { dn } => text(0x4a, dn),
            Request::Compare { dn, attribute, value } => {
                nested(0x6e, &[&text(4, dn), &nested(0x30, &[&text(4, attribute), &text(4, value)])])
            }
            Request::Search { base, scope, filter: wanted } => {
                let limits = [10, 1, *scope, 10, 1, 0, 2, 1, 0, 2, 1, 0, 1, 1, 0];
                nested(0x63, &[&text(4, base), &limits, &filter(wanted), &nested(0x30, &[])])
            }
        }
    }
}

fn random_filter(random: &mut fastrand::Rng, depth: usize) -> Filter {
    let name = one(random, &[ATTRIBUTES, &["objectClass", "nothing", "name"]].concat()).to_owned();
    let value =
        if name == "objectClass" { one(random, &["person", "top", "organization", "x"]) } else { one(random, VALUES) };
    let value = value.as_bytes().to_vec();
    let part =
        |random: &mut fastrand::Rng| random.bool().then(|| one(random, &["a", "al", "b", "ET", "ph", "7", " "]).into());
    match random.u8(..if depth == 0 { 7 } else { 10 }) {
        0 => Filter::Present(name),
        1 | 2 => Filter::Equal(name, value),
        3 => Filter::AtLeast(name, value),
        4 => Filter::AtMost(name, value),
        5 => {
            let (first, last) = (part(random), part(random));
            Filter::Substrings(name, first, vec![one(random, &["a", "l", "b", "ta"]).into()], last)
        }
        6 => {
            let rule =
                random.bool().then(|| one(random, &["caseExactMatch", "caseIgnoreMatch", "2.5.13.2"]).to_owned());
            Filter::Extensible { rule, attribute: Some(name), value, names: random.bool() }
        }
        7 => Filter::Not(Box::new(random_filter(random, depth - 1))),
        8 => Filter::And((0..random.usize(1..4)).map(|_| random_filter(random, depth - 1)).collect()),
        _ => Filter::Or((0..random.usize(1..4)).map(|_| random_filter(random, depth - 1)).collect()),
    }
}

const PROTOCOL_ERROR: u32 = 2;
const NO_SUCH_ATTRIBUTE: u32 = 16;
const CONSTRAINT_VIOLATION: u32 = 19;
const VALUE_EXISTS: u32 = 20;
const INVALID_SYNTAX: u32 = 21;
const NO_SUCH_OBJECT: u32 = 32;
const NAMING_VIOLATION: u32 = 64;
const OBJECT_CLASS_VIOLATION: u32 = 65;
const NOT_ALLOWED_ON_RDN: u32 = 67;
const ENTRY_EXISTS: u32 = 68;

type Attributes = BTreeMap<String, BTreeSet<String>>;

/// Permitted result codes for a request to a server whose entries `client` sees: one for each error of the request.
/// Computed independently of the server's code.
pub fn faults(request: &Request, client: &mut Client) -> BTreeSet<u32> {
    let mut faults = BTreeSet::new();
    match request {
        Request::Add { dn, given } => {
            faults.extend(entry(client, above(dn)).is_none().then_some(NO_SUCH_OBJECT));
            faults.extend(entry(client, dn).map(|_| ENTRY_EXISTS));
            faults.extend(given.iter().flat_map(|(name, values)| faults_of_values(name, values)));
            let given = given.iter().map(|(name, values)| (name.to_lowercase(), values.iter().cloned().collect()));
            faults.extend(faults_of_classes(&given.collect()));
        }
        Request::Modify { dn, changes } => match entry(client, dn) {
            Some(attributes) => faults.extend(faults_of_changes(dn, changes, attributes)),
            None => {
                faults.insert(NO_SUCH_OBJECT);
                faults.extend(changes.iter().flat_map(faults_of_change));
            }
        },
        Request::Rename { dn, rdn, above: new, .. } => {
            let above = new.unwrap_or_else(|| above(dn));
            faults.extend((entry(client, dn).is_none() || entry(client, above).is_none()).then_some(NO_SUCH_OBJECT));
            faults.extend(entry(client, &format!("{rdn},{above}")).map(|_| ENTRY_EXISTS));
        }
        Request::Delete { dn } => faults.extend(entry(client, dn).is_none().then_some(NO_SUCH_OBJECT)),
        Request::Compare { dn, attribute, value } => {
            faults.extend((!fits(attribute, value)).then_some(INVALID_SYNTAX));
            match entry(client, dn) {
                Some(found) => {
                    faults.extend((!found.contains_key(&attribute.to_lowercase())).then_some(NO_SUCH_ATTRIBUTE));
                }
                None => drop(faults.insert(NO_SUCH_OBJECT)),
            }
        }
        Request::Search { base, .. } => faults.extend(entry(client, base).is_none().then_some(NO_SUCH_OBJECT)),
    }
    faults
}

/// Parent of a name, whose commas are escaped within values.
fn above(dn: &str) -> &'static str {
    CONTAINERS.iter().copied().filter(|above| dn.ends_with(above)).max_by_key(|above| above.len()).expect("a container")
}

/// Attributes of an entry, if it exists.
fn entry(client: &mut Client, dn: &str) -> Option<Attributes> {
    let everything = Filter::Present("objectClass".to_owned());
    let reply = client.send_request(&Request::Search { base: dn.to_owned(), scope: 0, filter: everything }.bytes());
    reply.entries.get(&normal(dn)).cloned()
}

/// Whether a value has the syntax of its attribute.
fn fits(name: &str, value: &str) -> bool {
    match name {
        "mail" => value.is_ascii(),
        "seeAlso" => value.contains('='),
        _ => true,
    }
}

/// Normal form of a string: lower case, single spaces.
fn compared(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Errors of values on their own.
fn faults_of_values(name: &str, values: &[String]) -> BTreeSet<u32> {
    let distinct: BTreeSet<String> = values.iter().map(|value| compared(value)).collect();
    let mut faults = BTreeSet::new();
    faults.extend(values.iter().any(|value| !fits(name, value)).then_some(INVALID_SYNTAX));
    faults.extend((distinct.len() < values.len()).then_some(VALUE_EXISTS));
    faults.extend((name == "employeeNumber" && values.len() > 1).then_some(CONSTRAINT_VIOLATION));
    faults
}

/// Errors of a modification on its own.
fn faults_of_change((how, name, values): &Change) -> BTreeSet<u32> {
    let mut faults = faults_of_values(name, values);
    faults.extend((*how == 0 && values.is_empty()).then_some(PROTOCOL_ERROR));
    faults
}

/// Errors of a whole entry.
fn faults_of_classes(attributes: &Attributes) -> BTreeSet<u32> {
    let classes = attributes.get("objectclass").cloned().unwrap_or_default();
    // An undefined class is a class violation here, and a syntax error in slapd.
    if classes.contains("nobody") {
        return [OBJECT_CLASS_VIOLATION, INVALID_SYNTAX].into();
    }
    let is = |class: &str| classes.iter().any(|known| known.eq_ignore_ascii_case(class));
    let may: &[&str] = match () {
        () if is("inetOrgPerson") => ATTRIBUTES,
        () if is("person") => &["cn", "sn", "description", "seeAlso"],
        () => &["cn", "description", "l", "seeAlso"],
    };
    let is_allowed = |name: &String| name == "objectclass" || may.iter().any(|known| known.eq_ignore_ascii_case(name));
    let lacks = |name: &str| attributes.get(name).is_none_or(BTreeSet::is_empty);
    let is_person = is("inetOrgPerson") || is("person");
    let is_wrong = !attributes.keys().all(is_allowed) || lacks("cn") || is_person && lacks("sn");
    is_wrong.then_some(OBJECT_CLASS_VIOLATION).into_iter().collect()
}

/// Errors of modifications, each checked on the result of the earlier ones that were valid.
fn faults_of_changes(dn: &str, changes: &[Change], mut attributes: Attributes) -> BTreeSet<u32> {
    let mut faults = BTreeSet::new();
    for change in changes {
        faults.extend(faults_of_change(change));
        let (how, name, values) = change;
        let key = name.to_lowercase();
        let has = attributes.entry(key.clone()).or_default();
        let known = |has: &BTreeSet<String>, value: &str| has.iter().any(|own| compared(own) == compared(value));
        match how {
            0 => {
                faults.extend(values.iter().any(|value| known(has, value)).then_some(VALUE_EXISTS));
                has.extend(values.iter().cloned());
            }
            1 => {
                let is_missing = has.is_empty() || values.iter().any(|value| !known(has, value));
                faults.extend(is_missing.then_some(NO_SUCH_ATTRIBUTE));
                has.retain(|own| !values.is_empty() && !values.iter().any(|value| compared(value) == compared(own)));
            }
            _ => *has = values.iter().cloned().collect(),
        }
        faults.extend((*name == "employeeNumber" && has.len() > 1).then_some(CONSTRAINT_VIOLATION));
        if has.is_empty() {
            attributes.remove(&key);
        }
    }
    let own = dn.strip_prefix("cn=").and_then(|rest| rest.strip_suffix(&format!(",{}", above(dn)))).unwrap_or_default();
    let own = compared(&own.replace('\\', ""));
    let is_named = attributes.get("cn").is_some_and(|values| values.iter().any(|value| compared(value) == own));
    // This server reports the first, slapd the second.
    faults.extend((!is_named).then_some([NOT_ALLOWED_ON_RDN, NAMING_VIOLATION]).into_iter().flatten());
    faults.extend(faults_of_classes(&attributes));
    faults
}
