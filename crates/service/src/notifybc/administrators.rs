//! Administrators, their credentials and access tokens.

use ring::rand::{SecureRandom, SystemRandom};
use serde_json::Value;
use tocsin_notifybc::{
    identity::is_expired,
    query::{Filter, Where},
    record::{self, Collection, Document, text},
};
use tocsin_store::records::Precondition;

use super::{Notifybc, NotifybcError, RequestContext};

/// Least characters of a password.
const PASSWORD_CHARS_MIN: usize = 10;
/// Characters of which a password needs one.
const PASSWORD_SYMBOLS: &str = "!_@#&$*";
/// Cost of new password hashes.
const BCRYPT_COST: u32 = 10;
/// A hash of no password. Its comparison takes as long as that of an account.
const NO_ACCOUNT: &str = "$2b$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy";
/// Characters of an access token.
const TOKEN_CHARS: usize = 64;
const TOKEN_ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

impl Notifybc {
    /// The administrator of an access token that exists and has not expired.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn administrator_of_token(&self, token: &str) -> Result<Option<String>, NotifybcError> {
        if token.len() > 4 * TOKEN_CHARS {
            return Ok(None);
        }
        let Some(record) = self.read(Collection::AccessToken, token).await? else { return Ok(None) };
        if is_expired(&record.document, self.now()) {
            return Ok(None);
        }
        let Some(user) = text(&record.document, "userId") else { return Ok(None) };
        Ok(self.read(Collection::Administrator, user).await?.map(|record| record.id().to_owned()))
    }

    /// Creates an administrator with a password; both or none.
    ///
    /// # Errors
    /// The body is invalid, the password is too weak, or the address is in use.
    pub async fn create_administrator(
        &self,
        context: &RequestContext,
        mut body: Document,
    ) -> Result<Document, NotifybcError> {
        let password = take_password(&mut body);
        let (id, author) = (self.new_id().to_string(), Self::author(context));
        let document = record::create(Collection::Administrator, &id, body, self.now(), Some(&author))?;
        // A crash between the writes leaves a credential without an account.
        let credential = self.store_credential(context, &id, password.as_deref().unwrap_or_default()).await?;
        if let Err(error) = self.insert(Collection::Administrator, &document).await {
            let credential = text(&credential, "id").unwrap_or_default().to_owned();
            self.remove(Collection::UserCredential, vec![credential]).await?;
            return Err(error);
        }
        Ok(document)
    }

    /// The administrators that the caller sees.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn find_administrators(
        &self,
        context: &RequestContext,
        filter: Filter,
    ) -> Result<Vec<Document>, NotifybcError> {
        self.list(Collection::Administrator, filter, visible(context), |document| document).await
    }

    /// Number of administrators of a condition that the caller sees.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn count_administrators(&self, context: &RequestContext, condition: Where) -> Result<u64, NotifybcError> {
        self.count(Collection::Administrator, condition.and(visible(context))).await
    }

    /// An administrator.
    ///
    /// # Errors
    /// It does not exist, or is not the caller's own record.
    pub async fn administrator(&self, context: &RequestContext, id: &str) -> Result<Document, NotifybcError> {
        permit(context, id)?;
        self.record(Collection::Administrator, id).await
    }

    /// Changes properties of an administrator, and the password if there is one.
    ///
    /// # Errors
    /// It does not exist, is not the caller's own record, or a value is invalid.
    pub async fn patch_administrator(
        &self,
        context: &RequestContext,
        id: &str,
        mut changes: Document,
    ) -> Result<(), NotifybcError> {
        permit(context, id)?;
        self.require(Collection::Administrator, id).await?;
        if let Some(password) = take_password(&mut changes) {
            self.store_credential(context, id, &password).await?;
        }
        self.patch_record(context, Collection::Administrator, id, changes).await
    }

    /// Replaces an administrator, and the password if there is one.
    ///
    /// # Errors
    /// It does not exist, is not the caller's own record, or the body is invalid.
    pub async fn put_administrator(
        &self,
        context: &RequestContext,
        id: &str,
        mut body: Document,
    ) -> Result<(), NotifybcError> {
        permit(context, id)?;
        self.require(Collection::Administrator, id).await?;
        if let Some(password) = take_password(&mut body) {
            self.store_credential(context, id, &password).await?;
        }
        self.put_record(context, Collection::Administrator, id, body).await
    }

    /// Removes an administrator with its tokens and its credential.
    ///
    /// # Errors
    /// It does not exist, or is not the caller's own record.
    pub async fn delete_administrator(&self, context: &RequestContext, id: &str) -> Result<(), NotifybcError> {
        permit(context, id)?;
        for collection in [Collection::AccessToken, Collection::UserCredential] {
            let owned = self.find(collection, Where::text("userId", id)).await?;
            self.remove(collection, ids(&owned)).await?;
        }
        self.delete_record(Collection::Administrator, id).await
    }

    /// Replaces the password of an administrator. Returns the credential, with the hash.
    ///
    /// # Errors
    /// The administrator is not the caller's own record, or the password is too weak.
    pub async fn put_credential(
        &self,
        context: &RequestContext,
        id: &str,
        mut body: Document,
    ) -> Result<Document, NotifybcError> {
        permit(context, id)?;
        let password = take_password(&mut body).unwrap_or_default();
        check_password(&password)?;
        self.require(Collection::Administrator, id).await?;
        self.store_credential(context, id, &password).await
    }

    async fn store_credential(
        &self,
        context: &RequestContext,
        user: &str,
        password: &str,
    ) -> Result<Document, NotifybcError> {
        check_password(password)?;
        let password = password.to_owned();
        let hash = blocking(move || bcrypt::hash(password, BCRYPT_COST)).await?;
        let hash = hash.map_err(|error| NotifybcError::Internal(format!("the password was not hashed: {error}")))?;
        let (now, author) = (self.now(), Self::author(context));
        let mut body = Document::new();
        body.insert("password".to_owned(), Value::from(hash));
        body.insert("userId".to_owned(), Value::from(user));
        let collection = Collection::UserCredential;
        let document = match self.store.document_by_unique(collection, user).await? {
            Some(stored) => {
                let earlier = super::documents::Record::of(stored)?.document;
                record::replace(collection, &earlier, body, now, Some(&author))?
            }
            None => record::create(collection, &self.new_id().to_string(), body, now, Some(&author))?,
        };
        self.put(collection, &document, Precondition::Any).await?;
        Ok(document)
    }

    /// Makes an access token for the right address and password.
    ///
    /// # Errors
    /// [`NotifybcError::Unauthorized`] with one text for both mistakes; too many attempts.
    pub async fn login(&self, context: &RequestContext, body: Document) -> Result<String, NotifybcError> {
        let refused = || NotifybcError::Unauthorized("Invalid email or password.".to_owned());
        let email = text(&body, "email").unwrap_or_default().to_lowercase();
        let password = text(&body, "password").unwrap_or_default().to_owned();
        self.guesses.count(&email, context.address, self.now())?;
        let administrator = self.store.document_by_unique(Collection::Administrator, &email).await?;
        let administrator = administrator.filter(|_| !email.is_empty()).map(|stored| stored.id);
        let credential = match &administrator {
            Some(id) => self.store.document_by_unique(Collection::UserCredential, id).await?,
            None => None,
        };
        let credential = credential.map(super::documents::Record::of).transpose()?;
        let hash = credential.as_ref().and_then(|record| text(&record.document, "password"));
        let hash = hash.unwrap_or(NO_ACCOUNT).to_owned();
        let is_right = blocking(move || bcrypt::verify(password, &hash)).await?.unwrap_or(false);
        let Some(id) = administrator.filter(|_| is_right && credential.is_some()) else { return Err(refused()) };
        self.guesses.forgive(&email, context.address);
        let mut options = Document::new();
        for (name, given) in [("name", "tokenName"), ("ttl", "ttl")] {
            if let Some(value) = body.get(given).filter(|value| !value.is_null()) {
                options.insert(name.to_owned(), value.clone());
            }
        }
        let token = self.store_token(context, &id, options).await?;
        Ok(text(&token, "id").unwrap_or_default().to_owned())
    }

    async fn store_token(
        &self,
        context: &RequestContext,
        user: &str,
        mut options: Document,
    ) -> Result<Document, NotifybcError> {
        options.insert("userId".to_owned(), Value::from(user));
        let author = Self::author(context);
        let token = random_token()?;
        let document = record::create(Collection::AccessToken, &token, options, self.now(), Some(&author))?;
        self.insert(Collection::AccessToken, &document).await?;
        Ok(document)
    }

    /// Makes an access token of an administrator.
    ///
    /// # Errors
    /// The administrator does not exist, or is not the caller's own record.
    pub async fn create_token(
        &self,
        context: &RequestContext,
        id: &str,
        body: Document,
    ) -> Result<Document, NotifybcError> {
        permit(context, id)?;
        self.require(Collection::Administrator, id).await?;
        self.store_token(context, id, body).await
    }

    /// Access tokens of an administrator.
    ///
    /// # Errors
    /// The administrator is not the caller's own record.
    pub async fn find_tokens(
        &self,
        context: &RequestContext,
        id: &str,
        filter: Filter,
    ) -> Result<Vec<Document>, NotifybcError> {
        permit(context, id)?;
        self.list(Collection::AccessToken, filter, Where::text("userId", id), |document| document).await
    }

    /// Changes access tokens of an administrator. Returns their number.
    ///
    /// # Errors
    /// The administrator is not the caller's own record, or the changes name another one.
    pub async fn patch_tokens(
        &self,
        context: &RequestContext,
        id: &str,
        condition: Where,
        changes: Document,
    ) -> Result<u64, NotifybcError> {
        permit(context, id)?;
        if changes.get("userId").is_some_and(record::truthy) {
            return Err(NotifybcError::Refused(Some("Updating userId is not allowed.".to_owned())));
        }
        let owned = condition.and(Where::text("userId", id));
        self.patch_records(context, Collection::AccessToken, owned, changes).await
    }

    /// Removes access tokens of an administrator. Returns their number.
    ///
    /// # Errors
    /// The administrator is not the caller's own record.
    pub async fn delete_tokens(
        &self,
        context: &RequestContext,
        id: &str,
        condition: Where,
    ) -> Result<u64, NotifybcError> {
        permit(context, id)?;
        let owned = self.find(Collection::AccessToken, condition.and(Where::text("userId", id))).await?;
        self.remove(Collection::AccessToken, ids(&owned)).await
    }
}

