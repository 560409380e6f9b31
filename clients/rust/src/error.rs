use std::collections::HashMap;
use std::time::Duration;

pub use tonic::Code;
use tonic::Status;
use tonic_types::StatusExt;

/// What a call failed with: a gRPC status, and the `google.rpc` details that the server sends with it.
#[derive(Debug, Clone)]
pub struct Error {
    /// The gRPC status.
    pub code: Code,
    /// What was found, what is allowed, and what to do.
    pub message: String,
    /// The server's word for it ("CONTEXT_LENGTH_EXCEEDED"); empty if it did not come from the server.
    pub reason: String,
    /// The parts of the message by name.
    pub details: HashMap<String, String>,
    /// The paths of fields at fault, with what is wrong.
    pub field_violations: HashMap<String, String>,
    /// How long to wait, where waiting helps.
    pub retry_after: Option<Duration>,
}

impl Error {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Status::new(code, message).into()
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let found = status.get_error_details();
        let (reason, details) =
            found.error_info().map(|info| (info.reason.clone(), info.metadata.clone())).unwrap_or_default();
        let violations = found.bad_request().map(|bad| bad.field_violations.as_slice()).unwrap_or_default();
        Error {
            code: code(&status),
            message: broken(&status).unwrap_or_else(|| status.message().to_owned()),
            reason,
            details,
            field_violations: violations.iter().map(|v| (v.field.clone(), v.description.clone())).collect(),
            retry_after: found.retry_info().and_then(|info| info.retry_delay),
        }
    }
}

/// The status of a failed call.
pub(crate) fn code(status: &Status) -> Code {
    broken(status).map_or(status.code(), |_| Code::Unavailable)
}

/// Why a connection broke, where it did: in other gRPC libraries that is UNAVAILABLE, to tonic also UNKNOWN or CANCELLED.
fn broken(status: &Status) -> Option<String> {
    let mut cause = std::error::Error::source(status).filter(|source| source.is::<tonic::transport::Error>())?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    matches!(status.code(), Code::Unknown | Code::Cancelled).then(|| format!("{}: {cause}", status.message()))
}

impl std::fmt::Display for Error {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?}: {}", self.code, self.message)
    }
}

impl std::error::Error for Error {}
