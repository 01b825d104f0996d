//! Row changes raise events exactly once, whoever makes them and whatever fails.

use std::sync::{Mutex, atomic::Ordering};

use serde_json::{Value as Json, json};
use tocsin_model::{collection::Stamp, id::Name};
use tocsin_sync::{
    SyncError,
    raise_events::{Event, Intake, IntakeError, Round},
    rows::RowChange,
};

use crate::fixture::{Phone, SyncFixture, name, object};

const DEFINITION: &str = "application: shop
events:
  placed: { fields: { order: { type: string, required: true }, total: integer, was: integer } }
  gone: { fields: { order: string } }
collections:
  orders:
    fields: { owner: { type: string, required: true }, total: integer, note: string }
    partition:
      - match: { owner: subscriber.id }
    raise:
      - { on: [insert, update], of: total, event: placed, fields: { order: id, total: row.total, was: before.total } }
      - { on: remove, event: gone, fields: { order: id } }
";

/// A journal that fails before or after its commit on request.
#[derive(Default)]
struct Journal(Mutex<State>);

#[derive(Default)]
struct State {
    place: Option<Stamp>,
    batches: Vec<(String, Vec<Event>)>,
    fails: Option<fastrand::Rng>,
}

fn failed() -> IntakeError {
    IntakeError("on purpose".into())
}

impl Journal {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("not poisoned")
    }

    fn fail_randomly(&self) -> Result<(), IntakeError> {
        let drawn = self.state().fails.as_mut().map_or(1.0, fastrand::Rng::f64);
        if drawn < 0.4 { Err(failed()) } else { Ok(()) }
    }

    /// All accepted events, as `class order total was`.
    fn events(&self) -> Vec<String> {
        let of = |class: &str, event: &Event| {
            let text = |name: &str| event.get(name).map_or("-".to_owned(), |value| value.to_string().replace('"', ""));
            format!("{class} {} {} {}", text("order"), text("total"), text("was"))
        };
        let state = self.state();
        state.batches.iter().flat_map(|(class, events)| events.iter().map(|event| of(class, event))).collect()
    }
}

impl Intake for Journal {
    async fn place(&self, _: &Name) -> Result<Option<Stamp>, IntakeError> {
        Ok(self.state().place)
    }

    async fn set_place(&self, _: &Name, upto: Stamp) -> Result<(), IntakeError> {
        self.state().place = Some(upto);
        Ok(())
    }

    async fn take(&self, _: &Name, class: &Name, events: Vec<Event>, upto: Stamp) -> Result<u64, IntakeError> {
        self.fail_randomly()?;
        {
            let mut state = self.state();
            assert!(state.place < Some(upto), "what was taken in comes once");
            state.place = Some(upto);
            state.batches.push((class.to_string(), events));
        }
        self.fail_randomly()?;
        Ok(0)
    }
}

fn total(total: i64) -> Json {
    json!({"owner": "ann", "total": total})
}

#[tokio::test]
async fn rows_raise_events_in_the_order_of_their_changes() {
    let fixture = SyncFixture::new(DEFINITION).await;
    fixture.subscriber("ann", json!({})).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    fixture.put("orders", "a", total(3)).await;
    fixture.change("orders", "a", RowChange::Patch(object(json!({"note": "no other total"})))).await;
    phone.sync(&fixture).await;
    phone.run("UPDATE orders SET total = 4 WHERE id = 'a'; INSERT INTO orders (id, owner) VALUES ('b', 'ann')");
    phone.sync(&fixture).await;
    // A change without effect, or a rejected one, raises nothing.
    fixture.put("orders", "b", json!({"owner": "ann"})).await;
    let other = RowChange::Patch(object(json!({"owner": null})));
    let refused = fixture.sync.change_row(&name("shop"), "orders", "b", other, None).await;
    assert!(matches!(refused, Err(SyncError::Invalid(_))));
    fixture.change("orders", "a", RowChange::Remove).await;
    assert_eq!(fixture.sync.counts().raised, 4);
    let journal = Journal::default();
    assert_eq!(fixture.sync.raise_events(&journal).await.expect("read"), Round::Done);
    assert_eq!(journal.events(), ["placed a 3 -", "placed a 4 3", "placed b - -", "gone a - -"]);
    assert_eq!(journal.state().batches.len(), 2, "those of one class go together");
    assert_eq!(fixture.sync.counts().raised, 0);
    fixture.sync.raise_events(&journal).await.expect("read");
    assert_eq!(journal.events().len(), 4);
}

