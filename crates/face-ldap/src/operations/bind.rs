//! Bind (RFC 4511, 4.2; RFC 4513).
//!
//! An unauthenticated bind (a name without a password) is rejected, since some clients take its success for
//! authentication. Operators bind as `cn=admin` below the suffix, with an API key as password.

use std::sync::Arc;

use futures_util::FutureExt;
use tocsin_directory::{
    BindResult, Directory,
    access::AuthzId,
    ldap_error::{Code, LdapError},
    policy::Notice,
};

use crate::{
    certificate::{Certificate, EntryReference},
    message::{BindCredentials, ResponseExtras},
    response::ResponseBuilder,
    server::{BoundKey, Server},
    session::{RequestResult, Session, StartedRequest},
};

pub(super) fn begin(
    server: &Arc<Server>,
    session: &Session,
    answered: ResponseBuilder,
    version: u32,
    dn: String,
    proof: BindCredentials,
) -> StartedRequest {
    let (server, is_open, certificate) =
        (server.clone(), server.lacks_required_tls(session.is_secure), session.certificate.clone());
    // An anonymous bind was counted as a request.
    let (address, is_counted) = (session.address, is_anonymous(&dn, &proof));
    // A failed bind also makes the connection anonymous until the response.
    StartedRequest::RunsAlone(
        async move {
            let bound = match version {
                3 if is_open && !is_anonymous(&dn, &proof) => Err(tls_required()),
                3 => authenticate(&server, dn, proof, certificate).await,
                _ => Err(LdapError::new(Code::ProtocolError, "only LDAP version 3 is supported")),
            };
            let mut out = Vec::with_capacity(64);
            let bound = match bound {
                Ok((BindResult { requester, notice }, key)) => {
                    let extra = ResponseExtras { notice: Some(notice), ..ResponseExtras::default() };
                    answered.write(&mut out, Ok(Code::Success), &extra);
                    (requester, key)
                }
                Err(refusal) => {
                    // Errors of the server are no guesses of the client.
                    if !is_counted && !matches!(refusal.code, Code::Busy | Code::Unavailable | Code::Other) {
                        server.rates.count_failed_bind(address);
                    }
                    answered.write(&mut out, Err(&refusal), &ResponseExtras::default());
                    (AuthzId::default(), None)
                }
            };
            RequestResult::Bound(Box::new(bound), out)
        }
        .boxed(),
    )
}

/// The error for a password without TLS.
pub(super) fn tls_required() -> LdapError {
    LdapError::new(Code::ConfidentialityRequired, "passwords are accepted over TLS only; start TLS first")
}

async fn authenticate(
    server: &Server,
    dn: String,
    proof: BindCredentials,
    certificate: Option<Arc<Certificate>>,
) -> Result<(BindResult, Option<BoundKey>), LdapError> {
    let directory = &server.directory;
    let (dn, password, authorization) = match proof {
        BindCredentials::Simple(password) => (dn, password, None),
        BindCredentials::Sasl(mechanism, Some(said)) if mechanism == "PLAIN" => plain(directory, &said).await?,
        BindCredentials::Sasl(mechanism, said) if mechanism == "EXTERNAL" && server.accepts_certificates() => {
            let certificate = certificate.ok_or_else(without_certificate)?;
            return Ok((external(server, &certificate, &said.unwrap_or_default()).await?, None));
        }
        BindCredentials::Sasl(mechanism, _) => {
            let what = format!("the SASL mechanism `{mechanism}` is not supported; use a simple bind");
            return Err(LdapError::new(Code::AuthMethodNotSupported, what));
        }
    };
    let bound = match (dn.is_empty(), password.is_empty()) {
        (true, true) if server.options.anonymous => Ok((proven(AuthzId::default()), None)),
        (true, true) => {
            Err(LdapError::new(Code::InappropriateAuthentication, "anonymous access is disabled; bind first"))
        }
        (_, true) => Err(LdapError::new(Code::UnwillingToPerform, "a bind with a name needs a password")),
        (true, false) => Err(LdapError::new(Code::InvalidCredentials, "")),
        (false, false) if is_operators_name(directory, &dn) => {
            let text = std::str::from_utf8(&password).unwrap_or_default();
            let key = BoundKey::read(&*server.operators, text).zip(server.operators.containers(text));
            let (key, containers) = key.ok_or_else(|| LdapError::new(Code::InvalidCredentials, ""))?;
            Ok((proven(operator(directory, &containers)?), Some(key)))
        }
        (false, false) => Ok((directory.authenticate(&dn, password).await?, None)),
    }?;
    // Read only after the password, so that neither response nor time depends on the existence of this identity.
    if let Some(identity) = authorization {
        let other = directory.normal(&named_dn(directory, &identity).await?);
        if other.is_none() || other != directory.normal(&dn) {
            return Err(LdapError::new(Code::InvalidCredentials, ""));
        }
    }
    Ok(bound)
}

