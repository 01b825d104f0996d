//! The relying party of OpenID Connect: logins by the authorization code flow with PKCE (RFC 7636), state and nonce.
//!
//! A [`Provider`] discovers its endpoints and keys, and follows their rotation. A login has two steps:
//! [`Provider::start`] returns the address to which the browser is sent, [`Provider::finish`] exchanges the code of the
//! provider for the [`Identity`] of the user. Logins in progress are in memory. Knows nothing of users and sessions.

mod claims; // claims of an ID token: identity and roles
mod keys; // keys of the provider, and signatures (RFC 7517, RFC 7518)
mod id_token; // validation of ID tokens (OpenID Connect Core, 3.1.3.7)
mod pending; // logins in progress
mod provider; // discovery, and the two steps of a login

pub use claims::Identity;
pub use provider::{FinishedLogin, LoginRequest, OpenidError, Provider, ProviderOptions, StartedLogin};

#[cfg(test)]
mod tests;
