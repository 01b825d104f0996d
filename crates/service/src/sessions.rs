//! Sessions of users: login, first setup, one-time links, proof of identity, and the list of sessions.

mod lockout; // limits of failed logins
mod links; // one-time tokens of links
pub(crate) mod logins; // state of logins in memory

use std::sync::Arc;

use ring::hmac;
use tocsin_model::{mailbox::Mailbox, problem::CredentialError, time::Timestamp};
pub use tocsin_store::records::Session;
use tocsin_store::{audit, records::Precondition};

use self::links::LinkPurpose;
pub use self::{
    links::{LOGIN_LINK_LIFETIME, SETUP_LINK_LIFETIME},
    lockout::{NAME_FAILURES_MAX, NETWORK_FAILURES_MAX, WINDOW as LOCKOUT},
    logins::LoginClient,
};
use crate::{
    Service,
    error::ServiceError,
    keys::{
        Caller, REAUTHENTICATION_LIFETIME, SESSION_IDLE_MAX, SESSION_LIFETIME, Scope, SessionCredential, new_token,
        scopes_of, token_hash,
    },
    users::{ADMIN_ROLE, DISPLAY_NAME_CHARS_MAX, NewUser, User, passwords},
};

/// Maximum stored length of a `User-Agent`, in characters.
const USER_AGENT_CHARS_MAX: usize = 200;
/// Text of a failed login, the same for each cause.
const WRONG_LOGIN: &str = "the name or the password is wrong";
const WRONG_LINK: &str = "the link was used, was replaced or has expired: request another one";

/// A new or renewed session. Its token is returned only here.
#[derive(Debug)]
pub struct OpenedSession {
    /// The token, for the cookie.
    pub token: String,
    /// The caller that it authenticates.
    pub caller: Caller,
    /// Absolute expiry.
    pub expires_at: Timestamp,
}

/// A proof of identity.
#[derive(Debug)]
pub enum Proof {
    /// The password of the user.
    Password(String),
    /// The token of a login link for the user.
    Link(String),
    /// The subject that the OpenID provider authenticated just now.
    Openid(String),
}

/// Identity of a user, which the OpenID provider vouches for.
#[derive(Debug, Clone)]
pub struct OpenidUser {
    /// Subject, by which the user is found.
    pub subject: String,
    /// Login name for a new user.
    pub name: Option<String>,
    /// Name for display.
    pub display_name: Option<String>,
    /// Mail address.
    pub email: Option<String>,
    /// Roles by the claims; `None`: roles are given here.
    pub roles: Option<Vec<String>>,
}

/// A one-time link.
#[derive(Debug, Clone)]
pub struct OneTimeLink {
    /// The user that it logs in; `None`: it creates the first user.
    pub user: Option<String>,
    /// The token.
    pub token: String,
    /// Expiry.
    pub expires_at: Timestamp,
}

impl OneTimeLink {
    /// The path in the console. The token is in the fragment, which reaches no server and no log.
    pub fn path(&self) -> String {
        let page = if self.user.is_some() { "login" } else { "setup" };
        format!("/console/{page}#{}", self.token)
    }
}

impl Service {
    /// Whether there is no user yet.
    pub fn is_setup_required(&self) -> bool {
        !self.accounts.has_users()
    }

    /// Logs in with name and password. The response time does not depend on whether the name exists.
    ///
    /// # Errors
    /// `LoginFailed`, the same for an unknown name, a wrong password and a disabled user; `LoginLocked` after too
    /// many failures with this name from this network.
    pub async fn log_in(
        &self,
        name: &str,
        password: String,
        client: LoginClient,
    ) -> Result<OpenedSession, ServiceError> {
        let name = name.trim().to_lowercase();
        let locked = |wait| {
            count_login("password", "locked");
            ServiceError::LoginLocked(wait)
        };
        self.logins.lockout.count(&name, client.address, self.clock.now()).map_err(locked)?;
        let user = self.accounts.user(&name);
        let hash = user.as_ref().and_then(|user| user.password.clone());
        let is_right = passwords::verify(hash.clone(), password).await?;
        let failed = || {
            count_login("password", "failed");
            tracing::info!(user = name, address = ?client.address, "a login failed");
            ServiceError::LoginFailed(WRONG_LOGIN)
        };
        if !is_right {
            return Err(failed());
        }
        self.logins.lockout.clear(&name, client.address);
        let _one_at_a_time = self.accounts.changing.lock().await;
        // The password may have been replaced meanwhile.
        match self.accounts.user(&name) {
            Some(user) if user.password == hash && !user.disabled => {
                self.open_session(&user, &client, "password").await
            }
            _ => Err(failed()),
        }
    }

