//! Client certificates: subject, alternative names, and the rules that map them to an entry.
//!
//! TLS has already verified the certificate; this module only parses it (RFC 5280, section 4.1).

use tocsin_directory::{
    dn::{Dn, escape},
    schema::Schema,
};
use x509_cert::{
    Certificate as X509, TbsCertificate,
    der::{
        Decode, Tag, Tagged,
        asn1::{Any, BmpString},
    },
    ext::pkix::{SubjectAltName, name::GeneralName},
};

/// Object identifier of e-mail addresses in subjects, which are not an attribute of the schema.
const EMAIL_ADDRESS: &str = "1.2.840.113549.1.9.1";

/// Identity data of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Distinguished name of the subject.
    pub subject: String,
    /// Fields for rules: keys of attributes, `email`, `dns` and `uri`, most specific first.
    fields: Vec<(String, String)>,
}

/// Rule that maps a certificate to an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRule(CertificateMapping);

#[derive(Debug, Clone, PartialEq, Eq)]
enum CertificateMapping {
    /// The entry with the DN of the subject.
    Subject,
    /// The entry with a DN made from a template.
    Entry(Vec<TemplatePart>),
    /// The only entry with a value of an attribute.
    Search(String, Vec<TemplatePart>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Field(String),
}

/// Reference to an entry, as a rule gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryReference {
    /// By distinguished name.
    Entry(String),
    /// As the only entry with a value: attribute, value.
    Only(String, String),
}

impl Certificate {
    /// Parses a DER certificate; `None`: it is malformed.
    pub fn read(der: &[u8], schema: &Schema) -> Option<Certificate> {
        let body = X509::from_der(der).ok()?.tbs_certificate;
        // Alternative names take precedence over e-mail addresses of the subject.
        let mut fields = other_names(&body)?;
        let mut rdns = Vec::new();
        // A certificate lists the names from the root on.
        for rdn in body.subject.0.iter().rev() {
            let mut written = Vec::new();
            for part in rdn.0.iter() {
                let (oid, value) = (part.oid.to_string(), text(&part.value)?);
                let kind = schema.attribute(&oid).ok();
                let mut assertion = format!("{}=", kind.map_or(oid.as_str(), |kind| kind.name()));
                escape(&value, &mut assertion);
                written.push(assertion);
                let key = kind.map(|kind| kind.key.to_string());
                let key = key.unwrap_or_else(|| if oid == EMAIL_ADDRESS { "email".to_owned() } else { oid });
                fields.push((key, value));
            }
            rdns.push(written.join("+"));
        }
        Some(Certificate { subject: rdns.join(","), fields })
    }
}

fn other_names(body: &TbsCertificate) -> Option<Vec<(String, String)>> {
    let Some((_, SubjectAltName(names))) = body.get().ok()? else { return Some(Vec::new()) };
    let field = |name: &GeneralName| match name {
        GeneralName::Rfc822Name(value) => Some(("email".to_owned(), value.to_string())),
        GeneralName::DnsName(value) => Some(("dns".to_owned(), value.to_string())),
        GeneralName::UniformResourceIdentifier(value) => Some(("uri".to_owned(), value.to_string())),
        _ => None,
    };
    Some(names.iter().filter_map(field).collect())
}

/// Decodes a string of one of the types used in names.
fn text(value: &Any) -> Option<String> {
    let content = value.value();
    match value.tag() {
        Tag::BmpString => value.decode_as::<BmpString>().ok().map(|text| text.to_string()),
        // In practice Latin-1.
        Tag::TeletexString => Some(content.iter().map(|byte| char::from(*byte)).collect()),
        Tag::Utf8String | Tag::NumericString | Tag::PrintableString | Tag::Ia5String | Tag::VisibleString => {
            std::str::from_utf8(content).ok().map(str::to_owned)
        }
        _ => None,
    }
}

impl CertificateRule {
    /// Parses `subject`, `entry uid={cn},ou=people,dc=example,dc=org` or `search mail={email}`.
    ///
    /// # Errors
    /// The rule is malformed; the text says where.
    pub fn read(text: &str, schema: &Schema) -> Result<CertificateRule, String> {
        let mapping = match text.trim().split_once(' ').map(|(word, rest)| (word, rest.trim())) {
            None if text.trim() == "subject" => CertificateMapping::Subject,
            Some(("entry", template)) => {
                let parts = parts(template, schema)?;
                let plain = filled(&parts, |_| Some("x".to_owned())).unwrap_or_default();
                Dn::parse(&plain).map_err(|error| format!("has a malformed distinguished name: {error}"))?;
                CertificateMapping::Entry(parts)
            }
            Some(("search", template)) => {
                let (name, value) =
                    template.split_once('=').ok_or("has no `=` after `search`, such as mail={email}")?;
                let kind = schema.attribute(name).map_err(|refusal| format!("is invalid: {}", refusal.message))?;
                CertificateMapping::Search(kind.name().to_owned(), parts(value, schema)?)
            }
            _ => return Err("is none of `subject`, `entry <name>` and `search <attribute>=<value>`".to_owned()),
        };
        Ok(CertificateRule(mapping))
    }

