//! Authentication: a DN and a password become an authorization identity, which is renewed when its entry changes.

use std::sync::Arc;

use tocsin_store::entries::DiskCheck;

use crate::{
    access::{AuthzId, Grant, Level},
    bound_identity::BoundIdentity,
    directory::Directory,
    dn::Dn,
    entry::Entry,
    filter::{Filter, Scope},
    ldap_error::{Code, LdapError},
    password::{Credential, verify},
    policy::{Notice, wrong},
};

/// Result of a successful bind.
#[derive(Debug, Clone)]
pub struct BindResult {
    /// The authorization identity.
    pub requester: AuthzId,
    /// Password policy warnings for the client.
    pub notice: Notice,
}

impl Directory {
    /// Verifies a password (simple bind). Counts a wrong one, resets the count on a right one, and applies the password
    /// policy.
    ///
    /// # Errors
    /// `InvalidCredentials` for every cause, after about the same time.
    pub async fn authenticate(&self, dn: &str, password: Vec<u8>) -> Result<BindResult, LdapError> {
        let found = match self.find(dn).await {
            Ok(found) => Some(found),
            Err(refusal) if refusal.code == Code::NoSuchObject => None,
            Err(refusal) => return Err(refusal),
        };
        // Registered before the entry is read, so that any later change ends this bind.
        let bound_identity = found.as_ref().map(|shown| self.inner.bound.add(shown.entry.number));
        let found = match &found {
            Some(shown) => self.numbered(vec![shown.entry.number]).await?.pop(),
            None => None,
        };
        let credential = match &found {
            Some(shown) => self.credential(shown.entry.number).await?,
            None => None,
        };
        // Also verified for a locked entry, so that the response time does not reveal the lock.
        let is_right = verify(credential.clone(), password).await?;
        let (Some(shown), Some(credential)) = (found, credential) else { return Err(wrong()) };
        if is_disabled(&shown.entry) {
            return Err(wrong());
        }
        if let Some(bound_identity) = &bound_identity {
            bound_identity.accept(&credential.hash);
        }
        let notice = self.record_password_check(&shown.entry, credential, is_right).await?;
        let must_change = notice.fault.is_some();
        let requester = AuthzId { must_change, bound_identity, ..self.requester(&shown.entry).await? };
        Ok(BindResult { requester, notice })
    }

    /// The authorization identity of an entry.
    pub(crate) async fn requester(&self, entry: &Entry) -> Result<AuthzId, LdapError> {
        let requester = self.identity_of(entry).await?;
        let schema = self.schema();
        let kind = schema.attribute("userPassword").ok().map(|kind| &**kind);
        let may = |requester: &AuthzId| self.access().level(requester, entry, kind) >= Level::Auth;
        // Access rules can forbid an entry to bind; they are evaluated for the anonymous user and for the entry.
        if may(&AuthzId::default()) || may(&requester) { Ok(requester) } else { Err(wrong()) }
    }

    /// The authorization identity that an entry would have, whether or not it may bind.
    pub(crate) async fn identity_of(&self, entry: &Entry) -> Result<AuthzId, LdapError> {
        Ok(AuthzId {
            number: Some(entry.number),
            key: entry.key.clone(),
            dn: entry.dn.clone(),
            groups: self.groups_of(entry).await?,
            ..AuthzId::default()
        })
    }

    /// Records the result of a password check. Writes nothing if nothing changes.
    async fn record_password_check(
        &self,
        entry: &Entry,
        seen: Credential,
        is_right: bool,
    ) -> Result<Notice, LdapError> {
        let (policy, number, now) = (self.inner.policies.of(&entry.key).clone(), entry.number, (self.clock)());
        let (None, answer) = policy.evaluate(&seen, is_right, now) else {
            let dn = entry.dn.clone();
            return self
                .change(DiskCheck::Skipped, move |tree| {
                    let known = tree.reader().credential(number)?.and_then(|text| Credential::read(&text));
                    // The password changed during the check, so the result does not apply to it.
                    let Some(known) = known.filter(|known| known.hash == seen.hash) else { return Ok(Err(wrong())) };
                    let (next, answer) = policy.evaluate(&known, is_right, now);
                    if let Some(next) = next {
                        if next.is_locked(now) {
                            metrics::counter!("tocsin_directory_locked_total").increment(1);
                            tracing::warn!(dn, "an entry is locked after too many wrong passwords");
                        }
                        tree.put_credential(number, Some(&next.to_text()))?;
                    }
                    Ok(answer)
                })
                .await?;
        };
        answer
    }