    /// Logs in with the token of a login link.
    ///
    /// # Errors
    /// `LoginFailed`: the link is not in force, or its user is disabled.
    pub async fn log_in_by_link(&self, token: &str, client: LoginClient) -> Result<OpenedSession, ServiceError> {
        let _one_at_a_time = self.accounts.changing.lock().await;
        let redeemed = {
            let (mut links, now) = (self.logins.links.lock(), self.clock.now());
            match links.find(token, now) {
                Some(LinkPurpose::Login(_)) => links.redeem(token, now),
                _ => None,
            }
        };
        let Some(LinkPurpose::Login(name)) = redeemed else {
            count_login("link", "failed");
            return Err(ServiceError::LoginFailed(WRONG_LINK));
        };
        match self.accounts.user(&name) {
            Some(user) if !user.disabled => self.open_session(&user, &client, "link").await,
            _ => {
                count_login("link", "failed");
                Err(ServiceError::LoginFailed(WRONG_LINK))
            }
        }
    }

    /// Logs in a user that the OpenID provider authenticated. A new subject becomes a user; roles by the claims
    /// replace the present ones.
    ///
    /// # Errors
    /// `NoRole`; `LoginFailed`: the user is disabled; `Taken`: no login name is free.
    pub async fn log_in_by_openid(
        &self,
        found: OpenidUser,
        client: LoginClient,
    ) -> Result<OpenedSession, ServiceError> {
        let _one_at_a_time = self.accounts.changing.lock().await;
        let users = self.accounts.users();
        let known = users.iter().find(|user| user.oidc_subject.as_ref() == Some(&found.subject));
        let roles = match (&found.roles, known) {
            (Some(roles), _) => roles.clone(),
            (None, Some(user)) => user.roles.clone(),
            (None, None) => Vec::new(),
        };
        if known.is_some_and(|user| user.disabled) {
            count_login("openid", "failed");
            return Err(ServiceError::LoginFailed("the user is disabled"));
        }
        if roles.is_empty() {
            count_login("openid", "no_role");
            return Err(ServiceError::NoRole);
        }
        let user = match known {
            Some(user) if user.roles == roles => user.clone(),
            Some(user) => {
                let stored = self.store_user(User { roles, ..(**user).clone() }, Precondition::Present).await?;
                self.accounts.renew_sessions_of(&stored.name);
                self.keys.announce();
                stored
            }
            None => self.create_openid_user(found, roles).await?,
        };
        self.open_session(&user, &client, "openid").await
    }

    /// Creates a user for a new subject, with the first login name that is valid and free.
    async fn create_openid_user(&self, found: OpenidUser, roles: Vec<String>) -> Result<Arc<User>, ServiceError> {
        let own = format!("oidc-{}", &hex::encode(token_hash(&found.subject))[..12]);
        // Texts of the provider that are not valid here are left out.
        let is_shown = |character: &char| !character.is_control();
        let display_name: Option<String> = found
            .display_name
            .as_ref()
            .map(|name| name.chars().filter(is_shown).take(DISPLAY_NAME_CHARS_MAX).collect());
        let email = found.email.clone().filter(|email| Mailbox::parse(email).is_ok());
        let names = found.name.iter().chain(&found.email).cloned().chain([own]);
        for name in names {
            if self.accounts.user(&name.trim().to_lowercase()).is_some() {
                continue;
            }
            let new = NewUser {
                name,
                display_name: display_name.clone(),
                email: email.clone(),
                roles: roles.clone(),
                oidc_subject: Some(found.subject.clone()),
                ..NewUser::default()
            };
            let Ok(user) = self.checked(new).await else { continue };
            let user = self.store_user(user, Precondition::Absent).await?;
            tracing::info!(user = user.name, "created a user of the OpenID provider");
            return Ok(user);
        }
        Err(ServiceError::Taken("each login name of the OpenID identity".to_owned()))
    }

