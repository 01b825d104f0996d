//! Checks `Cargo.lock` against a snapshot of the RustSec advisory database in `testdata/advisories.tsv`, offline.

use std::{collections::BTreeSet, fs, path::Path};

use semver::{Version, VersionReq};
use toml::{Table, Value};

fn repository(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Line of the snapshot: it affects the versions of its crate that are neither patched nor unaffected.
struct Advisory<'a> {
    package: &'a str,
    id: &'a str,
    fine: Vec<VersionReq>,
}

impl Advisory<'_> {
    fn read(line: &str) -> Advisory<'_> {
        let [package, id, _date, _kind, patched, unaffected] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}: not six columns")
        };
        let ranges = [patched, unaffected].into_iter().flat_map(|ranges| ranges.split("; "));
        let fine = ranges
            .filter(|range| !range.is_empty())
            .map(|range| VersionReq::parse(range).unwrap_or_else(|error| panic!("{id}: {range}: {error}")));
        Advisory { package, id, fine: fine.collect() }
    }

    fn affects(&self, package: &str, version: &Version) -> bool {
        self.package == package && !self.fine.iter().any(|range| range.matches(version))
    }
}

fn text<'a>(table: &'a Value, name: &str) -> &'a str {
    table.get(name).and_then(Value::as_str).unwrap_or_else(|| panic!("`{name}` of {table:?}"))
}

#[test]
fn a22_every_advisory_of_a_crate_is_reviewed() {
    let snapshot = repository("testdata/advisories.tsv");
    let advisories: Vec<_> = snapshot.lines().filter(|line| !line.starts_with('#')).map(Advisory::read).collect();
    assert!(advisories.len() > 1_000, "the snapshot has only {} advisories", advisories.len());
    let lock: Table = repository("Cargo.lock").parse().expect("TOML");
    let mut found = BTreeSet::new();
    for package in lock["package"].as_array().expect("packages") {
        let (name, version) = (text(package, "name"), text(package, "version"));
        let parsed: Version = version.parse().expect("a version");
        let own = advisories.iter().filter(|advisory| advisory.affects(name, &parsed));
        found.extend(own.map(|advisory| (advisory.id.to_owned(), format!("{name} {version}"))));
    }
    let deny: Table = repository("deny.toml").parse().expect("TOML");
    let ignored = deny["advisories"]["ignore"].as_array().expect("a list");
    let ignored: BTreeSet<&str> = ignored
        .iter()
        .map(|entry| {
            assert!(text(entry, "reason").len() > 40, "{entry:?}: the reason why it is harmless here is missing");
            text(entry, "id")
        })
        .collect();
    let new: Vec<_> = found.iter().filter(|(id, _)| !ignored.contains(id.as_str())).collect();
    assert!(new.is_empty(), "update these crates, or explain in deny.toml why they are harmless here: {new:?}");
    let gone: Vec<_> = ignored.iter().filter(|id| !found.iter().any(|(found, _)| found == *id)).collect();
    assert!(gone.is_empty(), "these no longer affect any crate; remove them from deny.toml: {gone:?}");
}

#[test]
fn a22_an_advisory_affects_the_unpatched_versions() {
    let advisory =
        Advisory::read("a\tRUSTSEC-1\t2026-01-01\tvulnerability\t>= 1.2.3, < 2.0.0-alpha.1; >= 2.1.0\t< 1.0.0");
    for (version, concerned) in
        [("0.9.0", false), ("1.0.0", true), ("1.2.2", true), ("1.2.3", false), ("2.0.0", true), ("2.1.0", false)]
    {
        assert_eq!(advisory.affects("a", &version.parse().expect("a version")), concerned, "{version}");
    }
    assert!(!advisory.affects("b", &Version::new(1, 0, 0)));
    let never = Advisory::read("a\tRUSTSEC-2\t2026-01-01\tunmaintained\t\t");
    assert!(never.affects("a", &Version::new(9, 0, 0)), "no version is patched");
}
