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
use tocsin_store::entries::{EntryNode, EntryNumber};

use crate::{
    access::AuthzId,
    change::{Modification, ModifyType, Preconditions},
    directory::Directory,
    dn::Dn,
    entry::SUBSCHEMA,
    ldap_error::{Code, LdapError},
    ldif::{self, Change, LdifError, Record},
    password::{WAITING_MAX, is_password_state, protect},
    schema::Schema,
};

/// Records processed concurrently, so that they share commits.
const UNDER_WAY: usize = 512;
/// Records whose passwords are hashed concurrently, below the limit of waiting hashes.
const HASHED_AHEAD: usize = 16;
const _: () = assert!(HASHED_AHEAD < WAITING_MAX);
/// Entries read at a time.
const PAGE: usize = 500;

/// Part of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportPage {
    /// LDIF of the entries.
    pub ldif: Vec<u8>,
    /// Number of entries.
    pub entries: u64,
    /// The entry after which the next page begins; `None`: this page is the last.
    pub next: Option<EntryNumber>,
}

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
    pub unreported: u64,
}

/// Maximum bytes of records deferred until their parent entry exists. Further ones fail.
const DEFERRED_BYTES_MAX: usize = 64 << 20;
/// Maximum failed records that are listed.
const REPORTED_MAX: usize = 1_000;

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
        progress: &mut (dyn FnMut(&Imported) + Send),
    ) -> Result<Imported, LdifError> {
        let (requester, terms) = (AuthzId { manages: true, ..AuthzId::default() }, Preconditions::default());
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
                && let Some(record) = records.as_mut().next_if(|record| !is_barrier(record)).await
            {
                running.push_back(self.apply_record(&requester, record?, &terms));
            }
            match running.next().await {
                Some((record, result)) => imported.record_result(record, result, Some(&mut deferred)),
                // A barrier record: it waits for all records before it, and all later ones wait for it.
                None => match records.next().await {
                    Some(Ok(record)) => {
                        let (record, result) = self.apply_record(&requester, record, &terms).await;
                        imported.record_result(record, result, Some(&mut deferred));
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
            for chunk in level.chunks(UNDER_WAY) {
                let mut running: FuturesOrdered<_> =
                    chunk.iter().map(|record| self.apply_record(&requester, record.clone(), &terms)).collect();
                while let Some((record, result)) = running.next().await {
                    imported.record_result(record, result, None);
                }
            }
            progress(&imported);
        }
        progress(&imported);
        Ok(imported)
    }

    pub(crate) async fn apply_record(
        &self,
        requester: &AuthzId,
        record: Record,
        terms: &Preconditions,
    ) -> (Record, Result<(), LdapError>) {
        let (dn, terms, schema) = (record.dn.as_str(), terms.clone(), self.schema());
        let done = match record.change.clone() {
            Change::Add(mut attributes) => {
                attributes.retain(|(name, _)| !is_server_maintained(name, &schema));
                // Password state can only be set on existing entries.
                let (states, attributes): (Vec<_>, Vec<_>) =
                    attributes.into_iter().partition(|(name, _)| describes_password_change(name, &schema));
                let is_dry = terms.dry_run;
                let added = self.add_in_turn(requester, dn, attributes, terms).await;
                match (added, states.is_empty() || is_dry) {
                    (Ok(_), false) => {
                        let replace =
                            |(attribute, values)| Modification { act: ModifyType::Replace, attribute, values };
                        let states = states.into_iter().map(replace).collect();
                        match self.modify_in_turn(requester, dn, states, Preconditions::default()).await {
                            Ok(images) => Ok(images),
                            Err(refusal) => Err(self.without_entry(requester, dn, refusal).await),
                        }
                    }
                    (added, _) => added,
                }
            }
            Change::Modify(mut modifications) => {
                let count = modifications.len();
                modifications.retain(|change| !is_server_maintained(&change.attribute, &schema));
                match modifications.is_empty() && count > 0 {
                    true => return (record, Ok(())),
                    false => self.modify_in_turn(requester, dn, modifications, terms).await,
                }
            }
            Change::Delete => self.remove(requester, dn, terms).await,
            Change::Rename(rdn, delete_old, above) => {
                self.rename(requester, dn, &rdn, delete_old, above.as_deref(), terms).await
            }
        };
        (record, done.map(|_| ()))
    }

    /// Removes an entry whose password state was refused, so that no record is carried out in part.
    async fn without_entry(&self, requester: &AuthzId, dn: &str, refusal: LdapError) -> LdapError {
        match self.remove(requester, dn, Preconditions::default()).await {
            Ok(_) => refusal,
            Err(kept) => LdapError {
                message: format!(
                    "{}; the entry was added without its password state and cannot be removed: {}",
                    refusal.message, kept.message
                ),
                ..refusal
            },
        }
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
                    *password = credential.exported_hash().into_bytes();
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
        let (mut after, mut count) = (None, 0);
        loop {
            let page = self.export_page(after).await?;
            let written = out.write_all(&page.ldif);
            written.map_err(|error| LdapError::new(Code::Other, format!("the output cannot be written: {error}")))?;
            count += page.entries;
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(count),
            }
        }
    }

    /// A page of [`Directory::export`]. The first one, without `after`, begins with the version of LDIF.
    ///
    /// # Errors
    /// The store fails.
    pub async fn export_page(&self, after: Option<EntryNumber>) -> Result<ExportPage, LdapError> {
        let inner = self.inner.clone();
        let (entries, last) = self
            .read(move |branches| {
                let page = branches.page(None, true, after, PAGE)?;
                let shown = page.iter().map(|node| {
                    let above = inner.above(branches, node)?;
                    Ok(crate::entry::view(node, above.as_deref(), &inner.schema.load(), &inner.shape))
                });
                Ok((shown.collect::<Result<Vec<_>, LdapError>>()?, page.last().map(EntryNode::number)))
            })
            .await?;
        let mut ldif = if after.is_none() { b"version: 1\n\n".to_vec() } else { Vec::new() };
        for entry in &entries {
            // An importing server would reject attributes that clients cannot modify.
            let writable: Vec<_> = entry.attributes.iter().filter(|found| found.kind.changeable).cloned().collect();
            ldif::write(&mut ldif, entry, &writable).expect("writing to memory succeeds");
        }
        Ok(ExportPage { ldif, entries: entries.len() as u64, next: last.filter(|_| entries.len() == PAGE) })
    }
}

/// Whether a record is a barrier: it changes the schema or a password, or it is malformed.
fn is_barrier(record: &Result<Record, LdifError>) -> bool {
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
fn is_server_maintained(name: &str, schema: &Schema) -> bool {
    match schema.attribute(name) {
        Ok(kind) => kind.operational && !kind.changeable,
        Err(_) => OF_SERVERS.contains(&name.to_ascii_lowercase().as_str()),
    }
}

/// Whether an attribute is password state that an administrator can change.
fn describes_password_change(name: &str, schema: &Schema) -> bool {
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
    fn record_result(&mut self, record: Record, result: Result<(), LdapError>, deferred: Option<&mut Deferred>) {
        let refusal = match result {
            Ok(()) => return self.done += 1,
            // An existing entry is left unchanged. A rename to its name fails: the entry keeps its old name.
            Err(refusal) if refusal.code == Code::EntryAlreadyExists && matches!(record.change, Change::Add(_)) => {
                return self.present += 1;
            }
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

    pub(crate) fn refuse(&mut self, line: usize, dn: String, why: String) {
        match self.refused.len() >= REPORTED_MAX {
            true => self.unreported += 1,
            false => self.refused.push((line, dn, why)),
        }
    }
}
