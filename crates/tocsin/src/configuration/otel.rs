//! Maps [OpenTelemetry] environment variables to configuration keys, so that several programs can share one setting.
//!
//! [OpenTelemetry]: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/

/// Value of a key with the variable that sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OtelSetting {
    pub key: &'static str,
    pub text: String,
    pub variable: &'static str,
    /// Whether the configuration file overrides it.
    pub is_weak: bool,
}

/// Variables that map to one key, unchanged or as milliseconds. Later entries override earlier ones, as variables for
/// traces override those for all signals.
static PLAIN: [(&str, &str, bool); 14] = [
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "telemetry.endpoint", false),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "telemetry.traces_endpoint", false),
    ("OTEL_EXPORTER_OTLP_HEADERS", "telemetry.headers", false),
    ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "telemetry.headers", false),
    ("OTEL_EXPORTER_OTLP_TIMEOUT", "telemetry.timeout", true),
    ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "telemetry.timeout", true),
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", "telemetry.ca_file", false),
    ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "telemetry.ca_file", false),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", "telemetry.compression", false),
    ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "telemetry.compression", false),
    ("OTEL_RESOURCE_ATTRIBUTES", "telemetry.resource_attributes", false),
    ("OTEL_SERVICE_NAME", "telemetry.service_name", false),
    ("OTEL_BSP_SCHEDULE_DELAY", "telemetry.delay", true),
    ("OTEL_BSP_MAX_QUEUE_SIZE", "telemetry.queue_spans", false),
];
/// Default endpoint of a collector.
const COLLECTOR: &str = "http://localhost:4318";

