use base64::{Engine as _, prelude::BASE64_STANDARD};
use tocsin_connect::dns::{Answer, LookupError, Resolver};
use x509_cert::{
    der::{
        Decode, Reader, SliceReader,
        asn1::{ObjectIdentifier, UintRef},
    },
    spki::SubjectPublicKeyInfoRef,
};

use crate::{
    finding::{Check, Finding, Record},
    subject::Selector,
    tags::Tags,
};

/// RSA keys below this length are not used by verifiers (RFC 8301, section 3.2).
const RSA_BITS_MIN: usize = 1_024;

/// RSA keys should have this length.
const RSA_BITS_GOOD: usize = 2_048;

/// `rsaEncryption` (RFC 8017, appendix C).
const RSA_ENCRYPTION: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");

/// A public key of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Key {
    Rsa { bits: usize, modulus: Vec<u8> },
    Ed25519(Vec<u8>),
}

/// Examines the record of a selector.
pub(crate) async fn examine(resolver: &Resolver, selector: &Selector) -> Vec<Finding> {
    let name = format!("{}._domainkey.{}", selector.name, selector.domain);
    let check = Check { name: "dkim", subject: &name };
    let source = "RFC 6376, section 3.6.2";
    let answer = resolver.txt(&name).await;
    let is_absent = matches!(answer, Ok(Answer::NoSuchName { .. }));
    let records = match answer {
        Ok(answer) => answer.into_records(),
        Err(error @ LookupError::InvalidName(_)) => {
            return vec![check.fail(source, error.to_string()).advice("correct the selector")];
        }
        Err(error) => return vec![check.unknown(source, "the key record", &error)],
    };
    match records.as_slice() {
        [] => {
            let reason = if is_absent { "the name does not exist" } else { "the name has no such record" };
            vec![expected(check.fail(source, format!("there is no key record: {reason}")), &name, selector)]
        }
        [text] => record(check, &name, text, selector),
        several => {
            let text = format!("there are {} records at this name; verifiers use any of them", several.len());
            vec![expected(check.fail(source, text), &name, selector)]
        }
    }
}

/// Adds the record to publish: that of the channel's key if it is known.
fn expected(finding: Finding, name: &str, selector: &Selector) -> Finding {
    match &selector.record {
        Some(record) => finding.advice("publish the record of the channel's key").publish(Record::txt(name, record)),
        None => finding.advice("publish the public key of the selector").publish(Record::txt(
            name,
            "v=DKIM1; k=rsa; p=<the output of: openssl rsa -in dkim-rsa.pem -pubout -outform der | base64 -w0>",
        )),
    }
}

/// Examines a key record.
fn record(check: Check<'_>, name: &str, text: &str, selector: &Selector) -> Vec<Finding> {
    let source = "RFC 6376, section 3.6.1";
    let wrong = |text: String| vec![expected(check.fail(source, text), name, selector)];
    let tags = match Tags::parse(text) {
        Ok(tags) => tags,
        Err(error) => return wrong(format!("the record is not well-formed: {error}: {text}")),
    };
    match tags.value("v") {
        Some("DKIM1") if tags.first() == Some("v") => {}
        None => {}
        Some("DKIM1") => return wrong("`v` is not the first tag, so verifiers ignore the record".to_owned()),
        Some(other) => return wrong(format!("the version is `{other}`, not `DKIM1`")),
    }
    let Some(encoded) = tags.value("p") else { return wrong("the record has no public key (`p`)".to_owned()) };
    let encoded: String = encoded.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    if encoded.is_empty() {
        return wrong("the key is revoked (`p` is empty), so signatures fail".to_owned());
    }
    let kind = tags.value("k").unwrap_or("rsa");
    let key = match public_key(kind, &encoded) {
        Ok(key) => key,
        Err(error) => return wrong(error),
    };
    let mut findings = restrictions(check, name, text, &tags);
    let described = match &key {
        Key::Rsa { bits, .. } if *bits < RSA_BITS_MIN => {
            let finding =
                check.fail("RFC 8301, section 3.2", format!("the RSA key has {bits} bits; verifiers ignore it"));
            findings.push(finding.advice("create a key of 2048 bits under a new selector"));
            return findings;
        }
        Key::Rsa { bits, .. } if *bits < RSA_BITS_GOOD => {
            let finding = check.warn("RFC 8301, section 3.2", format!("the RSA key has {bits} bits"));
            findings.push(finding.advice(format!("create a key of {RSA_BITS_GOOD} bits under a new selector")));
            format!("RSA key of {bits} bits")
        }
        Key::Rsa { bits, .. } => format!("RSA key of {bits} bits"),
        Key::Ed25519(_) => "Ed25519 key".to_owned(),
    };
    match selector.record.as_deref().map(key_of_record) {
        Some(own) if own.as_ref() != Some(&key) => {
            let finding = check.fail(source, format!("the {described} is not that of the channel, so signatures fail"));
            findings.push(expected(finding, name, selector));
        }
        Some(_) => findings.push(check.ok(source, format!("the {described} is that of the channel"))),
        None => findings.push(check.ok(source, format!("there is an {described}"))),
    }
    findings
}