/// An administrator with an access token has access to the own record only.
fn permit(context: &RequestContext, id: &str) -> Result<(), NotifybcError> {
    match context.is_limited_to_own_record() && context.identity.security_id != id {
        true => Err(NotifybcError::Refused(None)),
        false => Ok(()),
    }
}

/// The administrators that a caller sees.
fn visible(context: &RequestContext) -> Where {
    match context.is_limited_to_own_record() {
        true => Where::text("id", &context.identity.security_id),
        false => Where::default(),
    }
}

fn ids(documents: &[Document]) -> Vec<String> {
    documents.iter().filter_map(|document| text(document, "id").map(str::to_owned)).collect()
}

fn take_password(body: &mut Document) -> Option<String> {
    let password = body.shift_remove("password")?;
    password.as_str().filter(|password| !password.is_empty()).map(str::to_owned)
}

/// At least ten characters, with an upper-case and a lower-case letter, a digit and a symbol.
fn check_password(password: &str) -> Result<(), NotifybcError> {
    let has = |is: fn(char) -> bool| password.chars().any(is);
    let is_strong = password.chars().count() >= PASSWORD_CHARS_MIN
        && has(|c| c.is_ascii_uppercase())
        && has(|c| c.is_ascii_lowercase())
        && has(|c| c.is_ascii_digit())
        && has(|c| PASSWORD_SYMBOLS.contains(c))
        && !has(|c| matches!(c, '\n' | '\r' | '\u{2028}' | '\u{2029}'));
    if is_strong { Ok(()) } else { Err(NotifybcError::Invalid("must match pattern".to_owned())) }
}

