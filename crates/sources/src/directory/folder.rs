//! Which file is next.

use std::{collections::HashMap, fs, io, os::unix::fs::MetadataExt, path::Path, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::options::Order;

/// Most files that are looked at in one go; what is beyond waits for the next.
const FILES_MAX: usize = 100_000;

/// What tells a file from another one of its name, and from itself before it was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub inode: u64,
    pub bytes: u64,
    /// When it was changed last, in nanoseconds since 1970.
    pub changed: i128,
}

impl Identity {
    /// Of a regular file.
    pub fn of(metadata: &fs::Metadata) -> Identity {
        let changed = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        Identity { inode: metadata.ino(), bytes: metadata.len(), changed }
    }
}

/// The files of a folder, and since when each has looked as it does.
#[derive(Default)]
pub(super) struct Files {
    seen: HashMap<String, (Identity, Instant)>,
}

/// What a look into the folder found.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    /// The next file to read, if one has settled.
    pub next: Option<(String, Identity)>,
    /// How many there are besides it.
    pub others: u64,
    /// When one that is there may have settled.
    pub look_again: Option<Duration>,
}

impl Files {
    /// Looks through the folder. A name that is no text cannot be a mark, so it is passed over.
    pub fn look(
        &mut self,
        folder: &Path,
        pattern: &str,
        order: Order,
        settle: Duration,
        now: Instant,
    ) -> io::Result<Found> {
        let mut present = HashMap::new();
        for entry in fs::read_dir(folder)?.take(FILES_MAX) {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if is_ours(&name) || !matches(pattern, &name) {
                continue;
            }
            let metadata = match fs::symlink_metadata(entry.path()) {
                Ok(metadata) => metadata,
                // One that is gone by now was taken away again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if !metadata.is_file() {
                continue;
            }
            let identity = Identity::of(&metadata);
            let since = match self.seen.get(&name) {
                Some((known, since)) if *known == identity => *since,
                _ => now,
            };
            present.insert(name, (identity, since));
        }
        self.seen = present;
        Ok(self.next(order, settle, now))
    }

    fn next(&self, order: Order, settle: Duration, now: Instant) -> Found {
        let first = self.seen.iter().min_by(|(name, (file, _)), (other_name, (other, _))| match order {
            Order::Name => name.cmp(other_name),
            Order::Changed => (file.changed, name).cmp(&(other.changed, other_name)),
        });
        let Some((name, (identity, since))) = first else {
            return Found { next: None, others: 0, look_again: None };
        };
        // A file that is first holds up those behind it until it has settled: the order is promised.
        let rest = settle.saturating_sub(now.duration_since(*since));
        let others = self.seen.len() as u64 - 1;
        match rest.is_zero() {
            true => Found { next: Some((name.clone(), *identity)), others, look_again: None },
            false => Found { next: None, others, look_again: Some(rest) },
        }
    }

    /// Whether a file of this name is there.
    pub fn has(&self, name: &str) -> bool {
        self.seen.contains_key(name)
    }
}

/// Names that we give, and those of files that somebody is still writing.
fn is_ours(name: &str) -> bool {
    name.starts_with('.') || [".done", ".err", ".err.json", ".tmp", ".part"].iter().any(|ending| name.ends_with(ending))
}

/// Whether a name is of a pattern with `*` and `?`.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut of, mut star) = (0, 0, None);
    while at < name.len() {
        match pattern.get(of) {
            Some('*') => {
                star = Some((of, at));
                of += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == name[at] => {
                of += 1;
                at += 1;
            }
            _ => match star {
                // The last star takes one character more.
                Some((from, taken)) => {
                    star = Some((from, taken + 1));
                    of = from + 1;
                    at = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[of..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_of_names() {
        for (pattern, name) in
            [("*", "a"), ("*.csv", "x.csv"), ("a?c*", "abcd"), ("*a*b", "xaxbxab"), ("", ""), ("**", "a")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("*.csv", "x.csv.gz"), ("a?", "a"), ("a", "b"), ("", "a"), ("*a*b", "xaxbx")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn the_first_file_is_next_once_it_has_settled() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        let (start, settle) = (Instant::now(), Duration::from_secs(2));
        let mut files = Files::default();
        let mut look = |seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            files.look(folder.path(), "*", Order::Name, settle, now).expect("read")
        };
        assert_eq!(look(0), Found { next: None, others: 0, look_again: None });
        for name in ["b", "a", ".hidden", "x.done", "y.err", "y.err.json", "z.part"] {
            write(name, "1");
        }
        fs::create_dir(folder.path().join("0")).expect("made");
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("1")).expect("linked");
        assert_eq!(look(1), Found { next: None, others: 1, look_again: Some(settle) });
        write("a", "12");
        assert_eq!(look(2).look_again, Some(settle), "it has changed");
        let found = look(4);
        assert_eq!(found.next.map(|(name, identity)| (name, identity.bytes)), Some(("a".to_owned(), 2)));
    }
}
