//! Password changes by the owner or an administrator (RFC 3062, password policy), and changes of the password state:
//! forced change, lock and unlock.

use std::{collections::BTreeSet, sync::Arc};

use tocsin_model::{ldap::Truth, time::Timestamp};
use tocsin_store::entries::EntryNumber;

use super::{
    prepare::{Modification, ModifyType},
    rights::check_access,
};
use crate::{
    access::AuthzId,
    directory::Directory,
    entry::Attribute,
    filter::Test,
    ldap_error::{Code, LdapError},
    password::{CHANGED, Credential, GRACES, LOCKED, RESET, generate_with_length, is_hash, protect, verify},
    policy::{Policy, change_first, used_before},
    schema::{AttributeType, PASSWORD, Schema},
    syntax::generalized_time,
    tree::parse,
};

/// Credentials read at a time.
const LOOKED_AT: usize = 1_024;
/// Value of `pwdAccountLockedTime` for a permanent lock.
const PERMANENTLY_LOCKED: &str = "000001010000Z";

/// Change of an entry's credential.
pub(super) struct CredentialChange {
    /// Keys of the modified attributes.
    keys: Vec<Arc<str>>,
    password: Password,
    state_changes: Vec<PasswordStateChange>,
    policy: Arc<Policy>,
}

enum Password {
    Stays,
    /// `given`: an administrator set it.
    Becomes {
        credential: Credential,
        given: bool,
    },
    Goes,
}

/// Administrative change of the password state.
enum PasswordStateChange {
    Reset(bool),
    Locked(bool),
}

/// Requested password change.
#[derive(Default)]
struct RequestedPassword {
    new: Option<Vec<u8>>,
    /// Whether the password is removed, as of the modifications read so far.
    is_removed: bool,
    has_old_password: bool,
    state_changes: Vec<PasswordStateChange>,
}

impl Directory {
    /// Computes the password change of a request.
    pub(super) async fn credential_change(
        &self,
        requester: &AuthzId,
        dn: &str,
        modifications: Vec<Modification>,
    ) -> Result<CredentialChange, LdapError> {
        if modifications.is_empty() {
            let policy = self.inner.policies.of("").clone();
            return Ok(CredentialChange {
                keys: Vec::new(),
                password: Password::Stays,
                state_changes: Vec::new(),
                policy,
            });
        }
        // Access is checked before hashing or comparing, so an unauthorized requester learns nothing.
        let shown = self.find_for(requester, dn).await?;
        let schema = self.schema();
        let kinds = modifications.iter().map(|found| schema.attribute(&found.attribute));
        let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
        check_access(&self.inner, requester, &shown.entry, &kinds.iter().map(|kind| &***kind).collect::<Vec<_>>())?;
        let itself = requester.number == Some(shown.entry.number);
        if requester.must_change && !itself {
            return Err(change_first());
        }
        let policy = self.inner.policies.of(&shown.entry.key).clone();
        let known = self.credential(shown.entry.number).await?;
        let mut requested = RequestedPassword::default();
        for (modification, kind) in modifications.iter().zip(&kinds) {
            match &*kind.key {
                PASSWORD => requested.password(modification, known.as_ref()).await?,
                _ if itself && !requester.manages => {
                    let what = format!("{}: only an administrator can change this", kind.name());
                    return Err(LdapError::new(Code::InsufficientAccessRights, what));
                }
                _ => requested.state_changes.push(PasswordStateChange::read(modification, kind)?),
            }
        }
        let keys = kinds.iter().map(|kind| kind.key.clone()).collect();
        let password = requested.held_against(&policy, requester, itself, known.as_ref(), (self.clock)()).await?;
        Ok(CredentialChange { keys, password, state_changes: requested.state_changes, policy })
    }

    /// The password of a new entry, checked against its policy.
    pub(super) async fn first_password(
        &self,
        requester: &AuthzId,
        key: &str,
        password: Option<Vec<u8>>,
    ) -> Result<Option<Credential>, LdapError> {
        let Some(password) = password else { return Ok(None) };
        let (policy, moved) = (self.inner.policies.of(key), is_hash(&password));
        policy.check(&password, moved, requester.manages)?;
        Ok(Some(policy.renewed(None, &protect(password).await?, !moved, (self.clock)())))
    }

    /// Whether the policy of an entry accepts a password.
    pub(crate) fn takes_password(&self, dn: &str, password: &[u8]) -> bool {
        let key = parse(dn).map(|dn| self.schema().normal_dn(&dn));
        key.is_ok_and(|key| self.inner.policies.of(&key).check(password, is_hash(password), true).is_ok())
    }

