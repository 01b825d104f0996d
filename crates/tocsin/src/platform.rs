//! Server wiring: opens the stores, starts the pipeline and the faces, and stops them in reverse order.

use std::{
    borrow::Cow,
    fs,
    io::Read,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

mod feedback; // return addresses, and the server that accepts mail to them
mod ldap; // directory and its LDAP face
mod listeners; // options that listeners share
mod memory; // memory use and limit of the process
mod notifybc; // NotifyBC interface
mod openid; // logins through an OpenID provider
mod receivers; // receivers of webhooks
mod sync; // replicated rows of devices

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::Serialize;
use tocsin_connect::{
    SystemClock,
    files::{Files, read_regular},
    networks::{NetworkError, Networks},
    programs::Programs,
};
use tocsin_delivery::Context;
use tocsin_directory::Directory;
use tocsin_exchange::{Exchanges, groups::WorkerLimits, intake::IntakeState};
use tocsin_face_http::{HostedPages, HttpOptions, RateLimit};
use tocsin_mail_in::Server;
use tocsin_model::{
    charset::{self, Syntax},
    definition, folder,
    hours::Hours,
    pages::Branding,
    problem::Problem,
    suppression::{Cause, Policy, SOFT_BOUNCES_MAX},
};
use tocsin_pipeline::{
    Folders, Listeners, Pipeline, PipelineOptions, SourceContext, Spans, resource_policy::ResourcePolicy,
};
use tocsin_service::{
    FreeSpace, Service, audit::AuditLog, consent::ConsentKey, server_host::ServerHost, switches::intake,
};
use tocsin_store::{
    audit::AuditTrail,
    error::StoreError,
    inbox::Inbox,
    journal::{Journal, JournalOptions},
    keyring::Keyring,
    records::Records,
    sqlite::{
        backup::UNFINISHED,
        inbox::{InboxOptions, SqliteInbox},
        journal::SqliteJournal,
        records::{RecordsOptions, SqliteRecords},
        spool::{SpoolOptions, SqliteSpool},
        tracking::{SqliteTracking, TrackingOptions},
    },
};
use tokio::{
    net::TcpListener,
    sync::Mutex,
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

use self::{listeners::connection_options, notifybc::RunningNotifybc};
use crate::{
    configuration::{self, Configuration, Passable, Period},
    failure::{Failure, Outcome, read_text_file},
    first_key,
    local_change::now,
    metrics, saturation,
    telemetry::{self, Exporter},
};

/// Lock that keeps a second server out of a data folder. Released on drop.
#[derive(Debug)]
pub struct FolderLock(#[expect(dead_code, reason = "the open file is the lock")] fs::File);

/// Server that runs in this process.
pub struct RunningServer {
    /// Address of the HTTP face.
    pub address: SocketAddr,
    /// Address of the server for feedback by mail, if there is one.
    pub feedback_address: Option<SocketAddr>,
    /// Data folder.
    pub data_folder: PathBuf,
    /// First admin key, if this start created it.
    pub first_key: Option<String>,
    /// URL of the server for browsers; `None`: it serves no web console.
    console_url: Option<String>,
    service: Arc<Service>,
    feedback: Mutex<Option<Server>>,
    pipeline: Arc<Pipeline>,
    exchanges: Arc<Exchanges>,
    face: Mutex<JoinHandle<std::io::Result<()>>>,
    ldap_face: Mutex<Option<JoinHandle<()>>>,
    notifybc: Mutex<Option<RunningNotifybc>>,
    raising: Mutex<JoinHandle<()>>,
    stopping: CancellationToken,
    exporter: Mutex<Option<Exporter>>,
    /// Tasks that end when the server stops.
    background: Mutex<JoinSet<()>>,
    // Last field: the stores are closed before another server can open them.
    _lock: FolderLock,
}

/// Creates the data folder if needed, and locks it.
///
/// # Errors
/// If it cannot be created, or another process holds the lock.
pub fn lock_folder(folder: &Path) -> Outcome<FolderLock> {
    folder::make(folder, 0o700).map_err(|error| Failure::file("create the data folder", folder, &error))?;
    let path = folder.join("lock");
    let failed = |error: std::io::Error| Failure::file("lock the data folder with", &path, &error);
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(failed)?;
    match file.try_lock() {
        // Only the holder of the lock changes the modes.
        Ok(()) => keep_private(folder).map(|()| FolderLock(file)),
        Err(fs::TryLockError::WouldBlock) => Err(Failure::failed(format!(
            "another Tocsin uses {}; stop it first, or specify another folder with --data",
            folder.display()
        ))),
        Err(fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Removes the permissions of group and others from the data folder and its files, which hold keys, addresses and
/// contents. An administrator may have copied them with other modes; what the server creates has no such permissions.
///
/// # Errors
/// The modes cannot be changed: another user owns the folder or a file.
fn keep_private(folder: &Path) -> Outcome {
    let close = |path: &Path, what: &str| -> Outcome {
        let failed = |error: std::io::Error| Failure::file(&format!("restrict the access to {what}"), path, &error);
        let mode = fs::symlink_metadata(path).map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o700)).map_err(failed)?;
            tracing::warn!(path = %path.display(), "permissions of group and others removed from {what}");
        }
        Ok(())
    };
    close(folder, "the data folder")?;
    let failed = |error: std::io::Error| Failure::file("read the data folder", folder, &error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_file() {
            close(&entry.path(), "a file of the data folder")?;
        }
    }
    Ok(())
}

/// Result of checking a definition without a server.
#[derive(Debug, Default, Serialize)]
pub struct CheckedDefinition {
    /// Name of the application, if it could be read.
    pub name: Option<String>,
    /// Problems.
    pub problems: Vec<Problem>,
    /// Warnings: valid, but possibly more expensive than intended.
    pub warnings: Vec<Problem>,
    /// Explanation of each rule's index use.
    pub rules: Vec<String>,
}

/// Maximum size in bytes of a template, stylesheet or schema referenced by a definition.
const NAMED_BYTES_MAX: u64 = 16 << 20;

/// Reads a definition with the files that it references.
///
/// # Errors
/// If the definition file cannot be read. The inner result has problems of the referenced files.
pub fn read_definition(file: &Path) -> Outcome<Result<String, Vec<Problem>>> {
    let text = read_definition_text(file)?;
    Ok(inline_definition(&text, &loader(file)))
}

/// Reads files that a definition references.
fn loader(file: &Path) -> impl Fn(&str) -> Result<String, String> {
    let folder = file.parent().unwrap_or(Path::new("")).to_owned();
    move |path| read_below(&folder, path).map_err(|error| format!("cannot read {path}: {error}"))
}

/// Reads a definition as it was written, within the bound of its length, in UTF-8 or, with a byte-order mark, in
/// UTF-16.
///
/// # Errors
/// The file cannot be read, is too long, or is in another encoding.
pub fn read_definition_text(file: &Path) -> Outcome<String> {
    const BYTES_MAX: usize = 2 * definition::TEXT_BYTES_MAX + 2;
    let mut bytes = Vec::new();
    let read = fs::File::open(file).and_then(|opened| opened.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| Failure::file("read the definition", file, &error))?;
    let shown = file.display();
    if bytes.len() > BYTES_MAX {
        let most = definition::TEXT_BYTES_MAX;
        return Err(Failure::failed(format!("the definition {shown} is too long; at most {most} bytes are read")));
    }
    let text = charset::decode(&bytes, Syntax::Text, None);
    let text = text.map_err(|error| Failure::failed(format!("cannot read the definition {shown}: {error}")))?;
    Ok(text.into_owned())
}

/// Reads a text file below a folder. A symbolic link must not lead out of it: a definition from elsewhere would
/// otherwise send any file of the user to the server.
fn read_below(folder: &Path, path: &str) -> Result<String, String> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let (file, resolved) = (folder.join(path), |path: &Path| path.canonicalize().map_err(|error| error.to_string()));
    if !resolved(&file)?.starts_with(resolved(folder)?) {
        return Err("it is a symbolic link that leads out of the definition's folder".to_owned());
    }
    read_text(&file)
}

/// Reads a referenced text file: stylesheets can declare their encoding, and any text can begin with a byte-order mark.
fn read_text(path: &Path) -> Result<String, String> {
    let bytes = read_regular(path, NAMED_BYTES_MAX)?;
    let is_xml = path.extension().is_some_and(|ending| ending == "xsl" || ending == "xslt" || ending == "xml");
    let syntax = if is_xml { Syntax::Xml } else { Syntax::Text };
    charset::decode(&bytes, syntax, None).map(Cow::into_owned).map_err(|error| error.to_string())
}

/// Replaces file references of a definition by the texts of the files.
///
/// # Errors
/// Files that `load` cannot read, with its message.
pub fn inline_definition(text: &str, load: &dyn Fn(&str) -> Result<String, String>) -> Result<String, Vec<Problem>> {
    definition::inline_files(text, load)
}

/// Checks a definition: text, files, rules, templates, and whether the configuration permits the resources of its
/// sources.
///
/// # Errors
/// If the file cannot be read.
pub fn examine(
    file: &Path,
    environment: &dyn Fn(&str) -> Option<String>,
    configuration: &Configuration,
) -> Outcome<CheckedDefinition> {
    let opened = SourceContext {
        clock: Arc::new(SystemClock),
        data_folder: configuration.data.folder.clone(),
        networks: networks(configuration)?,
        programs: Programs { allow: configuration.delivery.allow_programs.clone() },
        files: files(configuration),
        folders: Folders { allow: configuration.sources.allow_folders.clone() },
        listeners: Listeners { allow: configuration.sources.allow_listen.clone() },
    };
    let policy = ResourcePolicy {
        data_folder: opened.data_folder.clone(),
        folders: tocsin_delivery::folders::Folders { allow: configuration.delivery.allow_folders.clone() },
        files: opened.files.clone(),
        programs: opened.programs.clone(),
    };
    let text = read_definition_text(file)?;
    let inlined = definition::inline_readable_files(&text, &loader(file));
    let checked = inlined.and_then(|(text, found)| {
        let compiled = tocsin_pipeline::check_text(&text, 0, environment, &found)?;
        let mut warnings = compiled.warnings();
        let now = std::time::SystemTime::now().into();
        warnings.extend(tocsin_service::schedules::schedule_warnings(&compiled.application, now));
        warnings.extend(tocsin_pipeline::closed_sources(&compiled, &opened));
        warnings.extend(policy.not_allowed(&compiled.application, |_, _| true));
        Ok((compiled, definition::locate(&text, warnings)))
    });
    Ok(match checked {
        Ok((compiled, warnings)) => CheckedDefinition {
            name: Some(compiled.application.name.to_string()),
            problems: Vec::new(),
            warnings,
            rules: compiled.explain().iter().map(ToString::to_string).collect(),
        },
        Err(problems) => CheckedDefinition { problems, ..CheckedDefinition::default() },
    })
}

/// Opens the records of an installation.
///
/// # Errors
/// If the store does not open.
pub async fn open_records(configuration: &Configuration) -> Outcome<Arc<SqliteRecords>> {
    let folder = configuration.data.folder.clone();
    let options = RecordsOptions {
        keys: keyring(configuration)?,
        reserve_bytes: configuration.records.disk_reserve.0,
        readers: configuration.records.readers.max(1) as usize,
        ..RecordsOptions::default()
    };
    let opening = tokio::task::spawn_blocking(move || SqliteRecords::open(&folder, &options)).await;
    let opened =
        opening.map_err(|error| Failure::failed("the task that opens the records panicked").because(&error))?;
    Ok(Arc::new(opened.map_err(|error| store_failure("records", &error))?))
}

/// Opens the directory of an installation, with complete indexes.
///
/// # Errors
/// If the configuration is invalid, or the store does not open.
pub async fn open_directory(configuration: &Configuration) -> Outcome<Directory> {
    let records = open_records(configuration).await?;
    let channels = ldap::CurrentMailChannels::stored(&*records).await?;
    let directory = ldap::open(configuration, records, channels).await?;
    let built = directory.build_indexes().await;
    built.map_err(|refusal| Failure::failed("the indexes of the directory cannot be built").because(&refusal))?;
    Ok(directory)
}

/// Files that definitions may reference.
fn files(configuration: &Configuration) -> Files {
    Files::new(configuration.delivery.allow_files.clone(), configuration.data.folder.clone())
}

/// Keys that encrypt secrets at rest.
fn keyring(configuration: &Configuration) -> Outcome<Keyring> {
    let records = &configuration.records;
    let text = match (records.keys.0.is_empty(), records.keys_file.as_str()) {
        (false, _) => records.keys.0.clone(),
        (true, "") => return Ok(Keyring::default()),
        (true, file) => read_text_file("read `records.keys_file`", Path::new(file))?,
    };
    Keyring::read(&text).map_err(|error| Failure::usage(format!("records.keys is invalid: {error}")))
}

async fn open_journal(configuration: &Configuration) -> Outcome<Arc<SqliteJournal>> {
    let Configuration { data, journal, .. } = configuration;
    let options = JournalOptions {
        event_batches_waiting_max: journal.waiting_batches_max,
        event_bytes_waiting_max: journal.waiting_bytes_max.0,
        notifications_waiting_max: journal.waiting_notifications_max,
        free_bytes_min: journal.disk_reserve.0,
    };
    let opened = SqliteJournal::open(data.folder.join("journal.db"), options).await;
    Ok(Arc::new(opened.map_err(|error| store_failure("journal", &error))?))
}

async fn open_inbox(configuration: &Configuration) -> Outcome<Arc<SqliteInbox>> {
    let folder = configuration.data.folder.clone();
    let options = InboxOptions {
        reserve_bytes: configuration.inbox.disk_reserve.0,
        readers: configuration.inbox.readers.max(1) as usize,
    };
    let opening = tokio::task::spawn_blocking(move || SqliteInbox::open(&folder, &options)).await;
    let opened = opening.map_err(|error| Failure::failed("the task that opens the inbox panicked").because(&error))?;
    Ok(Arc::new(opened.map_err(|error| store_failure("inbox", &error))?))
}

async fn open_exchanges(
    configuration: &Configuration,
    spans: Spans,
    intake: IntakeState,
) -> Outcome<(Arc<Exchanges>, Vec<Arc<dyn AuditTrail>>)> {
    let folder = configuration.data.folder.clone();
    let options = SpoolOptions {
        reserve_bytes: configuration.spool.disk_reserve.0,
        readers: configuration.spool.readers.max(1) as usize,
        partitions: configuration.spool.partitions,
        keys: keyring(configuration)?,
    };
    let tracking = TrackingOptions {
        reserve_bytes: configuration.spool.disk_reserve.0,
        bytes_max: configuration.spool.tracking_max.0,
    };
    let opening = tokio::task::spawn_blocking(move || {
        (SqliteSpool::open(&folder, &options), SqliteTracking::open(&folder, &tracking))
    });
    let opened =
        opening.await.map_err(|error| Failure::failed("the task that opens the spool panicked").because(&error))?;
    let spool = Arc::new(opened.0.map_err(|error| store_failure("spool", &error))?);
    let mut trails = spool.audit_trails();
    let tracking = Arc::new(opened.1.map_err(|error| store_failure("tracking", &error))?);
    trails.push(tracking.clone());
    let parts = tocsin_exchange::ExchangeDependencies {
        spool,
        tracking,
        clock: Arc::new(SystemClock),
        networks: networks(configuration)?,
        programs: Programs { allow: configuration.delivery.allow_programs.clone() },
        files: files(configuration),
        environment: Arc::new(|name| std::env::var(name).ok()),
        memory: memory::of_process(configuration.spool.memory_max.0),
        data_folder: configuration.data.folder.clone(),
        folders: Folders { allow: configuration.sources.allow_folders.clone() },
        listeners: Listeners { allow: configuration.sources.allow_listen.clone() },
        workers: WorkerLimits {
            receive: configuration.spool.receive_workers as usize,
            route: configuration.spool.route_workers as usize,
            send: configuration.spool.send_workers as usize,
        },
        spans,
        intake,
    };
    let exchanges = Exchanges::start(parts).await;
    let exchanges = exchanges.map_err(|error| Failure::failed("cannot start the exchanges").because(&error))?;
    Ok((exchanges, trails))
}

fn store_failure(what: &str, error: &StoreError) -> Failure {
    let advice = match error {
        StoreError::Full(_) => "free space on the disk of the data folder",
        StoreError::Damaged(_) => {
            "the file is damaged; copy the data folder, then restore a backup. `tocsin doctor` shows details"
        }
        _ => "see the cause below, and run `tocsin doctor`",
    };
    Failure::failed(format!("cannot open the {what}: {advice}")).because(error)
}

/// Starts a server: locks the data folder, opens the stores, runs the applications, serves at the configured address.
///
/// # Errors
/// What failed, with advice.
pub async fn start(configuration: Configuration) -> Outcome<RunningServer> {
    start_server(configuration, None).await
}

/// Starts a server as [`start`] does, with the process that maintenance needs.
///
/// # Errors
/// What failed, with advice.
pub async fn start_hosted(configuration: Configuration, host: Arc<dyn ServerHost>) -> Outcome<RunningServer> {
    start_server(configuration, Some(host)).await
}

async fn start_server(configuration: Configuration, host: Option<Arc<dyn ServerHost>>) -> Outcome<RunningServer> {
    let folder = configuration.data.folder.clone();
    let lock = lock_folder(&folder)?;
    if folder.join(UNFINISHED).exists() {
        let what = format!("{} contains a partially restored backup; restore it again", folder.display());
        return Err(Failure::failed(what));
    }
    // Before the stores: a port in use is reported immediately.
    let listen = configuration.http.listen;
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        Failure::failed(format!(
            "cannot listen at {listen}; free the port, or choose another with --set http.listen=ADDRESS"
        ))
        .because(&error)
    })?;
    let address = listener
        .local_addr()
        .map_err(|error| Failure::failed("cannot read the address of a socket").because(&error))?;
    let feedback_listener = feedback::listen(&configuration.feedback).await?;
    let ldap_doors = ldap::listen(&configuration.ldap).await?;
    let notifybc_listener = notifybc::listen(&configuration.notifybc).await?;
    let (stored, journal) = (open_records(&configuration).await?, open_journal(&configuration).await?);
    let mut trails: Vec<Arc<dyn AuditTrail>> = vec![stored.clone(), journal.clone()];
    let journal: Arc<dyn Journal> = journal;
    let records: Arc<dyn Records> = stored.clone();
    let mail_channels = ldap::CurrentMailChannels::stored(&*records).await?;
    let export = ldap::opener(&configuration, stored.clone(), mail_channels.clone())?;
    let ldap = match ldap_doors {
        Some(doors) => Some(ldap::prepare(doors, &configuration, stored, mail_channels.clone()).await?),
        None => None,
    };
    let inbox = open_inbox(&configuration).await?;
    trails.push(inbox.clone());
    let inbox: Arc<dyn Inbox> = inbox;
    let (replicas, rows) = sync::open(&configuration, records.clone(), inbox.clone()).await?;
    trails.push(rows);
    let first_key = first_key::create_if_needed(&*records, &folder, now()).await?;
    let page = configuration.metrics.enabled.then(recorder).flatten();
    let counted = page.clone();
    let (spans, exporter) = telemetry::start(&configuration.telemetry, records.installation())?;
    let folders = tocsin_delivery::folders::Folders { allow: configuration.delivery.allow_folders.clone() };
    let parts = tocsin_pipeline::Parts {
        journal: journal.clone(),
        records: records.clone(),
        inbox: inbox.clone(),
        environment: Arc::new(|name| std::env::var(name).ok()),
        context: Context {
            clock: Arc::new(SystemClock),
            installation: records.installation().to_owned(),
            data_folder: folder.clone(),
            networks: networks(&configuration)?,
            token_signer: Arc::new(feedback::token_signer(&configuration.feedback, records.secret())?),
            feeds: None,
            provider_days: None,
            public_url: public_url(&configuration.http.public_url)?,
            programs: Programs { allow: configuration.delivery.allow_programs.clone() },
            files: files(&configuration),
            application: String::new(),
        },
        opener: Arc::new(move |name, channel, context| tocsin_delivery::open_with(&folders, name, channel, context)),
        options: pipeline_options(&configuration)?,
        seed: fastrand::u64(..),
        spans: spans.clone(),
    };
    let pipeline =
        Pipeline::start(parts).await.map_err(|error| Failure::failed("cannot start the pipeline").because(&error))?;
    mail_channels.use_pipeline(&pipeline);
    let (exchanges, partitions) = open_exchanges(&configuration, spans, intake(&pipeline)).await?;
    trails.extend(partitions);
    let free_space = FreeSpace {
        folder: folder.clone(),
        bytes: Arc::new({
            let folder = folder.clone();
            move || rustix::fs::statvfs(&folder).ok().map(|stat| stat.f_bavail * stat.f_frsize)
        }),
        bytes_min: configuration.journal.disk_reserve.0,
    };
    let watch = saturation::watch(&configuration.capacity)?;
    let version = env!("CARGO_PKG_VERSION");
    let documents = records.clone();
    let parts = tocsin_service::Parts {
        records,
        journal: journal.clone(),
        inbox,
        pipeline: pipeline.clone(),
        exchanges: Some(exchanges.clone()),
        free_space: Some(free_space),
        saturation: Some(watch.clone()),
        version,
    };
    let service =
        Service::open(parts).await.map_err(|error| Failure::failed("cannot read the API keys").because(&error))?;
    service.set_audit_log(AuditLog::new(trails, configuration.audit.keep.0));
    if let Some(host) = host {
        service.set_host(host);
    }
    if !configuration.consent.key_file.as_os_str().is_empty() {
        let text = read_text_file("read `consent.key_file`", &configuration.consent.key_file)?;
        let key = ConsentKey::from_pem(&text);
        service.set_consent_key(key.map_err(|error| Failure::usage(format!("`consent.key_file` {error}")))?);
    }
    let finished = service.finish_merges().await;
    finished.map_err(|error| Failure::failed("cannot finish merges of subscribers").because(&error))?;
    let programs = Programs { allow: configuration.delivery.allow_programs.clone() };
    replicas.set_conflict_resolver(Arc::new(sync::AllowedPrograms::new(programs)));
    replicas.set_subscriber_editor(Arc::new(sync::ServiceEditor(service.clone())));
    service.set_person_rows(Arc::new(sync::CollectionRows(Arc::downgrade(&replicas))));
    let public = public_url(&configuration.http.public_url)?;
    let webhooks =
        receivers::open(service.clone(), &networks(&configuration)?, &files(&configuration), public.clone())?;
    let rate = |per_second| RateLimit::new(per_second, configuration.http.requests_burst_seconds);
    let options = HttpOptions {
        connections: connection_options(&configuration),
        body_memory_max: usize::try_from(configuration.http.body_memory_max.0).unwrap_or(usize::MAX),
        key_rate: rate(configuration.http.requests_per_key_max),
        address_rate: rate(configuration.http.requests_per_address_max),
        origins: origins(&configuration.http.allow_origins)?,
        streams_max: configuration.http.streams_max as usize,
        metrics: page,
        sync: Some(replicas.clone()),
        receivers: Some(webhooks),
        scim: ldap.as_ref().map(|ldap| ldap.scim(&configuration)).transpose()?.flatten(),
        entries: ldap.as_ref().map(ldap::PreparedLdapFace::directory),
        directory: Some(export),
        console: configuration.http.console.then_some(tocsin_console::FILES),
        web_components: tocsin_console::web_components(),
        public_status: configuration.http.public_status,
        openid: openid::options(&configuration.oidc, public.as_deref())?,
        public_url: public.clone(),
        has_notifybc: notifybc_listener.is_some(),
        pages: Arc::new(hosted_pages(&configuration.pages)?),
        ..HttpOptions::default()
    };
    let stopping = CancellationToken::new();
    saturation::start(watch, counted, pipeline.clone(), folder.clone(), stopping.clone());
    sync::run_maintenance(&replicas, stopping.clone());
    tokio::spawn(service.clone().run_erasures(stopping.clone()));
    let mut background = JoinSet::new();
    background.spawn(service.clone().run_audit_retention(stopping.clone()));
    let sampling = stopping.clone().run_until_cancelled_owned(service.clone().sample_series_regularly());
    background.spawn(async {
        let _ = sampling.await;
    });
    let raising = sync::raise_events(&replicas, pipeline.clone(), journal, stopping.clone());
    let ldap_face = ldap.map(|prepared| ldap::start(prepared, service.clone(), stopping.clone()));
    let notifybc = match notifybc_listener {
        Some(prepared) => {
            Some(notifybc::start(prepared, &configuration, service.clone(), documents, stopping.clone()).await?)
        }
        None => None,
    };
    let feedback = feedback_listener.map(|prepared| feedback::start(prepared, service.clone())).transpose()?;
    let feedback_address = feedback.as_ref().map(Server::address);
    let (kept, console_url) = (
        service.clone(),
        (configuration.http.console && !configuration.oidc.only).then(|| console_url(address, public.as_deref())),
    );
    let face = tokio::spawn(tocsin_face_http::serve(listener, service, options, stopping.clone().cancelled_owned()));
    let (face, ldap_face, exporter) = (Mutex::new(face), Mutex::new(ldap_face), Mutex::new(exporter));
    let data_folder = folder;
    Ok(RunningServer {
        address,
        feedback_address,
        data_folder,
        first_key,
        background: Mutex::new(background),
        console_url,
        service: kept,
        feedback: Mutex::new(feedback),
        pipeline,
        exchanges,
        face,
        ldap_face,
        notifybc: Mutex::new(notifybc),
        raising: Mutex::new(raising),
        stopping,
        exporter,
        _lock: lock,
    })
}

