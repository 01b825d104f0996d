//! A stream whose writes fail when the peer reads nothing for too long.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

/// A stream whose writes end with [`io::ErrorKind::TimedOut`] when none of their bytes could be written for `timeout`.
/// The timer exists only while a write waits.
pub struct WriteTimeout<S> {
    stream: S,
    timeout: Duration,
    stall: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    /// A stream with this timeout.
    pub fn new(stream: S, timeout: Duration) -> Self {
        WriteTimeout { stream, timeout, stall: None }
    }

    /// Starts or polls the timer while the stream is not ready, and removes it when it is.
    fn watch<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        let timeout = self.timeout;
        let stall = self.stall.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + timeout)));
        stall.as_mut().poll(cx).map(|()| {
            metrics::counter!("tocsin_http_write_timeouts_total").increment(1);
            Err(io::Error::new(io::ErrorKind::TimedOut, "the client read nothing of the answer"))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watch(shut, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a20_a_peer_that_reads_slowly_is_served_and_one_that_stops_is_not() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut stream = WriteTimeout::new(ours, Duration::from_secs(30));
        let writer = tokio::spawn(async move {
            let first = stream.write_all(&[7; 256]).await;
            (first, stream.write_all(&[7; 256]).await)
        });
        for _ in 0..4 {
            tokio::time::advance(Duration::from_secs(20)).await;
            let mut some = [0; 64];
            theirs.read_exact(&mut some).await.expect("bytes");
        }
        let (first, second) = writer.await.expect("no panic");
        first.expect("the peer read something every 20 s");
        assert_eq!(second.expect_err("the peer reads nothing any more").kind(), io::ErrorKind::TimedOut);
    }
}
