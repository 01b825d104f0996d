//! Set of running requests of one connection.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};

use crate::session::RequestResult;

/// Running requests, by message id. Most clients send one request at a time, so the first is stored inline; further
/// ones share a `FuturesUnordered`.
#[derive(Default)]
pub(crate) struct RunningRequests {
    one: Option<NumberedRequest>,
    others: FuturesUnordered<NumberedRequest>,
}

struct NumberedRequest {
    id: u32,
    future: BoxFuture<'static, RequestResult>,
}

impl Future for NumberedRequest {
    type Output = (u32, RequestResult);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(u32, RequestResult)> {
        let id = self.id;
        self.future.as_mut().poll(context).map(|done| (id, done))
    }
}

impl RunningRequests {
    pub(crate) fn len(&self) -> usize {
        usize::from(self.one.is_some()) + self.others.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn push(&mut self, id: u32, future: BoxFuture<'static, RequestResult>) {
        let new = NumberedRequest { id, future };
        match &self.one {
            None => self.one = Some(new),
            Some(_) => self.others.push(new),
        }
    }

    /// The next completed request; pending while there is none. Cancel-safe.
    pub(crate) async fn next(&mut self) -> (u32, RequestResult) {
        poll_fn(|context| {
            if let Some(one) = &mut self.one
                && let Poll::Ready(done) = Pin::new(one).poll(context)
            {
                self.one = None;
                return Poll::Ready(done);
            }
            match self.others.poll_next_unpin(context) {
                Poll::Ready(Some(done)) => Poll::Ready(done),
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn each_request_is_returned_when_it_is_done() {
        let mut under_way = RunningRequests::default();
        assert!(under_way.next().now_or_never().is_none(), "there is none");
        let mut begin = |id: u32| {
            let (done, is_done) = oneshot::channel::<()>();
            let future = async move {
                let _ = is_done.await;
                RequestResult::Answer(vec![id as u8])
            };
            under_way.push(id, future.boxed());
            done
        };
        let [one, two, three] = [1, 2, 3].map(&mut begin);
        assert_eq!(under_way.len(), 3);
        let mut next = |expected: Option<u32>| {
            let found = under_way.next().now_or_never();
            assert!(
                found
                    .as_ref()
                    .is_none_or(|(id, done)| matches!(done, RequestResult::Answer(said) if *said == [*id as u8]))
            );
            assert_eq!(found.map(|(id, _)| id), expected);
        };
        next(None);
        drop(three);
        next(Some(3));
        drop(one);
        next(Some(1));
        next(None);
        drop(two);
        next(Some(2));
        assert!(under_way.is_empty());
    }
}
