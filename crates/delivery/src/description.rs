//! Description of a protocol: the row of the table of protocols, with all that the rest of the system asks about it.

use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};
use tocsin_connect::{
    Clock,
    files::Files,
    networks::Networks,
    options::{self, Options},
    secrets::SecretOptions,
};
use tocsin_model::{application::Channel, content::PartsUsed, id::Name, problem::Problem};

use crate::{
    channel::{Context, Opened},
    folders::Folders,
    http::call::Caller,
};

/// The row of a protocol. Every column is given for each protocol, so nothing about it is decided elsewhere.
#[derive(Debug)]
pub struct ProtocolDescription {
    /// Its name in definitions.
    pub name: &'static str,
    /// Its purpose, in one line.
    pub summary: &'static str,
    /// The JSON Schema of its options.
    pub schema: fn() -> Schema,
    /// The parts of a content that some options of it send.
    pub parts: PartsUsed,
    /// The resources of the server that it uses.
    pub needs: &'static [ChannelResource],
    /// Its options that hold secrets.
    pub secrets: SecretOptions,
    /// Whether the device's address is the receiving server itself, so that a failure counts against the device.
    pub is_endpoint: fn(&Map<String, Value>) -> bool,
    /// Use by send ports of exchanges, if they can use it.
    pub send_port: Option<SendPortDescription>,
    /// Every problem in some options, with paths that start with the given one.
    pub(crate) check: fn(&Map<String, Value>, &str) -> Vec<Problem>,
    /// Starts a channel.
    pub(crate) open: fn(&OpenRequest<'_>) -> Opened,
}

/// A resource of the server that a channel uses, within a policy of the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelResource {
    /// Connections to servers that its options name.
    NamedServers,
    /// Connections to addresses of subscribers or of its options, within the network policy.
    CheckedAddresses,
    /// Files that its options name for reading, within the file policy.
    ReadableFiles,
    /// A file that it writes, within the folder policy.
    WritableFiles,
    /// A program that it starts, within the program policy.
    Programs,
    /// The feeds of subscribers.
    Feeds,
}

impl ChannelResource {
    /// The resource, in one line.
    pub fn summary(self) -> &'static str {
        match self {
            ChannelResource::NamedServers => "connections to the servers in its options",
            ChannelResource::CheckedAddresses => "connections to addresses within the network policy",
            ChannelResource::ReadableFiles => "files that it reads, within `delivery.allow_files`",
            ChannelResource::WritableFiles => {
                "a file that it writes, within the data folder or `delivery.allow_folders`"
            }
            ChannelResource::Programs => "a program, within `delivery.allow_programs`",
            ChannelResource::Feeds => "the feeds of subscribers",
        }
    }
}

/// Use of a protocol by send ports of exchanges.
#[derive(Debug)]
pub struct SendPortDescription {
    /// The JSON Schema of the options of a port.
    pub schema: fn() -> Schema,
    pub(crate) open: OpenSendPort,
}

/// Opens a port: its options, the path of the options in the definition, and the resources that it may use.
type OpenSendPort = fn(&Map<String, Value>, &str, &SendPortAccess<'_>) -> Result<Caller, Vec<Problem>>;

/// Resources that a send port may use.
#[derive(Clone, Copy)]
pub struct SendPortAccess<'a> {
    /// Networks and hosts beyond the public ones.
    pub networks: &'a Networks,
    /// Files that options may name.
    pub files: &'a Files,
    /// Source of the current time.
    pub clock: &'a Arc<dyn Clock>,
}

/// A channel to open.
#[derive(Clone, Copy)]
pub(crate) struct OpenRequest<'a> {
    pub name: &'a Name,
    pub channel: &'a Channel,
    pub context: &'a Context,
    /// Folders outside the data folder that the channel may write to.
    pub folders: &'a Folders,
}

/// The column `schema` for options of this type.
pub(crate) fn schema_of<T: JsonSchema>() -> Schema {
    schemars::schema_for!(T)
}

/// The column `check` for options of this type.
pub(crate) fn check_of<T: Options>(given: &Map<String, Value>, path: &str) -> Vec<Problem> {
    options::read::<T>(given, path).err().unwrap_or_default()
}

/// The column `is_endpoint` of a protocol whose devices are behind a server of the channel.
pub(crate) fn behind_a_server(_: &Map<String, Value>) -> bool {
    false
}
