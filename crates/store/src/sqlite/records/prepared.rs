//! Changes that were worked out beforehand. All that wait are written by one job of the writer, between one opening of the books
//! and one closing: what is left for each of them is to look whether it still fits, and its own rows.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use rusqlite::Connection;
use tocsin_model::id::SubscriberNumber;
use tokio::sync::oneshot;

use super::{
    AfterCommit, Published, SqliteRecords, entries, execute,
    feed::{Books, Telling},
    json, query_one, segments, signed, subscribers,
};
use crate::{
    entries::{Arrival, EntryChange, Now, Retouch},
    error::StoreError,
    records::{ProfileImage, ProfileStep},
    sqlite::writer::WAITING_WRITES_MAX,
};

type Answer = oneshot::Sender<Result<bool, StoreError>>;

/// A change with all that is written of it.
pub(super) enum Change {
    /// With the attributes, and what the feed is told of it where it is not told all that there was, as JSON.
    Retouch(Box<Retouch>, Option<String>, String),
    /// With the attributes and preferences, as JSON.
    Arrival(Box<Arrival>, Option<String>, Option<String>),
}

impl Change {
    pub(super) fn of_retouch(retouch: Retouch) -> Change {
        let step = json(&ProfileStep::to_attributes(retouch.enabled, &retouch.before));
        let attributes = (&*retouch.attributes != "{}").then(|| subscribers::with_room(retouch.attributes.to_string()));
        Change::Retouch(Box::new(retouch), attributes, step)
    }

    pub(super) fn of_arrival(arrival: Arrival) -> Change {
        let attributes = subscribers::attributes_json(&arrival.new.profile);
        let preferences = arrival.new.preferences.as_ref().and_then(subscribers::preferences_json);
        Change::Arrival(Box::new(arrival), attributes, preferences)
    }

    /// Gives whether it fitted. What does not is found before anything is written.
    fn write(&self, books: &mut Books<'_>) -> Result<bool, StoreError> {
        let built = match self {
            Change::Retouch(retouch, ..) => &retouch.built,
            Change::Arrival(arrival, ..) => &arrival.built,
        };
        if !books.watcher.as_ref().is_some_and(|watcher| watcher.holds(built)) {
            return Ok(false);
        }
        match self {
            Change::Retouch(retouch, attributes, step) => write_retouch(books, retouch, attributes.as_deref(), step),
            Change::Arrival(arrival, attributes, preferences) => {
                write_arrival(books, arrival, attributes.as_deref(), preferences.as_deref())
            }
        }
    }
}

/// Changes for which the writer was called and has not come yet.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Vec<(Change, Answer)>>);

impl Waiting {
    /// Gives whether the writer has to be called.
    fn put(&self, change: Change, answer: Answer) -> Result<bool, StoreError> {
        let mut waiting = self.0.lock();
        if waiting.len() >= WAITING_WRITES_MAX {
            return Err(StoreError::Full(format!("{WAITING_WRITES_MAX} writes wait already")));
        }
        waiting.push((change, answer));
        Ok(waiting.len() == 1)
    }

    fn take(&self) -> (Vec<Change>, Vec<Answer>) {
        std::mem::take(&mut *self.0.lock()).into_iter().unzip()
    }
}

/// A call of the writer, and who waits for what comes of it.
struct Call {
    published: Arc<Published>,
    stage: Mutex<Stage>,
}

enum Stage {
    /// The writer has not come.
    Called,
    /// What was there when it came: the same if it comes again, after what it did was undone.
    Came(Vec<Change>, Vec<Answer>),
    Answered,
}

impl Call {
    fn write(&self, books: &mut Books<'_>) -> Result<Vec<bool>, StoreError> {
        let mut stage = self.stage.lock();
        if let Stage::Called = &*stage {
            let (changes, answers) = self.published.waiting.take();
            *stage = Stage::Came(changes, answers);
        }
        let Stage::Came(changes, _) = &*stage else { return Ok(Vec::new()) };
        changes.iter().map(|change| change.write(books)).collect()
    }

    fn answer(&self, result: Result<Vec<bool>, StoreError>) {
        let stage = std::mem::replace(&mut *self.stage.lock(), Stage::Answered);
        let answers = match stage {
            Stage::Called => self.published.waiting.take().1,
            Stage::Came(_, answers) => answers,
            Stage::Answered => return,
        };
        // Who stopped waiting has its change nevertheless.
        match result {
            Ok(written) => answers.into_iter().zip(written).for_each(|(answer, is_written)| {
                let _ = answer.send(Ok(is_written));
            }),
            Err(error) => answers.into_iter().for_each(|answer| {
                let _ = answer.send(Err(the_same(&error)));
            }),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // A writer that ended runs nothing that waits, and the next caller would believe that it was called.
        self.answer(Err(StoreError::unavailable("the writer has ended")));
    }
}

/// An error for each of those who shared it.
fn the_same(error: &StoreError) -> StoreError {
    match error {
        StoreError::Full(why) => StoreError::Full(why.clone()),
        StoreError::Damaged(why) => StoreError::Damaged(why.clone()),
        other => StoreError::unavailable(other.to_string()),
    }
}

impl SqliteRecords {
    /// Writes with the next commit what was worked out beforehand.
    pub(super) async fn write_prepared(&self, change: Change) -> Result<bool, StoreError> {
        self.free_space.check()?;
        let (answer, answered) = oneshot::channel();
        if self.published.waiting.put(change, answer)? {
            self.call_writer();
        }
        answered.await.unwrap_or_else(|_| Err(StoreError::unavailable("the writer has ended")))
    }

