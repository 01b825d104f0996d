//! Maps users to subscriber entries. Attributes with an LDAP equivalent are stored there; others, such as the type of a
//! mail address, are stored as JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};
use tocsin_directory::entry::Entry;
use tocsin_model::subscriber::{Profile, check_profile};

use super::{body::Resource, schema::ENTERPRISE};

/// The classes of a user that is made here.
pub(super) const CLASSES: &[&str] = &["top", "person", "organizationalPerson", "inetOrgPerson", "tocsinSubscriber"];

/// Paths of text values in a resource, and the keys of their attributes.
const TEXTS: &[(&[&str], &str)] = &[
    (&["userName"], "uid"),
    (&["externalId"], "scimexternalid"),
    (&["name", "formatted"], "cn"),
    (&["name", "familyName"], "sn"),
    (&["name", "givenName"], "givenname"),
    (&["name", "honorificPrefix"], "personaltitle"),
    (&["name", "honorificSuffix"], "generationqualifier"),
    (&["displayName"], "displayname"),
    (&["title"], "title"),
    (&["userType"], "employeetype"),
    (&["preferredLanguage"], "preferredlanguage"),
    (&["timezone"], "tocsintimezone"),
    (&[ENTERPRISE, "employeeNumber"], "employeenumber"),
    (&[ENTERPRISE, "department"], "departmentnumber"),
    (&[ENTERPRISE, "organization"], "o"),
];
/// The parts of the first address.
const ADDRESS: &[(&str, &str)] =
    &[("streetAddress", "street"), ("locality", "l"), ("region", "st"), ("postalCode", "postalcode")];
/// Types of telephone numbers, and the attributes of each; the first is that of all other types.
const PHONES: &[(&str, &str)] = &[
    ("work", "telephonenumber"),
    ("mobile", "mobile"),
    ("home", "homephone"),
    ("fax", "facsimiletelephonenumber"),
    ("pager", "pager"),
];
/// The attribute of all else.
const DETAILS: &str = "scimdetails";

/// Attributes by their keys.
pub(super) type Attributes = BTreeMap<&'static str, Vec<String>>;

/// An entry as a user, without attributes that need other entries.
pub(super) fn shown(entry: &Entry) -> Resource {
    let details = texts(entry, DETAILS).pop().and_then(|text| serde_json::from_str::<Resource>(&text).ok());
    let details = details.unwrap_or_default();
    let mut user = details.get("rest").and_then(Json::as_object).cloned().unwrap_or_default();
    let is_made =
        |key: &str, text: &str| details.get("made").and_then(|made| made.get(key)).and_then(Json::as_str) == Some(text);
    for (path, key) in TEXTS {
        if let Some(text) = texts(entry, key).into_iter().next().filter(|text| !is_made(key, text)) {
            put(&mut user, path, text.into());
        }
    }
    if !user.contains_key("userName")
        && let Some(id) = texts(entry, "tocsinid").pop()
    {
        user.insert("userName".to_owned(), id.into());
    }
    let is_active = texts(entry, "tocsinenabled").first().is_none_or(|text| !text.eq_ignore_ascii_case("false"));
    user.insert("active".to_owned(), is_active.into());
    let list = |name: &str| details.get(name).and_then(Json::as_array).cloned().unwrap_or_default();
    let mails = texts(entry, "mail").into_iter().map(|value| ("mail", value, None)).collect();
    insert_list(&mut user, "emails", labelled(list("emails"), mails, |_| "mail"));
    let phones = PHONES
        .iter()
        .flat_map(|(kind, key)| texts(entry, key).into_iter().map(move |value| (*key, value, Some(*kind))));
    insert_list(&mut user, "phoneNumbers", labelled(list("phoneNumbers"), phones.collect(), phone_attribute));
    insert_list(&mut user, "addresses", addresses(entry, list("addresses")));
    user
}

fn insert_list(user: &mut Resource, name: &str, list: Vec<Json>) {
    if !list.is_empty() {
        user.insert(name.to_owned(), list.into());
    }
}

fn texts(entry: &Entry, key: &str) -> Vec<String> {
    let values = entry.attribute(key).map(|found| found.values.as_slice()).unwrap_or_default();
    values.iter().map(|value| String::from_utf8_lossy(value).into_owned()).collect()
}

fn put(user: &mut Resource, path: &[&str], value: Json) {
    match path {
        [name] => drop(user.insert((*name).to_owned(), value)),
        [name, rest @ ..] => {
            let inner = user.entry(*name).or_insert_with(|| Json::Object(Map::new()));
            if let Some(inner) = inner.as_object_mut() {
                put(inner, rest, value);
            }
        }
        [] => {}
    }
}

