//! Users of the console: people who log in with a password or through an OpenID provider. They are not subscribers.
//!
//! A user has roles; its scopes are those of its roles at each request. A caller creates, changes and removes only
//! users whose scopes it has itself (no privilege escalation).

pub(crate) mod passwords; // hashes and policy of passwords

use std::sync::Arc;

use tocsin_model::{
    mailbox::Mailbox,
    problem::{Code, CredentialError, Problem},
};
use tocsin_store::records::Precondition;
pub use tocsin_store::records::User;

pub use self::passwords::{PASSWORD_BYTES_MAX, PASSWORD_CHARS_MIN};
use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope, scopes_of},
    roles::{find_role, known_roles},
    sessions::logins::LoginClient,
};

/// Maximum length of a name.
const NAME_BYTES_MAX: usize = 64;
/// Maximum length of a display name, in characters.
pub(crate) const DISPLAY_NAME_CHARS_MAX: usize = 100;
/// Maximum length of an OpenID subject (OpenID Connect Core, 2).
const SUBJECT_BYTES_MAX: usize = 255;
/// Role that one enabled user has at all times.
pub(crate) const ADMIN_ROLE: &str = "admin";

/// A request for a user.
#[derive(Debug, Clone, Default)]
pub struct NewUser {
    /// Login name.
    pub name: String,
    /// Name for display; `None`: the login name.
    pub display_name: Option<String>,
    /// Email address.
    pub email: Option<String>,
    /// Names of roles.
    pub roles: Vec<String>,
    /// Password; `None`: logins only through the OpenID provider or by a link.
    pub password: Option<String>,
    /// Subject at the OpenID provider.
    pub oidc_subject: Option<String>,
    /// Language of the console.
    pub language: Option<String>,
    /// Time zone of the console.
    pub time_zone: Option<String>,
}

/// A new password of a user.
#[derive(Debug)]
pub struct NewPassword {
    /// The new password.
    pub password: String,
    /// The present one, which users give for their own.
    pub present: Option<String>,
}

/// Members to change. The inner `None` removes a value.
#[derive(Debug, Clone, Default)]
pub struct UserChange {
    /// Name for display.
    pub display_name: Option<String>,
    /// Email address.
    pub email: Option<Option<String>>,
    /// Names of roles.
    pub roles: Option<Vec<String>>,
    /// Whether logins are rejected.
    pub disabled: Option<bool>,
    /// Subject at the OpenID provider.
    pub oidc_subject: Option<Option<String>>,
    /// Language of the console.
    pub language: Option<Option<String>>,
    /// Time zone of the console.
    pub time_zone: Option<Option<String>>,
}

impl UserChange {
    /// Whether a user may make this change to itself without a scope.
    fn is_personal(&self) -> bool {
        let UserChange { email, roles, disabled, oidc_subject, .. } = self;
        email.is_none() && roles.is_none() && disabled.is_none() && oidc_subject.is_none()
    }
}

impl Service {
    /// Lists users by name, from after a name.
    ///
    /// # Errors
    /// The scope `users:read` is missing.
    pub fn users(&self, caller: &Caller, after: Option<&str>, limit: usize) -> Result<Vec<Arc<User>>, ServiceError> {
        caller.needs_everywhere(Scope::UsersRead)?;
        let users = self.accounts.users().into_iter();
        Ok(users.filter(|user| after.is_none_or(|after| user.name.as_str() > after)).take(limit).collect())
    }

    /// Reads a user. A user reads itself without a scope.
    ///
    /// # Errors
    /// The scope `users:read` is missing, or there is no such user.
    pub fn user(&self, caller: &Caller, name: &str) -> Result<Arc<User>, ServiceError> {
        if !is_self(caller, name) {
            caller.needs_everywhere(Scope::UsersRead)?;
        }
        self.find_user(name)
    }

    pub(crate) fn find_user(&self, name: &str) -> Result<Arc<User>, ServiceError> {
        self.accounts.user(name).ok_or_else(|| ServiceError::Missing(format!("the user `{name}`")))
    }

