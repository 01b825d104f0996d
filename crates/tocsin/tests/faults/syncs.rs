//! Failed fsync. Linux reports the error once and marks the pages as clean: a later fsync of the same pages returns 0
//! although they are not on the disk. So a server must not acknowledge anything that depends on such a later fsync.

use crate::{
    shim::{ControlWord, UnsyncedData},
    support::{self, Start},
    writers::FaultSetup,
};

/// Number of syncs of a start that creates all files.
async fn syncs_of_a_start() -> u64 {
    let mut site = FaultSetup::prepare().await;
    site.platform.restart().await;
    site.disk.get(ControlWord::Syncs)
}

/// End of the server after a failed sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Power loss.
    PowerLoss,
    /// Clean stop, which closes all files; then power loss.
    Stop,
}

/// Fails the sync with this number, counted from the ready state.
async fn fail_sync(number: u64, end: End, random: &mut fastrand::Rng) -> bool {
    let mut site = FaultSetup::start().await;
    site.disk.set(ControlWord::FailSyncAt, site.disk.get(ControlWord::Syncs) + number);
    let clients = site.write();
    // Until the sync has failed, and some time after it.
    for _ in 0..200 {
        if site.disk.get(ControlWord::FailedSyncs) > 0 {
            break;
        }
        site.acknowledged.more(10, &clients).await;
    }
    let failed = site.disk.get(ControlWord::FailedSyncs) > 0;
    site.acknowledged.more(40, &clients).await;
    if failed {
        let ready = site.platform.client.get(format!("{}/readyz", site.platform.url)).send().await;
        let is_ready = ready.is_ok_and(|answer| answer.status().is_success());
        let stores = site.disk.get(ControlWord::FailedStores);
        println!("sync {number} failed, of {stores} stores; the server is ready: {is_ready}");
        // The file of a channel is not a store: its records are sent again.
        assert_eq!(is_ready, stores == 0, "a store that acknowledges nothing is not ready");
    }
    match end {
        End::PowerLoss => site.kill(clients).await,
        End::Stop => {
            clients.end().await;
            site.platform.terminate();
        }
    }
    site.disk.set(ControlWord::FailSyncAt, 0);
    site.disk.lose_power(UnsyncedData::Dropped, random);
    site.check_integrity();
    site.platform.restart().await;
    site.check_subscribers().await;
    site.check_delivered().await;
    failed
}

async fn fail_each(numbers: impl Iterator<Item = u64>) {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let mut failed = 0;
    for number in numbers {
        for end in [End::PowerLoss, End::Stop] {
            println!("sync {number}, {end:?}");
            failed += usize::from(fail_sync(number, end, &mut random).await);
        }
    }
    assert!(failed > 0, "no sync failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a4_nothing_lost_by_a_failed_sync_is_acknowledged() {
    let start = fastrand::Rng::with_seed(support::seed()).u64(1..20);
    fail_each([start, start + 37].into_iter()).await;
}

/// `TOCSIN_SYNCS` sets how many of the first syncs fail, each in a separate run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a4_nothing_lost_by_any_failed_sync_is_acknowledged() {
    let most = std::env::var("TOCSIN_SYNCS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let step = fastrand::Rng::with_seed(support::seed()).u64(5..11);
    fail_each((1..=most).step_by(usize::try_from(step).expect("small"))).await;
}

/// A sync fails while the server starts and creates its files: it either refuses to start, or keeps all acknowledged
/// writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a4_a_start_with_a_failed_sync_is_refused_or_complete() {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let syncs = syncs_of_a_start().await;
    assert!(syncs > 10, "{syncs}");
    for _ in 0..4 {
        let number = random.u64(1..=syncs);
        println!("sync {number} of {syncs}");
        let mut site = FaultSetup::prepare().await;
        site.disk.set(ControlWord::FailSyncAt, number);
        let disk = &site.disk;
        let start = site.platform.try_restart(|_| disk.get(ControlWord::FailedSyncs) > 0).await;
        let key = std::fs::read_to_string(site.platform.folder.join("admin.key")).ok();
        match start {
            Start::Ended(status) => assert!(!status.success(), "{status}"),
            Start::Ready | Start::NotReady => site.platform.kill(),
        }
        println!("{start:?}, {} syncs failed", site.disk.get(ControlWord::FailedSyncs));
        site.disk.set(ControlWord::FailSyncAt, 0);
        site.disk.lose_power(UnsyncedData::Dropped, &mut random);
        site.platform.restart().await;
        if start == Start::Ready {
            assert_eq!(Some(site.platform.key()), key.map(|key| key.trim().to_owned()));
        }
        site.platform.get("/v1/status").await;
    }
}
