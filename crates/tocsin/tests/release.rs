//! The release script on a small repository of its own, with another build; and the bill of materials of this one.

mod support;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use support::repository;
use tocsin_test_peers::{Peer, missing};

/// A repository with a workspace of one crate, and the scripts of this one.
struct Tree {
    folder: tempfile::TempDir,
}

impl Tree {
    fn new() -> Tree {
        let tree = Tree { folder: tempfile::tempdir().expect("a folder") };
        for (file, text) in [
            (
                "Cargo.toml",
                "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n\n[workspace.package]\nversion = \"0.1.0\"\nlicense = \"MIT\"\n",
            ),
            (
                "crates/tocsin/Cargo.toml",
                "[package]\nname = \"tocsin\"\nversion.workspace = true\nlicense.workspace = true\n",
            ),
            ("crates/tocsin/src/main.rs", "fn main() {}\n"),
            (
                "CHANGELOG.md",
                "# Changelog\n\n## Unreleased (0.2.0)\n\n### Added\n\n- A thing.\n\n## 0.1.0 - 2026-01-01\n\n- The first.\n",
            ),
            ("README.md", "A tree.\n"),
            ("LICENSE", "The licence.\n"),
        ] {
            let path = tree.path(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        fs::create_dir(tree.path("scripts")).expect("made");
        for file in ["rust-toolchain.toml", "scripts/environment", "scripts/release", "scripts/sbom"] {
            fs::copy(repository(file), tree.path(file)).expect("copied");
        }
        tree.run("cargo", &["generate-lockfile", "--offline"]);
        tree.run("git", &["init", "--quiet"]);
        tree.run("git", &["add", "."]);
        tree.run("git", &["commit", "--quiet", "--message", "Begin"]);
        tree
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join("tree").join(file)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("target")
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Output {
        let build = self.folder.path().join("build");
        let binary = self.target().join("release/tocsin");
        let script = format!(
            "#!/bin/sh\nmkdir -p {0}\necho binary > {0}/tocsin\n",
            binary.parent().expect("a folder").display()
        );
        fs::write(&build, script).expect("written");
        fs::set_permissions(&build, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("our own file");
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.path("")).env("CARGO_TARGET_DIR", self.target());
        command.env("RELEASE_BUILD", build);
        for role in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{role}_NAME"), "a").env(format!("GIT_{role}_EMAIL"), "a@example.org");
        }
        command.output().unwrap_or_else(|error| panic!("{program}: {error}"))
    }

    /// Runs a command that must succeed; returns its output.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program, arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {error}");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }

    /// The reason why a release fails; the tree stays as it was.
    fn refused(&self, arguments: &[&str]) -> String {
        let before = self.run("git", &["status", "--porcelain"]);
        let output = self.command("scripts/release", arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert_eq!(self.run("git", &["status", "--porcelain"]), before, "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

fn json(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn a_release_is_a_commit_a_tag_and_files_with_checksums() {
    if missing(&[Peer::Git, Peer::Python]) {
        return;
    }
    let tree = Tree::new();
    let begin = tree.run("git", &["rev-parse", "HEAD"]);

    // A dry run makes the files and leaves the tree alone.
    tree.run("scripts/release", &["--dry-run", "0.2.0"]);
    assert_eq!(tree.run("git", &["status", "--porcelain"]), "");
    assert_eq!((tree.run("git", &["rev-parse", "HEAD"]), tree.run("git", &["tag"])), (begin.clone(), String::new()));
    let files = tree.target().join("releases/0.2.0");
    assert!(files.join("SHA256SUMS").exists());
    fs::remove_dir_all(&files).expect("removed");

    tree.run("scripts/release", &["0.2.0"]);
    assert_eq!(tree.run("git", &["status", "--porcelain"]), "");
    assert_eq!(tree.run("git", &["log", "-1", "--format=%s"]), "release: Version 0.2.0");
    assert_eq!(tree.run("git", &["rev-parse", "v0.2.0^{commit}"]), tree.run("git", &["rev-parse", "HEAD"]));
    assert_eq!(tree.run("git", &["rev-parse", "HEAD~1"]), begin);
    let changelog = tree.read("CHANGELOG.md");
    let today = tree.run("date", &["-u", "+%F"]);
    let expected = format!("## Unreleased\n\n## 0.2.0 - {today}\n\n### Added\n\n- A thing.\n\n## 0.1.0");
    assert!(changelog.contains(&expected), "{changelog}");
    assert!(tree.read("Cargo.toml").contains("version = \"0.2.0\"\n"));
    assert!(tree.read("Cargo.lock").contains("name = \"tocsin\"\nversion = \"0.2.0\"\n"));

    let sums = fs::read_to_string(files.join("SHA256SUMS")).expect("the checksums");
    let checked = Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&files).output();
    assert!(checked.expect("sha256sum runs").status.success(), "{sums}");
    let names: Vec<&str> = sums.lines().filter_map(|line| Some(line.split_once("  ")?.1)).collect();
    let [notices, archive, bill] = names[..] else { panic!("{names:?}") };
    assert_eq!((notices, bill), ("THIRD-PARTY-NOTICES.txt", "tocsin-0.2.0.cdx.json"));
    assert!(archive.starts_with("tocsin-0.2.0-") && archive.ends_with(".tar.gz"), "{archive}");
    let listed = tree.run("tar", &["--list", "--file", files.join(archive).to_str().expect("text")]);
    let listed: Vec<&str> = listed.lines().filter_map(|line| line.strip_prefix("tocsin-0.2.0/")).collect();
    assert_eq!(listed, ["", "CHANGELOG.md", "LICENSE", "README.md", "THIRD-PARTY-NOTICES.txt", "tocsin"]);
    assert_eq!(json(&files.join(bill))["metadata"]["component"]["purl"], "pkg:cargo/tocsin@0.2.0");

    let reason = tree.refused(&["0.2.0"]);
    assert!(reason.contains("the tag v0.2.0 exists already"), "{reason}");
    let reason = tree.refused(&["0.3.0"]);
    assert!(reason.contains("no item under Unreleased"), "{reason}");
}

#[test]
fn a_release_of_an_unclean_tree_or_of_no_version_is_refused() {
    if missing(&[Peer::Git, Peer::Python]) {
        return;
    }
    let tree = Tree::new();
    for arguments in [&[][..], &["v0.2.0"], &["0.2"], &["0.2.0", "--dry-run"]] {
        let reason = tree.refused(arguments);
        assert!(reason.contains("expected: scripts/release [--dry-run] X.Y.Z"), "{reason}");
    }
    let reason = tree.refused(&["0.0.9"]);
    assert!(reason.contains("0.0.9 is older than the version in Cargo.toml, 0.1.0"), "{reason}");
    fs::write(tree.path("new"), "").expect("written");
    let reason = tree.refused(&["--dry-run", "0.2.0"]);
    assert!(reason.contains("changes that are not committed"), "{reason}");
}

#[test]
fn a_release_without_one_of_its_files_fails() {
    if missing(&[Peer::Git, Peer::Python]) {
        return;
    }
    let tree = Tree::new();
    tree.run("git", &["rm", "--quiet", "LICENSE"]);
    tree.run("git", &["commit", "--quiet", "--message", "Remove the licence"]);
    let reason = tree.refused(&["0.2.0"]);
    assert!(reason.contains("failed: files"), "{reason}");
    assert_eq!(tree.run("git", &["tag"]), "");
}

#[test]
fn the_bill_of_materials_lists_the_contained_packages_with_licence_and_checksum() {
    if missing(&[Peer::Python, Peer::Console]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(repository("scripts/sbom")).arg(folder.path()).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bill = json(&folder.path().join("sbom.cdx.json"));
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components: BTreeMap<&str, &Value> = bill["components"]
        .as_array()
        .expect("components")
        .iter()
        .map(|component| (component["name"].as_str().expect("a name"), component))
        .collect();
    for (name, component) in &components {
        assert!(component["licenses"][0]["expression"].is_string(), "{name} has no licence");
        let is_own = name.starts_with("tocsin-");
        // SHA-256 of crates, SHA-512 of npm packages.
        let has_sum = |sum: &str| matches!(sum.len(), 64 | 128);
        assert!(is_own || component["hashes"][0]["content"].as_str().is_some_and(has_sum), "{name}");
    }
    for linked in ["tokio", "libsqlite3-sys", "tocsin-store", "tocsin-console", "react-dom", "@codemirror/view"] {
        assert!(components.contains_key(linked), "{linked}");
    }
    assert_eq!(
        components["react-dom"]["purl"].as_str().map(|purl| purl.split('@').next()),
        Some(Some("pkg:npm/react-dom"))
    );
    let contained = bill["dependencies"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|item| item["ref"].as_str().is_some_and(|name| name.starts_with("pkg:cargo/tocsin-console@")));
    let contained = contained.expect("the console")["dependsOn"].to_string();
    assert!(contained.contains("pkg:npm/react@"), "{contained}");
    for not_linked in ["expect-test", "rcgen", "cc", "tocsin-testkit", "brotli", "vite", "@playwright/test"] {
        assert!(!components.contains_key(not_linked), "{not_linked} is for tests or builds");
    }
    let notices = fs::read_to_string(folder.path().join("THIRD-PARTY-NOTICES.txt")).expect("the notices");
    assert!(notices.contains("\nreact-dom 19.") && notices.contains("Copyright (c) Meta Platforms"));
    assert!(notices.contains("\ntokio 1.") && notices.contains("Permission is hereby granted"));
}
