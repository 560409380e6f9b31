//! Magnitude for tokio: [`Client`] talks to a server, [`v1`] is its contract.
//!
//! ```no_run
//! # async fn run() -> Result<(), magnitude::Error> {
//! use magnitude::{Client, v1::{ChatMessage, InferRequest}};
//!
//! let client = Client::builder("127.0.0.1:50051").connect()?;
//! let request = InferRequest::chat([ChatMessage::user("Write a haiku about rain.")]).max_tokens(48);
//! let mut stream = client.stream(request).await?;
//! while let Some(text) = stream.next_text().await? {
//!     print!("{text}");
//! }
//! # Ok(())
//! # }
//! ```

mod client;
mod conversation;
mod error;
mod names;
mod request;
mod retry;
mod session;
mod stream;

/// The contract: messages and stubs, generated.
#[allow(clippy::all, rustdoc::all)]
#[rustfmt::skip]
#[path = "v1/magnitude.v1.rs"]
pub mod v1;

pub use client::{Builder, Client};
pub use conversation::Conversation;
pub use error::{Code, Error};
pub use session::{Session, State};
pub use stream::Stream;
pub use tonic::transport::{Certificate, ClientTlsConfig, Identity};
