//! Client certificates: subject, alternative names, and the rules that map them to an entry.
//!
//! TLS has already verified the certificate; this module only parses it (RFC 5280, section 4.1).

use tocsin_directory::{
    dn::{Dn, escape},
    schema::Schema,
};

use crate::ber::{DecodeError, Reader};

/// Object identifier of e-mail addresses in subjects, which are not an attribute of the schema.
const EMAIL_ADDRESS: &str = "1.2.840.113549.1.9.1";
/// Content of the object identifier 2.5.29.17: subject alternative names.
const OTHER_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;

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
        read(der, schema).ok()
    }
}

fn read(der: &[u8], schema: &Schema) -> Result<Certificate, DecodeError> {
    let mut certificate = Reader(Reader(der).expect(SEQUENCE)?);
    let mut body = Reader(certificate.expect(SEQUENCE)?);
    body.optional(0xa0)?;
    // Serial number, algorithm, issuer, validity.
    for _ in 0..4 {
        body.value()?;
    }
    let mut rdns = Vec::new();
    let mut fields = Vec::new();
    let mut names = Reader(body.expect(SEQUENCE)?);
    while !names.is_empty() {
        let mut rdn = Vec::new();
        let mut parts = Reader(names.expect(SET)?);
        while !parts.is_empty() {
            let mut part = Reader(parts.expect(SEQUENCE)?);
            let (oid, (tag, value)) = (identifier(part.expect(OID)?), part.value()?);
            let value = text(tag, value)?;
            let kind = schema.attribute(&oid).ok();
            let mut written = format!("{}=", kind.map_or(oid.as_str(), |kind| kind.name()));
            escape(&value, &mut written);
            rdn.push(written);
            let key = kind.map(|kind| kind.key.to_string());
            fields.push((key.unwrap_or_else(|| if oid == EMAIL_ADDRESS { "email".to_owned() } else { oid }), value));
        }
        rdns.push(rdn.join("+"));
    }
    // A certificate lists the names from the root on.
    rdns.reverse();
    fields.reverse();
    let mut other = Vec::new();
    while !body.is_empty() {
        if let (0xa3, extensions) = body.value()? {
            other = other_names(extensions)?;
        }
    }
    // Alternative names take precedence over e-mail addresses of the subject.
    other.append(&mut fields);
    Ok(Certificate { subject: rdns.join(","), fields: other })
}

fn other_names(extensions: &[u8]) -> Result<Vec<(String, String)>, DecodeError> {
    let mut found = Vec::new();
    let mut list = Reader(Reader(extensions).expect(SEQUENCE)?);
    while !list.is_empty() {
        let mut extension = Reader(list.expect(SEQUENCE)?);
        if extension.expect(OID)? != OTHER_NAMES {
            continue;
        }
        extension.optional(0x01)?;
        let mut names = Reader(Reader(extension.expect(0x04)?).expect(SEQUENCE)?);
        while !names.is_empty() {
            let (tag, value) = names.value()?;
            let field = match tag {
                0x81 => "email",
                0x82 => "dns",
                0x86 => "uri",
                _ => continue,
            };
            found.push((field.to_owned(), text(0x16, value)?));
        }
    }
    Ok(found)
}

/// Decodes an object identifier to dotted form.
fn identifier(content: &[u8]) -> String {
    let mut arcs: Vec<u64> = Vec::new();
    let mut arc = 0_u64;
    for byte in content {
        arc = arc.wrapping_shl(7) | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            // The first two arcs share a number.
            match arcs.is_empty() {
                true => arcs.extend([(arc / 40).min(2), arc - 40 * (arc / 40).min(2)]),
                false => arcs.push(arc),
            }
            arc = 0;
        }
    }
    arcs.iter().map(u64::to_string).collect::<Vec<_>>().join(".")
}

/// Decodes a string of one of the types used in names.
fn text(tag: u8, content: &[u8]) -> Result<String, DecodeError> {
    let wrong = DecodeError("a name that is not text");
    match tag {
        // BMPString: two bytes per character.
        0x1e if content.len().is_multiple_of(2) => {
            let units: Vec<u16> = content.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
            String::from_utf16(&units).map_err(|_| wrong)
        }
        // TeletexString, in practice Latin-1.
        0x14 => Ok(content.iter().map(|byte| char::from(*byte)).collect()),
        // UTF8String, NumericString, PrintableString, IA5String, VisibleString.
        0x0c | 0x12 | 0x13 | 0x16 | 0x1a => std::str::from_utf8(content).map(str::to_owned).map_err(|_| wrong),
        _ => Err(wrong),
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
