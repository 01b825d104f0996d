//! The process as the service sees it for maintenance: effective configuration, examination, restore drill, log.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use tocsin_service::{
    server_host::{DrillReport, EffectiveConfiguration, EffectiveSetting, Finding, FindingLevel, ServerHost},
    server_log::ServerLog,
};

use crate::{
    commands::{
        backup,
        doctor::{self, Level},
    },
    configuration::{MergedConfiguration, Source},
    logging,
};

/// This process, with the configuration it runs with.
pub struct Host(MergedConfiguration);

impl Host {
    /// The host of a server with this configuration.
    pub fn shared(configuration: MergedConfiguration) -> Arc<dyn ServerHost> {
        Arc::new(Host(configuration))
    }
}

fn finding(found: doctor::Finding) -> Finding {
    let level = match found.level {
        Level::Ok => FindingLevel::Ok,
        Level::Warn => FindingLevel::Warn,
        Level::Fail => FindingLevel::Fail,
    };
    Finding { level, what: found.what, text: found.text, advice: found.advice }
}

#[async_trait]
impl ServerHost for Host {
    fn configuration(&self) -> EffectiveConfiguration {
        let settings = self.0.shown().map(|(key, value, source)| EffectiveSetting {
            key: key.path.clone(),
            value,
            source: source.to_string(),
            is_default: *source == Source::Default,
            secret: key.secret,
            kind: key.kind.to_owned(),
            description: key.doc.clone(),
        });
        EffectiveConfiguration { settings: settings.collect(), warnings: self.0.warnings.clone() }
    }

    async fn examine(&self) -> Vec<Finding> {
        let examined = doctor::examine(&self.0).await;
        let failed = |error: crate::failure::Failure| doctor::Finding {
            level: Level::Fail,
            what: "examination".to_owned(),
            text: error.to_string(),
            advice: None,
        };
        examined.unwrap_or_else(|error| vec![failed(error)]).into_iter().map(finding).collect()
    }

    async fn drill(&self, from: Option<PathBuf>) -> Result<DrillReport, String> {
        let drilled = backup::run_drill(from, self.0.configuration.clone()).await;
        let drilled = drilled.map_err(|error| error.to_string().replace("\n  ", "; "))?;
        Ok(DrillReport {
            bytes: drilled.manifest.files.iter().map(|file| file.bytes).sum(),
            version: drilled.manifest.version,
            taken_at: drilled.manifest.taken_at,
            applications: drilled.applications,
            subscribers: drilled.counts.subscribers,
            subscriptions: drilled.counts.subscriptions,
            findings: drilled.findings.into_iter().map(finding).collect(),
        })
    }

    fn log(&self) -> &ServerLog {
        logging::server_log()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::{Configuration, Secret};

    #[test]
    fn the_configuration_is_shown_with_sources_and_without_secrets() {
        let mut configuration = Configuration::default();
        configuration.http.listen = "127.0.0.1:7".parse().expect("an address");
        configuration.telemetry.headers = Secret("authorization=abc".to_owned());
        let shown = Host(configuration.into()).configuration();
        let of = |key: &str| shown.settings.iter().find(|setting| setting.key == key).expect("a key").clone();
        let listen = of("http.listen");
        assert_eq!((listen.value, listen.is_default), ("127.0.0.1:7".into(), false));
        assert!(of("http.body_memory_max").is_default && !of("http.listen").description.is_empty());
        let headers = of("telemetry.headers");
        assert_eq!((headers.value, headers.secret), ("********".into(), true));
    }
}