    /// Creates the first user, with the role `admin`, and logs it in. A rejected request leaves the link in force.
    ///
    /// # Errors
    /// `LoginFailed`: the link is not in force; `Taken`: there is a user; `Invalid` with every problem.
    pub async fn set_up(&self, token: &str, new: NewUser, client: LoginClient) -> Result<OpenedSession, ServiceError> {
        self.setup_link_in_force(token)?;
        let new = NewUser { roles: vec![ADMIN_ROLE.to_owned()], oidc_subject: None, ..new };
        let user = self.checked(new).await?;
        let _one_at_a_time = self.accounts.changing.lock().await;
        self.setup_link_in_force(token)?;
        let user = self.store_user(user, Precondition::Absent).await?;
        self.logins.links.lock().redeem(token, self.clock.now());
        tracing::info!(user = user.name, "created the first user");
        self.open_session(&user, &client, "setup").await
    }

    fn setup_link_in_force(&self, token: &str) -> Result<(), ServiceError> {
        if self.accounts.has_users() {
            return Err(ServiceError::Taken("the first user".to_owned()));
        }
        match self.logins.links.lock().find(token, self.clock.now()) {
            Some(LinkPurpose::Setup) => Ok(()),
            _ => {
                count_login("setup", "failed");
                Err(ServiceError::LoginFailed(WRONG_LINK))
            }
        }
    }

