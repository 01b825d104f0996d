//! Logins of the web console through an OpenID provider.

use std::{collections::BTreeMap, sync::Arc};

use tocsin_face_http::OpenidOptions;
use tocsin_openid::{Provider, ProviderOptions};
use tocsin_service::roles::find_role;

use crate::{
    configuration::Oidc,
    failure::{Failure, Outcome, read_text_file},
};

/// The options of the face; `None`: no provider is configured.
///
/// # Errors
/// The configuration is not complete or valid.
pub fn options(oidc: &Oidc, public_url: Option<&str>) -> Outcome<Option<OpenidOptions>> {
    if oidc.issuer.is_empty() {
        return match oidc.only {
            true => Err(Failure::usage("`oidc.only` needs `oidc.issuer`: no user could log in")),
            false => Ok(None),
        };
    }
    let wrong = |key: &str, problem: &str| Failure::usage(format!("`oidc.{key}` {problem}"));
    let issuer: reqwest::Url = oidc.issuer.parse().map_err(|_| wrong("issuer", "is not a URL"))?;
    let host = issuer.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let is_loopback = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if issuer.scheme() != "https" && !is_loopback {
        return Err(wrong("issuer", "is not an https URL"));
    }
    if oidc.client_id.is_empty() {
        return Err(wrong("client_id", "is empty"));
    }
    if public_url.is_none() {
        return Err(Failure::usage("`oidc.issuer` needs `http.public_url`, to which the provider sends browsers back"));
    }
    let client_secret = match oidc.client_secret_file.as_os_str().is_empty() {
        true => None,
        false => Some(read_text_file("read the client secret from", &oidc.client_secret_file)?.trim().to_owned()),
    };
    let mut roles = BTreeMap::new();
    for entry in &oidc.roles {
        let (value, role) =
            entry.rsplit_once('=').ok_or_else(|| wrong("roles", "has an entry that is not VALUE=ROLE"))?;
        if find_role(role).is_none() {
            return Err(wrong(
                "roles",
                &format!("names `{role}`, which is not a role; `tocsin keys roles` lists them"),
            ));
        }
        roles.insert(value.to_owned(), role.to_owned());
    }
    let options = ProviderOptions {
        issuer,
        client_id: oidc.client_id.clone(),
        client_secret,
        scopes: oidc.scopes.clone(),
        roles_claim: oidc.roles_claim.clone(),
        roles,
    };
    let provider = Provider::new(options).map_err(|error| Failure::failed("cannot use OpenID").because(&error))?;
    Ok(Some(OpenidOptions { provider: Arc::new(provider), name: oidc.name.clone(), only: oidc.only }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_configuration_is_refused_at_the_start() {
        let complete = Oidc {
            issuer: "https://id.example.org".to_owned(),
            client_id: "tocsin".to_owned(),
            roles: vec!["ou=ops,dc=x=operator".to_owned()],
            ..Oidc::default()
        };
        let check = |oidc: Oidc, public: Option<&str>| options(&oidc, public).map(|found| found.is_some());
        let url = Some("https://tocsin.example");
        assert!(check(complete.clone(), url).is_ok_and(|found| found));
        assert!(check(Oidc::default(), None).is_ok_and(|found| !found));
        for (oidc, public, expected) in [
            (Oidc { only: true, ..Oidc::default() }, url, "oidc.only"),
            (Oidc { issuer: "id.example.org".to_owned(), ..complete.clone() }, url, "oidc.issuer"),
            (Oidc { issuer: "http://id.example.org".to_owned(), ..complete.clone() }, url, "oidc.issuer"),
            (Oidc { client_id: String::new(), ..complete.clone() }, url, "oidc.client_id"),
            (Oidc { roles: vec!["ops".to_owned()], ..complete.clone() }, url, "oidc.roles"),
            (Oidc { roles: vec!["ops=king".to_owned()], ..complete.clone() }, url, "king"),
            (Oidc { client_secret_file: "/none".into(), ..complete.clone() }, url, "/none"),
            (complete, None, "http.public_url"),
        ] {
            let error = options(&oidc, public).err().map(|failure| failure.to_string()).unwrap_or_default();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
