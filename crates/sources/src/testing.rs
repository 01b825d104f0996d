//! The test harness shared by all kinds.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::Value as Json;
use tocsin_connect::{SystemClock, files::Files, programs::Programs};
use tocsin_model::{
    event::{EventPacker, PackedEvents},
    field::{Field, FieldType, Fields},
    mark::Mark,
    value::Value,
};
use tokio::time::timeout;

use crate::source::{Context, Folders, Message, OpenSource, SourceBatch, SourceError, SourceOutput, SourceSettings};

/// A generous limit for anything that works.
pub(crate) fn wait_timeout() -> Duration {
    // Brokers elect leaders and expire sessions first.
    tocsin_test_peers::wait_timeout() * 3
}

/// The fields of the test event class.
pub(crate) fn fields() -> Fields {
    fields_of(&[("id", FieldType::String), ("magnitude", FieldType::Number), ("tags", FieldType::List)])
}

/// Fields of these names and types; `id` is required.
pub(crate) fn fields_of(of: &[(&str, FieldType)]) -> Fields {
    let field = |(name, kind): &(&str, FieldType)| Field {
        name: name.parse().expect("a name"),
        kind: *kind,
        required: *name == "id",
        default: Value::Null,
        description: None,
    };
    Fields::new(of.iter().map(field).collect())
}

/// Events as JSON.
pub(crate) fn shown(events: &PackedEvents) -> Vec<String> {
    let fields = fields();
    (0..events.count()).map(|at| fields.to_json(&events.row(&fields, at).expect("a row"))).collect()
}

/// A line of JSON as it is read back.
pub(crate) fn taken(line: &str) -> String {
    let mut packer = EventPacker::new(fields());
    packer.push(&fields().row_from_json(line.as_bytes()).expect("a row"));
    shown(&packer.finish()).remove(0)
}

/// Stores marks like the journal.
pub(crate) fn commit(stored: &mut Vec<Mark>, marks: Vec<Mark>) {
    for mark in marks {
        stored.retain(|known| known.part != mark.part);
        if mark.value.is_some() {
            stored.push(mark);
        }
    }
}

/// A source, and its marks in a simulated journal.
pub(crate) struct Harness {
    pub kind: &'static str,
    pub options: Json,
    pub output: SourceOutput,
    /// Allowed folders besides the data folder.
    pub folders: Vec<PathBuf>,
    pub data: tempfile::TempDir,
    pub marks: Vec<Mark>,
    source: Option<Box<dyn OpenSource>>,
}

impl Harness {
    pub fn new(kind: &'static str, options: Json) -> Harness {
        let data = tempfile::tempdir().expect("a folder");
        Harness {
            kind,
            options,
            output: SourceOutput::Events(fields()),
            folders: Vec::new(),
            data,
            marks: Vec::new(),
            source: None,
        }
    }

    /// The settings of the source.
    pub fn setting(&self) -> SourceSettings {
        let context = Context {
            clock: Arc::new(SystemClock),
            data_folder: self.data.path().to_owned(),
            networks: Default::default(),
            programs: Programs { allow: vec![Path::new("/bin/sh").to_owned()] },
            folders: Folders { allow: self.folders.clone() },
            files: Files::new(vec![std::env::temp_dir()], "/nonexistent".into()),
            listeners: Default::default(),
        };
        SourceSettings {
            application: "app".parse().expect("a name"),
            name: "source".parse().expect("a name"),
            remote_name: "tocsin:app:in:source".to_owned(),
            output: self.output.clone(),
            options: self.options.as_object().expect("an object").clone(),
            context,
        }
    }

    /// Opens the source with its marks, replacing the previous one.
    pub fn open(&mut self) {
        self.source = None;
        let opened = crate::open(self.kind, self.setting(), self.marks.clone());
        self.source = Some(opened.unwrap_or_else(|problems| panic!("{problems:?}")));
    }

    pub fn source(&mut self) -> &mut dyn OpenSource {
        if self.source.is_none() {
            self.open();
        }
        &mut **self.source.as_mut().expect("the source is open")
    }

    /// A crash.
    pub fn crash(&mut self) {
        self.source = None;
    }

    pub async fn try_next(&mut self) -> Result<SourceBatch, SourceError> {
        timeout(wait_timeout(), self.source().next()).await.expect("in time")
    }

    /// The next batch. Retries while another source holds the lock or the port, as the platform does: a database keeps
    /// the lock of a crashed source until it notices the closed connection.
    pub async fn next(&mut self) -> SourceBatch {
        let asked = async {
            loop {
                match self.source().next().await {
                    Err(error)
                        if ["another source takes", "cannot listen"].iter().any(|of| error.text.starts_with(of)) =>
                    {
                        tokio::task::yield_now().await;
                    }
                    answered => return answered,
                }
            }
        };
        timeout(wait_timeout(), asked).await.expect("in time").unwrap_or_else(|error| panic!("{error}"))
    }

    /// Commits marks like the journal.
    pub fn commit(&mut self, marks: Vec<Mark>) {
        commit(&mut self.marks, marks);
    }

    /// Takes the next batch, and returns its events.
    pub async fn take(&mut self) -> Vec<String> {
        let batch = self.next().await;
        self.commit(batch.marks);
        self.source().accepted().await.unwrap_or_else(|error| panic!("{error}"));
        shown(&batch.events)
    }

    /// Takes the next batch, and returns its messages.
    pub async fn take_messages(&mut self) -> Vec<Message> {
        let batch = self.next().await;
        self.commit(batch.marks);
        self.source().accepted().await.unwrap_or_else(|error| panic!("{error}"));
        batch.messages
    }

    /// Takes batches until there are this many events.
    pub async fn take_events(&mut self, count: usize) -> Vec<String> {
        let mut events = Vec::new();
        while events.len() < count {
            events.extend(self.take().await);
        }
        events
    }
}