    fn call_writer(&self) {
        let call = Arc::new(Call { published: self.published.clone(), stage: Mutex::new(Stage::Called) });
        let job = {
            let (call, published, feed_kept) = (call.clone(), self.published.clone(), self.feed_kept);
            move |connection: &Connection, after: &mut AfterCommit| {
                published.between_books(feed_kept, connection, after, |books| call.write(books))
            }
        };
        self.database.write_again_then(job, move |result| call.answer(result));
    }
}

fn write_retouch(
    books: &mut Books<'_>,
    retouch: &Retouch,
    attributes: Option<&str>,
    step: &str,
) -> Result<bool, StoreError> {
    let Retouch { number, revision, gone, made, now, built, .. } = retouch;
    if entries::may_be_taken(books, Some((*number).into()), made)? {
        return Ok(false);
    }
    let whole = match books.tells_whole() {
        true => match image(books.connection, *number) {
            Ok(image) => image.map(|image| json(&image)),
            // Whoever then changes it in the usual way is told what is wrong with it.
            Err(StoreError::Damaged(_)) => return Ok(false),
            Err(error) => return Err(error),
        },
        false => None,
    };
    let telling = whole.as_deref().map_or(Telling::Step(step), Telling::Whole);
    let Some(told) = books.profile_told_of(*number, *revision, telling)? else { return Ok(false) };
    let place = [number.0, *revision].map(signed);
    let sql = "UPDATE subscribers SET attributes = ?3, updated_at = ?4, revision = ?2 + 1, told = ?5 WHERE number = ?1";
    execute(books.connection, sql, (place[0], place[1], attributes, now.0, signed(told)))?;
    books.touched.push(number.0);
    let keys = [&gone[..], made].concat();
    let told = EntryChange { number: (*number).into(), keys, renamed: false, now: Now::Built(built.clone()) };
    entries::turned(books, gone, made, told)?;
    Ok(true)
}

fn write_arrival(
    books: &mut Books<'_>,
    arrival: &Arrival,
    attributes: Option<&str>,
    preferences: Option<&str>,
) -> Result<bool, StoreError> {
    let Arrival { new, placement, credential, keys, now, built } = arrival;
    if entries::may_be_taken(books, None, keys)? {
        return Ok(false);
    }
    let parent = placement.parent.0;
    let sql = "SELECT 1 FROM entries WHERE number = ?1
        AND NOT EXISTS (SELECT 1 FROM entries WHERE parent = ?1 AND rdn_key = ?2)";
    if query_one(books.connection, sql, (parent, &*placement.rdn_key), |_| Ok(()))?.is_none() {
        return Ok(false);
    }
    let number = SubscriberNumber(books.subscriber + 1);
    let profile = &new.profile;
    let sql =
        "INSERT INTO subscribers (number, id, enabled, locale, time_zone, attributes, created_at, updated_at, revision,
            preferences, parent, rdn, rdn_key, classes)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, 1, ?8, ?9, ?10, ?11, ?12) ON CONFLICT DO NOTHING";
    let row = (
        signed(number.0),
        new.id.as_str(),
        profile.enabled,
        &profile.locale,
        &profile.time_zone,
        attributes,
        now.0,
        preferences,
        parent,
        &*placement.rdn,
        &*placement.rdn_key,
        &*placement.classes,
    );
    if execute(books.connection, sql, row)? == 0 {
        return Ok(false);
    }
    books.subscriber = number.0;
    books.counts.subscribers += 1;
    let devices: BTreeMap<_, _> = new.devices.iter().flatten().map(|(name, device)| (name, device)).collect();
    for (name, device) in devices {
        subscribers::put_row(books, number, name, device)?;
    }
    if credential.is_some() {
        entries::put_credential(books, number.into(), credential.as_deref())?;
    }
    let told =
        EntryChange { number: number.into(), keys: keys.clone(), renamed: false, now: Now::Built(built.clone()) };
    entries::turned(books, &[], keys, told)?;
    Ok(true)
}

/// All that there is of a subscriber.
fn image(connection: &Connection, number: SubscriberNumber) -> Result<Option<ProfileImage>, StoreError> {
    Ok(segments::present(connection, number.0)?.map(|(image, _)| image))
}
