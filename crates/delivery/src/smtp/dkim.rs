//! DKIM signatures (RFC 6376) with RSA and Ed25519 (RFC 8463). Headers and body use relaxed canonicalization, which
//! tolerates changes of white space and line folds by mail servers. Crates: docs/decisions/0042.

use std::path::PathBuf;

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair},
};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::files::Files;
use tocsin_model::problem::{Code, Problem};

use crate::mail_sender::MailKey;

/// Signed header fields, and whether a field added later breaks the signature ("oversigned"). Fields that readers see
/// or that decide how the mail is displayed are oversigned.
const SIGNED: &[(&str, bool)] = &[
    ("From", true),
    ("To", true),
    ("Cc", true),
    ("Subject", true),
    ("Date", true),
    ("Message-ID", true),
    ("Reply-To", true),
    ("MIME-Version", true),
    ("Content-Type", true),
    ("Content-Transfer-Encoding", false),
    ("Auto-Submitted", false),
    ("List-Id", false),
    ("List-Unsubscribe", true),
    ("List-Unsubscribe-Post", true),
];

/// A DKIM key of a domain.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DkimOptions {
    /// The selector: the public key is the TXT record of `selector._domainkey.domain`.
    pub selector: String,
    /// The signing domain. Default: the domain of the sender.
    #[serde(default)]
    pub domain: Option<String>,
    /// The private key in PEM form: RSA of 2048 bits or more, or Ed25519. Take it from the environment.
    #[serde(default)]
    pub key: Option<String>,
    /// A file with the private key, in place of `key`.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
}

impl DkimOptions {
    /// Every problem, without reading files. Paths are relative: `selector`.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let is_dns_name = |text: &str| {
            let fits = |label: &str| {
                (1..=63).contains(&label.len())
                    && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            };
            text.len() <= 253 && text.split('.').all(fits)
        };
        if !is_dns_name(&self.selector) {
            problems.push(
                Problem::new(Code::InvalidFormat, "selector", "this cannot be part of a name in DNS")
                    .param("format", "host_name")
                    .hint("such as `tocsin1`"),
            );
        }
        if self.domain.as_deref().is_some_and(|domain| !is_dns_name(domain)) {
            problems.push(
                Problem::new(Code::InvalidFormat, "domain", "this is not a domain")
                    .param("format", "host_name")
                    .hint("such as `example.org`"),
            );
        }
        match (&self.key, &self.key_file) {
            (None, None) => problems.push(
                Problem::new(Code::Required, "key", "the private key is missing")
                    .hint("give `key: ${DKIM_KEY}`, or `key_file`"),
            ),
            (Some(_), Some(_)) => {
                problems.push(
                    Problem::new(Code::ConflictingMembers, "key_file", "there is a `key` already")
                        .hint("leave one of them out"),
                );
            }
            (Some(text), None) => problems.extend(Secret::parse(text.as_bytes(), "key").err()),
            (None, Some(_)) => {}
        }
        problems
    }
}

/// A key that can sign.
pub(super) struct DkimKey {
    domain: String,
    selector: String,
    secret: Secret,
}

enum Secret {
    Rsa(Box<RsaKeyPair>),
    Ed25519(Ed25519KeyPair),
}