    /// Creates a user.
    ///
    /// # Errors
    /// `Invalid` with every problem; `Taken`; the scope `users:write` or a scope of its roles is missing; the last
    /// proof of identity is too old.
    pub async fn create_user(&self, caller: &Caller, new: NewUser) -> Result<Arc<User>, ServiceError> {
        caller.needs_everywhere(Scope::UsersWrite)?;
        caller.needs_recent_login(self.clock.now())?;
        caller.covers(scopes_of(&new.roles), None)?;
        let user = self.checked(new).await?;
        let _one_at_a_time = self.accounts.changing.lock().await;
        self.still_valid(caller)?;
        let user = self.store_user(user, Precondition::Absent).await?;
        tracing::info!(user = user.name, by = caller.key(), "created a user");
        Ok(user)
    }

    /// Checks a new user, and hashes its password.
    pub(crate) async fn checked(&self, new: NewUser) -> Result<User, ServiceError> {
        let now = self.clock.now();
        let name = new.name.trim().to_lowercase();
        let display_name = new.display_name.filter(|text| !text.trim().is_empty()).unwrap_or_else(|| name.clone());
        let mut user = User {
            name,
            display_name: display_name.trim().to_owned(),
            email: new.email,
            roles: new.roles,
            password: None,
            oidc_subject: new.oidc_subject,
            language: new.language,
            time_zone: new.time_zone,
            disabled: false,
            created_at: now,
            updated_at: now,
            last_login_at: None,
            revision: 0,
        };
        let mut problems = problems_of(&user);
        if let Some(password) = &new.password {
            problems.extend(weakness(password, &user));
        }
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        if let Some(password) = new.password {
            user.password = Some(passwords::hash(password).await?);
        }
        Ok(user)
    }

    /// Changes a user. Its sessions have the new roles at once; a disabled user has none. A user changes its own
    /// display name, language and time zone without a scope.
    ///
    /// # Errors
    /// `Invalid` with every problem; `Missing`; `Changed`; it is the last enabled user with the role `admin`; the
    /// caller lacks the scope `users:write` or a scope of the user before or after the change; the last proof of
    /// identity is too old.
    pub async fn change_user(
        &self,
        caller: &Caller,
        name: &str,
        change: UserChange,
        expect: Precondition,
    ) -> Result<Arc<User>, ServiceError> {
        let is_personal = is_self(caller, name) && change.is_personal();
        if !is_personal {
            caller.needs_everywhere(Scope::UsersWrite)?;
            caller.needs_recent_login(self.clock.now())?;
        }
        let _one_at_a_time = self.accounts.changing.lock().await;
        self.still_valid(caller)?;
        let old = self.find_user(name)?;
        let mut user = (*old).clone();
        let UserChange { display_name, email, roles, disabled, oidc_subject, language, time_zone } = change;
        user.display_name = display_name.map_or(user.display_name, |text| text.trim().to_owned());
        user.email = email.unwrap_or(user.email);
        user.roles = roles.unwrap_or(user.roles);
        user.disabled = disabled.unwrap_or(user.disabled);
        user.oidc_subject = oidc_subject.unwrap_or(user.oidc_subject);
        user.language = language.unwrap_or(user.language);
        user.time_zone = time_zone.unwrap_or(user.time_zone);
        if !is_personal {
            caller.covers(scopes_of(&old.roles), None)?;
            caller.covers(scopes_of(&user.roles), None)?;
        }
        let problems = problems_of(&user);
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        if !is_admin(&user) {
            self.not_last_admin(&old)?;
        }
        let (is_disabled, has_new_roles) = (user.disabled && !old.disabled, user.roles != old.roles);
        let user =
            self.store_user(user, if expect == Precondition::Any { Precondition::Present } else { expect }).await?;
        if is_disabled {
            self.end_sessions_of(&user.name, None).await?;
        }
        if has_new_roles {
            self.accounts.renew_sessions_of(&user.name);
        }
        self.keys.announce();
        tracing::info!(user = user.name, by = caller.key(), "changed a user");
        Ok(user)
    }

