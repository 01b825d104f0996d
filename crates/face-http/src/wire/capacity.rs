//! Capacity plans, cost vectors, published examples, derived profiles.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tocsin_capacity::{
    Vectors,
    papers::{PAPERS, Statement},
    profile::Node,
    what_if::{Sensitivity, SweepResult},
};
use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_service::{
    ServiceError,
    capacity::{ComputedPlan, PlanRequest, RecordedProfile},
};
use tocsin_store::records::CapacityProfile;
use utoipa::ToSchema;

/// A plan to compute.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CapacityPlanRequest)]
pub(crate) struct PlanRequestBody {
    /// The load profile: YAML as text, or an object; default: that of `paper`.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    profile: Option<Json>,
    /// Name of a published example; `/v1/capacity/papers` lists them.
    #[serde(default)]
    paper: Option<String>,
    /// Costs as `tocsin bench vectors` measures them: YAML or JSON as text, or an object; default: those of `paper`, or
    /// the configured ones.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    vectors: Option<Json>,
    /// Other values of assumptions, such as `events.quotes.rate=1x,2x,4x`; at most 10 with 100 values in all.
    #[serde(default)]
    what_if: Vec<String>,
    /// Whether the sensitivity to each assumption is computed; default: yes.
    #[serde(default)]
    sensitivities: Option<bool>,
}

/// The text of a document: a text, or an object as JSON, which is YAML.
fn document(path: &str, value: Option<Json>) -> Result<Option<String>, ServiceError> {
    match value {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => Ok(Some(text)),
        Some(object @ Json::Object(_)) => Ok(Some(object.to_string())),
        Some(_) => {
            Err(Problem::new(Code::WrongType, path, "should be a text or an object").param("expected", "object").into())
        }
    }
}

impl TryFrom<PlanRequestBody> for PlanRequest {
    type Error = ServiceError;

    fn try_from(body: PlanRequestBody) -> Result<Self, ServiceError> {
        Ok(PlanRequest {
            profile: document("profile", body.profile)?,
            paper: body.paper,
            vectors: document("vectors", body.vectors)?,
            what_if: body.what_if,
            sensitivities: body.sensitivities.unwrap_or(true),
        })
    }
}

/// A computed plan, as `tocsin capacity --format json` prints it.
#[derive(Serialize, ToSchema)]
#[schema(as = CapacityPlan)]
pub(crate) struct PlanBody {
    /// The plan: nodes, bottlenecks, use of resources, channels, memory, disk, and the day with its curves.
    #[schema(value_type = serde_json::Value)]
    plan: Json,
    /// Sensitivity to each assumption, the most influential first.
    sensitivities: Vec<SensitivityBody>,
    /// Plans with other values of assumptions.
    what_if: Vec<SweepBody>,
    /// Statements of the published example.
    statements: Vec<StatementBody>,
    /// Assumptions that can be varied.
    assumptions: Vec<AssumptionBody>,
}

/// Sensitivity of the plan to an assumption.
#[derive(Serialize, ToSchema)]
#[schema(as = CapacitySensitivity)]
struct SensitivityBody {
    name: String,
    /// Its value; 1 for a cost.
    value: f64,
    /// Percent by which the load of the bottleneck changes for a change of one percent.
    elasticity: f64,
}

/// A plan with another value of an assumption.
#[derive(Serialize, ToSchema)]
#[schema(as = CapacityWhatIf)]
struct SweepBody {
    name: String,
    value: f64,
    #[schema(value_type = serde_json::Value)]
    plan: Json,
}

/// A published statement, compared with the computed result.
#[derive(Serialize, ToSchema)]
#[schema(as = CapacityStatement)]
struct StatementBody {
    said: String,
    computed: String,
    /// `holds`, `holds_if` or `contradicts`.
    #[schema(value_type = String)]
    verdict: Json,
}

/// An assumption with its value.
#[derive(Serialize, ToSchema)]
#[schema(as = CapacityAssumption)]
struct AssumptionBody {
    name: String,
    value: f64,
}

fn json_of(value: &impl Serialize) -> Json {
    serde_json::to_value(value).expect("a plan is JSON")
}

impl From<ComputedPlan> for PlanBody {
    fn from(computed: ComputedPlan) -> Self {
        let sensitivity =
            |Sensitivity { name, value, elasticity }: Sensitivity| SensitivityBody { name, value, elasticity };
        let variation =
            |result: SweepResult| SweepBody { plan: json_of(&result.plan), name: result.name, value: result.value };
        let statement = |statement: Statement| StatementBody {
            said: statement.said.to_owned(),
            computed: statement.computed,
            verdict: json_of(&statement.verdict),
        };
        PlanBody {
            plan: json_of(&computed.plan),
            sensitivities: computed.sensitivities.into_iter().map(sensitivity).collect(),
            what_if: computed.what_if.into_iter().map(variation).collect(),
            statements: computed.statements.into_iter().map(statement).collect(),
            assumptions: computed.assumptions.into_iter().map(|(name, value)| AssumptionBody { name, value }).collect(),
        }
    }
}

/// The configured costs of this machine.
#[derive(Serialize, ToSchema)]
#[schema(as = CapacityVectors)]
pub(crate) struct VectorsBody {
    /// Whether `capacity.vectors` is configured.
    configured: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    vectors: Option<VectorsSummaryBody>,
}