impl Secret {
    /// Parses a private key in PEM form.
    fn parse(pem: &[u8], path: &str) -> Result<Secret, Problem> {
        let unusable = |why: String| {
            Problem::new(Code::InvalidKey, path, format!("this private key cannot be used: {why}"))
                .hint("make one with `openssl genrsa 2048` or `openssl genpkey -algorithm ed25519`")
        };
        let rsa = |key: RsaKeyPair| match key.public().modulus_len() {
            ..=255 => Err(unusable(format!("RSA of {} bits is too weak", key.public().modulus_len() * 8))),
            _ => Ok(Secret::Rsa(Box::new(key))),
        };
        match PrivateKeyDer::from_pem_slice(pem) {
            Ok(PrivateKeyDer::Pkcs1(der)) => {
                RsaKeyPair::from_der(der.secret_pkcs1_der()).map_err(|error| unusable(error.to_string())).and_then(rsa)
            }
            Ok(PrivateKeyDer::Pkcs8(der)) => {
                // OpenSSL writes Ed25519 keys without their public key.
                if let Ok(key) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der()) {
                    return Ok(Secret::Ed25519(key));
                }
                RsaKeyPair::from_pkcs8(der.secret_pkcs8_der())
                    .map_err(|error| unusable(error.to_string()))
                    .and_then(rsa)
            }
            Ok(_) => Err(unusable("it is neither RSA nor Ed25519".into())),
            Err(error) => Err(unusable(format!("it is not in PEM form ({error})"))),
        }
    }
}

impl DkimKey {
    /// Opens the key, from its file if it has one. `sender` is the domain of the sender; `path` leads to the options.
    ///
    /// # Errors
    /// The file cannot be read, or holds no key that can sign.
    pub fn open(options: &DkimOptions, sender: &str, path: &str, files: &Files) -> Result<DkimKey, Problem> {
        let secret = match (&options.key, &options.key_file) {
            (Some(text), _) => Secret::parse(text.as_bytes(), &format!("{path}.key"))?,
            (None, file) => {
                let (file, path) = (file.clone().unwrap_or_default(), format!("{path}.key_file"));
                let pem = files.read(&file).map_err(|why| Problem::new(Code::Unreadable, &path, why))?;
                Secret::parse(&pem, &path)?
            }
        };
        let domain = options.domain.clone().unwrap_or_else(|| sender.to_owned());
        Ok(DkimKey { domain, selector: options.selector.clone(), secret })
    }

    /// Name and value of the DNS record with the public key.
    pub fn record(&self) -> (String, String) {
        let (kind, public) = match &self.secret {
            Secret::Rsa(key) => ("rsa", public_key_info(key.public_key().as_ref())),
            Secret::Ed25519(key) => ("ed25519", key.public_key().as_ref().to_vec()),
        };
        let name = format!("{}._domainkey.{}", self.selector, self.domain);
        (name, format!("v=DKIM1; k={kind}; p={}", BASE64_STANDARD.encode(public)))
    }

    /// The public part.
    pub fn public(&self) -> MailKey {
        let (_, record) = self.record();
        MailKey { selector: self.selector.clone(), domain: self.domain.clone(), record }
    }

    /// The signature header field of a mail, with its line end.
    fn header(&self, mail: &Digested, at_seconds: i64) -> String {
        let algorithm = match &self.secret {
            Secret::Rsa(_) => "rsa-sha256",
            Secret::Ed25519(_) => "ed25519-sha256",
        };
        let mut header = format!(
            "DKIM-Signature: v=1; a={algorithm}; c=relaxed/relaxed; d={}; s={};\r\n\tt={at_seconds}; bh={};\r\n\th={};\r\n\tb=",
            self.domain, self.selector, mail.body_hash, mail.names
        );
        let mut signed = Vec::with_capacity(mail.headers.len() + header.len());
        signed.extend_from_slice(&mail.headers);
        relaxed_header(header.as_bytes(), &mut signed);
        signed.truncate(signed.len() - 2);
        let signature = match &self.secret {
            Secret::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), &signed, &mut signature)
                    .expect("a key that was read can sign, and the buffer has its length");
                signature
            }
            // RFC 8463, 3: the hash is what is signed.
            Secret::Ed25519(key) => key.sign(digest(&SHA256, &signed).as_ref()).as_ref().to_vec(),
        };
        for (at, part) in BASE64_STANDARD.encode(signature).as_bytes().chunks(72).enumerate() {
            if at > 0 {
                header.push_str("\r\n\t");
            }
            header.push_str(std::str::from_utf8(part).expect("base64 is ASCII"));
        }
        header.push_str("\r\n");
        header
    }
}

