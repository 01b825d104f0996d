//! SMTP authentication: AUTH (RFC 4954) with PLAIN, LOGIN, SCRAM-SHA-256 (RFC 7677), OAUTHBEARER (RFC 7628) and
//! XOAUTH2.

use std::path::{Path, PathBuf};

use base64::{Engine, prelude::BASE64_STANDARD};
use tocsin_connect::{
    files::Files,
    scram::{self, Hello},
};
use tocsin_model::receipt::{Reason, ReasonKind};

use super::{classify::Reply, session::Session};
use crate::repeated::mask;

/// Longest token.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// Credentials of a client.
#[derive(Debug, Clone)]
pub(super) enum Credentials {
    Password {
        username: String,
        password: String,
    },
    /// An OAuth 2.0 access token, read from its file for every session because it is replaced about once an hour.
    Token {
        username: String,
        file: PathBuf,
        files: Files,
    },
}

impl Credentials {
    /// The secrets in their encoded forms, which a server may repeat.
    fn forms(&self) -> Vec<String> {
        match self {
            Credentials::Password { username, password } => {
                let plain = format!("\0{username}\0{password}");
                vec![BASE64_STANDARD.encode(plain), BASE64_STANDARD.encode(password), password.clone()]
            }
            Credentials::Token { username, file, files } => match read_token(file, files) {
                Ok(token) => {
                    let messages = [oauthbearer(username, &token), xoauth2(username, &token)];
                    messages.map(|message| BASE64_STANDARD.encode(message)).into_iter().chain([token]).collect()
                }
                Err(_) => Vec::new(),
            },
        }
    }
}

fn failed(text: impl Into<String>) -> Reason {
    Reason::new(ReasonKind::Authentication, text)
}

/// Authenticates with the safest mechanism that the server offers.
pub(super) async fn authenticate(
    session: &mut Session,
    credentials: &Credentials,
    plain_allowed: bool,
) -> Result<(), Reason> {
    let in_the_open = !session.encrypted && !plain_allowed;
    let reply = match credentials {
        Credentials::Password { username, password } => {
            let prepared = scram::prepared(username).zip(scram::prepared(password));
            if let Some((username, password)) = prepared.filter(|_| session.offers_auth("SCRAM-SHA-256")) {
                authenticate_scram(session, &username, &password).await?
            } else if in_the_open {
                return Err(failed("the server offers no encryption, and the password does not travel in clear text"));
            } else if session.offers_auth("PLAIN") {
                let secret = BASE64_STANDARD.encode(format!("\0{username}\0{password}"));
                session.command(&format!("AUTH PLAIN {secret}\r\n")).await?
            } else if session.offers_auth("LOGIN") {
                login(session, username, password).await?
            } else {
                return Err(unknown(session, "PLAIN, LOGIN or SCRAM-SHA-256"));
            }
        }
        Credentials::Token { .. } if in_the_open => {
            return Err(failed("the server offers no encryption, and the token does not travel in clear text"));
        }
        Credentials::Token { username, file, files } => bearer(session, username, &read_token(file, files)?).await?,
    };
    match reply.code {
        235 => Ok(()),
        _ => {
            let words = mask(&reply.words(), credentials.forms().iter().map(String::as_str));
            Err(failed(format!("our credentials are not accepted: {words}")))
        }
    }
}

fn unknown(session: &Session, requested: &str) -> Reason {
    failed(format!("the server offers no AUTH {requested}, only: {}", session.extensions.auth.join(" ")))
}

async fn login(session: &mut Session, username: &str, password: &str) -> Result<Reply, Reason> {
    let mut reply = session.command("AUTH LOGIN\r\n").await?;
    for word in [username, password] {
        if reply.code == 334 {
            reply = session.command(&format!("{}\r\n", BASE64_STANDARD.encode(word))).await?;
        }
    }
    Ok(reply)
}

fn read_token(file: &Path, files: &Files) -> Result<String, Reason> {
    let unusable = |why: String| failed(format!("the token in {} cannot be used: {why}", file.display()));
    let text = files.read_text(file).map_err(unusable)?;
    if text.len() > TOKEN_BYTES_MAX {
        return Err(unusable(format!("it has {} bytes", text.len())));
    }
    match text.trim() {
        "" => Err(unusable("the file is empty".into())),
        token if token.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(token.to_owned()),
        _ => Err(unusable("it must be one line of visible ASCII".into())),
    }
}

/// The initial response of OAUTHBEARER (RFC 7628).
fn oauthbearer(username: &str, token: &str) -> String {
    let name = username.replace('=', "=3D").replace(',', "=2C");
    format!("n,a={name},\x01auth=Bearer {token}\x01\x01")
}

/// The initial response of XOAUTH2, Google's older mechanism.
fn xoauth2(username: &str, token: &str) -> String {
    format!("user={username}\x01auth=Bearer {token}\x01\x01")
}

async fn bearer(session: &mut Session, username: &str, token: &str) -> Result<Reply, Reason> {
    let (mechanism, secret, end) = if session.offers_auth("OAUTHBEARER") {
        ("OAUTHBEARER", oauthbearer(username, token), "AQ==\r\n")
    } else if session.offers_auth("XOAUTH2") {
        ("XOAUTH2", xoauth2(username, token), "\r\n")
    } else {
        return Err(unknown(session, "OAUTHBEARER or XOAUTH2"));
    };
    let reply = session.command(&format!("AUTH {mechanism} {}\r\n", BASE64_STANDARD.encode(secret))).await?;
    if reply.code != 334 {
        return Ok(reply);
    }
    // The error of the token, in JSON; the refusal itself follows our empty answer.
    let why = BASE64_STANDARD.decode(reply.text.trim()).unwrap_or_default();
    let mut reply = session.command(end).await?;
    reply.text = format!("{} {}", reply.text, String::from_utf8_lossy(&why));
    Ok(reply)
}

/// SCRAM: client and server prove that they know the password without sending it.
async fn authenticate_scram(session: &mut Session, username: &str, password: &str) -> Result<Reply, Reason> {
    let nonce = scram::nonce().ok_or_else(|| failed("the system has no random numbers"))?;
    let hello = Hello::new(scram::Hash::Sha256, username, &nonce);
    let first = BASE64_STANDARD.encode(hello.message());
    let reply = session.command(&format!("AUTH SCRAM-SHA-256 {first}\r\n")).await?;
    if reply.code != 334 {
        return Ok(reply);
    }
    let challenge = decoded(&reply)?;
    let proof = hello.client_proof(password, &challenge).map_err(failed)?;
    let mut reply = session.command(&format!("{}\r\n", BASE64_STANDARD.encode(&proof.message))).await?;
    let unproven = || failed("the server did not prove that it knows the password");
    match reply.code {
        334 => {
            if !proof.is_answered_by(&decoded(&reply)?) {
                return Err(unproven());
            }
            reply = session.command("\r\n").await?;
            Ok(reply)
        }
        235 => Err(unproven()),
        _ => Ok(reply),
    }
}

fn decoded(reply: &Reply) -> Result<String, Reason> {
    let bytes = BASE64_STANDARD.decode(reply.text.trim()).ok();
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| failed(format!("this is not a challenge: {}", reply.words())))
}
