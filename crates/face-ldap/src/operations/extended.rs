//! Extended operations: who am I (RFC 4532), change of a password (RFC 3062), and refresh of an entry (RFC 2589).

use futures_util::FutureExt;
use tocsin_directory::{
    Act, Directory, Modification, Terms,
    access::Asker,
    refusal::{Code, Refusal},
};

use super::{Answered, MODIFY_PASSWORD, REFRESH, START_TLS, WHO_AM_I, bind::in_the_open};
use crate::{
    ber::{self, Garbled, Reader},
    connection::{Begun, Done, Session},
    message::Extra,
    serve::Server,
};

pub(super) fn begin(
    server: &Server,
    session: &Session,
    answered: Answered,
    oid: &str,
    value: Option<Vec<u8>>,
    out: &mut Vec<u8>,
) -> Begun {
    match oid {
        WHO_AM_I => {
            let name = match session.asker.dn.as_str() {
                "" => Vec::new(),
                dn => format!("dn:{dn}").into_bytes(),
            };
            answered.write(out, Ok(Code::Success), &Extra { value: Some(name), ..Extra::default() });
            Begun::Answered
        }
        MODIFY_PASSWORD => {
            if server.is_open(session.is_secure) {
                answered.write(out, Err(&in_the_open()), &Extra::default());
                return Begun::Answered;
            }
            let (directory, asker) = (server.directory.clone(), session.asker.clone());
            Begun::Runs(
                async move {
                    let done = change_password(&directory, &asker, &value.unwrap_or_default()).await;
                    let (result, Changed { made, is_own }) = match done {
                        Ok(changed) => (Ok(Code::Success), changed),
                        Err(refusal) => (Err(refusal), Changed::default()),
                    };
                    let mut out = Vec::new();
                    answered.write(
                        &mut out,
                        result.as_ref().map(|code| *code),
                        &Extra { value: made, ..Extra::default() },
                    );
                    if is_own { Done::Freed(out) } else { Done::Answer(out) }
                }
                .boxed(),
            )
        }
        REFRESH => {
            let (directory, asker) = (server.directory.clone(), session.asker.clone());
            Begun::Runs(
                async move {
                    let mut out = Vec::new();
                    let done = refresh(&directory, &asker, &value.unwrap_or_default()).await;
                    let result = done.as_ref().map(|_| Code::Success);
                    let value = done.as_ref().ok().cloned();
                    answered.write(&mut out, result, &Extra { oid: Some(REFRESH), value, ..Extra::default() });
                    Done::Answer(out)
                }
                .boxed(),
            )
        }
        _ => {
            let refusal = Refusal::new(Code::ProtocolError, format!("there is no extended operation {oid}"));
            answered.write(out, Err(&refusal), &Extra::default());
            Begun::Answered
        }
    }
}

/// Begins TLS, if there is a certificate and no TLS yet: RFC 4511, 4.14.
pub(super) fn start_tls(server: &Server, session: &Session, answered: &Answered, out: &mut Vec<u8>) -> Begun {
    let extra = Extra { oid: Some(START_TLS), ..Extra::default() };
    let refusal = match &server.options.tls {
        _ if session.is_secure => Refusal::new(Code::OperationsError, "TLS is on already"),
        None => Refusal::new(
            Code::ProtocolError,
            "this server has no certificate; set ldap.tls_certificate and ldap.tls_key",
        ),
        Some(_) => {
            answered.write(out, Ok(Code::Success), &extra);
            return Begun::StartsTls;
        }
    };
    answered.write(out, Err(&refusal), &extra);
    Begun::Answered
}

struct NewPassword {
    user: Option<String>,
    old: Option<Vec<u8>>,
    new: Option<Vec<u8>>,
}

fn read(value: &[u8]) -> Result<NewPassword, Garbled> {
    let mut outer = Reader(value);
    let mut request = if outer.is_empty() { Reader(&[]) } else { Reader(outer.expect(0x30)?) };
    let user = if request.tag() == Some(0x80) { Some(request.text(0x80)?) } else { None };
    let bytes = |found: Option<&[u8]>| found.map(<[u8]>::to_vec);
    Ok(NewPassword { user, old: bytes(request.optional(0x81)?), new: bytes(request.optional(0x82)?) })
}

/// Lets an entry live on: RFC 2589, 4.
async fn refresh(directory: &Directory, asker: &Asker, value: &[u8]) -> Result<Vec<u8>, Refusal> {
    if !asker.is_known() {
        return Err(Refusal::new(Code::StrongerAuthRequired, "only whoever proved who they are may do this"));
    }
    let read = || {
        let mut request = Reader(Reader(value).expect(0x30)?);
        Ok((request.text(0x80)?, request.count(0x81)?))
    };
    let (dn, seconds) =
        read().map_err(|Garbled(why)| Refusal::new(Code::ProtocolError, format!("the request has {why}")))?;
    let granted = directory.refresh(asker, &dn, seconds).await?;
    let mut value = Vec::new();
    ber::nested(&mut value, 0x30, |out| ber::number(out, 0x81, granted));
    Ok(value)
}

/// A password that was changed.
#[derive(Default)]
struct Changed {
    /// The value of the answer: the password that was made up, if none was given.
    made: Option<Vec<u8>>,
    /// Whether it is the one of who asked.
    is_own: bool,
}

async fn change_password(directory: &Directory, asker: &Asker, value: &[u8]) -> Result<Changed, Refusal> {
    let NewPassword { user, old, new } =
        read(value).map_err(|Garbled(why)| Refusal::new(Code::ProtocolError, format!("the request has {why}")))?;
    let user = user
        .map(|user| user.strip_prefix("dn:").map_or(user.clone(), str::to_owned))
        .unwrap_or_else(|| asker.dn.clone());
    if !asker.is_known() && old.is_none() || user.is_empty() {
        return Err(Refusal::new(Code::StrongerAuthRequired, "only whoever proved who they are may do this"));
    }
    // With the old password whoever knows it is the entry itself.
    let itself = match &old {
        Some(old) => {
            let proven = directory.prove(&user, old.clone()).await?.asker;
            // The connection that it is bound by already stays bound.
            let standing = if proven.number == asker.number { asker.standing.clone() } else { proven.standing.clone() };
            Some(Asker { standing, ..proven })
        }
        None => None,
    };
    let is_own = itself.as_ref().is_none_or(|itself| itself.number == asker.number) && asker.number.is_some();
    let (new, made) = match new {
        Some(new) => (new, None),
        None => {
            let made = directory.made_up_password(&user)?;
            let mut value = Vec::new();
            ber::nested(&mut value, 0x30, |out| ber::value(out, 0x80, made.as_bytes()));
            (made.into_bytes(), Some(value))
        }
    };
    let modification = |act, value| Modification { act, attribute: "userPassword".to_owned(), values: vec![value] };
    let modifications = match old {
        Some(old) => vec![modification(Act::Delete, old), modification(Act::Add, new)],
        None => vec![modification(Act::Replace, new)],
    };
    let changed = directory.modify(itself.as_ref().unwrap_or(asker), &user, modifications, Terms::default()).await;
    changed.map(|_| Changed { made, is_own: is_own && asker.must_change })
}