/// The hosted pages, with their branding and languages.
fn hosted_pages(pages: &configuration::Pages) -> Outcome<HostedPages> {
    let text = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    let branding = Branding {
        name: text(&pages.name),
        logo: read_page_setting("logo", &pages.logo)?,
        accent: read_page_setting("accent", &pages.accent)?,
        footer: text(&pages.footer),
        imprint: read_page_setting("imprint", &pages.imprint)?,
    };
    let languages = Some(pages.languages.as_path()).filter(|folder| !folder.as_os_str().is_empty());
    HostedPages::load(branding, languages).map_err(|reason| Failure::usage(format!("`pages.languages`: {reason}")))
}

fn read_page_setting<T: std::str::FromStr<Err: std::fmt::Display>>(key: &str, text: &str) -> Outcome<Option<T>> {
    match text.trim() {
        "" => Ok(None),
        text => match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(Failure::usage(format!("`pages.{key}`: `{text}` {error}"))),
        },
    }
}

fn pipeline_options(configuration: &Configuration) -> Outcome<PipelineOptions> {
    let options = &configuration.pipeline;
    let hours = options.retention_hours.iter().map(|text| text.parse::<Hours>());
    let hours = hours.collect::<Result<Vec<_>, _>>();
    let zone = &options.retention_time_zone;
    if jiff::tz::TimeZone::get(zone).is_err() {
        let what = format!(
            "`pipeline.retention_time_zone`: `{zone}` is not a time zone; expected an IANA name such as Europe/Vienna"
        );
        return Err(Failure::usage(what));
    }
    Ok(PipelineOptions {
        quantum_batches: options.quantum_batches.max(1) as usize,
        quantum_bytes: usize::try_from(options.quantum_bytes.0).unwrap_or(usize::MAX),
        match_shards: options.match_shards as usize,
        match_concurrency: options.match_concurrency as usize,
        in_flight_per_channel: options.in_flight_per_channel.max(1) as usize,
        receipts_chunk: options.receipts_chunk.max(1) as usize,
        receipts_delay_ms: u64::try_from(options.receipts_delay.0.as_millis()).unwrap_or(u64::MAX),
        slow_rule_ms: u64::try_from(options.slow_rule.0.as_millis()).unwrap_or(u64::MAX).max(1),
        run_subscriptions: options.run_subscriptions.max(1) as usize,
        run_notifications: options.run_notifications.max(1) as usize,
        upkeep_seconds: options.upkeep_interval.0.as_secs().max(1),
        prune_batches: options.prune_batches.max(1) as usize,
        retention_hours: hours.map_err(|error| Failure::usage(format!("`pipeline.retention_hours`: {error}")))?,
        retention_time_zone: options.retention_time_zone.clone(),
        activity_days: options.activity_days.max(1),
        source_folders: Folders { allow: configuration.sources.allow_folders.clone() },
        channel_folders: configuration.delivery.allow_folders.clone(),
        source_listeners: Listeners { allow: configuration.sources.allow_listen.clone() },
        suppression: suppression_policy(&configuration.suppression),
        evidence_kept: configuration.consent.evidence_kept.0,
    })
}

