//! Row changes raise events exactly once, whoever makes them and whatever fails.

use std::sync::{Mutex, atomic::Ordering};

use serde_json::{Value as Json, json};
use tocsin_model::{collection::Stamp, id::Name};
use tocsin_sync::{
    SyncError,
    raise_events::{Event, Intake, IntakeError, Round},
    rows::RowChange,
};

use crate::bed::{Bed, Phone, name, object};

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

    fn breaks(&self) -> Result<(), IntakeError> {
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
        self.breaks()?;
        {
            let mut state = self.state();
            assert!(state.place < Some(upto), "what was taken in comes once");
            state.place = Some(upto);
            state.batches.push((class.to_string(), events));
        }
        self.breaks()?;
        Ok(0)
    }
}

fn total(total: i64) -> Json {
    json!({"owner": "ann", "total": total})
}

#[tokio::test]
async fn rows_raise_events_in_the_order_of_their_changes() {
    let bed = Bed::new(DEFINITION).await;
    bed.subscriber("ann", json!({})).await;
    let mut phone = Phone::new(&bed, "ann").await;
    phone.sync(&bed).await;
    bed.put("orders", "a", total(3)).await;
    bed.change("orders", "a", RowChange::Patch(object(json!({"note": "no other total"})))).await;
    phone.sync(&bed).await;
    phone.run("UPDATE orders SET total = 4 WHERE id = 'a'; INSERT INTO orders (id, owner) VALUES ('b', 'ann')");
    phone.sync(&bed).await;
    // A change without effect, or a rejected one, raises nothing.
    bed.put("orders", "b", json!({"owner": "ann"})).await;
    let other = RowChange::Patch(object(json!({"owner": null})));
    let refused = bed.sync.change_row(&name("shop"), "orders", "b", other, None).await;
    assert!(matches!(refused, Err(SyncError::Invalid(_))));
    bed.change("orders", "a", RowChange::Remove).await;
    assert_eq!(bed.sync.counts().raised, 4);
    let journal = Journal::default();
    assert_eq!(bed.sync.raise_events(&journal).await.expect("read"), Round::Done);
    assert_eq!(journal.events(), ["placed a 3 -", "placed a 4 3", "placed b - -", "gone a - -"]);
    assert_eq!(journal.state().batches.len(), 2, "those of one class go together");
    assert_eq!(bed.sync.counts().raised, 0);
    bed.sync.raise_events(&journal).await.expect("read");
    assert_eq!(journal.events().len(), 4);
}

#[tokio::test]
async fn nothing_is_lost_and_nothing_comes_twice_over_crashes() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bed = Bed::new(DEFINITION).await;
    bed.subscriber("ann", json!({})).await;
    let journal = Journal::default();
    journal.state().fails = Some(random.fork());
    let mut expected = Vec::new();
    for step in 0..60 {
        let id = format!("o-{step}");
        bed.put("orders", &id, total(step)).await;
        expected.push(format!("placed {id} {step} -"));
        if random.bool() {
            bed.change("orders", &id, RowChange::Remove).await;
            expected.push(format!("gone {id} - -"));
        }
        match random.u8(0..4) {
            0 => bed = bed.restart().await,
            1 => drop(bed.sync.raise_events(&journal).await.expect("read")),
            2 => {
                bed.pass(tocsin_sync::raise_events::TAKEN_KEPT / 2);
                bed.sync.tidy().await.expect("tidied");
            }
            _ => {}
        }
    }
    journal.state().fails = None;
    bed = bed.restart().await;
    assert_eq!(bed.sync.raise_events(&journal).await.expect("read"), Round::Done);
    assert_eq!(journal.events(), expected);
    assert_eq!(bed.sync.counts().raised, 0);
}

/// A backup captures the journal first: events that it lacks are still stored with the rows.
#[tokio::test]
async fn an_older_journal_accepts_the_events_that_it_lacks() {
    let bed = Bed::new(DEFINITION).await;
    let journal = Journal::default();
    bed.put("orders", "a", total(1)).await;
    bed.sync.raise_events(&journal).await.expect("read");
    let pinned = journal.state().place;
    bed.put("orders", "b", total(2)).await;
    bed.sync.raise_events(&journal).await.expect("read");
    let older = Journal::default();
    older.state().place = pinned;
    let bed = bed.restart().await;
    bed.sync.raise_events(&older).await.expect("read");
    assert_eq!(older.events(), ["placed b 2 -"]);
    assert_eq!(bed.sync.counts().raised, 0);
    // After the retention nothing is left of it.
    bed.clock.fetch_add(4_000_000, Ordering::Relaxed);
    bed.sync.tidy().await.expect("tidied");
    let bed = bed.restart().await;
    let empty = Journal::default();
    bed.sync.raise_events(&empty).await.expect("read");
    assert_eq!(empty.events(), Vec::<String>::new());
}

#[tokio::test]
async fn an_application_that_is_gone_leaves_no_events() {
    let bed = Bed::new(DEFINITION).await;
    let journal = Journal::default();
    bed.put("orders", "a", total(1)).await;
    bed.records_remove_application().await;
    bed.sync.raise_events(&journal).await.expect("read");
    assert_eq!((journal.events().len(), bed.sync.counts().raised), (0, 0));
    // It appears again, and so do its rows; only later changes raise events.
    bed.apply(DEFINITION).await;
    bed.put("orders", "a", total(2)).await;
    bed.sync.raise_events(&journal).await.expect("read");
    assert_eq!(journal.events(), ["placed a 2 1"]);
}
