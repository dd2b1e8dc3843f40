//! Waits for the first of two futures.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Returns the output of the future that is ready first, or of `first` if both are. The other is dropped.
pub(super) async fn race<T>(first: impl Future<Output = T>, second: impl Future<Output = T>) -> T {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(output),
        Poll::Pending => second.as_mut().poll(context),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn the_first_that_is_ready_wins() {
        let runtime = Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(race(ready(1), ready(2))), 1);
        assert_eq!(runtime.block_on(race(pending(), ready(2))), 2);
        assert_eq!(runtime.block_on(race(ready(1), pending())), 1);
        assert_eq!(runtime.block_on(race(tokio::task::yield_now(), pending())), ());
    }
}
