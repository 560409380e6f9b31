use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Response, Status};

use crate::names::{self, Place};
use crate::retry::{self, Repeats};
use crate::v1::health_service_client::HealthServiceClient;
use crate::v1::inference_service_client::InferenceServiceClient;
use crate::v1::model_service_client::ModelServiceClient;
use crate::v1::snapshot_service_client::SnapshotServiceClient;
use crate::v1::{ChatMessage, InferRequest, InferResponse, StreamInferRequest};
use crate::{Code, Conversation, Error, Session, Stream};

/// Of the servers behind a name: how many may come and go before the connection takes note.
const CHANGES_WAITING: usize = 16;

type Connection = InterceptedService<Channel, Bearer>;

/// A connection to one server, or to several that take turns. Clones share it.
#[derive(Clone)]
pub struct Client {
    connection: Connection,
    timeout: Option<Duration>,
    retries: bool,
}

/// How to connect.
pub struct Builder {
    addresses: String,
    tls: Option<ClientTlsConfig>,
    token: Option<String>,
    timeout: Option<Duration>,
    retries: bool,
}

impl Client {
    /// A connection to "host:port"; to several, "one:50051,two:50051", or "ipv4:10.0.0.1:50051,10.0.0.2:50051" as the other
    /// clients have it; or to all that a name stands for, "dns:///name:50051".
    pub fn builder(addresses: impl Into<String>) -> Builder {
        Builder { addresses: addresses.into(), tls: None, token: None, timeout: None, retries: true }
    }

    /// The whole answer. Dropping the future ends the request at the server.
    pub async fn infer(&self, request: InferRequest) -> Result<InferResponse, Error> {
        let repeats = Repeats::of(&request);
        self.call(request, repeats, async |r| self.inference().infer(r).await).await
    }

    /// The answer as it comes. Dropping the stream ends the request at the server.
    pub async fn stream(&self, request: InferRequest) -> Result<Stream, Error> {
        let (repeats, deadline) = (Repeats::of(&request), self.deadline());
        let request = StreamInferRequest { request: Some(request), ..Default::default() };
        let events = self.call(request, repeats, async |r| self.inference().stream_infer(r).await).await?;
        Ok(Stream::new(events, deadline))
    }

    /// Makes a call of any stub that changes nothing, or the same thing twice: bounded by the timeout, and made again
    /// where its failure may pass. `client.read(GetModelRequest::default(), async |r| client.models().get_model(r).await)`
    pub async fn read<T, M: Clone>(
        &self,
        message: M,
        attempt: impl AsyncFnMut(Request<M>) -> Result<Response<T>, Status>,
    ) -> Result<T, Error> {
        self.call(message, Repeats::Harmless, attempt).await
    }

    /// The same for a call that changes something: made again only where the server refused it for now.
    pub async fn change<T, M: Clone>(
        &self,
        message: M,
        attempt: impl AsyncFnMut(Request<M>) -> Result<Response<T>, Status>,
    ) -> Result<T, Error> {
        self.call(message, Repeats::Refused, attempt).await
    }

    async fn call<T, M: Clone>(
        &self,
        message: M,
        repeats: Repeats,
        attempt: impl AsyncFnMut(Request<M>) -> Result<Response<T>, Status>,
    ) -> Result<T, Error> {
        let repeats = if self.retries { repeats } else { Repeats::Never };
        retry::call(message, self.deadline(), repeats, attempt).await
    }

    /// A chat that begins with some messages, often one of the system's. `options` is a request without a prompt: what
    /// it asks for holds for every answer.
    pub fn conversation(&self, messages: impl Into<Vec<ChatMessage>>, options: InferRequest) -> Conversation {
        Conversation::new(self.clone(), messages.into(), options)
    }

    /// A session by its name. The first request begins it; what was saved of it comes back by itself.
    pub fn session(&self, id: impl Into<String>) -> Session {
        Session::new(self.clone(), id.into())
    }

