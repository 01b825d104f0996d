//! Extended operations: who am I (RFC 4532), password modify (RFC 3062) and refresh (RFC 2589).

use std::sync::Arc;

use futures_util::FutureExt;
use tocsin_directory::{
    Directory, Modification, ModifyType, Preconditions,
    access::AuthzId,
    ldap_error::{Code, LdapError},
};

use super::bind::tls_required;
use crate::{
    ber::{self, DecodeError, Reader},
    message::ResponseExtras,
    oids::{MODIFY_PASSWORD, REFRESH, START_TLS, WHO_AM_I},
    response::ResponseBuilder,
    server::Server,
    session::{RequestResult, Session, StartedRequest},
};

pub(super) fn begin(
    server: &Arc<Server>,
    session: &Session,
    answered: ResponseBuilder,
    oid: &str,
    value: Option<Vec<u8>>,
    out: &mut Vec<u8>,
) -> StartedRequest {
    match oid {
        WHO_AM_I => {
            let name = match session.requester.dn.as_str() {
                "" => Vec::new(),
                dn => format!("dn:{dn}").into_bytes(),
            };
            answered.write(out, Ok(Code::Success), &ResponseExtras { value: Some(name), ..ResponseExtras::default() });
            StartedRequest::Answered
        }
        MODIFY_PASSWORD => {
            if server.lacks_required_tls(session.is_secure) {
                answered.write(out, Err(&tls_required()), &ResponseExtras::default());
                return StartedRequest::Answered;
            }
            let (server, requester, address) = (server.clone(), session.requester.clone(), session.address);
            let actor = session.actor();
            StartedRequest::Runs(
                async move {
                    let value = value.unwrap_or_default();
                    let changing = change_password(&server.directory, &requester, &value);
                    let done = server.directory.audited(actor, address, "ldap.password", changing).await;
                    let (result, PasswordChangeResult { made, is_own }) = match done {
                        Ok(changed) => (Ok(Code::Success), changed),
                        Err(refusal) => {
                            // A wrong former password is a guess, as in a bind.
                            if refusal.code == Code::InvalidCredentials {
                                server.rates.count_failed_bind(address);
                            }
                            (Err(refusal), PasswordChangeResult::default())
                        }
                    };
                    let mut out = Vec::new();
                    answered.write(
                        &mut out,
                        result.as_ref().map(|code| *code),
                        &ResponseExtras { value: made, ..ResponseExtras::default() },
                    );
                    if is_own { RequestResult::PasswordChanged(out) } else { RequestResult::Answer(out) }
                }
                .boxed(),
            )
        }
        REFRESH => {
            let (directory, requester) = (server.directory.clone(), session.requester.clone());
            StartedRequest::Runs(
                async move {
                    let mut out = Vec::new();
                    let done = refresh(&directory, &requester, &value.unwrap_or_default()).await;
                    let result = done.as_ref().map(|_| Code::Success);
                    let value = done.as_ref().ok().cloned();
                    answered.write(
                        &mut out,
                        result,
                        &ResponseExtras { oid: Some(REFRESH), value, ..ResponseExtras::default() },
                    );
                    RequestResult::Answer(out)
                }
                .boxed(),
            )
        }
        _ => {
            let refusal = LdapError::new(Code::ProtocolError, format!("the extended operation {oid} is not supported"));
            answered.write(out, Err(&refusal), &ResponseExtras::default());
            StartedRequest::Answered
        }
    }
}

/// Starts TLS, if there is a certificate and no TLS yet (RFC 4511, 4.14).
pub(super) fn start_tls(
    server: &Server,
    session: &Session,
    answered: &ResponseBuilder,
    out: &mut Vec<u8>,
) -> StartedRequest {
    let extra = ResponseExtras { oid: Some(START_TLS), ..ResponseExtras::default() };
    let refusal = match &server.options.tls {
        _ if session.is_secure => LdapError::new(Code::OperationsError, "TLS is already active"),
        None => LdapError::new(
            Code::ProtocolError,
            "this server has no certificate; set `ldap.tls_certificate` and `ldap.tls_key`",
        ),
        Some(_) => {
            answered.write(out, Ok(Code::Success), &extra);
            return StartedRequest::StartsTls;
        }
    };
    answered.write(out, Err(&refusal), &extra);
    StartedRequest::Answered
}

