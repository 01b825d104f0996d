//! The credential of a request after it was checked. A request is authenticated once, at its begin; what goes on for long
//! ends when its key is revoked, expires or gets other rights: bodies at their next frame, waits and streams at once.

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
use tocsin_service::{Caller, CredentialEnd, ServiceError};

use crate::{App, problems::Failure};

/// The key of a request was good when it began, and is not any more.
#[derive(Debug, thiserror::Error)]
#[error("{}", ServiceError::from(*.0))]
pub(crate) struct CredentialEnded(pub(crate) CredentialEnd);

/// A mark of answers that end by themselves with the key of their caller, and say so.
#[derive(Clone)]
pub(crate) struct EndsItself;

/// Lets the body of a request end with the key of its caller.
pub(crate) fn bind_request(app: &Arc<App>, caller: &Caller, request: Request) -> Request {
    if request.body().is_end_stream() {
        return request;
    }
    request.map(|body| bind(app, caller, body))
}

/// Lets an answer that is made while it is sent end with the key of its caller. One that is made already is sent whole.
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
    /// Waits for an answer, as long as the key of its caller is good.
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

/// A body that ends with an error when the key of its request is not good any more. The key is checked at each frame:
/// between frames nothing is read and nothing is sent.
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
