//! Who asks: RFC 4511, 4.2, and RFC 4513.
//!
//! A name with an empty password proves nothing and is refused, since some clients take its success for a proof. Operators
//! bind as `cn=admin` below the suffix; their password is a key of the API.

use std::sync::Arc;

use futures_util::FutureExt;
use tocsin_directory::{
    Directory, Proven,
    access::Asker,
    policy::Notice,
    refusal::{Code, Refusal},
};

use super::Answered;
use crate::{
    certificate::{Certificate, Named},
    connection::{Begun, Done, Session},
    message::{Extra, Proof},
    serve::{BoundKey, Server},
};

pub(super) fn begin(
    server: &Arc<Server>,
    session: &Session,
    answered: Answered,
    version: u32,
    dn: String,
    proof: Proof,
) -> Begun {
    let (server, is_open, certificate) =
        (server.clone(), server.is_open(session.is_secure), session.certificate.clone());
    // Even one that fails: until its answer nobody is bound.
    Begun::RunsAlone(
        async move {
            let bound = match version {
                3 if is_open && !is_anonymous(&dn, &proof) => Err(in_the_open()),
                3 => prove(&server, dn, proof, certificate).await,
                _ => Err(Refusal::new(Code::ProtocolError, "this server speaks version 3 of the protocol")),
            };
            let mut out = Vec::with_capacity(64);
            let bound = match bound {
                Ok((Proven { asker, notice }, key)) => {
                    let extra = Extra { notice: Some(notice), ..Extra::default() };
                    answered.write(&mut out, Ok(Code::Success), &extra);
                    (asker, key)
                }
                Err(refusal) => {
                    answered.write(&mut out, Err(&refusal), &Extra::default());
                    (Asker::default(), None)
                }
            };
            Done::Bound(Box::new(bound), out)
        }
        .boxed(),
    )
}

/// Why no password is taken here.
pub(super) fn in_the_open() -> Refusal {
    Refusal::new(Code::ConfidentialityRequired, "passwords are taken over TLS only; begin it first")
}

async fn prove(
    server: &Server,
    dn: String,
    proof: Proof,
    certificate: Option<Arc<Certificate>>,
) -> Result<(Proven, Option<BoundKey>), Refusal> {
    let directory = &server.directory;
    let (dn, password) = match proof {
        Proof::Simple(password) => (dn, password),
        Proof::Sasl(mechanism, Some(said)) if mechanism == "PLAIN" => plain(directory, &said).await?,
        Proof::Sasl(mechanism, said) if mechanism == "EXTERNAL" && server.takes_certificates() => {
            let certificate = certificate.ok_or_else(without_certificate)?;
            return Ok((external(server, &certificate, &said.unwrap_or_default()).await?, None));
        }
        Proof::Sasl(mechanism, _) => {
            let what = format!("the mechanism `{mechanism}` is not known here; bind simply");
            return Err(Refusal::new(Code::AuthMethodNotSupported, what));
        }
    };
    match (dn.is_empty(), password.is_empty()) {
        (true, true) if server.options.anonymous => Ok((proven(Asker::default()), None)),
        (true, true) => {
            Err(Refusal::new(Code::InappropriateAuthentication, "say who you are: nobody may ask here anonymously"))
        }
        (_, true) => Err(Refusal::new(Code::UnwillingToPerform, "a name without a password proves nothing")),
        (true, false) => Err(Refusal::new(Code::InvalidCredentials, "")),
        (false, false) if is_operators_name(directory, &dn) => {
            let text = std::str::from_utf8(&password).unwrap_or_default();
            let key = BoundKey::read(&*server.operators, text).zip(server.operators.containers(text));
            let (key, containers) = key.ok_or_else(|| Refusal::new(Code::InvalidCredentials, ""))?;
            Ok((proven(operator(directory, &containers)?), Some(key)))
        }
        (false, false) => Ok((directory.prove(&dn, password).await?, None)),
    }
}

