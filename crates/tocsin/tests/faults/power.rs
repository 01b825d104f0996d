//! Power loss: unsynced writes and folder entries are lost completely or in part. The server starts on the rest, and
//! nothing acknowledged is missing.

use tocsin_test_peers::{Peer, missing};

use crate::{
    shim::{ControlWord, Disk, UnsyncedData},
    support,
    writers::FaultSetup,
};

async fn lose_power(rounds: usize) {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let mut site = FaultSetup::start().await;
    for round in 0..rounds {
        let clients = site.write();
        site.acknowledged.more(random.usize(1..120), &clients).await;
        site.kill(clients).await;
        // The first loss is the strictest: no unsynced data survive.
        let unsynced = if round % 2 == 0 { UnsyncedData::Dropped } else { UnsyncedData::Mixed };
        site.disk.lose_power(unsynced, &mut random);
        site.check_integrity();
        site.platform.restart().await;
        site.check_subscribers().await;
    }
    site.check_delivered().await;
    let acknowledged = &site.acknowledged;
    println!("{} writes were acknowledged, {} syncs", acknowledged.count(), site.disk.get(ControlWord::Syncs));
    assert!(!acknowledged.events.lock().is_empty() && !acknowledged.messages.lock().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a3_nothing_acknowledged_is_lost_in_a_power_loss() {
    lose_power(4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a3_nothing_acknowledged_is_lost_in_50_power_losses() {
    lose_power(50).await;
}

/// First start: everything created before `serve` reports ready survives a power loss, folders included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a3_the_first_start_survives_a_power_loss() {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let mut site = FaultSetup::prepare().await;
    site.platform.restart().await;
    let key = site.platform.key();
    site.platform.kill();
    site.disk.lose_power(UnsyncedData::Dropped, &mut random);
    site.platform.restart().await;
    assert_eq!(site.platform.key(), key, "the first key that was shown is stored");
    site.platform.get("/v1/status").await;
}

/// The shadow drops unsynced data. If it did not, the tests above would pass on any server.
#[test]
fn a3_the_shadow_drops_unsynced_data() {
    if missing(&[Peer::Python]) {
        return;
    }
    let mut random = fastrand::Rng::with_seed(support::seed());
    let disk = Disk::new();
    let script = r#"
import os
os.chdir(os.environ["FAULTS_ROOT"])
def put(name, text, synced):
    with open(name, "w") as file:
        file.write(text); file.flush()
        if synced: os.fsync(file.fileno())
put("synced", "a", True); put("no content", "b", False)
os.fsync(os.open(".", os.O_RDONLY))
put("no entry", "c", True)
os.rename("synced", "renamed")
with open("renamed", "a") as file:
    file.write("more"); file.flush()
"#;
    let mut python = std::process::Command::new(Peer::Python.path());
    let status = python.args(["-c", script]).envs(disk.environment()).status().expect("python3");
    assert!(status.success());
    disk.lose_power(UnsyncedData::Dropped, &mut random);
    let mut left: Vec<(String, String)> = std::fs::read_dir(disk.root())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            let name = path.file_name().expect("a name").to_str().expect("text").to_owned();
            (name, std::fs::read_to_string(path).expect("text"))
        })
        .collect();
    left.sort();
    assert_eq!(left, [("no content".to_owned(), String::new()), ("synced".to_owned(), "a".to_owned())]);
}