/// Reads the variables. Unsupported values are warnings, as the specification requires.
pub(super) fn read(variables: &[(String, String)], warnings: &mut Vec<String>) -> Vec<OtelSetting> {
    // An empty variable counts as unset.
    let find = |name: &str| {
        let found = variables.iter().find(|(known, _)| known == name).map(|(_, text)| text.trim());
        found.filter(|text| !text.is_empty())
    };
    let mut said = Vec::new();
    let mut say = |key, text: &str, variable, is_weak| {
        said.push(OtelSetting { key, text: text.to_owned(), variable, is_weak });
    };
    let exporters = find("OTEL_TRACES_EXPORTER").map(|text| text.split(',').map(str::trim).collect::<Vec<_>>());
    if exporters.as_ref().is_some_and(|known| known.contains(&"otlp")) {
        say("telemetry.endpoint", COLLECTOR, "OTEL_TRACES_EXPORTER", true);
    }
    for (variable, key, is_milliseconds) in PLAIN {
        match find(variable) {
            Some(text) if is_milliseconds && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                say(key, &format!("{text}ms"), variable, false);
            }
            Some(text) => say(key, text, variable, false),
            None => {}
        }
    }
    for variable in ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] {
        match find(variable) {
            Some(text @ ("http/protobuf" | "http/json")) => say("telemetry.protocol", text, variable, false),
            Some(text) => warnings.push(format!(
                "{variable}: `{text}` is not supported; use `http/protobuf` or `http/json`, usually at port 4318"
            )),
            None => {}
        }
    }
    if let Some(sampler) = find("OTEL_TRACES_SAMPLER") {
        let ratio = || find("OTEL_TRACES_SAMPLER_ARG").unwrap_or("1");
        let ratio = match sampler {
            "parentbased_always_on" | "always_on" => Some("1"),
            "parentbased_always_off" | "always_off" => Some("0"),
            "parentbased_traceidratio" | "traceidratio" => Some(ratio()),
            _ => None,
        };
        match ratio {
            Some(ratio) => say("telemetry.sample_ratio", ratio, "OTEL_TRACES_SAMPLER", false),
            None => warnings.push(format!("OTEL_TRACES_SAMPLER: `{sampler}` is not a supported sampler")),
        }
        if matches!(sampler, "always_on" | "traceidratio") {
            warnings.push(format!(
                "OTEL_TRACES_SAMPLER: `{sampler}` is treated as `parentbased_{sampler}`: the caller's sampling decision applies"
            ));
        }
        if sampler == "always_off" {
            say("telemetry.endpoint", "", "OTEL_TRACES_SAMPLER", false);
            say("telemetry.traces_endpoint", "", "OTEL_TRACES_SAMPLER", false);
        }
    }
    let is_off = find("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"));
    let is_elsewhere = exporters.is_some_and(|known| !known.contains(&"otlp"));
    for (variable, is_none) in [("OTEL_SDK_DISABLED", is_off), ("OTEL_TRACES_EXPORTER", is_elsewhere)] {
        if is_none {
            say("telemetry.endpoint", "", variable, false);
            say("telemetry.traces_endpoint", "", variable, false);
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(variables: &[(&str, &str)], expected: Expect) {
        let variables: Vec<_> = variables.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
        let mut warnings = Vec::new();
        let said = read(&variables, &mut warnings);
        let lines = said.iter().map(|one| {
            let weak = if one.is_weak { ", weak" } else { "" };
            format!("{} = {} ({}{weak})", one.key, one.text, one.variable)
        });
        expected.assert_eq(&lines.chain(warnings).collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn each_variable_sets_a_key() {
        check(
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "a=1"),
                ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=2"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
                ("OTEL_SERVICE_NAME", "bells"),
                ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test"),
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
                ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""),
                ("OTEL_LOG_LEVEL", "debug"),
            ],
            expect![[r#"
                telemetry.endpoint = http://otel:4318 (OTEL_EXPORTER_OTLP_ENDPOINT)
                telemetry.headers = a=1 (OTEL_EXPORTER_OTLP_HEADERS)
                telemetry.headers = a=2 (OTEL_EXPORTER_OTLP_TRACES_HEADERS)
                telemetry.timeout = 2500ms (OTEL_EXPORTER_OTLP_TIMEOUT)
                telemetry.resource_attributes = deployment.environment=test (OTEL_RESOURCE_ATTRIBUTES)
                telemetry.service_name = bells (OTEL_SERVICE_NAME)
                telemetry.protocol = http/protobuf (OTEL_EXPORTER_OTLP_PROTOCOL)
                telemetry.sample_ratio = 0.25 (OTEL_TRACES_SAMPLER)"#]],
        );
    }

    #[test]
    fn unsupported_values_are_warnings() {
        check(
            &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_TRACES_SAMPLER", "jaeger_remote")],
            expect![[r#"
                OTEL_EXPORTER_OTLP_PROTOCOL: `grpc` is not supported; use `http/protobuf` or `http/json`, usually at port 4318
                OTEL_TRACES_SAMPLER: `jaeger_remote` is not a supported sampler"#]],
        );
        check(
            &[("OTEL_TRACES_SAMPLER", "always_on")],
            expect![[r#"
                telemetry.sample_ratio = 1 (OTEL_TRACES_SAMPLER)
                OTEL_TRACES_SAMPLER: `always_on` is treated as `parentbased_always_on`: the caller's sampling decision applies"#]],
        );
    }

    #[test]
    fn traces_are_disabled_and_enabled() {
        check(
            &[("OTEL_TRACES_EXPORTER", "otlp")],
            expect!["telemetry.endpoint = http://localhost:4318 (OTEL_TRACES_EXPORTER, weak)"],
        );
        let off = expect![[r#"
            telemetry.endpoint = http://otel:4318 (OTEL_EXPORTER_OTLP_ENDPOINT)
            telemetry.endpoint =  (OTEL_TRACES_EXPORTER)
            telemetry.traces_endpoint =  (OTEL_TRACES_EXPORTER)"#]];
        check(&[("OTEL_TRACES_EXPORTER", "none"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318")], off);
        check(
            &[("OTEL_SDK_DISABLED", "TRUE")],
            expect![[r#"
                telemetry.endpoint =  (OTEL_SDK_DISABLED)
                telemetry.traces_endpoint =  (OTEL_SDK_DISABLED)"#]],
        );
        check(&[("OTEL_SDK_DISABLED", "1")], expect![""]);
    }
}