    /// Removes a user with its sessions.
    ///
    /// # Errors
    /// `Missing`; it is the last enabled user with the role `admin`; the caller lacks the scope `users:write` or a
    /// scope of the user; the last proof of identity is too old.
    pub async fn remove_user(&self, caller: &Caller, name: &str) -> Result<(), ServiceError> {
        caller.needs_everywhere(Scope::UsersWrite)?;
        caller.needs_recent_login(self.clock.now())?;
        let _one_at_a_time = self.accounts.changing.lock().await;
        self.still_valid(caller)?;
        let user = self.find_user(name)?;
        caller.covers(scopes_of(&user.roles), None)?;
        self.not_last_admin(&user)?;
        self.accounts.store.remove_user(name).await?;
        self.accounts.drop_user(name);
        self.keys.announce();
        tracing::info!(user = name, by = caller.key(), "removed a user");
        Ok(())
    }

    /// Sets the password of a user and ends its other sessions. A user that sets its own gives the present one.
    ///
    /// # Errors
    /// The password is weak; the present one is wrong or missing; the caller lacks the scope `users:write` or a
    /// scope of the user; the last proof of identity is too old.
    pub async fn set_password(
        &self,
        caller: &Caller,
        name: &str,
        new: NewPassword,
        client: &LoginClient,
    ) -> Result<(), ServiceError> {
        let NewPassword { password, present } = new;
        let is_own = is_self(caller, name);
        if !is_own {
            caller.needs_everywhere(Scope::UsersWrite)?;
        }
        let user = self.find_user(name)?;
        match &user.password {
            Some(hash) if is_own => {
                let present = present.ok_or_else(|| Problem::required("current_password"))?;
                self.confirm_password(&user.name, Some(hash.clone()), present, client).await?;
            }
            _ => {
                caller.needs_recent_login(self.clock.now())?;
                caller.covers(scopes_of(&user.roles), None)?;
            }
        }
        if let Some(problem) = weakness(&password, &user) {
            return Err(problem.into());
        }
        let hash = passwords::hash(password).await?;
        let _one_at_a_time = self.accounts.changing.lock().await;
        self.still_valid(caller)?;
        let now = self.find_user(name)?;
        if now.password != user.password || now.roles != user.roles {
            return Err(ServiceError::Changed(format!("the user `{name}`")));
        }
        let changed = User { password: Some(hash), ..(*now).clone() };
        self.store_user(changed, Precondition::Revision(now.revision)).await?;
        self.end_sessions_of(name, caller.session().map(|session| &*session.id).filter(|_| is_own)).await?;
        tracing::info!(user = name, by = caller.key(), "set a password");
        Ok(())
    }

    /// Stores a user under the lock of changes.
    pub(crate) async fn store_user(&self, user: User, expect: Precondition) -> Result<Arc<User>, ServiceError> {
        let stored = self.accounts.store.put_user(user, expect, self.clock.now()).await?;
        self.accounts.keep_user(stored.clone());
        Ok(Arc::new(stored))
    }

    /// Ends the sessions of a user, except one.
    async fn end_sessions_of(&self, name: &str, except: Option<&str>) -> Result<(), ServiceError> {
        let sessions = self.accounts.sessions(self.clock.now()).into_iter();
        let of_user = sessions.filter(|session| session.user == name && Some(session.id.as_str()) != except);
        let ids: Vec<String> = of_user.map(|session| session.id).collect();
        self.accounts.store.remove_sessions(ids.clone()).await?;
        self.accounts.drop_sessions(&ids);
        self.keys.announce();
        Ok(())
    }

    /// A credential that is revoked at the same time changes nothing after that.
    fn still_valid(&self, caller: &Caller) -> Result<(), ServiceError> {
        match self.key_end(caller) {
            Some(_) => {
                Err(ServiceError::Unauthenticated(CredentialError::Unknown, "the credential is not valid any more"))
            }
            None => Ok(()),
        }
    }

