//! Which calls are made again, and when: as the service config of the other clients says, which tonic does not read.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

use crate::Error;
use crate::error::code;
use crate::v1::InferRequest;

const ATTEMPTS_MAX: u32 = 4;
const BACKOFF_INITIAL: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// What the server asks for: milliseconds to wait; what is no such number forbids another attempt.
const PUSHBACK_KEY: &str = "grpc-retry-pushback-ms";

/// When a call that failed is made again.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Repeats {
    /// Whenever the failure may pass: the call changes nothing, or the same thing twice.
    Harmless,
    /// Only where the server refused it for now, which an error with a delay says: then nothing was done.
    Refused,
    Never,
}

impl Repeats {
    /// Those of a request. What fails in saving a session afterwards fails when it has the answer already: whether there
    /// was one cannot be told.
    pub(crate) fn of(request: &InferRequest) -> Self {
        match (request.session_id.is_empty(), &request.snapshot_afterwards) {
            (true, _) => Self::Harmless,
            (false, None) => Self::Refused,
            (false, Some(_)) => Self::Never,
        }
    }
}

/// Attempts a call until it succeeds, fails for good, or the deadline passes. `attempt` gets a fresh request each time.
pub(crate) async fn call<T, M: Clone>(
    message: M,
    deadline: Option<Instant>,
    repeats: Repeats,
    mut attempt: impl AsyncFnMut(Request<M>) -> Result<tonic::Response<T>, Status>,
) -> Result<T, Error> {
    let attempts = async {
        let mut backoff = BACKOFF_INITIAL;
        for left in (0..ATTEMPTS_MAX).rev() {
            let mut request = Request::new(message.clone());
            if let Some(deadline) = deadline {
                request.set_timeout(deadline.saturating_duration_since(Instant::now()));
            }
            match attempt(request).await {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) => {
                    match delay(&status, backoff, repeats).filter(|delay| left > 0 && fits(*delay, deadline)) {
                        Some(delay) => sleep(delay).await,
                        None => return Err(failure(status, deadline)),
                    }
                }
            }
            backoff = BACKOFF_MAX.min(backoff * 2);
        }
        unreachable!("the last attempt returns")
    };
    match deadline {
        Some(deadline) => timeout_at(deadline, attempts).await.unwrap_or_else(|_| Err(late())),
        None => attempts.await,
    }
}

/// Whether a wait ends before the deadline; if not, the refusal says more than that the time is over.
fn fits(delay: Duration, deadline: Option<Instant>) -> bool {
    deadline.is_none_or(|deadline| Instant::now() + delay < deadline)
}

/// The error of a status. What tonic cancels by itself when the time is over (its timer may be the first) is late.
pub(crate) fn failure(status: Status, deadline: Option<Instant>) -> Error {
    let is_late = deadline.is_some_and(|deadline| deadline <= Instant::now());
    if is_late && status.code() == Code::Cancelled { late() } else { status.into() }
}

/// The error of a deadline that passed here.
pub(crate) fn late() -> Error {
    Error::new(Code::DeadlineExceeded, "The call's timeout passed.")
}

/// How long to wait before the next attempt; absent where there should be none.
fn delay(status: &Status, backoff: Duration, repeats: Repeats) -> Option<Duration> {
    match repeats {
        Repeats::Harmless => {}
        Repeats::Refused => return status.get_error_details().retry_info().and_then(|info| info.retry_delay),
        Repeats::Never => return None,
    }
    if !matches!(code(status), Code::Unavailable | Code::ResourceExhausted) {
        return None;
    }
    match status.metadata().get(PUSHBACK_KEY) {
        Some(pushback) => pushback.to_str().ok()?.parse().ok().map(Duration::from_millis),
        None => Some(backoff.mul_f64(0.8 + 0.4 * jitter())),
    }
}

/// Between 0 and 1, so that clients that were refused together do not come back together.
fn jitter() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    f64::from(now.subsec_nanos() % 1_000_000) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::metadata::MetadataMap;

    fn pushed_back(code: Code, milliseconds: &str) -> Status {
        let mut metadata = MetadataMap::new();
        metadata.insert(PUSHBACK_KEY, milliseconds.parse().unwrap());
        Status::with_metadata(code, "", metadata)
    }

    #[test]
    fn the_pushback_says_how_long_to_wait_or_that_it_is_of_no_use() {
        let wait = |status: &Status| delay(status, BACKOFF_INITIAL, Repeats::Harmless);
        assert_eq!(wait(&pushed_back(Code::Unavailable, "1500")), Some(Duration::from_millis(1500)));
        assert_eq!(wait(&pushed_back(Code::ResourceExhausted, "-1")), None);
        assert_eq!(wait(&pushed_back(Code::InvalidArgument, "1500")), None);
    }

    #[test]
    fn without_a_pushback_the_backoff_is_waited_for_give_or_take_a_fifth() {
        let waited = delay(&Status::unavailable(""), BACKOFF_INITIAL, Repeats::Harmless).unwrap();
        assert!(waited >= BACKOFF_INITIAL.mul_f64(0.79) && waited <= BACKOFF_INITIAL.mul_f64(1.21));
        assert_eq!(delay(&Status::internal(""), BACKOFF_INITIAL, Repeats::Harmless), None);
    }

    #[test]
    fn what_changes_something_waits_only_where_the_server_refused_it_for_now() {
        let details = tonic_types::ErrorDetails::with_retry_info(Some(Duration::from_secs(2)));
        let refused = Status::with_error_details(Code::Unavailable, "", details);
        assert_eq!(delay(&refused, BACKOFF_INITIAL, Repeats::Refused), Some(Duration::from_secs(2)));
        assert_eq!(delay(&Status::unavailable(""), BACKOFF_INITIAL, Repeats::Refused), None);
        assert_eq!(delay(&refused, BACKOFF_INITIAL, Repeats::Never), None);
    }
}
