//! Entries that describe the server: the root DSE (RFC 4512, 5.1) and the subschema entry.

use std::sync::Arc;

use tocsin_directory::{
    CachedEntry, Directory,
    entry::{Attribute, Entry, SUBSCHEMA},
    schema::{Kind, Schema},
    syntax::{rule_descriptions, syntaxes},
};

use crate::{
    oids::{CONTROLS, EXTENSIONS, START_TLS},
    server::Server,
};

/// Features: `+` for operational attributes (RFC 3673), absolute filters (RFC 4526), increment (RFC 4525).
const FEATURES: &[&str] = &["1.3.6.1.4.1.4203.1.5.1", "1.3.6.1.4.1.4203.1.5.3", "1.3.6.1.1.14"];

fn shown(dn: &str, schema: &Schema, attributes: &[(&str, Vec<String>)]) -> Arc<CachedEntry> {
    let made = attributes.iter().filter(|(_, values)| !values.is_empty()).filter_map(|(name, values)| {
        let kind = schema.attribute(name).ok()?.clone();
        Some(Attribute { kind, values: Arc::new(values.iter().map(|value| value.as_bytes().into()).collect()) })
    });
    let attributes: Vec<Attribute> = made.collect();
    let entry = Entry {
        number: Entry::unassigned_number(),
        parent: None,
        dn: dn.to_owned(),
        key: dn.to_owned(),
        shown: attributes.iter().take_while(|found| !found.kind.operational).count(),
        attributes,
        created_at: Default::default(),
        updated_at: Default::default(),
        revision: 1,
    };
    Arc::new(CachedEntry::of(entry))
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

/// The root DSE.
pub fn root(server: &Server) -> Arc<CachedEntry> {
    let (directory, has_tls) = (&server.directory, server.options.tls.is_some());
    let one = |text: &str| vec![text.to_owned()];
    let mechanisms: &[&str] = if server.accepts_certificates() { &["PLAIN", "EXTERNAL"] } else { &["PLAIN"] };
    shown(
        "",
        &directory.schema(),
        &[
            ("objectClass", one("top")),
            ("namingContexts", one(directory.suffix())),
            ("subschemaSubentry", one(SUBSCHEMA)),
            ("dynamicSubtrees", one(directory.suffix())),
            ("supportedLDAPVersion", one("3")),
            ("supportedControl", texts(CONTROLS)),
            (
                "supportedExtension",
                texts(EXTENSIONS).into_iter().chain(has_tls.then(|| START_TLS.to_owned())).collect(),
            ),
            ("supportedSASLMechanisms", texts(mechanisms)),
            ("supportedFeatures", texts(FEATURES)),
            ("vendorName", one("Tocsin")),
            ("vendorVersion", one(env!("CARGO_PKG_VERSION"))),
        ],
    )
}

/// The subschema entry.
pub fn subschema(directory: &Directory) -> Arc<CachedEntry> {
    let schema = directory.schema();
    let definitions = |kind| schema.texts(kind).map(str::to_owned).collect();
    let syntaxes = syntaxes().map(|(oid, description)| format!("( {oid} DESC '{description}' )")).collect();
    shown(
        SUBSCHEMA,
        &schema,
        &[
            ("objectClass", texts(&["top", "subschema", "extensibleObject"])),
            ("cn", texts(&["subschema"])),
            ("attributeTypes", definitions(Kind::Attribute)),
            ("objectClasses", definitions(Kind::Class)),
            ("matchingRules", rule_descriptions().collect()),
            ("ldapSyntaxes", syntaxes),
        ],
    )
}
