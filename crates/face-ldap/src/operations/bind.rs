//! Who asks: RFC 4511, 4.2, and RFC 4513.
//!
//! A name with an empty password proves nothing and is refused, since some clients take its success for a proof. Operators
//! bind as `cn=admin` below the suffix; their password is a key of the API.

use futures_util::FutureExt;
use tocsin_directory::{
    Directory,
    access::Asker,
    refusal::{Code, Refusal},
};

use super::Answered;
use crate::{
    connection::{Begun, Done},
    message::Proof,
    serve::{Operators, Server},
};

pub(super) fn begin(
    server: &Server,
    is_secure: bool,
    answered: Answered,
    version: u32,
    dn: String,
    proof: Proof,
) -> Begun {
    let is_open = server.is_open(is_secure);
    let (directory, operators) = (server.directory.clone(), server.operators.clone());
    let anonymous = server.options.anonymous;
    // Even one that fails: until its answer nobody is bound.
    Begun::RunsAlone(
        async move {
            let bound = match version {
                3 if is_open && !is_anonymous(&dn, &proof) => Err(in_the_open()),
                3 => prove(&directory, &*operators, dn, proof, anonymous).await,
                _ => Err(Refusal::new(Code::ProtocolError, "this server speaks version 3 of the protocol")),
            };
            match bound {
                Ok(asker) => Done::Bound(Box::new(asker), answered.answer(Ok(Code::Success))),
                Err(refusal) => Done::Bound(Box::default(), answered.answer(Err(refusal))),
            }
        }
        .boxed(),
    )
}

/// Why no password is taken here.
pub(super) fn in_the_open() -> Refusal {
    Refusal::new(Code::ConfidentialityRequired, "passwords are taken over TLS only; begin it first")
}

async fn prove(
    directory: &Directory,
    operators: &dyn Operators,
    dn: String,
    proof: Proof,
    anonymous: bool,
) -> Result<Asker, Refusal> {
    let (dn, password) = match proof {
        Proof::Simple(password) => (dn, password),
        Proof::Sasl(mechanism, Some(said)) if mechanism == "PLAIN" => plain(directory, &said).await?,
        Proof::Sasl(mechanism, _) => {
            let what = format!("the mechanism `{mechanism}` is not known here; bind simply");
            return Err(Refusal::new(Code::AuthMethodNotSupported, what));
        }
    };
    match (dn.is_empty(), password.is_empty()) {
        (true, true) if anonymous => Ok(Asker::default()),
        (true, true) => {
            Err(Refusal::new(Code::InappropriateAuthentication, "say who you are: nobody may ask here anonymously"))
        }
        (_, true) => Err(Refusal::new(Code::UnwillingToPerform, "a name without a password proves nothing")),
        (true, false) => Err(Refusal::new(Code::InvalidCredentials, "")),
        (false, false) if is_operators_name(directory, &dn) => {
            let key = std::str::from_utf8(&password).unwrap_or_default();
            match operators.is_operator(key) {
                true => Ok(Asker { manages: true, dn: operators_name(directory), ..Asker::default() }),
                false => Err(Refusal::new(Code::InvalidCredentials, "")),
            }
        }
        (false, false) => directory.prove(&dn, password).await,
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
            directory.only_with_uid(uid).await?.unwrap_or_else(|| "cn=nobody".to_owned())
        }
    };
    Ok((dn, password.to_vec()))
}

fn operators_name(directory: &Directory) -> String {
    format!("cn=admin,{}", directory.suffix())
}

fn is_operators_name(directory: &Directory, dn: &str) -> bool {
    let schema = directory.schema();
    let normal = |text: &str| tocsin_directory::dn::Dn::parse(text).ok().map(|dn| schema.normal_dn(&dn));
    normal(dn).is_some_and(|found| Some(found) == normal(&operators_name(directory)))
}
