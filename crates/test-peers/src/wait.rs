//! Waits with one bound: a test that hangs fails soon, and says what it waited for.

use std::{
    net::TcpStream,
    time::{Duration, Instant},
};

/// The bound of a wait.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The factor of the bound in tests whose names begin with `slow_`.
const SLOW_FACTOR: u32 = 12;

/// The factor of the bound where `CI` is `true`: such machines do other work beside the tests.
const CI_FACTOR: u32 = 3;

/// The pause between two looks at a condition that has no signal.
const PAUSE: Duration = Duration::from_millis(5);

/// The bound of one wait: 10 seconds, or two minutes in a test whose name begins with `slow_`; in CI three times that.
pub fn wait_timeout() -> Duration {
    let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    timeout_of(std::thread::current().name().unwrap_or_default(), is_ci)
}

fn timeout_of(test: &str, is_ci: bool) -> Duration {
    let name = test.rsplit("::").next().unwrap_or(test);
    let of_test = if name.starts_with("slow_") { TIMEOUT * SLOW_FACTOR } else { TIMEOUT };
    if is_ci { of_test * CI_FACTOR } else { of_test }
}

/// Waits until the condition holds. For conditions without a signal, such as the state of another process.
///
/// # Panics
///
/// After [`wait_timeout`], with the name of the condition.
pub async fn until(what: &str, condition: impl AsyncFnMut() -> bool) {
    until_within(wait_timeout(), what, condition).await;
}

/// As [`until`], with another bound: for conditions that follow pauses of the server, such as those of retries.
///
/// # Panics
///
/// After the bound, with the name of the condition.
pub async fn until_within(timeout: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(PAUSE).await;
        }
    };
    assert!(tokio::time::timeout(timeout, waiting).await.is_ok(), "not within {timeout:?}: {what}");
}

/// Waits until a server listens at a port of 127.0.0.1, for servers that do not report it. `has_ended`: whether the
/// server has ended, so that waiting is useless.
///
/// # Panics
///
/// If it has ended, or after a minute: some servers create their files first.
pub fn until_listening(server: &str, port: u16, mut has_ended: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT * 6;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(!has_ended(), "{server} has ended");
        assert!(Instant::now() < deadline, "{server} does not listen at port {port}");
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{timeout_of, until};

    #[test]
    fn slow_tests_have_a_longer_timeout() {
        assert_eq!(timeout_of("faults::power::a3_it_waits", false), Duration::from_secs(10));
        assert_eq!(timeout_of("slow_it_waits", false), Duration::from_secs(120));
        assert_eq!(timeout_of("faults::slow_it_waits", false), Duration::from_secs(120));
        assert_eq!(timeout_of("slow_module::it_waits", false), Duration::from_secs(10));
        assert_eq!(timeout_of("slow_module::it_waits", true), Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_condition_is_awaited() {
        let mut looks = 0;
        until("three looks", async || {
            looks += 1;
            looks == 3
        })
        .await;
        assert_eq!(looks, 3);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "0s: the impossible")]
    async fn a_condition_that_never_holds_fails_the_test() {
        until("the impossible", async || false).await;
    }
}
