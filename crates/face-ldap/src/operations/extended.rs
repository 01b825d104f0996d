//! Extended operations: who am I (RFC 4532), and change of a password (RFC 3062).

use futures_util::FutureExt;
use tocsin_directory::{
    Act, Directory, Modification, Terms,
    access::Asker,
    refusal::{Code, Refusal},
};

use super::{Answered, MODIFY_PASSWORD, START_TLS, WHO_AM_I, bind::in_the_open};
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
                    let (result, made) = match done {
                        Ok(made) => (Ok(Code::Success), made),
                        Err(refusal) => (Err(refusal), None),
                    };
                    let mut out = Vec::new();
                    answered.write(
                        &mut out,
                        result.as_ref().map(|code| *code),
                        &Extra { value: made, ..Extra::default() },
                    );
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

/// Gives the value of the answer: the password that was made up, if none was given.
async fn change_password(directory: &Directory, asker: &Asker, value: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
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
        Some(old) => Some(directory.prove(&user, old.clone()).await?),
        None => None,
    };
    let (new, made) = match new {
        Some(new) => (new, None),
        None => {
            let made = tocsin_directory::password::made_up()?;
            let mut value = Vec::new();
            ber::nested(&mut value, 0x30, |out| ber::value(out, 0x80, made.as_bytes()));
            (made.into_bytes(), Some(value))
        }
    };
    let modification = Modification { act: Act::Replace, attribute: "userPassword".to_owned(), values: vec![new] };
    directory.modify(itself.as_ref().unwrap_or(asker), &user, vec![modification], Terms::default()).await?;
    Ok(made)
}
