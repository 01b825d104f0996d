//! Bulk import and export of entries as LDIF.

use std::{
    collections::HashSet,
    io::{BufRead, Write},
    pin::pin,
};

use futures_util::{
    StreamExt,
    stream::{self, FuturesOrdered},
};
use tocsin_store::entries::EntryNode;

use crate::{
    access::AuthzId,
    change::{Modification, ModifyType, Preconditions, is_password_state},
    directory::Directory,
    dn::Dn,
    entry::SUBSCHEMA,
    ldap_error::{Code, LdapError},
    ldif::{self, Change, LdifError, Record},
    password::{WAITING_MAX, protect},
    schema::Schema,
};

/// Records processed concurrently, so that they share commits.
const UNDER_WAY: usize = 512;
/// Records whose passwords are hashed concurrently, below the limit of waiting hashes.
const HASHED_AHEAD: usize = 16;
const _: () = assert!(HASHED_AHEAD < WAITING_MAX);
/// Entries read at a time.
const PAGE: usize = 500;

/// Result of an import.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Number of records carried out.
    pub done: u64,
    /// Number of entries that existed already and were left unchanged.
    pub present: u64,
    /// Failed records: line, DN, error.
    pub refused: Vec<(usize, String, String)>,
    /// Number of further failed records that are not listed.
    pub untold: u64,
}

/// Maximum bytes of records deferred until their parent entry exists. Further ones fail.
const DEFERRED_BYTES_MAX: usize = 64 << 20;
/// Maximum failed records that are listed.
const TOLD_MAX: usize = 1_000;

impl Directory {
    /// Carries out the records of a file as an operator, many concurrently, each in its own transaction. A record sees
    /// the changes of the records before it. An entry that precedes its parent is added at the end. A malformed or
    /// failed record is reported and stops no other. Operational attributes that each server maintains itself are
    /// ignored.
    ///
    /// # Errors
    /// The file cannot be read further; the records read so far are done.
    pub async fn import(
        &self,
        input: impl BufRead,
        progress: &mut dyn FnMut(&Imported),
    ) -> Result<Imported, LdifError> {
        let asker = AuthzId { manages: true, ..AuthzId::default() };
        let mut imported = Imported::default();
        let mut deferred = Deferred::default();
        let hashing = stream::iter(ldif::Reader::new(input)).map(|record| async {
            match record {
                Ok(record) => Ok(self.hashed(record).await),
                Err(error) => Err(error),
            }
        });
        let mut records = pin!(hashing.buffered(HASHED_AHEAD).peekable());
        let mut running = FuturesOrdered::new();
        loop {
            while running.len() < UNDER_WAY
                && let Some(record) = records.as_mut().next_if(|record| !waits(record)).await
            {
                running.push_back(self.carry_out(&asker, record?));
            }
            match running.next().await {
                Some((record, result)) => imported.settle(record, result, Some(&mut deferred)),
                // A barrier record: it waits for all records before it, and all later ones wait for it.
                None => match records.next().await {
                    Some(Ok(record)) => {
                        let (record, result) = self.carry_out(&asker, record).await;
                        imported.settle(record, result, Some(&mut deferred));
                    }
                    Some(Err(LdifError::Record { line, dn, what })) => imported.refuse(line, dn, what),
                    Some(Err(error)) => return Err(error),
                    None => break,
                },
            }
            if imported.done % 10_000 == 0 {
                progress(&imported);
            }
        }
        for level in deferred.levels() {
            for wave in level.chunks(UNDER_WAY) {
                let mut running: FuturesOrdered<_> =
                    wave.iter().map(|record| self.carry_out(&asker, record.clone())).collect();
                while let Some((record, result)) = running.next().await {
                    imported.settle(record, result, None);
                }
            }
            progress(&imported);
        }
        progress(&imported);
        Ok(imported)
    }

    async fn carry_out(&self, asker: &AuthzId, record: Record) -> (Record, Result<(), LdapError>) {
        let (dn, terms, schema) = (record.dn.as_str(), Preconditions::default(), self.schema());
        let done = match record.change.clone() {
            Change::Add(mut attributes) => {
                attributes.retain(|(name, _)| !is_kept_by_servers(name, &schema));
                // Password state can only be set on existing entries.
                let (states, attributes): (Vec<_>, Vec<_>) =
                    attributes.into_iter().partition(|(name, _)| tells_of_changeable_password(name, &schema));
                let added = self.add_in_turn(asker, dn, attributes, terms).await;
                match (added, states.is_empty()) {
                    (Ok(_), false) => {
                        let replace =
                            |(attribute, values)| Modification { act: ModifyType::Replace, attribute, values };
                        let states = states.into_iter().map(replace).collect();
                        self.modify_in_turn(asker, dn, states, Preconditions::default()).await
                    }
                    (added, _) => added,
                }
            }
            Change::Modify(mut modifications) => {
                let count = modifications.len();
                modifications.retain(|change| !is_kept_by_servers(&change.attribute, &schema));
                match modifications.is_empty() && count > 0 {
                    true => return (record, Ok(())),
                    false => self.modify_in_turn(asker, dn, modifications, terms).await,
                }
            }
            Change::Delete => self.remove(asker, dn, terms).await,
            Change::Rename(rdn, delete_old, above) => {
                self.rename(asker, dn, &rdn, delete_old, above.as_deref(), terms).await
            }
        };
        (record, done.map(|_| ()))
    }

