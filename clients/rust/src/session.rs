use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio_stream::StreamExt;
use tonic::Request;

use crate::v1::export_state_request::Source;
use crate::v1::export_state_response::Part as Exported;
use crate::v1::import_state_header::Target;
use crate::v1::import_state_request::Part;
use crate::v1::{
    DeleteRequest, DeleteResponse, ExportStateRequest, ImportStateHeader, ImportStateRequest, InferRequest,
    RestoreRequest, RestoreResponse, SaveRequest, Snapshot, SnapshotReference, StateChunk, StateEnd, StateHeader,
};
use crate::{Client, Code, Error};

/// A message of a state holds so much at most.
const CHUNK_BYTES: usize = 1 << 20;
/// `save` takes so much in one message; more goes in a stream.
const AGENT_STATE_BYTES_MAX: usize = 4 << 20;

/// What the server keeps under a name: tokens, their key/value cache, and bytes of the application's own.
#[derive(Clone)]
pub struct Session {
    pub id: String,
    client: Client,
}

/// A version of a session, whole: to be kept, or to be brought to another server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    pub header: Option<StateHeader>,
    /// The application's own bytes.
    pub agent_state: Vec<u8>,
    /// The pages; none where they were not kept.
    pub key_value: Vec<u8>,
}

impl InferRequest {
    /// Makes the request one of a session: what it holds is put behind what the session has already.
    pub fn in_session(mut self, session: &Session) -> Self {
        self.session_id = session.id.clone();
        self
    }
}

impl Session {
    pub(crate) fn new(client: Client, id: String) -> Self {
        Self { id, client }
    }

    /// Makes a new version of the session, with bytes of any length; None keeps those of the parent version.
    pub async fn save(&self, agent_state: Option<Vec<u8>>) -> Result<Snapshot, Error> {
        if agent_state.as_ref().is_none_or(|bytes| bytes.len() <= AGENT_STATE_BYTES_MAX) {
            let request = SaveRequest { session_id: self.id.clone(), agent_state, ..Default::default() };
            let answer = self.client.change(request, async |r| self.client.snapshots().save(r).await).await?;
            return Ok(answer.snapshot.unwrap_or_default());
        }
        let state = State { agent_state: agent_state.unwrap_or_default(), ..State::default() };
        self.send(Target::LiveSessionId(self.id.clone()), state).await
    }

    /// Brings the latest version back.
    pub async fn restore(&self) -> Result<RestoreResponse, Error> {
        let request = RestoreRequest { snapshot: Some(self.reference()), ..Default::default() };
        self.client.read(request, async |r| self.client.snapshots().restore(r).await).await
    }

    /// Deletes all versions, and ends the session.
    pub async fn delete(&self) -> Result<DeleteResponse, Error> {
        let request = DeleteRequest { session_id: self.id.clone(), ..Default::default() };
        self.client.change(request, async |r| self.client.snapshots().delete(r).await).await
    }

    /// Fetches the latest version. Every byte is checked; what is damaged is an error of [`Code::DataLoss`].
    pub async fn export(&self) -> Result<State, Error> {
        let request = ExportStateRequest { source: Some(Source::Snapshot(self.reference())), ..Default::default() };
        let mut parts = self.client.read(request, async |r| self.client.snapshots().export_state(r).await).await?;
        let mut state = State::default();
        while let Some(part) = parts.try_next().await? {
            match part.part {
                Some(Exported::Header(header)) => state.header = Some(header),
                Some(Exported::AgentState(chunk)) => add(&mut state.agent_state, &chunk)?,
                Some(Exported::KeyValue(chunk)) => add(&mut state.key_value, &chunk)?,
                Some(Exported::End(sent)) => return compare(&state, &sent).map(|()| state),
                None => {}
            }
        }
        Err(damaged("it ended too soon"))
    }

    /// Saves a state as the session's next version. The session need not be live.
    pub async fn import(&self, state: State) -> Result<Snapshot, Error> {
        self.send(Target::SessionId(self.id.clone()), state).await
    }

    async fn send(&self, target: Target, mut state: State) -> Result<Snapshot, Error> {
        let end = end(&state);
        let header = ImportStateHeader { target: Some(target), state: state.header.take(), ..Default::default() };
        let state = Arc::new(state); // every attempt reads it
        let parts = || {
            std::iter::once(Part::Header(header.clone()))
                .chain(chunks(state.clone(), |state| &state.agent_state).map(Part::AgentState))
                .chain(chunks(state.clone(), |state| &state.key_value).map(Part::KeyValue))
                .chain(std::iter::once(Part::End(end.clone())))
                .map(|part| ImportStateRequest { part: Some(part) })
        };
        let attempt = async |request: Request<()>| {
            self.client.snapshots().import_state(request.map(|()| tokio_stream::iter(parts()))).await
        };
        Ok(self.client.change((), attempt).await?.snapshot.unwrap_or_default())
    }

    fn reference(&self) -> SnapshotReference {
        SnapshotReference { session_id: self.id.clone(), version: None }
    }
}

fn chunks(state: Arc<State>, bytes: fn(&State) -> &Vec<u8>) -> impl Iterator<Item = StateChunk> + Send {
    (0..bytes(&state).len()).step_by(CHUNK_BYTES).map(move |begin| {
        let bytes = bytes(&state);
        let content = bytes[begin..bytes.len().min(begin + CHUNK_BYTES)].to_vec();
        StateChunk { offset_bytes: begin as u64, crc32c: crc32c::crc32c(&content), content }
    })
}

/// Appends a chunk, if it comes in its place and whole.
fn add(bytes: &mut Vec<u8>, chunk: &StateChunk) -> Result<(), Error> {
    if chunk.offset_bytes != bytes.len() as u64 || crc32c::crc32c(&chunk.content) != chunk.crc32c {
        return Err(damaged(&format!("the chunk at {} is wrong", chunk.offset_bytes)));
    }
    bytes.extend_from_slice(&chunk.content);
    Ok(())
}

/// What a state must come to.
fn end(state: &State) -> StateEnd {
    StateEnd {
        agent_state_bytes: state.agent_state.len() as u64,
        agent_state_sha256: Sha256::digest(&state.agent_state).to_vec(),
        key_value_bytes: state.key_value.len() as u64,
        key_value_sha256: Sha256::digest(&state.key_value).to_vec(),
    }
}

/// Holds a state against what was sent of it.
fn compare(state: &State, sent: &StateEnd) -> Result<(), Error> {
    let found = end(state);
    if (found.agent_state_bytes, found.key_value_bytes) != (sent.agent_state_bytes, sent.key_value_bytes) {
        return Err(damaged("its sizes are wrong"));
    }
    let agent_state_differs = found.agent_state_bytes > 0 && found.agent_state_sha256 != sent.agent_state_sha256;
    let key_value_differs = found.key_value_bytes > 0 && found.key_value_sha256 != sent.key_value_sha256;
    if agent_state_differs || key_value_differs { Err(damaged("its hashes are wrong")) } else { Ok(()) }
}

fn damaged(what: &str) -> Error {
    Error::new(Code::DataLoss, format!("The state is damaged: {what}."))
}
