//! A provider: discovery of its endpoints and keys, and the two steps of a login.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use reqwest::{Client, RequestBuilder, redirect::Policy};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use tocsin_model::time::Timestamp;
use url::Url;

use crate::{
    claims::Identity,
    id_token::{Expected, IdToken},
    keys::{Key, KeySet},
    pending::{PendingLogin, PendingLogins, challenge, random_text},
};

/// Time after which endpoints and keys are fetched again.
const REFRESH: Duration = Duration::from_secs(60 * 60);
/// Minimum time between fetches for an unknown key.
const KEY_FETCH_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum duration of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Options of a provider.
#[derive(Clone)]
pub struct ProviderOptions {
    /// Issuer, whose discovery document is below `/.well-known/openid-configuration`.
    pub issuer: Url,
    /// Client id.
    pub client_id: String,
    /// Client secret; `None`: a public client, which PKCE alone protects.
    pub client_secret: Option<String>,
    /// Scopes beside `openid`.
    pub scopes: Vec<String>,
    /// Claim whose values map to roles; with dots also a path.
    pub roles_claim: String,
    /// Roles by claim value.
    pub roles: BTreeMap<String, String>,
}

/// Reason why a login failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenidError {
    /// The provider does not answer, or not as it should.
    #[error("the OpenID provider cannot be used: {0}")]
    Unavailable(String),
    /// The provider rejected the login or the code, with this error.
    #[error("the OpenID provider rejected the login: {0}")]
    Rejected(String),
    /// The login was not started here, has finished, or took too long.
    #[error("the login was not started in this browser, or took too long")]
    UnknownState,
    /// The ID token is not valid, by this part.
    #[error("the ID token of the provider is not valid: `{0}`")]
    InvalidToken(&'static str),
}

/// Parameters of a login, which its end returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginRequest {
    /// Address to which the provider sends the browser back.
    pub redirect_uri: String,
    /// Path of the page to open afterwards.
    pub return_to: String,
    /// Whether the user of a session must authenticate again.
    pub reauthenticates: bool,
}

/// A login that was started.
#[derive(Debug)]
pub struct StartedLogin {
    /// Address of the provider to which the browser is sent.
    pub url: String,
    /// State, which the browser must present at the end.
    pub state: String,
}

/// A login that succeeded.
#[derive(Debug)]
pub struct FinishedLogin {
    /// The user.
    pub identity: Identity,
    /// The parameters of its start.
    pub request: LoginRequest,
}

/// A provider. Endpoints and keys are fetched when they are first needed.
pub struct Provider {
    options: ProviderOptions,
    client: Client,
    discovered: tokio::sync::Mutex<Option<(Timestamp, Arc<Discovered>)>>,
    /// End-session endpoint, once known.
    end_session: Mutex<Option<Url>>,
    pending: Mutex<PendingLogins>,
}

/// Discovery document (OpenID Connect Discovery, 3), with the keys.
struct Discovered {
    document: Document,
    keys: Vec<Key>,
}

#[derive(Debug, Clone, Deserialize)]
struct Document {
    issuer: String,
    #[serde(deserialize_with = "url_of")]
    authorization_endpoint: Url,
    #[serde(deserialize_with = "url_of")]
    token_endpoint: Url,
    #[serde(deserialize_with = "url_of")]
    jwks_uri: Url,
    #[serde(default, deserialize_with = "url_if_given")]
    end_session_endpoint: Option<Url>,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

fn url_of<'de, D: Deserializer<'de>>(reader: D) -> Result<Url, D::Error> {
    String::deserialize(reader)?.parse().map_err(Error::custom)
}

fn url_if_given<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Url>, D::Error> {
    Ok(Option::<String>::deserialize(reader)?.and_then(|text| text.parse().ok()))
}

#[derive(Deserialize)]
struct TokenResponse {
    id_token: Option<String>,
    error: Option<String>,
}

impl Provider {
    /// A provider with these options.
    ///
    /// # Errors
    /// The HTTP client cannot be made.
    pub fn new(options: ProviderOptions) -> Result<Provider, OpenidError> {
        // The first cryptography provider of the process stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().timeout(TIMEOUT).no_proxy().redirect(Policy::none()).build();
        let client = client.map_err(|error| OpenidError::Unavailable(error.to_string()))?;
        Ok(Provider {
            options,
            client,
            discovered: tokio::sync::Mutex::default(),
            end_session: Mutex::default(),
            pending: Mutex::default(),
        })
    }