#[tokio::test]
async fn nothing_is_lost_and_nothing_comes_twice_over_crashes() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut fixture = SyncFixture::new(DEFINITION).await;
    fixture.subscriber("ann", json!({})).await;
    let journal = Journal::default();
    journal.state().fails = Some(random.fork());
    let mut expected = Vec::new();
    for step in 0..60 {
        let id = format!("o-{step}");
        fixture.put("orders", &id, total(step)).await;
        expected.push(format!("placed {id} {step} -"));
        if random.bool() {
            fixture.change("orders", &id, RowChange::Remove).await;
            expected.push(format!("gone {id} - -"));
        }
        match random.u8(0..4) {
            0 => fixture = fixture.restart().await,
            1 => drop(fixture.sync.raise_events(&journal).await.expect("read")),
            2 => {
                fixture.pass(tocsin_sync::raise_events::ACCEPTED_EVENT_RETENTION / 2);
                fixture.sync.prune().await.expect("tidied");
            }
            _ => {}
        }
    }
    journal.state().fails = None;
    fixture = fixture.restart().await;
    assert_eq!(fixture.sync.raise_events(&journal).await.expect("read"), Round::Done);
    assert_eq!(journal.events(), expected);
    assert_eq!(fixture.sync.counts().raised, 0);
}

/// A backup captures the journal first: events that it lacks are still stored with the rows.
#[tokio::test]
async fn an_older_journal_accepts_the_events_that_it_lacks() {
    let fixture = SyncFixture::new(DEFINITION).await;
    let journal = Journal::default();
    fixture.put("orders", "a", total(1)).await;
    fixture.sync.raise_events(&journal).await.expect("read");
    let pinned = journal.state().place;
    fixture.put("orders", "b", total(2)).await;
    fixture.sync.raise_events(&journal).await.expect("read");
    let older = Journal::default();
    older.state().place = pinned;
    let fixture = fixture.restart().await;
    fixture.sync.raise_events(&older).await.expect("read");
    assert_eq!(older.events(), ["placed b 2 -"]);
    assert_eq!(fixture.sync.counts().raised, 0);
    // After the retention nothing is left of it.
    fixture.clock.fetch_add(4_000_000, Ordering::Relaxed);
    fixture.sync.prune().await.expect("tidied");
    let fixture = fixture.restart().await;
    let empty = Journal::default();
    fixture.sync.raise_events(&empty).await.expect("read");
    assert_eq!(empty.events(), Vec::<String>::new());
}

#[tokio::test]
async fn an_application_that_is_gone_leaves_no_events() {
    let fixture = SyncFixture::new(DEFINITION).await;
    let journal = Journal::default();
    fixture.put("orders", "a", total(1)).await;
    fixture.records_remove_application().await;
    fixture.sync.raise_events(&journal).await.expect("read");
    assert_eq!((journal.events().len(), fixture.sync.counts().raised), (0, 0));
    // It appears again, and so do its rows; only later changes raise events.
    fixture.apply(DEFINITION).await;
    fixture.put("orders", "a", total(2)).await;
    fixture.sync.raise_events(&journal).await.expect("read");
    assert_eq!(journal.events(), ["placed a 2 1"]);
}

/// Changes the stored rows of the server while it is stopped.
async fn damage(fixture: SyncFixture, sql: &'static str) -> SyncFixture {
    let work = |folder: &std::path::Path| {
        let connection = rusqlite::Connection::open(folder.join("sync.db")).expect("it opens");
        assert_eq!(connection.execute(sql, ()).expect("changed"), 1);
    };
    fixture.between(work).await
}

#[tokio::test]
async fn a_damaged_event_is_left_out_and_a_damaged_row_is_an_error() {
    let fixture = SyncFixture::new(DEFINITION).await;
    fixture.subscriber("ann", json!({})).await;
    for (id, value) in [("a", 1), ("b", 2), ("c", 3)] {
        fixture.put("orders", id, total(value)).await;
    }
    let sql = "UPDATE raised SET event = '{\"order\"' WHERE event LIKE '%\"b\"%'";
    let fixture = damage(fixture, sql).await;
    let journal = Journal::default();
    assert_eq!(fixture.sync.raise_events(&journal).await.expect("read"), Round::Done);
    // An event without fields would take its place.
    assert_eq!(journal.events(), ["placed a 1 -", "placed c 3 -"]);
    let fixture = damage(fixture, "UPDATE rows SET body = '{\"total\"' WHERE id = 'a'").await;
    let removed = fixture.sync.change_row(&name("shop"), "orders", "a", RowChange::Remove, None).await;
    assert!(matches!(removed, Err(SyncError::Store(_))), "{removed:?}");
    fixture.change("orders", "b", RowChange::Remove).await;
    fixture.sync.raise_events(&journal).await.expect("read");
    assert_eq!(journal.events().last().map(String::as_str), Some("gone b - -"));
}