    /// The authorization identity of an entry that authenticated by a certificate. `None`: there is no such entry.
    ///
    /// # Errors
    /// An operator locked it, it is disabled, or the access rules forbid it to bind.
    pub async fn bind_external(&self, dn: &str) -> Result<Option<AuthzId>, LdapError> {
        let shown = match self.find(dn).await {
            Ok(shown) => shown,
            Err(refusal) if matches!(refusal.code, Code::NoSuchObject | Code::InvalidDnSyntax) => return Ok(None),
            Err(refusal) => return Err(refusal),
        };
        let bound_identity = self.inner.bound.add(shown.entry.number);
        let Some(shown) = self.numbered(vec![shown.entry.number]).await?.pop() else { return Ok(None) };
        // Wrong passwords lock the password only; otherwise anyone could lock out anyone.
        match self.credential(shown.entry.number).await? {
            Some(credential) if credential.is_locked_by_others() => Err(wrong()),
            _ if is_disabled(&shown.entry) => Err(wrong()),
            _ => Ok(Some(AuthzId { bound_identity: Some(bound_identity), ..self.requester(&shown.entry).await? })),
        }
    }

    /// A DN in normal form; `None`: it is malformed.
    pub fn normal(&self, dn: &str) -> Option<String> {
        Dn::parse(dn).ok().map(|dn| self.schema().normal_dn(&dn))
    }

    /// The DN of the only entry with a value; `None` if there is none, or more than one.
    ///
    /// # Errors
    /// The store fails.
    pub async fn only_with(&self, attribute: &str, value: &[u8]) -> Result<Option<String>, LdapError> {
        let base = self.find(self.suffix()).await?;
        let filter = Filter::Equal(attribute.to_owned(), value.to_vec());
        let server = AuthzId { manages: true, ..AuthzId::default() };
        let mut search = self.search(&server, base, Scope::Subtree, &filter).await?;
        let mut found = Vec::new();
        while let Some(page) = search.next().await? {
            for shown in page {
                if search.is_met_by(&shown, &Grant::open())? {
                    found.push(shown);
                }
            }
            if found.len() > 1 {
                return Ok(None);
            }
        }
        Ok(found.first().map(|shown| shown.entry.dn.clone()))
    }
}

impl Directory {
    /// Renews a bound identity. `None`: its entry is gone, disabled, locked by an operator, not allowed to bind, or has
    /// another password.
    ///
    /// # Errors
    /// The store fails, or the index of groups is still being built.
    pub async fn renewed(&self, requester: &AuthzId) -> Result<Option<AuthzId>, LdapError> {
        let Some(bound) = &requester.bound_identity else { return Ok(Some(requester.clone())) };
        // Before anything is read, so that a concurrent change marks it again.
        bound.set_stale(false);
        let renewed = self.reauthenticate(requester, bound).await;
        if renewed.is_err() {
            bound.set_stale(true);
        }
        renewed
    }

    async fn reauthenticate(
        &self,
        requester: &AuthzId,
        bound: &Arc<BoundIdentity>,
    ) -> Result<Option<AuthzId>, LdapError> {
        let Some(shown) = self.numbered(vec![bound.number()]).await?.pop() else { return Ok(None) };
        let credential = self.credential(bound.number()).await?;
        if is_disabled(&shown.entry) || !bound.is_proven_by(credential.as_ref()) {
            return Ok(None);
        }
        match self.requester(&shown.entry).await {
            Ok(now) => Ok(Some(AuthzId {
                must_change: requester.must_change,
                bound_identity: requester.bound_identity.clone(),
                ..now
            })),
            Err(refusal) if refusal.code == Code::InvalidCredentials => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }
}

/// Whether a subscriber entry is disabled.
fn is_disabled(entry: &Entry) -> bool {
    let values = entry.attribute("tocsinenabled").into_iter().flat_map(|found| &*found.values);
    values.into_iter().any(|value| value.eq_ignore_ascii_case(b"false"))
}