/// The signature header fields of a mail, one for each key, to be put in front of it. The mail's lines end in CR LF,
/// and no dots are stuffed yet.
pub(super) fn sign(keys: &[DkimKey], mail: &[u8], at_seconds: i64) -> String {
    if keys.is_empty() {
        return String::new();
    }
    let digested = Digested::of(mail);
    keys.iter().map(|key| key.header(&digested, at_seconds)).collect()
}

/// Digest of a mail that all signatures share.
struct Digested {
    /// Names of the signed header fields, separated by colons.
    names: String,
    /// The signed header fields, canonical, in that order.
    headers: Vec<u8>,
    /// Hash of the canonical body, in base64.
    body_hash: String,
}

impl Digested {
    fn of(mail: &[u8]) -> Digested {
        let (fields, body) = split(mail);
        let (mut names, mut headers, mut column) = (String::new(), Vec::with_capacity(1024), 0);
        for (name, oversigned) in SIGNED {
            // Fields of one name are signed from the last: RFC 6376, 5.4.2.
            let found = fields.iter().rev().filter(|field| is_named(field, name));
            let mut times = usize::from(*oversigned);
            for field in found {
                relaxed_header(field, &mut headers);
                times += 1;
            }
            for _ in 0..times {
                if !names.is_empty() {
                    names.push(':');
                }
                if column + name.len() > 64 {
                    names.push_str("\r\n\t");
                    column = 0;
                }
                names.push_str(name);
                column += name.len() + 1;
            }
        }
        let mut canonical = Vec::with_capacity(body.len());
        relaxed_body(body, &mut canonical);
        Digested { names, headers, body_hash: BASE64_STANDARD.encode(digest(&SHA256, &canonical)) }
    }
}

/// Splits a mail into header fields, each with its line ends, and body.
fn split(mail: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut fields: Vec<&[u8]> = Vec::with_capacity(16);
    let (mut start, mut at) = (0, 0);
    while at < mail.len() {
        let line = mail[at..].iter().position(|byte| *byte == b'\n').map_or(mail.len(), |end| at + end + 1);
        let folded = matches!(mail[at], b' ' | b'\t');
        if at > start && !folded {
            fields.push(&mail[start..at]);
            start = at;
        }
        if &mail[at..line] == b"\r\n" {
            return (fields, &mail[line..]);
        }
        at = line;
    }
    fields.push(&mail[start..]);
    (fields, &[])
}

fn is_named(field: &[u8], name: &str) -> bool {
    let end = field.iter().position(|byte| *byte == b':').unwrap_or(0);
    field[..end].trim_ascii_end().eq_ignore_ascii_case(name.as_bytes())
}

/// Relaxed header canonicalization: RFC 6376, 3.4.2.
fn relaxed_header(field: &[u8], out: &mut Vec<u8>) {
    let colon = field.iter().position(|byte| *byte == b':').unwrap_or(field.len());
    out.extend(field[..colon].trim_ascii_end().iter().map(u8::to_ascii_lowercase));
    out.push(b':');
    let start = out.len();
    for byte in field.iter().skip(colon + 1) {
        match byte {
            b'\r' | b'\n' => {}
            b' ' | b'\t' if out.len() == start || out.last() == Some(&b' ') => {}
            b' ' | b'\t' => out.push(b' '),
            byte => out.push(*byte),
        }
    }
    if out.len() > start && out.last() == Some(&b' ') {
        out.pop();
    }
    out.extend_from_slice(b"\r\n");
}