struct NewPassword {
    user: Option<String>,
    old: Option<Vec<u8>>,
    new: Option<Vec<u8>>,
}

fn read(value: &[u8]) -> Result<NewPassword, DecodeError> {
    let mut outer = Reader(value);
    let mut request = if outer.is_empty() { Reader(&[]) } else { Reader(outer.expect(0x30)?) };
    let user = if request.tag() == Some(0x80) { Some(request.text(0x80)?) } else { None };
    let bytes = |found: Option<&[u8]>| found.map(<[u8]>::to_vec);
    Ok(NewPassword { user, old: bytes(request.optional(0x81)?), new: bytes(request.optional(0x82)?) })
}

/// Refreshes a dynamic entry (RFC 2589, section 4).
async fn refresh(directory: &Directory, requester: &AuthzId, value: &[u8]) -> Result<Vec<u8>, LdapError> {
    if !requester.is_known() {
        return Err(LdapError::new(Code::StrongerAuthRequired, "this operation requires a bind"));
    }
    let read = || {
        let mut request = Reader(Reader(value).expect(0x30)?);
        Ok((request.text(0x80)?, request.count(0x81)?))
    };
    let (dn, seconds) =
        read().map_err(|DecodeError(why)| LdapError::new(Code::ProtocolError, format!("the request has {why}")))?;
    let granted = directory.refresh(requester, &dn, seconds).await?;
    let mut value = Vec::new();
    ber::nested(&mut value, 0x30, |out| ber::number(out, 0x81, granted));
    Ok(value)
}

/// Result of a password change.
#[derive(Default)]
struct PasswordChangeResult {
    /// The generated password, if the client sent none.
    made: Option<Vec<u8>>,
    /// Whether it is the password of the requester.
    is_own: bool,
}

async fn change_password(
    directory: &Directory,
    requester: &AuthzId,
    value: &[u8],
) -> Result<PasswordChangeResult, LdapError> {
    let NewPassword { user, old, new } = read(value)
        .map_err(|DecodeError(why)| LdapError::new(Code::ProtocolError, format!("the request has {why}")))?;
    let user = user
        .map(|user| user.strip_prefix("dn:").map_or(user.clone(), str::to_owned))
        .unwrap_or_else(|| requester.dn.clone());
    if !requester.is_known() && old.is_none() || user.is_empty() {
        return Err(LdapError::new(Code::StrongerAuthRequired, "this operation requires a bind"));
    }
    // With the old password, the change counts as one by the entry itself.
    let itself = match &old {
        Some(old) => {
            let proven = directory.authenticate(&user, old.clone()).await?.requester;
            // The bind of this connection stays valid.
            let bound_identity = if proven.number == requester.number {
                requester.bound_identity.clone()
            } else {
                proven.bound_identity.clone()
            };
            Some(AuthzId { bound_identity, ..proven })
        }
        None => None,
    };
    let is_own = itself.as_ref().is_none_or(|itself| itself.number == requester.number) && requester.number.is_some();
    let (new, made) = match new {
        Some(new) => (new, None),
        None => {
            let made = directory.generate_password(&user)?;
            let mut value = Vec::new();
            ber::nested(&mut value, 0x30, |out| ber::value(out, 0x80, made.as_bytes()));
            (made.into_bytes(), Some(value))
        }
    };
    let modification = |act, value| Modification { act, attribute: "userPassword".to_owned(), values: vec![value] };
    let modifications = match old {
        Some(old) => vec![modification(ModifyType::Delete, old), modification(ModifyType::Add, new)],
        None => vec![modification(ModifyType::Replace, new)],
    };
    let changed =
        directory.modify(itself.as_ref().unwrap_or(requester), &user, modifications, Preconditions::default()).await;
    changed.map(|_| PasswordChangeResult { made, is_own: is_own && requester.must_change })
}