    /// The credential of an entry.
    pub(crate) async fn credential(&self, number: EntryNumber) -> Result<Option<Credential>, LdapError> {
        let cache = &self.inner.cache;
        if let Some(known) = cache.credential(number) {
            return Ok(Some((*known).clone()));
        }
        let since = cache.generation();
        let text = self.read(move |branches| Ok(branches.credential(number)?)).await?;
        let credential = text.and_then(|text| Credential::read(&text));
        if let Some(found) = &credential {
            cache.insert_credential(number, Arc::new(found.clone()), since);
        }
        Ok(credential)
    }

    /// Generates a random password that satisfies the policy of an entry.
    ///
    /// # Errors
    /// The name is malformed, or the system's random number generator failed.
    pub fn generate_password(&self, dn: &str) -> Result<String, LdapError> {
        let key = self.schema().normal_dn(&parse(dn)?);
        generate_with_length(self.inner.policies.of(&key).length_min())
    }

    /// The password state of an entry: time of change, forced change, lock.
    ///
    /// # Errors
    /// The store fails.
    pub async fn password_state(&self, number: EntryNumber) -> Result<Vec<Attribute>, LdapError> {
        match self.credential(number).await? {
            Some(known) => state_attributes(&known, &self.schema(), (self.clock)()),
            None => Ok(Vec::new()),
        }
    }

    /// Resolves the password-state parts of a filter, so that it can be evaluated on entries. Scans all credentials, a
    /// page at a time.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn with_passwords(&self, test: Test) -> Result<Test, LdapError> {
        if !test.has(&Test::tests_password_state) {
            return Ok(test);
        }
        let mut found: Vec<(Test, BTreeSet<EntryNumber>)> = Vec::new();
        let test = test.with(&mut |part| {
            if part.tests_password_state() {
                found.push((part.clone(), BTreeSet::new()));
            }
            Ok::<_, LdapError>(part)
        })?;
        let (schema, now, mut after) = (self.schema(), (self.clock)(), None);
        loop {
            let page = self.read(move |branches| Ok(branches.credentials(after, LOOKED_AT)?)).await?;
            for (number, text) in &page {
                let Some(known) = Credential::read(text) else { continue };
                let attributes = state_attributes(&known, &schema, now)?;
                for (part, met) in &mut found {
                    let own = attributes.iter().find(|own| part.kind().is_some_and(|kind| own.kind.key == kind.key));
                    if part.of_attribute(own, &schema) == Truth::True {
                        met.insert(*number);
                    }
                }
            }
            match page.last() {
                Some((last, _)) if page.len() == LOOKED_AT => after = Some(*last),
                _ => break,
            }
        }
        let mut found = found.into_iter();
        test.with(&mut |part| {
            let (true, Some(kind)) = (part.tests_password_state(), part.kind()) else { return Ok(part) };
            let met = found.next().map(|(_, met)| met).unwrap_or_default();
            Ok(Test::OfPassword(kind.clone(), Arc::new(met)))
        })
    }
}

/// The attributes of a password state.
fn state_attributes(known: &Credential, schema: &Schema, now: Timestamp) -> Result<Vec<Attribute>, LdapError> {
    let times = |all: &[i64]| all.iter().map(|at| generalized_time(*at)).collect::<Vec<_>>();
    let locked = known.locked_at.filter(|_| known.is_locked(now)).map(|at| match known.is_locked_by_others() {
        true => PERMANENTLY_LOCKED.to_owned(),
        false => generalized_time(at),
    });
    let states = [
        (CHANGED, times(known.changed_at.as_slice())),
        (RESET, known.reset.then(|| "TRUE".to_owned()).into_iter().collect()),
        (LOCKED, locked.into_iter().collect()),
        (GRACES, times(&known.grace_use_times)),
    ];
    let states = states.into_iter().filter(|(_, values)| !values.is_empty()).map(|(key, values)| {
        let values: Vec<Box<[u8]>> = values.into_iter().map(|text| text.into_bytes().into()).collect();
        Ok(Attribute { kind: schema.attribute(key)?.clone(), values: values.into() })
    });
    states.collect()
}

