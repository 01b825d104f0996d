//! Request bodies that pause for too long.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body paused for too long.
#[derive(Debug, thiserror::Error)]
#[error("the body paused for more than {0:?}")]
pub struct BodyIdle(pub Duration);

/// A body that ends with an error when it pauses for too long. The timer is only made when there is a pause.
pub struct IdleBody<B> {
    body: B,
    idle: Duration,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<B> IdleBody<B> {
    /// A body whose pauses are limited to `idle`.
    pub fn new(body: B, idle: Duration) -> Self {
        IdleBody { body, idle, pause: None }
    }
}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin> HttpBody for IdleBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                this.pause = None;
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                let idle = this.idle;
                let pause = this.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + idle)));
                pause.as_mut().poll(cx).map(|()| Some(Err(BodyIdle(idle).into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