fn suppression_policy(options: &configuration::Suppression) -> Policy {
    let unless_zero = |time: Period| Some(time.0).filter(|time| !time.is_zero());
    let passes = |cause: &Passable| match cause {
        Passable::SoftBounce => Cause::SoftBounce,
        Passable::Manual => Cause::Manual,
    };
    Policy {
        soft_bounces: options.soft_bounces.clamp(1, SOFT_BOUNCES_MAX),
        soft_bounce_window: options.soft_bounce_window.0,
        soft_bounce_lasts: unless_zero(options.soft_bounce_lasts),
        hard_bounces: options.hard_bounces.min(SOFT_BOUNCES_MAX),
        hard_bounce_window: options.hard_bounce_window.0,
        hard_bounce_lasts: unless_zero(options.hard_bounce_lasts),
        challenges: options.challenges.min(SOFT_BOUNCES_MAX),
        challenge_window: options.challenge_window.0,
        challenge_lasts: unless_zero(options.challenge_lasts),
        complaints: options.complaints.min(SOFT_BOUNCES_MAX),
        complaint_window: options.complaint_window.0,
        critical_passes: options.critical_passes.iter().map(passes).collect(),
    }
}

/// Parses the prefix of links; `None` if it is empty.
fn public_url(text: &str) -> Outcome<Option<String>> {
    let base = text.trim_end_matches('/');
    let fits = |url: url::Url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none()
    };
    match base {
        "" => Ok(None),
        _ if base.is_ascii() && url::Url::parse(base).is_ok_and(fits) => Ok(Some(base.to_owned())),
        _ => Err(Failure::usage(format!("http.public_url: `{text}` is not a URL such as https://tocsin.example.org"))),
    }
}

