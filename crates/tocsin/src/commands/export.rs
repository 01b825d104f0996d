//! Command `export`: writes subscribers, subscriptions or suppressions as NDJSON or CSV, and applied definitions as
//! YAML.

use std::{
    fs::{File, Metadata, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use clap::{Subcommand, ValueEnum};
use reqwest::Method;
use tempfile::TempPath;
use tocsin_model::folder;
use tokio::io::AsyncWriteExt;

use crate::{
    client::{Client, segment, with_query},
    commands::import::Format,
    failure::{Failure, Outcome},
    signals::Signals,
    terminal::{Terminal, counted, size},
};

/// Arguments of `tocsin export`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Export the definition of an application; secrets as `***`
    Definition {
        /// Application
        application: String,
        /// Output file; default is standard output
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Export all subscribers with their devices
    Subscribers {
        #[command(flatten)]
        output: Output,
    },
    /// Export all subscriptions
    Subscriptions {
        #[command(flatten)]
        output: Output,
        /// Application to filter by
        #[arg(long)]
        application: Option<String>,
        /// Subscription class to filter by
        #[arg(long)]
        class: Option<String>,
    },
    /// Export the audit log, newest first
    Audit {
        #[command(flatten)]
        output: Output,
        /// Actor to filter by
        #[arg(long)]
        actor: Option<String>,
        /// Action to filter by
        #[arg(long)]
        action: Option<String>,
        /// Object to filter by
        #[arg(long)]
        object: Option<String>,
        /// Start of the period
        #[arg(long, value_name = "TIME")]
        from: Option<String>,
        /// End of the period, exclusive
        #[arg(long, value_name = "TIME")]
        to: Option<String>,
    },
    /// Export all active suppressions
    Suppressions {
        #[command(flatten)]
        output: Output,
        /// Protocol of addresses to filter by
        #[arg(long)]
        protocol: Option<String>,
        /// Cause to filter by
        #[arg(long)]
        cause: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
struct Output {
    /// Output file, created only when complete; default is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Format [default: by the file name, otherwise ndjson]
    #[arg(long, value_enum)]
    format: Option<Format>,
}

impl Args {
    /// Streams the export.
    ///
    /// # Errors
    /// If the connection breaks or the output cannot be written.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let (path, output, named) = match self.what {
            Action::Definition { application, output } => {
                return definition(terminal, client, &application, output.as_deref()).await;
            }
            Action::Subscribers { output } => ("/v1/export/subscribers", output, Vec::new()),
            Action::Audit { output, actor, action, object, from, to } => {
                let named = vec![("actor", actor), ("action", action), ("object", object), ("from", from), ("to", to)];
                ("/v1/audit/export", output, named)
            }
            Action::Suppressions { output, protocol, cause } => {
                ("/v1/export/suppressions", output, vec![("protocol", protocol), ("cause", cause)])
            }
            Action::Subscriptions { output, application, class } => {
                ("/v1/export/subscriptions", output, vec![("application", application), ("class", class)])
            }
        };
        let format = output.format.or_else(|| output.output.as_deref().map(Format::of)).unwrap_or(Format::Ndjson);
        let word = format.to_possible_value().expect("no format is hidden").get_name().to_owned();
        let mut query = vec![("format", word.as_str())];
        query.extend(named.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))));
        let lines = |chunk: &[u8]| chunk.iter().filter(|byte| **byte == b'\n').count() as u64;
        let request = client.request(Method::GET, &with_query(path, &query));
        stream(terminal, client, request, output.output.as_deref(), ("line", "lines"), lines).await
    }
}

