//! Many entries, in and out, as LDIF.

use std::{
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
    change::Terms,
    directory::Directory,
    entry::SUBSCHEMA,
    ldif::{self, Change, LdifError, Record},
    password::{WAITING_MAX, protect},
    refusal::{Code, Refusal},
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

/// Most refusals that are told one by one.
const TOLD_MAX: usize = 1_000;

impl Directory {
    /// Does what the records of a file say, as an operator, many at the same time and each alone. What a record changes is
    /// there for those behind it.
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
        let hashing = stream::iter(ldif::Reader::new(input)).map(|record| async { Ok(self.hashed(record?).await) });
        let mut records = pin!(hashing.buffered(HASHED_AHEAD).peekable());
        let mut running = FuturesOrdered::new();
        loop {
            while running.len() < UNDER_WAY
                && let Some(record) = records.as_mut().next_if(|record| !waits(record)).await
            {
                running.push_back(self.carry_out(&asker, record?));
            }
            match running.next().await {
                Some((line, dn, result)) => imported.count(line, dn, result),
                // Whatever comes next waits for all before it, and all behind it for it.
                None => match records.next().await {
                    Some(record) => {
                        let (line, dn, result) = self.carry_out(&asker, record?).await;
                        imported.count(line, dn, result);
                    }
                    None => break,
                },
            }
            if imported.done % 10_000 == 0 {
                progress(&imported);
            }
        }
        progress(&imported);
        Ok(imported)
    }

    async fn carry_out(&self, asker: &Asker, record: Record) -> (usize, String, Result<(), Refusal>) {
        let Record { line, dn, change } = record;
        let terms = Terms::default();
        let done = match change {
            Change::Add(attributes) => self.add_in_turn(asker, &dn, attributes, terms).await,
            Change::Modify(modifications) => self.modify_in_turn(asker, &dn, modifications, terms).await,
            Change::Delete => self.remove(asker, &dn, terms).await,
            Change::Rename(rdn, delete_old, above) => {
                self.rename(asker, &dn, &rdn, delete_old, above.as_deref(), terms).await
            }
        };
        (line, dn, done.map(|_| ()))
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

impl Imported {
    fn count(&mut self, line: usize, dn: String, result: Result<(), Refusal>) {
        match result {
            Ok(()) => self.done += 1,
            Err(refusal) if refusal.code == Code::EntryAlreadyExists => self.present += 1,
            Err(_) if self.refused.len() >= TOLD_MAX => self.untold += 1,
            Err(refusal) => self.refused.push((line, dn, refusal.message)),
        }
    }
}
