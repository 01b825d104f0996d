//! Who we are to a mail server: AUTH (RFC 4954) with PLAIN, LOGIN, SCRAM-SHA-256 (RFC 7677), OAUTHBEARER (RFC 7628) and
//! XOAUTH2.

use std::{num::NonZeroU32, path::PathBuf};

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::{
    digest::{SHA256, digest},
    hmac, pbkdf2,
    rand::{SecureRandom, SystemRandom},
};
use tocsin_model::receipt::{Reason, ReasonKind};

use super::{classify::Reply, session::Session};

/// Rounds that a server may ask for: fewer make the password easy to guess, more keep us busy.
const ITERATIONS: std::ops::RangeInclusive<u32> = 4096..=1_000_000;
/// A token is no longer than this.
const TOKEN_BYTES_MAX: u64 = 16 * 1024;

/// What proves who we are.
#[derive(Debug, Clone)]
pub(super) enum Credentials {
    Password {
        username: String,
        password: String,
    },
    /// An access token of OAuth 2.0, read from its file for every session, as it is replaced every hour or so.
    Token {
        username: String,
        file: PathBuf,
    },
}

fn failed(text: impl Into<String>) -> Reason {
    Reason::new(ReasonKind::Authentication, text)
}

/// Proves who we are, in the safest way that the server offers.
pub(super) async fn authenticate(
    session: &mut Session,
    credentials: &Credentials,
    plain_allowed: bool,
) -> Result<(), Reason> {
    let in_the_open = !session.encrypted && !plain_allowed;
    let reply = match credentials {
        Credentials::Password { username, password } => {
            // Other letters would need SASLprep (RFC 4013).
            let is_plain = |text: &str| text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
            if session.offers_auth("SCRAM-SHA-256") && is_plain(username) && is_plain(password) {
                scram(session, username, password, &nonce()?).await?
            } else if in_the_open {
                return Err(failed("the server offers no encryption, and the password does not travel in clear text"));
            } else if session.offers_auth("PLAIN") {
                let secret = BASE64_STANDARD.encode(format!("\0{username}\0{password}"));
                session.ask(&format!("AUTH PLAIN {secret}\r\n")).await?
            } else if session.offers_auth("LOGIN") {
                login(session, username, password).await?
            } else {
                return Err(unknown(session, "PLAIN, LOGIN or SCRAM-SHA-256"));
            }
        }
        Credentials::Token { .. } if in_the_open => {
            return Err(failed("the server offers no encryption, and the token does not travel in clear text"));
        }
        Credentials::Token { username, file } => bearer(session, username, &read_token(file)?).await?,
    };
    match reply.code {
        235 => Ok(()),
        _ => Err(failed(format!("our credentials are not accepted: {}", reply.words()))),
    }
}

fn unknown(session: &Session, wanted: &str) -> Reason {
    failed(format!("the server offers no AUTH {wanted}, only: {}", session.extensions.auth.join(" ")))
}

async fn login(session: &mut Session, username: &str, password: &str) -> Result<Reply, Reason> {
    let mut reply = session.ask("AUTH LOGIN\r\n").await?;
    for word in [username, password] {
        if reply.code == 334 {
            reply = session.ask(&format!("{}\r\n", BASE64_STANDARD.encode(word))).await?;
        }
    }
    Ok(reply)
}

fn read_token(file: &PathBuf) -> Result<String, Reason> {
    let unusable = |why: String| failed(format!("the token in {} cannot be used: {why}", file.display()));
    let length = std::fs::metadata(file).map_err(|error| unusable(error.to_string()))?.len();
    if length > TOKEN_BYTES_MAX {
        return Err(unusable(format!("it has {length} bytes")));
    }
    let text = std::fs::read_to_string(file).map_err(|error| unusable(error.to_string()))?;
    match text.trim() {
        "" => Err(unusable("the file is empty".into())),
        token if token.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(token.to_owned()),
        _ => Err(unusable("it must be one line of visible ASCII".into())),
    }
}

async fn bearer(session: &mut Session, username: &str, token: &str) -> Result<Reply, Reason> {
    let (mechanism, secret, end) = if session.offers_auth("OAUTHBEARER") {
        let name = username.replace('=', "=3D").replace(',', "=2C");
        ("OAUTHBEARER", format!("n,a={name},\x01auth=Bearer {token}\x01\x01"), "AQ==\r\n")
    } else if session.offers_auth("XOAUTH2") {
        ("XOAUTH2", format!("user={username}\x01auth=Bearer {token}\x01\x01"), "\r\n")
    } else {
        return Err(unknown(session, "OAUTHBEARER or XOAUTH2"));
    };
    let reply = session.ask(&format!("AUTH {mechanism} {}\r\n", BASE64_STANDARD.encode(secret))).await?;
    if reply.code != 334 {
        return Ok(reply);
    }
    // What is wrong with the token, in JSON; the refusal itself follows our empty answer.
    let why = BASE64_STANDARD.decode(reply.text.trim()).unwrap_or_default();
    let mut reply = session.ask(end).await?;
    reply.text = format!("{} {}", reply.text, String::from_utf8_lossy(&why));
    Ok(reply)
}