impl RequestedPassword {
    /// Applies one modification of the password.
    async fn password(&mut self, modification: &Modification, known: Option<&Credential>) -> Result<(), LdapError> {
        let has_one = self.new.is_some() || known.is_some() && !self.is_removed;
        match (modification.act, modification.values.as_slice()) {
            (ModifyType::Delete | ModifyType::Replace, []) => (self.new, self.is_removed) = (None, true),
            (ModifyType::Delete, [old]) => {
                if !verify(known.cloned(), old.clone()).await? {
                    return Err(LdapError::new(Code::NoSuchAttribute, "the value is not the password of the entry"));
                }
                (self.new, self.is_removed, self.has_old_password) = (None, true, true);
            }
            (ModifyType::Add, [_]) if has_one => {
                return Err(LdapError::new(
                    Code::ConstraintViolation,
                    "an entry can have only one password; replace it",
                ));
            }
            (ModifyType::Add | ModifyType::Replace, [new]) => (self.new, self.is_removed) = (Some(new.clone()), false),
            _ => return Err(LdapError::new(Code::ConstraintViolation, "an entry can have only one password")),
        }
        Ok(())
    }

    /// Checks the new password against the policy, and hashes it.
    async fn held_against(
        &mut self,
        policy: &Policy,
        requester: &AuthzId,
        itself: bool,
        known: Option<&Credential>,
        now: Timestamp,
    ) -> Result<Password, LdapError> {
        let Some(new) = self.new.take() else {
            if self.is_removed && itself {
                policy.check_removal()?;
            }
            return match self.is_removed {
                true if requester.must_change => Err(change_first()),
                true => Ok(Password::Goes),
                false => Ok(Password::Stays),
            };
        };
        if let Some(known) = known.filter(|_| itself) {
            policy.check_change(known, self.has_old_password, now)?;
        }
        let moved = is_hash(&new);
        policy.check(&new, moved, requester.manages)?;
        let compared = if moved { 0 } else { policy.compared_hashes_max() };
        let former: Vec<String> = known.into_iter().flat_map(Credential::hashes).take(compared).cloned().collect();
        for hash in former {
            if verify(Some(Credential::of(hash)), new.clone()).await? {
                return Err(used_before());
            }
        }
        Ok(Password::Becomes { credential: protect(new).await?, given: !itself && !moved })
    }
}

impl PasswordStateChange {
    fn read(modification: &Modification, kind: &AttributeType) -> Result<PasswordStateChange, LdapError> {
        let value = match modification.values.as_slice() {
            [] => "",
            [value] => std::str::from_utf8(value).unwrap_or("?"),
            _ => "?",
        };
        match (&*kind.key, modification.act, value) {
            (RESET, ModifyType::Add | ModifyType::Replace, "TRUE") => Ok(PasswordStateChange::Reset(true)),
            (RESET, ModifyType::Delete, _) | (RESET, ModifyType::Replace, "" | "FALSE") => {
                Ok(PasswordStateChange::Reset(false))
            }
            (LOCKED, ModifyType::Add | ModifyType::Replace, PERMANENTLY_LOCKED) => {
                Ok(PasswordStateChange::Locked(true))
            }
            (LOCKED, ModifyType::Delete, _) | (LOCKED, ModifyType::Replace, "") => {
                Ok(PasswordStateChange::Locked(false))
            }
            (RESET, ..) => {
                Err(LdapError::new(Code::InvalidAttributeSyntax, "pwdReset: the value must be TRUE or FALSE"))
            }
            _ => {
                let what =
                    format!("pwdAccountLockedTime: delete it, or set it to {PERMANENTLY_LOCKED}, a permanent lock");
                Err(LdapError::new(Code::InvalidAttributeSyntax, what))
            }
        }
    }
}

impl CredentialChange {
    /// Types of the modified attributes.
    pub(super) fn kinds(&self, schema: &Schema) -> Result<Vec<Arc<AttributeType>>, LdapError> {
        self.keys.iter().map(|key| schema.attribute(key).cloned()).collect()
    }

    /// The credential to store; `None`: unchanged.
    pub(super) fn apply(&self, known: Option<&str>, now: Timestamp) -> Result<Option<Option<Credential>>, LdapError> {
        let known = known.and_then(Credential::read);
        let mut next = match &self.password {
            Password::Stays => known.clone(),
            Password::Becomes { credential, given } => {
                Some(self.policy.renewed(known.as_ref(), credential, *given, now))
            }
            Password::Goes => None,
        };
        for mark in &self.state_changes {
            let Some(next) = &mut next else {
                return Err(LdapError::new(Code::UnwillingToPerform, "the entry has no password; set one first"));
            };
            match mark {
                PasswordStateChange::Reset(reset) => next.reset = *reset,
                PasswordStateChange::Locked(true) => next.lock(),
                PasswordStateChange::Locked(false) => next.unlock(),
            }
        }
        Ok((next != known).then_some(next))
    }
}
