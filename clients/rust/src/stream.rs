use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};
use tokio_stream::StreamExt;
use tonic::Streaming;

use crate::v1::stream_infer_response::Event;
use crate::v1::{StreamFinished, StreamInferResponse, StreamStarted};
use crate::{Error, retry};

/// A streamed answer: a `Stream` of its events, or of its text. Dropping it ends the request at the server.
pub struct Stream {
    /// Set as these events pass.
    pub started: Option<StreamStarted>,
    pub finished: Option<StreamFinished>,
    events: Streaming<StreamInferResponse>,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Stream {
    pub(crate) fn new(events: Streaming<StreamInferResponse>, deadline: Option<Instant>) -> Self {
        Self { started: None, finished: None, events, deadline: deadline.map(|at| Box::pin(sleep_until(at))) }
    }

    /// More text of the first choice; None when it is complete.
    pub async fn next_text(&mut self) -> Result<Option<String>, Error> {
        while let Some(event) = self.try_next().await? {
            if let Some(Event::Delta(delta)) = event.event
                && delta.index == 0
                && !delta.text.is_empty()
            {
                return Ok(Some(delta.text));
            }
        }
        Ok(None)
    }
}

impl tokio_stream::Stream for Stream {
    type Item = Result<StreamInferResponse, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let deadline = self.deadline.as_ref().map(|sleep| sleep.deadline());
        if let Some(sleep) = &mut self.deadline
            && sleep.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err(retry::late())));
        }
        let event = std::task::ready!(Pin::new(&mut self.events).poll_next(context));
        match event.as_ref().and_then(|event| event.as_ref().ok()).and_then(|event| event.event.as_ref()) {
            Some(Event::Started(started)) => self.started = Some(started.clone()),
            Some(Event::Finished(finished)) => self.finished = Some(finished.clone()),
            _ => {}
        }
        Poll::Ready(event.map(|event| event.map_err(|status| retry::failure(status, deadline))))
    }
}