/// Parses the origins whose pages may read inboxes.
fn origins(texts: &[String]) -> Outcome<Vec<String>> {
    let check = |text: &String| {
        // As browsers send it: scheme, host, and the port unless it is the default one.
        let is_origin = url::Url::parse(text)
            .is_ok_and(|url| url.origin().is_tuple() && url.origin().ascii_serialization() == *text);
        let hint = "expected scheme and host without a trailing slash, such as https://shop.example.org";
        if is_origin {
            Ok(text.clone())
        } else {
            Err(Failure::usage(format!("http.allow_origins: `{text}` is not an origin; {hint}")))
        }
    };
    texts.iter().map(check).collect()
}

/// Networks and hosts that every channel may reach.
fn networks(configuration: &Configuration) -> Outcome<Networks> {
    let parse = |text: &String| {
        text.parse().map_err(|error: NetworkError| Failure::usage("delivery.allow_networks is invalid").because(&error))
    };
    let allow_networks = configuration.delivery.allow_networks.iter().map(parse).collect::<Outcome<_>>()?;
    Ok(Networks { allow_networks, allow_hosts: configuration.delivery.allow_hosts.clone() })
}

/// Installs the metrics recorder; `None` if the process has one, as in a second server of one test.
fn recorder() -> Option<PrometheusHandle> {
    let builder = PrometheusBuilder::new().set_buckets(metrics::SECONDS).expect("SECONDS is not empty");
    let handle = builder.install_recorder().ok()?;
    metrics::describe();
    let upkeep = handle.clone();
    // Without upkeep, histograms that are never scraped would grow without bound.
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_secs(5));
        loop {
            tick.tick().await;
            upkeep.run_upkeep();
        }
    });
    Some(handle)
}

