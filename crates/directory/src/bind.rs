//! Who asks: a name and a password become an asker.

use tocsin_store::entries::{EntryNumber, Room};

use crate::{
    access::{Asker, Grant, Level},
    directory::Directory,
    filter::Filter,
    password::{Credential, verify},
    refusal::{Code, Refusal},
    search::Scope,
};

impl Directory {
    /// Checks a password.
    ///
    /// # Errors
    /// `InvalidCredentials`, whatever was wrong, after about the same time.
    pub async fn prove(&self, dn: &str, password: Vec<u8>) -> Result<Asker, Refusal> {
        let wrong = || Refusal::new(Code::InvalidCredentials, "");
        let found = match self.find(dn).await {
            Ok(found) => Some(found),
            Err(refusal) if refusal.code == Code::NoSuchObject => None,
            Err(refusal) => return Err(refusal),
        };
        let credential = match &found {
            Some(shown) => self.credential(shown.entry.number).await?,
            None => None,
        };
        let now = (self.clock)();
        // Also of one that is locked: the time should not tell.
        let is_right = verify(credential.clone(), password).await?;
        let is_locked = credential.as_ref().is_some_and(|credential| credential.is_locked(now));
        if let (Some(shown), Some(credential)) = (&found, credential)
            && !is_locked
        {
            self.remember(shown.entry.number, credential, is_right).await?;
        }
        let Some(shown) = found.filter(|_| is_right && !is_locked) else { return Err(wrong()) };
        let schema = self.schema();
        let asker = Asker {
            number: Some(shown.entry.number),
            key: shown.entry.key.clone(),
            dn: shown.entry.dn.clone(),
            manages: false,
            groups: self.groups_of(&shown.entry).await?,
        };
        let may = |asker: &Asker| {
            self.access().level(asker, &shown.entry, schema.attribute("userPassword").ok().map(|kind| &**kind))
        };
        // Rules may keep an entry from proving itself; they see whoever has not yet.
        if may(&Asker::default()) < Level::Auth && may(&asker) < Level::Auth { Err(wrong()) } else { Ok(asker) }
    }

    /// Counts a wrong password; forgets those before a right one.
    async fn remember(&self, number: EntryNumber, seen: Credential, is_right: bool) -> Result<(), Refusal> {
        if self.inner.lockout.failures == 0 || is_right && seen.failures == 0 && seen.locked_until.is_none() {
            return Ok(());
        }
        let (lockout, now) = (self.inner.lockout, (self.clock)());
        self.change(Room::NotNeeded, move |tree| {
            let known = tree.branches().credential(number)?.and_then(|text| Credential::read(&text));
            // Another password meanwhile: what was said is not about it.
            let Some(known) = known.filter(|known| known.hash == seen.hash) else { return Ok(()) };
            let next = match is_right {
                true => Credential { failures: 0, locked_until: None, ..known },
                false => lockout.after_failure(known, now),
            };
            Ok(tree.put_credential(number, Some(&next.to_text()))?)
        })
        .await
    }

    /// The name of the one entry that has a `uid`; `None` if there is none, or more than one.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn only_with_uid(&self, uid: &str) -> Result<Option<String>, Refusal> {
        let base = self.find(self.suffix()).await?;
        let filter = Filter::Equal("uid".to_owned(), uid.as_bytes().to_vec());
        let mut search = self.search(base, Scope::Subtree, &filter).await?;
        let mut found = Vec::new();
        while let Some(page) = search.next().await? {
            found.extend(page.into_iter().filter(|shown| search.is_met_by(shown, &Grant::open())));
            if found.len() > 1 {
                return Ok(None);
            }
        }
        Ok(found.first().map(|shown| shown.entry.dn.clone()))
    }
}
