//! Who asks: a name and a password become an asker.

use tocsin_store::entries::Room;

use crate::{
    access::{Asker, Grant, Level},
    directory::Directory,
    dn::Dn,
    entry::Entry,
    filter::Filter,
    password::{Credential, verify},
    policy::{Notice, wrong},
    refusal::{Code, Refusal},
    search::Scope,
    standing::is_disabled,
};

/// Somebody who proved who they are.
#[derive(Debug, Clone)]
pub struct Proven {
    /// They, as who asks from now on.
    pub asker: Asker,
    /// What is to be told of the password.
    pub notice: Notice,
}

impl Directory {
    /// Checks a password. Counts a wrong one, forgets those before a right one, and holds it against the policy.
    ///
    /// # Errors
    /// `InvalidCredentials`, whatever was wrong, after about the same time.
    pub async fn prove(&self, dn: &str, password: Vec<u8>) -> Result<Proven, Refusal> {
        let found = match self.find(dn).await {
            Ok(found) => Some(found),
            Err(refusal) if refusal.code == Code::NoSuchObject => None,
            Err(refusal) => return Err(refusal),
        };
        // Registered before anything is read of it: what changes from now on ends what is proven here.
        let standing = found.as_ref().map(|shown| self.inner.stand(shown.entry.number));
        let found = match &found {
            Some(shown) => self.numbered(vec![shown.entry.number]).await?.pop(),
            None => None,
        };
        let credential = match &found {
            Some(shown) => self.credential(shown.entry.number).await?,
            None => None,
        };
        // Also of one that is locked: the time should not tell.
        let is_right = verify(credential.clone(), password).await?;
        let (Some(shown), Some(credential)) = (found, credential) else { return Err(wrong()) };
        if is_disabled(&shown.entry) {
            return Err(wrong());
        }
        if let Some(standing) = &standing {
            standing.accept(&credential.hash);
        }
        let notice = self.settle(&shown.entry, credential, is_right).await?;
        let must_change = notice.fault.is_some();
        let asker = Asker { must_change, standing, ..self.asker(&shown.entry).await? };
        Ok(Proven { asker, notice })
    }

    /// An entry as who asks.
    pub(crate) async fn asker(&self, entry: &Entry) -> Result<Asker, Refusal> {
        let asker = Asker {
            number: Some(entry.number),
            key: entry.key.clone(),
            dn: entry.dn.clone(),
            groups: self.groups_of(entry).await?,
            ..Asker::default()
        };
        let schema = self.schema();
        let kind = schema.attribute("userPassword").ok().map(|kind| &**kind);
        let may = |asker: &Asker| self.access().level(asker, entry, kind) >= Level::Auth;
        // Rules may keep an entry from proving itself; they see whoever has not yet.
        if may(&Asker::default()) || may(&asker) { Ok(asker) } else { Err(wrong()) }
    }

    /// Notes what a password came to. Where there is nothing to note, nothing is written.
    async fn settle(&self, entry: &Entry, seen: Credential, is_right: bool) -> Result<Notice, Refusal> {
        let (policy, number, now) = (self.inner.policies.of(&entry.key).clone(), entry.number, (self.clock)());
        let (None, answer) = policy.judge(&seen, is_right, now) else {
            let dn = entry.dn.clone();
            return self
                .change(Room::NotNeeded, move |tree| {
                    let known = tree.branches().credential(number)?.and_then(|text| Credential::read(&text));
                    // Another password meanwhile: what was said is not about it.
                    let Some(known) = known.filter(|known| known.hash == seen.hash) else { return Ok(Err(wrong())) };
                    let (next, answer) = policy.judge(&known, is_right, now);
                    if let Some(next) = next {
                        if next.is_locked(now) {
                            metrics::counter!("directory_locked_total").increment(1);
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

    /// An entry for which somebody else vouches: who proved it by a certificate. `None`: there is no such entry.
    ///
    /// # Errors
    /// An operator locked it, it is disabled, or the rules keep it from proving itself.
    pub async fn vouched(&self, dn: &str) -> Result<Option<Asker>, Refusal> {
        let shown = match self.find(dn).await {
            Ok(shown) => shown,
            Err(refusal) if matches!(refusal.code, Code::NoSuchObject | Code::InvalidDnSyntax) => return Ok(None),
            Err(refusal) => return Err(refusal),
        };
        let standing = self.inner.stand(shown.entry.number);
        let Some(shown) = self.numbered(vec![shown.entry.number]).await?.pop() else { return Ok(None) };
        // Wrong passwords lock passwords only; otherwise everybody could keep everybody out.
        match self.credential(shown.entry.number).await? {
            Some(credential) if credential.is_locked_by_others() => Err(wrong()),
            _ if is_disabled(&shown.entry) => Err(wrong()),
            _ => Ok(Some(Asker { standing: Some(standing), ..self.asker(&shown.entry).await? })),
        }
    }

    /// A name in normal form; `None`: it is none.
    pub fn normal(&self, dn: &str) -> Option<String> {
        Dn::parse(dn).ok().map(|dn| self.schema().normal_dn(&dn))
    }

    /// The name of the one entry that has a value; `None` if there is none, or more than one.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn only_with(&self, attribute: &str, value: &[u8]) -> Result<Option<String>, Refusal> {
        let base = self.find(self.suffix()).await?;
        let filter = Filter::Equal(attribute.to_owned(), value.to_vec());
        let server = Asker { manages: true, ..Asker::default() };
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