/// Streams the response to standard output, or to an [`OutputFile`]. `count` counts the items of a chunk, `one` and
/// `many` name them.
///
/// # Errors
/// If the connection breaks, the output cannot be written, or a signal interrupts it.
pub(super) async fn stream(
    terminal: &Terminal,
    client: &Client,
    request: reqwest::RequestBuilder,
    file: Option<&Path>,
    (one, many): (&str, &str),
    mut count: impl FnMut(&[u8]) -> u64,
) -> Outcome {
    let mut answer = client.send(request).await?;
    let bar = terminal.progress(None, "{spinner} {bytes}  {bytes_per_sec}  {elapsed}");
    let Some(file) = file.filter(|file| !is_standard_output(file)) else {
        while let Some(chunk) = answer.chunk().await.map_err(|error| broken(client, &error))? {
            terminal.bytes(&chunk)?;
            bar.inc(chunk.len() as u64);
        }
        bar.finish_and_clear();
        return Ok(());
    };
    let mut signals = Signals::new()?;
    let out = opened(file, signals.next()).await?;
    let copy = async {
        let mut writer = tokio::io::BufWriter::new(tokio::fs::File::from_std(out.writer()?));
        let (mut bytes, mut items) = (0u64, 0u64);
        while let Some(chunk) = answer.chunk().await.map_err(|error| broken(client, &error))? {
            writer.write_all(&chunk).await.map_err(|error| out.failed(&error))?;
            bytes += chunk.len() as u64;
            items += count(&chunk);
            bar.set_position(bytes);
        }
        writer.flush().await.map_err(|error| out.failed(&error))?;
        Ok::<_, Failure>((bytes, items))
    };
    let (bytes, items) = tokio::select! {
        copied = copy => copied?,
        name = signals.next() => {
            let left = if out.temporary.is_some() { "no output file is left" } else { "the output is incomplete" };
            return Err(Failure::failed(format!("interrupted by {name}; {left}")));
        }
    };
    out.complete()?;
    bar.finish_and_clear();
    Ok(terminal.line(format_args!("{}: {}, {}", file.display(), counted(items, one, many), size(bytes)))?)
}

/// Opens the output, unless a signal arrives first.
async fn opened(file: &Path, signal: impl Future<Output = &'static str>) -> Outcome<OutputFile> {
    tokio::select! {
        opened = OutputFile::create(file) => opened,
        name = signal => Err(Failure::failed(format!("interrupted by {name}; nothing was written"))),
    }
}

/// Output file that appears under its name when it is complete. Until then it is a temporary file in the same folder,
/// removed on drop. The target of a symbolic link is replaced, not the link. A replaced file keeps its owner and mode.
///
/// Devices, pipes and paths below `/dev` and `/proc` are written directly. An existing file is written in place if its
/// folder permits no new file, or the process cannot keep its owner. Both are incomplete after a failure.
pub(super) struct OutputFile {
    file: File,
    temporary: Option<TempPath>,
    target: PathBuf,
}

impl OutputFile {
    /// # Errors
    /// The file cannot be made, or its folder does not exist.
    pub(super) async fn create(target: &Path) -> Outcome<OutputFile> {
        let failed = |error: io::Error| Failure::file("write", target, &error);
        let target = resolved(target).map_err(failed)?;
        let found = target.metadata().ok();
        if is_special(&target) || found.as_ref().is_some_and(|found| !found.is_file() && !found.is_dir()) {
            // `/dev/fd/3` can be a file with earlier content.
            let is_file = found.is_some_and(|found| found.is_file());
            let path = target.clone();
            // Waits for the reader of a pipe.
            let open = move || OpenOptions::new().write(true).append(is_file).open(path);
            let opened = tokio::task::spawn_blocking(open).await.unwrap_or_else(|error| Err(io::Error::other(error)));
            return Ok(OutputFile { file: opened.map_err(failed)?, temporary: None, target });
        }
        let folder = folder_of(&target);
        if !folder.exists() {
            let (target, folder) = (target.display(), folder.display());
            let missing = format!("cannot write {target}: the folder {folder} does not exist");
            return Err(Failure::failed(missing).detail(format!("create it: mkdir -p {folder}")));
        }
        let found = found.filter(Metadata::is_file);
        let (file, temporary) = match Self::temporary(&target, found.as_ref()) {
            Err(error) if found.is_some() && is_forbidden(&error) => Self::in_place(&target).map_err(failed)?,
            made => made.map_err(failed)?,
        };
        Ok(OutputFile { file, temporary, target })
    }

