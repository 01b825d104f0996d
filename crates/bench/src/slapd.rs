//! OpenLDAP `slapd` as a peer: durable mdb backend with the same entries and access rules.

use std::{
    fs,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use super::{
    child_process::{Child, listens, reserve_port, run},
    context::{Context, Scratch},
    ldap_fixture::{self, SUFFIX, USER},
};
use crate::failure::{Failure, Outcome};

/// Maximum time of the initial load.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Running slapd. Killed on drop.
pub struct Slapd {
    /// Listening port.
    pub port: u16,
    process: Child,
    _folder: Scratch,
}

impl Slapd {
    /// Loads the entries if not done before, and starts slapd on a copy; `None` if it is not installed.
    ///
    /// # Errors
    /// If it cannot be loaded or does not start.
    pub async fn start(context: &Context, count: u64) -> Outcome<Option<Self>> {
        let Some(program) = context.program("slapd") else { return Ok(None) };
        let database = loaded(context, count).await?;
        let (folder, port) = (context.folder()?, reserve_port()?);
        let data = folder.path().join("data.mdb");
        // The file is sparse; a plain copy would fill the hole.
        let mut copy = tokio::process::Command::new("cp");
        copy.arg("--sparse=always").arg(database.join("data.mdb")).arg(&data);
        run(&mut copy, "cp", TIMEOUT).await?;
        let mut command = Command::new(program);
        command.arg("-f").arg(configuration(folder.path())?).args([
            "-h",
            &format!("ldap://127.0.0.1:{port}"),
            "-d",
            "0",
        ]);
        let mut process = Child::start(&mut command, "slapd", folder.path().join("log"))?;
        process.until(Instant::now(), async || listens(port).await).await?;
        Ok(Some(Slapd { port, process, _folder: folder }))
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

/// Folder of a database with this many people, created once.
async fn loaded(context: &Context, count: u64) -> Outcome<PathBuf> {
    let database = context.peers_folder.join(format!("ldap/people-{count}"));
    if database.join("done").exists() {
        return Ok(database);
    }
    context.log(format_args!("   loading {count} people into slapd"));
    let _ = fs::remove_dir_all(&database);
    fs::create_dir_all(&database).map_err(|error| Failure::file("make the folder", &database, &error))?;
    let file = database.join("people.ldif");
    write_people(&file, count, true)?;
    let program =
        context.program("slapadd").ok_or_else(|| Failure::failed("slapadd is needed to load slapd's database"))?;
    add(&program, &database, &file).await?;
    let _ = fs::remove_file(&file);
    let done = database.join("done");
    fs::write(&done, "").map_err(|error| Failure::file("write", &done, &error))?;
    Ok(database)
}

/// Seconds that slapadd takes to create a database of this many people; `None` if it is missing.
///
/// # Errors
/// If slapadd fails.
pub async fn slapadd(context: &Context, count: u64) -> Outcome<Option<f64>> {
    let Some(program) = context.program("slapadd") else { return Ok(None) };
    let folder = context.folder()?;
    let file = folder.path().join("people.ldif");
    write_people(&file, count, true)?;
    let _turn = context.progress.peer_turn("slapadd");
    let started = Instant::now();
    add(&program, folder.path(), &file).await?;
    Ok(Some(started.elapsed().as_secs_f64()))
}

/// Creates a database in a folder from an LDIF file.
async fn add(program: &Path, folder: &Path, file: &Path) -> Outcome {
    let mut command = tokio::process::Command::new(program);
    command.arg("-q").arg("-f").arg(configuration(folder)?).arg("-l").arg(file);
    run(&mut command, "slapadd", TIMEOUT).await.map(|_| ())
}

/// Writes people as LDIF. `first`: whether the suffix entry is included.
///
/// # Errors
/// If the file cannot be written.
pub fn write_people(file: &Path, count: u64, first: bool) -> Outcome {
    let failed = |error: std::io::Error| Failure::file("write", file, &error);
    let mut out = BufWriter::new(fs::File::create(file).map_err(failed)?);
    ldap_fixture::write(&mut out, count, first).and_then(|()| out.flush()).map_err(failed)
}

/// Writes the configuration of a database. The user is not the rootdn, so that access rules are evaluated for each
/// entry.
fn configuration(folder: &Path) -> Outcome<PathBuf> {
    let modules = ["/usr/lib/ldap", "/usr/lib/openldap", "/usr/lib64/openldap", "/usr/libexec/openldap"];
    let modules = modules.into_iter().find(|path| Path::new(path).is_dir()).unwrap_or("/usr/lib/ldap");
    let schemas = ["/etc/ldap/schema", "/etc/openldap/schema"];
    let schemas = schemas.into_iter().find(|path| Path::new(path).is_dir()).unwrap_or("/etc/ldap/schema");
    let folder_text = folder.display();
    let text = format!(
        "include {schemas}/core.schema\ninclude {schemas}/cosine.schema\ninclude {schemas}/inetorgperson.schema\n\
         modulepath {modules}\nmoduleload back_mdb\npidfile {folder_text}/pid\nloglevel none\nsizelimit unlimited\n\
         database mdb\nsuffix \"{SUFFIX}\"\ndirectory {folder_text}\nmaxsize 4294967296\n\
         index objectClass eq\nindex cn,sn,mail,uid eq\n\
         access to attrs=userPassword by dn.exact=\"{USER}\" write by anonymous auth by * none\n\
         access to * by dn.exact=\"{USER}\" write by users read by * none\n"
    );
    let file = folder.join("slapd.conf");
    fs::write(&file, text).map_err(|error| Failure::file("write", &file, &error))?;
    Ok(file)
}
