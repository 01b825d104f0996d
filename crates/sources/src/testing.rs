//! What the tests of all kinds share.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::Value as Json;
use tocsin_delivery::SystemClock;
use tocsin_model::{
    event::{EventPacker, PackedEvents},
    field::{Field, FieldType, Fields},
    mark::Mark,
    value::Value,
};
use tokio::time::timeout;

use crate::source::{Context, Folders, Gives, Message, OpenSource, Portion, Setting, Trouble};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The fields of the class whose events the tests take.
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

/// A line of JSON as it comes back.
pub(crate) fn taken(line: &str) -> String {
    let mut packer = EventPacker::new(fields());
    packer.push(&fields().row_from_json(line.as_bytes()).expect("a row"));
    shown(&packer.finish()).remove(0)
}

/// A source, and what a journal holds of it.
pub(crate) struct Harness {
    kind: &'static str,
    pub options: Json,
    pub gives: Gives,
    /// Folders that are open beside the data folder.
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
            gives: Gives::Events(fields()),
            folders: Vec::new(),
            data,
            marks: Vec::new(),
            source: None,
        }
    }

    /// Opens the source with its marks, whatever became of the one before.
    pub fn open(&mut self) {
        self.source = None;
        let context = Context {
            clock: Arc::new(SystemClock),
            data_folder: self.data.path().to_owned(),
            networks: Default::default(),
            programs: tocsin_delivery::programs::Programs { allow: vec![Path::new("/bin/sh").to_owned()] },
            folders: Folders { allow: self.folders.clone() },
            files: tocsin_delivery::files::Files::new(vec![std::env::temp_dir()], "/nonexistent".into()),
            listeners: Default::default(),
        };
        let setting = Setting {
            application: "app".parse().expect("a name"),
            name: "source".parse().expect("a name"),
            far_name: "tocsin:app:in:source".to_owned(),
            gives: self.gives.clone(),
            options: self.options.as_object().expect("an object").clone(),
            context,
        };
        let opened = crate::open(self.kind, setting, self.marks.clone());
        self.source = Some(opened.unwrap_or_else(|problems| panic!("{problems:?}")));
    }

    pub fn source(&mut self) -> &mut dyn OpenSource {
        if self.source.is_none() {
            self.open();
        }
        &mut **self.source.as_mut().expect("it was opened")
    }

    /// A crash.
    pub fn crash(&mut self) {
        self.source = None;
    }

    pub async fn try_next(&mut self) -> Result<Portion, Trouble> {
        timeout(PATIENCE, self.source().next()).await.expect("in time")
    }

    /// The next portion. It is asked for again while another source takes from there, as the platform does: a database
    /// holds the lock of a crashed source until it sees that its connection is gone.
    pub async fn next(&mut self) -> Portion {
        let asked = async {
            loop {
                match self.source().next().await {
                    Err(trouble) if trouble.text.starts_with("another source takes") => continue,
                    answered => return answered,
                }
            }
        };
        timeout(PATIENCE, asked).await.expect("in time").unwrap_or_else(|trouble| panic!("{trouble}"))
    }

    /// What the journal does in one commit.
    pub fn commit(&mut self, marks: Vec<Mark>) {
        for mark in marks {
            self.marks.retain(|known| known.part != mark.part);
            if mark.value.is_some() {
                self.marks.push(mark);
            }
        }
    }

    /// Takes the next portion whole, and gives its events.
    pub async fn take(&mut self) -> Vec<String> {
        let portion = self.next().await;
        self.commit(portion.marks);
        self.source().accepted().await.unwrap_or_else(|trouble| panic!("{trouble}"));
        shown(&portion.events)
    }

    /// Takes the next portion whole, and gives its messages.
    pub async fn take_messages(&mut self) -> Vec<Message> {
        let portion = self.next().await;
        self.commit(portion.marks);
        self.source().accepted().await.unwrap_or_else(|trouble| panic!("{trouble}"));
        portion.messages
    }

    /// Takes portions until there are so many events.
    pub async fn take_events(&mut self, count: usize) -> Vec<String> {
        let mut events = Vec::new();
        while events.len() < count {
            events.extend(self.take().await);
        }
        events
    }
}
