//! Many entries, in and out, as LDIF.

use std::{
    collections::HashSet,
    io::{BufRead, Write},
    pin::pin,
};

use futures_util::{
    StreamExt,
    stream::{self, FuturesOrdered},
};
use tocsin_store::entries::Node;

use crate::{
    access::Asker,
    change::{Act, Modification, Terms, tells_of_password},
    directory::Directory,
    dn::Dn,
    entry::SUBSCHEMA,
    ldif::{self, Change, LdifError, Record},
    password::{WAITING_MAX, protect},
    refusal::{Code, Refusal},
    schema::Schema,
};

/// Records that are under way at the same time: they share commits.
const UNDER_WAY: usize = 512;
/// Records whose passwords are hashed at the same time. More than may wait for it would be refused.
const HASHED_AHEAD: usize = 16;
const _: () = assert!(HASHED_AHEAD < WAITING_MAX);
/// Entries that are read at a time.
const PAGE: usize = 500;

/// What came of an import.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Records that were done.
    pub done: u64,
    /// Entries that were there already, and were left as they are.
    pub present: u64,
    /// Records that were refused: line, name, why.
    pub refused: Vec<(usize, String, String)>,
    /// How many were refused beyond those that are told.
    pub untold: u64,
}

/// Most bytes of records that wait for the entries above theirs. Those beyond are refused.
const DEFERRED_BYTES_MAX: usize = 64 << 20;
/// Most refusals that are told one by one.
const TOLD_MAX: usize = 1_000;

impl Directory {
    /// Does what the records of a file say, as an operator, many at the same time and each alone. What a record changes is
    /// there for those behind it. An entry that stands before the one above it is added in the end. A record that cannot be read, or
    /// is refused, is reported and stops no other. Operational attributes that each server keeps for itself are left out.
    ///
    /// # Errors
    /// The file cannot be read on; what was read before is done.
    pub async fn import(
        &self,
        input: impl BufRead,
        progress: &mut dyn FnMut(&Imported),
    ) -> Result<Imported, LdifError> {
        let asker = Asker { manages: true, ..Asker::default() };
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
                // Whatever comes next waits for all before it, and all behind it for it.
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

    async fn carry_out(&self, asker: &Asker, record: Record) -> (Record, Result<(), Refusal>) {
        let (dn, terms, schema) = (record.dn.as_str(), Terms::default(), self.schema());
        let done = match record.change.clone() {
            Change::Add(mut attributes) => {
                attributes.retain(|(name, _)| !is_kept_by_servers(name, &schema));
                // The state of a password is decided about entries that are there.
                let (states, attributes): (Vec<_>, Vec<_>) =
                    attributes.into_iter().partition(|(name, _)| tells_of_changeable_password(name, &schema));
                let added = self.add_in_turn(asker, dn, attributes, terms).await;
                match (added, states.is_empty()) {
                    (Ok(_), false) => {
                        let replace = |(attribute, values)| Modification { act: Act::Replace, attribute, values };
                        let states = states.into_iter().map(replace).collect();
                        self.modify_in_turn(asker, dn, states, Terms::default()).await
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

    /// A record with its password hashed: a change that still had to hash would come after those behind it.
    async fn hashed(&self, mut record: Record) -> Record {
        if let Change::Add(attributes) = &mut record.change {
            let passwords = attributes.iter_mut().filter(|(name, _)| is_password(name)).flat_map(|(_, values)| values);
            for password in passwords {
                // What cannot be hashed, or is no password here, is refused where the record is carried out.
                if self.takes_password(&record.dn, password)
                    && let Ok(credential) = protect(password.clone()).await
                {
                    *password = credential.given().into_bytes();
                }
            }
        }
        record
    }

    /// Writes all entries in the order of their making, subscribers last, without passwords. Gives how many.
    ///
    /// # Errors
    /// The store does not answer, or the output takes no more.
    pub async fn export(&self, out: &mut impl Write) -> Result<u64, Refusal> {
        let unwritten = |error: std::io::Error| Refusal::new(Code::Other, format!("the output takes no more: {error}"));
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
                    Ok((shown.collect::<Result<Vec<_>, Refusal>>()?, page.last().map(Node::number)))
                })
                .await?;
            for entry in &page.0 {
                // What nobody may write would be refused by whoever reads it.
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

/// Whether a record looks at what is there before it takes its place among the changes: one of the schema, or of a password.
/// Also what cannot be read: what came before it is done.
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

/// Operational attributes that other servers write into their LDIF and that are not in the schema here.
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

/// Whether an attribute is one that each server keeps for itself: operational, and not for users to change. An import leaves it out.
fn is_kept_by_servers(name: &str, schema: &Schema) -> bool {
    match schema.attribute(name) {
        Ok(kind) => kind.operational && !kind.changeable,
        Err(_) => OF_SERVERS.contains(&name.to_ascii_lowercase().as_str()),
    }
}

/// Whether an attribute says of a password whether it has to be changed, or is locked.
fn tells_of_changeable_password(name: &str, schema: &Schema) -> bool {
    schema.attribute(name).is_ok_and(|kind| kind.changeable && tells_of_password(kind))
}

/// Records that stand before the entries above theirs: they are done in the end.
#[derive(Default)]
struct Deferred {
    records: Vec<Record>,
    /// The names of entries that are to be added.
    names: HashSet<String>,
    bytes: usize,
}

impl Deferred {
    /// Whether a record was taken, which was refused since an entry is missing.
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

    /// The records, those of one depth in the tree together, in the order of the file.
    fn levels(mut self) -> Vec<Vec<Record>> {
        let depth = |record: &Record| Dn::parse(&record.dn).map_or(usize::MAX, |dn| dn.0.len());
        self.records.sort_by_cached_key(depth);
        self.records.chunk_by(|one, other| depth(one) == depth(other)).map(<[Record]>::to_vec).collect()
    }
}

impl Imported {
    fn settle(&mut self, record: Record, result: Result<(), Refusal>, deferred: Option<&mut Deferred>) {
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