/// Tags that restrict the use of a key.
fn restrictions(check: Check<'_>, name: &str, text: &str, tags: &Tags<'_>) -> Vec<Finding> {
    let source = "RFC 6376, section 3.6.1";
    let has = |tag: &str, wanted: &[&str]| {
        let list = tags.value(tag).map(|value| value.split(':').map(str::trim).collect::<Vec<_>>());
        list.map(|list| list.iter().any(|value| wanted.contains(value)))
    };
    let without = |tag: &str| {
        let kept = text.split(';').map(str::trim);
        let kept = kept.filter(|part| !part.is_empty() && part.split('=').next().map(str::trim) != Some(tag));
        Record::txt(name, &kept.collect::<Vec<_>>().join("; "))
    };
    let mut findings = Vec::new();
    if has("t", &["y"]) == Some(true) {
        let finding = check.warn(source, "the key is in test mode (`t=y`): verifiers may treat its mail as unsigned");
        findings.push(finding.advice("remove the tag `t`").publish(without("t")));
    }
    if has("h", &["sha256"]) == Some(false) {
        let finding = check.fail(source, "the key does not permit SHA-256 (`h`), which signatures use");
        findings.push(finding.advice("remove the tag `h`").publish(without("h")));
    }
    if has("s", &["email", "*"]) == Some(false) {
        let finding = check.fail(source, "the key is not for mail (`s`)");
        findings.push(finding.advice("remove the tag `s`").publish(without("s")));
    }
    findings
}

/// Parses a text as a key record, for fuzz targets. Panics if the parser is wrong.
pub(crate) fn check_key(text: &str) {
    if let Some(Key::Rsa { bits, modulus }) = key_of_record(text) {
        assert!(bits <= modulus.len() * 8, "{text}");
    }
}

fn key_of_record(text: &str) -> Option<Key> {
    let tags = Tags::parse(text).ok()?;
    public_key(tags.value("k").unwrap_or("rsa"), tags.value("p")?).ok()
}

fn public_key(kind: &str, encoded: &str) -> Result<Key, String> {
    let bytes = BASE64_STANDARD.decode(encoded).map_err(|_| "the public key (`p`) is not Base64".to_owned())?;
    match kind {
        "rsa" => {
            let bits = SubjectPublicKeyInfoRef::from_der(&bytes).ok();
            let inner = bits.as_ref().filter(|info| info.algorithm.oid == RSA_ENCRYPTION);
            // A key without its algorithm is permitted as well (RFC 6376, section 3.6.1; errata 3017).
            let der = inner.and_then(|info| info.subject_public_key.as_bytes()).unwrap_or(&bytes);
            let modulus = rsa_modulus(der).ok_or_else(|| "the public key (`p`) is not an RSA key".to_owned())?;
            let zeros = modulus.first().map_or(0, |byte| byte.leading_zeros() as usize);
            Ok(Key::Rsa { bits: modulus.len() * 8 - zeros, modulus })
        }
        "ed25519" if bytes.len() == 32 => Ok(Key::Ed25519(bytes)),
        "ed25519" => Err(format!("the Ed25519 key has {} bytes, not 32", bytes.len())),
        other => Err(format!("the type of key is `{other}`, not `rsa` or `ed25519`")),
    }
}

/// The modulus of an `RSAPublicKey` (RFC 8017, appendix A.1.1).
fn rsa_modulus(der: &[u8]) -> Option<Vec<u8>> {
    let mut reader = SliceReader::new(der).ok()?;
    let modulus = reader.sequence(|members| {
        let modulus = UintRef::decode(members)?.as_bytes().to_vec();
        UintRef::decode(members)?;
        Ok(modulus)
    });
    modulus.ok().filter(|modulus| !modulus.is_empty())
}
