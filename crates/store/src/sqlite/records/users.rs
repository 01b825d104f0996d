//! Users of the console and their sessions.

use rusqlite::{Connection, Row};
use tocsin_model::time::Timestamp;

use super::{images, transaction::RecordsTransaction};
use crate::{
    error::StoreError,
    records::{Precondition, SESSIONS_OF_USER_MAX, Session, USERS_MAX, User, user_noun},
    sqlite::statements::{execute, json, json_at, number_at, query_all, query_one, signed},
};

const USER_COLUMNS: &str = "name, display_name, email, roles, password, oidc_subject, language, time_zone, disabled, \
    created_at, updated_at, last_login_at, revision";
const SESSION_COLUMNS: &str =
    "id, hash, user_name, created_at, last_used_at, expires_at, reauthenticated_at, address, user_agent";

fn user_of(row: &Row<'_>) -> rusqlite::Result<User> {
    Ok(User {
        name: row.get(0)?,
        display_name: row.get(1)?,
        email: row.get(2)?,
        roles: json_at(row, 3)?,
        password: row.get(4)?,
        oidc_subject: row.get(5)?,
        language: row.get(6)?,
        time_zone: row.get(7)?,
        disabled: row.get(8)?,
        created_at: Timestamp(row.get(9)?),
        updated_at: Timestamp(row.get(10)?),
        last_login_at: row.get::<_, Option<i64>>(11)?.map(Timestamp),
        revision: number_at(row, 12)?,
    })
}

fn session_of(row: &Row<'_>) -> rusqlite::Result<Session> {
    Ok(Session {
        id: row.get(0)?,
        hash: row.get(1)?,
        user: row.get(2)?,
        created_at: Timestamp(row.get(3)?),
        last_used_at: Timestamp(row.get(4)?),
        expires_at: Timestamp(row.get(5)?),
        reauthenticated_at: Timestamp(row.get(6)?),
        address: row.get(7)?,
        user_agent: row.get(8)?,
    })
}

pub(super) fn all(connection: &Connection) -> Result<Vec<User>, StoreError> {
    query_all(connection, &format!("SELECT {USER_COLUMNS} FROM users ORDER BY name"), (), user_of)
}

fn find(connection: &Connection, name: &str) -> Result<Option<User>, StoreError> {
    query_one(connection, &format!("SELECT {USER_COLUMNS} FROM users WHERE name = ?1"), [name], user_of)
}

pub(super) fn put(
    tx: &mut RecordsTransaction<'_>,
    user: User,
    expect: Precondition,
    now: Timestamp,
) -> Result<User, StoreError> {
    let old = find(tx.connection, &user.name)?;
    expect.check(old.as_ref().map(|old| old.revision), || user_noun(&user.name))?;
    if let Some(subject) = &user.oidc_subject {
        let sql = "SELECT name FROM users WHERE oidc_subject = ?1 AND name <> ?2";
        let other = query_one(tx.connection, sql, (subject, &user.name), |row| row.get::<_, String>(0))?;
        if let Some(other) = other {
            return Err(StoreError::Taken(format!("the OpenID subject of {}", user_noun(&other))));
        }
    }
    let stored = match &old {
        Some(old) => user.over(old, now),
        None => {
            let count = query_one(tx.connection, "SELECT count(*) FROM users", (), |row| number_at(row, 0))?;
            if count.unwrap_or_default() >= USERS_MAX as u64 {
                return Err(StoreError::Full(format!("there are {USERS_MAX} users")));
            }
            User { created_at: now, updated_at: now, last_login_at: None, revision: 1, ..user }
        }
    };
    if old.as_ref() == Some(&stored) {
        return Ok(stored);
    }
    images::user(old.as_ref(), Some(&stored));
    execute(
        tx.connection,
        "INSERT INTO users (name, display_name, email, roles, password, oidc_subject, language, time_zone, disabled,
            created_at, updated_at, last_login_at, revision)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
            ON CONFLICT (name) DO UPDATE SET display_name = ?2, email = ?3, roles = ?4, password = ?5,
                oidc_subject = ?6, language = ?7, time_zone = ?8, disabled = ?9, updated_at = ?11, revision = ?13",
        (
            &stored.name,
            &stored.display_name,
            &stored.email,
            json(&stored.roles),
            &stored.password,
            &stored.oidc_subject,
            &stored.language,
            &stored.time_zone,
            stored.disabled,
            stored.created_at.0,
            stored.updated_at.0,
            stored.last_login_at.map(|time| time.0),
            signed(stored.revision),
        ),
    )?;
    Ok(stored)
}

pub(super) fn remove(tx: &mut RecordsTransaction<'_>, name: &str) -> Result<(), StoreError> {
    images::user(find(tx.connection, name)?.as_ref(), None);
    execute(tx.connection, "DELETE FROM sessions WHERE user_name = ?1", [name])?;
    match execute(tx.connection, "DELETE FROM users WHERE name = ?1", [name])? {
        0 => Err(StoreError::Missing(user_noun(name))),
        _ => Ok(()),
    }
}

pub(super) fn sessions(connection: &Connection) -> Result<Vec<Session>, StoreError> {
    query_all(connection, &format!("SELECT {SESSION_COLUMNS} FROM sessions ORDER BY created_at, id"), (), session_of)
}

pub(super) fn put_session(tx: &mut RecordsTransaction<'_>, session: &Session) -> Result<Vec<String>, StoreError> {
    let renewed = execute(
        tx.connection,
        "UPDATE sessions SET hash = ?2, last_used_at = ?3, expires_at = ?4, reauthenticated_at = ?5 WHERE id = ?1",
        (&session.id, &session.hash, session.last_used_at.0, session.expires_at.0, session.reauthenticated_at.0),
    )?;
    if renewed > 0 {
        return Ok(Vec::new());
    }
    let login = "UPDATE users SET last_login_at = ?2 WHERE name = ?1";
    if execute(tx.connection, login, (&session.user, session.created_at.0))? == 0 {
        return Err(StoreError::Missing(user_noun(&session.user)));
    }
    let sql = "SELECT id FROM sessions WHERE user_name = ?1 ORDER BY last_used_at DESC, id DESC";
    let mut present: Vec<String> = query_all(tx.connection, sql, [&session.user], |row| row.get(0))?;
    let ended = present.split_off(present.len().min(SESSIONS_OF_USER_MAX - 1));
    remove_sessions(tx, &ended)?;
    images::session(session);
    execute(
        tx.connection,
        "INSERT INTO sessions (id, hash, user_name, created_at, last_used_at, expires_at, reauthenticated_at, address,
            user_agent) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        (
            &session.id,
            &session.hash,
            &session.user,
            session.created_at.0,
            session.last_used_at.0,
            session.expires_at.0,
            session.reauthenticated_at.0,
            &session.address,
            &session.user_agent,
        ),
    )?;
    Ok(ended)
}

pub(super) fn touch_sessions(tx: &mut RecordsTransaction<'_>, used: &[(String, Timestamp)]) -> Result<(), StoreError> {
    for (id, at) in used {
        execute(tx.connection, "UPDATE sessions SET last_used_at = ?2 WHERE id = ?1", (id, at.0))?;
    }
    Ok(())
}

pub(super) fn remove_sessions(tx: &mut RecordsTransaction<'_>, ids: &[String]) -> Result<(), StoreError> {
    for id in ids {
        images::session_end(id);
        execute(tx.connection, "DELETE FROM sessions WHERE id = ?1", [id])?;
    }
    Ok(())
}