    /// The record with its password hashed, since hashing later would reorder it behind its successors.
    async fn hashed(&self, mut record: Record) -> Record {
        if let Change::Add(attributes) = &mut record.change {
            let passwords = attributes.iter_mut().filter(|(name, _)| is_password(name)).flat_map(|(_, values)| values);
            for password in passwords {
                // A password that cannot be hashed or violates the policy is rejected when the record is carried out.
                if self.takes_password(&record.dn, password)
                    && let Ok(credential) = protect(password.clone()).await
                {
                    *password = credential.given().into_bytes();
                }
            }
        }
        record
    }

    /// Writes all entries without passwords, in order of creation, subscribers last. Returns their number.
    ///
    /// # Errors
    /// The store or the output fails.
    pub async fn export(&self, out: &mut impl Write) -> Result<u64, LdapError> {
        let unwritten =
            |error: std::io::Error| LdapError::new(Code::Other, format!("the output cannot be written: {error}"));
        out.write_all(b"version: 1\n\n").map_err(unwritten)?;
        let (mut after, mut count) = (None, 0);
        loop {
            let inner = self.inner.clone();
            let page = self
                .look(move |branches| {
                    let page = branches.page(None, true, after, PAGE)?;
                    let shown = page.iter().map(|node| {
                        let above = inner.above(branches, node)?;
                        Ok(crate::entry::view(node, above.as_deref(), &inner.schema.load(), &inner.shape))
                    });
                    Ok((shown.collect::<Result<Vec<_>, LdapError>>()?, page.last().map(EntryNode::number)))
                })
                .await?;
            for entry in &page.0 {
                // An importing server would reject attributes that clients cannot modify.
                let writable: Vec<_> = entry.attributes.iter().filter(|found| found.kind.changeable).cloned().collect();
                ldif::write(out, entry, &writable).map_err(unwritten)?;
                count += 1;
            }
            match page.1 {
                Some(last) if page.0.len() == PAGE => after = Some(last),
                _ => return Ok(count),
            }
        }
    }
}

/// Whether a record is a barrier: it changes the schema or a password, or it is malformed.
fn waits(record: &Result<Record, LdifError>) -> bool {
    match record {
        Ok(Record { dn, change: Change::Modify(modifications), .. }) => {
            dn.eq_ignore_ascii_case(SUBSCHEMA) || modifications.iter().any(|change| is_password(&change.attribute))
        }
        Ok(_) => false,
        Err(_) => true,
    }
}

fn is_password(name: &str) -> bool {
    name.eq_ignore_ascii_case("userPassword") || name == "2.5.4.35"
}

/// Operational attributes that other servers export and that are not in this schema.
const OF_SERVERS: &[&str] = &[
    "contextcsn",
    "creatorsname",
    "modifiersname",
    "hassubordinates",
    "numsubordinates",
    "subordinatecount",
    "entryid",
    "parentid",
    "nsuniqueid",
    "pwdfailuretime",
    "pwdlastsuccess",
    "pwdpolicysubentry",
    "authtimestamp",
];

/// Whether an attribute is maintained by each server itself: operational and not modifiable. An import ignores it.
fn is_kept_by_servers(name: &str, schema: &Schema) -> bool {
    match schema.attribute(name) {
        Ok(kind) => kind.operational && !kind.changeable,
        Err(_) => OF_SERVERS.contains(&name.to_ascii_lowercase().as_str()),
    }
}

/// Whether an attribute is password state that an administrator can change.
fn tells_of_changeable_password(name: &str, schema: &Schema) -> bool {
    schema.attribute(name).is_ok_and(|kind| kind.changeable && is_password_state(kind))
}

/// Records that precede their parent entry; they are carried out at the end.
#[derive(Default)]
struct Deferred {
    records: Vec<Record>,
    /// DNs of entries that are to be added.
    names: HashSet<String>,
    bytes: usize,
}

impl Deferred {
    /// Defers a record that failed because its parent is missing. Returns it if it cannot be deferred.
    fn take(&mut self, record: Record) -> Result<(), Record> {
        let name = record.dn.to_lowercase();
        let is_add = matches!(record.change, Change::Add(_));
        let bytes = record.dn.len() + record.change.bytes();
        if !(is_add || self.names.contains(&name)) || self.bytes + bytes > DEFERRED_BYTES_MAX {
            return Err(record);
        }
        if is_add {
            self.names.insert(name);
        }
        self.bytes += bytes;
        self.records.push(record);
        Ok(())
    }

    /// The records grouped by depth in the tree, in file order within a group.
    fn levels(mut self) -> Vec<Vec<Record>> {
        let depth = |record: &Record| Dn::parse(&record.dn).map_or(usize::MAX, |dn| dn.0.len());
        self.records.sort_by_cached_key(depth);
        self.records.chunk_by(|one, other| depth(one) == depth(other)).map(<[Record]>::to_vec).collect()
    }
}

impl Imported {
    fn settle(&mut self, record: Record, result: Result<(), LdapError>, deferred: Option<&mut Deferred>) {
        let refusal = match result {
            Ok(()) => return self.done += 1,
            Err(refusal) if refusal.code == Code::EntryAlreadyExists => return self.present += 1,
            Err(refusal) => refusal,
        };
        let record = match deferred.filter(|_| refusal.code == Code::NoSuchObject) {
            Some(deferred) => match deferred.take(record) {
                Ok(()) => return,
                Err(record) => record,
            },
            None => record,
        };
        self.refuse(record.line, record.dn, refusal.message);
    }

    fn refuse(&mut self, line: usize, dn: String, why: String) {
        match self.refused.len() >= TOLD_MAX {
            true => self.untold += 1,
            false => self.refused.push((line, dn, why)),
        }
    }
}