    /// Creates a file beside the target, with the owner and mode of the file that it replaces.
    fn temporary(target: &Path, found: Option<&Metadata>) -> io::Result<(File, Option<TempPath>)> {
        let made = tempfile::Builder::new()
            .prefix(target.file_name().unwrap_or_default())
            .suffix(".partial")
            // As for any new file: the process decides by its mask who may read it.
            .permissions(found.map_or(Permissions::from_mode(0o666), Metadata::permissions))
            .tempfile_in(folder_of(target))
            // Its text names the temporary file.
            .map_err(|error| io::Error::from(error.kind()))?;
        if let Some(found) = found {
            let new = made.as_file().metadata()?;
            if (new.uid(), new.gid()) != (found.uid(), found.gid()) {
                std::os::unix::fs::fchown(made.as_file(), Some(found.uid()), Some(found.gid()))?;
            }
            made.as_file().set_permissions(found.permissions())?;
        }
        let (file, temporary) = made.into_parts();
        Ok((file, Some(temporary)))
    }

    fn in_place(target: &Path) -> io::Result<(File, Option<TempPath>)> {
        Ok((OpenOptions::new().write(true).truncate(true).open(target)?, None))
    }

    pub(super) fn writer(&self) -> Outcome<File> {
        self.file.try_clone().map_err(|error| self.failed(&error))
    }

    pub(super) fn failed(&self, error: &io::Error) -> Failure {
        Failure::file("write", &self.target, error)
    }

    pub(super) fn complete(mut self) -> Outcome {
        let Some(temporary) = self.temporary.take() else { return Ok(()) };
        let renamed = self.file.sync_all().and_then(|()| temporary.persist(&self.target).map_err(|error| error.error));
        let synced = renamed.and_then(|()| folder::sync(folder_of(&self.target)));
        synced.map_err(|error| self.failed(&error))
    }
}

