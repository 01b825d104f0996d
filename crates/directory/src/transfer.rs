//! Many entries, in and out, as LDIF.

use std::io::{BufRead, Write};

use futures_util::{StreamExt, stream::FuturesOrdered};
use tocsin_store::entries::Node;

use crate::{
    access::Asker,
    change::Terms,
    directory::Directory,
    ldif::{self, Change, LdifError, Record},
    refusal::{Code, Refusal},
};

/// Records that are under way at the same time: they share commits.
const UNDER_WAY: usize = 512;
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
    /// Does what the records of a file say, as an operator, many at the same time and each alone. Records of one name are
    /// done in their order; an entry comes after the one above it.
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
        let mut running = FuturesOrdered::new();
        let mut records = ldif::Reader::new(input);
        let mut failed = None;
        loop {
            while running.len() < UNDER_WAY && failed.is_none() {
                match records.next() {
                    Some(Ok(record)) => running.push_back(self.carry_out(&asker, record)),
                    Some(Err(error)) => failed = Some(error),
                    None => break,
                }
            }
            match running.next().await {
                Some((line, dn, result)) => imported.count(line, dn, result),
                None => break,
            }
            if imported.done % 10_000 == 0 {
                progress(&imported);
            }
        }
        progress(&imported);
        failed.map_or(Ok(imported), Err)
    }

    async fn carry_out(&self, asker: &Asker, record: Record) -> (usize, String, Result<(), Refusal>) {
        let Record { line, dn, change } = record;
        let terms = Terms::default();
        let done = match change {
            Change::Add(attributes) => self.add(asker, &dn, attributes, terms).await,
            Change::Modify(modifications) => self.modify(asker, &dn, modifications, terms).await,
            Change::Delete => self.remove(asker, &dn, terms).await,
            Change::Rename(rdn, delete_old, above) => {
                self.rename(asker, &dn, &rdn, delete_old, above.as_deref(), terms).await
            }
        };
        (line, dn, done.map(|_| ()))
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