/// Measured costs.
#[derive(Serialize, ToSchema)]
#[schema(as = CapacityVectorsSummary)]
struct VectorsSummaryBody {
    name: String,
    /// Version of the measured software.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Date and method of the measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<String>,
    machine: MachineBody,
    /// Memory of an idle node, in megabytes.
    base_memory_mb: f64,
    /// The operations, by name.
    operations: Vec<OperationBody>,
    /// Sizes of stored objects, by name.
    stored: BTreeMap<String, StoredBody>,
}

/// The machine of the measurement; unknown resources are absent.
#[derive(Serialize, ToSchema)]
#[schema(as = CapacityMachine)]
struct MachineBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    cores: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_mb_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    syncs_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wire_mb_per_second: Option<f64>,
}

/// A measured operation.
#[derive(Serialize, ToSchema)]
#[schema(as = CapacityOperation)]
struct OperationBody {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    about: Option<String>,
    /// The roles in which it costs something.
    roles: Vec<String>,
    /// Smallest and largest measured size, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<[f64; 2]>,
    /// Smallest and largest measured batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<[f64; 2]>,
    /// Highest rate per second before the cost per operation rose.
    #[serde(skip_serializing_if = "Option::is_none")]
    knee_per_second: Option<f64>,
}

/// Size of a stored object.
#[derive(Serialize, ToSchema)]
#[schema(as = CapacityStored)]
struct StoredBody {
    memory_bytes: f64,
    disk_bytes: f64,
}

impl From<Option<Vectors>> for VectorsBody {
    fn from(vectors: Option<Vectors>) -> Self {
        VectorsBody { configured: vectors.is_some(), vectors: vectors.map(VectorsSummaryBody::from) }
    }
}

impl From<Vectors> for VectorsSummaryBody {
    fn from(vectors: Vectors) -> Self {
        let Node { cores, memory_mb, disk_mb_per_second, syncs_per_second, wire_mb_per_second, .. } = vectors.machine;
        let pair = |range: Option<(f64, f64)>| range.map(|(least, most)| [least, most]);
        let operation = |(name, found): (String, tocsin_capacity::vectors::Operation)| OperationBody {
            name,
            about: found.about,
            roles: found.roles.into_keys().collect(),
            bytes: pair(found.bytes),
            batch: pair(found.batch),
            knee_per_second: found.knee,
        };
        let stored = vectors
            .stored
            .into_iter()
            .map(|(name, size)| (name, StoredBody { memory_bytes: size.memory_bytes, disk_bytes: size.disk_bytes }));
        VectorsSummaryBody {
            name: vectors.name,
            version: vectors.version,
            measured: vectors.measured,
            machine: MachineBody { cores, memory_mb, disk_mb_per_second, syncs_per_second, wire_mb_per_second },
            base_memory_mb: vectors.base_memory_mb,
            operations: vectors.operations.into_iter().map(operation).collect(),
            stored: stored.collect(),
        }
    }
}

/// A published sizing example.
#[derive(Serialize, ToSchema)]
#[schema(as = CapacityPaper)]
pub(crate) struct PaperBody {
    name: &'static str,
    /// The question that it answers.
    about: &'static str,
    /// The profile, as YAML.
    profile: &'static str,
    /// The published costs, as YAML.
    vectors: &'static str,
}

/// All published examples.
pub(crate) fn papers() -> Vec<PaperBody> {
    let body = |paper: &tocsin_capacity::papers::Paper| PaperBody {
        name: paper.name,
        about: paper.about,
        profile: paper.profile,
        vectors: paper.vectors,
    };
    PAPERS.iter().map(body).collect()
}

/// A profile derived from recorded activity.
#[derive(Serialize, ToSchema)]
#[schema(as = CapacityRecordedProfile)]
pub(crate) struct RecordedProfileBody {
    /// The profile, as YAML.
    profile: String,
    /// Start of the recorded time.
    #[schema(value_type = String, format = DateTime)]
    from: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    to: Timestamp,
    events: u64,
    notifications: u64,
    /// Data that the record does not contain, with the assumption instead.
    notes: Vec<String>,
}

impl From<RecordedProfile> for RecordedProfileBody {
    fn from(recorded: RecordedProfile) -> Self {
        let RecordedProfile { derived, from, to, events, notifications } = recorded;
        RecordedProfileBody { profile: derived.yaml, notes: derived.notes, from, to, events, notifications }
    }
}

/// A profile to save.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewCapacityProfile)]
pub(crate) struct NewProfileBody {
    /// The profile, as YAML.
    pub(crate) profile: String,
}

/// A saved profile.
#[derive(Serialize, ToSchema)]
#[schema(as = CapacityProfile)]
pub(crate) struct ProfileBody {
    #[schema(value_type = String)]
    name: Name,
    /// The profile, as YAML; absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    /// Id of the caller that saved it.
    author: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    revision: u64,
}

impl ProfileBody {
    pub(crate) fn listed(profile: CapacityProfile) -> ProfileBody {
        ProfileBody { profile: None, ..profile.into() }
    }
}

impl From<CapacityProfile> for ProfileBody {
    fn from(profile: CapacityProfile) -> Self {
        let CapacityProfile { name, text, author, created_at, updated_at, revision } = profile;
        ProfileBody { name, profile: Some(text), author, created_at, updated_at, revision }
    }
}
