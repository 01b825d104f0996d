//! Server with the NotifyBC interface, and clients for each role.

use std::{fs, net::IpAddr};

use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tocsin_test_peers::reserved_port;

use crate::{
    support::{Platform, until_within, wait_timeout},
    target::fill_data_folder,
};

/// A role of the callers of a [`NotifybcServer`] whose configuration leaves `adminIps` to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// From the address 127.0.0.2.
    SuperAdmin,
    /// With an access token.
    Admin,
    /// With the SiteMinder header `sm_user: ann`.
    User,
    /// Without credentials.
    Anonymous,
}

/// A running server.
pub struct NotifybcServer {
    /// The process, with its native interface.
    pub platform: Platform,
    /// Base URL with the root, such as `http://127.0.0.1:3000/api`.
    pub url: String,
    token: String,
    admin: Client,
    other: Client,
    _folder: tempfile::TempDir,
}

/// Answer of a request.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub kind: String,
    pub location: String,
    pub text: String,
}

impl Reply {
    pub async fn of(response: Response) -> Reply {
        let header = |name: &str| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        Reply {
            status: response.status().as_u16(),
            kind: header("content-type"),
            location: header("location"),
            text: response.text().await.expect("a body"),
        }
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The JSON of a reply with status 200.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// The id of the record in a reply with status 200.
    pub fn id(&self) -> String {
        self.ok()["id"].as_str().expect("an id").to_owned()
    }
}

/// A client from this loopback address that follows no redirects.
pub fn client_from(address: [u8; 4]) -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder().local_address(IpAddr::from(address)).timeout(wait_timeout());
    builder.redirect(reqwest::redirect::Policy::none()).no_proxy().build().expect("a client")
}

impl NotifybcServer {
    /// Starts a server with this configuration document. Super-admins come from 127.0.0.2 unless it has `adminIps`.
    pub async fn start(document: Value) -> NotifybcServer {
        NotifybcServer::start_without_admin(document).await.with_admin().await
    }

    /// As `start`, without an administrator.
    pub async fn start_without_admin(mut document: Value) -> NotifybcServer {
        let folder = tempfile::tempdir().expect("a folder");
        let port = reserved_port();
        document["port"] = json!(port);
        document["host"] = json!("127.0.0.1");
        if document["adminIps"].is_null() {
            document["adminIps"] = json!(["127.0.0.2"]);
        }
        let path = folder.path().join("notifybc.json");
        fs::write(&path, document.to_string()).expect("written");
        let path = path.to_str().expect("UTF-8");
        let networks = ("TOCSIN_DELIVERY_ALLOW_NETWORKS", "127.0.0.0/8");
        let data = folder.path().join("data");
        fill_data_folder(&data).await;
        let platform = Platform::start_in(&data, &[("TOCSIN_NOTIFYBC_CONFIG", path), networks]).await;
        let root = document["restApiRoot"].as_str().unwrap_or("/api");
        NotifybcServer {
            platform,
            url: format!("http://127.0.0.1:{port}{root}"),
            token: String::new(),
            admin: client_from([127, 0, 0, 2]),
            other: client_from([127, 0, 0, 1]),
            _folder: folder,
        }
    }

    async fn with_admin(mut self) -> NotifybcServer {
        let admin = json!({ "email": "admin@example.org", "password": "1aA@aaaaaa" });
        let id = self.post(Role::SuperAdmin, "/administrators", &admin).await.id();
        let token = self.post(Role::SuperAdmin, &format!("/administrators/{id}/access-tokens"), &json!({})).await;
        self.token = token.id();
        self
    }

    /// Waits until `/health` is ok: the key pair of the installation is made.
    pub async fn healthy(&self) -> Value {
        let mut found = Value::Null;
        until_within(wait_timeout() * 6, "the interface is healthy", async || {
            let reply = self.get(Role::Anonymous, "/health").await;
            found = reply.json();
            reply.status == 200
        })
        .await;
        found
    }

    /// Request of a role.
    pub fn request(&self, role: Role, method: Method, path: &str) -> RequestBuilder {
        let url = format!("{}{path}", self.url);
        match role {
            Role::SuperAdmin => self.admin.request(method, url),
            Role::Admin => self.other.request(method, url).header("Authorization", &self.token),
            Role::User => self.other.request(method, url).header("sm_user", "ann"),
            Role::Anonymous => self.other.request(method, url),
        }
    }

    pub async fn get(&self, role: Role, path: &str) -> Reply {
        self.send(self.request(role, Method::GET, path)).await
    }

    pub async fn post(&self, role: Role, path: &str, body: &Value) -> Reply {
        self.send(self.request(role, Method::POST, path).json(body)).await
    }

    pub async fn patch(&self, role: Role, path: &str, body: &Value) -> Reply {
        self.send(self.request(role, Method::PATCH, path).json(body)).await
    }

    pub async fn put(&self, role: Role, path: &str, body: &Value) -> Reply {
        self.send(self.request(role, Method::PUT, path).json(body)).await
    }

    pub async fn delete(&self, role: Role, path: &str) -> Reply {
        self.send(self.request(role, Method::DELETE, path)).await
    }

    pub async fn send(&self, request: RequestBuilder) -> Reply {
        Reply::of(request.send().await.expect("an answer")).await
    }

    /// The answer of `whoami`.
    pub async fn whoami(&self, request: RequestBuilder) -> Value {
        self.send(request).await.ok()
    }
}

/// A query parameter with a JSON value, encoded.
pub fn query(name: &str, value: Value) -> String {
    let encoded: String = reqwest::Url::parse_with_params("http://localhost/", [(name, value.to_string())])
        .expect("a URL")
        .query()
        .expect("a query")
        .to_owned();
    format!("?{encoded}")
}
