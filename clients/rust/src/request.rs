//! Requests of one line. What is absent takes the server's default, which stands beside each field of the contract;
//! further fields are set as those of any struct.

use crate::v1::content_part::Part;
use crate::v1::infer_request::Input;
use crate::v1::{ChatInput, ChatMessage, ContentPart, InferRequest, Role, TokenIds};

impl InferRequest {
    /// Goes on with a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { input: Some(Input::Text(text.into())), ..Self::default() }
    }

    /// Goes on with tokens.
    pub fn token_ids(ids: impl Into<Vec<u32>>) -> Self {
        Self { input: Some(Input::TokenIds(TokenIds { ids: ids.into() })), ..Self::default() }
    }

    /// Asks for the next message of a chat.
    pub fn chat(messages: impl Into<Vec<ChatMessage>>) -> Self {
        let chat = ChatInput { messages: messages.into(), ..ChatInput::default() };
        Self { input: Some(Input::Chat(chat)), ..Self::default() }
    }

    /// Asks a model by its name, instead of the default one.
    pub fn model(mut self, name: impl Into<String>) -> Self {
        self.model = name.into();
        self
    }

    /// Ends the answer after so many tokens.
    pub fn max_tokens(mut self, count: u32) -> Self {
        self.stopping.get_or_insert_default().max_tokens = Some(count);
        self
    }

    /// Ends the answer where this text comes.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stopping.get_or_insert_default().stop_strings.push(text.into());
        self
    }

    /// 0 for the likeliest answer, higher for more surprising ones.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.sampling.get_or_insert_default().temperature = Some(temperature);
        self
    }

    /// Makes the answer reproducible.
    pub fn seed(mut self, seed: u64) -> Self {
        self.sampling.get_or_insert_default().seed = Some(seed);
        self
    }
}

impl ChatMessage {
    /// A message of text.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        let part = ContentPart { part: Some(Part::Text(text.into())) };
        Self { role: role.into(), content: vec![part], ..Self::default() }
    }

    /// An instruction.
    pub fn system(text: impl Into<String>) -> Self {
        Self::new(Role::System, text)
    }

    /// What the person says.
    pub fn user(text: impl Into<String>) -> Self {
        Self::new(Role::User, text)
    }

    /// What the model said.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::new(Role::Assistant, text)
    }
}