/// Takes a text out of a resource, and with it what is empty then.
fn take(user: &mut Resource, path: &[&str]) -> Option<String> {
    match path {
        [name] => match user.remove(*name)? {
            Json::String(text) => Some(text),
            _ => None,
        },
        [name, rest @ ..] => {
            let inner = user.get_mut(*name)?.as_object_mut()?;
            let taken = take(inner, rest);
            if inner.is_empty() {
                user.remove(*name);
            }
            taken
        }
        [] => None,
    }
}

fn text<'a>(value: &'a Json, part: &str) -> Option<&'a str> {
    value.get(part).and_then(Json::as_str)
}

/// A telephone number without the `tel:` scheme (RFC 3966).
fn bare(value: &str) -> &str {
    value.strip_prefix("tel:").unwrap_or(value)
}

fn phone_attribute(value: &Json) -> &'static str {
    let requested = text(value, "type").unwrap_or_default().to_ascii_lowercase();
    PHONES.iter().find(|(kind, _)| *kind == requested).map_or(PHONES[0].1, |(_, key)| key)
}

/// The values that attributes have, with what is kept of each beside. Values that others brought stand behind.
fn labelled(
    kept: Vec<Json>,
    mut present: Vec<(&'static str, String, Option<&'static str>)>,
    attribute_of: fn(&Json) -> &'static str,
) -> Vec<Json> {
    let all = present.clone();
    let mut list = Vec::new();
    for label in kept {
        let (key, value) = (attribute_of(&label), bare(text(&label, "value").unwrap_or_default()).to_lowercase());
        let is_same = |(known, found, _): &(&str, String, Option<&str>)| *known == key && found.to_lowercase() == value;
        if all.iter().any(is_same) {
            present.retain(|found| !is_same(found));
            list.push(label);
        }
    }
    list.extend(present.into_iter().map(|(_, value, kind)| match kind {
        Some(kind) => json!({"value": value, "type": kind}),
        None => json!({"value": value}),
    }));
    list
}

fn addresses(entry: &Entry, mut kept: Vec<Json>) -> Vec<Json> {
    let parts = ADDRESS.iter().filter_map(|(part, key)| Some((*part, texts(entry, key).into_iter().next()?)));
    let parts: Vec<_> = parts.collect();
    if !parts.is_empty() {
        if kept.is_empty() {
            kept.push(json!({"type": "work"}));
        }
        parts.into_iter().for_each(|(part, value)| kept[0][part] = value.into());
    }
    kept.retain(|address| address.as_object().is_some_and(|address| !address.is_empty()));
    kept
}

/// A user as attributes. `is_person`: whether its class wants a name and a family name, which are made up of what there is.
pub(super) fn written(user: &Resource, is_person: bool) -> Attributes {
    let mut rest = user.clone();
    for name in ["schemas", "id", "meta", "password", "groups"] {
        rest.remove(name);
    }
    if let Some(enterprise) = rest.get_mut(ENTERPRISE).and_then(Json::as_object_mut) {
        enterprise.remove("manager");
    }
    let mut attributes = Attributes::new();
    let mut details = Resource::new();
    for (path, key) in TEXTS {
        if let Some(text) = take(&mut rest, path) {
            match is_of_profile(key, &text) {
                true => drop(attributes.insert(key, vec![text])),
                false => put(&mut rest, path, text.into()),
            }
        }
    }
    if is_person {
        let made = derived_names(user, &attributes);
        attributes.extend(made.iter().map(|(key, text)| (*key, vec![text.clone()])));
        if !made.is_empty() {
            details.insert("made".to_owned(), json!(made));
        }
    }
    if rest.remove("active") == Some(Json::Bool(false)) {
        attributes.insert("tocsinenabled", vec!["FALSE".to_owned()]);
    }
    write_labelled("emails", &mut rest, &mut attributes, &mut details, |_| "mail");
    write_labelled("phoneNumbers", &mut rest, &mut attributes, &mut details, phone_attribute);
    if let Some(Json::Array(mut list)) = rest.remove("addresses") {
        if let Some(first) = list.first_mut().and_then(Json::as_object_mut) {
            for (part, key) in ADDRESS {
                if let Some(text) = take(first, &[part]) {
                    attributes.insert(key, vec![text]);
                }
            }
        }
        details.insert("addresses".to_owned(), list.into());
    }
    rest.retain(|_, value| value.as_object().is_none_or(|parts| !parts.is_empty()));
    if !rest.is_empty() {
        details.insert("rest".to_owned(), rest.into());
    }
    if !details.is_empty() {
        attributes.insert(DETAILS, vec![Json::Object(details).to_string()]);
    }
    attributes
}

