use crate::v1::infer_request::Input;
use crate::v1::{ChatInput, ChatMessage, InferRequest};
use crate::{Client, Error};

/// A chat whose messages are kept here and sent with each question; what the server has computed of them already it
/// does not compute again.
pub struct Conversation {
    /// What was said so far.
    pub messages: Vec<ChatMessage>,
    client: Client,
    options: InferRequest,
}

impl Conversation {
    pub(crate) fn new(client: Client, messages: Vec<ChatMessage>, options: InferRequest) -> Self {
        Self { messages, client, options }
    }

    /// Asks something and returns the answer.
    pub async fn say(&mut self, text: impl Into<String>) -> Result<String, Error> {
        self.stream(text, |_| ()).await
    }

    /// Asks something; the answer comes in parts, and is returned as a whole. Question and answer become messages when
    /// it is complete: one that fails, or is left early, was not said.
    pub async fn stream(&mut self, text: impl Into<String>, mut each: impl FnMut(&str)) -> Result<String, Error> {
        let mut asked = self.messages.clone();
        asked.push(ChatMessage::user(text));
        let chat = ChatInput { messages: asked.clone(), ..ChatInput::default() };
        let mut stream =
            self.client.stream(InferRequest { input: Some(Input::Chat(chat)), ..self.options.clone() }).await?;
        let mut answer = String::new();
        while let Some(part) = stream.next_text().await? {
            each(&part);
            answer.push_str(&part);
        }
        asked.push(ChatMessage::assistant(answer.clone()));
        self.messages = asked;
        Ok(answer)
    }
}