/// Who has no password that anything could be told of.
fn proven(asker: Asker) -> Proven {
    Proven { asker, notice: Notice::default() }
}

fn without_certificate() -> Refusal {
    let what = "EXTERNAL needs a certificate of the client, given when TLS begins; begin TLS with one";
    Refusal::new(Code::InappropriateAuthentication, what)
}

/// RFC 4422, appendix A: who a client is says its certificate. Nobody speaks for another.
async fn external(server: &Server, certificate: &Certificate, said: &[u8]) -> Result<Proven, Refusal> {
    let directory = &server.directory;
    let mut named = None;
    for rule in &server.options.certificate_rules {
        named = match rule.name(certificate) {
            Some(Named::Entry(dn)) => directory.vouched(&dn).await?,
            Some(Named::Only(attribute, value)) => match directory.only_with(&attribute, value.as_bytes()).await? {
                Some(dn) => directory.vouched(&dn).await?,
                None => None,
            },
            None => None,
        };
        if named.is_some() {
            break;
        }
    }
    let subject = &certificate.subject;
    let nobody = || {
        let what = format!("no entry belongs to the certificate of `{subject}`; the rules are ldap.certificate_rules");
        Refusal::new(Code::InvalidCredentials, what)
    };
    let asker = named.ok_or_else(nobody)?;
    let is_itself = match std::str::from_utf8(said).unwrap_or("?") {
        "" => true,
        said => said.strip_prefix("dn:").and_then(|dn| directory.normal(dn)).is_some_and(|key| key == asker.key),
    };
    match is_itself {
        true => Ok(proven(asker)),
        false => Err(Refusal::new(Code::InvalidCredentials, "nobody speaks for another here; leave the identity away")),
    }
}

fn is_anonymous(dn: &str, proof: &Proof) -> bool {
    dn.is_empty() && matches!(proof, Proof::Simple(password) if password.is_empty())
}

/// Name and password of RFC 4616: the name is a distinguished one behind `dn:`, or a `uid`. Nobody speaks for another.
async fn plain(directory: &Directory, said: &[u8]) -> Result<(String, Vec<u8>), Refusal> {
    let wrong = || Refusal::new(Code::InvalidCredentials, "");
    let parts: Vec<&[u8]> = said.splitn(3, |byte| *byte == 0).collect();
    let [other, name, password] = parts.as_slice() else { return Err(wrong()) };
    let name = std::str::from_utf8(name).map_err(|_| wrong())?;
    if password.is_empty() || !other.is_empty() && *other != name.as_bytes() {
        return Err(wrong());
    }
    let dn = match name.strip_prefix("dn:") {
        Some(dn) => dn.to_owned(),
        None => {
            let uid = name.strip_prefix("u:").unwrap_or(name);
            // Whoever is not there fails as whoever does not know the password.
            directory.only_with("uid", uid.as_bytes()).await?.unwrap_or_else(|| "cn=nobody".to_owned())
        }
    };
    Ok((dn, password.to_vec()))
}

/// An operator of the whole directory, or of containers that its key is limited to.
fn operator(directory: &Directory, containers: &[String]) -> Result<Asker, Refusal> {
    let dn = operators_name(directory);
    if containers.is_empty() {
        return Ok(Asker { manages: true, dn, ..Asker::default() });
    }
    // A container that is no name any more gives nothing.
    let within: Vec<String> = containers.iter().filter_map(|container| directory.normal(container)).collect();
    if within.is_empty() {
        return Err(Refusal::new(Code::InvalidCredentials, ""));
    }
    let key = directory.normal(&dn).unwrap_or_else(|| dn.clone());
    Ok(Asker { key, dn, within, ..Asker::default() })
}

fn operators_name(directory: &Directory) -> String {
    format!("cn=admin,{}", directory.suffix())
}

fn is_operators_name(directory: &Directory, dn: &str) -> bool {
    directory.normal(dn).is_some_and(|found| Some(found) == directory.normal(&operators_name(directory)))
}
