//! Backups, restore drills, effective configuration, examination and log of the server.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tocsin_model::{id::Name, time::Timestamp};
use tocsin_service::{
    backups::{BackupState, DrillState, RestoreDrill, StoredBackup, VerifiedBackup},
    server_host::{EffectiveConfiguration, EffectiveSetting, Finding, FindingLevel},
    server_log::{LogLine, LogPage},
};
use tocsin_store::sqlite::backup::CopiedFile;
use utoipa::ToSchema;

/// A database of a backup.
#[derive(Serialize, ToSchema)]
#[schema(as = CopiedFile)]
pub(crate) struct CopiedFileBody {
    name: String,
    schema: u32,
    bytes: u64,
    sha256: String,
}

impl From<CopiedFile> for CopiedFileBody {
    fn from(file: CopiedFile) -> Self {
        CopiedFileBody { name: file.name, schema: file.schema, bytes: file.bytes, sha256: file.sha256 }
    }
}

/// The backups in the data folder.
#[derive(Serialize, ToSchema)]
#[schema(as = Backups)]
pub(crate) struct BackupsBody {
    /// The backups, newest first.
    items: Vec<StoredBackupBody>,
    /// Their folder on the server.
    folder: String,
}

/// A backup in the data folder.
#[derive(Serialize, ToSchema)]
#[schema(as = StoredBackup)]
struct StoredBackupBody {
    name: String,
    /// `complete`, `unfinished` or `unreadable`. The checksums are compared by a verification only.
    state: &'static str,
    /// Reason of an unreadable backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    taken_at: Option<Timestamp>,
    /// Version of the program that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    bytes: u64,
    files: Vec<CopiedFileBody>,
}

impl From<StoredBackup> for StoredBackupBody {
    fn from(backup: StoredBackup) -> Self {
        let (state, reason) = match backup.state {
            BackupState::Complete => ("complete", None),
            BackupState::Unfinished => ("unfinished", None),
            BackupState::Unreadable(reason) => ("unreadable", Some(reason)),
        };
        let (taken_at, version, files) = match backup.manifest {
            Some(manifest) => (Some(manifest.taken_at), Some(manifest.version), manifest.files),
            None => (None, None, Vec::new()),
        };
        let files = files.into_iter().map(CopiedFileBody::from).collect();
        StoredBackupBody { name: backup.name, state, reason, taken_at, version, bytes: backup.bytes, files }
    }
}

impl BackupsBody {
    pub(crate) fn of(folder: &std::path::Path, backups: Vec<StoredBackup>) -> BackupsBody {
        let items = backups.into_iter().map(StoredBackupBody::from).collect();
        BackupsBody { items, folder: folder.display().to_string() }
    }
}

/// Result of a verification.
#[derive(Serialize, ToSchema)]
#[schema(as = VerifiedBackup)]
pub(crate) struct VerifiedBackupBody {
    name: String,
    /// Whether it can be restored.
    ok: bool,
    /// Reason of a failed verification.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    taken_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    bytes: u64,
    seconds: f64,
}

impl VerifiedBackupBody {
    pub(crate) fn of(name: &Name, verified: VerifiedBackup) -> VerifiedBackupBody {
        let manifest = verified.manifest.as_ref();
        VerifiedBackupBody {
            name: name.to_string(),
            ok: verified.reason.is_none(),
            taken_at: manifest.map(|manifest| manifest.taken_at),
            version: manifest.map(|manifest| manifest.version.clone()),
            bytes: manifest.map_or(0, |manifest| manifest.files.iter().map(|file| file.bytes).sum()),
            seconds: verified.took.as_secs_f64(),
            reason: verified.reason,
        }
    }
}

/// A restore drill to start.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewRestoreDrill)]
pub(crate) struct NewDrillBody {
    /// The backup; default: one is taken for the drill.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub(crate) backup: Option<Name>,
}

/// A restore drill: a backup is restored into a temporary folder, examined, opened and removed.
#[derive(Serialize, ToSchema)]
#[schema(as = RestoreDrill)]
pub(crate) struct DrillBody {
    id: String,
    /// `running`, `succeeded` or `failed`.
    state: &'static str,
    /// The backup; absent: one was taken for the drill.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    backup: Option<Name>,
    /// Id of the caller that started it.
    by: String,
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
    /// Reason of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The restored data.
    #[serde(skip_serializing_if = "Option::is_none")]
    restored: Option<RestoredBody>,
    /// Examination of the restored databases.
    findings: Vec<FindingBody>,
}

/// Data that a restore drill restored.
#[derive(Serialize, ToSchema)]
#[schema(as = Restored)]
struct RestoredBody {
    applications: u64,
    subscribers: u64,
    subscriptions: u64,
    bytes: u64,
    #[schema(value_type = String, format = DateTime)]
    taken_at: Timestamp,
    /// Version of the program that made the backup.
    version: String,
}

