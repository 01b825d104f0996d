//! Program policy. A definition may come over the network from any holder of a key. So a program is started only if the
//! operator of the machine has allowed it or its folder.

use std::path::{Path, PathBuf};

/// The programs that may be started; none by default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Programs {
    /// Programs, and folders whose programs may be started.
    pub allow: Vec<PathBuf>,
}

impl Programs {
    /// The program to start, with links resolved; the error says why it is not started.
    pub fn resolve_allowed(&self, program: &Path) -> Result<PathBuf, String> {
        let found = program.canonicalize().map_err(|error| format!("{} is not there: {error}", program.display()))?;
        if !found.is_file() {
            return Err(format!("{} is not a program", program.display()));
        }
        let allows = |allowed: &PathBuf| allowed.canonicalize().is_ok_and(|allowed| found.starts_with(allowed));
        if self.allow.iter().any(allows) {
            return Ok(found);
        }
        Err(format!(
            "{} may not be started here; `delivery.allow_programs` in the configuration can allow it",
            found.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn only_programs_allowed_by_the_operator_are_started() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("allowed")).expect("a folder");
        for name in ["allowed/one", "allowed-not", "other"] {
            fs::write(path(name), "").expect("a file");
        }
        symlink(path("other"), path("allowed/link")).expect("a link");
        symlink(path("allowed/one"), path("outside")).expect("a link");
        let programs = Programs { allow: vec![path("allowed"), path("gone")] };
        let good = |name: &str| programs.resolve_allowed(&path(name)).is_ok();
        assert!(good("allowed/one"));
        assert!(good("outside"), "it is the allowed program by another name");
        assert!(!good("allowed/link"), "it is another program");
        assert!(
            !good("allowed-not") && !good("other") && !good("allowed/../other") && !good("allowed") && !good("gone")
        );
        assert!(Programs::default().resolve_allowed(&path("other")).is_err());
        let exactly = Programs { allow: vec![path("other")] };
        assert!(exactly.resolve_allowed(&path("allowed/link")).is_ok());
    }
}
