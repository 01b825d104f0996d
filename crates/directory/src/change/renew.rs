//! The password of an entry changes, under the policy of its place, or others decide about it: that it has to change, that
//! the entry is locked, or is not any more.

use std::{collections::BTreeSet, sync::Arc};

use tocsin_model::{ldap::Truth, time::Timestamp};
use tocsin_store::entries::EntryNumber;

use super::{
    modify::{Act, Modification},
    needs,
};
use crate::{
    access::Asker,
    directory::Directory,
    entry::Attribute,
    filter::Test,
    password::{Credential, is_hash, made_up_of, protect, verify},
    policy::{Policy, change_first, used_before},
    refusal::{Code, Refusal},
    schema::{AttributeType, Schema},
    syntax::generalized_time,
};

/// The attribute of the password.
const PASSWORD: &str = "userpassword";
/// Whether it has to change.
const RESET: &str = "pwdreset";
/// Since when the entry is locked.
const LOCKED: &str = "pwdaccountlockedtime";
/// When the password came.
const CHANGED: &str = "pwdchangedtime";
/// When it was taken after its end.
const GRACES: &str = "pwdgraceusetime";
/// Passwords looked at in one go.
const LOOKED_AT: usize = 1_024;
/// How it is written that somebody locked the entry until somebody unlocks it.
const FOR_EVER: &str = "000001010000Z";

/// What becomes of what an entry proves itself with.
pub(super) struct Renewal {
    /// Keys of the attributes by which it was asked for.
    keys: Vec<Arc<str>>,
    password: Password,
    marks: Vec<Mark>,
    policy: Arc<Policy>,
}

enum Password {
    Stays,
    /// `given`: somebody else made it up.
    Becomes {
        credential: Credential,
        given: bool,
    },
    Goes,
}

/// What others decide.
enum Mark {
    Reset(bool),
    Locked(bool),
}

/// A new password as it was given.
#[derive(Default)]
struct Wanted {
    new: Option<Vec<u8>>,
    /// Whether there is to be none, as far as was read.
    goes: bool,
    says_old: bool,
    marks: Vec<Mark>,
}

/// Whether a modification is one of the password and what is known of it.
pub(super) fn is_of_password(name: &str, schema: &Schema) -> bool {
    schema.attribute(name).is_ok_and(|kind| matches!(&*kind.key, PASSWORD | RESET | LOCKED))
}

/// Whether an attribute says what is known of a password.
pub fn tells_of_password(kind: &AttributeType) -> bool {
    matches!(&*kind.key, RESET | LOCKED | CHANGED | GRACES)
}

impl Directory {
    /// What a request makes of a password.
    pub(super) async fn renewal(
        &self,
        asker: &Asker,
        dn: &str,
        modifications: Vec<Modification>,
    ) -> Result<Renewal, Refusal> {
        if modifications.is_empty() {
            let policy = self.inner.policies.of("").clone();
            return Ok(Renewal { keys: Vec::new(), password: Password::Stays, marks: Vec::new(), policy });
        }
        // Before anything is hashed or compared: who may not change it learns nothing of it.
        let shown = self.find_for(asker, dn).await?;
        let schema = self.schema();
        let kinds = modifications.iter().map(|found| schema.attribute(&found.attribute));
        let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
        needs(&self.inner, asker, &shown.entry, &kinds.iter().map(|kind| &***kind).collect::<Vec<_>>())?;
        let itself = asker.number == Some(shown.entry.number);
        if asker.must_change && !itself {
            return Err(change_first());
        }
        let policy = self.inner.policies.of(&shown.entry.key).clone();
        let known = self.credential(shown.entry.number).await?;
        let mut wanted = Wanted::default();
        for (modification, kind) in modifications.iter().zip(&kinds) {
            match &*kind.key {
                PASSWORD => wanted.password(modification, known.as_ref()).await?,
                _ if itself && !asker.manages => {
                    let what = format!("{}: others decide about this", kind.name());
                    return Err(Refusal::new(Code::InsufficientAccessRights, what));
                }
                _ => wanted.marks.push(Mark::read(modification, kind)?),
            }
        }
        let keys = kinds.iter().map(|kind| kind.key.clone()).collect();
        let password = wanted.held_against(&policy, asker, itself, known.as_ref(), (self.clock)()).await?;
        Ok(Renewal { keys, password, marks: wanted.marks, policy })
    }