/// Relaxed body canonicalization: RFC 6376, 3.4.4.
fn relaxed_body(body: &[u8], out: &mut Vec<u8>) {
    let mut empty_lines = 0;
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let end = line.iter().rposition(|byte| !matches!(byte, b' ' | b'\t')).map_or(0, |at| at + 1);
        if end == 0 {
            empty_lines += 1;
            continue;
        }
        for _ in 0..std::mem::take(&mut empty_lines) {
            out.extend_from_slice(b"\r\n");
        }
        let mut space = false;
        for byte in &line[..end] {
            let is_space = matches!(byte, b' ' | b'\t');
            match (is_space, space) {
                (true, true) => {}
                (true, false) => out.push(b' '),
                (false, _) => out.push(*byte),
            }
            space = is_space;
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// SubjectPublicKeyInfo (RFC 5280) of an RSA public key, in DER.
fn public_key_info(rsa: &[u8]) -> Vec<u8> {
    const ALGORITHM: &[u8] = &[0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0];
    fn element(tag: u8, content: &[&[u8]]) -> Vec<u8> {
        let length: usize = content.iter().map(|part| part.len()).sum();
        let mut out = vec![tag];
        match length {
            ..=127 => out.push(length as u8),
            128..=255 => out.extend([0x81, length as u8]),
            _ => out.extend([0x82, (length >> 8) as u8, length as u8]),
        }
        content.iter().for_each(|part| out.extend_from_slice(part));
        out
    }
    element(0x30, &[ALGORITHM, &element(3, &[&[0], rsa])])
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn key(pem: &str, selector: &str) -> DkimOptions {
        DkimOptions { selector: selector.into(), domain: None, key: Some(pem.into()), key_file: None }
    }

    /// Compares the canonical headers and body.
    fn check(mail: &str, headers: &str, body: &str) {
        let (fields, rest) = split(mail.as_bytes());
        let (mut head, mut canonical) = (Vec::new(), Vec::new());
        fields.iter().for_each(|field| relaxed_header(field, &mut head));
        relaxed_body(rest, &mut canonical);
        assert_eq!(String::from_utf8_lossy(&head), headers, "{mail:?}");
        assert_eq!(String::from_utf8_lossy(&canonical), body, "{mail:?}");
    }

    #[test]
    fn the_relaxed_form() {
        // The example of RFC 6376, 3.4.5.
        check("A: X\r\nB : Y\t\r\n\tZ  \r\n\r\n C \r\nD \t E\r\n\r\n\r\n", "a:X\r\nb:Y Z\r\n", " C\r\nD E\r\n");
        check("A: X\r\n\r\n", "a:X\r\n", "");
        check("A: X\r\n\r\n \r\n\r\n", "a:X\r\n", "");
        check("A:\r\n\r\na\r\n\r\nb", "a:\r\n", "a\r\n\r\nb\r\n");
    }

    #[test]
    fn header_fields_are_named_once_more_than_they_are_there() {
        let digested = Digested::of(b"From: a\r\nTo: b\r\nX: c\r\nAuto-Submitted: d\r\n\r\nbody\r\n");
        let names = digested.names.replace("\r\n\t", "");
        assert!(names.starts_with("From:From:To:To:Cc:Subject:Date:"), "{names}");
        assert_eq!((names.matches("Auto-Submitted").count(), names.matches("List-Id").count()), (1, 0));
        assert!(digested.names.lines().all(|line| line.len() <= 76), "{}", digested.names);
        assert_eq!(digested.headers, b"from:a\r\nto:b\r\nauto-submitted:d\r\n");
    }

    #[test]
    fn keys_that_cannot_sign_say_why() {
        let check = |pem: &str, expected: &str| {
            let problems = key(pem, "s1").problems();
            assert!(problems.len() == 1 && problems[0].message.contains(expected), "{problems:?}");
        };
        check("MIIBVg", "it is not in PEM form");
        check("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "cannot be used");
        let mut options = key("x", "s 1");
        (options.key, options.domain) = (None, Some("exa mple".into()));
        let problems: Vec<String> = options.problems().iter().map(|problem| problem.path.clone()).collect();
        assert_eq!(problems, ["selector", "domain", "key"]);
    }
}