fn nonce() -> Result<String, Reason> {
    let mut bytes = [0; 18];
    SystemRandom::new().fill(&mut bytes).map_err(|_| failed("the system has no random numbers"))?;
    Ok(BASE64_STANDARD.encode(bytes))
}

/// Both sides prove that they know the password, which does not travel.
async fn scram(session: &mut Session, username: &str, password: &str, nonce: &str) -> Result<Reply, Reason> {
    let hello = Hello::new(username, nonce);
    let first = BASE64_STANDARD.encode(format!("n,,{}", hello.bare));
    let reply = session.ask(&format!("AUTH SCRAM-SHA-256 {first}\r\n")).await?;
    if reply.code != 334 {
        return Ok(reply);
    }
    let challenge = decoded(&reply)?;
    let proof = hello.prove(password, &challenge).map_err(failed)?;
    let mut reply = session.ask(&format!("{}\r\n", BASE64_STANDARD.encode(&proof.message))).await?;
    let unproven = || failed("the server did not prove that it knows the password");
    match reply.code {
        334 => {
            let signature = decoded(&reply)?;
            let signature = signature.strip_prefix("v=").and_then(|text| BASE64_STANDARD.decode(text).ok());
            if !signature.is_some_and(|signature| proof.is_answered_by(&signature)) {
                return Err(unproven());
            }
            reply = session.ask("\r\n").await?;
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
        .ok_or_else(|| failed(format!("this is no challenge: {}", reply.words())))
}

struct Hello {
    bare: String,
    nonce: String,
}

struct Proof {
    message: String,
    /// With this the server signs the whole exchange.
    server_key: hmac::Key,
    exchange: String,
}

impl Proof {
    fn is_answered_by(&self, signature: &[u8]) -> bool {
        hmac::verify(&self.server_key, self.exchange.as_bytes(), signature).is_ok()
    }
}

impl Hello {
    fn new(username: &str, nonce: &str) -> Hello {
        let name = username.replace('=', "=3D").replace(',', "=2C");
        Hello { bare: format!("n={name},r={nonce}"), nonce: nonce.to_owned() }
    }

    /// RFC 5802, 3.
    fn prove(&self, password: &str, challenge: &str) -> Result<Proof, String> {
        let wrong = || format!("this is no SCRAM challenge: {challenge}");
        let mut parts = challenge.split(',');
        let mut part = |name: &str| parts.next().and_then(|part| part.strip_prefix(name)).ok_or_else(wrong);
        let (nonce, salt, iterations) = (part("r=")?, part("s=")?, part("i=")?);
        let salt = BASE64_STANDARD.decode(salt).map_err(|_| wrong())?;
        let iterations: u32 = iterations.parse().map_err(|_| wrong())?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err("the server's SCRAM challenge answers somebody else".into());
        }
        let rounds =
            NonZeroU32::new(iterations).filter(|rounds| ITERATIONS.contains(&rounds.get())).ok_or_else(|| {
                let (least, most) = (ITERATIONS.start(), ITERATIONS.end());
                format!("the server asks for {iterations} rounds of SCRAM; from {least} to {most} are sound")
            })?;
        let mut salted = [0; 32];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, &salt, password.as_bytes(), &mut salted);
        let mac = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text);
        let client_key = mac(&salted, b"Client Key");
        let without_proof = format!("c=biws,r={nonce}");
        let all = format!("{},{challenge},{without_proof}", self.bare);
        let signature = mac(digest(&SHA256, client_key.as_ref()).as_ref(), all.as_bytes());
        let proof: Vec<u8> = client_key.as_ref().iter().zip(signature.as_ref()).map(|(key, mask)| key ^ mask).collect();
        let server_key = hmac::Key::new(hmac::HMAC_SHA256, mac(&salted, b"Server Key").as_ref());
        let message = format!("{without_proof},p={}", BASE64_STANDARD.encode(proof));
        Ok(Proof { message, server_key, exchange: all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scram_as_in_its_standard() {
        // The exchange of RFC 7677, 3.
        let hello = Hello::new("user", "rOprNGfwEbeRWgbNEkqO");
        assert_eq!(hello.bare, "n=user,r=rOprNGfwEbeRWgbNEkqO");
        let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let challenge = format!("r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
        let proof = hello.prove("pencil", &challenge).expect("a proof");
        assert_eq!(proof.message, format!("c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="));
        let signature = BASE64_STANDARD.decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").expect("base64");
        assert!(proof.is_answered_by(&signature) && !proof.is_answered_by(&signature[1..]));
    }

    #[test]
    fn challenges_that_are_not_sound() {
        let hello = Hello::new("a,b=c", "abc");
        assert_eq!(hello.bare, "n=a=2Cb=3Dc,r=abc");
        for wrong in [
            "",
            "r=abc",
            "r=abc,s=AA==,i=4096",
            "r=xyz1,s=AA==,i=4096",
            "r=abc1,s=!,i=4096",
            "r=abc1,s=AA==,i=1",
            "r=abc1,s=AA==,i=99999999",
            "m=x,r=abc1,s=AA==,i=4096",
        ] {
            assert!(hello.prove("x", wrong).is_err(), "{wrong}");
        }
    }
}