/// The id of a restore drill.
pub(crate) fn drill_id(number: u64) -> String {
    format!("rd-{number}")
}

impl From<RestoreDrill> for DrillBody {
    fn from(drill: RestoreDrill) -> Self {
        let (state, reason, report) = match drill.state {
            DrillState::Running => ("running", None, None),
            DrillState::Succeeded(report) => ("succeeded", None, Some(*report)),
            DrillState::Failed(reason) => ("failed", Some(reason), None),
        };
        let restored = report.as_ref().map(|report| RestoredBody {
            applications: report.applications,
            subscribers: report.subscribers,
            subscriptions: report.subscriptions,
            bytes: report.bytes,
            taken_at: report.taken_at,
            version: report.version.clone(),
        });
        let findings = report.into_iter().flat_map(|report| report.findings).map(FindingBody::from).collect();
        DrillBody {
            id: drill_id(drill.number),
            state,
            backup: drill.backup,
            by: drill.by,
            started_at: drill.started_at,
            ended_at: drill.ended_at,
            reason,
            restored,
            findings,
        }
    }
}

/// Result of a check.
#[derive(Serialize, ToSchema)]
#[schema(as = Finding)]
struct FindingBody {
    /// `ok`, `warn` or `fail`.
    level: &'static str,
    /// Checked item.
    what: String,
    /// Observation.
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl From<Finding> for FindingBody {
    fn from(finding: Finding) -> Self {
        let Finding { level, what, text, advice } = finding;
        FindingBody { level: level.word(), what, text, advice }
    }
}

/// Examination of the machine, the data folder and the server.
#[derive(Serialize, ToSchema)]
#[schema(as = Examination)]
pub(crate) struct ExaminationBody {
    /// Whether no check failed.
    ok: bool,
    findings: Vec<FindingBody>,
    /// Duration of the examination.
    seconds: f64,
}

impl ExaminationBody {
    pub(crate) fn of(findings: Vec<Finding>, took: std::time::Duration) -> ExaminationBody {
        let ok = findings.iter().all(|finding| finding.level != FindingLevel::Fail);
        let findings = findings.into_iter().map(FindingBody::from).collect();
        ExaminationBody { ok, findings, seconds: took.as_secs_f64() }
    }
}

/// The effective configuration.
#[derive(Serialize, ToSchema)]
#[schema(as = EffectiveConfiguration)]
pub(crate) struct ConfigurationBody {
    /// All values, in the order of the sections.
    items: Vec<SettingBody>,
    /// Probable mistakes without effect.
    warnings: Vec<String>,
}

/// A value of the configuration.
#[derive(Serialize, ToSchema)]
#[schema(as = EffectiveSetting)]
struct SettingBody {
    /// Key, such as `http.listen`.
    key: String,
    /// The value; `********` for a secret.
    #[schema(value_type = serde_json::Value)]
    value: Json,
    /// `default`, a flag, an environment variable, or a file with its line.
    source: String,
    is_default: bool,
    /// Whether the value is masked.
    secret: bool,
    /// Type of the value, in a word or two.
    kind: String,
    description: String,
}

impl From<EffectiveConfiguration> for ConfigurationBody {
    fn from(configuration: EffectiveConfiguration) -> Self {
        let item = |setting: EffectiveSetting| SettingBody {
            key: setting.key,
            value: setting.value,
            source: setting.source,
            is_default: setting.is_default,
            secret: setting.secret,
            kind: setting.kind,
            description: setting.description,
        };
        ConfigurationBody {
            items: configuration.settings.into_iter().map(item).collect(),
            warnings: configuration.warnings,
        }
    }
}

/// Lines of the server's log.
#[derive(Serialize, ToSchema)]
#[schema(as = ServerLog)]
pub(crate) struct LogBody {
    /// The lines, oldest first.
    items: Vec<LogLineBody>,
    /// Number of the oldest line in memory; absent: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<u64>,
    /// Give this as `after` for the lines that follow.
    last: u64,
}

/// A line of the server's log.
#[derive(Serialize, ToSchema)]
#[schema(as = ServerLogLine)]
struct LogLineBody {
    /// From 1 since the start of the process.
    number: u64,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    level: &'static str,
    /// Module that wrote it.
    target: String,
    message: String,
    fields: BTreeMap<String, String>,
}

impl From<LogPage> for LogBody {
    fn from(page: LogPage) -> Self {
        let item = |line: LogLine| LogLineBody {
            number: line.number,
            at: line.at,
            level: line.level.word(),
            target: line.target,
            message: line.message,
            fields: line.fields,
        };
        LogBody { items: page.lines.into_iter().map(item).collect(), first: page.first, last: page.last }
    }
}