    /// Whether claim values are mapped to roles.
    pub fn maps_roles(&self) -> bool {
        !self.options.roles.is_empty()
    }

    /// Starts a login.
    ///
    /// # Errors
    /// The provider cannot be used.
    pub async fn start(&self, request: LoginRequest, now: Timestamp) -> Result<StartedLogin, OpenidError> {
        let discovered = self.discover(now, None).await?;
        let (state, nonce, verifier) = (random_text()?, random_text()?, random_text()?);
        let mut url = discovered.document.authorization_endpoint.clone();
        let mut scopes = vec!["openid"];
        scopes.extend(self.options.scopes.iter().map(String::as_str).filter(|scope| *scope != "openid"));
        {
            let mut query = url.query_pairs_mut();
            query
                .append_pair("response_type", "code")
                .append_pair("client_id", &self.options.client_id)
                .append_pair("redirect_uri", &request.redirect_uri)
                .append_pair("scope", &scopes.join(" "))
                .append_pair("state", &state)
                .append_pair("nonce", &nonce)
                .append_pair("code_challenge", &challenge(&verifier))
                .append_pair("code_challenge_method", "S256");
            if request.reauthenticates {
                query.append_pair("prompt", "login").append_pair("max_age", "0");
            }
        }
        let login = PendingLogin { request, nonce, verifier, started_at: now };
        self.pending.lock().add(state.clone(), login);
        Ok(StartedLogin { url: url.into(), state })
    }

    /// Discards a login that the provider rejected, and returns its parameters.
    pub fn cancel(&self, state: &str, now: Timestamp) -> Option<LoginRequest> {
        self.pending.lock().take(state, now).map(|login| login.request)
    }

    /// Finishes a login: exchanges the code for an ID token, and validates it. A state works once.
    ///
    /// # Errors
    /// The state is unknown, the provider rejects the code or cannot be used, or the ID token is not valid.
    pub async fn finish(&self, state: &str, code: &str, now: Timestamp) -> Result<FinishedLogin, OpenidError> {
        let login = self.pending.lock().take(state, now).ok_or(OpenidError::UnknownState)?;
        let discovered = self.discover(now, None).await?;
        let text = self.exchange(&discovered.document, &login, code).await?;
        let token = IdToken::read(&text).ok_or(OpenidError::InvalidToken("form"))?;
        // Keys are rotated: a signature by an unknown key is checked again with the present keys.
        if !token.is_signed_by(&discovered.keys)
            && !token.is_signed_by(&self.discover(now, Some(KEY_FETCH_INTERVAL)).await?.keys)
        {
            return Err(OpenidError::InvalidToken("signature"));
        }
        let started = login.started_at.as_millis() / 1_000;
        let expected = Expected {
            issuer: &discovered.document.issuer,
            client: &self.options.client_id,
            nonce: &login.nonce,
            authenticated_after: login.request.reauthenticates.then_some(started),
            now,
        };
        let claims = token.claims(&expected).map_err(OpenidError::InvalidToken)?;
        let identity = Identity::of(&claims, &self.options.roles_claim, &self.options.roles);
        let identity = identity.ok_or(OpenidError::InvalidToken("sub"))?;
        Ok(FinishedLogin { identity, request: login.request })
    }

    /// Address that ends the session at the provider (RP-Initiated Logout), if it has one and is known.
    pub fn logout_url(&self, return_to: &str) -> Option<String> {
        let mut url = self.end_session.lock().clone()?;
        url.query_pairs_mut()
            .append_pair("client_id", &self.options.client_id)
            .append_pair("post_logout_redirect_uri", return_to);
        Some(url.into())
    }