/// Whether a text is valid for an attribute of the profile: a list of languages is stored, but is not a locale.
fn is_of_profile(key: &str, text: &str) -> bool {
    let profile = match key {
        "preferredlanguage" => Profile { locale: Some(text.to_owned()), ..Profile::default() },
        "tocsintimezone" => Profile { time_zone: Some(text.to_owned()), ..Profile::default() },
        _ => return true,
    };
    check_profile(&profile).is_empty()
}

/// Derives names that the person class requires and that are missing.
fn derived_names(user: &Resource, attributes: &Attributes) -> BTreeMap<&'static str, String> {
    let of = |key: &str| attributes.get(key).and_then(|values| values.first()).cloned();
    let known = user.get("userName").and_then(Json::as_str).unwrap_or_default().to_owned();
    let (given, family) = (of("givenname"), of("sn"));
    let whole = [given, family.clone()].into_iter().flatten().collect::<Vec<_>>().join(" ");
    let whole = of("displayname").or((!whole.is_empty()).then_some(whole)).unwrap_or_else(|| known.clone());
    let requested = [("cn", whole), ("sn", known)];
    requested.into_iter().filter(|(key, _)| !attributes.contains_key(key)).collect()
}

fn write_labelled(
    name: &str,
    rest: &mut Resource,
    attributes: &mut Attributes,
    details: &mut Resource,
    attribute_of: fn(&Json) -> &'static str,
) {
    let Some(Json::Array(list)) = rest.remove(name) else { return };
    for each in &list {
        let Some(value) = text(each, "value").map(bare) else { continue };
        let values = attributes.entry(attribute_of(each)).or_default();
        if !values.iter().any(|known| known.to_lowercase() == value.to_lowercase()) {
            values.push(value.to_owned());
        }
    }
    details.insert(name.to_owned(), list.into());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tocsin_directory::{entry::Attribute, schema::Schema};
    use tocsin_model::time::Timestamp;

    use super::*;

    fn entry(attributes: &Attributes) -> Entry {
        let schema = Schema::standard();
        let of = |(key, values): (&&str, &Vec<String>)| Attribute {
            kind: Arc::clone(schema.attribute(key).expect("it is known")),
            values: Arc::new(values.iter().map(|value| value.as_bytes().into()).collect()),
        };
        Entry {
            number: Entry::unassigned_number(),
            parent: None,
            dn: "uid=vera,o=x".into(),
            key: "uid=vera,o=x".into(),
            attributes: attributes.iter().map(of).collect(),
            shown: 0,
            created_at: Timestamp(0),
            updated_at: Timestamp(0),
            revision: 1,
        }
    }

    #[test]
    fn what_is_written_is_shown_again() {
        let user = json!({
            "userName": "vera", "externalId": "7", "active": true, "nickName": "V", "locale": "de-AT", "title": "Dr",
            "name": {"givenName": "Vera", "middleName": "M"}, "timezone": "Mars/Olympus", "preferredLanguage": "da, en-gb;q=0.8",
            "emails": [{"value": "W@x.example", "type": "work", "primary": true}, {"value": "w@x.example", "type": "other"}, {"value": "h@x.example"}],
            "phoneNumbers": [{"value": "tel:+43-1", "type": "mobile"}, {"value": "+43 2", "type": "car"}, {"value": "+43 3"}],
            "addresses": [{"type": "home", "locality": "Linz", "country": "AT"}, {"type": "work", "locality": "Wien"}],
            ENTERPRISE: {"department": "Legal", "costCenter": "4130"},
        });
        let user = user.as_object().expect("an object");
        let attributes = written(user, true);
        assert_eq!(attributes["mail"], ["W@x.example", "h@x.example"]);
        assert_eq!(
            (&attributes["mobile"][..], &attributes["l"][..]),
            (&["+43-1".to_owned()][..], &["Linz".to_owned()][..])
        );
        assert_eq!((attributes["cn"][0].as_str(), attributes["sn"][0].as_str()), ("Vera", "vera"));
        assert!(!attributes.contains_key("preferredlanguage") && !attributes.contains_key("tocsintimezone"));
        assert_eq!(Json::Object(shown(&entry(&attributes))), Json::Object(user.clone()));
    }

    #[test]
    fn what_others_change_is_shown() {
        let user = json!({"userName": "vera", "active": true, "emails": [{"value": "a@x.example", "type": "work"}]});
        let mut attributes = written(user.as_object().expect("an object"), true);
        attributes.insert("mail", vec!["b@x.example".to_owned()]);
        attributes.insert("cn", vec!["Vera Muster".to_owned()]);
        attributes.insert("pager", vec!["7".to_owned()]);
        let found = Json::Object(shown(&entry(&attributes)));
        assert_eq!(found["emails"], json!([{"value": "b@x.example"}]));
        assert_eq!(found["name"], json!({"formatted": "Vera Muster"}));
        assert_eq!(found["phoneNumbers"], json!([{"value": "7", "type": "pager"}]));
    }
}