    /// The entry that the rule selects; `None`: the certificate lacks a field of the rule.
    pub fn name(&self, certificate: &Certificate) -> Option<EntryReference> {
        let field = |name: &str| {
            let found = certificate.fields.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
        };
        match &self.0 {
            CertificateMapping::Subject => {
                (!certificate.subject.is_empty()).then(|| EntryReference::Entry(certificate.subject.clone()))
            }
            CertificateMapping::Entry(parts) => {
                let escaped = |name: &str| {
                    let mut out = String::new();
                    escape(&field(name)?, &mut out);
                    Some(out)
                };
                filled(parts, escaped).map(EntryReference::Entry)
            }
            CertificateMapping::Search(attribute, parts) => {
                filled(parts, field).map(|value| EntryReference::Only(attribute.clone(), value))
            }
        }
    }
}

fn filled(parts: &[TemplatePart], field: impl Fn(&str) -> Option<String>) -> Option<String> {
    let part = |part: &TemplatePart| match part {
        TemplatePart::Text(text) => Some(text.clone()),
        TemplatePart::Field(name) => field(name),
    };
    parts.iter().map(part).collect()
}

/// Parses a template with placeholders such as `{cn}`. At least one is required, since otherwise every client would be
/// the same entry.
fn parts(template: &str, schema: &Schema) -> Result<Vec<TemplatePart>, String> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((text, behind)) = rest.split_once('{') {
        let (name, behind) = behind.split_once('}').ok_or("has a `{` without its `}`")?;
        let key = match name {
            "email" | "dns" | "uri" => name.to_owned(),
            name => {
                let kind = schema.attribute(name);
                let unknown =
                    format!("has the placeholder `{{{name}}}`; a placeholder is an attribute, `email`, `dns` or `uri`");
                kind.map_err(|_| unknown)?.key.to_string()
            }
        };
        parts.extend([TemplatePart::Text(text.to_owned()), TemplatePart::Field(key)]);
        rest = behind;
    }
    if parts.is_empty() {
        return Err("has no placeholder such as {cn}, so that every certificate would be the same entry".to_owned());
    }
    parts.push(TemplatePart::Text(rest.to_owned()));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType};

    use super::*;

    fn made() -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "site");
        params
            .distinguished_name
            .push(DnType::OrganizationalUnitName, DnValue::BmpString("Büro".try_into().expect("text")));
        params.distinguished_name.push(DnType::CommonName, "Ann, B");
        params.subject_alt_names = vec![
            SanType::DnsName("host.example.org".try_into().expect("a name")),
            SanType::Rfc822Name("ann@example.org".try_into().expect("an address")),
        ];
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn a_certificate_is_mapped_to_an_entry() {
        let schema = Schema::standard();
        let der = made();
        let certificate = Certificate::read(&der, &schema).expect("a certificate");
        assert_eq!(certificate.subject, "cn=Ann\\, B,ou=Büro,o=site");
        let check = |rule: &str, expected| {
            assert_eq!(CertificateRule::read(rule, &schema).expect("a rule").name(&certificate), expected, "{rule}");
        };
        check("subject", Some(EntryReference::Entry("cn=Ann\\, B,ou=Büro,o=site".to_owned())));
        check(
            "entry uid={CN},ou=people,o=site",
            Some(EntryReference::Entry("uid=Ann\\, B,ou=people,o=site".to_owned())),
        );
        check("search mail={email}", Some(EntryReference::Only("mail".to_owned(), "ann@example.org".to_owned())));
        check("search cn=host {dns}", Some(EntryReference::Only("cn".to_owned(), "host host.example.org".to_owned())));
        check("search uid={uid}", None);
        for end in 0..der.len() {
            assert_eq!(Certificate::read(&der[..end], &schema), None, "cut at {end}");
        }
        let longer = [&der[..], b"\0"].concat();
        assert_eq!(Certificate::read(&longer, &schema), None);
    }

    #[test]
    fn malformed_rules_are_rejected_with_a_reason() {
        let check = |rule: &str, expected: &str| {
            let error = CertificateRule::read(rule, &Schema::standard()).expect_err("wrong");
            assert!(error.contains(expected), "{error}");
        };
        check("issuer", "is none of `subject`");
        check("entry {cn}", "malformed distinguished name");
        check("entry cn=ann,o=site", "the same entry");
        check("search mail", "has no `=`");
        check("search nothing={cn}", "there is no attribute `nothing`");
        check("search mail={nothing}", "a placeholder is an attribute");
        check("search mail={email", "without its `}`");
    }
}
