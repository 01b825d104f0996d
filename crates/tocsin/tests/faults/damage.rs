//! File damage: flipped bits and truncated files are detected when read, reported with advice, and never taken for less
//! data.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::Value;

use crate::{
    shim::UnsyncedData,
    support::{self, Platform, Start},
    writers::FaultSetup,
};

/// Outcome of a damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The server does not start, and reports the damaged file and advice.
    Refused,
    /// The server serves the readable data, and reports the rest.
    Reported,
    /// A value changed, which only page checksums would detect.
    Changed,
    /// The damage hit no stored data.
    Whole,
}

/// Files of stored data, without those that are rebuilt.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_str().expect("text");
        let is_store = name.ends_with(".db") || name.ends_with(".db-wal");
        if is_store && !name.starts_with("tracking") && path.metadata().expect("the file exists").len() > 0 {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(fs::copy(&path, target).expect("copied")),
        }
    }
}

/// Flips a bit, or truncates a database. A truncated log is the state after a power loss.
fn damage(file: &Path, random: &mut fastrand::Rng) -> String {
    let mut bytes = fs::read(file).expect("the file");
    let is_log = file.extension().is_some_and(|extension| extension == "db-wal");
    let what = if !is_log && random.u8(..4) == 0 {
        let length = random.usize(..bytes.len());
        bytes.truncate(length);
        format!("{} cut off at {length}", file.display())
    } else {
        let (at, bit) = (random.usize(..bytes.len()), random.u8(..8));
        bytes[at] ^= 1 << bit;
        format!("{} bit {bit} of byte {at}", file.display())
    };
    fs::write(file, bytes).expect("written");
    what
}

/// Lists everything under a path by this key, or returns the error of the first failing page.
async fn list(platform: &Platform, path: &str, key: &str) -> Result<BTreeSet<String>, String> {
    let mut found = BTreeSet::new();
    let mut next = format!("{path}?limit=1000");
    loop {
        let answer = platform.request(reqwest::Method::GET, &next).send().await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let text = answer.text().await.map_err(|error| error.to_string())?;
        if !status.is_success() {
            return Err(format!("{status} {text}"));
        }
        let page: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let items = page["items"].as_array().ok_or("no items")?;
        found.extend(items.iter().map(|item| item[key].to_string()));
        match page["next"].as_str() {
            Some(after) => next = format!("{path}?limit=1000&after={after}"),
            None => return Ok(found),
        }
    }
}

/// Lists of a platform, as far as they can be read.
async fn stored(platform: &Platform) -> Vec<Result<BTreeSet<String>, String>> {
    let mut lists = Vec::new();
    for (path, key) in [("/v1/subscribers", "id"), ("/v1/subscriptions", "id"), ("/v1/messages", "id")] {
        lists.push(list(platform, path, key).await);
    }
    lists
}

async fn damage_each(cases: u64) {
    let seed = support::seed();
    let mut site = FaultSetup::start().await;
    // Enough for several pages per table, some of them in the logs.
    let clients = site.write();
    site.acknowledged.more(600, &clients).await;
    site.kill(clients).await;
    let mut random = fastrand::Rng::with_seed(seed);
    site.disk.lose_power(UnsyncedData::Dropped, &mut random);
    let whole = site.platform.folder.clone();
    let scratch = tempfile::tempdir().expect("a folder");
    let expected = {
        let folder = scratch.path().join("whole");
        copy(&whole, &folder);
        let mut platform = Platform::start_in(&folder, &site.environment()).await;
        let expected = stored(&platform).await;
        // A clean stop checkpoints what the killed process left in the logs.
        assert_eq!(platform.terminate(), Some(0));
        expected.into_iter().map(|list| list.expect("the list is complete")).collect::<Vec<_>>()
    };
    assert!(expected.iter().all(|list| !list.is_empty()), "there are data to lose");
    let stopped = scratch.path().join("whole");
    let mut outcomes = std::collections::BTreeMap::<Outcome, u32>::new();
    for case in 0..cases {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(case));
        let folder = scratch.path().join(case.to_string());
        copy(if random.bool() { &whole } else { &stopped }, &folder);
        let files = files(&folder);
        let file = &files[random.usize(..files.len())];
        let what = damage(file, &mut random);
        let outcome = examine(&site, &folder, &expected, &what).await;
        println!("{what}: {outcome:?}");
        *outcomes.entry(outcome).or_default() += 1;
        fs::remove_dir_all(&folder).expect("removed");
    }
    println!("{outcomes:?}");
}

async fn examine(site: &FaultSetup, folder: &Path, expected: &[BTreeSet<String>], what: &str) -> Outcome {
    let mut platform = Platform::prepare(folder.to_owned(), &site.environment());
    match platform.try_restart(|_| true).await {
        Start::Ended(status) => {
            // A second start, for its output.
            let said = platform.command().arg("serve").stdin(Stdio::null()).output().expect("the binary starts");
            let said = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(!status.success() && !said.contains("panicked"), "{what}: {status} {said}");
            let advises = ["restore", "backup"].iter().any(|word| said.contains(word));
            assert!(advises, "{what}: the advice is missing: {said}");
            return Outcome::Refused;
        }
        Start::NotReady | Start::Ready => {}
    }
    let found = stored(&platform).await;
    let (mut is_reported, mut is_changed) = (false, false);
    for (found, expected) in found.iter().zip(expected) {
        match found {
            Err(why) => {
                assert!(why.starts_with("5"), "{what}: {why}");
                is_reported = true;
            }
            Ok(found) if found == expected => {}
            Ok(found) if found.len() == expected.len() && expected.difference(found).count() == 1 => is_changed = true,
            Ok(found) => {
                let gone: Vec<&String> = expected.difference(found).take(5).collect();
                panic!("{what}: {} of {} rows are there, without a report: {gone:?}", found.len(), expected.len());
            }
        }
    }
    platform.kill();
    match (is_reported, is_changed) {
        (true, _) => Outcome::Reported,
        (false, true) => Outcome::Changed,
        (false, false) => Outcome::Whole,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a7_damage_is_reported_and_never_taken_for_less_data() {
    damage_each(8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a7_damage_is_reported_and_never_taken_for_less_data_100_times() {
    damage_each(100).await;
}
