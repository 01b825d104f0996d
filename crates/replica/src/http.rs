//! Link to the server over HTTPS. Blocks are compressed with zstd in both directions.

use std::time::{Duration, SystemTime};

use reqwest::{Client, RequestBuilder, Response, StatusCode, header};
use serde::de::DeserializeOwned;
use tocsin_model::{
    http_date,
    replica::{Begin, BeginResponse, Uploaded},
};

use crate::{Link, LinkError, ServerCredentials};

const ZSTD_LEVEL: i32 = 1;
/// Maximum bytes of a downloaded block, decompressed.
const BLOCK_BYTES_MAX: usize = 64 << 20;

/// Extra time that a long poll may take beyond the requested wait.
const WAIT_MARGIN: Duration = Duration::from_secs(10);
/// Pause after a `busy` response without a retry time.
const BUSY_DEFAULT: Duration = Duration::from_secs(5);
/// Maximum pause that a server may request.
const BUSY_MAX: Duration = Duration::from_secs(3_600);

/// HTTPS link to a server.
pub struct HttpLink {
    client: Client,
    base: String,
    token: String,
}

impl HttpLink {
    /// Creates a link. `client` holds the trusted certificates.
    pub fn new(client: Client, server: &ServerCredentials) -> HttpLink {
        HttpLink { client, base: server.url.trim_end_matches('/').to_owned(), token: server.token.clone() }
    }

    fn at(&self, session: &str, rest: &str) -> String {
        format!("{}/v1/sync/sessions/{session}{rest}", self.base)
    }

    async fn send_request(&self, request: RequestBuilder) -> Result<Response, LinkError> {
        let response = request.bearer_auth(&self.token).send().await.map_err(broken)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let wishes = response.headers().get_all(header::RETRY_AFTER).iter().filter_map(|value| value.to_str().ok());
        let wait = http_date::retry_after(wishes, SystemTime::now().into(), BUSY_MAX);
        let text = response.text().await.unwrap_or_default();
        let problem: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let why = problem["detail"].as_str().or(problem["title"].as_str()).unwrap_or(&text).to_owned();
        Err(match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                LinkError::Busy(wait.unwrap_or(BUSY_DEFAULT))
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => LinkError::SessionEnded(why),
            status if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => LinkError::Broken(why),
            _ => LinkError::Refused(why),
        })
    }
}

fn broken(error: reqwest::Error) -> LinkError {
    LinkError::Broken(error.to_string())
}

async fn json<T: DeserializeOwned>(response: Response) -> Result<T, LinkError> {
    response.json().await.map_err(broken)
}

impl Link for HttpLink {
    async fn begin(&self, begin: &Begin) -> Result<BeginResponse, LinkError> {
        let request = self.client.post(format!("{}/v1/sync/sessions", self.base)).json(begin);
        match self.send_request(request).await {
            // There is no session yet that could be expired.
            Err(LinkError::SessionEnded(why)) => Err(LinkError::Refused(why)),
            answer => json(answer?).await,
        }
    }

    async fn upload(&self, session: &str, lines: Vec<u8>) -> Result<Uploaded, LinkError> {
        let packed = zstd::bulk::compress(&lines, ZSTD_LEVEL).map_err(|error| LinkError::Broken(error.to_string()))?;
        let request = self
            .client
            .post(self.at(session, "/changes"))
            .header(header::CONTENT_TYPE, "application/x-ndjson")
            .header(header::CONTENT_ENCODING, "zstd")
            .body(packed);
        json(self.send_request(request).await?).await
    }

    async fn download(&self, session: &str, cursor: &str) -> Result<Vec<u8>, LinkError> {
        // A cursor has no character that needs escaping in a URL.
        let request = self.client.get(self.at(session, &format!("/changes?cursor={cursor}")));
        let response = self.send_request(request.header(header::ACCEPT_ENCODING, "zstd")).await?;
        let is_packed = response.headers().get(header::CONTENT_ENCODING).is_some_and(|value| value == "zstd");
        let bytes = response.bytes().await.map_err(broken)?;
        if !is_packed {
            return Ok(bytes.to_vec());
        }
        zstd::bulk::decompress(&bytes, BLOCK_BYTES_MAX).map_err(|error| LinkError::Broken(error.to_string()))
    }

    async fn wait(&self, cursor: &str, longest: Duration) -> Result<bool, LinkError> {
        let at = format!("{}/v1/sync/wait?cursor={cursor}&seconds={}", self.base, longest.as_secs().max(1));
        let answer: serde_json::Value =
            json(self.send_request(self.client.get(at).timeout(longest + WAIT_MARGIN)).await?).await?;
        Ok(answer["news"].as_bool().unwrap_or(true))
    }

    async fn end(&self, session: &str) -> Result<(), LinkError> {
        self.send_request(self.client.delete(self.at(session, ""))).await.map(drop)
    }
}