    /// Makes the link for the first setup, for the program that starts the server. It replaces an earlier one.
    /// `None`: there are users.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn setup_link(&self) -> Result<Option<OneTimeLink>, ServiceError> {
        if self.accounts.has_users() {
            return Ok(None);
        }
        let (token, expires_at) = self.logins.links.lock().issue(LinkPurpose::Setup, self.clock.now())?;
        Ok(Some(OneTimeLink { user: None, token, expires_at }))
    }

    /// Makes a login link for a user: by default the only enabled administrator. Without any user it is a setup link.
    ///
    /// # Errors
    /// The caller lacks the scope `users:write` or a scope of the user; there is no such user, or several
    /// administrators; the last proof of identity is too old.
    pub fn make_login_link(&self, caller: &Caller, user: Option<&str>) -> Result<OneTimeLink, ServiceError> {
        caller.needs_everywhere(Scope::UsersWrite)?;
        caller.needs_recent_login(self.clock.now())?;
        let user = match user {
            Some(name) => self.find_user(&name.to_lowercase())?,
            None => {
                if self.is_setup_required() {
                    caller.covers(scopes_of(&[ADMIN_ROLE.to_owned()]), None)?;
                    let link = self.setup_link()?;
                    return link.ok_or_else(|| ServiceError::Changed("the list of users".to_owned()));
                }
                self.only_administrator()?
            }
        };
        if user.disabled {
            return Err(ServiceError::Missing(format!("an enabled user `{}`", user.name)));
        }
        caller.covers(scopes_of(&user.roles), None)?;
        let purpose = LinkPurpose::Login(user.name.clone());
        let (token, expires_at) = self.logins.links.lock().issue(purpose, self.clock.now())?;
        tracing::info!(user = user.name, by = caller.key(), "made a login link");
        Ok(OneTimeLink { user: Some(user.name.clone()), token, expires_at })
    }

    fn only_administrator(&self) -> Result<Arc<User>, ServiceError> {
        let is_admin = |user: &Arc<User>| !user.disabled && user.roles.iter().any(|role| role == ADMIN_ROLE);
        let mut admins = self.accounts.users().into_iter().filter(is_admin);
        match (admins.next(), admins.next()) {
            (Some(only), None) => Ok(only),
            _ => Err(tocsin_model::problem::Problem::required("user")
                .hint("several users are administrators: name one")
                .into()),
        }
    }

    /// Proves the identity of the caller again. The session has another token afterwards.
    ///
    /// # Errors
    /// `LoginFailed`: the proof is wrong; `LoginLocked`; `Unauthenticated`: the caller has no session.
    pub async fn reauthenticate(
        &self,
        caller: &Caller,
        proof: Proof,
        client: LoginClient,
    ) -> Result<OpenedSession, ServiceError> {
        let session = caller.session().ok_or(NO_SESSION)?;
        let user = self.find_user(&session.user)?;
        match proof {
            Proof::Password(password) => {
                self.confirm_password(&user.name, user.password.clone(), password, &client).await?;
            }
            Proof::Openid(subject) if user.oidc_subject.as_ref() == Some(&subject) => {}
            Proof::Openid(_) => {
                return Err(ServiceError::LoginFailed("the OpenID provider authenticated another user"));
            }
            Proof::Link(token) => {
                let (mut links, now) = (self.logins.links.lock(), self.clock.now());
                let purpose = LinkPurpose::Login(user.name.clone());
                if links.find(&token, now).is_none_or(|found| found != purpose) {
                    return Err(ServiceError::LoginFailed(WRONG_LINK));
                }
                links.redeem(&token, now);
            }
        }
        let _one_at_a_time = self.accounts.changing.lock().await;
        if self.key_end(caller).is_some() {
            return Err(NO_SESSION);
        }
        let present = self.accounts.session(&session.id).ok_or(NO_SESSION)?;
        let token = new_token()?;
        let now = self.clock.now();
        let renewed = Session { hash: token_hash(&token), last_used_at: now, reauthenticated_at: now, ..present };
        let expires_at = renewed.expires_at;
        self.accounts.store.put_session(renewed.clone()).await?;
        self.accounts.keep_session(renewed);
        let caller = self.authenticate_session(&token)?;
        Ok(OpenedSession { token, caller, expires_at })
    }

    /// A new token for the session of a caller whose roles changed since the present one was made; usually `None`. The
    /// former one is accepted for a minute.
    ///
    /// # Errors
    /// The records are unavailable.
    pub async fn renew_session(&self, caller: &Caller) -> Result<Option<String>, ServiceError> {
        let due = caller.session().and_then(|session| self.accounts.take_renewal(&session.id));
        let Some(session) = due else { return Ok(None) };
        let _one_at_a_time = self.accounts.changing.lock().await;
        if self.accounts.session(&session.id).is_none_or(|now| now.hash != session.hash) {
            return Ok(None);
        }
        let (token, now) = (new_token()?, self.clock.now());
        let renewed = Session { hash: token_hash(&token), ..session };
        self.accounts.store.put_session(renewed.clone()).await?;
        self.accounts.keep_renewed_session(renewed, now);
        Ok(Some(token))
    }

    /// The text that proves to have read the own session, against forged requests. It follows from the session and
    /// a secret of the installation, and does not change with the token.
    pub fn csrf_text(&self, session: &SessionCredential) -> String {
        hex::encode(hmac::sign(&self.csrf_key(), session.id.as_bytes()))
    }

    /// Whether a text is the one of [`Service::csrf_text`].
    pub fn is_csrf_text(&self, session: &SessionCredential, text: &str) -> bool {
        let given = hex::decode(text);
        given.is_ok_and(|given| hmac::verify(&self.csrf_key(), session.id.as_bytes(), &given).is_ok())
    }

    fn csrf_key(&self) -> hmac::Key {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, self.installation.secret());
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&secret, b"csrf of console sessions").as_ref())
    }

    /// Confirms the password of a user that has a session. Failures count as those of logins.
    pub(crate) async fn confirm_password(
        &self,
        name: &str,
        hash: Option<String>,
        password: String,
        client: &LoginClient,
    ) -> Result<(), ServiceError> {
        let lockout = &self.logins.lockout;
        lockout.count(name, client.address, self.clock.now()).map_err(ServiceError::LoginLocked)?;
        if passwords::verify(hash, password).await? {
            lockout.clear(name, client.address);
            return Ok(());
        }
        tracing::info!(user = name, address = ?client.address, "a password was wrong");
        Err(ServiceError::LoginFailed("the password is wrong"))
    }

    async fn open_session(
        &self,
        user: &User,
        client: &LoginClient,
        way: &'static str,
    ) -> Result<OpenedSession, ServiceError> {
        let (now, token) = (self.clock.now(), new_token()?);
        let id = hex::encode(&token_hash(&new_token()?)[..8]);
        let agent = client.user_agent.as_ref();
        let is_shown = |character: &char| !character.is_control();
        let session = Session {
            id,
            hash: token_hash(&token),
            user: user.name.clone(),
            created_at: now,
            last_used_at: now,
            expires_at: now + SESSION_LIFETIME,
            reauthenticated_at: now,
            address: client.address.map(|address| address.to_canonical().to_string()),
            user_agent: agent.map(|agent| agent.chars().filter(is_shown).take(USER_AGENT_CHARS_MAX).collect()),
        };
        let expires_at = session.expires_at;
        audit::set_actor(|| format!("user:{}", user.name));
        let ended = self.accounts.store.put_session(session.clone()).await?;
        self.accounts.drop_sessions(&ended);
        self.accounts.keep_session(session);
        self.accounts.keep_user(User { last_login_at: Some(now), ..user.clone() });
        if !ended.is_empty() {
            self.keys.announce();
        }
        count_login(way, "succeeded");
        tracing::info!(user = user.name, address = ?client.address, way, "a user logged in");
        let caller = self.authenticate_session(&token)?;
        Ok(OpenedSession { token, caller, expires_at })
    }

    /// Ends the session of the caller.
    ///
    /// # Errors
    /// `Unauthenticated`: the caller has no session.
    pub async fn log_out(&self, caller: &Caller) -> Result<(), ServiceError> {
        let session = caller.session().ok_or(NO_SESSION)?;
        self.drop_session(&session.id).await?;
        tracing::info!(user = &*session.user, "a user logged out");
        Ok(())
    }

    /// Lists sessions that have not ended, oldest first: those of the caller, or of a user with `users:read`;
    /// without a name, those of all users the caller may read.
    ///
    /// # Errors
    /// The scope `users:read` is missing.
    pub fn sessions(&self, caller: &Caller, user: Option<&str>) -> Result<Vec<Session>, ServiceError> {
        let own = caller.session().map(|session| &*session.user);
        let may_read_all = caller.needs_everywhere(Scope::UsersRead);
        let only = match user {
            Some(name) if own == Some(name) => Some(name),
            Some(name) => may_read_all.map(|()| Some(name))?,
            None if may_read_all.is_ok() => None,
            None => Some(own.map_or_else(|| may_read_all.map(|()| ""), Ok)?),
        };
        let mut sessions = self.accounts.sessions(self.clock.now());
        sessions.retain(|session| only.is_none_or(|name| session.user == name));
        Ok(sessions)
    }

    /// Ends a session of the caller's user, or of a user whose scopes the caller has.
    ///
    /// # Errors
    /// `Missing`; the caller lacks the scope `users:write` or a scope of the user.
    pub async fn end_session(&self, caller: &Caller, id: &str) -> Result<(), ServiceError> {
        let missing = || ServiceError::Missing(format!("the session `{id}`"));
        let found = self.accounts.session(id);
        let is_own = |session: &Session| caller.session().is_some_and(|own| *own.user == *session.user);
        match &found {
            Some(session) if is_own(session) => {}
            _ => {
                caller.needs_everywhere(Scope::UsersWrite)?;
                let session = found.as_ref().ok_or_else(missing)?;
                let roles = self.accounts.user(&session.user).map(|user| user.roles.clone()).unwrap_or_default();
                caller.covers(scopes_of(&roles), None)?;
            }
        }
        self.drop_session(id).await?;
        tracing::info!(session = id, by = caller.key(), "ended a session");
        Ok(())
    }

    async fn drop_session(&self, id: &str) -> Result<(), ServiceError> {
        let ids = vec![id.to_owned()];
        self.accounts.store.remove_sessions(ids.clone()).await?;
        self.accounts.drop_sessions(&ids);
        self.keys.announce();
        Ok(())
    }

    /// The session of the caller as it is now, with the end of its proof of identity.
    pub fn own_session(&self, caller: &Caller) -> Option<OwnSession> {
        let session = self.accounts.session(&caller.session()?.id)?;
        let user = self.accounts.user(&session.user)?;
        Some(OwnSession {
            expires_at: session.expires_at.min(session.last_used_at + SESSION_IDLE_MAX),
            reauthenticated_until: session.reauthenticated_at + REAUTHENTICATION_LIFETIME,
            id: session.id,
            user,
        })
    }
}

/// The session of a caller.
#[derive(Debug, Clone)]
pub struct OwnSession {
    /// Public id.
    pub id: String,
    /// The user.
    pub user: Arc<User>,
    /// Expiry, unless it is used again.
    pub expires_at: Timestamp,
    /// End of the last proof of identity.
    pub reauthenticated_until: Timestamp,
}

const NO_SESSION: ServiceError =
    ServiceError::Unauthenticated(CredentialError::Required, "this needs the session of a user");

fn count_login(way: &'static str, outcome: &'static str) {
    metrics::counter!("tocsin_console_logins_total", "way" => way, "outcome" => outcome).increment(1);
}
