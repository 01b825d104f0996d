//! Checks the crates of the build against `deny.toml`: their licences, banned crates, and their sources.

use std::{collections::BTreeSet, env, fs, path::Path, process::Command};

use serde_json::Value as Json;
use spdx::{Expression, Licensee, ParseMode};
use toml::Table;

/// The registry that crates come from, as written in `cargo metadata`.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn cargo(arguments: &[&str]) -> String {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(cargo).args(arguments).current_dir(root).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The packages that are built on this platform, with those of tests and build scripts.
fn packages() -> Vec<Json> {
    let version = cargo(&["-vV"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("a platform");
    let metadata = cargo(&["metadata", "--format-version=1", "--locked", "--filter-platform", host]);
    let mut metadata: Json = serde_json::from_str(&metadata).expect("JSON");
    let Json::Array(packages) = metadata["packages"].take() else { panic!("there are no packages") };
    let Json::Array(nodes) = &metadata["resolve"]["nodes"] else { panic!("nothing is resolved") };
    let built: BTreeSet<&str> = nodes.iter().filter_map(|node| node["id"].as_str()).collect();
    packages.into_iter().filter(|package| package["id"].as_str().is_some_and(|id| built.contains(id))).collect()
}

fn deny() -> Table {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deny.toml");
    fs::read_to_string(file).expect("readable").parse().expect("TOML")
}

fn list<'a>(deny: &'a Table, section: &str, key: &str) -> Vec<&'a str> {
    let list = deny[section][key].as_array().expect("a list");
    list.iter().map(|item| item.as_str().unwrap_or_else(|| panic!("{section}.{key}: {item:?} is not text"))).collect()
}

fn licences(allowed: &[&str]) -> Vec<Licensee> {
    let parsed = |name: &&str| Licensee::parse(name).unwrap_or_else(|error| panic!("deny.toml: {name}: {error}"));
    allowed.iter().map(parsed).collect()
}

/// Whether allowed licences satisfy an SPDX expression. Older crates write `/` for `OR`.
fn is_allowed(expression: &str, allowed: &[Licensee]) -> bool {
    let parsed = Expression::parse_mode(expression, ParseMode::LAX);
    parsed.is_ok_and(|parsed| parsed.evaluate(|requested| allowed.iter().any(|licence| licence.satisfies(requested))))
}

#[test]
fn every_crate_has_an_allowed_licence_and_source() {
    let (deny, packages) = (deny(), packages());
    let allowed = licences(&list(&deny, "licenses", "allow"));
    let banned = list(&deny, "bans", "deny");
    let mut problems = Vec::new();
    for package in &packages {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let (name, licence) = (text("name"), text("license"));
        if !is_allowed(licence, &allowed) {
            problems.push(format!("{name} {}: its licence is `{licence}`", text("version")));
        }
        if banned.contains(&name) {
            problems.push(format!("{name}: is banned; `cargo tree --invert {name}` shows its users"));
        }
        // Crates of this workspace have no source.
        let is_own = package["source"].is_null() && name.starts_with("tocsin");
        if !is_own && text("source") != REGISTRY {
            problems.push(format!("{name}: comes from `{}`, which is not crates.io", text("source")));
        }
    }
    assert!(problems.is_empty(), "see deny.toml:\n{}", problems.join("\n"));
    assert!(packages.len() > 300, "only {} packages", packages.len());
}

/// The npm packages of the web console. Those for development are not part of the binary.
#[test]
fn every_npm_package_of_the_console_has_an_allowed_licence_and_a_checksum() {
    let deny = deny();
    let allowed = licences(&list(&deny, "licenses", "allow"));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../console/package-lock.json");
    let lock: Json = serde_json::from_str(&fs::read_to_string(file).expect("readable")).expect("JSON");
    let (mut problems, mut shipped) = (Vec::new(), 0);
    for (folder, package) in lock["packages"].as_object().expect("packages") {
        let has = |key: &str| package[key].as_bool() == Some(true);
        if folder.is_empty() {
            continue;
        }
        if package.get("resolved").is_some() {
            problems.push(format!("{folder}: `resolved` names a host; see console/.npmrc"));
        }
        if !package["integrity"].as_str().is_some_and(|sum| sum.starts_with("sha512-")) {
            problems.push(format!("{folder}: it has no SHA-512"));
        }
        if has("dev") || has("devOptional") || has("optional") || has("peer") {
            continue;
        }
        shipped += 1;
        let licence = package["license"].as_str().unwrap_or_default();
        if !is_allowed(licence, &allowed) {
            problems.push(format!("{folder}: its licence is `{licence}`"));
        }
    }
    assert!(problems.is_empty(), "see deny.toml:\n{}", problems.join("\n"));
    assert!(shipped >= 20, "only {shipped} packages");
}

#[test]
fn expressions_are_evaluated_by_their_operators() {
    let allowed = licences(&["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"]);
    for (expression, expected) in [
        ("MIT", true),
        ("MIT/Apache-2.0", true),
        ("GPL-3.0-only OR MIT", true),
        ("GPL-3.0-only AND MIT", false),
        ("(GPL-3.0-only OR MIT) AND Unicode-3.0", true),
        // AND binds more strongly than OR.
        ("MIT OR GPL-3.0-only AND Unicode-3.0", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("MIT WITH LLVM-exception", false),
        ("GPL-3.0-only", false),
        ("", false),
        ("see the file", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}