    /// The password of an entry that is made, held against the policy of its place.
    pub(super) async fn first_password(
        &self,
        asker: &Asker,
        key: &str,
        password: Option<Vec<u8>>,
    ) -> Result<Option<Credential>, Refusal> {
        let Some(password) = password else { return Ok(None) };
        let (policy, moved) = (self.inner.policies.of(key), is_hash(&password));
        policy.check(&password, moved, asker.manages)?;
        Ok(Some(policy.renewed(None, &protect(password).await?, !moved, (self.clock)())))
    }

    /// Whether the policy of an entry's place takes a password.
    pub(crate) fn takes_password(&self, dn: &str, password: &[u8]) -> bool {
        let key = crate::directory::parse(dn).map(|dn| self.schema().normal_dn(&dn));
        key.is_ok_and(|key| self.inner.policies.of(&key).check(password, is_hash(password), true).is_ok())
    }

    /// What an entry proves itself with.
    pub(crate) async fn credential(&self, number: EntryNumber) -> Result<Option<Credential>, Refusal> {
        let kept = &self.inner.kept;
        if let Some(known) = kept.credential(number) {
            return Ok(Some((*known).clone()));
        }
        let since = kept.moment();
        let text = self.look(move |branches| Ok(branches.credential(number)?)).await?;
        let credential = text.and_then(|text| Credential::read(&text));
        if let Some(found) = &credential {
            kept.keep_credential(number, Arc::new(found.clone()), since);
        }
        Ok(credential)
    }

    /// A password that nobody can guess, as long as the policy of an entry wants it.
    ///
    /// # Errors
    /// The name cannot be read; the system has no random numbers.
    pub fn made_up_password(&self, dn: &str) -> Result<String, Refusal> {
        let key = self.schema().normal_dn(&crate::directory::parse(dn)?);
        made_up_of(self.inner.policies.of(&key).length_min())
    }

    /// What is known of the password of an entry: when it came, whether it has to change, whether the entry is locked.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn told_of_password(&self, number: EntryNumber) -> Result<Vec<Attribute>, Refusal> {
        match self.credential(number).await? {
            Some(known) => told(&known, &self.schema(), (self.clock)()),
            None => Ok(Vec::new()),
        }
    }

    /// Finds the entries of whose passwords so much is known as a filter asks for, so that it can be held against entries. Each
    /// entry that has a password is looked at, a page at a time.
    ///
    /// # Errors
    /// The store does not answer.
    pub(crate) async fn with_passwords(&self, test: Test) -> Result<Test, Refusal> {
        if !test.has(&Test::asks_for_passwords) {
            return Ok(test);
        }
        let mut found: Vec<(Test, BTreeSet<EntryNumber>)> = Vec::new();
        let test = test.with(&mut |part| {
            if part.asks_for_passwords() {
                found.push((part.clone(), BTreeSet::new()));
            }
            Ok::<_, Refusal>(part)
        })?;
        let (schema, now, mut after) = (self.schema(), (self.clock)(), None);
        loop {
            let page = self.look(move |branches| Ok(branches.credentials(after, LOOKED_AT)?)).await?;
            for (number, text) in &page {
                let Some(known) = Credential::read(text) else { continue };
                let attributes = told(&known, &schema, now)?;
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
            let (true, Some(kind)) = (part.asks_for_passwords(), part.kind()) else { return Ok(part) };
            let met = found.next().map(|(_, met)| met).unwrap_or_default();
            Ok(Test::OfPassword(kind.clone(), Arc::new(met)))
        })
    }
}

/// What is told of a password.
fn told(known: &Credential, schema: &Schema, now: Timestamp) -> Result<Vec<Attribute>, Refusal> {
    let times = |all: &[i64]| all.iter().map(|at| generalized_time(*at)).collect::<Vec<_>>();
    let locked = known.locked_at.filter(|_| known.is_locked(now)).map(|at| match known.is_locked_by_others() {
        true => FOR_EVER.to_owned(),
        false => generalized_time(at),
    });
    let told = [
        (CHANGED, times(known.changed_at.as_slice())),
        (RESET, known.reset.then(|| "TRUE".to_owned()).into_iter().collect()),
        (LOCKED, locked.into_iter().collect()),
        (GRACES, times(&known.graces)),
    ];
    let told = told.into_iter().filter(|(_, values)| !values.is_empty()).map(|(key, values)| {
        let values: Vec<Box<[u8]>> = values.into_iter().map(|text| text.into_bytes().into()).collect();
        Ok(Attribute { kind: schema.attribute(key)?.clone(), values: values.into() })
    });
    told.collect()
}

