//! Enforcement of credentials during long requests. A request is authenticated once, at its start. When its key is
//! revoked, expires or changes its rights, request bodies end at their next frame, and waits and streams end at once.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    response::Response,
};
use hyper::body::{Frame, SizeHint};
use tocsin_service::{Caller, ServiceError};

use crate::{app::App, body_errors::CredentialEnded, problems::Failure};

/// Extension that marks responses which end with the caller's key and say so themselves.
#[derive(Clone)]
pub(crate) struct EndsItself;

/// Ends the request body when the caller's key becomes invalid.
pub(crate) fn bind_request(app: &Arc<App>, caller: &Caller, request: Request) -> Request {
    if request.body().is_end_stream() {
        return request;
    }
    request.map(|body| bind(app, caller, body))
}

/// Ends a streamed response when the caller's key becomes invalid. A complete response is sent whole.
pub(crate) fn bind_response(app: &Arc<App>, caller: &Caller, response: Response) -> Response {
    if response.body().size_hint().exact().is_some() || response.extensions().get::<EndsItself>().is_some() {
        return response;
    }
    response.map(|body| bind(app, caller, body))
}

fn bind(app: &Arc<App>, caller: &Caller, body: Body) -> Body {
    Body::new(CredentialBody { body, app: app.clone(), caller: caller.clone(), is_over: false })
}

impl App {
    /// Waits for a response while the caller's key is valid.
    pub(crate) async fn while_good<T>(
        &self,
        caller: &Caller,
        answer: impl Future<Output = Result<T, ServiceError>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            answer = answer => Ok(answer?),
            end = self.service.key_ended(caller) => Err(ServiceError::from(end).into()),
        }
    }
}

/// A body that fails when the key of its request becomes invalid. The key is checked at each frame.
struct CredentialBody {
    body: Body,
    app: Arc<App>,
    caller: Caller,
    /// Whether its last frame was read. It may be polled again, as compression does.
    is_over: bool,
}

impl HttpBody for CredentialBody {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        let frame: Option<Result<Frame<Bytes>, Self::Error>> = match self.app.service.key_end(&self.caller) {
            Some(end) => Some(Err(CredentialEnded(end).into())),
            None => frame.map(|frame| frame.map_err(Into::into)),
        };
        self.is_over = !matches!(frame, Some(Ok(_)));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