/// A successful bind without password policy warnings.
fn proven(requester: AuthzId) -> BindResult {
    BindResult { requester, notice: Notice::default() }
}

fn without_certificate() -> LdapError {
    let what = "EXTERNAL needs a client certificate from the TLS handshake";
    LdapError::new(Code::InappropriateAuthentication, what)
}

/// SASL EXTERNAL (RFC 4422, appendix A): the identity is the client certificate. Authorization as another identity is
/// rejected.
async fn external(server: &Server, certificate: &Certificate, said: &[u8]) -> Result<BindResult, LdapError> {
    let directory = &server.directory;
    let mut named = None;
    for rule in &server.options.certificate_rules {
        named = match rule.name(certificate) {
            Some(EntryReference::Entry(dn)) => directory.bind_external(&dn).await?,
            Some(EntryReference::Only(attribute, value)) => {
                match directory.only_with(&attribute, value.as_bytes()).await? {
                    Some(dn) => directory.bind_external(&dn).await?,
                    None => None,
                }
            }
            None => None,
        };
        if named.is_some() {
            break;
        }
    }
    let subject = &certificate.subject;
    let nobody = || {
        let what = format!("no entry matches the certificate of `{subject}`; see `ldap.certificate_rules`");
        LdapError::new(Code::InvalidCredentials, what)
    };
    let requester = named.ok_or_else(nobody)?;
    let is_itself = match std::str::from_utf8(said).unwrap_or("?") {
        "" => true,
        said => said.strip_prefix("dn:").and_then(|dn| directory.normal(dn)).is_some_and(|key| key == requester.key),
    };
    match is_itself {
        true => Ok(proven(requester)),
        false => Err(LdapError::new(
            Code::InvalidCredentials,
            "authorization as another identity is not supported; omit the authorization identity",
        )),
    }
}

/// Whether a bind is anonymous (RFC 4513, 5.1.1).
pub(crate) fn is_anonymous(dn: &str, proof: &BindCredentials) -> bool {
    dn.is_empty() && matches!(proof, BindCredentials::Simple(password) if password.is_empty())
}

/// Parses SASL PLAIN (RFC 4616): the name is `dn:` and a DN, or a `uid`. Returns the DN, the password, and the
/// authorization identity if it is written otherwise than the name; the caller rejects one of another entry.
async fn plain(directory: &Directory, said: &[u8]) -> Result<(String, Vec<u8>, Option<String>), LdapError> {
    let wrong = || LdapError::new(Code::InvalidCredentials, "");
    let parts: Vec<&[u8]> = said.splitn(3, |byte| *byte == 0).collect();
    let [other, name, password] = parts.as_slice() else { return Err(wrong()) };
    let [other, name] = [other, name].map(|text| std::str::from_utf8(text).map_err(|_| wrong()));
    let (other, name) = (other?, name?);
    if password.is_empty() {
        return Err(wrong());
    }
    let authorization = (!other.is_empty() && other != name).then(|| other.to_owned());
    Ok((named_dn(directory, name).await?, password.to_vec(), authorization))
}

/// The DN of an authentication or authorization identity (RFC 4513, 5.2.1.8), or of a bare `uid`. An unknown name has
/// the DN of no entry, so that it fails in the same way as a wrong password.
async fn named_dn(directory: &Directory, name: &str) -> Result<String, LdapError> {
    match name.strip_prefix("dn:") {
        Some(dn) => Ok(dn.to_owned()),
        None => {
            let uid = name.strip_prefix("u:").unwrap_or(name);
            Ok(directory.only_with("uid", uid.as_bytes()).await?.unwrap_or_else(|| "cn=nobody".to_owned()))
        }
    }
}

/// Identity of an operator, for the whole directory or the containers to which the key is limited.
fn operator(directory: &Directory, containers: &[String]) -> Result<AuthzId, LdapError> {
    let dn = operators_name(directory);
    if containers.is_empty() {
        return Ok(AuthzId { manages: true, dn, ..AuthzId::default() });
    }
    // A container whose name is malformed grants nothing.
    let within: Vec<String> = containers.iter().filter_map(|container| directory.normal(container)).collect();
    if within.is_empty() {
        return Err(LdapError::new(Code::InvalidCredentials, ""));
    }
    let key = directory.normal(&dn).unwrap_or_else(|| dn.clone());
    Ok(AuthzId { key, dn, within, ..AuthzId::default() })
}

fn operators_name(directory: &Directory) -> String {
    format!("cn=admin,{}", directory.suffix())
}

fn is_operators_name(directory: &Directory, dn: &str) -> bool {
    directory.normal(dn).is_some_and(|found| Some(found) == directory.normal(&operators_name(directory)))
}
