//! Streams an answer: cargo run --example stream [ADDRESS] [PROMPT]

use std::io::Write;

use magnitude::Client;
use magnitude::v1::{ChatMessage, InferRequest};

#[tokio::main]
async fn main() -> Result<(), magnitude::Error> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:50051".into());
    let prompt = arguments.next().unwrap_or("Write a haiku about rain.".into());
    let client = Client::builder(address).connect()?;
    let mut stream = client.stream(InferRequest::chat([ChatMessage::user(prompt)]).max_tokens(64)).await?;
    while let Some(text) = stream.next_text().await? {
        print!("{text}");
        std::io::stdout().flush().ok();
    }
    let finished = stream.finished.unwrap_or_default();
    let (usage, timings) = (finished.usage.unwrap_or_default(), finished.timings.unwrap_or_default());
    let rate = f64::from(usage.completion_tokens) / timings.decode_ms.max(1e-3) * 1e3;
    println!("\n{} + {} tokens, {rate:.1} tokens/s", usage.prompt_tokens, usage.completion_tokens);
    Ok(())
}