impl Wanted {
    /// Takes one change of the password.
    async fn password(&mut self, modification: &Modification, known: Option<&Credential>) -> Result<(), Refusal> {
        let has_one = self.new.is_some() || known.is_some() && !self.goes;
        match (modification.act, modification.values.as_slice()) {
            (Act::Delete | Act::Replace, []) => (self.new, self.goes) = (None, true),
            (Act::Delete, [old]) => {
                if !verify(known.cloned(), old.clone()).await? {
                    return Err(Refusal::new(Code::NoSuchAttribute, "this is not the password of the entry"));
                }
                (self.new, self.goes, self.says_old) = (None, true, true);
            }
            (Act::Add, [_]) if has_one => {
                return Err(Refusal::new(Code::ConstraintViolation, "an entry has one password; replace it"));
            }
            (Act::Add | Act::Replace, [new]) => (self.new, self.goes) = (Some(new.clone()), false),
            _ => return Err(Refusal::new(Code::ConstraintViolation, "an entry has one password")),
        }
        Ok(())
    }

    /// Holds what is wanted against the policy, and hashes it.
    async fn held_against(
        &mut self,
        policy: &Policy,
        asker: &Asker,
        itself: bool,
        known: Option<&Credential>,
        now: Timestamp,
    ) -> Result<Password, Refusal> {
        let Some(new) = self.new.take() else {
            if self.goes && itself {
                policy.check_removal()?;
            }
            return match self.goes {
                true if asker.must_change => Err(change_first()),
                true => Ok(Password::Goes),
                false => Ok(Password::Stays),
            };
        };
        if let Some(known) = known.filter(|_| itself) {
            policy.check_change(known, self.says_old, now)?;
        }
        let moved = is_hash(&new);
        policy.check(&new, moved, asker.manages)?;
        let compared = if moved { 0 } else { policy.compared() };
        let former: Vec<String> = known.into_iter().flat_map(Credential::hashes).take(compared).cloned().collect();
        for hash in former {
            if verify(Some(Credential::of(hash)), new.clone()).await? {
                return Err(used_before());
            }
        }
        Ok(Password::Becomes { credential: protect(new).await?, given: !itself && !moved })
    }
}

impl Mark {
    fn read(modification: &Modification, kind: &AttributeType) -> Result<Mark, Refusal> {
        let value = match modification.values.as_slice() {
            [] => "",
            [value] => std::str::from_utf8(value).unwrap_or("?"),
            _ => "?",
        };
        match (&*kind.key, modification.act, value) {
            (RESET, Act::Add | Act::Replace, "TRUE") => Ok(Mark::Reset(true)),
            (RESET, Act::Delete, _) | (RESET, Act::Replace, "" | "FALSE") => Ok(Mark::Reset(false)),
            (LOCKED, Act::Add | Act::Replace, FOR_EVER) => Ok(Mark::Locked(true)),
            (LOCKED, Act::Delete, _) | (LOCKED, Act::Replace, "") => Ok(Mark::Locked(false)),
            (RESET, ..) => Err(Refusal::new(Code::InvalidAttributeSyntax, "pwdReset: becomes TRUE or FALSE")),
            _ => {
                let what = format!("pwdAccountLockedTime: is taken away, or becomes {FOR_EVER}: locked for ever");
                Err(Refusal::new(Code::InvalidAttributeSyntax, what))
            }
        }
    }
}

impl Renewal {
    /// The types of the attributes by which it was asked for.
    pub(super) fn kinds(&self, schema: &Schema) -> Result<Vec<Arc<AttributeType>>, Refusal> {
        self.keys.iter().map(|key| schema.attribute(key).cloned()).collect()
    }

    /// What is stored in place of what there is; `None`: that stays.
    pub(super) fn apply(&self, known: Option<&str>, now: Timestamp) -> Result<Option<Option<Credential>>, Refusal> {
        let known = known.and_then(Credential::read);
        let mut next = match &self.password {
            Password::Stays => known.clone(),
            Password::Becomes { credential, given } => {
                Some(self.policy.renewed(known.as_ref(), credential, *given, now))
            }
            Password::Goes => None,
        };
        for mark in &self.marks {
            let Some(next) = &mut next else {
                return Err(Refusal::new(Code::UnwillingToPerform, "the entry has no password; give it one first"));
            };
            match mark {
                Mark::Reset(reset) => next.reset = *reset,
                Mark::Locked(true) => next.lock(),
                Mark::Locked(false) => next.unlock(),
            }
        }
        Ok((next != known).then_some(next))
    }
}
