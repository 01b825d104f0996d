//! Dry run of an import: which records of an LDIF file would fail.

use std::{collections::HashSet, io::BufRead};

use crate::{
    access::{AuthzId, is_below},
    change::Preconditions,
    directory::Directory,
    dn::Dn,
    ldap_error::{Code, LdapError},
    ldif::{self, Change, LdifError, Record},
    transfer::Imported,
};

/// Names that the records of a file add and remove, in normal form.
#[derive(Default)]
struct Names {
    added: HashSet<String>,
    removed: HashSet<String>,
}

/// Judgement of one record.
enum Verdict {
    Done,
    Present,
    /// Its entry or its parent may be added by a later record.
    Later,
    Failed(LdapError),
}

impl Directory {
    /// Checks the records of a file as [`Directory::import`] would carry them out, without a change. Each record is
    /// checked against the stored entries. A record about an entry that the file itself adds, renames or removes is
    /// checked for its form and, if it adds an entry, against the schema. Records that change the schema fail.
    ///
    /// # Errors
    /// The file cannot be read further.
    pub async fn check_import(&self, input: impl BufRead) -> Result<Imported, LdifError> {
        let requester = AuthzId { manages: true, ..AuthzId::default() };
        let terms = Preconditions { dry_run: true, ..Preconditions::default() };
        let (mut imported, mut names) = (Imported::default(), Names::default());
        let mut later: Vec<(Record, LdapError)> = Vec::new();
        for record in ldif::Reader::new(input) {
            let record = match record {
                Ok(record) => record,
                Err(LdifError::Record { line, dn, what }) => {
                    imported.refuse(line, dn, what);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (record, done) = self.apply_record(&requester, record, &terms).await;
            match self.judge(&record, done.clone(), &mut names) {
                Verdict::Done => imported.done += 1,
                Verdict::Present => imported.present += 1,
                Verdict::Later => later.extend(done.err().map(|error| (record, error))),
                Verdict::Failed(error) => imported.refuse(record.line, record.dn, error.message),
            }
        }
        // An import adds entries that precede their parents at the end, parents first.
        later.sort_by_cached_key(|(record, _)| record.dn.matches(',').count());
        for (record, error) in later {
            match self.judge(&record, Err(error.clone()), &mut names) {
                Verdict::Done => imported.done += 1,
                Verdict::Present => imported.present += 1,
                Verdict::Later => imported.refuse(record.line, record.dn, error.message),
                Verdict::Failed(error) => imported.refuse(record.line, record.dn, error.message),
            }
        }
        Ok(imported)
    }

    /// Judges a record by the result of its dry run and the records before it.
    fn judge(&self, record: &Record, done: Result<(), LdapError>, names: &mut Names) -> Verdict {
        let Some(name) = self.normal(&record.dn) else {
            return done.map_or_else(Verdict::Failed, |()| Verdict::Done);
        };
        let is_missing = done.as_ref().is_err_and(|error| error.code == Code::NoSuchObject);
        let is_there = done.as_ref().is_err_and(|error| error.code == Code::EntryAlreadyExists);
        match &record.change {
            Change::Add(_) if names.added.contains(&name) => Verdict::Present,
            Change::Add(_) if is_there && !names.removed.contains(&name) => Verdict::Present,
            Change::Add(_) => {
                let has_new_parent = || {
                    let parent = parent_of(&record.dn).and_then(|parent| self.normal(&parent));
                    parent.is_some_and(|parent| names.added.contains(&parent))
                };
                match done {
                    Ok(()) => {}
                    Err(_) if is_there => {}
                    Err(_) if is_missing && has_new_parent() => {}
                    Err(_) if is_missing => return Verdict::Later,
                    Err(error) => return Verdict::Failed(error),
                }
                names.removed.remove(&name);
                names.added.insert(name);
                Verdict::Done
            }
            _ if names.removed.contains(&name) => {
                Verdict::Failed(LdapError::new(Code::NoSuchObject, "an earlier record removes this entry"))
            }
            change => {
                let is_own = is_missing && names.added.contains(&name);
                let is_emptied = done.as_ref().is_err_and(|error| error.code == Code::NotAllowedOnNonLeaf)
                    && names.removed.iter().any(|removed| is_below(removed, &name));
                match done {
                    Err(_) if is_own || is_emptied => {}
                    Err(_) if is_missing => return Verdict::Later,
                    Err(error) => return Verdict::Failed(error),
                    Ok(()) => {}
                }
                match change {
                    Change::Delete => {
                        names.added.remove(&name);
                        names.removed.insert(name);
                    }
                    Change::Rename(rdn, _, above) => {
                        let parent = above.clone().or_else(|| parent_of(&record.dn));
                        let new = parent.and_then(|parent| self.normal(&format!("{rdn},{parent}")));
                        names.added.remove(&name);
                        names.removed.insert(name);
                        names.added.extend(new);
                    }
                    Change::Add(_) | Change::Modify(_) => {}
                }
                Verdict::Done
            }
        }
    }
}

/// The DN above a DN.
fn parent_of(dn: &str) -> Option<String> {
    let parsed = Dn::parse(dn).ok()?;
    let rest: Vec<&str> = parsed.0.get(1..)?.iter().map(|rdn| rdn.text.as_str()).collect();
    Some(rest.join(","))
}