    fn not_last_admin(&self, user: &User) -> Result<(), ServiceError> {
        let is_other_admin = |other: &Arc<User>| other.name != user.name && is_admin(other);
        if is_admin(user) && !self.accounts.users().iter().any(is_other_admin) {
            return Err(ServiceError::LastAdminUser(user.name.clone()));
        }
        Ok(())
    }
}

fn is_self(caller: &Caller, name: &str) -> bool {
    caller.session().is_some_and(|session| &*session.user == name)
}

fn is_admin(user: &User) -> bool {
    !user.disabled && user.roles.iter().any(|role| role == ADMIN_ROLE)
}

/// Why a password is too weak for this user.
pub(crate) fn weakness(password: &str, user: &User) -> Option<Problem> {
    let about = [user.name.as_str(), &user.display_name, user.email.as_deref().unwrap_or_default()];
    passwords::weakness(password, &about)
}

/// The problems of all members but the password.
fn problems_of(user: &User) -> Vec<Problem> {
    let mut problems = Vec::new();
    let format = |path: &str, message: &str, format: &'static str| {
        Problem::new(Code::InvalidFormat, path, message).param("format", format)
    };
    let is_name_byte = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._@+-".contains(&byte);
    let is_name = (1..=NAME_BYTES_MAX).contains(&user.name.len())
        && user.name.bytes().all(is_name_byte)
        && !user.name.starts_with(['.', '-', '+', '@', '_']);
    if !is_name {
        let message = format!(
            "should be 1 to {NAME_BYTES_MAX} letters a to z, digits, `.`, `_`, `@`, `+` or `-`, from a letter or digit"
        );
        problems.push(format("name", &message, "user_name"));
    }
    let chars = user.display_name.chars().count();
    if chars == 0 {
        problems.push(Problem::new(Code::Empty, "display_name", "is empty"));
    }
    if chars > DISPLAY_NAME_CHARS_MAX {
        let message = format!("is longer than {DISPLAY_NAME_CHARS_MAX} characters");
        let problem = Problem::new(Code::TooLong, "display_name", message);
        problems.push(problem.param("limit", DISPLAY_NAME_CHARS_MAX).param("unit", "characters"));
    }
    if user.display_name.chars().any(char::is_control) {
        problems.push(Problem::new(Code::InvalidCharacters, "display_name", "has control characters"));
    }
    if user.email.as_ref().is_some_and(|email| Mailbox::parse(email).is_err()) {
        problems.push(format("email", "is not a mail address", "mail_address"));
    }
    for (at, name) in user.roles.iter().enumerate() {
        if find_role(name).is_none() {
            let message = format!("`{name}` is not a role");
            let problem = Problem::new(Code::UnknownValue, format!("roles[{at}]"), message);
            problems.push(problem.param("value", name.clone()).hint(known_roles()));
        }
        if user.roles[..at].contains(name) {
            problems.push(Problem::duplicate(format!("roles[{at}]")));
        }
    }
    if user.oidc_subject.as_ref().is_some_and(|subject| !(1..=SUBJECT_BYTES_MAX).contains(&subject.len())) {
        problems.push(format("oidc_subject", "should be 1 to 255 bytes", "openid_subject"));
    }
    if user.language.as_ref().is_some_and(|language| !is_language(language)) {
        problems.push(format("language", "should be a language tag such as `en` or `de-AT`", "language_tag"));
    }
    if user.time_zone.as_ref().is_some_and(|zone| jiff::tz::TimeZone::get(zone).is_err()) {
        problems.push(format("time_zone", "should be a time zone such as `Europe/Vienna`", "time_zone"));
    }
    problems
}

fn is_language(text: &str) -> bool {
    let mut parts = text.split('-');
    let is_first = parts
        .next()
        .is_some_and(|part| (2..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphabetic()));
    is_first
        && text.len() <= 35
        && parts.all(|part| (2..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}
