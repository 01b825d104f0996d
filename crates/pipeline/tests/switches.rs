//! Switched-off work waits, across crashes, and then continues where it stopped.

use expect_test::expect;
use tocsin_testkit::{Scenario, check};

const QUAKES: &str = "
application: quakes
events: { quake: { fields: { magnitude: number, place: string } } }
subscriptions: { nearby: { fields: { magnitude: number } } }
notifications:
  shaken: { fields: { place: string }, content: { templates: { base: { text: '{{ place }}' } } } }
rules:
  shakes:
    on: quake
    subscription: nearby
    when: event.magnitude >= sub.magnitude
    notify: shaken
    with: { place: event.place }
channels: { email: { protocol: file, options: { path: x.ndjson } } }
";

#[tokio::test(start_paused = true)]
async fn a_paused_channel_keeps_its_work_over_a_crash() {
    check(
        QUAKES,
        "08:00 subscriber alice email=alice@example.org
         08:00 subscribe alice nearby {\"magnitude\": 5}
         08:10 switch off channel:quakes/email paused
         08:20 event quake {\"magnitude\": 6, \"place\": \"Kobe\"}
         08:30 report
         08:40 crash
         08:50 report
         09:00 switch on channel:quakes/email
         09:10 event quake {\"magnitude\": 6, \"place\": \"Lima\"}",
        expect![[r#"
            08:30:00 events 1 notifications 1 open 1 suspended 0
            08:40:00 crash
            08:50:00 events 1 notifications 1 open 1 suspended 0
            09:00:00 email alice@example.org n-1-0:  -> delivered
            09:10:00 email alice@example.org n-2-0:  -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn events_of_a_paused_application_meet_the_subscriptions_of_their_time() {
    check(
        QUAKES,
        "08:00 subscriber alice email=alice@example.org
         08:00 subscriber bob email=bob@example.org
         08:00 subscribe alice nearby {\"magnitude\": 5}
         08:10 switch off application:quakes paused
         08:20 event quake {\"magnitude\": 6, \"place\": \"Kobe\"}
         08:30 subscribe bob nearby {\"magnitude\": 5}
         08:40 event quake {\"magnitude\": 6, \"place\": \"Lima\"}
         08:50 report
         09:00 switch on application:quakes
         09:10 switch off role:match paused
         09:20 event quake {\"magnitude\": 6, \"place\": \"Rome\"}
         09:30 switch on role:match",
        expect![[r#"
            08:50:00 events 2 notifications 0 open 0 suspended 0
            09:00:00 email alice@example.org n-1-0:  -> delivered
            09:00:00 email alice@example.org n-1-1:  -> delivered
            09:00:00 email bob@example.org n-1-2:  -> delivered
            09:30:00 email alice@example.org n-2-0:  -> delivered
            09:30:00 email bob@example.org n-2-1:  -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_removal_of_an_application_ends_its_notifications_also_after_a_crash() {
    let script = |removal: &str| {
        format!(
            "08:00 subscriber alice email=alice@example.org
             08:00 subscribe alice nearby {{\"magnitude\": 5}}
             08:10 switch off channel:quakes/email paused
             08:20 event quake {{\"magnitude\": 6, \"place\": \"Kobe\"}}
             08:30 report
             {removal}
             09:00 report"
        )
    };
    let ended = |crash: &str| {
        format!(
            "08:30:00 events 1 notifications 1 open 1 suspended 0\n{crash}\
             09:00:00 events 1 notifications 1 open 0 suspended 0"
        )
    };
    for (removal, crash) in [("08:40 remove application", ""), ("08:40 remove\n08:41 crash", "08:41:00 crash\n")] {
        let mut scenario = Scenario::new(&[QUAKES]).await;
        assert_eq!(scenario.run(&script(removal)).await.trim(), ended(crash), "{removal}");
    }
}