fn random_token() -> Result<String, NotifybcError> {
    let random = SystemRandom::new();
    let mut token = String::with_capacity(TOKEN_CHARS);
    let mut bytes = [0; TOKEN_CHARS];
    while token.len() < TOKEN_CHARS {
        random.fill(&mut bytes).map_err(|_| NotifybcError::Internal("no randomness".to_owned()))?;
        // Bytes beyond the last whole alphabet would prefer its first characters.
        let fair = bytes.iter().filter(|byte| usize::from(**byte) < 256 / TOKEN_ALPHABET.len() * TOKEN_ALPHABET.len());
        let room = TOKEN_CHARS - token.len();
        token.extend(fair.take(room).map(|byte| char::from(TOKEN_ALPHABET[usize::from(*byte) % TOKEN_ALPHABET.len()])));
    }
    Ok(token)
}

/// Runs work of many milliseconds of processor time.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, NotifybcError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| NotifybcError::Internal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s6_4_a_password_needs_ten_characters_of_four_kinds() {
        assert!(check_password("1aA@aaaaaa").is_ok());
        for weak in ["Too_sh0rt", "No__number", "1no_uppercase", "1NO_LOWERCASE", "1NoSpecialChar", ""] {
            let error = check_password(weak).expect_err(weak);
            assert_eq!(error.to_string(), "must match pattern");
        }
    }

    #[test]
    fn s4_1_an_access_token_has_64_letters_and_digits() {
        let (one, other) = (random_token().expect("random"), random_token().expect("random"));
        assert_eq!(one.len(), 64);
        assert!(one.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_ne!(one, other);
    }

    #[test]
    fn the_hash_of_no_account_is_one() {
        assert!(bcrypt::verify("", NO_ACCOUNT).is_ok());
    }
}
