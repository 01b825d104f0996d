//! The process that runs the service, as maintenance needs it: effective configuration, examination, restore drill, log.
//! The binary implements the port; without it the operations are missing.

use std::path::PathBuf;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value as Json;

use crate::server_log::ServerLog;

/// A value of the effective configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EffectiveSetting {
    /// Key, such as `http.listen`.
    pub key: String,
    /// Value; a secret one is masked.
    pub value: Json,
    /// Source: `default`, a flag, a variable, or a file with its line.
    pub source: String,
    /// Whether it is the default.
    pub is_default: bool,
    /// Whether the value is masked.
    pub secret: bool,
    /// Type of the value, in a word or two.
    pub kind: String,
    /// Description.
    pub description: String,
}

/// The effective configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EffectiveConfiguration {
    /// All values, in the order of the sections.
    pub settings: Vec<EffectiveSetting>,
    /// Probable mistakes without effect.
    pub warnings: Vec<String>,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingLevel {
    /// Good.
    Ok,
    /// Works, but needs attention.
    Warn,
    /// Does not work.
    Fail,
}

impl FindingLevel {
    /// Canonical spelling.
    pub fn word(self) -> &'static str {
        match self {
            FindingLevel::Ok => "ok",
            FindingLevel::Warn => "warn",
            FindingLevel::Fail => "fail",
        }
    }
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Severity.
    pub level: FindingLevel,
    /// Checked item.
    pub what: String,
    /// Observation.
    pub text: String,
    /// Advice.
    pub advice: Option<String>,
}

/// Result of a restore drill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrillReport {
    /// Version of the program that made the backup.
    pub version: String,
    /// Time of the backup.
    pub taken_at: tocsin_model::time::Timestamp,
    /// Size of the restored databases.
    pub bytes: u64,
    /// Restored applications.
    pub applications: u64,
    /// Restored subscribers.
    pub subscribers: u64,
    /// Restored subscriptions.
    pub subscriptions: u64,
    /// Examination of the restored databases.
    pub findings: Vec<Finding>,
}

/// The process that runs the service.
#[async_trait]
pub trait ServerHost: Send + Sync + 'static {
    /// The effective configuration, with secrets masked.
    fn configuration(&self) -> EffectiveConfiguration;
    /// Examines the machine and the data folder. Takes some seconds.
    async fn examine(&self) -> Vec<Finding>;
    /// Restores a backup into a temporary folder, examines and opens it, and removes it; without `backup` one is taken
    /// first. Takes as long as copying the data folder.
    ///
    /// # Errors
    /// Reason of the failure, for an operator.
    async fn drill(&self, backup: Option<PathBuf>) -> Result<DrillReport, String>;
    /// The newest lines of the log.
    fn log(&self) -> &ServerLog;
}
