//! Command `users`: lists, creates and changes users of the console, and ends their sessions.

use std::{
    io::{self, BufRead, IsTerminal},
    path::{Path, PathBuf},
};

use clap::Subcommand;
use reqwest::Method;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use serde_json::{Value, json};

use crate::{
    client::{Client, segment},
    failure::{Failure, Outcome, read_text_file},
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin users`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the users
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Create a user
    #[command(after_help = "Examples:
  tocsin users create ada --role admin
  tocsin users create ben --display-name 'Ben Franklin' --role operator --role reader --without-password")]
    Create {
        /// Login name: letters a to z, digits, `.`, `_`, `@`, `+` and `-`
        name: String,
        /// Role; `tocsin keys roles` lists the roles; repeatable, or comma-separated
        #[arg(long, value_delimiter = ',', required = true)]
        role: Vec<String>,
        /// Name for display; default is the login name
        #[arg(long, value_name = "TEXT")]
        display_name: Option<String>,
        /// Email address
        #[arg(long)]
        email: Option<String>,
        /// Language of the console, such as de
        #[arg(long)]
        language: Option<String>,
        /// Time zone of the console, such as Europe/Vienna
        #[arg(long, value_name = "ZONE")]
        time_zone: Option<String>,
        /// Subject of the user at the OpenID provider
        #[arg(long, value_name = "SUBJECT")]
        oidc_subject: Option<String>,
        /// File with the password; default is a question on the terminal, or a line of standard input
        #[arg(long, value_name = "FILE", conflicts_with = "without_password")]
        password_file: Option<PathBuf>,
        /// No password: the user logs in by a link of `tocsin console open`, or through the OpenID provider
        #[arg(long)]
        without_password: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Replace the roles of a user; they apply at once
    SetRoles {
        /// Login name
        name: String,
        /// Role; repeatable, or comma-separated
        #[arg(long, value_delimiter = ',', required = true)]
        role: Vec<String>,
    },
    /// Reject logins of a user and end its sessions
    Disable {
        /// Login name
        name: String,
    },
    /// Allow logins of a disabled user
    Enable {
        /// Login name
        name: String,
    },
    /// Set the password of a user and end its sessions
    SetPassword {
        /// Login name
        name: String,
        /// File with the password; default is a question on the terminal, or a line of standard input
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
    /// Remove a user and end its sessions
    Delete {
        /// Login name
        name: String,
    },
    /// List sessions, or end one
    Sessions {
        /// Login name; default is all users
        name: Option<String>,
        /// End the session with this id
        #[arg(long, value_name = "ID", conflicts_with = "json")]
        end: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request, or no password can be read.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::List { json } => {
                let users = client.list("/v1/users", &[], 100_000).await?;
                if json {
                    return Ok(terminal.json(&users)?);
                }
                let rows: Vec<Vec<String>> = users.iter().map(user_row).collect();
                Ok(terminal.table(&["name", "display name", "roles", "state", "password", "last login"], &rows)?)
            }
            Action::Create {
                name,
                role,
                display_name,
                email,
                language,
                time_zone,
                oidc_subject,
                password_file,
                without_password,
                json,
            } => {
                let password = match without_password || (oidc_subject.is_some() && password_file.is_none()) {
                    true => None,
                    false => Some(read_password(terminal, password_file.as_deref())?),
                };
                let body = json!({
                    "name": name, "roles": role, "display_name": display_name, "email": email, "language": language,
                    "time_zone": time_zone, "oidc_subject": oidc_subject, "password": password,
                });
                let made = client.post("/v1/users", &body).await?;
                if json {
                    return Ok(terminal.json(&made)?);
                }
                let name = text(&made, "name");
                terminal.line(format_args!("the user {name} is created, with the roles: {}", list(&made, "roles")))?;
                if made["has_password"] != true {
                    terminal.line(format_args!("next: tocsin console open --user {name} prints a login link"))?;
                }
                Ok(())
            }
            Action::SetRoles { name, role } => {
                let changed = change(client, &name, &json!({ "roles": role })).await?;
                Ok(terminal.line(format_args!(
                    "{} has the roles: {}",
                    text(&changed, "name"),
                    list(&changed, "roles")
                ))?)
            }
            Action::Disable { name } => {
                change(client, &name, &json!({ "disabled": true })).await?;
                Ok(terminal.line(format_args!("{} is disabled and has no session", printable(&name)))?)
            }
            Action::Enable { name } => {
                change(client, &name, &json!({ "disabled": false })).await?;
                Ok(terminal.line(format_args!("{} is enabled", printable(&name)))?)
            }
            Action::SetPassword { name, password_file } => {
                let password = read_password(terminal, password_file.as_deref())?;
                let path = format!("/v1/users/{}/password", segment(&name));
                let request = client.request(Method::POST, &path).json(&json!({ "password": password }));
                client.send(request).await?;
                Ok(terminal
                    .line(format_args!("the password of {} is set; its sessions have ended", printable(&name)))?)
            }
            Action::Delete { name } => {
                client.send(client.request(Method::DELETE, &format!("/v1/users/{}", segment(&name)))).await?;
                Ok(terminal.line(format_args!("{} is removed", printable(&name)))?)
            }
            Action::Sessions { end: Some(id), .. } => {
                client.send(client.request(Method::DELETE, &format!("/v1/sessions/{}", segment(&id)))).await?;
                Ok(terminal.line(format_args!("the session {} has ended", printable(&id)))?)
            }
            Action::Sessions { name, end: None, json } => {
                let query: Vec<(&str, &str)> = name.iter().map(|name| ("user", name.as_str())).collect();
                let sessions = client.get("/v1/sessions", &query).await?;
                let sessions = sessions["items"].as_array().cloned().unwrap_or_default();
                if json {
                    return Ok(terminal.json(&sessions)?);
                }
                let rows: Vec<Vec<String>> = sessions.iter().map(session_row).collect();
                Ok(terminal.table(&["id", "user", "login", "last use", "address", "client"], &rows)?)
            }
        }
    }
}

async fn change(client: &Client, name: &str, body: &Value) -> Outcome<Value> {
    let request = client.request(Method::PATCH, &format!("/v1/users/{}", segment(name))).json(body);
    let answer = client.send(request).await?;
    client.json(answer).await
}

/// Reads a password: from a file, from the terminal without echo and twice, or as the first line of standard input.
fn read_password(terminal: &Terminal, file: Option<&Path>) -> Outcome<String> {
    if let Some(path) = file {
        let text = read_text_file("read the password from", path)?;
        return Ok(text.trim_end_matches(['\r', '\n']).to_owned());
    }
    if !terminal.can_ask() {
        return read_line();
    }
    let first = ask_hidden(terminal, "password: ")?;
    if ask_hidden(terminal, "repeat it: ")? != first {
        return Err(Failure::usage("the two passwords differ"));
    }
    Ok(first)
}

/// Asks without showing the answer.
fn ask_hidden(terminal: &Terminal, question: &str) -> Outcome<String> {
    terminal.bytes(question.as_bytes())?;
    let input = io::stdin();
    let failed =
        |error: rustix::io::Errno| Failure::failed("cannot hide the password on this terminal").because(&error);
    let shown = tcgetattr(&input).map_err(failed)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    hidden.local_modes.insert(LocalModes::ECHONL);
    tcsetattr(&input, OptionalActions::Flush, &hidden).map_err(failed)?;
    let line = read_line();
    tcsetattr(&input, OptionalActions::Flush, &shown).map_err(failed)?;
    line
}

fn read_line() -> Outcome<String> {
    let input = io::stdin();
    let mut line = String::new();
    let failed = |error| Failure::failed("cannot read the password from standard input").because(&error);
    input.lock().read_line(&mut line).map_err(failed)?;
    let line = line.trim_end_matches(['\r', '\n']).to_owned();
    match line.is_empty() && !input.is_terminal() {
        true => Err(Failure::usage("standard input has no password; give --password-file or --without-password")),
        false => Ok(line),
    }
}

fn user_row(user: &Value) -> Vec<String> {
    let state = if user["disabled"] == true { "disabled" } else { "enabled" };
    let password = if user["has_password"] == true { "yes" } else { "no" };
    let last = if user["last_login_at"].is_null() { "never".to_owned() } else { text(user, "last_login_at") };
    vec![text(user, "name"), text(user, "display_name"), list(user, "roles"), state.into(), password.into(), last]
}

fn session_row(session: &Value) -> Vec<String> {
    ["id", "user", "created_at", "last_used_at", "address", "user_agent"].map(|name| text(session, name)).to_vec()
}

fn text(of: &Value, name: &str) -> String {
    printable(of[name].as_str().unwrap_or_default()).into_owned()
}

fn list(of: &Value, name: &str) -> String {
    let words = of[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
    printable(&words.join(" ")).into_owned()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::commands::fake_server;

    #[tokio::test]
    async fn a_user_is_created_with_its_password_from_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("password");
        std::fs::write(&file, "correct horse battery\n").expect("written");
        let made = json!({"name": "ada", "roles": ["admin"], "has_password": true});
        fake_server::check(
            "users",
            &["create", "Ada", "--role", "admin", "--password-file", file.to_str().expect("a path")],
            vec![(201, made)],
            Args::run,
            expect![[r#"
                the user ada is created, with the roles: admin
                POST /v1/users [application/json] {"name":"Ada","roles":["admin"],"display_name":null,"email":null,"language":null,"time_zone":null,"oidc_subject":null,"password":"correct horse battery"}"#]],
        )
        .await;
        let made = json!({"name": "ben", "roles": ["operator", "reader"], "has_password": false});
        fake_server::check(
            "users",
            &["create", "ben", "--role", "operator,reader", "--without-password"],
            vec![(201, made)],
            Args::run,
            expect![[r#"
                the user ben is created, with the roles: operator reader
                next: tocsin console open --user ben prints a login link
                POST /v1/users [application/json] {"name":"ben","roles":["operator","reader"],"display_name":null,"email":null,"language":null,"time_zone":null,"oidc_subject":null,"password":null}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_user_is_disabled_and_its_session_ended() {
        fake_server::check(
            "users",
            &["disable", "ada"],
            vec![(200, json!({"name": "ada", "disabled": true}))],
            Args::run,
            expect![[r#"
                ada is disabled and has no session
                PATCH /v1/users/ada [application/json] {"disabled":true}"#]],
        )
        .await;
        fake_server::check(
            "users",
            &["sessions", "--end", "0a1b"],
            vec![(204, Value::Null)],
            Args::run,
            expect![[r#"
                the session 0a1b has ended
                DELETE /v1/sessions/0a1b"#]],
        )
        .await;
    }
}