    /// The same connection with another bound of each call.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self.clone() }
    }

    /// The stub of InferenceService. By themselves stubs neither retry nor know the timeout (see [`Client::read`]); their
    /// errors become [`Error`] by `?`.
    pub fn inference(&self) -> InferenceServiceClient<Connection> {
        InferenceServiceClient::new(self.connection.clone()).max_decoding_message_size(usize::MAX)
    }

    /// The stub of ModelService.
    pub fn models(&self) -> ModelServiceClient<Connection> {
        ModelServiceClient::new(self.connection.clone()).max_decoding_message_size(usize::MAX)
    }

    /// The stub of HealthService.
    pub fn health(&self) -> HealthServiceClient<Connection> {
        HealthServiceClient::new(self.connection.clone())
    }

    /// The stub of SnapshotService.
    pub fn snapshots(&self) -> SnapshotServiceClient<Connection> {
        SnapshotServiceClient::new(self.connection.clone()).max_decoding_message_size(usize::MAX)
    }

    fn deadline(&self) -> Option<Instant> {
        self.timeout.map(|timeout| Instant::now() + timeout)
    }
}

impl Builder {
    /// Encrypts: `ClientTlsConfig::new().with_enabled_roots()`, with an identity for mutual TLS.
    pub fn tls(mut self, configuration: ClientTlsConfig) -> Self {
        self.tls = Some(configuration);
        self
    }

    /// Sends a bearer token with every call. It needs TLS.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Bounds each call. Absent: no bound.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Without them a refusal that would pass is returned at once, with how long to wait.
    pub fn retries(mut self, retries: bool) -> Self {
        self.retries = retries;
        self
    }

    /// The client; it connects when it is first used. Must be called within a tokio runtime.
    pub fn connect(self) -> Result<Client, Error> {
        if self.token.is_some() && self.tls.is_none() {
            return Err(invalid("A token needs TLS: it would be sent in the clear."));
        }
        let channel = match self.addresses.strip_prefix("dns:///") {
            Some(name) => self.named(name)?,
            None => self.listed()?,
        };
        let connection = InterceptedService::new(channel, Bearer::new(self.token)?);
        Ok(Client { connection, timeout: self.timeout, retries: self.retries })
    }

    fn listed(&self) -> Result<Channel, Error> {
        let addresses = self.addresses.trim_start_matches("ipv4:").split(',');
        let endpoints: Vec<_> = addresses.map(|address| self.endpoint(address)).collect::<Result<_, _>>()?;
        Ok(match endpoints.as_slice() {
            [one] => one.connect_lazy(),
            _ => Channel::balance_list(endpoints.into_iter()),
        })
    }

    /// Each of them must have a certificate for the name.
    fn named(&self, name: &str) -> Result<Channel, Error> {
        let (by_name, name) = (self.endpoint(name)?, name.to_owned());
        let host = by_name.uri().host().unwrap_or_default().to_owned();
        let tls = self.tls.clone().map(|tls| tls.domain_name(host));
        let endpoint = move |place: Place| match place.map(|address| endpoint(&address.to_string(), tls.clone())) {
            Some(Ok(found)) => found.origin(by_name.uri().clone()),
            _ => by_name.clone(),
        };
        let (channel, changes) = Channel::balance_channel(CHANGES_WAITING);
        let look_up = async move || Ok(lookup_host(&name).await?.collect());
        tokio::spawn(names::follow(look_up, endpoint, changes));
        Ok(channel)
    }

    fn endpoint(&self, address: &str) -> Result<Endpoint, Error> {
        endpoint(address, self.tls.clone())
    }
}

fn endpoint(address: &str, tls: Option<ClientTlsConfig>) -> Result<Endpoint, Error> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(invalid)?;
    match tls {
        Some(tls) => endpoint.tls_config(tls).map_err(invalid),
        None => Ok(endpoint),
    }
}

/// Adds the token to every call.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Bearer {
    fn new(token: Option<String>) -> Result<Self, Error> {
        let header = token.map(|token| format!("Bearer {token}").parse().map_err(|_| invalid("The token is no text.")));
        header.transpose().map(Bearer)
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(header) = &self.0 {
            request.metadata_mut().insert("authorization", header.clone());
        }
        Ok(request)
    }
}

fn invalid(what: impl ToString) -> Error {
    Error::new(Code::InvalidArgument, what.to_string())
}