    /// Exchanges a code for an ID token.
    async fn exchange(&self, document: &Document, login: &PendingLogin, code: &str) -> Result<String, OpenidError> {
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &login.request.redirect_uri),
            ("code_verifier", &login.verifier),
        ];
        let client = self.options.client_id.as_str();
        let methods = document.token_endpoint_auth_methods_supported.as_deref();
        // The default is `client_secret_basic` (OpenID Connect Discovery, 3).
        let takes_basic = methods.is_none_or(|methods| methods.iter().any(|method| method == "client_secret_basic"));
        let mut request = self.client.post(document.token_endpoint.clone());
        match &self.options.client_secret {
            Some(secret) if takes_basic => request = request.basic_auth(encoded(client), Some(encoded(secret))),
            Some(secret) => form.extend([("client_id", client), ("client_secret", secret)]),
            None => form.push(("client_id", client)),
        }
        let body: String = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        let request = request
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .body(body);
        let (is_success, answer) = fetch::<TokenResponse>(request, "the token endpoint").await?;
        match answer {
            TokenResponse { id_token: Some(token), .. } if is_success => Ok(token),
            TokenResponse { error: Some(error), .. } => Err(OpenidError::Rejected(shown(&error))),
            _ => Err(OpenidError::Unavailable("the token endpoint returns no ID token".to_owned())),
        }
    }

    /// Endpoints and keys, fetched again after [`REFRESH`], or after `younger_than` if given.
    async fn discover(&self, now: Timestamp, younger_than: Option<Duration>) -> Result<Arc<Discovered>, OpenidError> {
        let mut discovered = self.discovered.lock().await;
        if let Some((at, found)) = &*discovered
            && *at + younger_than.unwrap_or(REFRESH) > now
        {
            return Ok(found.clone());
        }
        let issuer = self.options.issuer.as_str().trim_end_matches('/');
        let address = format!("{issuer}/.well-known/openid-configuration");
        let document: Document = fetched(self.client.get(address), "the discovery document").await?;
        // Another issuer could sign for users of this one (OpenID Connect Discovery, 4.3).
        if document.issuer.trim_end_matches('/') != issuer {
            let other = shown(&document.issuer);
            return Err(OpenidError::Unavailable(format!("the discovery document is of the issuer `{other}`")));
        }
        let keys: KeySet = fetched(self.client.get(document.jwks_uri.clone()), "the key set").await?;
        let keys = keys.known();
        tracing::debug!(issuer, keys = keys.len(), "fetched endpoints and keys of the OpenID provider");
        self.end_session.lock().clone_from(&document.end_session_endpoint);
        let found = Arc::new(Discovered { document, keys });
        *discovered = Some((now, found.clone()));
        Ok(found)
    }
}

/// Fetches a document, whose status must be a success.
async fn fetched<T: DeserializeOwned>(request: RequestBuilder, what: &str) -> Result<T, OpenidError> {
    match fetch(request, what).await? {
        (true, found) => Ok(found),
        (false, _) => Err(OpenidError::Unavailable(format!("{what} is answered with an error"))),
    }
}

async fn fetch<T: DeserializeOwned>(request: RequestBuilder, what: &str) -> Result<(bool, T), OpenidError> {
    let failed = |error: reqwest::Error| OpenidError::Unavailable(format!("{what}: {error}"));
    let mut response = request.send().await.map_err(failed)?;
    let (status, mut body) = (response.status(), Vec::new());
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > RESPONSE_BYTES_MAX {
            return Err(OpenidError::Unavailable(format!("{what} is longer than {RESPONSE_BYTES_MAX} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    let read = serde_json::from_slice(&body);
    let found = read.map_err(|_| OpenidError::Unavailable(format!("{what} is not readable, with status {status}")))?;
    Ok((status.is_success(), found))
}

/// A part of Basic credentials, which is form-encoded first (RFC 6749, 2.3.1).
fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// A text of the provider, safe to log and show.
fn shown(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(100).collect()
}
