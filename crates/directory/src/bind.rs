//! Who asks: a name and a password become an asker.

use std::{collections::BTreeSet, ops::Bound};

use tocsin_store::entries::Branches;

use crate::{
    access::{Asker, Level},
    directory::Directory,
    password::verify,
    refusal::{Code, Refusal},
};

/// Most groups that one asker is in.
const GROUPS_MAX: usize = 1_000;
/// The attributes by which groups hold their members.
const MEMBERS: &[&str] = &["member", "uniquemember"];

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
        let is_right = verify(credential, password).await?;
        let Some(shown) = found.filter(|_| is_right) else { return Err(wrong()) };
        let schema = self.schema();
        let asker = Asker {
            number: Some(shown.entry.number),
            key: shown.entry.key.clone(),
            dn: shown.entry.dn.clone(),
            manages: false,
            groups: self.groups_of(&shown.entry.key).await?,
        };
        let may = |asker: &Asker| {
            self.access().level(asker, &shown.entry, schema.attribute("userPassword").ok().map(|kind| &**kind))
        };
        // Rules may keep an entry from proving itself; they see whoever has not yet.
        if may(&Asker::default()) < Level::Auth && may(&asker) < Level::Auth { Err(wrong()) } else { Ok(asker) }
    }

    /// The names in normal form of the groups that an entry is in, also of groups in groups.
    pub(crate) async fn groups_of(&self, key: &str) -> Result<Vec<String>, Refusal> {
        let (inner, key) = (self.inner.clone(), key.to_owned());
        self.look(move |branches| {
            let ready = inner.ready.load();
            let (mut known, mut open) = (BTreeSet::new(), vec![key]);
            while let Some(member) = open.pop() {
                for index in MEMBERS.iter().filter(|index| ready.contains(**index)) {
                    let key = Bound::Included(member.as_bytes());
                    for number in branches.found(index, key, key, GROUPS_MAX)?.unwrap_or_default() {
                        let Some(node) = branches.node(number)? else { continue };
                        let above = inner.above(branches as &dyn Branches, &node)?;
                        let place = crate::entry::place(&node, above.as_deref(), &inner.schema.load());
                        // A group in itself, by whatever way, is looked at once.
                        if known.len() < GROUPS_MAX && known.insert(place.key.clone()) {
                            open.push(place.key);
                        }
                    }
                }
            }
            Ok(known.into_iter().collect())
        })
        .await
    }
}