/// The URL at which a browser on this machine opens the console: the public one, or a loopback address.
fn console_url(address: SocketAddr, public: Option<&str>) -> String {
    let loopback = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let own = || format!("http://{}", SocketAddr::new(loopback, address.port()));
    public.map_or_else(own, |url| url.trim_end_matches('/').to_owned())
}

impl RunningServer {
    /// A new link that creates the first user; `None`: there are users, or no web console.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn setup_link(&self) -> Outcome<Option<String>> {
        let Some(url) = &self.console_url else { return Ok(None) };
        let link = self.service.setup_link();
        let link = link.map_err(|error| Failure::failed("cannot make the setup link").because(&error))?;
        Ok(link.map(|link| format!("{url}{}", link.path())))
    }

    /// Waits until a component fails.
    pub async fn failed(&self) -> Failure {
        let (mut face, mut ldap_face) = (self.face.lock().await, self.ldap_face.lock().await);
        let ldap_ends = async {
            match ldap_face.as_mut() {
                Some(face) => face.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = &mut *face => match ended {
                Ok(Ok(())) => Failure::failed("the HTTP face ended unexpectedly"),
                Ok(Err(error)) => Failure::failed("the HTTP face failed").because(&error),
                Err(error) => Failure::failed("the HTTP face panicked").because(&error),
            },
            ended = ldap_ends => match ended {
                Ok(()) => Failure::failed("the LDAP face ended unexpectedly"),
                Err(error) => Failure::failed("the LDAP face panicked").because(&error),
            },
        }
    }

    /// Closes the intake, finishes work in flight for at most `patience`, and leaves the rest to the next start.
    /// Returns whether all work was finished.
    pub async fn stop(&self, patience: Duration) -> bool {
        self.stopping.cancel();
        // Mails in progress are stored while the stores are open.
        if let Some(feedback) = self.feedback.lock().await.take() {
            feedback.close(patience).await;
        }
        if let Some(notifybc) = self.notifybc.lock().await.take() {
            notifybc.stop(patience).await;
        }
        let mut face = self.face.lock().await;
        let (_, finished, exchanged) = tokio::join!(
            async {
                // The face has its own time limit; `failed` reports its result.
                if !face.is_finished() {
                    let _ = (&mut *face).await;
                }
            },
            self.pipeline.drain(patience),
            self.exchanges.stop(patience)
        );
        if let Some(face) = self.ldap_face.lock().await.as_mut().filter(|face| !face.is_finished()) {
            let _ = face.await;
        }
        let mut raising = self.raising.lock().await;
        if !raising.is_finished() {
            let _ = (&mut *raising).await;
        }
        // They hold the stores open.
        let mut background = self.background.lock().await;
        while background.join_next().await.is_some() {}
        // Last, so that spans of the finished work are exported too.
        if let Some(exporter) = self.exporter.lock().await.as_mut() {
            exporter.stop().await;
        }
        finished && exchanged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_definition_is_below_its_folder_also_by_symbolic_links() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for made in ["app/parts", "away"] {
            fs::create_dir_all(path(made)).expect("made");
        }
        fs::write(path("app/parts/base.txt"), "within").expect("written");
        fs::write(path("away/secret.txt"), "secret").expect("written");
        symlink(path("away/secret.txt"), path("app/parts/file.txt")).expect("a link");
        symlink(path("away"), path("app/folder")).expect("a link");
        symlink("../../away/secret.txt", path("app/parts/relative.txt")).expect("a link");
        symlink("base.txt", path("app/parts/inner.txt")).expect("a link");
        symlink("gone.txt", path("app/parts/dangling.txt")).expect("a link");
        let read = |file: &str| {
            let text = format!("application: a\npartials: {{ p: {{ file: {file} }} }}\n");
            fs::write(path("app/app.yaml"), text).expect("written");
            read_definition(&path("app/app.yaml")).expect("read").map_err(|problems| problems[0].to_string())
        };
        for file in ["parts/base.txt", "parts/inner.txt"] {
            assert!(read(file).is_ok_and(|text| text.contains("within")), "{file}");
        }
        for file in ["parts/file.txt", "folder/secret.txt", "parts/relative.txt"] {
            let refused = read(file).expect_err(file);
            assert!(refused.contains("partials.p.file") && refused.contains("leads out of"), "{refused}");
        }
        assert!(read("parts/dangling.txt").is_err_and(|error| !error.contains("leads out of")));
        // A definition that is itself a link has its files beside the link, as in a mounted volume.
        fs::rename(path("app/app.yaml"), path("app/parts/real.yaml")).expect("moved");
        fs::write(path("app/parts/real.yaml"), "application: a\npartials: { p: { file: parts/base.txt } }\n")
            .expect("written");
        symlink("parts/real.yaml", path("app/linked.yaml")).expect("a link");
        assert!(read_definition(&path("app/linked.yaml")).expect("read").is_ok());
    }

    #[test]
    fn one_server_at_a_time_uses_a_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("a/b");
        let lock = lock_folder(&data).expect("free");
        let file = data.join("journal.db");
        fs::write(&file, "x").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("set");
        assert!(lock_folder(&data).expect_err("the folder is locked").message.starts_with("another Tocsin uses"));
        let mode = fs::metadata(&file).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o644, "the files of another server stay unchanged");
        drop(lock);
        lock_folder(&data).expect("free again");
        assert_eq!(fs::metadata(&data).expect("made").permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a22_group_and_others_lose_their_rights_to_the_data_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        fs::create_dir(&data).expect("made");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        let set = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
        let files = ["journal.db", "journal.db-wal", "admin.key", "tocsin.toml"].map(|name| data.join(name));
        for file in &files {
            fs::write(file, "x").expect("written");
            set(file, 0o664);
        }
        std::os::unix::fs::symlink("/etc/passwd", data.join("link")).expect("a link");
        set(&data, 0o755);
        let _lock = lock_folder(&data).expect("free");
        assert_eq!(mode(&data), 0o700);
        assert_eq!(files.each_ref().map(|file| mode(file)), [0o600; 4]);
        assert_eq!(mode(&data.join("lock")), 0o600);
        assert_eq!(mode(Path::new("/etc/passwd")), 0o644, "the target of a link stays as it is");
    }
}