/// The path behind symbolic links, also if it does not exist. A link below `/dev` or `/proc` is not followed.
fn resolved(target: &Path) -> io::Result<PathBuf> {
    let mut path = target.to_owned();
    // As many links as Linux follows.
    for _ in 0..=40 {
        let is_folder = path.as_os_str().as_bytes().ends_with(b"/");
        if let (false, Ok(folder), Some(name)) = (is_folder, folder_of(&path).canonicalize(), path.file_name()) {
            path = folder.join(name);
        }
        match path.read_link() {
            Ok(link) if !is_special(&path) => path = folder_of(&path).join(link),
            _ => return Ok(path),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Whether a path names what a process or the system has opened. Files below `/dev/shm` are ordinary ones.
fn is_special(path: &Path) -> bool {
    path.starts_with("/proc") || path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// Whether a path names the standard output, which has a position of its own if it is a file.
fn is_standard_output(path: &Path) -> bool {
    let own = format!("/proc/{}/fd/1", std::process::id());
    resolved(path).is_ok_and(|path| path == Path::new("/dev/stdout") || path == Path::new(&own))
}

fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

async fn definition(terminal: &Terminal, client: &Client, application: &str, output: Option<&Path>) -> Outcome {
    let found = client.get(&format!("/v1/applications/{}", segment(application)), &[]).await?;
    let text = found["definition"].as_str().unwrap_or_default();
    match output.filter(|file| !is_standard_output(file)) {
        Some(file) => {
            let out = OutputFile::create(file).await?;
            out.writer()?.write_all(text.as_bytes()).map_err(|error| out.failed(&error))?;
            out.complete()
        }
        None => Ok(terminal.bytes(text.as_bytes())?),
    }
}

fn broken(client: &Client, error: &reqwest::Error) -> Failure {
    Failure::failed(format!("the export from {} was interrupted; the output is incomplete", client.server()))
        .because(error)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[derive(clap::Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    #[tokio::test]
    async fn an_export_is_streamed_or_written_to_a_complete_file() {
        let server = FakeServer::start(vec![(200, json!("{\"id\":\"alice\"}\n")), (200, json!("id\nalice\n"))]).await;
        let (terminal, captured) = Terminal::captured();
        let run = |args: &[&str]| <TestCli as clap::Parser>::parse_from(args).args;
        run(&["export", "subscribers"]).run(&terminal, &server.client()).await.expect("an export");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("s.csv");
        let args = ["export", "subscriptions", "--class", "nearby", "-o", file.to_str().expect("a path")];
        run(&args).run(&terminal, &server.client()).await.expect("an export");
        assert_eq!(captured.text().lines().next(), Some("{\"id\":\"alice\"}"));
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), "id\nalice\n");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
        assert_eq!(
            server.requests(),
            ["GET /v1/export/subscribers?format=ndjson", "GET /v1/export/subscriptions?format=csv&class=nearby"]
        );
    }
    /// An export whose file could not be renamed left the partial file.
    #[tokio::test]
    async fn a_failed_export_leaves_no_file() {
        let definition = json!({"definition": "application: a\n"});
        let server = FakeServer::start(vec![(200, json!("{}\n")), (200, definition.clone()), (200, definition)]).await;
        let (terminal, _) = Terminal::captured();
        let folder = tempfile::tempdir().expect("a folder");
        // A file cannot replace a folder.
        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken).expect("a folder");
        for what in [&["subscribers"][..], &["definition", "a"]] {
            let args = [&["export"], what, &["-o", taken.to_str().expect("a path")]].concat();
            let args = <TestCli as clap::Parser>::parse_from(args).args;
            let failure = args.run(&terminal, &server.client()).await.expect_err("it cannot be written");
            assert!(failure.message.contains("taken"), "{failure}");
            let left: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").collect();
            assert_eq!(left.len(), 1, "{left:?}");
        }
        let lost = folder.path().join("lost/out.yaml");
        let args = ["export", "definition", "a", "-o", lost.to_str().expect("a path")];
        let args = <TestCli as clap::Parser>::parse_from(args).args;
        let failure = args.run(&terminal, &server.client()).await.expect_err("it has no folder");
        assert!(failure.message.ends_with("lost does not exist"), "{failure}");
        assert!(failure.details[0].starts_with("create it: mkdir -p "), "{failure}");
    }

    #[tokio::test]
    async fn a_device_is_written_and_stays_a_device() {
        let server = FakeServer::start(vec![(200, json!("{}\n"))]).await;
        let (terminal, captured) = Terminal::captured();
        let args = <TestCli as clap::Parser>::parse_from(["export", "subscribers", "-o", "/dev/null"]).args;
        args.run(&terminal, &server.client()).await.expect("an export");
        assert_eq!(captured.text(), "/dev/null: 1 line, 3 B\n");
        assert!(!std::fs::metadata("/dev/null").expect("a device").is_file());
    }

    #[tokio::test]
    async fn an_exported_file_may_be_read_like_any_new_file() {
        let server = FakeServer::start(vec![(200, json!("{}\n"))]).await;
        let (terminal, _) = Terminal::captured();
        let folder = tempfile::tempdir().expect("a folder");
        let [file, other] = ["s.ndjson", "other"].map(|name| folder.path().join(name));
        let args = ["export", "subscribers", "-o", file.to_str().expect("a path")];
        <TestCli as clap::Parser>::parse_from(args).args.run(&terminal, &server.client()).await.expect("an export");
        std::fs::write(&other, "").expect("a file");
        let mode = |file: &Path| std::fs::metadata(file).expect("a file").permissions().mode();
        assert_eq!(mode(&file), mode(&other));
    }

    #[tokio::test]
    async fn a_replaced_file_keeps_its_mode_and_the_links_to_it() {
        let server = FakeServer::start(vec![(200, json!("{}\n")), (200, json!({"definition": "new\n"}))]).await;
        let (terminal, _) = Terminal::captured();
        let folder = tempfile::tempdir().expect("a folder");
        let [file, link, dangling, missing] = ["v1.yaml", "current", "next", "v2"].map(|name| folder.path().join(name));
        std::fs::write(&file, "old").expect("a file");
        std::fs::set_permissions(&file, Permissions::from_mode(0o606)).expect("a mode");
        std::os::unix::fs::symlink("v1.yaml", &link).expect("a link");
        std::os::unix::fs::symlink(&missing, &dangling).expect("a link");
        let run = |what: &[&str], to: &Path| {
            let args = [&["export"], what, &["-o", to.to_str().expect("a path")]].concat();
            <TestCli as clap::Parser>::parse_from(args).args
        };
        run(&["subscribers"], &link).run(&terminal, &server.client()).await.expect("an export");
        run(&["definition", "a"], &dangling).run(&terminal, &server.client()).await.expect("an export");
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), "{}\n");
        assert_eq!(std::fs::metadata(&file).expect("a file").mode() & 0o7777, 0o606);
        assert_eq!(std::fs::read_to_string(&missing).expect("a file"), "new\n");
        assert_eq!(link.read_link().expect("a link"), Path::new("v1.yaml"));
        assert_eq!(dangling.read_link().expect("a link"), missing);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 4);
    }

    #[tokio::test]
    async fn standard_output_by_its_path_is_standard_output() {
        let server = FakeServer::start(vec![(200, json!("{}\n")); 3]).await;
        let (terminal, captured) = Terminal::captured();
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/stdout", &link).expect("a link");
        for path in ["/dev/stdout", "/dev/../dev/stdout", link.to_str().expect("a path")] {
            let args = <TestCli as clap::Parser>::parse_from(["export", "subscribers", "-o", path]).args;
            args.run(&terminal, &server.client()).await.expect("an export");
        }
        assert_eq!(captured.text(), "{}\n{}\n{}\n");
    }

    /// A file behind `/dev/fd` is ordinary to `stat`; a temporary file was tried in `/dev`.
    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn a_descriptor_by_its_path_is_written_after_its_content() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "old\n").expect("a file");
        let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file.as_file()));
        let out = OutputFile::create(Path::new(&path)).await.expect("it opens");
        out.writer().expect("a file").write_all(b"new\n").expect("written");
        out.complete().expect("complete");
        assert_eq!(std::fs::read_to_string(file.path()).expect("a file"), "old\nnew\n");
    }

    #[tokio::test]
    async fn a_file_in_a_folder_that_permits_no_new_file_is_written_in_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("s.ndjson");
        std::fs::write(&file, "older and longer").expect("a file");
        let mode = |mode| std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("a mode");
        mode(0o555);
        let inode = || std::fs::metadata(&file).expect("a file").ino();
        let before = inode();
        let out = OutputFile::create(&file).await;
        mode(0o755);
        let out = out.expect("it opens");
        // Linux permits root to create a file in any folder.
        assert!(out.temporary.is_none() || rustix::process::geteuid().is_root());
        let out = if out.temporary.is_none() {
            out
        } else {
            let (opened, temporary) = OutputFile::in_place(&file).expect("it opens");
            OutputFile { file: opened, temporary, target: file.clone() }
        };
        out.writer().expect("a file").write_all(b"new").expect("written");
        out.complete().expect("complete");
        assert_eq!((std::fs::read_to_string(&file).expect("a file"), inode()), ("new".to_owned(), before));
        assert!(
            [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem]
                .map(io::Error::from)
                .iter()
                .all(is_forbidden)
        );
        assert!(!is_forbidden(&io::ErrorKind::StorageFull.into()));
    }

    /// The open of a pipe without a reader blocked the thread, and no signal had an effect.
    #[test]
    fn a_signal_ends_the_wait_for_the_reader_of_a_pipe() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let signal = async {
            // The open has begun.
            tokio::task::yield_now().await;
            "SIGHUP"
        };
        let failure = runtime.block_on(opened(&pipe, signal)).err().expect("it is interrupted");
        assert_eq!(failure.message, "interrupted by SIGHUP; nothing was written");
        // A reader ends the open that still waits, so that the runtime can stop.
        let _reader = OpenOptions::new().read(true).write(true).open(&pipe).expect("a reader");
        drop(runtime);
    }
}
